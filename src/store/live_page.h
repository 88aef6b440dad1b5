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

/// The writer's side of a live page, and the lock that says who owns the folder. **Owned by the writer
/// thread.**
class LivePageWriter {
 public:
  /// Takes the folder. `publish` false: the page is left empty (readers follow frames), the lock is still
  /// taken. Errors: kAlreadyExists when a live process has it, kIo.
  [[nodiscard]] static Result<std::unique_ptr<LivePageWriter>> Take(Env& env, const std::string& directory,
                                                                    bool publish);

  /// Fills in who writes. Until then readers see no page.
  void Begin(const RunInfo& run, std::uint32_t worker, std::uint32_t epoch, std::uint64_t next_ordinal,
             std::int64_t train_steps);
  struct Published {
    std::uint64_t meta_sequence = 0, meta_length = 0, data_sequence = 0, data_length = 0;
    std::uint64_t next_ordinal = 0;
    std::int64_t last_global_step = -1, train_steps = 0;
  };
  /// Makes rows visible that are in their files. One write; its failure costs readers half a second.
  void Publish(const Published& published, format::LiveState state) noexcept;
  void SetState(format::LiveState state) noexcept;
  void Beat(std::int64_t unix_ns) noexcept;
  void CountChange() noexcept;
  /// The last state, and the lock goes.
  void End(std::int64_t unix_ns) noexcept;

 private:
  LivePageWriter() = default;
  void Write() noexcept;
  std::unique_ptr<File> file_;
  bool publish_ = false;
  format::LiveNews news_{};
};

/// A reader's side, while the page was written on this host since it was started. **Thread-compatible.**
class LivePageReader {
 public:
  /// Null where there is no such page, or this process has many open already.
  [[nodiscard]] static std::unique_ptr<LivePageReader> Open(const std::string& folder, std::uint32_t worker,
                                                            const RunInfo& run);
  ~LivePageReader();
  LivePageReader(const LivePageReader&) = delete;
  LivePageReader& operator=(const LivePageReader&) = delete;

  /// What the writer said last, by one read of 64 bytes; nothing once the page is cut off, removed by a
  /// network file system or damaged.
  [[nodiscard]] std::optional<format::LiveNews> Read() const;
  [[nodiscard]] bool WriterRuns() const noexcept;

 private:
  LivePageReader();
  std::unique_ptr<File> file_;
  std::uint64_t pid_ = 0, pid_start_ticks_ = 0;
};

}  // namespace luff::store
