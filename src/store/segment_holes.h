#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "luff/store/mirror.h"

namespace luff::store {

/// A sealed segment of which a copy of a run may have parts only (docs/spec/bucket-format.md, 6).
/// **Thread-compatible.**
class SegmentHoles {
 public:
  SegmentHoles(std::shared_ptr<Mirror> mirror, Mirror::Segment segment)
      : mirror_(std::move(mirror)),
        segment_(segment) {}
  /// Has these bytes fetched, unless they are known to be there: then it costs nothing. Errors: as
  /// Mirror::NeedRows.
  [[nodiscard]] Status Fill(std::uint64_t from, std::uint64_t bytes);

 private:
  [[nodiscard]] bool Covers(std::uint64_t from, std::uint64_t end) const;
  void Add(std::uint64_t from, std::uint64_t end);

  const std::shared_ptr<Mirror> mirror_;
  const Mirror::Segment segment_;
  std::map<std::uint64_t, std::uint64_t> there_;  // begin, end; none touch
};

}  // namespace luff::store
