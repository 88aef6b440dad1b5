#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "luff/query/trial.h"
#include "luff/tensor/summary.h"

/// A trial in memory, for tests of rules, which build it step by step.
namespace luff::rules::testing {

class FakeTrial final : public query::Trial {
 public:
  // ---- building the trial

  /// How the run has ended: "completed" unless it is told, "stopped" or "failed".
  FakeTrial& Ends(std::string outcome) {
    outcome_ = std::move(outcome);
    return *this;
  }
  query::TensorId Define(const std::string& name, format::Role role, const std::string& module_type = "",
                         std::vector<std::string> collections = {}) {
    const auto [known, fresh] = ids_.emplace(name, static_cast<query::TensorId>(tensors_.size()));
    if (!fresh) return known->second;
    query::TensorInfo info;
    info.id = static_cast<query::TensorId>(tensors_.size());
    info.name = name;
    info.role = role;
    info.module_type = module_type;
    info.collections = std::move(collections);
    tensors_.push_back(std::move(info));
    return tensors_.back().id;
  }
  /// Begins the next step. `global_step` -1: one more than the last. `update` -1: the mode step.
  FakeTrial& Step(query::Mode mode = query::Mode::kTrain, std::int64_t global_step = -1,
                  std::int64_t update = -1) {
    StepRows rows;
    rows.info.mode = mode;
    rows.info.global_step = global_step >= 0 ? global_step
                            : steps_.empty() ? 0
                                             : steps_.back().info.global_step + 1;
    rows.info.mode_step = mode_steps_[mode]++;
    rows.info.update = update >= 0 ? update : rows.info.mode_step;
    steps_.push_back(std::move(rows));
    return *this;
  }
  FakeTrial& Loss(double value, const std::string& name = "CrossEntropyLoss_output_0") {
    steps_.back().scalars.push_back({Define(name, format::Role::kLoss, "", {"losses"}), 0, value});
    return *this;
  }
  FakeTrial& Scalar(const std::string& name, format::Role role, double value) {
    steps_.back().scalars.push_back({Define(name, role), 0, value});
    return *this;
  }
  /// Adds the summary and the raw value of the given numbers.
  FakeTrial& Tensor(const std::string& name, format::Role role, const std::vector<double>& values,
                    std::vector<std::string> collections = {}) {
    const query::TensorId id = Define(name, role, "", std::move(collections));
    Summary summary;
    summary.count = values.size();
    double low = HUGE_VAL;
    double high = -HUGE_VAL;
    for (const double value : values) {
      if (std::isnan(value)) {
        ++summary.nan_count;
      } else if (std::isinf(value)) {
        ++summary.inf_count;
      } else {
        summary.sum += value;
        summary.sum_sq += value * value;
        summary.abs_sum += std::abs(value);
        summary.zero_count += value == 0 ? 1 : 0;
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
    summary.min_bits = std::bit_cast<std::uint64_t>(low);
    summary.max_bits = std::bit_cast<std::uint64_t>(high);
    steps_.back().summaries.push_back({id, 0, DType::kFloat64, summary});
    values_[{id, steps_.back().info.global_step}] = values;
    return *this;
  }
  /// Sets the type of the tensor that was added last.
  FakeTrial& AsType(DType dtype) {
    steps_.back().summaries.back().dtype = dtype;
    return *this;
  }
  FakeTrial& Difference(const std::string& name, double l1, double norm, double previous_norm,
                        std::uint64_t changed) {
    FormEntry entry{};
    entry.tensor = Define(name, format::Role::kWeight);
    entry.row.form = static_cast<std::uint16_t>(format::Form::kDifference);
    entry.row.values[0] = l1;
    entry.row.values[1] = norm * norm;
    entry.row.values[2] = norm;
    entry.row.values[3] = static_cast<double>(changed);
    entry.row.values[4] = previous_norm;
    entry.row.values[5] = previous_norm * previous_norm;
    steps_.back().forms.push_back(entry);
    return *this;
  }
  FakeTrial& Units(const std::string& name, std::vector<std::uint64_t> positive,
                   std::uint64_t values_per_unit) {
    UnitEntry entry{Define(name, format::Role::kOutput, "ReLU"), 0, {}};
    entry.counts.values_per_unit = values_per_unit;
    for (const std::uint64_t count : positive) entry.counts.zero.push_back(values_per_unit - count);
    entry.counts.sum.resize(positive.size());
    entry.counts.positive = std::move(positive);
    steps_.back().units.push_back(std::move(entry));
    return *this;
  }
  /// Adds a sample (docs/spec/evidence.md), with values in row-major order. `global_shape`: shape of the full
  /// tensor, if rows were left out. With empty `values` only the shape can be read.
  FakeTrial& Sample(const std::string& name, std::vector<std::int64_t> shape,
                    const std::vector<double>& values, DType dtype = DType::kFloat32,
                    std::vector<std::int64_t> global_shape = {}) {
    Tensor(name, format::Role::kSample, values).AsType(dtype);
    ValueShape known;
    known.dtype = DType::kFloat64;
    known.shape = std::move(shape);
    known.global_shape = std::move(global_shape);
    known.global_offset.assign(known.global_shape.size(), 0);
    shapes_[{steps_.back().summaries.back().tensor, steps_.back().info.global_step}] = std::move(known);
    return *this;
  }
  /// Sets the module of a tensor.
  FakeTrial& Place(const std::string& name, const std::string& module_path, const std::string& type = "") {
    for (query::TensorInfo& tensor : tensors_) {
      if (tensor.name != name) continue;
      tensor.module_path = module_path;
      if (!type.empty()) tensor.module_type = type;
    }
    return *this;
  }
  /// Records that a module has run in this step, by the shape of its output.
  FakeTrial& Ran(const std::string& module_path) {
    const std::string name = module_path + "_output_0";
    FormEntry entry{};
    entry.tensor = Define(name, format::Role::kOutput);
    entry.row.form = static_cast<std::uint16_t>(format::Form::kShape);
    Place(name, module_path);
    steps_.back().forms.push_back(entry);
    return *this;
  }
  FakeTrial& EventJson(const std::string& json) {
    steps_.back().event_json.push_back(json);
    return *this;
  }
  /// Where the step's time went, in milliseconds: phases, and the rest. CPU and run-queue times may be given.
  FakeTrial& Phases(const std::map<format::Phase, double>& ms, double cpu_ms = -1, double queue_ms = -1,
                    std::uint32_t worker = 0) {
    const auto ns = [](double value) { return value < 0 ? -1 : static_cast<std::int64_t>(value * 1e6); };
    query::StepPhases phases;
    phases.worker = worker;
    phases.head = {0, ns(cpu_ms), ns(queue_ms), -1, 1, 1, format::kNoId, 0};
    for (const auto& [phase, took] : ms) {
      phases.ns[static_cast<std::size_t>(phase)] = ns(took);
      phases.begins[static_cast<std::size_t>(phase)] = 1;
      phases.head.wall_ns += ns(took);
    }
    steps_.back().phases.push_back(phases);
    return *this;
  }
  /// The step has times of a device, which had done all of the step before when it began, or had not.
  FakeTrial& OnDevice(double ms, bool idle) {
    query::StepPhases& phases = steps_.back().phases.back();
    phases.head.device_ns = static_cast<std::int64_t>(ms * 1e6);
    phases.device_ns[static_cast<std::size_t>(format::Phase::kForward)] = phases.head.device_ns;
    phases.idle_steps = idle ? 1 : 0;
    return *this;
  }
  /// Says whose batch the step's wait was for.
  FakeTrial& Wait(format::WaitSubject of, double ms) {
    steps_.back().phases.back().waits.push_back({of, 1, static_cast<std::int64_t>(ms * 1e6)});
    return *this;
  }
  FakeTrial& Event(format::EventKind kind, std::uint32_t subject = 0, std::uint64_t argument = 0) {
    query::EventAt event;
    event.global_step = steps_.back().info.global_step;
    event.row.kind = static_cast<std::uint16_t>(kind);
    event.row.subject = subject;
    event.row.argument = argument;
    steps_.back().events.push_back(event);
    return *this;
  }
  /// The rows of the newest step, for data that no function above adds.
  [[nodiscard]] StepRows& Last() { return steps_.back(); }
  /// Directory of a run whose samples of machines belong to this trial.
  void SetPath(std::string path) { path_ = std::move(path); }
  void SetDocument(const std::string& name, const std::string& json) { documents_[name] = json; }
  /// Counts the queries of this trial.
  struct Asked {
    std::size_t tensors = 0, names_missed = 0, documents = 0, values = 0;
  };
  [[nodiscard]] const Asked& asked() const noexcept { return asked_; }

  // ---- changing the trial

  [[nodiscard]] std::vector<StepRows>& steps() noexcept { return steps_; }
  [[nodiscard]] std::vector<double>* ValueOf(query::TensorId id, std::int64_t global_step) {
    const auto it = values_.find({id, global_step});
    return it == values_.end() ? nullptr : &it->second;
  }
  /// Copies another trial: rows, the document "model", and the values of samples and inputs. One worker only.
  static FakeTrial CopyOf(const query::Trial& other) {
    FakeTrial copy;
    for (std::size_t id = 0; id < other.tensor_count(); ++id) {
      copy.tensors_.push_back(other.tensor(static_cast<query::TensorId>(id)));
      copy.ids_.emplace(copy.tensors_.back().name, copy.tensors_.back().id);
    }
    copy.documents_["model"] = other.Document("model");
    for (std::size_t n = 0; n < other.step_count(); ++n) {
      StepRows& rows = copy.steps_.emplace_back();
      if (!other.ReadStepRows(n, &rows).ok()) continue;
      const std::int64_t step = rows.info.global_step;
      for (const auto& entry : rows.summaries) {
        const format::Role role = other.tensor(entry.tensor).role;
        if (role != format::Role::kSample && role != format::Role::kInput) continue;
        const auto value = other.ReadValue(entry.tensor, step, query::Mode::kGlobal, entry.worker);
        const auto shape = other.Shape(entry.tensor, step, query::Mode::kGlobal, entry.worker);
        if (!value.ok() || !shape.ok() || DTypeSize(value->dtype) == 0) continue;
        std::vector<double>& numbers = copy.values_[{entry.tensor, step}];
        numbers.resize(value->bytes.size() / DTypeSize(value->dtype));
        ToFloat64(value->dtype, value->bytes.data(), numbers.size(), numbers.data());
        copy.shapes_[{entry.tensor, step}] = *shape;
        copy.shapes_[{entry.tensor, step}].shape = value->shape;
      }
    }
    return copy;
  }
  /// Renames tensors, also where their quoted names occur in documents and events.
  template <typename NewName>
  void Rename(NewName new_name) {
    ids_.clear();
    for (query::TensorInfo& tensor : tensors_) {
      const std::string fresh = new_name(tensor);
      if (fresh != tensor.name) {
        for (auto& [name, text] : documents_) Replace(&text, tensor.name, fresh);
        for (StepRows& rows : steps_) {
          for (std::string& text : rows.event_json) Replace(&text, tensor.name, fresh);
        }
      }
      tensor.name = fresh;
      ids_.emplace(fresh, tensor.id);
    }
  }

  /// Makes only the first `count` steps complete, as in a live run.
  void ShowOnly(std::size_t count) { shown_ = count; }

  // ---- the interface

  Result<bool> Refresh() override { return false; }
  Result<bool> WaitForNews(std::chrono::milliseconds) override { return false; }
  Status WaitForStep(std::int64_t, query::Mode, std::chrono::milliseconds) override { return Status::Ok(); }
  [[nodiscard]] bool loaded_all_steps() const noexcept override { return step_count() == steps_.size(); }
  [[nodiscard]] const std::string& path() const noexcept override { return path_; }
  [[nodiscard]] std::vector<query::WorkerInfo> workers() const override { return {}; }
  [[nodiscard]] std::uint32_t world_size() const noexcept override { return 1; }
  [[nodiscard]] std::size_t tensor_count() const noexcept override { return tensors_.size(); }
  [[nodiscard]] const query::TensorInfo& tensor(query::TensorId id) const override {
    ++asked_.tensors;
    return tensors_.at(id);
  }
  [[nodiscard]] std::optional<query::TensorId> TensorNamed(std::string_view name) const override {
    const auto known = ids_.find(std::string(name));
    return known == ids_.end() ? std::nullopt : std::optional(known->second);
  }
  [[nodiscard]] Result<query::TensorId> FindTensor(std::string_view name) const override {
    if (const auto id = TensorNamed(name)) return *id;
    ++asked_.names_missed;
    return NotFound("no tensor " + std::string(name));
  }
  [[nodiscard]] Result<std::vector<std::string>> TensorNames(const NameFilter&) const override {
    return std::vector<std::string>{};
  }
  [[nodiscard]] std::vector<std::string> CollectionNames() const override { return {}; }
  [[nodiscard]] std::string Document(std::string_view name) const override {
    ++asked_.documents;
    const auto it = documents_.find(std::string(name));
    return it == documents_.end() ? std::string() : it->second;
  }
  [[nodiscard]] std::vector<std::int64_t> Steps(query::Mode) const override { return {}; }
  [[nodiscard]] Result<std::vector<std::int64_t>> TensorSteps(query::TensorId, query::Mode) const override {
    return std::vector<std::int64_t>{};
  }
  [[nodiscard]] std::size_t step_count() const noexcept override { return std::min(shown_, steps_.size()); }
  [[nodiscard]] query::StepInfo step_at(std::size_t n) const override { return steps_.at(n).info; }
  [[nodiscard]] Result<query::StepInfo> FindStep(std::int64_t, query::Mode) const override {
    return OutOfRange("not here");
  }
  [[nodiscard]] query::StepState StateOfStep(std::int64_t, query::Mode) const override {
    return query::StepState::kAvailable;
  }
  [[nodiscard]] Result<query::Value> ReadValue(query::TensorId id, std::int64_t step, query::Mode,
                                               std::optional<std::uint32_t>) const override {
    ++asked_.values;
    const auto it = values_.find({id, step});
    if (it == values_.end()) return OutOfRange("not saved");
    auto owner = std::make_shared<std::vector<double>>(it->second);
    query::Value value;
    value.dtype = DType::kFloat64;
    const auto shape = shapes_.find({id, step});
    value.shape = shape != shapes_.end()
                      ? shape->second.shape
                      : std::vector<std::int64_t>{static_cast<std::int64_t>(owner->size())};
    value.bytes = {reinterpret_cast<const std::byte*>(owner->data()), owner->size() * sizeof(double)};
    value.owner = owner;
    return value;
  }
  [[nodiscard]] Result<Summary> ReadSummary(query::TensorId, std::int64_t, query::Mode,
                                            std::optional<std::uint32_t>) const override {
    return OutOfRange("not here");
  }
  [[nodiscard]] Result<query::SummaryAt> ReadSummaryAt(query::TensorId, std::int64_t, query::Mode,
                                                       std::optional<std::uint32_t>) const override {
    return OutOfRange("not here");
  }
  [[nodiscard]] Result<std::shared_ptr<const query::SummaryColumns>> SharedSummaries(
      query::TensorId, query::Mode, std::optional<std::uint32_t>) const override {
    return std::make_shared<const query::SummaryColumns>();
  }
  [[nodiscard]] Result<format::FormRow> ReadForm(query::TensorId, format::Form, std::int64_t, query::Mode,
                                                 std::optional<std::uint32_t>) const override {
    return OutOfRange("not here");
  }
  [[nodiscard]] Result<UnitCounts> Units(query::TensorId, std::int64_t, query::Mode,
                                         std::optional<std::uint32_t>) const override {
    return OutOfRange("not here");
  }
  [[nodiscard]] Result<ValueShape> Shape(query::TensorId id, std::int64_t step, query::Mode,
                                         std::optional<std::uint32_t>) const override {
    const auto it = shapes_.find({id, step});
    if (it == shapes_.end()) return OutOfRange("not here");
    return it->second;
  }
  [[nodiscard]] Result<Stack> ReadStack(query::TensorId, query::Mode, std::optional<std::uint32_t>,
                                        std::uint64_t) const override {
    return OutOfRange("not here");
  }
  [[nodiscard]] Result<std::vector<std::int64_t>> ValueSteps(query::TensorId, query::Mode,
                                                             std::optional<std::uint32_t>) const override {
    return std::vector<std::int64_t>{};
  }
  [[nodiscard]] Result<std::vector<std::uint32_t>> TensorWorkers(query::TensorId, std::int64_t,
                                                                 query::Mode) const override {
    return std::vector<std::uint32_t>{};
  }
  [[nodiscard]] std::vector<std::string> Problems() const override { return {}; }
  [[nodiscard]] std::vector<JsonEvent> JsonEvents() const override { return {}; }
  [[nodiscard]] std::int64_t created_unix_ns() const noexcept override { return 0; }
  [[nodiscard]] Result<query::SummaryColumns> Summaries(query::TensorId, query::Mode,
                                                        std::optional<std::uint32_t>) const override {
    return query::SummaryColumns{};
  }
  [[nodiscard]] Result<std::vector<query::ScalarAt>> Scalars(query::TensorId, query::Mode,
                                                             std::optional<std::uint32_t>) const override {
    return std::vector<query::ScalarAt>{};
  }
  [[nodiscard]] Result<SparseHistogram> Histogram(query::TensorId, std::int64_t, query::Mode,
                                                  std::optional<std::uint32_t>) const override {
    return OutOfRange("not here");
  }
  [[nodiscard]] Status ReadStepRows(std::size_t n, StepRows* out) const override {
    *out = steps_.at(n);
    return Status::Ok();
  }
  [[nodiscard]] std::vector<query::GapInfo> Gaps() const override { return {}; }
  [[nodiscard]] std::vector<query::EventAt> Events(query::Mode) const override { return {}; }
  [[nodiscard]] std::vector<std::pair<std::uint32_t, format::AckRow>> Acks() const override { return {}; }
  [[nodiscard]] Outcome outcome() const override { return {outcome_, ""}; }

 private:
  static void Replace(std::string* text, const std::string& name, const std::string& fresh) {
    const std::string old = '"' + name + '"';
    for (std::size_t at = 0; (at = text->find(old, at)) != std::string::npos; at += fresh.size() + 2)
      text->replace(at, old.size(), '"' + fresh + '"');
  }

  std::string outcome_ = "completed";
  std::vector<query::TensorInfo> tensors_;
  std::map<std::string, query::TensorId> ids_;
  std::vector<StepRows> steps_;
  std::map<query::Mode, std::int64_t> mode_steps_;
  std::map<std::pair<query::TensorId, std::int64_t>, std::vector<double>> values_;
  std::map<std::pair<query::TensorId, std::int64_t>, ValueShape> shapes_;
  std::map<std::string, std::string> documents_;
  std::size_t shown_ = SIZE_MAX;
  mutable Asked asked_;
  std::string path_ = "memory";
};

}  // namespace luff::rules::testing
