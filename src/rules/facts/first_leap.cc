#include "rules/facts/first_leap.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "rules/facts/model_facts.h"

namespace luff::rules {
namespace {

// The highest pair of losses in a row after update `from`: the lower of the two; 0 if there is none.
double HighestPair(const std::deque<double>& losses, std::int64_t from, std::int64_t until) {
  double highest = 0;
  for (std::int64_t i = from; i + 1 < until; ++i) {
    const auto at = static_cast<std::size_t>(i);
    highest = std::max(highest, std::min(losses[at], losses[at + 1]));
  }
  return highest;
}

}  // namespace

void WeightMove::Add(const WeightChange& change) {
  const double moved = change.sum_sq;
  const double before = change.previous_sum_sq;
  if (!std::isfinite(moved) || !std::isfinite(before)) return;
  if (!any) worker = change.worker;
  any = true;
  if (change.worker != worker) return;
  if (moved > 0 && !IsBiasName(change.name)) ++layers;
  moved_sq += moved;
  before_sq += before;
  if (before > 0 && moved / before > largest) {
    largest = moved / before;
    tensor = change.name;
  }
}

double WeightMove::Ratio() const {
  const double ratio = any && before_sq > 0 ? std::sqrt(moved_sq / before_sq) : 0;
  return std::isfinite(ratio) ? ratio : 0;
}

void FirstLeap::Follow(const query::StepInfo& info, const WeightMove& move, double loss) {
  // Of batches that are accumulated the largest loss is kept, which makes a leap smaller.
  const auto known = static_cast<std::int64_t>(losses_.size());
  if (info.update == known) {
    losses_.push_back(loss);
  } else if (info.update == known - 1) {
    losses_.back() = std::max(losses_.back(), loss);
  } else {
    over_ = true;  // updates without a loss
    return;
  }
  if (!move.any) return;
  const bool one = info.update == measured_ + 1;
  measured_ = info.update;
  if (!one || info.update > kJolts || move.layers < 2 || move.Ratio() <= limits_.jolt) return;
  if (jolted_ < 0) {
    jolted_ = info.update;
    jolted_step_ = info.mode_step;
  }
  if (move.Ratio() > jolt_) {
    jolt_ = move.Ratio();
    tensor_ = move.tensor;
    worker_ = move.worker;
  }
}

bool FirstLeap::Leapt() const {
  if (jolted_ < 0 || !(losses_.front() > 0)) return false;
  const double first = losses_.front();
  const double pair = HighestPair(losses_, jolted_, kSettled);
  if (!(pair > limits_.leap * first)) return false;
  const auto settled = losses_.begin() + kSettled;
  const bool came_back = pair > *std::max_element(settled, losses_.end());
  const bool never_back = *std::min_element(losses_.begin() + 1, losses_.end()) > first;
  return came_back || never_back;
}

bool FirstLeap::OnStep(const StepView& view, const WeightMove& move, double loss, Finding* finding) {
  if (over_) return false;
  const query::StepInfo& info = view.rows.info;
  if (!std::isfinite(loss) || loss < 0) {
    over_ = true;
    return false;
  }
  Follow(info, move, loss);
  if (over_ || info.update < kEnd) return false;
  over_ = true;
  losses_.resize(kEnd);
  if (!Leapt()) return false;
  const double first = losses_.front();
  const double highest = *std::max_element(losses_.begin(), losses_.end());
  finding->severity = Severity::kWarn;
  finding->tensor = tensor_;
  finding->worker = worker_;
  finding->since_step = jolted_step_;
  finding->what = fmt::format(
      "the first updates make the loss {:.2g} times that of the model as it was drawn ({:.3g} after {:.3g}); "
      "one of "
      "them moved all weights by {:.2g} times their size",
      highest / first, highest, first, jolt_);
  finding->why =
      "the initialisation is lost at once; a training that comes back from there often stays behind what a "
      "lower rate "
      "reaches";
  finding->remedy = "lower the learning rate (by ten to a hundred), warm it up, or clip gradients";
  finding->causes = {"learning rate far too high", "a warm-up that is missing"};
  finding->evidence = {
      {"ratio", jolt_}, {"highest_loss", highest}, {"first_loss", first}, {"loss", losses_.back()}};
  finding->threshold = fmt::format(
      "an update of the first {} that moves all weights by more than {:g} of their size, then two losses in "
      "a row above "
      "{:g} times the first, which tower over all from update {} to {} or are followed by none as low as the "
      "first "
      "(Luff)",
      kJolts, limits_.jolt, limits_.leap, kSettled, kEnd);
  return true;
}

void FirstLeap::VisitFields(Fields& io) {
  io("losses", losses_, kEnd + 1);
  io("measured", measured_);
  io("jolt", jolt_);
  io("jolted", jolted_);
  io("jolted_step", jolted_step_);
  io("worker", worker_);
  io("tensor", tensor_);
  io("over", over_);
}

}  // namespace luff::rules
