#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_facts.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// InitialLoss: docs/rules/initial_loss.md.
namespace luff::rules::initial_loss {
namespace {

constexpr const char* kName = "InitialLoss";

struct Limits {
  double factor;
  std::int64_t samples;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::factor, "factor", "10", "times the loss of a model that gives all classes one probability",
     Above(1)},
    {&Limits::samples, "samples", "8", "samples before it is judged"},
};

class InitialLoss final : public KeptRule {
 public:
  explicit InitialLoss(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    if (!held_.empty() && info.mode_step >= held_.front().since_step + kHold) Tell(&info, sink);
    if (done_) return;
    loaded_ = loaded_ || LoadsWeights(view.index);
    // Only losses before the first update belong to the initialisation.
    if (info.update > 0 || info.mode_step > 8 || loaded_) {
      done_ = true;
      return;
    }
    for (const LossCall& call : reader_.Read(view)) Judge(view, call);
  }

  void OnEnd(const query::Trial&, Sink& sink) override { Tell(nullptr, sink); }

  void VisitFields(Fields& io) override {
    std::vector<std::string> held;
    for (const Finding& finding : held_) held.push_back(ToJson(finding, "state"));
    io("done", done_);
    io("loaded", loaded_);
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("reader", reader_);
    io("held", held);
    if (!io.loading()) return;
    held_.clear();
    for (const std::string& text : held) {
      auto parsed = ParseFindingUntrusted(text);
      io.Check(parsed.ok(), "a finding");
      if (parsed.ok()) held_.push_back(std::move(parsed).value().first);
    }
  }

 private:
  struct Kind {
    double sum = 0, uninformed = 0;  // sums over samples
    std::int64_t count = 0;
    void VisitFields(Fields& io) {
      io("sum", sum);
      io("uninformed", uninformed);
      io("count", count);
    }
  };

  void Judge(const StepView& view, const LossCall& call) {
    if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.kind)) return;
    const Recognition found = reader_.Recognise(call);
    double uninformed = 0;  // of one sample, from a model that gives all classes one probability
    if (const auto classes = ClassRowsOf(call); classes && found.formula == Formula::kCrossEntropy) {
      uninformed = std::log(static_cast<double>(classes->classes));
    } else if (classes && found.formula == Formula::kNll) {
      for (std::size_t i = 0; i < classes->rows; ++i) {  // unless rows are normalised, the loss says nothing
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
    if (kind.count < limits_.samples || kind.sum <= limits_.factor * kind.uninformed) return;
    const double mean = kind.sum / static_cast<double>(kind.count);
    const double expected = kind.uninformed / static_cast<double>(kind.count);
    Finding finding = FindingAt(kName, "too_high", view, TensorAt{call.loss, call.worker});
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
    finding.threshold =
        fmt::format("{:g} times the loss of a model that knows nothing (Luff)", limits_.factor);
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

  // Steps for which a finding is held back. Rules on inputs and losses judge by the second step, so if one of
  // these is the cause, they report it first.
  static constexpr std::int64_t kHold = 2;
  const Limits limits_;
  bool done_ = false, loaded_ = false;
  LossReader reader_;
  std::map<std::string, Kind> kinds_;
  std::vector<Finding> held_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<InitialLoss>(kName, kParams);
  spec.version = 1;
  spec.summary = "a first loss far above that of a model that knows nothing";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::initial_loss
