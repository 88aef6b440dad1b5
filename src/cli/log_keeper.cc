#include "cli/log_keeper.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/interrupted.h"
#include "luff/base/env.h"
#include "luff/base/process.h"
#include "server/job_log.h"

namespace luff::cli {
namespace {

constexpr const char* kNames[] = {"stdout", "stderr"};
constexpr std::int64_t kMarkNs = 100'000'000;
constexpr std::size_t kMaxMarks = 65'536;
constexpr std::uint64_t kRoom = 4 << 20;  // reserved on disk ahead of the job

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

std::uint64_t SizeOf(int fd) noexcept {
  struct stat info{};
  return fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

/// Copies what is appended to a file to a descriptor, in a thread of its own: a terminal may be stopped.
class Copier {
 public:
  Copier(int file, std::string path, int to, const std::atomic<std::uint64_t>& dropped)
      : file_(file),
        path_(std::move(path)),
        to_(to),
        dropped_(dropped),
        position_(SizeOf(file)) {}
  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  /// Copies what is there, and ends.
  void Finish() {
    finishing_.store(true, std::memory_order_release);
    thread_.join();
  }

 private:
  void Run() {
    const OwnedFd changes(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    (void)inotify_add_watch(changes.get(), path_.c_str(), IN_MODIFY);
    std::vector<char> buffer(64 << 10);
    for (;;) {
      const bool last = finishing_.load(std::memory_order_acquire);
      while (CopySome(&buffer)) continue;
      if (last) return;
      pollfd fd{changes.get(), POLLIN, 0};
      poll(&fd, 1, 100);
      while (read(changes.get(), buffer.data(), buffer.size()) > 0) continue;
    }
  }
  /// Returns false if there is nothing more.
  bool CopySome(std::vector<char>* buffer) {
    if (const std::uint64_t first = dropped_.load(std::memory_order_acquire); position_ < first) {
      Write(fmt::format("\nluff: {} bytes of output are left out here\n", first - position_));
      position_ = first;
    }
    const ssize_t count = Uninterrupted(
        [&] { return pread(file_, buffer->data(), buffer->size(), static_cast<off_t>(position_)); });
    if (count <= 0) return false;
    Write({buffer->data(), static_cast<std::size_t>(count)});
    position_ += static_cast<std::uint64_t>(count);
    return true;
  }
  void Write(std::string_view bytes) {
    while (!gone_ && !bytes.empty()) {
      const ssize_t count = Uninterrupted([&] { return write(to_, bytes.data(), bytes.size()); });
      if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
      if (count < 0 && errno == EAGAIN) {
        pollfd fd{to_, POLLOUT, 0};
        poll(&fd, 1, 1000);
      } else if (count <= 0) {
        gone_ = true;  // nobody reads any more; the files have all of it
      }
    }
  }

  const int file_;
  const std::string path_;
  const int to_;
  const std::atomic<std::uint64_t>& dropped_;
  std::uint64_t position_;
  bool gone_ = false;
  std::atomic<bool> finishing_{false};
  std::thread thread_;
};

/// Says when the streams were how long, and keeps them within their bounds.
class Keeper {
 public:
  Keeper(std::string folder, std::uint64_t bytes) : folder_(std::move(folder)), bytes_(bytes) {}

  Status Open() {
    for (std::size_t i = 0; i < 2; ++i) {
      LUFF_ASSIGN_OR_RETURN(files_[i], OpenFile(folder_ + kNames[i], O_RDWR));
    }
    const auto text = ReadRegular(folder_ + "times", 64 << 20, 0);
    if (text.ok()) marks_ = server::ParseLogTimesUntrusted(*text);
    const auto dropped = ReadRegular(folder_ + "dropped", 256, 0);
    const auto first = server::ParseLogDroppedUntrusted(dropped.ok() ? *dropped : "");
    for (std::size_t i = 0; i < 2; ++i) dropped_[i].store(first[i]);
    // On a full disk there are no times, and nothing is given up; what comes is shown all the same.
    (void)WriteMarks().ok();  // without a torn line
    if (WriteWholeFile(Env::Real(), folder_ + "dropped", DroppedText()).ok()) {
      if (auto file = OpenFile(folder_ + "dropped", O_WRONLY); file.ok()) dropped_file_ = std::move(*file);
    }
    return Status::Ok();
  }

  void Look(bool last) {
    const server::LogPlace size = {SizeOf(files_[0].get()), SizeOf(files_[1].get())};
    const std::int64_t now = Env::Real().NowUnixNs();
    const bool grown = marks_.empty() ? size != server::LogPlace{} : size != marks_.back().size;
    if (grown &&
        (last || marks_.empty() || now - marks_.back().unix_ns >= kMarkNs || now < marks_.back().unix_ns))
      Mark({now, size});
    for (std::size_t i = 0; i < 2; ++i) Bound(i, size[i], last);
  }

  [[nodiscard]] int file(std::size_t i) const noexcept { return files_[i].get(); }
  [[nodiscard]] const std::atomic<std::uint64_t>& dropped(std::size_t i) const noexcept {
    return dropped_[i];
  }

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
  /// Of one width: written in its place, it needs no room on a full disk.
  [[nodiscard]] std::string DroppedText() const {
    return fmt::format("{:020} {:020}\n", dropped_[0].load(), dropped_[1].load());
  }
  /// Gives the bytes before `until` back to the disk, after it is written that they are gone.
  void GiveUp(std::size_t i, std::uint64_t until) {
    const std::uint64_t first = dropped_[i].load();
    until = until / 4096 * 4096;
    if (until <= first) return;
    dropped_[i].store(until, std::memory_order_release);
    const std::string text = DroppedText();
    const ssize_t written =
        Uninterrupted([&] { return pwrite(dropped_file_.get(), text.data(), text.size(), 0); });
    if (written != static_cast<ssize_t>(text.size())) {
      dropped_[i].store(first, std::memory_order_release);
      return;
    }
    const int punched =
        fallocate(files_[i].get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(until));
    if (punched != 0 && !std::exchange(said_, true))
      fmt::print(stderr, "luff: --log: this file system gives nothing back, the log grows with the job\n");
  }
  /// Keeps the newest bytes, and reserves room so that the job does not find the disk full.
  void Bound(std::size_t i, std::uint64_t size, bool last) {
    const int fd = files_[i].get();
    if (size > dropped_[i].load() + bytes_ + bytes_ / 8) GiveUp(i, size - bytes_);
    if (last) return CutToSize(fd);
    if (size + kRoom / 2 <= reserved_[i]) return;
    if (Reserve(fd, size) == ENOSPC) {  // the older half makes room
      GiveUp(i, size - (size - dropped_[i].load()) / 2);
      if (Reserve(fd, size) == ENOSPC) return;
    }
    reserved_[i] = size + kRoom;
  }

  const std::string folder_;
  const std::uint64_t bytes_;
  std::array<OwnedFd, 2> files_;
  OwnedFd times_, dropped_file_;
  std::vector<server::LogMark> marks_;
  std::array<std::atomic<std::uint64_t>, 2> dropped_{};
  std::array<std::uint64_t, 2> reserved_{};
  bool said_ = false;
};

}  // namespace

Result<LogFiles> OpenLog(const std::string& run) {
  const std::string folder = run + "/log/";
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(folder));
  LogFiles files;
  LUFF_ASSIGN_OR_RETURN(files.out, OpenFile(folder + kNames[0], O_WRONLY | O_APPEND | O_CREAT));
  LUFF_ASSIGN_OR_RETURN(files.err, OpenFile(folder + kNames[1], O_WRONLY | O_APPEND | O_CREAT));
  for (const OwnedFd* file : {&files.out, &files.err}) {
    if (Reserve(file->get(), SizeOf(file->get())) != ENOSPC) continue;
    return ResourceExhausted("the disk has no room for what the job prints: " + folder);
  }
  return files;
}

Status LogKeeper::Start(const std::string& run, pid_t job, std::uint64_t bytes) {
  int to[2];
  if (pipe2(to, O_CLOEXEC) != 0) return IoError("a pipe cannot be made");
  to_ = OwnedFd(to[1]);
  const OwnedFd from(to[0]);
  ProcessOptions process;
  process.argv = {"/proc/self/exe",         "log", "--keep", fmt::format("{}", job), "--log-bytes",
                  fmt::format("{}", bytes), "--",  run};
  process.new_session = true;  // Ctrl-C is meant for the training, whose last words are shown
  process.stdin_fd = from.get();
  LUFF_ASSIGN_OR_RETURN(pid_, StartProcess(process));
  return Status::Ok();
}

void LogKeeper::JobEnded() noexcept {
  if (!to_.valid()) return;
  (void)!write(to_.get(), "e", 1);
  to_ = OwnedFd();
}

Status KeepLog(const std::string& run, pid_t job, std::uint64_t bytes) {
  signal(SIGPIPE, SIG_IGN);
  Keeper keeper(run + "/log/", std::max<std::uint64_t>(bytes, 1 << 20));
  LUFF_RETURN_IF_ERROR(keeper.Open());
  Copier out(keeper.file(0), run + "/log/stdout", STDOUT_FILENO, keeper.dropped(0));
  Copier err(keeper.file(1), run + "/log/stderr", STDERR_FILENO, keeper.dropped(1));
  out.Start();
  err.Start();
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
  out.Finish();
  err.Finish();
  keeper.Look(true);
  return Status::Ok();
}

}  // namespace luff::cli
