#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "capture/stacks/python_stacks.h"
#include "luff/format/layout.h"

namespace luff::capture {

/// Which lines of the training a step's unexplained time is spent in: now and then, while the training thread
/// waits for data or does what no phase tells for longer than 20 ms, its stack is read. At most ten times a
/// second, and so seldom that reading takes at most 1/2000 of the time. **Owned by the writer thread.**
class LineSampler {
 public:
  /// Looks once if it is time. `thread`: the one that trains.
  void Look(std::int64_t now_ns, std::int32_t thread);
  /// True if the next look may come before the writer thread would wake.
  [[nodiscard]] bool due(std::int64_t now_ns) const noexcept { return now_ns >= next_ns_; }
  /// Appends the document `lines` if it is due, or, with `final`, if there is anything new.
  void Tell(std::int64_t now_ns, bool final, std::vector<std::pair<std::string, std::string>>* documents);

  /// One look at a stack, for tests.
  void Count(format::Phase phase, const std::vector<PythonFrame>& frames);

 private:
  // Phase; file, line and function of the training's own innermost frame; the innermost function of all.
  using Place = std::tuple<std::uint8_t, std::string, int, std::string, std::string>;
  std::map<Place, std::uint64_t> counts_;
  std::uint64_t samples_ = 0, told_ = 0, elsewhere_ = 0;
  std::int64_t next_ns_ = 0, next_tell_ns_ = 0, tell_every_ns_ = 0;
};

}  // namespace luff::capture
