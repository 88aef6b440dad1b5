#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/profile/input.h"
#include "rules/facts/pause_rule.h"

/// FirstStepsSlow: docs/rules/first_steps_slow.md.
namespace luff::rules::first_steps_slow {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "FirstStepsSlow";
constexpr std::int64_t kFirst = 20;  // steps

struct Limits {
  double share, seconds, minutes;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.1", "of the whole run's time (Luff)", Between(0, 1)},
    {&Limits::seconds, "seconds", "180", "least time that the start takes, in seconds (Luff)", AtLeast(0)},
    {&Limits::minutes, "minutes", "20",
     "after which it is said while the job runs, as smdebug's MaxInitializationTime has it", Above(0)},
};

/// Seconds since the process began when the run was opened, without those for which its thread had no core; 0
/// if the document does not say.
double AgeOf(std::string_view environment_json) {
  const Json json = TryParseJson(environment_json, {1U << 20U, 8});
  if (!json.is_object()) return 0;
  const auto number = [&](const char* name) {
    const auto at = json.find(name);
    return at != json.end() && at->is_number() ? std::clamp(at->get<double>(), 0.0, 1e9) : 0;
  };
  return std::max(number("age_s") - number("age_run_queue_s"), 0.0);
}

class FirstStepsSlow final : public KeptRule {
 public:
  explicit FirstStepsSlow(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    const query::StepPhases* phases = worker_.In(view);
    if (phases == nullptr) return;
    const std::int64_t queue_ns =
        std::clamp<std::int64_t>(phases->head.run_queue_ns, 0, phases->head.wall_ns);
    const double wall = static_cast<double>(phases->head.wall_ns - queue_ns) * 1e-9;
    run_s_ += wall;
    const bool trains = info.mode == query::Mode::kTrain;
    if (steps_ < kFirst && !trains) {
      before_s_ += wall;  // an evaluation at the begin is asked for
    } else if (steps_ < kFirst) {
      first_s_ += wall;
      if (steps_ >= kFirst / 2) {
        second_half_s_ += wall;
        second_half_ += phases->head.steps;
      }
      compile_s_ += SecondsOf(*phases, format::Phase::kCompile);
      load_s_ += SecondsOf(*phases, format::Phase::kDataStart);
    } else if (trains) {
      later_s_ += wall;
    }
    if (!trains) return;
    steps_ += phases->head.steps;
    step_ = info.mode_step;
    global_ = info.global_step;
    update_ = info.update;
    if (steps_ >= kFirst && !looked_) {
      looked_ = true;
      // Steps that each take long are no slow start: half of them says what is usual.
      const double usual = second_half_ > 0 ? second_half_s_ / static_cast<double>(second_half_) : 0;
      if (AgeOf(view.trial.Document("environment")) + first_s_ - kFirst * usual >= 60 * limits_.minutes)
        Tell(view.trial, usual, sink);
    }
  }

  void OnEnd(const query::Trial& trial, Sink& sink) override {
    if (steps_ < 3 * kFirst) return;
    const double age = AgeOf(trial.Document("environment"));
    const double usual = later_s_ / static_cast<double>(steps_ - kFirst);
    const double start = age + first_s_ - kFirst * usual;
    if (start >= limits_.seconds && start >= limits_.share * (age + run_s_)) Tell(trial, usual, sink);
  }

  void VisitFields(Fields& io) override {
    worker_.VisitFields(io);
    io("run_s", run_s_);
    io("first_s", first_s_);
    io("compile_s", compile_s_);
    io("load_s", load_s_);
    io("later_s", later_s_);
    io("before_s", before_s_);
    io("second_half_s", second_half_s_);
    io("second_half", second_half_);
    io("steps", steps_);
    io("step", step_);
    io("global", global_);
    io("update", update_);
    io("looked", looked_);
  }

 private:
  void Tell(const query::Trial& trial, double usual, Sink& sink) const {
    using profile::TimeText;
    query::StepInfo info;
    info.mode = query::Mode::kTrain;
    info.mode_step = step_;
    info.global_step = global_;
    info.update = update_;
    const double age = AgeOf(trial.Document("environment"));
    const double all = age + run_s_, reached = age + before_s_ + first_s_,
                 start = age + first_s_ - kFirst * usual;
    Finding finding = FindingAt(kName, "start", trial, format::kNoId, worker_.number(), info);
    finding.since_step = 0;
    finding.what =
        fmt::format("step {} was reached after {}, {:.0f} % of the time so far: {} before the first step",
                    kFirst, TimeText(reached), 100 * reached / all, TimeText(age));
    if (before_s_ >= 0.05 * reached) finding.what += fmt::format(", {} evaluating", TimeText(before_s_));
    if (compile_s_ >= 0.05 * start) finding.what += fmt::format(", {} compiling", TimeText(compile_s_));
    if (load_s_ >= 0.05 * start) finding.what += fmt::format(", {} starting loaders", TimeText(load_s_));
    const bool compiles = compile_s_ >= start / 2;
    finding.why = "nothing is trained meanwhile, and each start of the job pays it again";
    finding.remedy =
        compiles
            ? "keep compiled graphs: TORCHINDUCTOR_FX_GRAPH_CACHE=1 and a TORCHINDUCTOR_CACHE_DIR that lasts"
            : "look at what the script does before its first step: keep prepared data on disk, load what is "
              "needed when it is needed";
    finding.causes = {"data that is prepared anew at each start", "compiling", "imports and downloads"};
    finding.evidence = {
        {"age_s", age}, {"first_s", first_s_}, {"compile_s", compile_s_}, {"start_s", start}, {"run_s", all}};
    const double steps = static_cast<double>(std::max<std::int64_t>(steps_, 1));
    finding.saving = {start / steps, start / all, (compiles ? compile_s_ : 0) / steps, start / steps,
                      fmt::format("the time to step {} without that of {} usual steps: {}", kFirst, kFirst,
                                  TimeText(start))};
    finding.threshold = fmt::format("{:g} % of the run and {:g} s, or {:g} minutes (Luff)",
                                    100 * limits_.share, limits_.seconds, limits_.minutes);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  JudgedWorker worker_;
  double run_s_ = 0, first_s_ = 0, compile_s_ = 0, load_s_ = 0, later_s_ = 0;
  double before_s_ = 0;           // of evaluations before step 20
  double second_half_s_ = 0;      // of the later ones of the first steps
  std::int64_t second_half_ = 0;  // their number
  std::int64_t steps_ = 0, step_ = 0, global_ = 0, update_ = 0;
  bool looked_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<FirstStepsSlow>(kName, kParams);
  spec.summary = "the way to step 20 takes a large part of the run";
  return spec;
}

}  // namespace luff::rules::first_steps_slow
