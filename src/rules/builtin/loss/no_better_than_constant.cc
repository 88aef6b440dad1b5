#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/evaluations.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/passes.h"
#include "rules/facts/phases.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// NoBetterThanConstant: docs/rules/no_better_than_constant.md.
namespace luff::rules::no_better_than_constant {
namespace {

constexpr const char* kName = "NoBetterThanConstant";
constexpr std::size_t kMaxLabels = 1024;
constexpr std::size_t kRecent = 32;  // newest training batches that are compared
constexpr std::size_t kEvaluations = 64;
constexpr std::size_t kMaxParts = 16;  // models and calls of an evaluation
constexpr double kLeastRows = 16;      // of an evaluation
constexpr double kClear = 0.02;        // share of the constant's loss that proves learning

struct Limits {
  std::int64_t evaluations;
  double passes, plateau_passes;
  std::int64_t plateau_steps;
  double z;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::evaluations, "evaluations", "3", "evaluations, none of them better", Within(2, kEvaluations)},
    {&Limits::passes, "passes", "3", "passes over the training data, where these are learnt by heart"},
    {&Limits::plateau_passes, "plateau_passes", "15",
     "passes, where the training itself is no better either"},
    {&Limits::plateau_steps, "plateau_steps", "300", "and TRAIN steps"},
    {&Limits::z, "z", "2", "standard errors by which an evaluation is better (paired by sample)"},
};

// Differences of losses, paired by sample: the constant's minus the model's.
struct Gain {
  double count = 0, sum = 0, squares = 0, constant = 0;
  void Add(const Gain& other) {
    count += other.count;
    sum += other.sum;
    squares += other.squares;
    constant += other.constant;
  }
  [[nodiscard]] double mean() const { return count > 0 ? sum / count : 0; }
  [[nodiscard]] double error() const {  // of the mean
    if (count < 2) return HUGE_VAL;
    const double variance = std::max(squares / count - mean() * mean(), 0.0);
    return std::sqrt(variance / count) + 1e-9 * std::abs(constant / count) + 1e-300;
  }
  [[nodiscard]] double z() const { return count < 2 ? 0 : mean() / error(); }
  [[nodiscard]] double share() const { return constant > 0 ? sum / constant : 0; }
  void VisitFields(Fields& io) {
    io("count", count);
    io("sum", sum);
    io("squares", squares);
    io("constant", constant);
  }
};

// What the targets alone tell: the frequency of each class, or the mean.
struct Prior {
  std::map<std::int64_t, double> labels;
  double count = 0, sum = 0, scale = 0;
  void VisitFields(Fields& io) {
    io("labels", labels, kMaxLabels);
    io("count", count);
    io("sum", sum);
    io("scale", scale);
  }
};

class NoBetterThanConstant final : public KeptRule {
 public:
  explicit NoBetterThanConstant(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode == query::Mode::kTrain) {
      Close(view.trial, sink);
      if (phases_.OnStep(view)) Restart(info.mode_step);
      turns_.OnTrainStep(view);
      passes_.OnTrainStep(view);
      last_.Take(info);
    } else if (info.mode != query::Mode::kEval || last_.mode_step < 0) {
      return;
    }
    const std::vector<LossCall>& calls = reader_.Read(view);
    const std::string models =
        info.mode == query::Mode::kEval && !calls.empty() ? ModelsOf(view, calls.front().worker) : "";
    for (const LossCall& call : calls) {
      if (call.worker != calls.front().worker) continue;
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.kind)) continue;
      Kind& kind = kinds_[call.kind];
      kind.loss = view.trial.tensor(call.loss).name;
      Recognition found = reader_.Recognise(call);
      if (info.mode == query::Mode::kTrain) {
        const Gain gain = Compare(call, found, &kind);
        if (gain.count > 0) {
          kind.recent.push_back(gain);
          if (kind.recent.size() > kRecent) kind.recent.pop_front();
        }
        Learn(call, &kind.prior);
      } else {
        Part* part = kind.PartOf(models + "\n" + call.key);
        if (part == nullptr) continue;
        if (!std::exchange(part->known, true)) part->trained = AnyTrained(view, calls.front().worker);
        part->gain.Add(Compare(call, found, &kind));
        evaluating_ = true;
      }
    }
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override { Close(trial, sink); }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("reader", reader_);
    io("passes", passes_);
    io("turns", turns_);
    io("phases", phases_);
    io("first_step", first_step_);
    io("last", last_);
    io("evaluating", evaluating_);
  }

 private:
  // What an evaluation measures of one model, or of one of its outputs.
  struct Part {
    Gain gain;
    bool known = false, trained = false;  // `trained`: an optimizer holds a parameter of the model
    void VisitFields(Fields& io) {
      io("gain", gain);
      io("known", known);
      io("trained", trained);
    }
  };
  struct Kind {
    std::string loss;  // name of its tensor
    Prior prior;
    std::deque<Gain> recent;
    std::map<std::string, Part> pending;  // of the current evaluation
    std::deque<std::pair<std::int64_t, Gain>> evaluations;
    std::int64_t above = 0;  // evaluations that were better than the constant
    bool better = false;     // two of them were, or one clearly
    bool open = false;
    void VisitFields(Fields& io) {
      io("loss", loss);
      io("prior", prior);
      io("recent", recent, kRecent);
      io("pending", pending, kMaxParts);
      io("evaluations", evaluations, kEvaluations);
      io("above", above);
      io("better", better);
      io("open", open);
    }
    Part* PartOf(const std::string& key) {  // null: there are too many
      if (pending.size() >= kMaxParts && !pending.contains(key)) return nullptr;
      return &pending[key];
    }
    // The current evaluation, ended: of several models that were asked, those that are trained count, and of
    // these the best. A teacher, a baseline or an average that has only begun may be at the level of a
    // constant.
    Gain TakePending() {
      const Part* best = nullptr;
      for (const auto& [key, part] : pending) {
        if (part.gain.count < kLeastRows) continue;
        const bool counts = best == nullptr || part.trained > best->trained ||
                            (part.trained == best->trained && part.gain.share() > best->gain.share());
        if (counts) best = &part;
      }
      const Gain gain = best == nullptr ? Gain() : best->gain;
      pending.clear();
      return gain;
    }
  };

  // Names of the models that are called in a step, and whether an optimizer holds one of them.
  static std::string ModelsOf(const StepView& view, std::uint32_t worker) {
    std::string names;
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (input.entry->worker == worker && input.index == 0) names += input.model + " ";
    }
    return names;
  }
  static bool AnyTrained(const StepView& view, std::uint32_t worker) {
    const auto& inputs = ModelInputsOf(view);
    return std::any_of(inputs.begin(), inputs.end(), [&](const ModelInput& input) {
      return input.entry->worker == worker && view.memo.Facts(view).IsPartlyOptimized(input.model);
    });
  }

  // Another phase has other data and another loss, though perhaps of the same name. What was told stands
  // until an evaluation is better.
  void Restart(std::int64_t step) {
    std::map<std::string, Kind> open;
    for (const auto& [name, kind] : kinds_)
      if (kind.open) open[name].open = true;
    kinds_ = std::move(open);
    passes_.Restart(step);
    turns_ = {};
    first_step_ = step;
  }

  static void Learn(const LossCall& call, Prior* prior) {
    if (!call.target.is_float()) {
      for (const double id : call.target.values) {
        if (id == call.settings.ignore_index || !(std::abs(id) < 1e15)) continue;
        if (prior->labels.size() < kMaxLabels || prior->labels.contains(static_cast<std::int64_t>(id)))
          ++prior->labels[static_cast<std::int64_t>(id)];
        ++prior->count;
        prior->sum += id == 1 ? 1 : 0;
      }
      return;
    }
    for (const double y : call.target.values) {
      if (!std::isfinite(y)) continue;
      if (prior->scale == 0) prior->scale = y != 0 ? std::abs(y) : 0;
      ++prior->count;
      prior->sum += y / (prior->scale > 0 ? prior->scale : 1);
    }
  }

  // Returns an empty gain if the loss or its weights are unknown, or all targets have one value.
  [[nodiscard]] static Gain Compare(const LossCall& call, const Recognition& found, const Kind* kind) {
    const Prior& prior = kind->prior;
    if (found.broadcast || prior.count < 32 || found.per_sample.empty()) return {};
    std::vector<double> constant;
    double unit = 1;  // unit of errors, to keep sums small
    const std::vector<double>& targets = call.target.values;
    if (found.formula == Formula::kCrossEntropy || found.formula == Formula::kNll) {
      const auto classes = ClassRowsOf(call);
      if (!classes || found.weights == Weights::kSome || prior.labels.size() < 2 || NamesPartners(call))
        return {};
      const double total = prior.count + static_cast<double>(classes->classes);
      double all = 0;
      for (std::size_t c = 0; c < classes->classes; ++c) all += std::log(total / (Count(prior, c) + 1));
      const double smoothing = found.formula == Formula::kCrossEntropy ? call.settings.label_smoothing : 0;
      for (const double id : classes->ids) {
        if (id == call.settings.ignore_index) continue;
        const double own = std::log(total / (Count(prior, static_cast<std::size_t>(std::max(id, 0.0))) + 1));
        constant.push_back((1 - smoothing) * own + smoothing * all / static_cast<double>(classes->classes));
      }
    } else if (found.formula == Formula::kBceWithLogits || found.formula == Formula::kBce) {
      if (found.weights == Weights::kUnknown && found.formula == Formula::kBceWithLogits && !found.by_value)
        return {};
      const double scale = prior.scale > 0 ? prior.scale : 1;
      const double share = std::clamp(prior.sum * scale / prior.count, 0.0, 1.0);
      const double weight = found.pos_weight;
      const double positives = weight * share + 1 / prior.count;
      const double p = positives / (positives + 1 - share + 1 / prior.count);
      for (const double y : targets) constant.push_back(-weight * y * std::log(p) - (1 - y) * std::log1p(-p));
    } else if (IsRegression(found.formula)) {
      const double scale = prior.scale > 0 ? prior.scale : 1;
      const double mean = prior.sum * scale / prior.count;
      const double delta = call.settings.delta > 0 ? call.settings.delta : 1;
      for (const double y : targets) {
        const double d = std::abs(y - mean);
        if (found.formula == Formula::kMse) constant.push_back(d * d);
        if (found.formula == Formula::kL1) constant.push_back(d);
        if (found.formula == Formula::kSmoothL1)
          constant.push_back(d < delta ? d * d / delta / 2 : d - delta / 2);
        if (found.formula == Formula::kHuber)
          constant.push_back(d < delta ? d * d / 2 : delta * (d - delta / 2));
      }
      unit = found.formula == Formula::kMse ? scale * scale : scale;
    } else {
      return {};
    }
    if (constant.size() < 2 || constant.size() != found.per_sample.size()) return {};
    if (std::all_of(targets.begin(), targets.end(), [&](double y) { return y == targets.front(); }))
      return {};
    Gain gain;
    for (std::size_t i = 0; i < constant.size(); ++i) {
      // Clamps to 1,000: beyond it precision does not matter, and sums stay small.
      const double d = std::clamp((constant[i] - found.per_sample[i]) / unit, -1e3, 1e3);
      if (!std::isfinite(d)) return {};
      ++gain.count;
      gain.sum += d;
      gain.squares += d * d;
      gain.constant += std::min(constant[i] / unit, 1e3);
    }
    return gain;
  }
  static double Count(const Prior& prior, std::size_t label) {
    const auto it = prior.labels.find(static_cast<std::int64_t>(label));
    return it == prior.labels.end() ? 0 : it->second;
  }

  // Ends the current evaluation, if there is one, and judges it.
  void Close(const query::Trial& trial, Sink& sink) {
    if (!evaluating_) return;
    evaluating_ = false;
    bool other_better = false;
    for (auto& [name, kind] : kinds_) {
      if (const Gain measured = kind.TakePending(); measured.count > 0) {
        kind.evaluations.emplace_back(last_.mode_step, measured);
        if (kind.evaluations.size() > kEvaluations) kind.evaluations.pop_front();
        // A model that still gives nearly one answer may fit the evaluation's frequencies by chance.
        if (measured.z() > limits_.z) {
          ++kind.above;
          kind.better = kind.better || kind.above >= 2 || measured.share() > kClear;
        }
        if (kind.better && kind.open) {
          sink.Heal("no_better", kind.loss, last_.mode_step);
          kind.open = false;
        }
      }
      other_better = other_better || kind.better;
    }
    if (other_better || turns_.taken()) return;
    for (auto& [name, kind] : kinds_) Judge(trial, &kind, sink);
  }

  void Judge(const query::Trial& trial, Kind* kind, Sink& sink) const {
    const auto& evaluations = kind->evaluations;
    if (static_cast<std::int64_t>(evaluations.size()) < limits_.evaluations) return;
    if (evaluations.back().first != last_.mode_step) return;
    Gain training;
    for (const Gain& gain : kind->recent) training.Add(gain);
    // Evaluations see the same samples again, so adding them up does not reduce the error.
    Gain last;
    Gain before;
    const std::size_t counted = static_cast<std::size_t>(limits_.evaluations);
    for (std::size_t i = 0; i < evaluations.size(); ++i) {
      if (i + counted >= evaluations.size()) last.Add(evaluations[i].second);
      if (i + 1 < evaluations.size()) before.Add(evaluations[i].second);
    }
    const Gain& newest = evaluations.back().second;
    const double error = last.error() * std::sqrt(static_cast<double>(counted));
    const bool rises = newest.mean() - before.mean() > 2 * std::hypot(newest.error(), newest.error());
    if (last.mean() > 0.5 * error || rises || training.count < 256) return;
    const double gap = training.mean() - last.mean();
    const bool memorised = passes_.count() >= limits_.passes && training.z() > 4 && training.share() < 0.25 &&
                           gap > 2 * std::hypot(training.error(), error);
    // At the constant's level for long, in training and in the last four evaluations.
    bool plateau = passes_.count() >= limits_.plateau_passes && !passes_.drawn_at_random() &&
                   last_.mode_step - first_step_ >= limits_.plateau_steps && evaluations.size() >= 4 &&
                   std::abs(training.share()) < 0.05 && training.share() < 0.01;
    for (std::size_t i = 0; plateau && i < 4; ++i)
      plateau = std::abs(evaluations[evaluations.size() - 1 - i].second.share()) < 0.05;
    if (!memorised && !plateau) return;
    kind->open = true;
    const query::TensorId loss = trial.TensorNamed(kind->loss).value_or(format::kNoId);
    Finding finding = FindingAt(kName, "no_better", trial, loss, 0, last_.Info());
    finding.tensor = kind->loss;
    finding.since_step = first_step_;
    finding.what = fmt::format(
        "after {:.1f} passes over the data evaluations of {} are no better than answering the same for every "
        "sample",
        passes_.count(), kind->loss);
    finding.why =
        memorised
            ? "the training data are slowly learnt by heart, but nothing carries over: inputs and targets "
              "seem to have nothing to do with each other"
            : "neither training nor evaluation get better than the best constant answer, pass after pass";
    finding.remedy =
        memorised
            ? "check that inputs and targets belong together: look at some samples after all shuffling"
            : "check that the input reaches the output, the learning rate, and that targets fit the inputs";
    finding.causes =
        memorised ? std::vector<std::string>{"inputs and targets shuffled apart", "a wrong join or index",
                                             "targets that the inputs do not tell"}
                  : std::vector<std::string>{"inputs that do not reach the output",
                                             "a learning rate or initialisation that stops learning",
                                             "inputs and targets shuffled apart"};
    finding.evidence = {{"passes", passes_.count()},
                        {"evaluations", evaluations.size()},
                        {"evaluation_gain_share", last.share()},
                        {"evaluation_gain_z", last.mean() / error},
                        {"training_gain_share", training.share()},
                        {"training_gain_z", training.z()}};
    for (const auto& [step, gain] : evaluations) finding.series.emplace_back(step, gain.share());
    finding.threshold =
        fmt::format("{} evaluations, {:g} passes, none {:g} standard errors better (Luff)",
                    limits_.evaluations, memorised ? limits_.passes : limits_.plateau_passes, limits_.z);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossReader reader_;
  Passes passes_;
  OptimizerTurns turns_;
  Phases phases_;
  std::int64_t first_step_ = 0;  // of the phase
  Anchor last_;
  bool evaluating_ = false;
  std::map<std::string, Kind> kinds_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<NoBetterThanConstant>(kName, kParams);
  spec.version = 2;  // 2: phases, and several models that are asked
  spec.summary = "a model that stays no better than the best constant answer on data it has not seen";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::no_better_than_constant
