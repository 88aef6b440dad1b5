#include "cli/log_keeper.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/interrupted.h"
#include "cli/log_copier.h"
#include "luff/base/env.h"
#include "luff/base/process.h"
#include "server/job_log.h"

namespace luff::cli {
namespace {

constexpr const char* kNames[] = {"stdout", "stderr"};
constexpr std::int64_t kMarkNs = 100'000'000;
constexpr std::size_t kMaxMarks = 65'536;
constexpr std::uint64_t kRoom = 4 << 20;  // reserved on disk ahead of the job
constexpr std::uint64_t kUnshown = 16;    // what nobody has read yet may take as many times the bound

Result<OwnedFd> OpenFile(const std::string& path, int flags) {
  OwnedFd fd(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat info{};
  if (!fd.valid()) return IoError(fmt::format("cannot be opened: {}: {}", path, std::strerror(errno)));
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return FailedPrecondition("found something that is no regular file, expected the job's log: " + path);
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

/// Reserves room on disk behind the first `size` bytes. Returns 0, or the error: ENOSPC, EOPNOTSUPP.
int Reserve(int fd, std::uint64_t size) noexcept {
  return fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(size), kRoom) == 0 ? 0 : errno;
}

/// Gives back what is reserved behind the end, if no other process has the file open: what one appends
/// between a look at the size and the cut would be lost. A lease says so, and keeps others out meanwhile.
void CutToSize(int fd) noexcept {
  signal(SIGIO, SIG_IGN);  // that somebody waits for the lease
  if (fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return;
  struct stat info{};
  if (fstat(fd, &info) == 0) {
    [[maybe_unused]] const int cut = ftruncate(fd, info.st_size);
  }
  fcntl(fd, F_SETLEASE, F_UNLCK);
}

/// Says when the streams were how long, and keeps them within their bounds.
class Keeper {
 public:
  Keeper(std::string folder, std::uint64_t bytes) : folder_(std::move(folder)), bytes_(bytes) {}

  /// `shown`: how long the streams were before the job began.
  Status Open(const server::LogPlace& shown) {
    const auto text = ReadRegular(folder_ + "times", 64 << 20, 0);
    if (text.ok()) marks_ = server::ParseLogTimesUntrusted(*text);
    const auto dropped = ReadRegular(folder_ + "dropped", 256, 0);
    const auto first = server::ParseLogDroppedUntrusted(dropped.ok() ? *dropped : "");
    for (std::size_t i = 0; i < 2; ++i) {
      LogStream& stream = streams_[i];
      stream.path = folder_ + kNames[i];
      LUFF_ASSIGN_OR_RETURN(stream.file, OpenFile(stream.path, O_RDWR));
      stream.to = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
      stream.shown.store(shown[i]);
      stream.dropped.store(std::min(first[i], shown[i]));
    }
    // On a full disk there are no times, and nothing is given up; what comes is shown all the same.
    (void)WriteMarks().ok();  // without a torn line
    if (WriteWholeFile(Env::Real(), folder_ + "dropped", DroppedText()).ok()) {
      if (auto file = OpenFile(folder_ + "dropped", O_WRONLY); file.ok()) dropped_file_ = std::move(*file);
    }
    return Status::Ok();
  }

  void Look(bool last) {
    const server::LogPlace size = {SizeOf(streams_[0].file.get()), SizeOf(streams_[1].file.get())};
    const std::int64_t now = Env::Real().NowUnixNs();
    if (size[0] < size_[0] || size[1] < size_[1]) Cut();
    size_ = size;
    const bool grown = marks_.empty() ? size != server::LogPlace{} : size != marks_.back().size;
    if (grown &&
        (last || marks_.empty() || now - marks_.back().unix_ns >= kMarkNs || now < marks_.back().unix_ns))
      Mark({now, size});
    for (std::size_t i = 0; i < 2; ++i) Bound(i, size[i], last);
  }

  [[nodiscard]] LogStream* stream(std::size_t i) noexcept { return &streams_[i]; }

 private:
  static std::string Line(const server::LogMark& mark) {
    return fmt::format("{} {} {}\n", mark.unix_ns, mark.size[0], mark.size[1]);
  }
  Status WriteMarks() {
    std::string text;
    for (const server::LogMark& mark : marks_) text += Line(mark);
    LUFF_RETURN_IF_ERROR(WriteWholeFile(Env::Real(), folder_ + "times", text));
    LUFF_ASSIGN_OR_RETURN(times_, OpenFile(folder_ + "times", O_WRONLY | O_APPEND));
    return Status::Ok();
  }
  void Mark(server::LogMark mark) {
    if (!marks_.empty()) mark.unix_ns = std::max(mark.unix_ns, marks_.back().unix_ns);
    marks_.push_back(mark);
    if (marks_.size() > kMaxMarks) {  // every second one is enough for a job that runs for hours
      std::size_t kept = 0;
      for (std::size_t i = 1; i < marks_.size(); i += 2) marks_[kept++] = marks_[i];
      marks_.resize(kept);
      (void)WriteMarks().ok();
      return;
    }
    const std::string line = Line(mark);
    (void)Uninterrupted([&] { return write(times_.get(), line.data(), line.size()); });
  }
  /// The job has cut a file (it opened /dev/stdout for writing): places from before mean nothing any more.
  void Cut() {
    marks_.clear();
    reserved_ = {};
    for (LogStream& stream : streams_) {
      if (stream.dropped.load() > SizeOf(stream.file.get())) stream.dropped.store(0);
    }
    (void)WriteMarks().ok();
    (void)WriteDropped();
  }
  /// Of one width: written in its place, it needs no room on a full disk.
  [[nodiscard]] std::string DroppedText() const {
    return fmt::format("{:020} {:020}\n", streams_[0].dropped.load(), streams_[1].dropped.load());
  }
  [[nodiscard]] bool WriteDropped() {
    const std::string text = DroppedText();
    const ssize_t written =
        Uninterrupted([&] { return pwrite(dropped_file_.get(), text.data(), text.size(), 0); });
    return written == static_cast<ssize_t>(text.size());
  }
  /// Gives the bytes before `until` back to the disk, after it is written that they are gone.
  void GiveUp(std::size_t i, std::uint64_t until) {
    LogStream& stream = streams_[i];
    const std::uint64_t first = stream.dropped.load();
    until = until / 4096 * 4096;
    if (until <= first) return;
    stream.dropped.store(until, std::memory_order_release);
    if (!WriteDropped()) {
      stream.dropped.store(first, std::memory_order_release);
      return;
    }
    const int punched = fallocate(stream.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                  static_cast<off_t>(until));
    if (punched != 0 && !std::exchange(said_, true))
      fmt::print(stderr, "luff: --log: this file system gives nothing back, the log grows with the job\n");
  }
  /// Keeps the newest bytes and what is not shown yet, and reserves room so that the job does not find the
  /// disk full.
  void Bound(std::size_t i, std::uint64_t size, bool last) {
    const int fd = streams_[i].file.get();
    const std::uint64_t dropped = streams_[i].dropped.load();
    if (size > dropped + bytes_ + bytes_ / 8) {
      const std::uint64_t bound = size - std::min(size, kUnshown * bytes_);
      GiveUp(i, std::max(bound, std::min(size - bytes_, streams_[i].shown.load())));
    }
    if (last) return CutToSize(fd);
    if (size + kRoom / 2 <= reserved_[i]) return;
    if (Reserve(fd, size) == ENOSPC) {  // the older half makes room
      GiveUp(i, size - (size - std::min(size, dropped)) / 2);
      if (Reserve(fd, size) == ENOSPC) return;
    }
    reserved_[i] = size + kRoom;
  }

  const std::string folder_;
  const std::uint64_t bytes_;
  std::array<LogStream, 2> streams_;
  OwnedFd times_, dropped_file_;
  std::vector<server::LogMark> marks_;
  server::LogPlace size_{};
  std::array<std::uint64_t, 2> reserved_{};
  bool said_ = false;
};

/// Whether standard output and standard error are one terminal, pipe or file.
bool ShownInOnePlace() noexcept {
  struct stat out{}, err{};
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
         out.st_ino == err.st_ino;
}

}  // namespace

Result<LogFiles> OpenLog(const std::string& run) {
  const std::string folder = run + "/log/";
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(folder));
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return ResourceExhausted(
        fmt::format("no file may be longer than {} bytes here (ulimit -f)", limit.rlim_cur));
  }
  LogFiles files;
  LUFF_ASSIGN_OR_RETURN(files.out, OpenFile(folder + kNames[0], O_WRONLY | O_APPEND | O_CREAT));
  LUFF_ASSIGN_OR_RETURN(files.err, OpenFile(folder + kNames[1], O_WRONLY | O_APPEND | O_CREAT));
  files.begin = {SizeOf(files.out.get()), SizeOf(files.err.get())};
  for (const OwnedFd* file : {&files.out, &files.err}) {
    if (Reserve(file->get(), SizeOf(file->get())) != ENOSPC) continue;
    return ResourceExhausted("the disk has no room for what the job prints: " + folder);
  }
  return files;
}

Status LogKeeper::Start(const std::string& run, pid_t job, std::uint64_t bytes,
                        const server::LogPlace& begin) {
  int to[2];
  if (pipe2(to, O_CLOEXEC) != 0) return IoError("a pipe cannot be made");
  to_ = OwnedFd(to[1]);
  const OwnedFd from(to[0]);
  ProcessOptions process;
  process.argv = {"/proc/self/exe",
                  "log",
                  fmt::format("--keep={}", job),
                  fmt::format("--log-bytes={}", bytes),
                  "--begin",
                  fmt::format("{}", begin[0]),
                  fmt::format("{}", begin[1]),
                  "--",
                  run};
  process.new_session = true;  // Ctrl-C is meant for the training, whose last words are shown
  process.stdin_fd = from.get();
  LUFF_ASSIGN_OR_RETURN(pid_, StartProcess(process));
  return Status::Ok();
}

void LogKeeper::JobEnded() noexcept {
  if (!to_.valid()) return;
  (void)!write(to_.get(), "e", 1);
  kill(pid_, SIGCONT);  // a keeper that somebody has stopped would be waited for without end
  to_ = OwnedFd();
}

Status KeepLog(const std::string& run, pid_t job, std::uint64_t bytes, const server::LogPlace& begin) {
  signal(SIGPIPE, SIG_IGN);
  Keeper keeper(run + "/log/", std::max<std::uint64_t>(bytes, 1 << 20));
  LUFF_RETURN_IF_ERROR(keeper.Open(begin));
  std::vector<std::unique_ptr<LogCopier>> copiers;
  if (ShownInOnePlace()) {
    copiers.push_back(std::make_unique<LogCopier>(std::vector{keeper.stream(0), keeper.stream(1)}));
  } else {
    for (const std::size_t i : {0U, 1U})
      copiers.push_back(std::make_unique<LogCopier>(std::vector{keeper.stream(i)}));
  }
  const std::uint64_t ticks = ProcessStartTicks(static_cast<std::uint64_t>(job));
  bool supervised = true, lives = true;
  while (lives) {
    pollfd fd{supervised ? STDIN_FILENO : -1, POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(kMarkNs / 1'000'000)) > 0) {
      char byte = 0;
      const ssize_t count = Uninterrupted([&] { return read(STDIN_FILENO, &byte, 1); });
      if (count > 0) break;
      supervised = false;  // the supervisor has died; the job goes on
    }
    keeper.Look(false);
    lives = supervised || (ticks != 0 && ProcessStartTicks(static_cast<std::uint64_t>(job)) == ticks);
  }
  for (const auto& copier : copiers) copier->Finish();
  keeper.Look(true);
  return Status::Ok();
}

}  // namespace luff::cli
