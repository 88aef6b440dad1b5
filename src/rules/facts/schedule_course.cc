#include "rules/facts/schedule_course.h"

#include <cmath>

#include "base/format.h"

namespace luff::rules {
double ScheduleCourse::GivenTo(const OptimizerFacts& optimizer, std::size_t group) {
  if (group < optimizer.groups.size()) {
    const auto& settings = optimizer.groups[group];
    if (const auto initial = settings.find("initial_lr"); initial != settings.end()) return initial->second;
  }
  const auto preset = optimizer.defaults.find("lr");
  return preset != optimizer.defaults.end() ? preset->second : 0;
}

bool ScheduleCourse::CountsUpdates(const RateLevels& levels, Finding* finding) const {
  const double slope = levels.slope();
  if (slope == 0 || levels.shortest() < kLevel || !(given > 0)) return false;
  const auto made = static_cast<double>(levels.changes() + 1);
  const double planned = given / std::abs(slope);
  if (made * static_cast<double>(kQuarter) > planned) return false;
  if (slope > 0) {
    if (!(levels.first() <= kLeast * given) || planned < kPasses) return false;
    finding->cause = "warm_up_per_epoch";
    finding->what = fmt::format(
        "the warm-up of the learning rate is stepped once in {} updates or more: it has come to {:.2g} % of "
        "the given rate when the training ends",
        levels.shortest(), 100 * levels.last() / given);
    finding->why = fmt::format(
        "the rate rose by {:.3g} each time, to {:.3g}; the optimizer was given {:.3g}, which is reached "
        "after {:.0f} such steps: they count updates, and {:.0f} were made in {} updates",
        slope, levels.last(), given, planned, made, updates);
  } else {
    const bool for_updates = std::abs(planned - static_cast<double>(updates)) * 20 <= planned;
    if (!for_updates || !(levels.first() > 0.9 * given)) return false;
    finding->cause = "hardly_begun";
    finding->what = fmt::format(
        "the learning rate falls by a {:.0f}th part of what it was at a step of its schedule, of which "
        "{:.0f} "
        "were made in {} updates",
        planned, made, updates);
    finding->why = "it counts updates and is stepped more rarely: the learning rate never left its beginning";
  }
  finding->remedy = "step the scheduler after each update, or plan it for as many steps as it makes";
  finding->causes = {"scheduler stepped per epoch instead of per batch", "schedule planned for updates"};
  finding->evidence = {{"planned", std::round(planned)},
                       {"made", made},
                       {"updates", static_cast<double>(updates)},
                       {"learning_rate", levels.last()},
                       {"given", given}};
  finding->threshold = fmt::format(
      "the rate changes in equal steps, {} updates or more apart; a quarter of the plan at the end, which is "
      "{:g} steps of warm-up or more, or the number of updates within 5 % (Luff)",
      kLevel, kPasses);
  return true;
}

bool ScheduleCourse::Grows(const RateLevels& levels, Finding* finding) const {
  const double factor = levels.factor();
  if (!(factor > 1) || levels.changes() < kGrowths || updates < kUpdates || !(given > 0)) return false;
  if (!(levels.first() >= 0.5 * given) || !(levels.last() >= kTimes * given)) return false;
  if (levels.last() > (levels.shortest() > 1 ? kRange : kEachRange) * given) return false;
  finding->cause = "grows";
  finding->what = fmt::format("the schedule raises the learning rate to {:.3g} times what it was given",
                              levels.last() / given);
  finding->why = fmt::format(
      "it was multiplied by {:.4g} {} times in {} updates, from {:.3g} to {:.3g}, and the model is evaluated "
      "afterwards: a decay has a factor below 1, or a negative exponent",
      factor, levels.changes(), updates, levels.first(), levels.last());
  finding->remedy =
      "give the schedule a factor (gamma) below 1 or its exponent a minus, so that the learning rate falls";
  finding->causes = {"gamma above 1", "an exponent of the decay without its minus",
                     "a test of learning rates that the training goes on from"};
  finding->evidence = {{"factor", factor}, {"first", levels.first()}, {"last", levels.last()}};
  finding->threshold = fmt::format(
      "the same factor above 1 at each of {} changes or more, from the given rate to {:g} times that, no "
      "weights loaded, and an evaluation at the end (Luff)",
      kGrowths, kTimes);
  return true;
}

}  // namespace luff::rules
