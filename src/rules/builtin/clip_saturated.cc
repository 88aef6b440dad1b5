#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/loss_tracker.h"
#include "rules/select.h"

/// ClipSaturated: docs/rules/clip_saturated.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "ClipSaturated";
constexpr const char* kPage = "docs/rules/clip_saturated.md";
constexpr const char* kCause = "always";
constexpr const char* kNorm = "clip/norm";

struct Limits {
  double factor = 50;
  std::int64_t steps = 64;
};

// Every one of the last `steps` clipped gradients was more than `factor` times too large, and no loss has
// improved.
class ClipSaturated final : public Rule {
 public:
  explicit ClipSaturated(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    tracker_.OnStep(view.trial, view.rows);
    double norm = std::nan("");
    query::TensorId tensor = format::kNoId;
    std::uint32_t worker = 0;
    for (const auto& entry : view.rows.scalars) {
      const std::string& name = view.trial.tensor(entry.tensor).name;
      if (name == "clip/limit") limit_ = entry.value;
      if (name == kNorm && tensor == format::kNoId) {
        norm = entry.value;
        tensor = entry.tensor;
        worker = entry.worker;
      }
    }
    if (tensor == format::kNoId || !std::isfinite(norm) || !(limit_ > 0)) return;
    const double factor = norm / limit_;
    if (!(factor > limits_.factor)) {
      row_ = 0;
      if (open_) sink.Heal(kCause, kNorm, info.mode_step);
      open_ = false;
      return;
    }
    if (row_ == 0) since_ = info.mode_step;
    least_ = row_ == 0 ? factor : std::min(least_, factor);
    ++row_;
    if (row_ < limits_.steps || !tracker_.EnoughEvidence(limits_.steps) || tracker_.AnyImproved(0.02)) return;
    open_ = true;
    Finding finding = FindingAt(kName, kPage, kCause, view.trial, tensor, worker, info);
    finding.since_step = since_;
    finding.what =
        fmt::format("clipping divides every gradient by {:.2g} and more, {} times in a row", least_, row_);
    finding.why =
        "the limit decides the length of each step, not the gradient: with plain SGD the learning rate is in "
        "effect so many times smaller, and the loss does not fall";
    finding.remedy =
        "raise the limit to about the usual norm (see the series clip/norm), or find out why gradients are "
        "so large";
    finding.causes = {"limit far too small", "a loss that is summed instead of averaged",
                      "inputs or targets that are not normalised"};
    finding.evidence = {{"smallest_factor", least_}, {"norm", norm}, {"limit", limit_}};
    finding.threshold =
        fmt::format("norm above {:g} times the limit in {} clipped steps in a row, and no better loss (Luff)",
                    limits_.factor, limits_.steps);
    sink.Report(std::move(finding));
  }

  [[nodiscard]] std::string SaveState() const override {
    Json json;
    tracker_.Save(&json["losses"]);
    json["clip"] = {limit_, row_, since_, least_, open_};
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      tracker_.Load(json.at("losses"));
      const Json& clip = json.at("clip");
      limit_ = clip.at(0);
      row_ = clip.at(1);
      since_ = clip.at(2);
      least_ = clip.at(3);
      open_ = clip.at(4);
    });
  }

 private:
  const Limits limits_;
  LossTracker tracker_;
  double limit_ = 0, least_ = 0;
  std::int64_t row_ = 0, since_ = 0;
  bool open_ = false;
};

}  // namespace

RuleSpec ClipSaturatedSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = kPage;
  spec.summary = "gradient clipping cuts every step by a large factor, and nothing is learnt";
  spec.parameters = {
      {"factor", "50", "50", "norm of the gradients over the limit (Luff)"},
      {"steps", "64", "64", "clipped steps in a row (Luff)"},
  };
  spec.needs = [](const Parameters&) -> std::vector<Need> { return {}; };  // settings are always recorded
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.factor, ParseDouble(TextOf(parameters, "factor")));
    LUFF_ASSIGN_OR_RETURN(limits.steps, ParseInt(TextOf(parameters, "steps")));
    if (limits.steps < 1 || !(limits.factor > 0))
      return InvalidArgument("'steps' must be at least 1 and 'factor' above 0");
    return std::unique_ptr<Rule>(new ClipSaturated(limits));
  };
  return spec;
}

}  // namespace luff::rules
