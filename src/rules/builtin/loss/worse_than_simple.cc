#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/evaluations.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_modules.h"
#include "rules/facts/phases.h"
#include "rules/facts/sample.h"
#include "rules/facts/simple_answers.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// WorseThanSimple: docs/rules/worse_than_simple.md.
namespace luff::rules::worse_than_simple {
namespace {

constexpr const char* kName = "WorseThanSimple";
constexpr std::size_t kMostLosses = 4;
constexpr std::size_t kMostCalls = 8;  // more than losses: a loss that is not judged shows
constexpr std::size_t kBlocks = 64;
constexpr double kLeft = 0.1;    // share of rows whose class the training has left
constexpr double kNothing = 2;   // standard errors: less is no better than the constant answer
constexpr double kMuch = 0.25;   // left by a model: less is no matter, however little a line leaves
constexpr double kVaries = 0.1;  // share of an evaluation's targets that are not of its most frequent class
constexpr double kShort = 512,
                 kGains = 0.05;            // a short training that gains so much in a quarter may speed up
constexpr std::int64_t kFirstLook = 1024;  // TRAIN steps; then at each power of two, and at the end

struct Limits {
  std::int64_t steps, rows;
  double explains, half, times, z;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::steps, "steps", "128", "TRAIN steps before anything is said (Luff)", AtLeast(8)},
    {&Limits::rows, "rows", "128", "different rows on a side (Luff)", AtLeast(16)},
    {&Limits::explains, "explains", "0.25",
     "share of the constant's loss that what is simple explains (Luff)", Between(0, 1)},
    {&Limits::half, "half", "0.5", "of that share, that a model explains at least (Luff)", Between(0, 1)},
    {&Limits::times, "times", "3", "of what is left by what is simple, that a model leaves at most (Luff)",
     AtLeast(1)},
    {&Limits::z, "z", "4", "standard errors, paired by row: three in 100,000 by chance (Luff)", Above(0)},
};

// Paired losses of the TRAIN steps of a phase, in at most kBlocks blocks of equally many steps.
class Course {
 public:
  void Add(std::int64_t step, const PairedLosses& losses) {
    while (step / length_ >= static_cast<std::int64_t>(kBlocks)) {
      length_ *= 2;
      std::map<std::int64_t, PairedLosses> wider;
      for (const auto& [block, sum] : blocks_) wider[block / 2].Add(sum);
      blocks_ = std::move(wider);
    }
    blocks_[step / length_].Add(losses);
  }
  // The sum of the blocks that begin in these steps.
  [[nodiscard]] PairedLosses Between(double from, double to) const {
    PairedLosses sum;
    for (const auto& [block, losses] : blocks_) {
      const double begin = static_cast<double>(block) * static_cast<double>(length_);
      if (begin >= from && begin < to) sum.Add(losses);
    }
    return sum;
  }
  void VisitFields(Fields& io) {
    io("length", length_);
    io("blocks", blocks_, kBlocks);
    io.Check(length_ >= 1, "steps of a block");
  }

 private:
  std::int64_t length_ = 1;
  std::map<std::int64_t, PairedLosses> blocks_;
};

// An evaluation: answers of what has learnt from the training, and of what learns from the evaluation itself.
struct Evaluated {
  std::int64_t step = -1;  // the last TRAIN step before it
  double distinct = 0;
  PairedLosses by_training, by_itself;
  void VisitFields(Fields& io) {
    io("step", step);
    io("distinct", distinct);
    io("by_training", by_training);
    io("by_itself", by_itself);
  }
};

enum class Verdict : std::uint8_t { kNone, kModel, kPath, kData, kLabels };
constexpr const char* kCauses[] = {"", "model", "evaluation", "evaluation_data", "evaluation_labels"};

class WorseThanSimple final : public KeptRule {
 public:
  explicit WorseThanSimple(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::optional<bool> train = IsTraining(view.rows.info, last_);
    if (!train) return;
    if (*train) {
      Close();
      if (phases_.OnStep(view)) Restart(view.rows.info.mode_step);
      turns_.OnTrainStep(view);
      modules_.OnStep(view);
      TakeRates(view);
      last_.Take(view.rows.info);
    }
    Take(view, *train);
    if (!*train) return;
    const std::int64_t steps = last_.mode_step - first_step_ + 1;
    if (steps >= kFirstLook && (steps & (steps - 1)) == 0) Look(view.trial, false, sink);
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    Close();
    if (last_.mode_step >= 0) Look(trial, true, sink);
  }
  void VisitFields(Fields& io) override {
    io("losses", losses_, kMostLosses);
    io("reader", reader_);
    io("turns", turns_);
    io("phases", phases_);
    io("first_step", first_step_);
    io("last", last_);
    io("calls", calls_, kMostCalls);
    io("asked_steps", asked_steps_);
    io("asked", asked_);
    io("dropout", dropout_);
    io("risen_to", risen_to_);
    io("risen_at", risen_at_);
  }

 private:
  struct Loss {
    std::string name;  // of its tensor
    SimpleAnswers trained, evaluated;
    Course course;
    Evaluated now, last;                           // the evaluation that is going on, and the last that ended
    std::map<std::int64_t, std::int64_t> classes;  // of the training, and the newest step that had each
    std::string seen, told;                        // causes: at the last look, and the one that stands
    void VisitFields(Fields& io) {
      io("name", name);
      io("trained", trained);
      io("evaluated", evaluated);
      io("course", course);
      io("now", now);
      io("last", last);
      io("classes", classes, LineFit::kMostTargets);
      io("seen", seen);
      io("told", told);
    }
  };

  // Another phase has another model or other data. What was told stands.
  void Restart(std::int64_t step) {
    losses_.clear();
    calls_.clear();
    turns_ = {};
    first_step_ = step;
    asked_steps_ = 0;
    risen_to_ = 0;
    risen_at_ = step;
  }

  // The step at which the sum of the rates last rose by a twentieth.
  void TakeRates(const StepView& view) {
    double sum = 0;
    for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting))
      if (tensor.name.ends_with(".lr")) sum += entry.value;
    if (!(sum > 1.05 * risen_to_)) return;
    risen_to_ = sum;
    risen_at_ = view.rows.info.mode_step;
  }

  void Take(const StepView& view, bool train) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    if (train) {
      asked_steps_ += std::exchange(asked_, false) ? 1 : 0;
      dropout_ =
          std::any_of(modules_.modules().begin(), modules_.modules().end(), [](const ModuleFacts& one) {
            return one.kind == ModuleKind::kDropout && one.Number("p").value_or(1) > 0;
          });
    } else {
      asked_ = asked_ || (view.index.losses().empty() && calls.empty());
    }
    for (const LossCall& call : calls) {
      if (call.worker != calls.front().worker) continue;
      if (train && calls_.size() < kMostCalls) calls_.insert(call.key);
      if (IsMixed(call, calls)) continue;
      const Recognition known = reader_.Recognise(call);
      const auto at = losses_.find(call.key);
      if (at == losses_.end() && (!train || losses_.size() >= kMostLosses)) continue;
      const auto examples = RowExamplesOf(view, call, known);
      if (!examples) continue;
      Loss& loss = losses_[call.key];
      if (!loss.trained.Fits(*examples)) continue;
      if (train) {
        loss.name = view.trial.tensor(call.loss).name;
        if (examples->kind == RowExamples::Kind::kClasses)
          for (const double id : examples->targets)
            if (id >= 0) loss.classes[static_cast<std::int64_t>(id)] = last_.mode_step;
        loss.course.Add(std::max<std::int64_t>(last_.mode_step - first_step_, 0),
                        loss.trained.Learn(*examples));
      } else if (loss.evaluated.Fits(*examples) && AreAsked(loss, *examples)) {
        loss.now.step = last_.mode_step;
        loss.now.by_training.Add(loss.trained.Answer(*examples));
        loss.now.by_itself.Add(loss.evaluated.Learn(*examples));
      }
    }
  }

  // Nearly all of these classes were in the last quarter of the training: those before it may be forgotten.
  [[nodiscard]] bool AreAsked(const Loss& loss, const RowExamples& examples) const {
    if (examples.kind != RowExamples::Kind::kClasses) return true;
    const std::int64_t since = last_.mode_step - (last_.mode_step - first_step_ + 1) / 4;
    const auto left = std::count_if(examples.targets.begin(), examples.targets.end(), [&](double id) {
      const auto known = loss.classes.find(static_cast<std::int64_t>(id));
      return id >= 0 && known != loss.classes.end() && known->second < since;
    });
    return static_cast<double>(left) <= kLeft * static_cast<double>(examples.targets.size());
  }

  // The same answers are compared with several targets: inputs were mixed of several samples.
  static bool IsMixed(const LossCall& call, const std::vector<LossCall>& calls) {
    return std::any_of(calls.begin(), calls.end(), [&](const LossCall& other) {
      return &other != &call && other.output.values == call.output.values;
    });
  }

  // Ends the evaluation that is going on, if there is one.
  void Close() {
    for (auto& [key, loss] : losses_) {
      if (loss.now.step < 0) continue;
      loss.now.distinct = loss.evaluated.distinct();
      loss.last = std::exchange(loss.now, {});
      loss.evaluated = {};
    }
  }

  // On the way, two looks must say the same: a part of a model may be trained later on purpose.
  void Look(const query::Trial& trial, bool end, Sink& sink) {
    const std::int64_t steps = last_.mode_step - first_step_ + 1;
    if (steps < limits_.steps || turns_.taken()) return;
    for (auto& [key, loss] : losses_) {
      const Verdict verdict = Judge(loss, static_cast<double>(steps));
      const std::string cause = kCauses[static_cast<std::size_t>(verdict)];
      if (!loss.told.empty() && loss.told != cause) {
        sink.Heal(loss.told, loss.name, last_.mode_step);
        loss.told.clear();
      }
      const bool again = std::exchange(loss.seen, cause) == cause;
      if (verdict == Verdict::kNone || !(end || again)) continue;
      Tell(trial, loss, verdict, static_cast<double>(steps), sink);
      loss.told = cause;
    }
  }

  [[nodiscard]] bool Explains(const PairedLosses& losses, double distinct) const {
    return losses.simple_explains() >= limits_.explains && losses.gain(distinct) >= limits_.z;
  }
  // The model explains less than half of what is simple does, or leaves three times as much, beyond chance.
  [[nodiscard]] bool Behind(const PairedLosses& losses, double distinct) const {
    return IsLess(losses.model_explains(), losses.simple_explains()) && losses.behind(distinct) >= limits_.z;
  }
  [[nodiscard]] bool IsLess(double model_explains, double simple_explains) const {
    return model_explains < limits_.half * simple_explains ||
           1 - model_explains > std::max(kMuch, limits_.times * (1 - simple_explains));
  }

  [[nodiscard]] Verdict Judge(const Loss& loss, double steps) const {
    const auto least = static_cast<double>(limits_.rows);
    const PairedLosses late = loss.course.Between(0.75 * steps, HUGE_VAL);
    const double distinct = loss.trained.distinct();
    if (std::min(late.rows, distinct) < least || !Explains(late, distinct)) return Verdict::kNone;
    // A warm-up that has not ended: its time has not come.
    if (static_cast<double>(risen_at_ - first_step_) >= 0.75 * steps) return Verdict::kNone;
    const Evaluated& evaluation = loss.last;
    // Only a recent one, of as many rows, shows the model as it stands.
    const bool evaluated = static_cast<double>(evaluation.step - first_step_) >= 0.75 * steps - 1 &&
                           std::min(evaluation.by_training.rows, evaluation.distinct) >= least;
    if (Behind(late, distinct)) {
      if (!evaluated && dropout_) return Verdict::kNone;  // in training it answers under it
      if (evaluated && !IsLess(evaluation.by_training.model_explains(), late.simple_explains()))
        return Verdict::kNone;
      if (!AllAreBehind(steps)) return Verdict::kNone;
      if (loss.trained.of_classes() || 2 * asked_steps_ <= static_cast<std::int64_t>(steps))
        return CatchesUp(loss, late, steps) ? Verdict::kNone : Verdict::kModel;
      return Verdict::kNone;  // it may make the targets itself
    }
    if (!evaluated || late.model_explains() < limits_.half) return Verdict::kNone;
    const PairedLosses& told = evaluation.by_training;
    const PairedLosses& own = evaluation.by_itself;
    if (told.known(evaluation.distinct) >= kNothing) return Verdict::kNone;
    // The first rows of a call are kept. Where nearly all of them are of one class they say nothing of the
    // others.
    if (loss.trained.of_classes() && own.constant < kVaries * own.rows) return Verdict::kNone;
    if (Explains(told, evaluation.distinct))
      return Behind(told, evaluation.distinct) ? Verdict::kPath : Verdict::kNone;
    // Numbers drift: their level is another where the evaluation is of a later time.
    if (!loss.trained.of_classes()) return Verdict::kNone;
    if (Explains(own, evaluation.distinct)) {
      const bool carries = told.simple_explains() >= limits_.half * own.simple_explains();
      return !carries && Behind(own, evaluation.distinct) ? Verdict::kData : Verdict::kNone;
    }
    const bool none = std::max(told.gain(evaluation.distinct), own.gain(evaluation.distinct)) < kNothing;
    return none && std::min(own.rows, evaluation.distinct) >= 2 * least ? Verdict::kLabels : Verdict::kNone;
  }

  // Where another loss of the training does well, or cannot be judged, this one may be meant to fail: a head
  // that is to find nothing (adversarial), or that sees little of the inputs (an early exit).
  [[nodiscard]] bool AllAreBehind(double steps) const {
    return std::all_of(calls_.begin(), calls_.end(), [&](const std::string& key) {
      const auto loss = losses_.find(key);
      return loss != losses_.end() &&
             Behind(loss->second.course.Between(0.75 * steps, HUGE_VAL), loss->second.trained.distinct());
    });
  }

  // As fast as in its last quarter, the model would explain as much after as many steps again. Of a short
  // training, it still learns: many stand still at first.
  static bool CatchesUp(const Loss& loss, const PairedLosses& late, double steps) {
    const PairedLosses before = loss.course.Between(0.5 * steps, 0.75 * steps);
    if (before.rows < 1) return true;
    const double gained = late.model_explains() - before.model_explains();
    if (steps < kShort && gained >= kGains) return true;
    return late.simple_explains() - late.model_explains() < 4 * gained;
  }

  void Tell(const query::Trial& trial, const Loss& loss, Verdict verdict, double steps, Sink& sink) const {
    const PairedLosses late = loss.course.Between(0.75 * steps, HUGE_VAL);
    const Evaluated& evaluation = loss.last;
    const char* simple =
        loss.trained.of_tokens() ? "a table of what follows each id" : "a line through the inputs";
    const query::TensorId id = trial.TensorNamed(loss.name).value_or(format::kNoId);
    Finding finding =
        FindingAt(kName, kCauses[static_cast<std::size_t>(verdict)], trial, id, 0, last_.Info());
    finding.tensor = loss.name;
    finding.since_step = first_step_;
    const auto percent = [](double share) { return 100 * share; };
    const std::string trained = fmt::format(
        "in {:.0f} captured rows of the last quarter of {:.0f} steps the model explains {:.0f} % of {}, and "
        "{} that never "
        "saw the row it answers {:.0f} %",
        late.rows, steps, percent(late.model_explains()), loss.name, simple, percent(late.simple_explains()));
    const std::string asked =
        fmt::format("in the {:.0f} rows of the last evaluation the model explains {:.0f} %",
                    evaluation.by_training.rows, percent(evaluation.by_training.model_explains()));
    finding.evidence = {{"rows", late.rows},
                        {"model_explains", late.model_explains()},
                        {"simple_explains", late.simple_explains()},
                        {"standard_errors", late.behind(loss.trained.distinct())}};
    if (evaluation.step >= 0) {
      finding.evidence.push_back({"evaluation_rows", evaluation.by_training.rows});
      finding.evidence.push_back({"model_explains_evaluation", evaluation.by_training.model_explains()});
      finding.evidence.push_back({"simple_explains_evaluation", evaluation.by_training.simple_explains()});
      finding.evidence.push_back({"simple_of_evaluation_explains", evaluation.by_itself.simple_explains()});
    }
    switch (verdict) {
      case Verdict::kNone: return;
      case Verdict::kModel:
        finding.what = fmt::format("{} does far better than the model on the training's own rows", simple);
        finding.why =
            trained + ". The data tell the targets, so the fault is in the model or in how it is trained";
        finding.remedy =
            "train on one batch alone until its loss is near 0; if it stays, follow the inputs through the "
            "model to the "
            "loss, and compare gradients and updates of each layer with its weights";
        finding.causes = {
            "updates that are far too small or far too large: the rate, its schedule, clipping, decay",
            "a part of the model that this loss does not train, or another loss that drowns it",
            "outputs that are reshaped, permuted or limited between the model and the loss",
            "inputs that are lost, mixed or scaled away inside the model"};
        break;
      case Verdict::kPath:
        finding.what = fmt::format("{} carries over to evaluations, and the model does not", simple);
        finding.why = fmt::format(
            "{}; {}, and the line of the training's rows {:.0f} %. So data and targets of evaluations are as "
            "those of the "
            "training: the fault is in how the model is evaluated, or it has learnt its rows by heart",
            trained, asked, percent(evaluation.by_training.simple_explains()));
        finding.remedy =
            "give the evaluation a batch of the training: if the loss is another there, compare both paths "
            "(train() and "
            "eval(), weights, arguments, what is done to inputs inside); else use a smaller model or more "
            "data";
        finding.causes = {"other weights than those that were trained, or statistics of batch normalisation",
                          "arguments, masks or a preprocessing inside the model that differ in evaluations",
                          "a model that learns its rows by heart"};
        break;
      case Verdict::kData:
        finding.what = "inputs tell the targets in another way in evaluations than in the training";
        finding.why = fmt::format(
            "{}; {}, what is simple and was told the training's rows {:.0f} %, and what is told the "
            "evaluation's own "
            "{:.0f} %. So the evaluation's data can be learnt, and are others than those of the training",
            trained, asked, percent(evaluation.by_training.simple_explains()),
            percent(evaluation.by_itself.simple_explains()));
        finding.remedy =
            "prepare inputs and targets of both sets by the same code, and compare some rows of one class in "
            "both";
        finding.causes = {
            "inputs of evaluations that are prepared by other steps: scale, order of axes or columns, "
            "sampling rate, crop",
            "classes that are numbered otherwise", "targets that are shifted on one side"};
        break;
      case Verdict::kLabels:
        finding.what = "the targets of evaluations have nothing to do with their inputs";
        finding.why = fmt::format(
            "{}; {}, and what is simple finds nothing either, whether it was told the training's rows or the "
            "evaluation's "
            "own",
            trained, asked);
        finding.remedy = "look at some samples of the evaluation after all shuffling, joining and slicing";
        finding.causes = {"inputs and targets of evaluations that are shuffled, sorted or cut apart",
                          "targets of another set"};
        break;
    }
    finding.threshold = fmt::format(
        "{} rows, {:g} % explained by what is simple, less than {:g} of it by the model or {:g} times as "
        "much "
        "left, {:g} standard errors (Luff)",
        limits_.rows, 100 * limits_.explains, limits_.half, limits_.times, limits_.z);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossReader reader_;
  ModelModules modules_;
  OptimizerTurns turns_;
  Phases phases_;
  Anchor last_;
  std::int64_t first_step_ = 0;   // of the phase
  std::int64_t asked_steps_ = 0;  // TRAIN steps before which a model was asked and nothing measured
  bool asked_ = false, dropout_ = false;
  double risen_to_ = 0;                 // the largest sum of the learning rates
  std::int64_t risen_at_ = 0;           // and the step that reached it
  std::map<std::string, Loss> losses_;  // by key
  std::set<std::string> calls_;         // keys of the losses of TRAIN steps, judged or not
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<WorseThanSimple>(kName, kParams);
  spec.summary = "a model that does far worse than a line through its inputs, and in which half the fault is";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::worse_than_simple
