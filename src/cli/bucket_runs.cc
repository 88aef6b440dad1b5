#include "cli/bucket_runs.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/format.h"
#include "base/interrupted.h"
#include "base/owned_fd.h"
#include "base/python_child.h"
#include "cli/reading.h"
#include "cli/runs_folder.h"
#include "cli/terminal.h"
#include "luff/base/process.h"

namespace luff::cli {
namespace {

constexpr std::size_t kShortDigits = 8;
constexpr std::size_t kAllDigits = 32;

Status Errno(const char* what) { return IoError(fmt::format("{}: {}", what, std::strerror(errno))); }

/// A file without a name that holds a text, for the standard input of a child: it can be read while we write
/// nothing.
Result<OwnedFd> FileWith(const std::string& text) {
  OwnedFd file(memfd_create("luff-known", MFD_CLOEXEC));
  if (file.get() < 0) return Errno("memory cannot be had");
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t done = Uninterrupted([&] { return write(file.get(), text.data() + at, text.size() - at); });
    if (done <= 0) return Errno("memory cannot be written");
    at += static_cast<std::size_t>(done);
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0) return Errno("memory cannot be read");
  return file;
}

class BucketCards : public catalog::CardSource {
 public:
  explicit BucketCards(std::string url) : url_(std::move(url)) {}
  ~BucketCards() override { End(); }
  BucketCards(const BucketCards&) = delete;
  BucketCards& operator=(const BucketCards&) = delete;

  [[nodiscard]] std::size_t changed() const noexcept override { return changed_; }

  Status Begin(const std::vector<catalog::BucketRun>& known) override {
    End();
    reader_ = {};
    changed_ = 0;
    std::string text;
    for (const catalog::BucketRun& run : known) text += fmt::format("{} {}\n", run.run_id, run.stamp);
    LUFF_ASSIGN_OR_RETURN(const OwnedFd file, FileWith(text));
    auto command = PythonCommand("cards");
    if (!command.ok()) return command.status().WithContext("a bucket is read by Luff's Python package");
    command->push_back(url_);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return Errno("a pipe cannot be had");
    from_ = OwnedFd(ends[0]);
    const OwnedFd to(ends[1]);
    ProcessOptions process;
    process.argv = std::move(command).value();
    process.stdin_fd = file.get();
    process.stdout_fd = to.get();
    process.dies_with_parent = true;
    LUFF_ASSIGN_OR_RETURN(child_, StartProcess(process));
    return Status::Ok();
  }

  Result<std::optional<catalog::BucketRun>> Next(std::vector<std::string>* notes) override {
    using Kind = catalog::LookReader::Kind;
    while (true) {
      LUFF_ASSIGN_OR_RETURN(auto item, reader_.Next());
      switch (item.kind) {
        case Kind::kRun: return std::optional(std::move(item.run));
        case Kind::kNote: notes->push_back(item.text); break;
        case Kind::kCount: changed_ = item.count; break;
        case Kind::kError: return Status(StatusCode::kUnavailable, item.text);
        case Kind::kEnd: return std::optional<catalog::BucketRun>();
        case Kind::kMore: LUFF_RETURN_IF_ERROR(Read()); break;
      }
    }
  }

 private:
  Status Read() {
    char bytes[65536];
    const ssize_t got = Uninterrupted([&] { return read(from_.get(), bytes, sizeof(bytes)); });
    if (got <= 0)
      return {StatusCode::kUnavailable, "the process that reads the bucket has ended too early: " + url_};
    reader_.AddUntrusted({bytes, static_cast<std::size_t>(got)});
    return Status::Ok();
  }

  void End() noexcept {
    from_ = OwnedFd();
    if (child_ > 0) {
      kill(child_, SIGKILL);  // it has told all, or nobody listens any more
      (void)WaitFor(child_);
    }
    child_ = -1;
  }

  const std::string url_;
  pid_t child_ = -1;
  OwnedFd from_;
  std::size_t changed_ = 0;
  catalog::LookReader reader_;
};

}  // namespace

std::unique_ptr<catalog::CardSource> CardsOfBucket(std::string url) {
  return std::make_unique<BucketCards>(std::move(url));
}

std::string BucketUrl(std::string url) {
  while (url.ends_with('/') && !url.ends_with("://") && url != "file:///") url.pop_back();
  return url;
}

std::string RunUrlOrExit(const std::string& url) {
  const std::size_t slash = url.rfind('/');
  const std::string last = url.substr(slash + 1);
  const bool digits = last.size() > 1 && last.size() < 9 && last[0] == '@' &&
                      last.find_first_not_of("0123456789", 1) == std::string::npos;
  if (!digits) return url;
  catalog::Question question;
  question.folder = BucketUrl(url.substr(0, slash));
  question.limit = static_cast<std::size_t>(std::stoi(last.substr(1)));
  const auto source = CardsOfBucket(question.folder);
  const catalog::Answer answer =
      ValueOrExit(catalog::AskBucket(IndexFile(), question, source.get(), PrintReading));
  if (question.limit > 0 && answer.entries.size() >= question.limit)
    return answer.entries[question.limit - 1].path;
  ExitWithError(NotFound(answer.all == 0 ? "there is no run with a card: " + question.folder
                                         : fmt::format("there is no run {}, the oldest one is @{}: {}", last,
                                                       answer.all, question.folder)));
}

std::size_t DigitsOf(const catalog::Answer& answer) {
  std::set<std::string> short_ids;
  for (const catalog::Entry& run : answer.entries) short_ids.insert(run.name.substr(0, kShortDigits));
  return short_ids.size() == answer.entries.size() ? kShortDigits : kAllDigits;
}

}  // namespace luff::cli
