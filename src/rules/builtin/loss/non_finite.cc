#include <bit>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/nonfinite_remedy.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// NonFinite: docs/rules/non_finite.md.
namespace luff::rules::non_finite {
namespace {

using Json = nlohmann::json;
using format::EventKind;
using format::Role;
constexpr const char* kName = "NonFinite";
constexpr std::size_t kMaxNames = 64;
constexpr std::int64_t kSkips = 8;

struct Limits {
  std::int64_t loss_steps, gradient_steps;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::loss_steps, "loss_steps", "3",
     "steps in a row with a loss that is not finite before stop, weights finite", AtLeast(1)},
    {&Limits::gradient_steps, "gradient_steps", "25",
     "updates in a row left out, or with gradients not finite, before stop; a dynamic loss scale needs 16",
     AtLeast(1)},
};

// Consecutive steps in which tensors of one kind were not finite.
struct Streak {
  std::int64_t steps = 0;
  std::int64_t first_step = -1, first_global = -1, first_update = -1;
  std::string tensor;
  std::uint32_t worker = 0;
  bool nan = false;
  std::uint64_t count = 0;  // non-finite elements of the first step's first such tensor
  void VisitFields(Fields& io) {
    io("steps", steps);
    io("first_step", first_step);
    io("first_global", first_global);
    io("first_update", first_update);
    io("tensor", tensor);
    io("worker", worker);
    io("nan", nan);
    io("count", count);
  }
};

// What the hook found out about the operation that produced the first non-finite value.
struct Producer {
  int detail = 0;  // 0: nothing known; 1: taken from the graph; 2: the step was replayed
  std::int64_t step = -1;
  std::string phase, module, op, reason, place, tensor;
  std::string no_replay;  // why the step was not replayed
  void VisitFields(Fields& io) {
    io("detail", detail);
    io("step", step);
    io("phase", phase);
    io("module", module);
    io("op", op);
    io("reason", reason);
    io("place", place);
    io("tensor", tensor);
    io("no_replay", no_replay);
  }
};

std::string TextAt(const Json& json, const char* name) {
  const auto it = json.find(name);
  if (it == json.end() || !it->is_string()) return {};
  std::string text = it->get<std::string>();
  if (text.size() > 300) text.resize(300);
  return text;
}

class NonFinite final : public KeptRule {
 public:
  explicit NonFinite(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode == query::Mode::kEval && !info.superseded) CountEvaluation(view);
    if (info.mode != query::Mode::kTrain) return;
    JudgeEvaluation(view.trial, sink);
    last_.Take(info);
    for (const auto& event : view.index.json_events("nonfinite")) Learn(*event);
    const bool applied = Updates(view);
    const std::vector<std::string> bad_weights = LookAtTensors(view);
    const bool loss_bad = LookAtLosses(view);
    const bool gradient_bad = gradients_.steps > 0 && gradients_seen_;

    // A scale below one cannot overflow by itself: the gradients do, and lowering it further does not help.
    if (skipped_ >= kSkips && skipped_ < limits_.gradient_steps && scale_ > 0 && scale_ < 1)
      Collapse(info, sink);

    const bool lost = weights_.steps > 0 || loss_.steps >= limits_.loss_steps ||
                      gradients_.steps >= limits_.gradient_steps || skipped_ >= limits_.gradient_steps;
    const bool poisoning = applied && (loss_bad || gradient_bad);
    if (lost || poisoning) {
      Tell(view.rows.info, bad_weights, lost, sink);
    } else if (!open_tensor_.empty() && loss_.steps == 0 && gradients_.steps == 0 && skipped_ == 0) {
      sink.Heal("nonfinite", open_tensor_, info.mode_step);
      open_tensor_.clear();
      producer_ = {};
    } else if (!open_tensor_.empty()) {
      Tell(view.rows.info, bad_weights, false, sink);
    }
  }

  void OnEnd(const query::Trial& trial, Sink& sink) override {
    JudgeEvaluation(trial, sink);
    // The run ended on a non-finite loss: no later step could show that it was harmless.
    if (loss_.steps == 0 || !open_tensor_.empty()) return;
    query::StepInfo info;
    info.mode = query::Mode::kTrain;
    info.mode_step = loss_.first_step + loss_.steps - 1;
    info.global_step = loss_.first_global;
    info.update = loss_.first_update;
    Tell(info, {}, true, sink);
  }

  void VisitFields(Fields& io) override {
    io("loss", loss_);
    io("gradients", gradients_);
    io("weights", weights_);
    io("skips", skips_);
    io("producer", producer_);
    io("open", open_tensor_);
    io("born_infinite", born_infinite_, kMaxNames);
    io("bad_input", bad_input_);
    io("bad_input_step", bad_input_step_);
    io("loss_known", loss_known_);
    io("first_train", first_train_);
    io("skipped", skipped_);
    io("scale", scale_);
    io("last", last_);
    io("evaluated", evaluated_);
    io("evaluated_bad", evaluated_bad_);
    io("bad_evaluations", bad_evaluations_);
    io("bad_loss", bad_loss_);
    io("open_evaluation", open_evaluation_);
  }

 private:
  void CountEvaluation(const StepView& view) {
    if (last_.mode_step < 0) return;  // before the training
    for (const LossValue& loss : view.index.losses()) {
      ++evaluated_;
      if (std::isfinite(loss.value)) continue;
      if (evaluated_bad_++ == 0) bad_loss_ = view.trial.tensor(loss.tensor).name;
    }
  }

  // Evaluations most of whose losses are not finite, of a training whose losses are. One batch in which
  // nothing counts has no mean; a whole evaluation of such batches has a fault.
  void JudgeEvaluation(const query::Trial& trial, Sink& sink) {
    constexpr std::int64_t kEvaluations = 2;
    if (evaluated_ == 0) return;
    const bool bad = 2 * evaluated_bad_ > evaluated_ && loss_.steps == 0 && weights_.steps == 0;
    const std::int64_t of = std::exchange(evaluated_, 0), count = std::exchange(evaluated_bad_, 0);
    bad_evaluations_ = bad ? bad_evaluations_ + 1 : 0;
    if (!bad) {
      if (!open_evaluation_.empty()) sink.Heal("evaluation", open_evaluation_, last_.mode_step);
      open_evaluation_.clear();
      return;
    }
    if (bad_evaluations_ < kEvaluations) return;
    if (open_evaluation_.empty()) open_evaluation_ = bad_loss_;
    Finding finding = FindingAt(kName, "evaluation", trial, format::kNoId, 0, last_.Info());
    finding.tensor = open_evaluation_;
    finding.what = fmt::format(
        "{} of {} losses of the evaluation are not finite, while those of the training are", count, of);
    finding.why = fmt::format(
        "it was so in {} evaluations in a row: the weights are finite, so the evaluation's data or what is "
        "done only "
        "there makes it so",
        bad_evaluations_);
    finding.remedy =
        "look at the inputs and targets of the evaluation for NaN, for rows in which everything is masked, "
        "and "
        "for "
        "means over nothing";
    finding.causes = {"NaN in data that were prepared in another way", "a mask that hides all of a row",
                      "a mean over no row or no label", "a logarithm of a probability that is exactly 0"};
    finding.evidence = {{"losses", of}, {"not_finite", count}, {"evaluations", bad_evaluations_}};
    finding.threshold =
        fmt::format("more than half of them, in {} evaluations in a row (Luff)", kEvaluations);
    sink.Report(std::move(finding));
  }

  static void Extend(Streak* streak, const query::StepInfo& info, const std::string& tensor,
                     std::uint32_t worker, bool nan, std::uint64_t count) {
    if (streak->steps == 0) {
      *streak = {0, info.mode_step, info.global_step, info.update, tensor, worker, nan, count};
    }
    ++streak->steps;
    streak->nan = streak->nan || nan;
  }

  // Takes in the hook's report on the producer. Keeps the most detailed one, then the first; while no finding
  // is open, one of a later step replaces it.
  void Learn(const Json& json) {
    Producer told;
    told.detail = TextAt(json, "from") == "replay" ? 2 : 1;
    if (const auto it = json.find("step"); it != json.end() && it->is_number_integer())
      told.step = it->get<std::int64_t>();
    const bool newer = open_tensor_.empty() && told.step > producer_.step;
    told.no_replay = TextAt(json, "no_replay");
    if (!told.no_replay.empty()) {  // the same fault: keeps what the graph showed
      told.detail = 1;
      producer_.no_replay = told.no_replay;
    }
    if (told.detail <= producer_.detail && !newer) return;
    told.phase = TextAt(json, "phase");
    told.module = TextAt(json, "module");
    told.op = TextAt(json, "operator");
    told.reason = TextAt(json, "reason");
    told.tensor = TextAt(json, "tensor");
    const std::string file = TextAt(json, "file");
    if (const auto it = json.find("line"); !file.empty() && it != json.end() && it->is_number_integer())
      told.place = fmt::format("{}:{}", file, it->get<std::int64_t>());
    if (told.reason.empty() && told.op.empty()) return;
    producer_ = std::move(told);
  }

  // Returns whether an optimizer has used gradients in this step. Counts skipped updates in a row.
  bool Updates(const StepView& view) {
    const bool applied = !view.index.events(EventKind::kOptimizerStep).empty();
    const bool skipped = !view.index.events(EventKind::kStepSkipped).empty();
    for (const query::EventAt& event : view.index.events(EventKind::kScaleLoss))
      scale_ = std::bit_cast<double>(event.row.argument);
    if (applied) {
      skipped_ = 0;
      skips_ = {};
    } else if (skipped) {
      ++skipped_;
      Extend(&skips_, view.rows.info, "", 0, false, 0);
    }
    return applied;
  }

  std::vector<std::string> LookAtTensors(const StepView& view) {
    const query::StepInfo& info = view.rows.info;
    std::vector<std::string> bad_weights;
    bool weights_seen = false;
    bool gradient_bad = false;
    gradients_seen_ = false;
    // Of inputs only those count that were bad before anything else was.
    if (weights_.steps + loss_.steps + gradients_.steps + skips_.steps == 0) {
      bad_input_ = InputWithNan(view);
      bad_input_step_ = info.mode_step;
    }
    for (const auto& entry : view.rows.summaries) {
      const std::uint64_t bad = entry.summary.nan_count + entry.summary.inf_count;
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role == Role::kWeight || tensor.role == Role::kBias) {
        weights_seen = true;
        if (bad == 0 || BornInfinite(tensor.name, entry.summary)) continue;
        if (bad_weights.empty())
          Extend(&weights_, info, tensor.name, entry.worker, entry.summary.nan_count > 0, bad);
        if (bad_weights.size() < kMaxNames) bad_weights.push_back(tensor.name);
      } else if (tensor.role == Role::kGradient) {
        gradients_seen_ = true;
        if (bad == 0 || gradient_bad) continue;
        Extend(&gradients_, info, tensor.name, entry.worker, entry.summary.nan_count > 0, bad);
        gradient_bad = true;
      }
    }
    if (weights_seen && bad_weights.empty()) weights_ = {};
    if (gradients_seen_ && !gradient_bad) gradients_ = {};
    first_train_ = first_train_ && !weights_seen;
    return bad_weights;
  }

  // An input of a model, or a target whose loss got an output that is finite; "" if there is none with NaN.
  // Not what else a loss is given: the model has made it.
  static std::string InputWithNan(const StepView& view) {
    std::set<std::string> bad;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kSample)) {
      if (entry.summary.nan_count > 0) bad.insert(tensor.name);
    }
    if (bad.empty()) return {};
    for (const ModelInput& input : ModelInputsOf(view)) {
      const std::string& name = view.trial.tensor(input.entry->tensor).name;
      if (bad.contains(name)) return name;
    }
    std::set<std::string> all;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kSample)) all.insert(tensor.name);
    for (const std::string& name : bad) {
      const std::size_t at = name.rfind('_') + 1;
      const Result<std::int64_t> index = ParseInt(name.substr(at));
      const std::string output = index.ok() ? fmt::format("{}{}", name.substr(0, at), *index - 1) : "";
      if (index.ok() && *index % 2 == 1 && all.contains(output) && !bad.contains(output)) return name;
    }
    return {};
  }

  // Whether the first value that was not finite came in with what the model or its loss was given, as far as
  // the hook has not found where it arose.
  [[nodiscard]] bool CameIn(const Streak& lead) const {
    if (bad_input_.empty() || !producer_.phase.empty()) return false;
    if (&lead == &loss_) return bad_input_step_ == lead.first_step;
    return !loss_known_ && bad_input_step_ <= lead.first_step;
  }

  bool LookAtLosses(const StepView& view) {
    const std::vector<LossValue>& losses = view.index.losses();
    loss_known_ = loss_known_ || !losses.empty();
    bool bad = false;
    for (const LossValue& loss : losses) {
      if (std::isfinite(loss.value) || bad) continue;
      Extend(&loss_, view.rows.info, view.trial.tensor(loss.tensor).name, loss.worker, std::isnan(loss.value),
             1);
      bad = true;
    }
    if (!losses.empty() && !bad) loss_ = {};
    return bad;
  }

  // True for a mask: a parameter that holds infinities, but no NaN, from the first step on.
  bool BornInfinite(const std::string& name, const Summary& summary) {
    if (summary.nan_count > 0) return false;
    if (first_train_ && born_infinite_.size() < kMaxNames) born_infinite_.insert(name);
    return born_infinite_.contains(name);
  }

  void Tell(const query::StepInfo& info, const std::vector<std::string>& bad_weights, bool lost, Sink& sink) {
    // The earliest fault leads. Within a step, weights come before the loss, and the loss before gradients.
    const Streak* lead = nullptr;
    for (const Streak* streak : {&weights_, &loss_, &gradients_, &skips_}) {
      if (streak->steps > 0 && (lead == nullptr || streak->first_step < lead->first_step)) lead = streak;
    }
    if (lead == nullptr) return;
    const bool known = producer_.detail > 0 && producer_.step + 1 >= lead->first_step;
    if (open_tensor_.empty()) open_tensor_ = lead->tensor.empty() ? "loss scale" : lead->tensor;
    Finding finding;
    finding.page = PageOf(kName);
    finding.cause = "nonfinite";
    finding.severity = lost ? Severity::kStop : Severity::kWarn;
    finding.tensor = open_tensor_;
    finding.worker = lead->worker;
    finding.step = finding.last_step = info.mode_step;
    finding.since_step = lead->first_step;
    finding.global_step = info.global_step;
    finding.update = info.update;
    for (const std::string& name : bad_weights) {
      if (name != open_tensor_) finding.other_tensors.push_back(name);
    }
    const char* kind = lead->nan ? "NaN" : "infinite";
    const char* noun = lead == &loss_ ? "the loss is" : lead == &gradients_ ? "gradients are" : "weights are";
    if (lead == &skips_) {
      finding.what =
          fmt::format("every update since step {} was left out because gradients overflow", lead->first_step);
    } else {
      finding.what = fmt::format("{} {} since step {}", noun, kind, lead->first_step);
    }
    if (known) finding.what += ": " + ProducerText();
    finding.why = WhyText(*lead, lost) + Unknown();
    Causes(*lead, &finding);
    finding.evidence = {{"loss_steps", loss_.steps},
                        {"gradient_steps", gradients_.steps},
                        {"weights_affected", bad_weights.size()},
                        {"skipped_updates", skipped_},
                        {"elements", lead->count},
                        {"detail", known ? producer_.detail : 0.0}};
    finding.threshold =
        fmt::format("one that is applied; stop: in a weight, in {} losses or in {} updates in a row (Luff)",
                    limits_.loss_steps, limits_.gradient_steps);
    sink.Report(std::move(finding));
  }

  void Collapse(const query::StepInfo& info, Sink& sink) const {
    Finding finding;
    finding.page = PageOf(kName);
    finding.cause = "scale";
    finding.forecast = true;
    finding.lead_steps = limits_.gradient_steps - skipped_;
    finding.step = finding.last_step = info.mode_step;
    finding.since_step = skips_.first_step;
    finding.global_step = info.global_step;
    finding.update = info.update;
    finding.what = fmt::format("the loss scale collapses: {:.3g}, and gradients overflow still", scale_);
    finding.why = fmt::format(
        "{} updates in a row were left out; below a scale of one it is the gradients that "
        "overflow, not their scale",
        skipped_);
    finding.causes = {"gradients that are infinite or NaN", "overflow in the forward pass in half precision"};
    finding.remedy = "look for the first value that is not finite; use bfloat16, or float32 where it arises";
    finding.evidence = {{"scale", scale_}, {"skipped_updates", skipped_}};
    finding.threshold = fmt::format("{} updates in a row left out, scale below one (Luff)", kSkips);
    sink.Report(std::move(finding));
  }

  // Where a phase of docs/rules/non_finite.md is, in a person's words.
  static std::string Arose(const std::string& phase) {
    if (phase == "input")
      return "was in what the model or its loss is given: the batch, the targets, or what the script makes "
             "of "
             "them";
    if (phase == "weights") return "was in a parameter or buffer before any update";
    if (phase == "forward") return "arose inside the model, in the forward pass";
    if (phase == "loss") return "arose where the loss is computed";
    if (phase == "backward") return "arose in the backward pass: the loss is finite, its derivative is not";
    if (phase == "optimizer")
      return "arose after the forward pass of the step before: in an update, or where the script writes "
             "weights itself";
    return "arose in the phase " + phase;
  }

  [[nodiscard]] std::string ProducerText() const {
    std::string text = producer_.reason.empty() ? producer_.op + " made it" : producer_.reason;
    if (!producer_.reason.empty() && !producer_.op.empty() &&
        producer_.reason.find(producer_.op) == std::string::npos)
      text += fmt::format(" ({})", producer_.op);
    constexpr std::string_view kAfter = "after ";
    if (producer_.module.starts_with(kAfter)) {
      if (producer_.module.size() > kAfter.size()) text += ", " + producer_.module;
    } else if (!producer_.module.empty()) {
      text += " in " + producer_.module;
    }
    if (!producer_.place.empty()) text += ", " + producer_.place;
    return text;
  }

  [[nodiscard]] std::string WhyText(const Streak& lead, bool lost) const {
    std::string why;
    if (!producer_.phase.empty()) {
      why = "the first value that is not finite " + Arose(producer_.phase) + "; ";
    } else if (CameIn(lead)) {
      why = fmt::format("{} held NaN in that step, before anything else did; ", bad_input_);
    }
    if (&lead == &weights_) return why + "every later step computes with them and is lost";
    if (weights_.steps > 0)
      return why + "its gradients were applied, and now weights are not finite: every later step is lost";
    if (!lost) return why + "an update has used it, which usually makes the weights NaN with the next step";
    if (&lead == &loss_) return why + fmt::format("it was so in {} steps in a row", lead.steps);
    return why + fmt::format("it was so in {} updates in a row, so none of them can teach the model anything",
                             lead.steps);
  }

  // Says that the line of the producer is unknown, and why; "" if it is known or the hook gave no reason.
  [[nodiscard]] std::string Unknown() const {
    if (producer_.no_replay.empty() || !producer_.place.empty()) return {};
    return fmt::format("; its line is not known: {}", producer_.no_replay);
  }

  void Causes(const Streak& lead, Finding* finding) const {
    const std::string& phase = producer_.phase;
    const NonFiniteRemedy* known = RemedyOf(producer_.reason);
    if (known != nullptr && known->whole) {
      finding->causes = known->causes;
      finding->remedy = known->text;
      return;
    }
    if (phase == "input" || CameIn(lead)) {
      finding->causes = {"inputs or targets that hold NaN", "a normalisation that divides by zero"};
      finding->remedy = "look at the batch of that step and at how it was made; drop or mend such samples";
      return;
    }
    OfPhase(lead, finding);
    if (known == nullptr) return;
    finding->causes.insert(finding->causes.begin(), known->causes.begin(), known->causes.end());
    finding->remedy = known->text + "; " + finding->remedy;
  }

  void OfPhase(const Streak& lead, Finding* finding) const {
    const std::string& phase = producer_.phase;
    if (phase == "optimizer") {
      finding->causes = {"learning rate too high", "gradients that explode",
                         "weights that the script itself writes between two steps (an average, a copy, a new "
                         "initialisation)"};
      finding->remedy =
          "go back to a checkpoint before that step; if gradients were finite and small until then, look for "
          "what "
          "writes weights between two steps; else lower the learning rate or clip gradients";
      return;
    }
    if (&lead == &skips_) {
      finding->causes = {"a loss scale that is too large and never lowered", "gradients that are infinite"};
      finding->remedy = "use a dynamic loss scale, or look for infinite gradients";
      return;
    }
    if (phase == "backward" || (phase.empty() && &lead == &gradients_)) {
      finding->causes = {"infinite derivative (square root, norm or power at zero)", "gradients that explode",
                         "loss scale that overflows on every step"};
      finding->remedy =
          "keep the argument away from zero (add a small number inside the root), clip gradients, leave "
          "updates out whose gradients are not finite";
      return;
    }
    if (lead.first_update == 0 && (phase == "forward" || phase == "loss")) {  // no rate has had an effect
      finding->causes = {"initial weights or inputs that are too large",
                         "logarithm, square root or division of zero", "overflow in half precision"};
      finding->remedy =
          "no update had been made, so look at what the model starts with: initialise with smaller weights "
          "(the framework's default), standardise the inputs, keep arguments away from zero and of "
          "exponentials small; use the fused, stable form of the loss (with logits)";
      return;
    }
    if (phase.empty() && &lead == &weights_) {
      finding->causes = {"learning rate too high", "weights that were never initialised",
                         "a checkpoint that holds NaN"};
    } else {
      finding->causes = {"logarithm, square root or division of zero in the loss", "learning rate too high",
                         "inputs or targets that hold NaN", "overflow in half precision"};
    }
    finding->remedy =
        "go back to a checkpoint before that step; use the fused, stable form of the loss (with logits), "
        "keep "
        "arguments away from zero, lower the learning rate or clip gradients; check the batch of that step";
  }

  const Limits limits_;
  Streak loss_, gradients_, weights_, skips_;
  Producer producer_;
  std::string open_tensor_, bad_input_;
  std::set<std::string> born_infinite_;
  std::int64_t bad_input_step_ = -1;
  bool loss_known_ = false;
  bool first_train_ = true;
  bool gradients_seen_ = false;  // at the current step
  Anchor last_;                  // newest TRAIN step
  // Losses of the evaluation that goes on, and those that are not finite; evaluations of which most are not.
  std::int64_t evaluated_ = 0, evaluated_bad_ = 0, bad_evaluations_ = 0;
  std::string bad_loss_, open_evaluation_;
  double scale_ = 0;          // newest loss scale; 0: none
  std::int64_t skipped_ = 0;  // skipped updates in a row
};

}  // namespace

RuleSpec Spec() {
  // Summaries of weights and gradients, losses and events are always captured.
  RuleSpec spec = SpecOf<NonFinite>(kName, kParams);
  spec.version = 3;  // 2: data are blamed only where they were bad first; 3: "evaluation"
  spec.summary = "a loss, gradients or weights that are not finite, and which operation made the first one";
  return spec;
}

}  // namespace luff::rules::non_finite
