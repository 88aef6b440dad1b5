#include "rules/facts/cut_ids.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "luff/tensor/dtype.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/select.h"

namespace luff::rules {
namespace {

// Whether all embeddings are Keras' own: a class of a script that is called so may be made for coordinates.
bool AllAreTables(const ModelFacts& facts) {
  return facts.keras() &&
         std::all_of(facts.modules().begin(), facts.modules().end(),
                     [](const ModuleFacts& module) { return module.type != "Embedding" || module.builtin; });
}

}  // namespace

std::optional<CutIds::Cut> CutIds::OnStep(const StepView& view) {
  std::optional<Cut> found;
  if (view.rows.info.superseded) return found;
  for (const auto& [entry, tensor] : view.index.summaries(format::Role::kInput)) {
    if (tensor.module_type != "Embedding" || !IsFloating(entry.dtype)) continue;
    if (!AllAreTables(view.memo.Facts(view))) return found;
    if (batches_.size() >= kMaxTables && !batches_.contains(tensor.name)) continue;
    const auto sample = LoadSample(view, entry);
    if (sample == nullptr) continue;
    std::int64_t finite = 0, between = 0;
    std::set<double> numbers, ids;
    for (const double value : sample->values) {
      if (!std::isfinite(value)) continue;
      ++finite;
      between += std::abs(value - std::round(value)) > 1e-4 ? 1 : 0;
      if (numbers.size() < kMaxNumbers) {
        numbers.insert(value);
        ids.insert(std::trunc(value));
      }
    }
    std::int64_t& batches = batches_[tensor.name];
    if (finite == 0 || batches >= kBatches) continue;
    const double share = static_cast<double>(between) / static_cast<double>(finite);
    batches = share >= kShare && numbers.size() > ids.size() ? batches + 1 : 0;
    if (batches < kBatches || found) continue;
    found = Cut{&entry, share, static_cast<std::int64_t>(numbers.size()),
                static_cast<std::int64_t>(ids.size()), *ids.begin()};
  }
  return found;
}

void CutIds::VisitFields(Fields& io) { io("batches", batches_, kMaxTables); }

}  // namespace luff::rules
