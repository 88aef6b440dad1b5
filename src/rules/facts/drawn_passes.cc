#include "rules/facts/drawn_passes.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/sample.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

std::optional<DrawnPasses::Found> DrawnPasses::OnTrainStep(const StepView& view) {
  if (trained_ || view.index.events(format::EventKind::kOptimizerStep).empty()) return std::nullopt;
  if (++updates_ <= 2) return std::nullopt;  // what was drawn before the first step is told in it, too
  const std::int64_t batches = PassDrawn(view, !open_);
  if (batches <= 0) {
    trained_ = true;
    if (!std::exchange(open_, false)) return std::nullopt;
    return Found{.over = true};
  }
  ++used_;
  drawn_ += batches;
  if (open_ || used_ < kUpdates) return std::nullopt;
  open_ = true;
  return Found{.used = used_, .drawn = drawn_, .batches = batches};
}

void DrawnPasses::StepEnds(const StepView& view) {
  Draws& draws = before_ = Draws();
  // The newest waits are told apart by their loaders.
  std::map<std::int64_t, std::int64_t> asked;  // by number of the loader
  for (const query::StepPhases& phases : view.rows.phases) {
    if (phases.worker != view.index.first_worker()) continue;
    draws.started += phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)];
    draws.waits += phases.begins[static_cast<std::size_t>(format::Phase::kDataWait)];
    for (const query::StepPhases::Wait& wait : phases.waits)
      if (wait.of.loader != format::WaitSubject::kNoLoader) asked[wait.of.loader] += wait.count;
  }
  const auto most = std::max_element(asked.begin(), asked.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == asked.end()) return;
  draws.loader = most->first;
  for (const auto& [number, count] : asked) draws.others += number == most->first ? 0 : count;
}

std::int64_t DrawnPasses::PassDrawn(const StepView& view, bool rows) const {
  const auto forwards = static_cast<std::int64_t>(view.index.events(format::EventKind::kForward).size());
  if (forwards < 1 || forwards > kFew || view.index.events(format::EventKind::kOptimizerStep).size() > kFew)
    return 0;
  if (before_.loader < 0 || before_.started < 1 || before_.started > 2) return 0;
  const auto loaders = profile::LoadersOf(view.trial.Document("loaders"));
  const auto loader = std::find_if(loaders.begin(), loaders.end(),
                                   [&](const profile::Loader& one) { return one.number == before_.loader; });
  if (loader == loaders.end() || loader->batches <= kFew || before_.others > 1) return 0;
  // One that drops its last batch has one less. It was asked once more, which ended the loop, and so may
  // another one have been, before the newest waits.
  const std::int64_t given = before_.waits - before_.others - 1;
  if (given < loader->batches - 1 || given > loader->batches + 1) return 0;
  // An input has as many rows as a batch, along its first axis, or its second where time comes first: other
  // data, as of a training of a few rows that evaluates by hand, come in other numbers.
  const std::int64_t each = loader->batch_size;
  const std::int64_t last = loader->samples - (loader->batches - 1) * each;
  const auto are_rows = [=](std::int64_t count) { return count == each || count == last; };
  for (const ModelInput& input : ModelInputsOf(view)) {
    const auto shape = view.trial.Shape(input.entry->tensor, view.rows.info.global_step, query::Mode::kGlobal,
                                        input.entry->worker);
    if (!shape.ok() || shape.value().shape.empty()) continue;
    const std::vector<std::int64_t>& whole =
        shape.value().global_shape.empty() ? shape.value().shape : shape.value().global_shape;
    if (whole[0] > each) return 0;
    if (are_rows(whole[0]) || (whole.size() > 2 && are_rows(whole[1]))) rows = false;
  }
  return rows ? 0 : std::min(given, loader->batches);
}

void DrawnPasses::Found::Describe(Finding* finding) const {
  finding->since_step = 0;
  finding->what = fmt::format(
      "only one batch of each pass is learnt: {} of {} batches that a loader gave were used", used, drawn);
  finding->why = fmt::format(
      "before each of {} updates in a row a loader gave all of its {} batches, and the model was called with "
      "one of them: the others were loaded and thrown away",
      used, batches);
  finding->remedy =
      "move the forward pass, loss.backward() and optimizer.step() into the loop over batches (indent them)";
  finding->causes = {"what trains stands outside of the loop over batches"};
  finding->evidence = {{"drawn", drawn}, {"used", used}};
  finding->threshold = fmt::format(
      "a fact: {} updates in a row, from the third one on, {} batches or more (Luff)", kUpdates, kFew + 1);
}

void DrawnPasses::Draws::VisitFields(Fields& io) {
  io("loader", loader);
  io("waits", waits);
  io("others", others);
  io("started", started);
}

void DrawnPasses::VisitFields(Fields& io) {
  io("drawn", used_);
  io("batches_drawn", drawn_);
  io("seen_updates", updates_);
  io("drawn_before", before_);
  io("some_trained", trained_);
  io("drawn_open", open_);
}

}  // namespace luff::rules
