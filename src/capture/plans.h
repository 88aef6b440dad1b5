#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/plan.h"
#include "luff/base/mutex.h"

namespace luff::capture {

/// The plan of a session, and those that were in force before. A change adds collections: a later plan has
/// all those of an earlier one under the same numbers, so what a thread took from an earlier plan stays
/// valid, and earlier plans live as long as the session. **Thread-safe.**
class Plans {
 public:
  explicit Plans(Plan first);

  /// The plan in force. Load what `due` says before: it never names a collection that this plan lacks.
  [[nodiscard]] const Plan& now() const noexcept { return *now_.load(std::memory_order_acquire); }
  /// How many collections the session began with. Definitions of tensors list only these.
  [[nodiscard]] std::size_t first_count() const noexcept { return first_count_; }

  /// Makes the plan in which the collections of a change are there, too. `body`: JSON with `collections` as
  /// in a configuration and `for_steps` (none: to the end). They are saved at TRAIN steps from `train_step`
  /// on only. A plan that was prepared before and never used is dropped with the next call but one. Errors:
  /// kInvalidArgument, kResourceExhausted (no room for more collections).
  [[nodiscard]] Result<const Plan*> Prepare(std::string_view body, std::int64_t train_step)
      LUFF_EXCLUDES(mutex_);
  /// Puts the prepared plan in force.
  void Use() LUFF_EXCLUDES(mutex_);
  /// The document "collections" of the plan in force, once after each change.
  [[nodiscard]] std::optional<std::string> TakeDescription() LUFF_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<const Plan>> used_ LUFF_GUARDED_BY(mutex_);
  std::unique_ptr<const Plan> prepared_ LUFF_GUARDED_BY(mutex_), dropped_ LUFF_GUARDED_BY(mutex_);
  std::atomic<const Plan*> now_;
  std::atomic<bool> changed_{false};
  std::size_t first_count_;
};

}  // namespace luff::capture
