#include "rules/facts/noisy_teacher.h"

#include <algorithm>

#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/step_index.h"

namespace luff::rules {
namespace {

using format::EventKind;
// Bits of the event `forward` (docs/spec/evidence.md), and numbers of a saved state.
struct TeacherBits {
  static constexpr std::uint64_t kTraining = 1U << 8, kSomeTrain = 1U << 9, kGradients = 1U << 11,
                                 kTold = 1U << 12, kHash = (1ULL << 52) - 1;
};
constexpr std::int64_t kUpdatesApart = 8;  // between two sightings of a weight

// The name of the model with this number; "" if it is not known.
std::string ModelNumbered(const ModelFacts& facts, std::uint32_t number) {
  for (const ModuleFacts& module : facts.modules())
    if (module.path.empty() && module.number == number) return module.model;
  return {};
}

}  // namespace

std::optional<NoisyTeacher::Found> NoisyTeacher::OnStep(const StepView& view) {
  if (view.rows.info.superseded) return std::nullopt;
  TakeCalls(view);
  if (view.rows.info.mode != query::Mode::kTrain) return std::nullopt;
  const auto& updates = view.index.events(EventKind::kOptimizerStep);
  if (phases_.OnStep(view)) teachers_.clear();
  TakeWeights(view);
  if (updates.empty()) return std::nullopt;
  CloseUpdate(view.rows.info.mode_step);
  for (auto& [number, teacher] : teachers_) {
    if (teacher.left_out || teacher.told || teacher.updates < kUpdates || teacher.sightings < kSightings)
      continue;
    const ModelFacts& facts = view.memo.Facts(view);
    const std::string name = ModelNumbered(facts, number);
    if (name.empty()) continue;
    if (IsHeld(facts, name)) {
      teacher.left_out = true;
      continue;
    }
    teacher.told = true;
    return Found{name, teacher.since, teacher.updates};
  }
  return std::nullopt;
}

void NoisyTeacher::TakeCalls(const StepView& view) {
  enum Call : std::uint8_t { kOther, kTrained, kNoisy };
  std::map<std::uint32_t, Call> last;  // of each model, for the hash of its batch that follows
  for (const query::EventAt& event : view.rows.events) {
    if (event.worker != view.index.first_worker()) continue;
    const auto kind = static_cast<EventKind>(event.row.kind);
    const std::uint64_t bits = event.row.argument;
    if (kind == EventKind::kForward) {
      const bool told = (bits & TeacherBits::kTold) != 0, gradients = (bits & TeacherBits::kGradients) != 0;
      const bool noisy =
          told && !gradients && (bits & TeacherBits::kTraining) != 0 && (bits & TeacherBits::kSomeTrain) != 0;
      if (last.size() < kMaxModels) last[event.row.subject] = gradients ? kTrained : noisy ? kNoisy : kOther;
      if (noisy) continue;
      const auto at = teachers_.find(event.row.subject);
      if (at != teachers_.end()) {
        at->second.left_out = true;
      } else if (teachers_.size() < kMaxModels) {
        teachers_[event.row.subject].left_out = true;
      }
    } else if (kind == EventKind::kBatch) {
      const auto at = last.find(event.row.subject);
      if (at == last.end()) continue;
      if (at->second == kTrained && trained_.size() < kMaxCalls) trained_.insert(bits & TeacherBits::kHash);
      if (at->second == kNoisy && asked_.size() < kMaxCalls)
        asked_.push_back({event.row.subject, bits & TeacherBits::kHash});
    }
  }
}

// An update was made with what was called before it.
void NoisyTeacher::CloseUpdate(std::int64_t step) {
  std::set<std::uint32_t> asked;
  for (const Asked& one : asked_) {
    if (!trained_.contains(one.batch)) continue;
    if (teachers_.size() >= kMaxModels && !teachers_.contains(one.model)) continue;
    Teacher& teacher = teachers_[one.model];
    // Asked again about the same update: the mean of its noise is meant.
    teacher.left_out = teacher.left_out || !asked.insert(one.model).second;
  }
  for (auto& [number, teacher] : teachers_) {
    if (!asked.contains(number)) {
      teacher.updates = 0;
    } else if (teacher.updates++ == 0) {
      teacher.since = step;
    }
  }
  asked_.clear();
  trained_.clear();
}

// Watches the weights of each teacher: those of an average move, though some layers may be frozen in both.
void NoisyTeacher::TakeWeights(const StepView& view) {
  if (view.index.summaries(format::Role::kWeight).empty()) return;
  for (auto& [number, teacher] : teachers_) {
    if (teacher.left_out || teacher.told || teacher.updates == 0) continue;
    const ModelFacts& facts = view.memo.Facts(view);
    const std::string name = ModelNumbered(facts, number);
    double sum = 0, squares = 0;
    std::int64_t weights = 0;
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kWeight)) {
      if (entry.worker != view.index.first_worker()) continue;
      const ParameterFacts* parameter = facts.Find(tensor.name);
      if (parameter == nullptr || name.empty() || parameter->model != name) continue;
      sum += entry.summary.sum;
      squares += entry.summary.sum_sq;
      ++weights;
    }
    if (weights == 0 || (teacher.sightings > 0 && weights != teacher.weights)) continue;
    if (teacher.sightings == 0) {
      teacher.weights = weights;
      teacher.sum = sum;
      teacher.squares = squares;
      teacher.seen_at = teacher.updates;
      teacher.sightings = 1;
    } else if (sum != teacher.sum || squares != teacher.squares) {
      teacher.left_out = true;
    } else if (teacher.updates - teacher.seen_at >= kUpdatesApart) {
      teacher.sightings = kSightings;
    }
  }
}

// Whether an optimizer holds a parameter of the model (it may be trained in turn), or it has none.
bool NoisyTeacher::IsHeld(const ModelFacts& facts, const std::string& model) {
  bool any = false;
  for (const auto& [name, parameter] : facts.parameters()) {
    if (parameter.model != model) continue;
    any = true;
    if (!parameter.optimizer.empty()) return true;
  }
  return !any;
}

void NoisyTeacher::Teacher::VisitFields(Fields& io) {
  io("updates", updates);
  io("since", since);
  io("left_out", left_out);
  io("told", told);
  io("weights", weights);
  io("sum", sum);
  io("squares", squares);
  io("sightings", sightings);
  io("seen_at", seen_at);
}

void NoisyTeacher::Asked::VisitFields(Fields& io) {
  io("model", model);
  io("batch", batch);
}

void NoisyTeacher::VisitFields(Fields& io) {
  io("phases", phases_);
  io("teachers", teachers_, kMaxModels);
  io("trained", trained_, kMaxCalls);
  io("asked", asked_, kMaxCalls);
}

}  // namespace luff::rules
