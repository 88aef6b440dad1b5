#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "luff/base/regex.h"
#include "rules/facts/loss_call.h"
#include "rules/kit/select.h"

namespace luff::rules {

/// True and predicted classes of samples.
struct LabelledRows {
  std::size_t classes = 0;
  std::vector<std::int64_t> labels, predictions;
};

/// Returns the classes of a call whose formula is one of classification, with one target per sample. In
/// binary losses, raw scores above 0 and probabilities above 0.5 are class 1. Returns nullopt for other
/// losses, for those of partners in a batch, and for more than `max_classes` classes.
[[nodiscard]] inline std::optional<LabelledRows> LabelledRowsOf(const LossCall& call,
                                                                const Recognition& found,
                                                                std::size_t max_classes) {
  const auto& shape = call.target.shape;
  if (!(shape.size() == 1 || (shape.size() == 2 && shape[1] == 1))) return std::nullopt;
  LabelledRows rows;
  if (found.formula == Formula::kCrossEntropy || found.formula == Formula::kNll) {
    const auto classes = ClassRowsOf(call);
    if (!classes || classes->classes > max_classes || NamesPartners(call)) return std::nullopt;
    rows.classes = classes->classes;
    for (std::size_t i = 0; i < classes->rows; ++i) {
      if (classes->ids[i] < 0 || classes->ids[i] >= static_cast<double>(classes->classes)) continue;
      const double* row = &classes->scores[i * classes->classes];
      rows.labels.push_back(static_cast<std::int64_t>(classes->ids[i]));
      rows.predictions.push_back(std::max_element(row, row + classes->classes) - row);
    }
    return rows;
  }
  const bool logits = found.formula == Formula::kBceWithLogits;
  if (!logits && found.formula != Formula::kBce) return std::nullopt;
  rows.classes = 2;
  if (call.output.values.size() != call.target.values.size()) return std::nullopt;
  for (std::size_t i = 0; i < call.target.values.size(); ++i) {
    const double y = call.target.values[i];
    if (y != 0 && y != 1) return std::nullopt;
    rows.labels.push_back(static_cast<std::int64_t>(y));
    rows.predictions.push_back(call.output.values[i] > (logits ? 0.0 : 0.5) ? 1 : 0);
  }
  return rows;
}

/// Selects tensors of a step by name or collection, as the original's rules do for labels and predictions.
class NamedTensors {
 public:
  /// Errors: kInvalidArgument for a pattern that does not compile.
  [[nodiscard]] static Result<NamedTensors> Make(const std::string& regex, const std::string& collection) {
    NamedTensors named;
    for (const std::string& one : ParseList(regex)) {
      LUFF_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(one));
      named.patterns_.push_back(std::move(pattern));
    }
    named.collection_ = collection;
    return named;
  }
  /// All values of matching tensors, concatenated; with `argmax`, the index of the largest value of each row.
  [[nodiscard]] std::vector<std::int64_t> ValuesOf(const StepView& view, bool argmax) const {
    std::vector<std::int64_t> values;
    for (const auto& entry : view.rows.summaries) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      const bool in_collection =
          !collection_.empty() && std::find(tensor.collections.begin(), tensor.collections.end(),
                                            collection_) != tensor.collections.end();
      const bool named = std::any_of(patterns_.begin(), patterns_.end(),
                                     [&](const Regex& pattern) { return pattern.Search(tensor.name); });
      if (!named && !in_collection) continue;
      const auto sample = LoadSample(view, entry);
      if (sample == nullptr) continue;
      const std::size_t last =
          argmax && sample->shape.size() >= 2 ? static_cast<std::size_t>(sample->shape.back()) : 1;
      for (std::size_t at = 0; last > 0 && at + last <= sample->values.size(); at += last) {
        const double* row = &sample->values[at];
        if (last > 1) {
          values.push_back(std::max_element(row, row + last) - row);
        } else if (row[0] > -1e9 && row[0] < 1e9) {
          values.push_back(static_cast<std::int64_t>(row[0]));
        }
      }
    }
    return values;
  }

 private:
  std::vector<Regex> patterns_;
  std::string collection_;
};

/// The need that captures such tensors, for the original's parameter set.
[[nodiscard]] inline Need NamedNeed(const std::string& collection, const std::string& regex) {
  Need need;
  need.collection = collection;
  need.include = ParseList(regex);
  need.forms = Bit(format::Form::kSummary) | Bit(format::Form::kRaw);
  need.mode = "GLOBAL";
  return need;
}

}  // namespace luff::rules
