#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// EvalShare: docs/rules/eval_share.md.
namespace luff::rules::eval_share {
namespace {

constexpr const char* kName = "EvalShare";
constexpr Param<PauseLimits> kParams[] = {ShareParam("0.4"), SecondsParam("20"), TimesParam("3")};

/// Time of evaluations that read a loader, by whatever phase, but not what other rules name. What a model in
/// eval() computes without one may be what it is trained on next: an agent that acts, or labels of its own.
class EvalShare final : public PauseRule {
 public:
  explicit EvalShare(const PauseLimits& limits) : PauseRule(kName, "eval", limits) {}

  void VisitFields(Fields& io) override {
    PauseRule::VisitFields(io);
    io("evaluates", evaluates_);
    io("trained", trained_);
    io("reads", reads_);
  }

 private:
  Pause Of(const query::StepInfo& step, const query::StepPhases& phases) override {
    using format::Phase;
    Pause pause;
    if (step.mode == query::Mode::kTrain) {
      trained_ = true;
      evaluates_ = reads_ = false;
      pause.seconds = SecondsOf(phases, Phase::kEval);
      pause.times = phases.begins[static_cast<std::size_t>(Phase::kEval)] != 0 ? 1 : 0;
      return pause;
    }
    if (phases.begins[static_cast<std::size_t>(Phase::kDataWait)] != 0) reads_ = true;
    if (!trained_ || !reads_ || (step.mode != query::Mode::kEval && step.mode != query::Mode::kPredict))
      return pause;
    pause.times = evaluates_ ? 0 : 1;
    evaluates_ = true;
    pause.seconds = static_cast<double>(phases.head.wall_ns) * 1e-9;
    for (const Phase other : {Phase::kCheckpoint, Phase::kDataStart, Phase::kCompile, Phase::kGc})
      pause.seconds -= SecondsOf(phases, other);
    return pause;
  }
  bool Describe(const query::Trial& trial, const Spent& spent, Finding* finding) override {
    (void)trial;
    const double every = static_cast<double>(spent.steps) / static_cast<double>(spent.times);
    finding->what = fmt::format("evaluating {}, about every {:.0f} steps", spent.Text(), every);
    finding->why = "evaluations take about as long as what is trained between them";
    finding->remedy =
        "evaluate half as often, or on a part of the data until the end; larger batches without gradients "
        "fit, "
        "too (torch.inference_mode())";
    finding->causes = {"evaluations more often than a decision depends on them",
                       "an evaluation set as large as the training's"};
    finding->saving = {
        spent.seconds / 2, 0, spent.seconds / 4, spent.seconds,
        fmt::format("half of the time of the evaluations: {} / 2", profile::TimeText(spent.seconds))};
    return true;
  }

  bool evaluates_ = false, trained_ = false;
  bool reads_ = false;  // the open evaluation, from a loader
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<EvalShare>(kName, kParams);
  spec.summary = "evaluations take as long as the training between them";
  return spec;
}

}  // namespace luff::rules::eval_share
