#include "rules/facts/restored_state.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "luff/tensor/hash.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_facts.h"
#include "rules/kit/step_index.h"

namespace luff::rules {
namespace {

using format::EventKind;
constexpr std::uint64_t kWithGradients = 1U << 11, kGradientsTold = 1U << 12;  // of the event `forward`
constexpr std::uint64_t kOutputBits = (1ULL << 52) - 1;                        // numbers of a saved state
constexpr double kWorse = 0.05;  // of the loss, below which all are alike
constexpr double kFewer = 0.02;  // right answers likewise

// How many of `all` others are better than `own`.
template <typename Better>
std::size_t CountBetter(const std::vector<double>& all, Better better) {
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), better));
}

}  // namespace

void RestoredState::OnStep(const StepView& view) {
  const std::optional<bool> train = IsTraining(view.rows.info, last_);
  if (!train) return;
  if (*train) {
    Close();
    last_.Take(view.rows.info);
    loaded_.clear();  // an event of this step may be of a load after its update
    for (const query::EventAt& event : view.index.events(EventKind::kForward)) {
      const std::uint64_t bits = event.row.argument;
      if ((bits & kGradientsTold) != 0 && (bits & kWithGradients) != 0 && trained_.size() < kMaxModels)
        trained_.insert(event.row.subject);
    }
  }
  for (const LoadFacts& load : LoadsOf(view.index))
    if (load.matched > 0 && !load.gives_nothing() && loaded_.size() < kMaxModels) loaded_.insert(load.model);
  if (*train) return;
  const std::vector<LossCall>& calls = LossReader::Read(view);
  if (calls.empty()) return;
  if (now_.size() >= kMaxPasses) {
    whole_ = false;
    return;
  }
  Pass& pass = now_.emplace_back();
  std::set<std::uint32_t> models;
  for (const query::EventAt& event : view.index.events(EventKind::kForward))
    if (event.worker == calls.front().worker) models.insert(event.row.subject);
  if (models.size() == 1) pass.model = *models.begin();
  for (const LossCall& call : calls) {
    if (call.worker != calls.front().worker) continue;
    std::vector<std::uint64_t> parts = RowHashes(call.output);
    parts.push_back(HashBytes(call.key.data(), call.key.size()));
    parts.push_back(pass.outputs);
    pass.outputs = HashBytes(parts.data(), parts.size() * sizeof(std::uint64_t)) & kOutputBits;
    pass.errors = pass.errors && IsRegression(FormulaOfKind(call.kind));
    pass.told = CountAnswers(call, &pass.rows, &pass.right) && pass.told;
  }
  for (const LossValue& loss : view.index.losses()) {
    if (loss.worker != calls.front().worker || !std::isfinite(loss.value)) continue;
    pass.loss += loss.value;
    ++pass.losses;
  }
}

RestoredState::Evaluation RestoredState::Sum(const Pass* passes, std::size_t count, std::int64_t step) {
  Evaluation all;
  all.step = step;
  all.passes = count;
  all.model = count > 0 ? passes->model : -1;
  double loss = 0;
  double losses = 0;
  double rows = 0;
  double right = 0;
  bool told = true;
  for (const Pass* pass = passes; pass != passes + count; ++pass) {
    const std::uint64_t parts[] = {all.outputs, pass->outputs};
    all.outputs = HashBytes(parts, sizeof(parts)) & kOutputBits;
    loss += pass->loss;
    losses += pass->losses;
    rows += pass->rows;
    right += pass->right;
    told = told && pass->told;
    if (pass->model != all.model) all.model = -1;
    all.errors = all.errors && pass->errors;
  }
  if (losses > 0) all.loss = loss / losses;
  if (told && rows > 0) all.right = right / rows;
  return all;
}

void RestoredState::Close() {
  if (!now_.empty() && whole_) {
    const Evaluation all = Sum(now_.data(), now_.size(), last_.mode_step);
    // A model that was not trained yet is no state of the training.
    if (all.model >= 0 && trained_.contains(static_cast<std::uint32_t>(all.model)))
      evaluations_.push_back(all);
    if (evaluations_.size() > kMost) evaluations_.pop_front();
  }
  now_.clear();
  whole_ = true;
}

std::optional<RestoredState::Found> RestoredState::OnEnd(const query::Trial& trial) {
  if (now_.empty() || !whole_ || evaluations_.size() + 1 < kLeast) return std::nullopt;
  const std::size_t length = evaluations_.back().passes;
  if (length == 0 || now_.size() < length) return std::nullopt;
  // What follows the last update: perhaps its own evaluation, and that of the state that was kept.
  const std::vector<Pass> rest = now_;
  const bool own = rest.size() > length;
  if (own) evaluations_.push_back(Sum(rest.data(), length, last_.mode_step));
  const Evaluation* came_back = nullptr;
  for (std::size_t first = own ? length : 0; first + length <= rest.size(); ++first) {
    const std::uint64_t outputs = Sum(&rest[first], length, 0).outputs;
    const auto known = std::find_if(evaluations_.begin(), evaluations_.end(), [&](const Evaluation& one) {
      return one.passes == length && one.outputs == outputs;
    });
    if (known == evaluations_.end()) continue;
    if (came_back != nullptr && came_back != &*known) return std::nullopt;  // several states are compared
    came_back = &*known;
  }
  const bool newest = own && came_back == &evaluations_.back();  // it never went away
  if (came_back == nullptr || newest || !IsWorst(*came_back) || !IsLoaded(trial, came_back->model))
    return std::nullopt;
  Found found;
  found.at = last_;
  found.step = came_back->step;
  found.loss = came_back->loss;
  found.right = came_back->right;
  for (const Evaluation& one : evaluations_) {
    if (one.passes != length || one.model != came_back->model) continue;
    ++found.evaluations;
    if (one.loss) found.best_loss = std::min(found.best_loss.value_or(*one.loss), *one.loss);
    if (one.right) found.best_right = std::max(found.best_right.value_or(*one.right), *one.right);
    if (one.loss || one.right) found.curve.emplace_back(one.step, one.loss ? *one.loss : *one.right);
  }
  return found;
}

// Whether a state was given to a model of this class after the last update.
bool RestoredState::IsLoaded(const query::Trial& trial, std::int64_t model) const {
  if (model < 0 || loaded_.empty()) return false;
  const ModelFacts facts = ModelFacts::Of(trial);
  return std::any_of(facts.modules().begin(), facts.modules().end(), [&](const ModuleFacts& module) {
    return module.path.empty() && module.number && static_cast<std::int64_t>(*module.number) == model &&
           loaded_.contains(module.type);
  });
}

// The worst by one of the two, clearly, and of the worse half by the other: what was chosen by a third
// measure may be the worst by one of them. A loss of classes alone says too little: it rises while more
// answers are right.
bool RestoredState::IsWorst(const Evaluation& one) const {
  std::vector<double> losses;
  std::vector<double> shares;
  std::size_t others = 0;
  for (const Evaluation& other : evaluations_) {
    if (&other == &one || other.passes != one.passes || other.model != one.model) continue;
    ++others;
    if (other.loss && one.loss) losses.push_back(*other.loss);
    if (other.right && one.right) shares.push_back(*other.right);
  }
  const bool by_loss = losses.size() == others;
  const bool by_share = shares.size() == others;
  if (others + 1 < kLeast || (!by_share && !one.errors)) return false;
  const std::size_t less = CountBetter(losses, [&](double value) { return value < *one.loss; });
  const std::size_t more = CountBetter(shares, [&](double value) { return value > *one.right; });
  const bool worst_loss =
      by_loss && less == others &&
      *std::min_element(losses.begin(), losses.end()) < *one.loss - kWorse * std::abs(*one.loss);
  const bool worst_share =
      by_share && more == others && *std::max_element(shares.begin(), shares.end()) > *one.right + kFewer;
  return (worst_loss && (!by_share || 2 * more >= others)) ||
         (worst_share && (!by_loss || 2 * less >= others));
}

void RestoredState::Pass::VisitFields(Fields& io) {
  io("outputs", outputs);
  io("model", model);
  io("loss", loss);
  io("losses", losses);
  io("rows", rows);
  io("right", right);
  io("told", told);
  io("errors", errors);
}

void RestoredState::Evaluation::VisitFields(Fields& io) {
  io("step", step);
  io("model", model);
  io("outputs", outputs);
  io("passes", passes);
  io("errors", errors);
  io("loss", loss);
  io("right", right);
}

void RestoredState::VisitFields(Fields& io) {
  io("last", last_);
  io("evaluations", evaluations_, kMost);
  io("now", now_, kMaxPasses);
  io("whole", whole_);
  io("trained", trained_, kMaxModels);
  io("loaded", loaded_, kMaxModels);
}

}  // namespace luff::rules
