#pragma once
#include <cstdint>
#include <unordered_set>

#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** How many different rows have come. A full batch and the rows of a few shots come
/// again at every step, and what goes together in them by chance does so each time: standard errors that
/// count each visit would call it certain. From kMost rows on each counts, seen or not: by then chance is
/// small. Constant memory.
class DistinctRows {
 public:
  static constexpr std::size_t kMost = 1024;

  void Add(const SampleValues& sample) {
    for (const std::uint64_t hash : RowHashes(sample))
      count_ += rows_.size() >= kMost || rows_.insert(hash).second ? 1 : 0;
  }
  void Clear() {
    rows_.clear();
    count_ = 0;
  }
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

  void VisitFields(Fields& io) {
    io("rows", rows_, kMost);
    io("count", count_);
    io.Check(count_ >= static_cast<std::int64_t>(rows_.size()), "a count of its rows");
  }

 private:
  std::unordered_set<std::uint64_t> rows_;  // hashes
  std::int64_t count_ = 0;
};

}  // namespace luff::rules
