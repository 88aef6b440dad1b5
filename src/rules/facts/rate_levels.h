#pragma once
#include <cmath>
#include <cstdint>

#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** The levels of one learning rate: how many updates each lasted, and how each follows
/// from the one before. Constant memory.
class RateLevels {
 public:
  static constexpr std::int64_t kChanges = 3;  // before anything is said of how they follow

  /// Adds the rate of an update.
  void Add(double rate) noexcept;

  [[nodiscard]] std::int64_t changes() const noexcept { return changes_; }
  [[nodiscard]] double first() const noexcept { return first_; }
  [[nodiscard]] double last() const noexcept { return last_; }
  /// The fewest updates of a level, without the newest one; 0 before the first change.
  [[nodiscard]] std::int64_t shortest() const noexcept { return shortest_; }
  /// By how much each level is above the one before it (negative: below); 0 if that differs.
  [[nodiscard]] double slope() const noexcept { return changes_ >= kChanges && straight_ ? slope_ : 0; }
  /// How many times the one before it each level is; 0 if that differs.
  [[nodiscard]] double factor() const noexcept { return changes_ >= kChanges && geometric_ ? factor_ : 0; }

  void VisitFields(Fields& io) {
    io("changes", changes_);
    io("first", first_);
    io("last", last_);
    io("run", run_);
    io("shortest", shortest_);
    io("slope", slope_);
    io("factor", factor_);
    io("straight", straight_);
    io("geometric", geometric_);
    io.Check(std::isfinite(first_) && std::isfinite(last_), "a learning rate");
  }

 private:
  std::int64_t changes_ = 0, run_ = 0, shortest_ = 0;  // run_: updates of the newest level; 0: no update yet
  double first_ = 0, last_ = 0, slope_ = 0, factor_ = 0;
  bool straight_ = true, geometric_ = true;
};

inline void RateLevels::Add(double rate) noexcept {
  if (run_ == 0) first_ = last_ = rate;
  if (rate == last_) {
    ++run_;
    return;
  }
  const double step = rate - last_;
  const double times = last_ > 0 ? rate / last_ : 0;
  if (changes_ == 0) {
    slope_ = step;
    factor_ = times;
    shortest_ = run_;
  }
  straight_ = straight_ && std::abs(step - slope_) <= 1e-3 * std::abs(slope_) + 1e-9 * std::abs(rate);
  geometric_ = geometric_ && times > 0 && std::abs(times - factor_) <= 1e-6 * factor_;
  shortest_ = shortest_ < run_ ? shortest_ : run_;
  ++changes_;
  last_ = rate;
  run_ = 1;
}

}  // namespace luff::rules
