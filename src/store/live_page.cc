#include "store/live_page.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>
#include <span>

#include "base/interrupted.h"
#include "base/owned_fd.h"
#include "luff/format/frames.h"
#include "luff/store/owner.h"
#include "store/paths.h"

namespace luff::store {
namespace {

constexpr int kMaxOpenPages = 256;  // per process, which needs descriptors for other files too
std::atomic<int> g_open_pages{0};

/// Returns nullopt if the page is incomplete or damaged.
std::optional<format::LivePage> ReadPage(File& file) {
  std::byte bytes[sizeof(format::LivePage)] = {};
  const auto got = file.ReadAt(bytes, 0);
  if (!got.ok() || !format::IsLivePageUntrusted(std::span(bytes).first(*got))) return std::nullopt;
  format::LivePage page{};
  std::memcpy(&page, bytes, sizeof(page));
  return page;
}

/// Different processes may have the same pid in different containers of one machine.
std::uint32_t PidNamespace() noexcept {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint32_t>(info.st_ino) : 0;
}

bool OfThisBoot(const format::LivePage& page, const HostIdentity& here = ThisHost()) noexcept {
  return page.boot[0] == here.boot[0] && page.boot[1] == here.boot[1];
}

bool OfThisHost(const format::LivePage& page) noexcept {
  const HostIdentity here = ThisHost();
  return page.host == here.host && OfThisBoot(page, here);
}

/// Whether the process that a page names can be looked up from here.
bool CanLookUp(const format::LivePage& page) noexcept {
  return page.pid_start_ticks != 0 && page.pid_namespace == PidNamespace();
}

/// Whether the folder's last writer still writes; nullopt if that cannot be determined from here.
std::optional<bool> WriterRuns(File& file) {
  const auto page = ReadPage(file);
  if (!page) return std::nullopt;
  const auto news = format::ParseLiveNewsUntrusted(std::as_bytes(std::span(&page->news, 1)));
  if (news && news->state == static_cast<std::uint32_t>(format::LiveState::kEnded)) return false;
  if (!OfThisHost(*page) || !CanLookUp(*page)) return std::nullopt;
  if (ProcessStartTicks(page->pid) != page->pid_start_ticks) return false;
  // This process may have dropped its writer.
  if (page->pid == static_cast<std::uint64_t>(getpid())) return std::nullopt;
  return true;
}

}  // namespace

bool IsAbandoned(const std::string& run_path, std::uint32_t worker) {
  const std::string path = WorkerDirectory(run_path, worker) + "/live";
  const auto file = Env::Real().Open(path, Env::OpenMode::kRead);
  const auto page = file.ok() ? ReadPage(**file) : std::nullopt;
  if (!page || !OfThisBoot(*page)) return false;
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const OwnedFd lock(Uninterrupted([&] { return open(path.c_str(), kFlags); }));
  return lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

std::optional<FolderWriter> WriterOf(const std::string& folder) {
  const auto file = Env::Real().Open(folder + "/live", Env::OpenMode::kRead);
  const auto page = file.ok() ? ReadPage(**file) : std::nullopt;
  if (!page) return std::nullopt;
  FolderWriter writer;
  writer.pid = page->pid;
  writer.here = OfThisHost(*page);
  writer.start_ticks = writer.here && CanLookUp(*page) ? page->pid_start_ticks : 0;
  const auto news = format::ParseLiveNewsUntrusted(std::as_bytes(std::span(&page->news, 1)));
  writer.ended = (news && news->state == static_cast<std::uint32_t>(format::LiveState::kEnded)) ||
                 (writer.start_ticks != 0 && ProcessStartTicks(page->pid) != page->pid_start_ticks);
  return writer;
}

std::uint32_t ThisHostNumber() noexcept {
  const HostIdentity here = ThisHost();
  const std::uint64_t words[] = {here.host, here.boot[0], here.boot[1], PidNamespace()};
  return static_cast<std::uint32_t>(format::HashBytes(std::as_bytes(std::span(words))) % 1'000'000'000U);
}

Result<std::unique_ptr<LivePageWriter>> LivePageWriter::Take(Env& env, const std::string& directory,
                                                             bool publish) {
  const std::string path = directory + "/live";
  std::unique_ptr<LivePageWriter> writer(new LivePageWriter());
  LUFF_ASSIGN_OR_RETURN(writer->file_, env.Open(path, Env::OpenMode::kReadWrite));
  const bool locked = writer->file_->TryLock();
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t size, writer->file_->Size());
  // The lock decides only if the page does not: children forked by a dead writer may still hold it, and a
  // file system without locks grants it to everyone.
  if (WriterRuns(*writer->file_).value_or(!locked)) {
    return AlreadyExists(
        "found a worker's folder that another process is writing, expected a free one; wait for its "
        "end or name another run: " +
        directory);
  }
  // Clears the old page, so that it is not taken for the new writer's. Other machines see only what is
  // synced.
  const std::byte zeros[format::kPageBytes] = {};
  const Status written = writer->file_->WriteAt(zeros, 0);
  if (size != 0) (void)writer->file_->Sync();
  writer->publish_ = publish && written.ok();
  return writer;
}

void LivePageWriter::Begin(const RunInfo& run, std::uint32_t worker, std::uint32_t epoch,
                           std::uint64_t next_ordinal, std::int64_t train_steps) {
  news_.next_ordinal = next_ordinal;
  news_.last_global_step = -1;
  news_.train_steps = train_steps;
  news_.state = static_cast<std::uint32_t>(format::LiveState::kStarting);
  Write();
  const HostIdentity here = ThisHost();
  format::LivePage page{};
  page.magic = format::kLiveMagic;
  page.layout = format::kLiveLayout;
  page.worker = worker;
  page.host = here.host;
  page.boot[0] = here.boot[0];
  page.boot[1] = here.boot[1];
  page.pid = static_cast<std::uint64_t>(getpid());
  page.pid_start_ticks = ProcessStartTicks(page.pid);
  page.pid_namespace = PidNamespace();
  std::memcpy(page.run_id, run.run_id.data(), sizeof(page.run_id));
  page.epoch = epoch;
  page.created_unix_ns = run.created_unix_ns;
  const auto head = std::as_bytes(std::span(&page, 1));
  page.checksum = format::HashBytes(head.first(offsetof(format::LivePage, checksum)));
  if (publish_) (void)file_->WriteAt(head.first(format::kLiveNewsOffset), 0);
}

void LivePageWriter::Write() noexcept {
  if (!publish_ || file_ == nullptr) return;
  format::SealLiveNews(&news_);
  try {  // if writing fails the page is out of date: readers then look at the folder itself
    (void)file_->WriteAt(std::as_bytes(std::span(&news_, 1)), format::kLiveNewsOffset);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): no memory for the error's text
  }
}

void LivePageWriter::Publish(const Published& p, format::LiveState state) noexcept {
  news_.meta_position = format::PackPosition(p.meta_sequence, p.meta_length);
  news_.data_position = format::PackPosition(p.data_sequence, p.data_length);
  news_.next_ordinal = p.next_ordinal;
  news_.last_global_step = p.last_global_step;
  news_.train_steps = p.train_steps;
  SetState(state);
}

void LivePageWriter::SetState(format::LiveState state) noexcept {
  news_.state = static_cast<std::uint32_t>(state);
  Write();
}
void LivePageWriter::Beat(std::int64_t unix_ns) noexcept {
  news_.heartbeat_unix_ns = unix_ns;
  Write();
}
void LivePageWriter::CountChange() noexcept {
  ++news_.changes;
  Write();
}
void LivePageWriter::End(std::int64_t unix_ns) noexcept {
  news_.heartbeat_unix_ns = unix_ns;
  SetState(format::LiveState::kEnded);
  file_.reset();
}

LivePageReader::LivePageReader() { g_open_pages.fetch_add(1, std::memory_order_relaxed); }
LivePageReader::~LivePageReader() { g_open_pages.fetch_sub(1, std::memory_order_relaxed); }

std::unique_ptr<LivePageReader> LivePageReader::Open(const std::string& folder, std::uint32_t worker,
                                                     const RunInfo& run) {
  if (g_open_pages.load(std::memory_order_relaxed) >= kMaxOpenPages) return nullptr;
  auto file = Env::Real().Open(folder + "/live", Env::OpenMode::kRead);
  if (!file.ok()) return nullptr;
  const auto page = ReadPage(**file);
  if (!page || page->layout != format::kLiveLayout || page->worker != worker) return nullptr;
  if (std::memcmp(page->run_id, run.run_id.data(), sizeof(page->run_id)) != 0) return nullptr;
  if (!OfThisHost(*page)) return nullptr;
  std::unique_ptr<LivePageReader> reader(new LivePageReader());
  reader->file_ = std::move(file).value();
  reader->pid_ = page->pid;
  reader->pid_start_ticks_ = CanLookUp(*page) ? page->pid_start_ticks : 0;
  return reader;
}

std::optional<format::LiveNews> LivePageReader::Read() const {
  std::byte bytes[sizeof(format::LiveNews)];
  for (int attempt = 0; attempt < 3; ++attempt) {  // the writer may be updating the page
    const auto got = file_->ReadAt(bytes, format::kLiveNewsOffset);
    if (!got.ok() || *got != sizeof(bytes)) break;
    if (const auto news = format::ParseLiveNewsUntrusted(bytes)) return news;
  }
  return std::nullopt;
}

std::optional<bool> LivePageReader::WriterRuns() const noexcept {
  if (pid_start_ticks_ == 0) return std::nullopt;
  return ProcessStartTicks(pid_) == pid_start_ticks_;
}

}  // namespace luff::store
