#include "store/live_page.h"

#include <unistd.h>

#include <cstring>

#include "luff/format/frames.h"

namespace luff::store {
namespace {

/// True when the page names a process of this boot of this host that still runs.
bool WriterAlive(File& file, bool locked) {
  alignas(format::LivePage) std::byte bytes[sizeof(format::LivePage)] = {};
  auto read = file.ReadAt(bytes, 0);
  if (!read.ok() || !format::IsLivePageUntrusted(std::span(bytes).first(*read))) return false;
  format::LivePage page{};
  std::memcpy(static_cast<void*>(&page), bytes, offsetof(format::LivePage, meta_position));
  std::uint32_t state = 0;
  std::memcpy(&state, bytes + offsetof(format::LivePage, state), sizeof(state));
  if (state == static_cast<std::uint32_t>(format::LiveState::kEnded)) return false;
  const HostIdentity here = ThisHost();
  if (page.host != here.host || page.boot[0] != here.boot[0] || page.boot[1] != here.boot[1]) return false;
  // Our own earlier writer, closed or not: then the lock decides.
  if (page.pid == static_cast<std::uint64_t>(getpid()) && locked) return false;
  return page.pid != 0 && page.pid_start_ticks != 0 && ProcessStartTicks(page.pid) == page.pid_start_ticks;
}

}  // namespace

Result<std::unique_ptr<LivePageWriter>> LivePageWriter::Take(Env& env, const std::string& directory,
                                                             bool publish) {
  const std::string path = directory + "/live";
  std::unique_ptr<LivePageWriter> writer(new LivePageWriter());
  LUFF_ASSIGN_OR_RETURN(writer->file_, env.Open(path, Env::OpenMode::kReadWrite));
  const bool locked = writer->file_->TryLock();
  const bool alive = WriterAlive(*writer->file_, locked);
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t size, writer->file_->Size());
  // A lock without a living owner is left over in children that the owner forked; an empty page with a lock
  // belongs to a writer that has just begun.
  if (alive || (!locked && size < format::kPageBytes)) {
    return AlreadyExists(
        "found a worker's folder that another process is writing, expected a free one; wait for its "
        "end or name another run: " +
        directory);
  }
  // The old page must not speak for the new writer. Written, not truncated: a reader may have it mapped, and
  // a store into a mapped page without a block behind it is a bus error on a full disk.
  const std::byte zeros[format::kPageBytes] = {};
  const Status written = writer->file_->WriteAt(zeros, 0);
  if (publish && written.ok()) {
    writer->page_ = reinterpret_cast<format::LivePage*>(writer->file_->MapShared(format::kPageBytes));
  }
  return writer;
}

LivePageWriter::~LivePageWriter() = default;

void LivePageWriter::Begin(const RunInfo& run, std::uint32_t worker, std::uint32_t epoch,
                           std::uint64_t next_ordinal, std::int64_t train_steps) {
  if (page_ == nullptr) return;
  const HostIdentity here = ThisHost();
  format::LivePage& page = *page_;
  page.layout = format::kLiveLayout;
  page.worker = worker;
  page.host = here.host;
  page.boot[0] = here.boot[0];
  page.boot[1] = here.boot[1];
  page.pid = static_cast<std::uint64_t>(getpid());
  page.pid_start_ticks = ProcessStartTicks(page.pid);
  std::memcpy(page.run_id, run.run_id.data(), sizeof(page.run_id));
  page.epoch = epoch;
  page.created_unix_ns = run.created_unix_ns;
  page.next_ordinal.store(next_ordinal, std::memory_order_relaxed);
  page.last_global_step.store(-1, std::memory_order_relaxed);
  page.train_steps.store(train_steps, std::memory_order_relaxed);
  page.state.store(static_cast<std::uint32_t>(format::LiveState::kStarting), std::memory_order_relaxed);
  page.magic = 0;
  format::LivePage head{};
  std::memcpy(static_cast<void*>(&head), static_cast<const void*>(&page),
              offsetof(format::LivePage, checksum));
  head.magic = format::kLiveMagic;
  page.checksum =
      format::HashBytes({reinterpret_cast<const std::byte*>(&head), offsetof(format::LivePage, checksum)});
  std::atomic_ref<std::uint64_t>(page.magic).store(format::kLiveMagic, std::memory_order_release);
}

void LivePageWriter::Publish(const Published& p) noexcept {
  if (page_ == nullptr) return;
  page_->data_position.store(format::PackPosition(p.data_sequence, p.data_length), std::memory_order_relaxed);
  page_->next_ordinal.store(p.next_ordinal, std::memory_order_relaxed);
  page_->last_global_step.store(p.last_global_step, std::memory_order_relaxed);
  page_->train_steps.store(p.train_steps, std::memory_order_relaxed);
  page_->meta_position.store(format::PackPosition(p.meta_sequence, p.meta_length), std::memory_order_release);
}

void LivePageWriter::SetState(format::LiveState state) noexcept {
  if (page_ != nullptr) page_->state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
}
void LivePageWriter::Beat(std::int64_t unix_ns) noexcept {
  if (page_ != nullptr) page_->heartbeat_unix_ns.store(unix_ns, std::memory_order_release);
}
void LivePageWriter::CountChange() noexcept {
  if (page_ != nullptr) page_->changes.fetch_add(1, std::memory_order_release);
}

}  // namespace luff::store
