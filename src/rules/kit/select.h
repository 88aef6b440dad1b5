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

/// Helpers that rules share: choosing tensors as the original's parameters do, and steps of the trial.
namespace luff::rules {

/// Tensors named by `collection_names` and `tensor_regex` (their union; none of both: see `all_if_empty`).
class TensorSelector {
 public:
  [[nodiscard]] static Result<TensorSelector> Make(const Parameters& parameters, bool all_if_empty);
  [[nodiscard]] bool Selects(const query::Trial& trial, query::TensorId id);
  [[nodiscard]] bool empty() const noexcept { return collections_.empty() && patterns_.empty(); }
  /// The capture need of what is selected.
  [[nodiscard]] std::vector<Need> NeedsOf(const std::string& collection, std::uint32_t forms) const;

 private:
  std::vector<std::string> collections_;
  std::vector<std::string> regexes_;
  std::vector<Regex> patterns_;
  bool all_if_empty_ = false;
  std::vector<signed char> known_;  // by tensor id: 1 yes, 0 no, -1 not decided
};

/// What `parameters` select needs; nothing where they do not compile, which the making of the rule tells.
[[nodiscard]] std::vector<Need> SelectedNeeds(const Parameters& parameters, const std::string& collection,
                                              std::uint32_t forms, bool all_if_empty = false);

/// Tensors of a trial whose name matches, found as they appear.
class MatchingTensors {
 public:
  explicit MatchingTensors(Regex pattern) : pattern_(std::move(pattern)) {}
  [[nodiscard]] const std::vector<query::TensorId>& Of(const query::Trial& trial);

 private:
  Regex pattern_;
  std::size_t known_ = 0;  // tensors that were looked at
  std::vector<query::TensorId> tensors_;
};

/// The elements of a value; none if its type has no size.
[[nodiscard]] std::vector<double> NumbersOf(const query::Value& value);
/// Of a tensor at the step, from one worker or the first that has it. Nothing when it was not saved then.
[[nodiscard]] std::optional<std::vector<double>> ReadNumbers(
    const StepView& view, query::TensorId tensor, std::optional<std::uint32_t> worker = std::nullopt);

/// Value of a parameter, already completed. "None" counts as absent.
[[nodiscard]] bool HasParameter(const Parameters& parameters, const std::string& name);
[[nodiscard]] std::string TextOf(const Parameters& parameters, const std::string& name);
[[nodiscard]] bool IsOriginal(const Parameters& parameters);
/// A whole number, at least 1; `otherwise` where it is none.
[[nodiscard]] std::int64_t IntervalOf(const Parameters& parameters, const std::string& name = "interval",
                                      std::int64_t otherwise = 1);

/// "VanishingGradient" -> "docs/rules/vanishing_gradient.md".
[[nodiscard]] std::string PageOf(const std::string& rule);

/// A finding with the fields that every rule fills in the same way: rule, page, cause, tensor, mode, worker,
/// steps.
[[nodiscard]] Finding FindingAt(const char* rule, const char* cause, const query::Trial& trial,
                                query::TensorId tensor, std::uint32_t worker, const query::StepInfo& step);

/// Where nothing but the tensor and its worker is known.
struct TensorAt {
  query::TensorId tensor;
  std::uint32_t worker = 0;
};
/// The same, of a row of the step.
template <typename Entry>
[[nodiscard]] Finding FindingAt(const char* rule, const char* cause, const StepView& view,
                                const Entry& entry) {
  return FindingAt(rule, cause, view.trial, entry.tensor, entry.worker, view.rows.info);
}

constexpr std::uint32_t Bit(format::Form form) noexcept { return static_cast<std::uint32_t>(form); }

}  // namespace luff::rules
