#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/actions/gate.h"

namespace luff::actions {

/// Takes requests that came from a bucket: each that the gate opens becomes a record of the control log, like
/// one that was asked here, and is answered there. The others leave no record. **Thread-compatible.**
class Arrivals {
 public:
  struct Refused {
    std::uint64_t object = 0;  // its number in the bucket
    std::string why;
  };

  Arrivals(std::string run, Gate* gate) : run_(std::move(run)), gate_(gate) {}

  /// Looks at most once in a quarter of a second, and takes at most eight. Returns those that do nothing.
  /// `now_ns` is monotonic.
  [[nodiscard]] std::vector<Refused> Look(std::int64_t now_ns);

 private:
  const std::string run_;
  Gate* const gate_;
  std::int64_t next_ns_ = 0;
};

}  // namespace luff::actions
