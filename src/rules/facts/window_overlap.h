#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Whether windows of a series that an evaluation gets lie between windows of the
/// training that hold half of the same values: one that begins earlier and one that begins later. Windows
/// that were cut with overlap and then divided at random lie so; those of a later time have only earlier
/// neighbours. Bounded memory.
///
/// Values are compared bit by bit. Rows without eight different values in a half, and series whose stretches
/// come again elsewhere (whole periods without noise), tell nothing.
class WindowOverlap {
 public:
  /// Adds a batch of the training: numbers or ids of (N, T), (N, T, F), or (N, C, T) with fewer channels than
  /// places. Ignored: other shapes, windows of fewer than eight places, another length than before.
  void Train(const SampleValues& sample);
  /// What the batch of an evaluation says: its windows that tell something, and those that lie between.
  struct Told {
    double rows = 0, between = 0;
    void Add(const Told& more) {
      rows += more.rows;
      between += more.between;
    }
    void VisitFields(Fields& io) {
      io("rows", rows);
      io("between", between);
    }
  };
  [[nodiscard]] Told Evaluate(const SampleValues& sample) const;
  [[nodiscard]] std::int64_t length() const noexcept { return length_; }
  /// Stretches of the training come again in other windows, at the same place: equality says nothing.
  [[nodiscard]] bool recurs() const noexcept { return again_ > 2 && 50 * again_ > trained_; }
  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kMost = 4096;  // windows of the training; later ones are not looked at

  std::unordered_map<std::uint64_t, std::uint64_t> first_;  // hash of the first half, and of the window
  std::unordered_set<std::uint64_t> last_;                  // of the second half
  std::int64_t length_ = 0, width_ = 0;                     // places, and values of each
  double trained_ = 0, again_ = 0;
};

}  // namespace luff::rules
