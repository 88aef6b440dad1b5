#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/regex.h"
#include "luff/base/result.h"
#include "luff/query/trial.h"
#include "luff/rules/rule.h"
#include "rules/kit/step_index.h"

/// Helpers shared by rules: selecting tensors as the original's parameters do, reading values and parameters.
namespace luff::rules {

/// Selects the union of the tensors that `collection_names` and `tensor_regex` name. If both are empty, it
/// selects all tensors with `all_if_empty`, otherwise none.
class TensorSelector {
 public:
  [[nodiscard]] static Result<TensorSelector> Make(const Parameters& parameters, bool all_if_empty);
  [[nodiscard]] bool Selects(const query::Trial& trial, query::TensorId id);
  [[nodiscard]] bool empty() const noexcept { return collections_.empty() && patterns_.empty(); }
  /// Capture needs of the selected tensors.
  [[nodiscard]] std::vector<Need> NeedsOf(const std::string& collection, std::uint32_t forms) const;

 private:
  std::vector<std::string> collections_;
  std::vector<std::string> regexes_;
  std::vector<Regex> patterns_;
  bool all_if_empty_ = false;
  std::vector<signed char> known_;  // by tensor id: 1 yes, 0 no, -1 not decided
};

/// Capture needs of the tensors that `parameters` select. Empty if a pattern does not compile; making the
/// rule reports that error.
[[nodiscard]] std::vector<Need> SelectedNeeds(const Parameters& parameters, const std::string& collection,
                                              std::uint32_t forms, bool all_if_empty = false);

/// Tensors of a trial whose name matches. New tensors are added as they appear.
class MatchingTensors {
 public:
  explicit MatchingTensors(Regex pattern) : pattern_(std::move(pattern)) {}
  [[nodiscard]] const std::vector<query::TensorId>& Of(const query::Trial& trial);

 private:
  Regex pattern_;
  std::size_t known_ = 0;  // tensors checked so far
  std::vector<query::TensorId> tensors_;
};

/// The elements of a value; empty if its type has no fixed size.
[[nodiscard]] std::vector<double> NumbersOf(const query::Value& value);
/// Reads a tensor at the step, from one worker or the first that has it. Returns nullopt if it was not saved
/// at this step.
[[nodiscard]] std::optional<std::vector<double>> ReadNumbers(
    const StepView& view, query::TensorId tensor, std::optional<std::uint32_t> worker = std::nullopt);

/// Whether a parameter has a value. "" and "None" count as absent.
[[nodiscard]] bool HasParameter(const Parameters& parameters, const std::string& name);
/// Text of a parameter; "" if it is absent.
[[nodiscard]] std::string TextOf(const Parameters& parameters, const std::string& name);
[[nodiscard]] bool IsOriginal(const Parameters& parameters);
/// The parameter as a whole number, raised to at least 1; `otherwise` if it does not parse.
[[nodiscard]] std::int64_t IntervalOf(const Parameters& parameters, const std::string& name = "interval",
                                      std::int64_t otherwise = 1);

/// "VanishingGradient" -> "docs/rules/vanishing_gradient.md".
[[nodiscard]] std::string PageOf(const std::string& rule);

/// A finding with the fields that every rule fills in the same way: rule, page, cause, tensor, mode, worker,
/// steps.
[[nodiscard]] Finding FindingAt(const char* rule, const char* cause, const query::Trial& trial,
                                query::TensorId tensor, std::uint32_t worker, const query::StepInfo& step);

/// A tensor and its worker, in place of a row.
struct TensorAt {
  query::TensorId tensor;
  std::uint32_t worker = 0;
};
/// The same for a row of the step.
template <typename Entry>
[[nodiscard]] Finding FindingAt(const char* rule, const char* cause, const StepView& view,
                                const Entry& entry) {
  return FindingAt(rule, cause, view.trial, entry.tensor, entry.worker, view.rows.info);
}

constexpr std::uint32_t Bit(format::Form form) noexcept { return static_cast<std::uint32_t>(form); }

}  // namespace luff::rules
