#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "luff/base/env.h"
#include "luff/format/layout.h"
#include "luff/format/live.h"
#include "luff/store/writer.h"

namespace luff::store {

/// The writer's side of a live page, and the lock that marks the folder's owner. **Owned by the writer
/// thread.**
class LivePageWriter {
 public:
  /// Locks the folder. With `publish` false it leaves the page empty (readers follow frames). Errors:
  /// kAlreadyExists if a process that may be alive writes in it, here or on another machine; kIo.
  [[nodiscard]] static Result<std::unique_ptr<LivePageWriter>> Take(Env& env, const std::string& directory,
                                                                    bool publish);

  /// Fills in the writer's identity. Until then readers see no page.
  void Begin(const RunInfo& run, std::uint32_t worker, std::uint32_t epoch, std::uint64_t next_ordinal,
             std::int64_t train_steps);
  struct Published {
    std::uint64_t meta_sequence = 0, meta_length = 0, data_sequence = 0, data_length = 0;
    std::uint64_t next_ordinal = 0;
    std::int64_t last_global_step = -1, train_steps = 0;
  };
  /// Makes written rows visible. One write; if it fails readers see them half a second later.
  void Publish(const Published& published, format::LiveState state) noexcept;
  void SetState(format::LiveState state) noexcept;
  void Beat(std::int64_t unix_ns) noexcept;
  void CountChange() noexcept;
  /// Writes the last state and releases the lock.
  void End(std::int64_t unix_ns) noexcept;

 private:
  LivePageWriter() = default;
  void Write() noexcept;
  std::unique_ptr<File> file_;
  bool publish_ = false;
  format::LiveNews news_{};
};

/// A reader's side, for a page that was written on this host since it booted. **Thread-compatible.**
class LivePageReader {
 public:
  /// Null if there is no such page, or this process already has too many open.
  [[nodiscard]] static std::unique_ptr<LivePageReader> Open(const std::string& folder, std::uint32_t worker,
                                                            const RunInfo& run);
  ~LivePageReader();
  LivePageReader(const LivePageReader&) = delete;
  LivePageReader& operator=(const LivePageReader&) = delete;

  /// Returns the writer's latest news with one read of 64 bytes; nullopt once the page is truncated, removed
  /// by a network file system, or damaged.
  [[nodiscard]] std::optional<format::LiveNews> Read() const;
  /// Whether the writer's process exists; nullopt if it cannot be seen from here, e.g. in another container.
  [[nodiscard]] std::optional<bool> WriterRuns() const noexcept;
  [[nodiscard]] std::uint64_t pid() const noexcept { return pid_; }

 private:
  LivePageReader();
  std::unique_ptr<File> file_;
  std::uint64_t pid_ = 0, pid_start_ticks_ = 0;  // pid_start_ticks_ is 0 if the process cannot be seen
};

}  // namespace luff::store
