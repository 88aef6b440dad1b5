#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// What a mask leaves of the steps of one input (event `masked_input`, docs/spec/evidence.md).
/// **Thread-compatible.** Constant memory.
class MaskedSteps {
 public:
  static constexpr std::int64_t kRows = 64;  // before it says anything

  MaskedSteps() = default;
  /// `value`: a step all of whose values equal it is masked; `ids`: steps are single ids.
  MaskedSteps(double value, bool ids) : value_(value), ids_(ids) {}

  /// Adds a batch: (rows, steps, features), or (rows, steps) of ids. Others are left out.
  void Add(const SampleValues& sample);

  enum class Fault : std::uint8_t {
    kNone,
    kAll,    // no step of any row is left
    kAlike,  // all steps that are left hold the same
    kAmong,  // what is masked stands between others, as often as an id does: it is one of them
  };
  [[nodiscard]] Fault fault() const;
  [[nodiscard]] double share() const noexcept;  // of the steps that are masked
  [[nodiscard]] double value() const noexcept { return value_; }
  [[nodiscard]] bool ids() const noexcept { return ids_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }

  void VisitFields(Fields& io);

 private:
  static constexpr std::size_t kIds = 64;  // with more, ids that are dropped on purpose may be as frequent
  static constexpr std::size_t kMaxFeatures = 4096;
  static constexpr double kLeast = 0.05;          // of the steps: a mask that hides less is no matter
  static constexpr double kHoled = 0.5;           // of the rows: gaps are rarer
  static constexpr std::int64_t kMostInARow = 2;  // on average: padding between two parts of a row is longer

  double value_ = 0;
  bool ids_ = false;
  std::int64_t rows_ = 0, steps_ = 0, masked_ = 0;
  std::int64_t inner_ = 0, inner_masked_ = 0;  // steps between the first and the last that are left
  std::int64_t inner_runs_ = 0;                // of masked ones there, without one that is left between
  std::int64_t holed_ = 0;                     // rows in which one of these is masked
  bool alike_ = true;                          // all steps that are left hold `first_`
  std::vector<double> first_;
  std::set<double> seen_;  // ids that are left; kIds + 1 of them stand for more
};

}  // namespace luff::rules
