#pragma once
#include <functional>

#include "luff/base/status.h"

namespace luff {

/// Bounds the work that this thread does for somebody who waits for it: while the object lives, those who
/// read much ask GoOn between parts that take milliseconds, and give up with its error. Bounds nest; the
/// inner one counts.
class WorkBound {
 public:
  using Check = std::function<Status()>;
  /// `check` outlives the object. Null: no bound, for work that is kept for others too.
  explicit WorkBound(const Check* check) noexcept;
  WorkBound(const WorkBound&) = delete;
  WorkBound& operator=(const WorkBound&) = delete;
  ~WorkBound();

  /// Ok where nothing bounds the thread's work.
  [[nodiscard]] static Status GoOn();

 private:
  const Check* const before_;
};

}  // namespace luff
