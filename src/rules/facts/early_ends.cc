#include "rules/facts/early_ends.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/json_event.h"
#include "rules/facts/sample.h"
#include "rules/kit/step_index.h"

namespace luff::rules {
namespace {

using format::EventKind;
constexpr std::int64_t kMostRows = 1LL << 40, kMostLine = 1LL << 31;
constexpr std::size_t kLongestName = 256;

// Rows along the first axis of the first model's first input, those that no sample holds, too; 0 without one.
std::int64_t RowsOfBatch(const StepView& view) {
  const std::vector<ModelInput>& inputs = ModelInputsOf(view);
  if (inputs.empty()) return 0;
  const auto shape = view.trial.Shape(inputs.front().entry->tensor, view.rows.info.global_step,
                                      query::Mode::kGlobal, inputs.front().entry->worker);
  if (!shape.ok()) return 0;
  const std::vector<std::int64_t>& whole =
      shape.value().global_shape.empty() ? shape.value().shape : shape.value().global_shape;
  return whole.empty() ? 0 : std::clamp<std::int64_t>(whole.front(), 0, kMostRows);
}

}  // namespace

void EarlyEnds::OnStep(const StepView& view) {
  if (over_ || view.rows.info.superseded) return;
  for (const query::StepPhases& phases : view.rows.phases)
    if (phases.worker == view.index.first_worker())
      started_ += phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)];
  if (view.rows.info.mode != query::Mode::kTrain) {
    evaluated_ = std::min(evaluated_ + RowsOfBatch(view), kMostRows);
    return;
  }
  if (evaluated_ > 0 && updates_ > 0) {
    ++evaluations_;
    most_evaluated_ = std::max(most_evaluated_, evaluated_);
  }
  evaluated_ = 0;
  for (const auto& event : view.index.json_events("early_end")) {
    if (FlagIn(*event, "over")) {
      over_ = true;
      return;
    }
    const double line = NumberIn(*event, "line");
    const auto function = event->find("function");
    if (!(line >= 0 && line < static_cast<double>(kMostLine)) || function == event->end() ||
        !function->is_string())
      continue;
    line_ = static_cast<std::int64_t>(line);
    function_ = function->get<std::string>().substr(0, kLongestName);
    ++looks_;
  }
  for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep))
    updates_ += event.worker == view.index.first_worker() ? 1 : 0;
  if (looks_ == 0 && updates_ > kUpdates) over_ = true;
  if (updates_ > 2 * kMost) over_ = true;
  batch_ = std::max(batch_, RowsOfBatch(view));
  const std::vector<ModelInput>& inputs = ModelInputsOf(view);
  if (!same_ || inputs.empty()) return;
  const auto sample = LoadSample(view, *inputs.front().entry);
  if (sample == nullptr) return;
  const bool first = rows_.empty();
  for (const std::uint64_t row : RowHashes(*sample)) {
    same_ = same_ && (first || rows_.contains(row));
    if (first && rows_.size() < kMaxRows) rows_.insert(row);
  }
}

std::optional<EarlyEnds::Found> EarlyEnds::Certain(const query::Trial& trial, bool at_end) const {
  const bool looked = looks_ >= 3 || (at_end && looks_ >= 2);
  if (over_ || !looked || updates_ < kUpdates || updates_ > kMost) return std::nullopt;
  if (!EvaluatesEach() || (same_ && most_evaluated_ < kMore * batch_)) return std::nullopt;
  Found found = {updates_, -1, function_, line_};
  const auto loaders = profile::LoadersOf(trial.Document("loaders"));
  std::set<std::int64_t> sizes;
  for (const profile::Loader& one : loaders) {
    if (!one.trains || one.by_next) continue;
    found.batches = one.batches;
    sizes.insert(one.samples);
  }
  if (sizes.size() >= kGrows) return std::nullopt;
  if (started_ + 1 < updates_) found.batches = -1;  // none was started for each update
  return found.batches == 1 ? std::nullopt : std::optional(found);
}

std::optional<EarlyEnds::Found> EarlyEnds::Judge(const StepView& view) const {
  return EvaluatesEach() ? Certain(view.trial, false) : std::nullopt;
}

std::optional<EarlyEnds::Found> EarlyEnds::OnEnd(const query::Trial& trial) const {
  return Certain(trial, true);
}

void EarlyEnds::Found::Describe(Finding* finding) const {
  finding->since_step = 0;
  finding->what = fmt::format(
      "each pass over the data ends behind its first batch: {} updates in as many passes", updates);
  finding->why = fmt::format(
      "the update stands in the loop of line {} in {}, which never comes round: its body always ends with "
      "break or return{}",
      line, function, batches > 0 ? fmt::format("; its loader has {} batches", batches) : "");
  finding->remedy =
      "take the break out of the loop over batches; a return belongs behind the loop (less indented)";
  finding->causes = {"a break that was of use for debugging", "a return inside of the loop over batches"};
  finding->evidence = {{"updates", updates}, {"batches", batches}};
  finding->threshold =
      fmt::format("a fact of the program, in {} updates or more that were looked at (Luff)", kUpdates);
}

void EarlyEnds::VisitFields(Fields& io) {
  io("looks", looks_);
  io("updates", updates_);
  io("line", line_);
  io("function", function_);
  io("started", started_);
  io("rows", rows_, kMaxRows);
  io("batch", batch_);
  io("same", same_);
  io("evaluated", evaluated_);
  io("most_evaluated", most_evaluated_);
  io("evaluations", evaluations_);
  io("over", over_);
}

}  // namespace luff::rules
