#include "rules/facts/stale_answers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "luff/tensor/hash.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

namespace {

constexpr std::uint64_t kAnswerBits = (1ULL << 52) - 1;  // numbers of a saved state
constexpr std::size_t kLeastAnswers = 8;                 // different outputs of a pass

// One hash of all rows of a sample, with its name; joined with `before`.
std::uint64_t JoinedAnswers(std::uint64_t before, const std::string& name, const SampleValues& sample) {
  std::vector<std::uint64_t> parts = RowHashes(sample);
  if (parts.empty()) parts.push_back(HashBytes(sample.values.data(), sample.values.size() * sizeof(double)));
  parts.push_back(HashBytes(name.data(), name.size()));
  parts.push_back(before);
  return HashBytes(parts.data(), parts.size() * sizeof(std::uint64_t)) & kAnswerBits;
}

bool HasManyAnswers(const SampleValues& sample) {
  std::set<double> known;
  for (const double value : sample.values) {
    known.insert(value);
    if (known.size() >= kLeastAnswers) return true;
  }
  return false;
}

bool HasFullPrecision(DType type) { return type == DType::kFloat32 || type == DType::kFloat64; }

}  // namespace

std::optional<StaleAnswers::Found> StaleAnswers::OnStep(const StepView& view) {
  const std::optional<bool> train = IsTraining(view.rows.info, last_);
  if (!train || moved_) return std::nullopt;
  if (!*train) {
    Evaluate(view);
    return std::nullopt;
  }
  std::optional<Found> found = Close();
  last_.Take(view.rows.info);
  for (const WeightChange& change : view.index.weight_changes()) changed_ = changed_ || change.changed > 0;
  for (const ModelInput& input : ModelInputsOf(view))
    if (trained_.size() < kMaxModels) trained_.insert(input.model);
  return found;
}

void StaleAnswers::Evaluate(const StepView& view) {
  evaluating_ = true;
  const std::vector<ModelInput>& inputs = ModelInputsOf(view);
  const std::vector<LossCall>& calls = LossReader::Read(view);
  if (unlike_ || (inputs.empty() && calls.empty())) return;
  for (const ModelInput& input : inputs) {
    std::set<std::string>& models = calls.empty() ? silent_ : evaluated_;
    models.insert(input.model);
    if (trained_.contains(input.model) || models.size() > kMaxModels) unlike_ = true;
  }
  if (inputs.empty() || trained_.empty()) unlike_ = true;
  if (calls.empty() || unlike_) return;
  std::uint64_t given = 0;
  for (const ModelInput& input : inputs) {
    const auto sample = LoadSample(view, *input.entry);
    if (sample == nullptr) {
      unlike_ = true;
    } else {
      given = JoinedAnswers(given, view.trial.tensor(input.entry->tensor).name, *sample);
    }
  }
  std::uint64_t answers = 0;
  for (const LossCall& call : calls) {
    if (!HasFullPrecision(call.output.dtype) || !HasManyAnswers(call.output)) unlike_ = true;
    answers = JoinedAnswers(answers, call.key, call.output);
  }
  if (unlike_ || now_.size() >= kMaxPasses) return;
  const auto [known, fresh] = now_.emplace(given, answers);
  if (!fresh && known->second != answers) unlike_ = true;  // something is drawn anew
}

std::optional<StaleAnswers::Found> StaleAnswers::Close() {
  if (!std::exchange(evaluating_, false)) return std::nullopt;
  const std::map<std::uint64_t, std::uint64_t> now = std::exchange(now_, {});
  const std::set<std::string> evaluated = std::exchange(evaluated_, {});
  const std::set<std::string> silent = std::exchange(silent_, {});
  const bool unlike = std::exchange(unlike_, false) ||
                      !std::includes(evaluated.begin(), evaluated.end(), silent.begin(), silent.end());
  if (now.empty() && !unlike) return std::nullopt;  // nothing was measured
  const auto differs = [&](const auto& pass) {
    const auto known = before_.find(pass.first);
    return known != before_.end() && known->second != pass.second;
  };
  if (std::any_of(now.begin(), now.end(), differs)) moved_ = true;
  const auto meets = [&](const auto& pass) { return before_.contains(pass.first); };
  // A pass of a reference over the batch that is trained on comes with each update, or with a few.
  const bool follows = !unlike && !moved_ && changed_ && before_.size() == now.size() &&
                       last_.update - update_ >= kUpdates && std::all_of(now.begin(), now.end(), meets);
  update_ = last_.update;
  changed_ = false;
  if (!follows) {
    before_ = unlike || moved_ ? std::map<std::uint64_t, std::uint64_t>() : now;
    streak_ = before_.empty() ? 0 : 1;
    since_ = last_.mode_step;
    first_update_ = update_;
    return std::nullopt;
  }
  if (++streak_ < kEvaluations) return std::nullopt;
  Found found;
  found.at = last_;
  found.since = since_;
  found.evaluations = streak_;
  found.updates = update_ - first_update_;
  found.passes = now.size();
  const auto listed = [](const std::set<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  };
  found.evaluated = listed(evaluated);
  found.trained = listed(trained_);
  return found;
}

void StaleAnswers::VisitFields(Fields& io) {
  io("last", last_);
  io("trained", trained_, kMaxModels);
  io("evaluated", evaluated_, kMaxModels + 1);
  io("silent", silent_, kMaxModels + 1);
  io("now", now_, kMaxPasses);
  io("before", before_, kMaxPasses);
  io("evaluating", evaluating_);
  io("unlike", unlike_);
  io("changed", changed_);
  io("moved", moved_);
  io("streak", streak_);
  io("since", since_);
  io("first_update", first_update_);
  io("update", update_);
}

}  // namespace luff::rules
