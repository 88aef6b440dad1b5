#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capture/stacks/python_stacks.h"

namespace luff::capture {

/// Sees that no step ends any more, and says where the process stands: each thread as the kernel and as
/// Python see it, and the processes below it. Looks again after twice the time, so that a stand can be told
/// from slow progress. **Owned by the writer thread.**
class StallWatch {
 public:
  /// A step is late after `after_ns`, or 20 times the median of the last steps if that is longer. After every
  /// 16 stands that a step has ended, `after_ns` is doubled, at most 6 times.
  StallWatch(std::int64_t now_ns, std::int64_t after_ns) : after_ns_(after_ns), progress_ns_(now_ns) {}
  /// A step has been handed over: which one, and how long it took.
  void OnStep(std::int64_t global_step, std::int64_t took_ns) noexcept;
  /// `steps`: how many have ended so far. `thread`: the one that trains; 0: not known, then the first one of
  /// the process. Appends the document `stall` if the process stands still.
  void Look(std::int64_t now_ns, std::uint64_t steps, std::int32_t thread,
            std::vector<std::pair<std::string, std::string>>* documents);

 private:
  [[nodiscard]] std::int64_t Limit() const noexcept;
  [[nodiscard]] std::string Describe(std::int64_t now_ns, std::int32_t thread);

  const std::int64_t after_ns_;
  std::int64_t progress_ns_;
  std::uint64_t steps_ = 0;
  std::int64_t last_step_ = -1;
  std::array<std::int64_t, 64> took_ns_{};
  std::size_t took_ = 0;  // ever
  int looks_ = 0, same_ = 0;
  int pauses_ = 0;  // stands that were told, and that a step has ended
  std::vector<PythonFrame> last_frames_;
};

}  // namespace luff::capture
