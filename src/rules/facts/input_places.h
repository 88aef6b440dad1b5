#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** What the values of an input are like, place by place, and how far each goes
/// together with the targets. A place is a column of (N, F), one of (N, T, F), or a square of pixels of a
/// channel of (N, C, H, W), so that there are kMaxPlaces at most. Constant memory.
class InputPlaces {
 public:
  static constexpr std::size_t kMaxPlaces = 1024, kMaxTargets = 4;

  /// Adds a batch. `target` may be null; it counts if it has a row for each of the input. Of class ids,
  /// whether it is one of the first kMaxTargets classes is looked at. A batch of another shape clears the
  /// sums first.
  void Add(const SampleValues& input, const SampleValues* target);
  void Clear();

  /// Shape of the places, e.g. {3, 16, 16}; inputs are comparable if it is equal.
  [[nodiscard]] const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t places() const noexcept { return x_.size(); }
  [[nodiscard]] double rows() const noexcept { return rows_; }
  [[nodiscard]] double mean(std::size_t place) const noexcept;
  [[nodiscard]] double variance(std::size_t place) const noexcept;
  [[nodiscard]] double answered() const noexcept { return answered_; }  // rows with targets
  /// Fisher's transformed correlation of a place and a target; 0 where one of them does not vary.
  [[nodiscard]] double z(std::size_t place, std::size_t target) const noexcept;
  void VisitFields(Fields& io);

 private:
  std::vector<std::int64_t> shape_;
  double rows_ = 0, answered_ = 0;
  std::vector<double> reference_, x_, xx_;  // of the rows: sums of powers of value - reference
  // Of the rows with targets: sums of the targets, and of the values.
  std::vector<double> y_, yy_, ax_, axx_, axy_;
};

/// Places that hold in evaluations what others hold in training.
struct MovedPlaces {
  std::string how;  // "turned upside down"; "" for columns that were exchanged
  /// Place of the training, and that of evaluations which is like it; of exchanged columns only.
  std::vector<std::pair<std::size_t, std::size_t>> columns;
  bool by_targets = false;  // seen by how places go together with targets, not by their values
  double as_it_is = 0;      // mean squared difference of all places, in squared standard errors: as they are
  double moved = 0;         // and if they are moved; about 1 if that is right
};

/// Compares the newest evaluation with the training so far. Nothing is moved unless the evaluation, taken as
/// it is, is clearly unlike the training (10 times what chance gives), and, if its places are moved, is like
/// it (within 3 times). Looks for: images that are mirrored, turned or transposed, channels and times in
/// reverse order, and columns of a table that are exchanged. 64 rows on either side.
[[nodiscard]] std::optional<MovedPlaces> FindMoved(const InputPlaces& training,
                                                   const InputPlaces& evaluation);

}  // namespace luff::rules
