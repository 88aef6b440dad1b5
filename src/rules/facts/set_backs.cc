#include "rules/facts/set_backs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "luff/profile/input.h"
#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/facts/step_rows.h"
#include "rules/kit/step_index.h"

namespace luff::rules {
namespace {

using format::EventKind;
constexpr double kMostUpdates = 1e9;

}  // namespace

void SetBacks::OnTrainStep(const StepView& view) {
  if (over_) return;
  double rate = -1;
  for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting))
    if (tensor.name.ends_with(".lr") && std::isfinite(entry.value)) rate = std::max(rate, entry.value);
  if (rate >= 0) rate_ = rate;
  bool another = false;  // pass begins
  for (const auto& event : view.index.json_events("weights_set_back")) {
    const double number = NumberIn(*event, "optimizer");
    const double updates = NumberIn(*event, "updates");
    const auto to = event->find("to");
    if (!(number >= 0 && number < format::kNoId) || !(updates >= 0 && updates <= kMostUpdates) ||
        to == event->end() || !to->is_string())
      continue;
    const auto place = static_cast<std::uint32_t>(number);
    if (optimizers_.size() >= kMaxOptimizers && !optimizers_.contains(place)) continue;
    Optimizer& one = optimizers_[place];
    const auto count = static_cast<std::int64_t>(updates);
    const bool drawn = *to == "drawn";
    if (one.times > 0 && (one.updates != count || one.drawn != drawn)) one.regular = false;
    over_ = over_ || (!drawn && *to != "first");
    one.updates = count;
    one.drawn = drawn;
    one.since = 0;
    ++one.times;
    another = true;
  }
  for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep)) {
    if (event.worker != view.index.first_worker()) continue;
    if (optimizers_.size() >= kMaxOptimizers && !optimizers_.contains(event.row.subject)) continue;
    Optimizer& one = optimizers_[event.row.subject];
    ++one.since;
    over_ = over_ || (one.times >= kTimes && one.since > 2 * one.updates);
  }
  if (another) {
    // A rate that no schedule has changed: a search for the best one.
    if (rate_then_ >= 0 && rate_ != rate_then_ && view.memo.Facts(view).schedulers().empty()) over_ = true;
    rate_then_ = rate_;
    for (const std::uint64_t row : now_)
      if (before_.size() < kMaxRows) before_.insert(row);
    now_.clear();
  }
  for (const std::uint64_t row : RowsOfStep(view)) {
    if (now_.contains(row)) {
      ++twice_;
    } else {
      again_ += before_.contains(row) ? 1 : 0;
      if (now_.size() < kMaxRows) now_.insert(row);
    }
  }
}

// Whether as many updates are one pass over the data: all rows come once between two, and again behind the
// next, or the only loader that trains has as many batches.
bool SetBacks::IsOnePass(const StepView& view, std::int64_t updates) const {
  if (again_ >= kAgain) return kFew * twice_ <= again_;
  if (twice_ > 0) return false;
  const auto loaders = profile::LoadersOf(view.trial.Document("loaders"));
  if (std::count_if(loaders.begin(), loaders.end(), [](const profile::Loader& one) { return one.trains; }) >
      1)
    return false;  // of tasks, or of clients
  return std::any_of(loaders.begin(), loaders.end(), [&](const profile::Loader& one) {
    return one.trains && one.batches > 0 && (one.batches == updates || one.batches == updates + 1);
  });
}

std::optional<SetBacks::Found> SetBacks::Judge(const StepView& view) const {
  if (over_ || optimizers_.empty() || view.index.json_events("weights_set_back").empty()) return std::nullopt;
  Found found;
  for (const auto& [number, one] : optimizers_) {
    if (one.times < kTimes || !one.regular || one.updates < kLeast) return std::nullopt;
    found.times = std::max(found.times, one.times);
    found.updates = std::max(found.updates, one.updates);
    found.drawn = found.drawn || one.drawn;
  }
  return IsOnePass(view, found.updates) ? std::optional(found) : std::nullopt;
}

void SetBacks::Optimizer::VisitFields(Fields& io) {
  io("times", times);
  io("updates", updates);
  io("since", since);
  io("regular", regular);
  io("drawn", drawn);
}

void SetBacks::VisitFields(Fields& io) {
  io("optimizers", optimizers_, kMaxOptimizers);
  io("now", now_, kMaxRows);
  io("before", before_, kMaxRows);
  io("twice", twice_);
  io("again", again_);
  io("rate", rate_);
  io("rate_then", rate_then_);
  io("over", over_);
}

}  // namespace luff::rules
