#pragma once
#include <cstdint>
#include <memory>
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
  ~LivePageWriter();

  /// Fills in who writes. Until then readers see no page.
  void Begin(const RunInfo& run, std::uint32_t worker, std::uint32_t epoch, std::uint64_t next_ordinal,
             std::int64_t train_steps);
  struct Published {
    std::uint64_t meta_sequence = 0, meta_length = 0, data_sequence = 0, data_length = 0;
    std::uint64_t next_ordinal = 0;
    std::int64_t last_global_step = -1, train_steps = 0;
  };
  /// Makes rows visible: fields first, then meta_position with release.
  void Publish(const Published& published) noexcept;
  void SetState(format::LiveState state) noexcept;
  void Beat(std::int64_t unix_ns) noexcept;
  void CountChange() noexcept;

 private:
  LivePageWriter() = default;
  std::unique_ptr<File> file_;
  format::LivePage* page_ = nullptr;  // null: no shared memory here
};

}  // namespace luff::store
