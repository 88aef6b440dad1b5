#include <algorithm>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/facts/noisy_teacher.h"
#include "rules/facts/phases.h"
#include "rules/facts/sample.h"
#include "rules/facts/unasked_training.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ModeMismatch: docs/rules/mode_mismatch.md.
namespace luff::rules::mode_mismatch {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "ModeMismatch";
constexpr std::size_t kMaxModels = 256;
constexpr std::int64_t kMasks = 3;  // times that a batch comes again: its mean over dropout masks is wanted

// Bits of the event `forward` (docs/spec/evidence.md).
constexpr std::uint64_t kTraining = 1U << 8, kSomeTrain = 1U << 9, kSomeEval = 1U << 10,
                        kGradients = 1U << 11, kTold = 1U << 12;

std::string TextIn(const nlohmann::json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && at != object.end() && at->is_string() ? at->get<std::string>().substr(0, 300)
                                                                     : "";
}

struct Limits {
  std::int64_t updates, from_start, evaluations, between;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "12", "updates in evaluation mode after an evaluation", AtLeast(1)},
    {&Limits::from_start, "from_start", "32",
     "updates in evaluation mode of a model that was never in training mode", AtLeast(1)},
    {&Limits::evaluations, "evaluations", "2", "evaluations in training mode in a row", AtLeast(1)},
    {&Limits::between, "between", "5",
     "TRAIN steps between two evaluations; passes that come oftener are part of training", AtLeast(1)},
};

class ModeMismatch final : public KeptRule {
 public:
  explicit ModeMismatch(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.superseded) return;
    loaded_ = loaded_ || !view.index.json_events("load_state_dict").empty();
    if (const auto found = teacher_.OnStep(view)) TellTeacher(view, *found, sink);
    for (const auto& event : view.index.json_events("random_mask")) masks_.Learn(*event);
    if (view.rows.info.mode == query::Mode::kTrain) {
      Train(view, sink);
    } else if (view.rows.info.mode == query::Mode::kEval) {
      Evaluate(view, sink);
    }
  }

  // What is evaluated when the training is over is no check before it: one such evaluation is enough.
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    JudgeWithoutLoss(trial, 1, sink);
    JudgeMasks(trial, sink);
  }

  void VisitFields(Fields& io) override {
    io("models", models_, kMaxModels);
    io("steps", steps_);
    io("loaded", loaded_);
    io("other_phase", other_phase_);
    io("last", last_);
    io("phases", phases_);
    io("dropping", dropping_);
    io("dropped_at", dropped_at_);
    io("dropping_told", dropping_told_);
    io("masks", masks_);
    io("teacher", teacher_);
    io("unasked", unasked_);
  }

 private:
  // What a model said that was asked whether masks that it draws act in an evaluation.
  struct Masks {
    std::int64_t number = -1;  // of the model; -1: nothing is known
    double p = 0;
    bool after_eval = false;  // they act in evaluation mode, too
    std::string place, module;
    void Learn(const nlohmann::json& event) {
      const double whose = NumberIn(event, "number"), share = NumberIn(event, "p");
      if (!(whose >= 0 && whose < 4294967295.0) || !(share > 0 && share < 1)) return;
      number = static_cast<std::int64_t>(whose);
      p = share;
      after_eval = FlagIn(event, "after_eval");
      module = TextIn(event, "module");
      const std::string file = TextIn(event, "file");
      const double line = NumberIn(event, "line");
      place = file.empty() || !(line >= 1) ? "" : fmt::format("{}:{:.0f}", file, line);
    }
    void VisitFields(Fields& io) {
      io("number", number);
      io("p", p);
      io("after_eval", after_eval);
      io("place", place);
      io("module", module);
    }
  };

  struct Model {
    // Training: updates whose forward passes were all in evaluation mode.
    bool trained = false;           // it was updated in training mode
    bool evaluated = false;         // and evaluated after the last such update
    std::int64_t eval_updates = 0;  // in a row
    std::int64_t optimizer = -1;    // that made the newest update
    bool open_train = false;
    std::int64_t since = -1;
    // Evaluation: the steps between two TRAIN steps.
    std::int64_t last_eval_at = -1;                   // `steps_` at the newest evaluation
    std::int64_t in_training = 0, in_evaluation = 0;  // its passes, by mode of the model
    std::int64_t repeated = 0;                        // times that a batch came again
    std::int64_t evaluations = 0;                     // since its first update
    std::int64_t rounds = 0;                          // times that the evaluation's first batch came again
    bool repeats = false;                             // batches came again and again in one of them
    bool often = false;                               // two of them were only a few steps apart
    bool of_training = false;                         // it looks at a batch that was just trained on
    std::uint64_t batch = 0;                          // 52 bits of the last batch's hash
    std::uint64_t first_batch = 0;                    // the same, of the evaluation's first; 0: none
    std::uint64_t trained_batch = 0;                  // the same, of the newest TRAIN step
    bool ever_in_evaluation = false;                  // some evaluation pass was in evaluation mode
    bool counted = false;                             // this evaluation has been judged
    std::int64_t bad_evaluations = 0;                 // in a row
    std::int64_t first_bad = -1;
    bool open_eval = false, open_before = false;  // a finding, one with evaluations of models before it
    std::int64_t trained_from = -1,
                 trained_to = -1;  // `steps_` at its first and newest update in training mode
    void VisitFields(Fields& io) {
      io("trained", trained);
      io("evaluated", evaluated);
      io("eval_updates", eval_updates);
      io("optimizer", optimizer);
      io("open_train", open_train);
      io("since", since);
      io("last_eval_at", last_eval_at);
      io("in_training", in_training);
      io("in_evaluation", in_evaluation);
      io("repeated", repeated);
      io("evaluations", evaluations);
      io("rounds", rounds);
      io("repeats", repeats);
      io("often", often);
      io("of_training", of_training);
      io("batch", batch);
      io("first_batch", first_batch);
      io("trained_batch", trained_batch);
      io("ever_in_evaluation", ever_in_evaluation);
      io("counted", counted);
      io("bad_evaluations", bad_evaluations);
      io("first_bad", first_bad);
      io("open_eval", open_eval);
      io("open_before", open_before);
      io("trained_from", trained_from);
      io("trained_to", trained_to);
    }
  };

  Model* ModelOf(std::uint32_t number) {
    const auto it = models_.find(number);
    if (it != models_.end()) return &it->second;
    return number != format::kNoId && models_.size() < kMaxModels ? &models_[number] : nullptr;
  }

  // Judges an evaluation without a loss once it is over, when all of its passes are known.
  void JudgeWithoutLoss(const query::Trial& trial, std::int64_t evaluations, Sink& sink) {
    for (auto& [number, model] : models_) {
      const bool without_loss = model.last_eval_at == steps_ && model.trained && !model.counted;
      if (without_loss && !model.ever_in_evaluation && !model.of_training && !phases_.several())
        JudgeEvaluation(trial, model, evaluations, sink);
    }
  }

  void Train(const StepView& view, Sink& sink) {
    JudgeWithoutLoss(view.trial, limits_.evaluations, sink);
    JudgeMasks(view.trial, sink);
    phases_.OnStep(view);
    ++steps_;
    last_.Take(view.rows.info);
    const auto unasked = unasked_.OnStep(view, limits_.from_start);
    if (unasked_.Over()) sink.Heal("training", "", view.rows.info.mode_step);
    if (unasked) TellUnasked(view, *unasked, sink);
    std::int64_t optimizer = -1;
    std::map<std::uint32_t, std::uint64_t> modes;  // of passes with gradients: 1 train, 2 eval, 4 neither
    const std::uint32_t worker = view.index.first_worker();
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != worker) continue;
      const auto kind = static_cast<EventKind>(event.row.kind);
      const std::uint64_t bits = event.row.argument;
      if (kind == EventKind::kOptimizerStep) optimizer = event.row.subject;
      if (kind == EventKind::kBatch) {
        const auto it = models_.find(event.row.subject);
        if (it != models_.end()) it->second.trained_batch = BatchOf(event);
      }
      if (kind != EventKind::kForward || (bits & kTold) == 0 || (bits & kGradients) == 0) continue;
      // A pass is in training mode if any module that depends on the mode is; it is in evaluation mode if one
      // such module is, and neither the model nor any other is in training mode.
      const bool evaluation = (bits & (kTraining | kSomeTrain)) == 0 && (bits & kSomeEval) != 0;
      const bool training = (bits & kSomeTrain) != 0;
      modes[event.row.subject] |=
          (training ? 1U : 0U) | (evaluation ? 2U : 0U) | (!training && !evaluation ? 4U : 0U);
    }
    if (optimizer < 0) return;
    for (const auto& [number, mode] : modes) {
      Model* model = ModelOf(number);
      if (model == nullptr) continue;
      if (mode == 2U) {
        JudgeTraining(view, *model, number, optimizer, sink);
        continue;
      }
      model->eval_updates = 0;
      model->optimizer = optimizer;
      if ((mode & 1U) != 0) {
        if (!model->trained && model->trained_from < 0) model->trained_from = steps_;
        model->trained_to = steps_;
        model->trained = true;
        model->evaluated = false;
        if (model->open_train) sink.Heal("training", "", view.rows.info.mode_step);
        model->open_train = false;
      }
    }
  }

  // Reports a loop that trains a model of Keras as it is asked, and not as it is trained.
  void TellUnasked(const StepView& view, const UnaskedTraining::Told& told, Sink& sink) const {
    Finding finding = FindingAt(kName, "training", view, TensorAt{format::kNoId});
    finding.since_step = std::max<std::int64_t>(told.since, 0);
    finding.what =
        fmt::format("{} is trained in evaluation mode: the loop calls it without training=True", told.model);
    finding.why = fmt::format(
        "outside of fit Keras takes training=False where it is not given, for {} updates now:{}{}{}",
        told.updates, told.dropout > 0 ? fmt::format(" dropout is off ({} layers)", told.dropout) : "",
        told.dropout > 0 && told.batch_norm > 0 ? ", and" : "",
        told.batch_norm > 0 ? fmt::format(" batch normalisation ({} layers) neither uses nor updates the "
                                          "statistics of its batches, and so does nothing",
                                          told.batch_norm)
                            : "");
    finding.remedy =
        "call the model with training=True inside the tape, and with training=False where it is evaluated";
    finding.causes = {"model(x) in a loop of its own, where fit would set the mode"};
    finding.evidence = {
        {"updates", told.updates}, {"dropout", told.dropout}, {"batch_norm", told.batch_norm}};
    finding.threshold = fmt::format("a fact, {} updates from the start on (Luff)", limits_.from_start);
    sink.Report(std::move(finding));
  }

  void JudgeTraining(const StepView& view, Model& model, std::uint32_t number, std::int64_t optimizer,
                     Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    // Another optimizer starts another phase, for which evaluation mode may be intended.
    if (model.optimizer >= 0 && model.optimizer != optimizer && model.eval_updates == 0) {
      model.trained = false;
      model.evaluated = false;
      other_phase_ = true;
    }
    model.optimizer = optimizer;
    if (model.eval_updates++ == 0) model.since = info.mode_step;
    const bool left = model.trained && model.evaluated && model.eval_updates >= limits_.updates;
    const bool never = !model.trained && !loaded_ && !other_phase_ && model.since <= 1 &&
                       model.eval_updates >= limits_.from_start;
    if (!left && !never && !model.open_train) return;
    model.open_train = true;
    Finding finding = FindingAt(kName, "training", view, TensorAt{format::kNoId});
    finding.since_step = model.since;
    finding.what =
        left ? fmt::format("training goes on in evaluation mode since the evaluation before step {}",
                           model.since)
             : fmt::format("the model is trained in evaluation mode, for {} updates now", model.eval_updates);
    finding.why =
        "dropout is off and batch normalisation neither uses nor updates the statistics of its batches, "
        "though "
        "the weights are trained";
    finding.remedy =
        "call model.train() after each evaluation, at the head of the training loop; what shall stay in "
        "evaluation mode is switched module by module";
    finding.causes = {"model.train() is called once before the loop and not after model.eval()",
                      "a function switches to model.eval() and does not restore the mode"};
    finding.evidence = {{"updates_in_evaluation_mode", model.eval_updates}, {"model", number}};
    finding.threshold = fmt::format("{} updates after an evaluation, {} from the start on (Luff)",
                                    limits_.updates, limits_.from_start);
    sink.Report(std::move(finding));
  }

  // Reports dropout that a function applies in evaluation mode. Where batches come again, its masks are
  // wanted.
  void Dropped(const StepView& view, Sink& sink) {
    if (view.index.json_events("dropout_in_evaluation").empty() || steps_ == 0) return;
    if (dropped_at_ != steps_) ++dropping_;
    dropped_at_ = steps_;
    const bool masks = std::any_of(models_.begin(), models_.end(),
                                   [](const auto& model) { return model.second.repeated > 0; });
    if (masks) dropping_ = -limits_.between;
    if (dropping_ < limits_.evaluations || dropping_told_) return;
    dropping_told_ = true;
    Finding finding = FindingAt(kName, "dropout", view.trial, format::kNoId, 0, last_.Info());
    finding.since_step = 0;
    const double p = NumberIn(*view.index.json_events("dropout_in_evaluation").front(), "p");
    finding.what =
        fmt::format("dropout of {:g} acts in evaluations, though the model is in evaluation mode", p);
    finding.why =
        "torch.nn.functional.dropout drops values unless it is told not to (its argument training is True by "
        "default); "
        "model.eval() does not reach it";
    finding.remedy =
        "give it training=self.training, or use the module nn.Dropout, which eval() switches off";
    finding.causes = {"F.dropout(x, p) without training=self.training"};
    finding.evidence = {{"evaluations", static_cast<double>(dropping_)}, {"p", p}};
    finding.threshold = fmt::format("{} evaluations (Luff)", limits_.evaluations);
    sink.Report(std::move(finding));
  }

  // Reports masks that a trained model draws in its evaluations. Where batches come again, they are wanted,
  // as they are in passes that are part of the training: a model that makes its own targets.
  void JudgeMasks(const query::Trial& trial, Sink& sink) {
    if (masks_.number < 0 || dropping_told_) return;
    const auto it = models_.find(static_cast<std::uint32_t>(masks_.number));
    if (it == models_.end()) return;
    const Model& model = it->second;
    if (model.evaluations < limits_.evaluations || model.repeats || model.often) return;
    if (!masks_.after_eval && model.of_training) return;  // it is looked at how the training goes
    dropping_told_ = true;
    Finding finding = FindingAt(kName, "dropout", trial, format::kNoId, 0, last_.Info());
    finding.since_step = 0;
    finding.what = fmt::format("dropout of {:g} acts in evaluations", masks_.p);
    if (!masks_.module.empty()) finding.what += " in " + masks_.module;
    if (!masks_.place.empty()) finding.what += ", " + masks_.place;
    finding.why =
        "a pass of an evaluation was made twice with the same arguments, and another part of the values "
        "behind "
        "weights was made zero each time: what is measured is the net with that part missing";
    if (masks_.after_eval) {
      finding.why += "; model.eval() does not reach it";
      finding.remedy =
          "draw the mask only if self.training, which eval() and train() switch, and call both; or use the "
          "module nn.Dropout";
      finding.causes = {"dropout written by hand that asks a flag of its own that nobody turns off, or none",
                        "torch.dropout or torch.nn.functional.dropout with training=True"};
    } else {
      finding.why += "; the model is in training mode there, and in evaluation mode it does not act";
      finding.remedy = "call model.eval() before an evaluation, and model.train() after it";
      finding.causes = {"model.eval() is missing"};
    }
    finding.evidence = {{"evaluations", model.evaluations}, {"p", masks_.p}, {"model", masks_.number}};
    finding.threshold = fmt::format("a fact of one pass, {} evaluations (Luff)", limits_.evaluations);
    sink.Report(std::move(finding));
  }

  void Evaluate(const StepView& view, Sink& sink) {
    Dropped(view, sink);
    const std::uint32_t worker = view.index.first_worker();
    const bool loss = !view.index.scalars(Role::kLoss).empty() || !view.index.summaries(Role::kLoss).empty();
    bool in_evaluation = false;  // a trained model is
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != worker) continue;
      Model* model = nullptr;
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kBatch) {
        const auto it = models_.find(event.row.subject);
        if (it == models_.end()) continue;
        Model& seen = it->second;
        const std::uint64_t batch = BatchOf(event);
        if (seen.last_eval_at == steps_) {
          if (batch == seen.batch) ++seen.repeated;
          if (batch == seen.first_batch) ++seen.rounds;
          if (seen.first_batch == 0) seen.first_batch = batch;
          seen.repeats = seen.repeats || seen.repeated >= kMasks || seen.rounds >= kMasks;
        }
        seen.of_training = seen.of_training || batch == seen.trained_batch;
        seen.batch = batch;
        continue;
      }
      if (kind != EventKind::kForward || (event.row.argument & kTold) == 0) continue;
      const auto it = models_.find(event.row.subject);
      if (it == models_.end()) continue;  // not a trained model
      model = &it->second;
      Begin(*model);
      const std::uint64_t bits = event.row.argument;
      if ((bits & kTraining) != 0 && (bits & kSomeTrain) != 0) {
        ++model->in_training;
      } else {
        ++model->in_evaluation;
        model->evaluated = model->evaluated || (bits & kTraining) == 0;
        model->ever_in_evaluation = true;
        in_evaluation = in_evaluation || (bits & kTraining) == 0;
      }
    }
    if (in_evaluation) HealBefore(sink);
    if (!loss) return;
    for (auto& [number, model] : models_) {
      if (model.last_eval_at == steps_ && model.trained && !model.counted)
        JudgeEvaluation(view.trial, model, limits_.evaluations, sink, BadBefore(model));
    }
  }

  // Evaluations in training mode of models that were trained before this one began and no more since, as in
  // folds and rounds that begin anew.
  [[nodiscard]] std::int64_t BadBefore(const Model& model) const {
    std::int64_t bad = 0;
    for (const auto& [number, other] : models_) {
      const bool over = other.trained_to >= 0 && other.trained_to <= other.last_eval_at &&
                        other.last_eval_at < model.trained_from;
      if (over && (other.ever_in_evaluation || other.repeated >= kMasks)) return 0;
      bad += over ? other.bad_evaluations : 0;
    }
    return bad;
  }

  // Trials that were looked at in training mode are over once a model is evaluated as it should be.
  void HealBefore(Sink& sink) {
    for (auto& [number, model] : models_) {
      if (!model.open_before) continue;
      sink.Heal("evaluation", "", last_.mode_step);
      model.open_eval = model.open_before = false;
      model.bad_evaluations = 0;
    }
  }

  void Begin(Model& model) const {
    if (model.last_eval_at == steps_) return;
    // An evaluation only a few steps after the last one is part of training: a teacher, an adversary, a
    // momentum encoder.
    if (model.last_eval_at >= 0 && steps_ - model.last_eval_at < limits_.between) {
      model.bad_evaluations = 0;
      model.often = true;
    }
    model.last_eval_at = steps_;
    ++model.evaluations;
    model.in_training = model.in_evaluation = 0;
    model.counted = model.of_training = false;
    model.repeated = model.rounds = 0;
    model.batch = model.first_batch = 0;
  }

  static std::uint64_t BatchOf(const query::EventAt& event) noexcept {
    return event.row.argument & ((1ULL << 52) - 1);
  }

  // `before`: evaluations in training mode of the models before this one.
  void JudgeEvaluation(const query::Trial& trial, Model& model, std::int64_t evaluations, Sink& sink,
                       std::int64_t before = 0) const {
    if (model.in_training == 0 || model.in_evaluation > 0 || model.repeated >= kMasks) {
      if (model.in_evaluation > 0) {
        model.bad_evaluations = 0;
        if (model.open_eval) sink.Heal("evaluation", "", last_.mode_step);
        model.open_eval = model.open_before = false;
      }
      return;
    }
    model.counted = true;
    if (model.bad_evaluations++ == 0) model.first_bad = std::max<std::int64_t>(last_.mode_step, 0);
    const std::int64_t bad = model.bad_evaluations + before;
    // Two models in a row may have been looked at for another reason: one more than of a single model.
    if (bad < evaluations + (before > 0 ? 1 : 0)) return;
    model.open_eval = true;
    model.open_before = before > 0;
    Finding finding = FindingAt(kName, "evaluation", trial, format::kNoId, 0, last_.Info());
    finding.since_step = model.first_bad;
    finding.what = bad == 1 ? "the trained model is evaluated in training mode"
                            : fmt::format("{} evaluated in training mode, {} evaluations in a row",
                                          before > 0 ? "one model after the other is" : "the model is", bad);
    finding.why =
        "dropout acts on what is measured, and batch normalisation takes and updates the statistics of the "
        "evaluation's own batches";
    finding.remedy = "call model.eval() before an evaluation, and model.train() after it";
    finding.causes = {"model.eval() is missing", "a callback switches back to model.train() too early"};
    finding.evidence = {{"evaluations", bad}, {"passes", model.in_training}};
    finding.threshold =
        fmt::format("{} evaluations, at least {} steps apart (Luff)", limits_.evaluations, limits_.between);
    sink.Report(std::move(finding));
  }

  static void TellTeacher(const StepView& view, const NoisyTeacher::Found& found, Sink& sink) {
    Finding finding = FindingAt(kName, "teacher", view, TensorAt{format::kNoId});
    finding.tensor = found.teacher;
    finding.since_step = found.since;
    finding.what = fmt::format("{} gives its answers in training mode", found.teacher);
    finding.why = fmt::format(
        "for {} updates it was asked without gradients about the batches that another model is trained on; "
        "its "
        "weights stand still, and its dropout or batch normalisation is in training mode: its answers are "
        "drawn "
        "anew each time, or depend on the batch, and its statistics move",
        found.updates);
    finding.remedy = fmt::format("call eval() on it ({}) before it is asked", found.teacher);
    finding.causes = {"eval() is missing on a teacher or a reference",
                      "train() was called on a module that holds it"};
    finding.evidence = {{"updates", found.updates}};
    finding.threshold = fmt::format("a fact, {} updates in a row (Luff)", NoisyTeacher::kUpdates);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  NoisyTeacher teacher_;
  UnaskedTraining unasked_;
  std::map<std::uint32_t, Model> models_;  // by number
  std::int64_t steps_ = 0;                 // TRAIN steps
  Anchor last_;
  Phases phases_;
  bool loaded_ = false, other_phase_ = false;
  std::int64_t dropping_ = 0,
               dropped_at_ = -1;  // evaluations with functional dropout; `steps_` at the newest
  bool dropping_told_ = false;
  Masks masks_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ModeMismatch>(kName, kParams);
  // 4: cause "dropout"; 5: models that are made anew; 6: three of them; 7: "teacher"; 8: dropout by hand;
  // 9: loops of Keras
  spec.version = 9;
  spec.aliases = {"BatchNormStats"};
  spec.summary = "training in evaluation mode, or evaluation in training mode";
  return spec;
}

}  // namespace luff::rules::mode_mismatch
