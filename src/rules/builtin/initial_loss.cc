#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/loss_call.h"
#include "rules/model_facts.h"
#include "rules/sample_needs.h"
#include "rules/select.h"

/// InitialLoss: docs/rules/initial_loss.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "InitialLoss";
constexpr const char* kPage = "docs/rules/initial_loss.md";

class InitialLoss final : public Rule {
 public:
  InitialLoss(double factor, std::int64_t samples) : factor_(factor), samples_(samples) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    if (!held_.empty() && info.mode_step >= held_.front().since_step + kHold) Tell(&info, sink);
    if (done_) return;
    loaded_ = loaded_ || LoadsWeights(view.rows);
    // Only the loss before the first update is that of the initialisation.
    if (info.update > 0 || info.mode_step > 8 || loaded_) {
      done_ = true;
      return;
    }
    for (const LossCall& call : reader_.Read(view)) Judge(view, call);
  }

  void OnEnd(const query::Trial&, Sink& sink) override { Tell(nullptr, sink); }

  [[nodiscard]] std::string SaveState() const override {
    Json held = Json::array();
    for (const Finding& finding : held_) held.push_back(ToJson(finding, "state"));
    Json kinds = Json::array();
    for (const auto& [name, kind] : kinds_) kinds.push_back({name, kind.sum, kind.uninformed, kind.count});
    Json reader;
    reader_.Save(&reader);
    return JsonText(
        Json{{"done", done_}, {"loaded", loaded_}, {"kinds", kinds}, {"reader", reader}, {"held", held}});
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) -> Status {
      done_ = json.at("done");
      loaded_ = json.at("loaded");
      reader_.Load(json.at("reader"));
      held_.clear();
      for (const Json& saved : json.at("held")) {
        auto parsed = ParseFindingUntrusted(saved.get<std::string>());
        if (!parsed.ok()) return parsed.status();
        held_.push_back(std::move(parsed).value().first);
      }
      kinds_.clear();
      for (const Json& saved : json.at("kinds"))
        kinds_[saved.at(0).get<std::string>()] = {saved.at(1), saved.at(2), saved.at(3)};
      return Status::Ok();
    });
  }

 private:
  struct Kind {
    double sum = 0, uninformed = 0;  // of losses of samples
    std::int64_t count = 0;
  };

  void Judge(const StepView& view, const LossCall& call) {
    if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.kind)) return;
    const Recognition found = reader_.Recognise(call);
    double uninformed = 0;  // of one sample, from a model that gives all classes one probability
    if (const auto classes = ClassRowsOf(call); classes && found.formula == Formula::kCrossEntropy) {
      uninformed = std::log(static_cast<double>(classes->classes));
    } else if (classes && found.formula == Formula::kNll) {
      for (std::size_t i = 0; i < classes->rows; ++i) {  // of what is not normalised the loss says nothing
        if (std::abs(LogSumExp(&classes->scores[i * classes->classes], classes->classes)) > 1e-2) return;
      }
      uninformed = std::log(static_cast<double>(classes->classes));
    } else if (found.formula == Formula::kBceWithLogits && found.by_value &&
               found.weights == Weights::kNone) {
      uninformed = std::log(2.0);
    } else {
      return;
    }
    Kind& kind = kinds_[call.kind];
    for (const double loss : found.per_sample) {
      if (!std::isfinite(loss)) return;
      kind.sum += loss;
      kind.uninformed += uninformed;
      ++kind.count;
    }
    if (kind.count < samples_ || kind.sum <= factor_ * kind.uninformed) return;
    const double mean = kind.sum / static_cast<double>(kind.count);
    const double expected = kind.uninformed / static_cast<double>(kind.count);
    Finding finding = FindingAt(kName, kPage, "too_high", view.trial, call.loss, call.worker, view.rows.info);
    finding.since_step = view.rows.info.mode_step;
    finding.what = fmt::format(
        "before the first update the loss is {:.3g}; a model that knows nothing has {:.3g}", mean, expected);
    finding.why =
        "the model begins with large confidence in random answers: first it has to unlearn them, and its "
        "first updates are far too large";
    finding.remedy =
        "lower the scale of the output layer's initialisation (its weights may be near 0), or normalise the "
        "inputs";
    finding.causes = {"an output layer initialised far too large", "inputs that are not normalised",
                      "weights meant for another width"};
    finding.evidence = {{"loss", mean}, {"uninformed_loss", expected}, {"ratio", mean / expected}};
    finding.threshold = fmt::format("{:g} times the loss of a model that knows nothing (Luff)", factor_);
    for (const Finding& held : held_) {
      if (held.tensor == finding.tensor) return;
    }
    held_.push_back(std::move(finding));
  }

  void Tell(const query::StepInfo* info, Sink& sink) {
    for (Finding& finding : held_) {
      if (info != nullptr) {
        finding.step = finding.last_step = info->mode_step;
        finding.global_step = info->global_step;
        finding.update = info->update;
      }
      sink.Report(std::move(finding));
    }
    held_.clear();
  }

  // Inputs and losses are judged by the second step: where one of them is the cause, it is told first.
  static constexpr std::int64_t kHold = 2;
  const double factor_;
  const std::int64_t samples_;
  bool done_ = false, loaded_ = false;
  LossReader reader_;
  std::map<std::string, Kind> kinds_;
  std::vector<Finding> held_;
};

}  // namespace

RuleSpec InitialLossSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 1;
  spec.page = kPage;
  spec.summary = "a first loss far above that of a model that knows nothing";
  spec.parameters = {
      {"factor", "10", "10", "times the loss of a model that gives all classes one probability"},
      {"samples", "8", "8", "samples before it is judged"},
  };
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(const double factor, ParseDouble(TextOf(parameters, "factor")));
    LUFF_ASSIGN_OR_RETURN(const std::int64_t samples, ParseInt(TextOf(parameters, "samples")));
    if (!(factor > 1)) return InvalidArgument("'factor' must be above 1");
    return std::unique_ptr<Rule>(new InitialLoss(factor, samples));
  };
  return spec;
}

}  // namespace luff::rules
