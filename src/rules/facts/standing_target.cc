#include "rules/facts/standing_target.h"

#include <algorithm>

#include "rules/facts/initial_values.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/step_index.h"

namespace luff::rules {
namespace {

using format::EventKind;
constexpr std::uint64_t kGradients = 1U << 11, kTold = 1U << 12;  // of the event `forward`
constexpr std::uint64_t kHashBits = (1ULL << 52) - 1;             // numbers of a saved state
constexpr double kMostUpdates = 0.9;  // of those since it was asked first, for which it was asked
constexpr double kOften = 0.1;        // of the updates, for which it may be asked more than once
constexpr std::int64_t kFewerRows = 8, kLeastBatches = 16;

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

// About as many rows as a loss has: it may get a part of what models are asked about, an opponent is asked
// about a single state.
bool IsBatch(std::int64_t rows, std::int64_t of_loss) {
  return rows > 0 && rows >= of_loss / kFewerRows && rows / kFewerRows <= of_loss &&
         (rows > 1 || of_loss == 1);
}

// Parameters of a model by path, with their shapes.
Shapes ShapesOf(const ModelFacts& facts, const std::string& model) {
  Shapes shapes;
  for (const auto& [name, parameter] : facts.parameters())
    if (parameter.model == model) shapes.emplace_back(parameter.path, parameter.shape);
  std::sort(shapes.begin(), shapes.end());
  return shapes;
}

}  // namespace

void StandingTarget::OnStep(const StepView& view) {
  if (view.rows.info.superseded) return;
  TakeCalls(view);
  if (view.rows.info.mode != query::Mode::kTrain) return;
  last_.Take(view.rows.info);
  TakeWeights(view);
  for (const LossCall& call : LossReader::Read(view)) {
    if (!IsRegression(FormulaOfKind(call.kind)) || call.output.whole_shape.empty()) continue;
    rows_ = call.output.whole_shape.front();
    break;
  }
  if (!view.index.events(EventKind::kOptimizerStep).empty()) CloseUpdate();
}

void StandingTarget::TakeCalls(const StepView& view) {
  const bool trains = view.rows.info.mode == query::Mode::kTrain;
  std::int64_t rows = -1;  // that an evaluation asks about
  if (!trains) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = input.index == 0 ? LoadSample(view, *input.entry) : nullptr;
      if (sample != nullptr && !sample->whole_shape.empty()) rows = sample->whole_shape.front();
    }
  }
  bool gradients = false;
  for (const query::EventAt& event : view.rows.events) {
    if (event.worker != view.index.first_worker()) continue;
    const auto kind = static_cast<EventKind>(event.row.kind);
    if (kind == EventKind::kForward) {
      const std::uint64_t bits = event.row.argument;
      gradients = (bits & kGradients) != 0 || (bits & kTold) == 0;
      if (!calls_.contains(event.row.subject) && calls_.size() >= kMaxModels) continue;
      Calls& calls = calls_[event.row.subject];
      const bool told = !trains && rows > 0 && rows_ >= 0;  // a sample may be missing
      calls.left_out = calls.left_out || gradients || (told && !IsBatch(rows, rows_));
      calls.batches += trains || told ? 1 : 0;
    } else if (kind == EventKind::kBatch && gradients) {
      if (trained_.size() < kMaxCalls) trained_.insert(event.row.argument & kHashBits);
    } else if (kind == EventKind::kBatch && asked_.size() < kMaxCalls) {
      asked_.emplace_back(event.row.subject, event.row.argument & kHashBits);
    }
  }
}

void StandingTarget::TakeWeights(const StepView& view) {
  if (view.index.summaries(format::Role::kWeight).empty()) return;
  const ModelFacts& facts = view.memo.Facts(view);
  for (const auto& [entry, tensor] : view.index.summaries(format::Role::kWeight)) {
    if (entry.worker != view.index.first_worker()) continue;
    const auto known = weights_.find(tensor.name);
    const Summary& now = entry.summary;
    if (known != weights_.end()) {
      Weight& weight = known->second;
      weight.moved = weight.moved || now.sum != weight.sum || now.sum_sq != weight.squares;
    } else if (weights_.size() < kMaxWeights && now.finite_count() == now.count) {
      const ParameterFacts* parameter = facts.Find(tensor.name);
      if (parameter == nullptr || parameter->shape.size() < 2 || parameter->elements < 256) continue;
      weights_[tensor.name] = {now.sum, now.sum_sq, updates_, IsAsDrawn(now, entry.dtype, parameter->shape),
                               false};
    }
  }
}

// An update was made with what was called before it.
void StandingTarget::CloseUpdate() {
  ++updates_;
  std::map<std::uint32_t, int> counted;
  for (const auto& [number, batch] : asked_) {
    const auto at = calls_.find(number);
    if (at == calls_.end()) continue;
    Calls& calls = at->second;
    calls.left_out = calls.left_out || trained_.contains(batch);
    const int times = ++counted[number];
    if (times == 1 && calls.updates++ == 0) calls.first = updates_;
    calls.often += times == 2 ? 1 : 0;
  }
  asked_.clear();
  trained_.clear();
}

std::optional<StandingTarget::Found> StandingTarget::OnEnd(const query::Trial& trial) const {
  const bool any = std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    return !entry.second.left_out && entry.second.updates >= kUpdates;
  });
  if (!any || rows_ < 0) return std::nullopt;
  const ModelFacts facts = ModelFacts::Of(trial);
  for (const ModuleFacts& module : facts.modules()) {
    const auto at = module.path.empty() && module.number ? calls_.find(*module.number) : calls_.end();
    if (at == calls_.end() || facts.IsPartlyOptimized(module.model)) continue;
    const Calls& calls = at->second;
    if (calls.left_out || calls.updates < kUpdates || calls.batches < kLeastBatches ||
        static_cast<double>(calls.updates) < kMostUpdates * static_cast<double>(updates_ - calls.first) ||
        static_cast<double>(calls.often) > kOften * static_cast<double>(calls.updates))
      continue;
    const auto stands = [&](const std::string& model, bool* known) {
      bool all = true;
      for (const auto& [name, weight] : weights_) {
        const ParameterFacts* parameter = facts.Find(name);
        if (parameter == nullptr || parameter->model != model) continue;
        *known = true;
        all = all && weight.drawn && !weight.moved;
      }
      return all;
    };
    bool known = false;
    if (!stands(module.model, &known) || !known) continue;
    const Shapes shapes = ShapesOf(facts, module.model);
    for (const ModuleFacts& other : facts.modules()) {
      if (!other.path.empty() || other.model == module.model || other.type != module.type ||
          !facts.IsPartlyOptimized(other.model) || ShapesOf(facts, other.model) != shapes)
        continue;
      bool seen = false;
      if (stands(other.model, &seen) || !seen) continue;
      const bool copy = !BeganApart(facts, module.model, other.model);
      if (copy && calls.updates < kOfACopy) continue;
      return Found{last_, calls.updates, copy, module.model, other.model};
    }
  }
  return std::nullopt;
}

// Whether a weight of one model was another than that of the other when both were read first.
bool StandingTarget::BeganApart(const ModelFacts& facts, const std::string& one,
                                const std::string& other) const {
  std::map<std::string, const Weight*> of_one;
  for (const auto& [name, weight] : weights_) {
    const ParameterFacts* parameter = facts.Find(name);
    if (parameter != nullptr && parameter->model == one) of_one[parameter->path] = &weight;
  }
  return std::any_of(weights_.begin(), weights_.end(), [&](const auto& entry) {
    const ParameterFacts* parameter = facts.Find(entry.first);
    if (parameter == nullptr || parameter->model != other) return false;
    const auto at = of_one.find(parameter->path);
    if (at == of_one.end() || at->second->since != entry.second.since) return false;
    return at->second->sum != entry.second.sum || at->second->squares != entry.second.squares;
  });
}

void StandingTarget::Calls::VisitFields(Fields& io) {
  io("updates", updates);
  io("first", first);
  io("batches", batches);
  io("often", often);
  io("left_out", left_out);
}

void StandingTarget::Weight::VisitFields(Fields& io) {
  io("sum", sum);
  io("squares", squares);
  io("since", since);
  io("drawn", drawn);
  io("moved", moved);
}

void StandingTarget::VisitFields(Fields& io) {
  io("last", last_);
  io("calls", calls_, kMaxModels);
  io("weights", weights_, kMaxWeights);
  io("trained", trained_, kMaxCalls);
  io("asked", asked_, kMaxCalls);
  io("updates", updates_);
  io("rows", rows_);
}

}  // namespace luff::rules
