#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "luff/query/trial.h"

namespace luff::rules {

/// A row of a step, with its tensor.
template <typename Entry>
struct IndexedRow {
  const Entry& entry;
  const query::TensorInfo& tensor;
};

/// Change of a weight since its last capture. `l1`, `sum_sq` and `largest` are over the changes of its
/// elements, `changed` is the number of elements that changed, `previous_...` describe the weight before the
/// change.
struct WeightChange {
  query::TensorId tensor;
  std::uint32_t worker;
  const std::string& name;
  double l1, sum_sq, largest, changed, previous_l1, previous_sum_sq;
};

/// One value of a loss at one step.
struct LossValue {
  query::TensorId tensor;
  std::uint32_t worker;
  double value;
};

/// **Thread-compatible.** The rows of one step, grouped by role and kind once for all rules. Rows keep the
/// order of the step. Results are valid until the next Build and as long as the step's rows.
///
///     for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) ...
class StepIndex {
 public:
  template <typename Entry>
  using Rows = std::span<const IndexedRow<Entry>>;
  using Json = nlohmann::json;

  StepIndex() = default;
  StepIndex(const query::Trial& trial, const query::Trial::StepRows& rows) { Build(trial, rows); }
  void Build(const query::Trial& trial, const query::Trial::StepRows& rows);

  [[nodiscard]] Rows<query::Trial::SummaryEntry> summaries(query::Role role) const noexcept {
    return summaries_[Place(role)];
  }
  [[nodiscard]] Rows<query::Trial::ScalarEntry> scalars(query::Role role) const noexcept {
    return scalars_[Place(role)];
  }
  [[nodiscard]] Rows<query::Trial::UnitEntry> units(query::Role role) const noexcept {
    return units_[Place(role)];
  }
  [[nodiscard]] std::span<const WeightChange> weight_changes() const noexcept { return changes_; }
  /// Losses of the step: scalars and one-element summaries. A loss that both forms hold appears once.
  [[nodiscard]] const std::vector<LossValue>& losses() const noexcept { return losses_; }

  /// Events of a kind, of all workers.
  [[nodiscard]] std::span<const query::EventAt> events(format::EventKind kind) const noexcept {
    const auto place = static_cast<std::size_t>(kind);
    return place < kEventKinds ? events_[place] : std::span<const query::EventAt>();
  }
  /// The worker of the step's first event; 0 if it has none.
  [[nodiscard]] std::uint32_t first_worker() const noexcept { return first_worker_; }
  /// JSON events (docs/spec/evidence.md) of a kind, parsed. Malformed ones are skipped.
  [[nodiscard]] std::span<const std::shared_ptr<const Json>> json_events(std::string_view kind) const;

 private:
  static constexpr std::size_t kRoles = 16, kEventKinds = 16;
  template <typename Entry>
  using ByRole = std::array<std::vector<IndexedRow<Entry>>, kRoles>;
  static std::size_t Place(query::Role role) noexcept {  // roles of newer versions count as the first
    const auto place = static_cast<std::size_t>(role);
    return place < kRoles ? place : 0;
  }
  void FindLosses();

  ByRole<query::Trial::SummaryEntry> summaries_;
  ByRole<query::Trial::ScalarEntry> scalars_;
  ByRole<query::Trial::UnitEntry> units_;
  std::vector<WeightChange> changes_;
  std::vector<LossValue> losses_;
  std::array<std::vector<query::EventAt>, kEventKinds> events_;
  std::uint32_t first_worker_ = 0;
  std::unordered_map<std::string, std::vector<std::shared_ptr<const Json>>> json_events_;
};

}  // namespace luff::rules
