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

/// **Thread-compatible.** What several rules ask of one step, found once. Rules use it by LoadSample,
/// ModelInputsOf and LossReader.
class StepMemo {
 public:
  /// To be told before each step: what was read of the last one is forgotten.
  void Clear();

  /// See LoadSample.
  [[nodiscard]] std::shared_ptr<const SampleValues> Sample(const StepView& view,
                                                           const query::Trial::SummaryEntry& entry);
  /// The row of a tensor among the step's summaries; null if there is none.
  [[nodiscard]] const Summary* SummaryOf(const StepView& view, query::TensorId tensor, std::uint32_t worker);
  /// What the run's document "model" says by now; parsed when it has changed. Valid until Clear.
  [[nodiscard]] const ModelFacts& Facts(const query::Trial& trial) { return *SharedFacts(trial); }
  [[nodiscard]] const std::shared_ptr<const ModelFacts>& SharedFacts(const query::Trial& trial);
  /// See ModelInputsOf. Valid until Clear.
  [[nodiscard]] const std::vector<ModelInput>& ModelInputs(const StepView& view);
  /// See LossReader::Read. Valid until Clear.
  [[nodiscard]] const std::vector<LossCall>& LossCalls(const StepView& view);

 private:
  struct Asked {
    LossSettings settings;
    std::int64_t reads = 0, next = 1;  // a document may come late: asked again after 1, 2, 4 ... reads
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
  std::uint64_t facts_of_ = 0;  // hash of the text that they are from
  bool facts_fresh_ = false;    // the text was read at this step
};

}  // namespace luff::rules
