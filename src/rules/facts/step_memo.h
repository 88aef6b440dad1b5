#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/sample.h"

namespace luff::rules {

class RunMachines;  // src/rules/facts/run_machines.h
class RunTraces;    // src/rules/facts/run_traces.h

/// **Thread-compatible.** Caches what several rules need from one step. Rules use it through LoadSample,
/// ModelInputsOf and LossReader.
class StepMemo {
 public:
  /// Call before each step: drops what was read from the previous one.
  void Clear();

  /// See LoadSample.
  [[nodiscard]] std::shared_ptr<const SampleValues> Sample(const StepView& view,
                                                           const query::Trial::SummaryEntry& entry);
  /// The row of a tensor among the step's summaries; null if there is none.
  [[nodiscard]] const Summary* SummaryOf(const StepView& view, query::TensorId tensor, std::uint32_t worker);
  /// The facts of the run's document "model" as of this step; parsed again only when it has changed. Valid
  /// until Clear.
  [[nodiscard]] const ModelFacts& Facts(const StepView& view) { return *SharedFacts(view); }
  [[nodiscard]] const std::shared_ptr<const ModelFacts>& SharedFacts(const StepView& view);
  /// See ModelInputsOf. Valid until Clear.
  [[nodiscard]] const std::vector<ModelInput>& ModelInputs(const StepView& view);
  /// See LossReader::Read. Valid until Clear.
  [[nodiscard]] const std::vector<LossCall>& LossCalls(const StepView& view);
  /// What the run's samplers measured; made at the first call, and never dropped.
  [[nodiscard]] const std::shared_ptr<RunMachines>& Machines();
  /// What the run's traces show; made at the first call, and never dropped.
  [[nodiscard]] const std::shared_ptr<RunTraces>& SharedTraces();
  /// The same, with all traces that are there at this step.
  void RefreshTraces(const StepView& view);

 private:
  struct Asked {
    LossSettings settings;
    std::int64_t reads = 0, next = 1;  // the document may come late: read at request 1, 2, 4, ...
  };
  [[nodiscard]] std::optional<query::TensorId> LossNamed(const query::Trial& trial, const std::string& name);
  [[nodiscard]] const LossSettings& SettingsOf(const query::Trial& trial, const std::string& kind);

  // Of this step.
  std::map<const query::Trial::SummaryEntry*, std::shared_ptr<const SampleValues>> samples_;
  std::unordered_map<std::uint64_t, const Summary*> summaries_;  // by worker and tensor
  std::optional<std::vector<ModelInput>> inputs_;
  std::optional<std::vector<LossCall>> calls_;
  // Kept from step to step.
  std::map<std::string, Asked> settings_;
  std::shared_ptr<const ModelFacts> facts_ = std::make_shared<const ModelFacts>();
  std::uint64_t facts_of_ = 0;  // hash of the text that facts_ was parsed from
  bool facts_fresh_ = false;    // the document was read at this step
  std::shared_ptr<RunMachines> machines_;
  std::shared_ptr<RunTraces> traces_;
  bool traces_fresh_ = false;  // they were read at this step
};

}  // namespace luff::rules
