#include "rules/facts/token_stats.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "rules/facts/sample.h"
#include "rules/kit/select.h"

namespace luff::rules {

void TokenStats::Add(const SampleValues& ids) {
  ++samples_;
  if (many_) return;
  for (const double value : ids.values) {
    if (!(std::abs(value) < 9e15)) continue;
    double& count = counts_[static_cast<std::int64_t>(value)];
    if (count == 0) last_new_ = tokens_;
    count += 1;
    tokens_ += 1;
  }
  if (counts_.size() > kMaxIds) {
    many_ = true;
    counts_.clear();
    return;
  }
  const auto most = std::max_element(counts_.begin(), counts_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == counts_.end()) return;
  if (most->first != top_) {
    top_ = most->first;
    met_ = at_end_ = has_next_ = same_next_ = 0;
  }
  const std::size_t width = ids.shape.empty() ? 1 : static_cast<std::size_t>(ids.shape.back());
  if (width < 2) return;
  const double top = static_cast<double>(top_);
  for (std::size_t row = 0; row + width <= ids.values.size(); row += width) {
    const double* at = ids.values.data() + row;
    std::size_t head = 0;
    while (head < width && at[head] == top) ++head;
    std::size_t tail = 0;
    while (tail < width - head && at[width - 1 - tail] == top) ++tail;
    for (std::size_t i = 0; i < width; ++i) {
      if (at[i] != top) continue;
      ++met_;
      if (i + 1 < width) {
        ++has_next_;
        same_next_ += at[i + 1] == top ? 1 : 0;
      }
    }
    // Padding is a run of several at one end, or the whole row.
    const std::size_t run = std::max(head, tail);
    if (run > 1 || head == width) at_end_ += static_cast<double>(run);
  }
}

double TokenStats::top_share() const noexcept {
  const auto it = counts_.find(top_);
  return it == counts_.end() || tokens_ <= 0 ? 0 : it->second / tokens_;
}

bool TokenStats::top_is_padding() const noexcept { return met_ >= 64 && at_end_ >= 0.9 * met_; }

bool TokenStats::top_is_scattered() const noexcept {
  if (has_next_ < 64) return false;
  const double share = top_share();
  return same_next_ / has_next_ <= share + 0.5 * (1 - share);
}

std::vector<TableInput> TableInputsOf(const StepView& view, const ModelModules& modules) {
  std::vector<TableInput> inputs;
  if (view.rows.info.superseded) return inputs;
  for (const auto& [entry, tensor] : view.index.summaries(format::Role::kInput)) {
    if (!IsIds(entry.dtype)) continue;
    if (tensor.module_type != "Embedding" && tensor.module_type != "EmbeddingBag") continue;
    // The second input of a bag holds the offsets of its rows.
    const std::size_t cut = tensor.name.rfind("_input_");
    if (cut == std::string::npos ||
        (tensor.module_type == "EmbeddingBag" && !tensor.name.ends_with("_input_0")))
      continue;
    TableInput input;
    input.entry = &entry;
    input.module = tensor.name.substr(0, cut);
    input.type = tensor.module_type;
    for (const ModuleFacts& module : modules.modules()) {
      if (module.name != input.module) continue;
      input.model = module.model;
      input.table_rows = module.Number("num_embeddings");
      input.padding = module.Number("padding_idx");
      break;
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::vector<Tables::Batch> Tables::OnStep(const StepView& view, double rows) {
  std::vector<Batch> batches;
  modules_.OnStep(view);
  for (TableInput& input : TableInputsOf(view, modules_)) {
    if (!input.table_rows.has_value() || *input.table_rows < rows) continue;
    const auto ids = LoadSample(view, *input.entry);
    if (ids != nullptr) batches.push_back({std::move(input), ids});
  }
  return batches;
}

TokenStats* Tables::StatsOf(const Batch& batch) {
  if (stats_.size() >= kMaxTables && !stats_.contains(batch.input.module)) return nullptr;
  return &stats_[batch.input.module];
}

Need TableNeed() {
  Need need;
  need.collection = "embedding_inputs";
  need.roles = {format::Role::kInput};
  need.module_types = {"Embedding", "EmbeddingBag"};
  need.forms = Bit(format::Form::kSummary) | Bit(format::Form::kRaw);
  need.save_interval = 8;
  return need;
}

void TokenStats::VisitFields(Fields& io) {
  io("tokens", tokens_);
  io("last_new", last_new_);
  io("samples", samples_);
  io("many", many_);
  io("counts", counts_, kMaxIds);
  io("top", top_);
  io("met", met_);
  io("at_end", at_end_);
  io("has_next", has_next_);
  io("same_next", same_next_);
}

void Tables::VisitFields(Fields& io) { io("stats", stats_, kMaxTables); }

}  // namespace luff::rules
