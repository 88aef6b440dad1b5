#pragma once
#include <cstdint>
#include <optional>

#include "luff/rules/finding.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/rate_levels.h"

namespace luff::rules {

/// What the levels of a learning rate say of its schedule once a run has ended, for ScheduleCollapse.
struct ScheduleCourse {
  static constexpr std::int64_t kLevel = 8;     // updates of a level, of a rate that is set once per pass
  static constexpr double kPasses = 50;         // of a warm-up: nobody plans as many
  static constexpr std::int64_t kQuarter = 4;   // a plan of which a quarter is not reached
  static constexpr double kLeast = 0.1;         // of the given rate: a warm-up begins below it
  static constexpr double kTimes = 10;          // the given rate: a decay never gets there
  static constexpr double kRange = 1e4;         // times: a test of rates, which goes through all of them
  static constexpr double kEachRange = 100;     // the same, where each update has another rate
  static constexpr std::int64_t kGrowths = 4;   // times that a rate has grown
  static constexpr std::int64_t kUpdates = 20;  // with it

  std::int64_t updates = 0;  // of the run
  double given = 0;          // the rate that the optimizer was made with

  /// The rate of an optimizer's group before any schedule; 0 if it is not known.
  [[nodiscard]] static double GivenTo(const OptimizerFacts& optimizer, std::size_t group);

  /// A schedule that counts updates is stepped once per pass: a warm-up that would need far more passes than
  /// there were, or a decay whose end is the number of updates. Fills in what is said, all but the place.
  [[nodiscard]] bool CountsUpdates(const RateLevels& levels, Finding* finding) const;
  /// The rate was multiplied by the same factor again and again, and ended far above the given one, but not
  /// as far as a test of rates goes.
  [[nodiscard]] bool Grows(const RateLevels& levels, Finding* finding) const;
};

}  // namespace luff::rules
