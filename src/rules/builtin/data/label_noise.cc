#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/asked_dataset.h"
#include "rules/facts/asked_first.h"
#include "rules/facts/broken_pairs.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/dependence.h"
#include "rules/facts/exchanged_tokens.h"
#include "rules/facts/foreign_targets.h"
#include "rules/facts/input_rows.h"
#include "rules/facts/labelled_rows.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/mask_turns.h"
#include "rules/facts/model_modules.h"
#include "rules/facts/noise_level.h"
#include "rules/facts/noise_target.h"
#include "rules/facts/own_answers.h"
#include "rules/facts/passes.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// LabelNoise: docs/rules/label_noise.md.
namespace luff::rules::label_noise {
namespace {

constexpr const char* kName = "LabelNoise";
constexpr std::size_t kMaxClasses = 1000;
constexpr std::size_t kMaxRows = 1 << 14;
constexpr double kStillLearning = 0.03;
constexpr std::size_t kMaxLosses = 16;
constexpr double kDrowned =
    10;  // deviation of inputs beside that of the noise: it is a hundredth of their variance
constexpr double kEnoughRows = 8192;  // later ones add little
constexpr double kTells = 2;          // times `unrelated`: answers to one batch of an evaluation
constexpr double kHardlyThere = 0.6;  // of a dropout: what is left of a model tells little

struct Limits {
  double share, contradicted, z;
  std::int64_t rows, evaluations;
  double unrelated;
  std::int64_t unrelated_rows;
  double passes;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.1", "rows that are wrong each time, beyond the evaluation's error (Luff)",
     Above(0)},
    {&Limits::contradicted, "contradicted", "0.02",
     "of the rows that come again, how many with another label (Luff)", Above(0)},
    {&Limits::z, "z", "5", "standard errors (Luff)", Above(0)},
    {&Limits::rows, "rows", "100", "rows on either side (Luff)", AtLeast(10)},
    {&Limits::evaluations, "evaluations", "2", "evaluations in a row that must say so (Luff)", AtLeast(1)},
    {&Limits::unrelated, "unrelated", "3", "standard errors by which targets may depend on inputs (Luff)",
     Above(0)},
    {&Limits::unrelated_rows, "unrelated_rows", "1024", "rows that are compared for it (Luff)", AtLeast(64)},
    {&Limits::passes, "passes", "3", "passes over the data before it is said (Luff)", AtLeast(2)},
};

class LabelNoise final : public KeptRule {
 public:
  explicit LabelNoise(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::optional<bool> train = IsTraining(view.rows.info, last_);
    if (!train) return;
    if (*train) {
      asked_first_.OnTrainStep(view);
      modules_.OnStep(view);
      if (eval_rows_ > 0) Judge(sink);
      if (last_.mode_step >= 0) Foreign(sink);
      last_.Take(view.rows.info);
      Training(view, sink);
      TwoLoaders(view, sink);
      passes_.OnTrainStep(view);
    } else {
      asked_first_.OnPass(view, !view.index.losses().empty() || !LossReader::Read(view).empty());
      Evaluation(view);
    }
    Compare(view, *train, sink);
    Match(view, *train);
    if (*train) Unrelated(view, sink);
    if (*train) Turned(view, sink);
    if (*train) Exchanged(view, sink);
    if (*train) OtherNoise(view, sink);
    if (*train) OwnAnswer(view, sink);
  }
  void OnEnd(const query::Trial&, Sink& sink) override {
    if (last_.mode_step >= 0) Foreign(sink);
  }
  void VisitFields(Fields& io) override {
    io("seen", seen_, kMaxRows);
    io("classes", classes_);
    io("eval_rows", eval_rows_);
    io("eval_wrong", eval_wrong_);
    io("best", best_);
    io("in_a_row", in_a_row_);
    io("told", told_);
    io("asked_first", asked_first_);
    io("noise", noise_);
    io("level", level_);
    io("exchanged", exchanged_);
    io("foreign", foreign_);
    io("own_answers", own_answers_);
    io("again", again_);
    io("several_tasks", several_tasks_);
    io("batch", batch_, kMaxRows);
    io("batch_labels", batch_labels_, kMaxRows);
    io("other", other_);
    io("last", last_);
    io("reader", reader_);
    io("passes", passes_);
    io("dependences", dependences_, kMaxLosses);
    io("numbers", numbers_, kMaxLosses);
    io("trained_masks", trained_masks_);
    io("evaluated_masks", evaluated_masks_);
    io.Check(classes_ > 0 || eval_rows_ == 0, "of a number of classes");
  }

 private:
  struct Row {
    std::int64_t label = 0;
    std::uint32_t visits = 0, wrong = 0;  // since the accuracy of evaluations last rose
    void VisitFields(Fields& io) {
      io("label", label);
      io("visits", visits);
      io("wrong", wrong);
    }
  };

  // Labelled rows of the first classification loss of the step. Ignores losses with another number of classes
  // than the first one seen.
  std::optional<LabelledRows> RowsIn(const StepView& view, std::uint32_t* worker = nullptr) {
    for (const LossCall& call : LossReader::Read(view)) {
      if (!call.output.is_float() || !call.whole()) continue;
      const Recognition known = reader_.Recognise(call);
      if (!known.by_value) continue;
      std::optional<LabelledRows> rows = LabelledRowsOf(call, known, kMaxClasses);
      if (!rows || rows->labels.empty() ||
          static_cast<std::int64_t>(rows->labels.size()) != call.target.shape[0])
        continue;
      if (classes_ == 0) classes_ = rows->classes;
      if (rows->classes != classes_) continue;
      if (worker != nullptr) *worker = call.worker;
      return rows;
    }
    return std::nullopt;
  }

  // Whether labels are 0 0 0 1 1 1 2 2 2 or 0 1 2 0 1 2, three classes at least.
  static bool CountsClasses(const std::vector<std::int64_t>& labels) {
    const std::size_t classes =
        labels.empty() ? 0 : static_cast<std::size_t>(std::max<std::int64_t>(labels.back(), 0)) + 1;
    if (classes < 3 || labels.size() % classes != 0) return false;
    const std::size_t each = labels.size() / classes;
    bool blocks = true;
    bool rounds = true;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      blocks = blocks && labels[i] == static_cast<std::int64_t>(i / each);
      rounds = rounds && labels[i] == static_cast<std::int64_t>(i % classes);
    }
    return blocks || rounds;
  }

  void Training(const StepView& view, Sink& sink) {
    std::uint32_t worker = 0;
    const std::optional<LabelledRows> rows = RowsIn(view, &worker);
    if (!rows) return;
    const InputRows inputs(view, worker, rows->labels.size());
    const std::vector<std::uint64_t>& hashes = inputs.hashes();
    if (hashes.empty()) return;
    // A batch that comes at once with other labels has several tasks. In tasks of a few rows of each class
    // labels count the classes of the batch, whichever these are.
    several_tasks_ = several_tasks_ || (hashes == batch_ && rows->labels != batch_labels_) ||
                     (hashes != batch_ && rows->labels == batch_labels_ && CountsClasses(rows->labels));
    if (hashes.size() > kMaxRows) return;
    batch_ = hashes;
    batch_labels_ = rows->labels;
    if (several_tasks_) return;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const auto found = seen_.find(hashes[i]);
      if (found == seen_.end() && seen_.size() >= kMaxRows) continue;
      const bool fresh = found == seen_.end();
      Row& row = fresh ? seen_[hashes[i]] : found->second;
      if (!fresh && inputs.CannotRepeat(i)) {
        again_ += 1;
        if (row.label != rows->labels[i]) other_ += 1;
      }
      row.label = rows->labels[i];
      ++row.visits;
      row.wrong += rows->predictions[i] != rows->labels[i] ? 1 : 0;
    }
    if (other_ >= 10 && other_ >= limits_.contradicted * again_ && told_.insert("contradiction").second) {
      Finding finding = Begin(view.rows.info, "contradiction");
      finding.what =
          fmt::format("the same inputs come with different labels: {:.0f} of {:.0f} times", other_, again_);
      finding.why =
          "rows of the training that are equal in every value have come again with another class: one of the "
          "two labels is wrong, or labels are drawn anew each time";
      finding.remedy = "look at such rows; draw labels once, not in __getitem__; join tables by key";
      finding.causes = {"labels are made at random when a sample is loaded",
                        "duplicates that were labelled twice", "labels and inputs are shuffled apart"};
      finding.evidence = {{"again", again_}, {"other_label", other_}};
      finding.threshold =
          fmt::format("{:g} % of the rows that came again, 10 at least (Luff)", 100 * limits_.contradicted);
      sink.Report(std::move(finding));
    }
  }

  // Targets that are drawn at random and that no input holds: a denoiser is given noise that was drawn anew.
  void OtherNoise(const StepView& view, Sink& sink) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    if (calls.size() != 1 || told_.contains("other_noise") || !calls.front().target.is_float()) return;
    const LossCall& call = calls.front();
    if (call.target.shape.size() < 2 || !IsRegression(reader_.Recognise(call).formula)) return;
    std::vector<std::shared_ptr<const SampleValues>> held;
    std::vector<const SampleValues*> inputs;
    std::vector<const SampleValues*> others;
    bool timed = false;
    bool numbered = false;  // an argument has one number for each row of the batch
    const std::int64_t rows = call.target.shape[0];
    for (const ModelInput& input : ModelInputsOf(view)) {
      auto sample = LoadSample(view, *input.entry);
      if (!sample) continue;
      timed = timed || (!sample->shape.empty() && sample->shape[0] == rows &&
                        ElementsOf(sample->shape) == static_cast<std::size_t>(rows));
      if (sample->is_float() && sample->shape == call.target.shape) {
        inputs.push_back(sample.get());
      } else if (!sample->shape.empty() && sample->whole_shape[0] == call.target.whole_shape[0] &&
                 RowsOf(*sample).count >= static_cast<std::size_t>(rows)) {
        others.push_back(sample.get());
        numbered = numbered || RowsOf(*sample).width == 1;
      }
      held.push_back(std::move(sample));
    }
    noise_.Add(inputs, call.target, call.output, timed);
    if (noise_.Drowns()) TellDrownedData(view, call, sink);
    if (inputs.size() == 1 && numbered) level_.Add(*inputs.front(), call.target, others);
    if (level_.Hidden() && noise_.Draws()) TellHiddenTime(view, call, sink);
    if (!noise_.Holds()) return;
    told_.insert("other_noise");
    const bool drowned = noise_.spread() > kDrowned;
    Finding finding = Begin(view.rows.info, drowned ? "drowned_noise" : "other_noise");
    finding.since_step = 0;
    finding.what = fmt::format("the targets of {} are random numbers that no input holds", call.kind);
    finding.why = fmt::format(
        "they are independent draws from N(0, 1), new in each batch, and their correlation with what the "
        "model "
        "gets is {:.2g} in {:.0f} numbers: the best answer is 0, which is what the loss has come to",
        noise_.correlation(), noise_.elements());
    finding.remedy =
        "draw the noise once in a step, and use it for both: noise = torch.randn_like(x); "
        "loss(model(a * x + b * noise, t), noise)";
    finding.causes = {"noise that is drawn a second time for the target",
                      "a function that adds noise of its own and does not return it",
                      "hardly any noise in the inputs, as at time 0 in each batch"};
    if (drowned) {
      finding.what =
          fmt::format("the noise that the targets of {} hold is lost in inputs {:.0f} times as large",
                      call.kind, noise_.spread());
      finding.remedy =
          "scale the data to about -1 to 1 (pixels: x / 127.5 - 1) before noise is added, and back after "
          "sampling";
      finding.causes = {"data of 0 to 255 that were not scaled",
                        "noise that is drawn a second time for the target"};
    }
    finding.evidence = {{"numbers", noise_.elements()},
                        {"deviation_of_inputs", noise_.spread()},
                        {"correlation", noise_.correlation()},
                        {"left_of_the_errors", noise_.left()}};
    finding.threshold = fmt::format(
        "{:g} numbers, a correlation within four standard errors of 0, {} captured batches without progress "
        "(Luff)",
        NoiseTarget::kElements, NoiseTarget::kIdle);
    sink.Report(std::move(finding));
  }

  // A denoiser whose inputs are the noise that it is to tell: it learns to give back what it got.
  void TellDrownedData(const StepView& view, const LossCall& call, Sink& sink) {
    told_.insert("other_noise");
    Finding finding = Begin(view.rows.info, "drowned_data");
    finding.since_step = 0;
    finding.what = fmt::format(
        "the inputs of a denoiser are the noise that the targets of {} hold, and hardly any data", call.kind);
    finding.why = fmt::format(
        "the targets are independent draws from N(0, 1), new in each batch, and each row of the input goes "
        "together with its own by {:.3g} or more, in {:.0f} numbers: the model learns to give back what it "
        "got",
        noise_.least(), noise_.elements());
    finding.remedy =
        "mix with the cumulated product: abar = torch.cumprod(1 - betas, 0), sqrt(abar[t]) * x + sqrt(1 - "
        "abar[t]) * noise, and draw t from all times";
    finding.causes = {"betas or alphas of one time in the place of their cumulated product",
                      "factors of data and noise exchanged", "only late times are drawn"};
    finding.evidence = {{"least_correlation", noise_.least()}, {"numbers", noise_.elements()}};
    finding.threshold =
        fmt::format("a correlation above {:g} in each of {:g} rows or more, {:g} numbers (Luff)",
                    NoiseTarget::kDrowned, NoiseTarget::kDrownedRows, NoiseTarget::kElements);
    sink.Report(std::move(finding));
  }

  // A denoiser that gets inputs of much and of little noise, and nothing that tells how much.
  void TellHiddenTime(const StepView& view, const LossCall& call, Sink& sink) {
    if (!told_.insert("time_missing").second) return;
    Finding finding = Begin(view.rows.info, "time_missing");
    level_.Tell(call.kind, &finding);
    sink.Report(std::move(finding));
  }

  void Evaluation(const StepView& view) {
    if (several_tasks_) return;
    const std::optional<LabelledRows> rows = RowsIn(view);
    if (!rows) return;
    for (std::size_t i = 0; i < rows->labels.size(); ++i) {
      eval_rows_ += 1;
      eval_wrong_ += rows->predictions[i] != rows->labels[i] ? 1 : 0;
    }
  }

  // Compares the share of training rows that the model gets wrong at every visit with its error on rows that
  // it was never trained on.
  void Judge(Sink& sink) {
    const double rows = eval_rows_;
    const double wrong = eval_wrong_ / rows;
    eval_rows_ = eval_wrong_ = 0;
    const bool learning = 1 - wrong > best_ + kStillLearning;
    best_ = std::max(best_, 1 - wrong);
    double visited = 0;
    double always = 0;
    std::vector<double> of_class(std::min(classes_, kMaxClasses));
    for (const auto& [hash, row] : seen_) {
      if (row.visits < 2) continue;
      visited += 1;
      if (row.wrong < row.visits) continue;
      always += 1;
      if (row.label >= 0 && static_cast<std::size_t>(row.label) < of_class.size())
        of_class[static_cast<std::size_t>(row.label)] += 1;
    }
    if (learning) {
      for (auto& [hash, row] : seen_) row.visits = row.wrong = 0;
      in_a_row_ = 0;
      return;
    }
    if (visited < static_cast<double>(limits_.rows) || rows < static_cast<double>(limits_.rows) ||
        LargestDropout() > 0 || told_.contains("part_of_other_rows"))
      return;
    const double share = always / visited;
    const double pooled = (always + wrong * rows) / (visited + rows);
    const double error = std::sqrt(std::max(pooled * (1 - pooled), 1e-6) * (1 / visited + 1 / rows));
    // A single class that is never learned is not noise.
    const double largest = *std::max_element(of_class.begin(), of_class.end());
    if (share - wrong < limits_.share || share - wrong < limits_.z * error || largest > 0.8 * always) {
      in_a_row_ = 0;
      return;
    }
    if (++in_a_row_ < limits_.evaluations || !told_.insert("always_wrong").second) return;
    Finding finding = Begin(last_.Info(), "always_wrong");
    finding.what =
        fmt::format("about {:.2g} % of the training's labels contradict what the model has learned",
                    100 * (share - wrong));
    finding.why = fmt::format(
        "of {:.0f} rows that it was trained on at least twice it got {:.3g} % wrong each time; of {:.0f} "
        "rows that it was "
        "never "
        "trained on only {:.3g} %. What can be learned from these inputs is learned, and their labels say "
        "otherwise",
        visited, 100 * share, rows, 100 * wrong);
    finding.remedy =
        "look at the rows with the largest loss; correct or leave out wrong labels, or use label smoothing "
        "or "
        "a robust loss; stop before the model learns them by heart";
    finding.causes = {"wrong labels among the training data", "labels joined to the wrong rows",
                      "an evaluation on easier data"};
    finding.evidence = {{"rows", visited}, {"always_wrong", share}, {"evaluation_wrong", wrong}};
    finding.threshold = fmt::format(
        "{:g} of the rows beyond the evaluation's error, {:g} standard errors, in {} "
        "evaluations (Luff)",
        limits_.share, limits_.z, limits_.evaluations);
    sink.Report(std::move(finding));
  }

  // The name that a loss has where a backward pass shows that it is a part of a sum; an evaluation has none.
  static std::string PartOf(std::string name) {
    constexpr std::string_view kWhole = "_output_";
    if (const std::size_t at = name.rfind(kWhole); at != std::string::npos)
      name.replace(at, kWhole.size(), "_part_");
    return name;
  }

  // Adds what the losses of a step tell about the dependence of their targets on inputs. A model's answers
  // count only where it has not been trained on these rows: in the first pass, and in evaluations.
  void Compare(const StepView& view, bool train, Sink& sink) {
    const std::uint32_t worker = view.index.first_worker();
    const auto seed = static_cast<std::uint64_t>(view.rows.info.global_step);
    bool masks = false;
    for (const LossCall& call : LossReader::Read(view)) {
      if (call.worker == worker && call.target.shape.size() >= 3 && !masks) {
        masks = true;
        for (const ModelInput& input : ModelInputsOf(view)) {
          const auto image = LoadSample(view, *input.entry);
          if (image != nullptr) (train ? trained_masks_ : evaluated_masks_).Add(*image, call.target);
        }
      }
      const Recognition known_call = reader_.Recognise(call);
      if (call.worker != worker || !(call.value || known_call.by_value) || known_call.broadcast ||
          NamesPartners(call))
        continue;
      std::string name = view.trial.tensor(call.loss).name;
      if (const std::string part = PartOf(name); !train && !dependences_.contains(name)) name = part;
      const auto known = dependences_.find(name);
      if (known == dependences_.end() && (!train || dependences_.size() >= kMaxLosses)) continue;
      Dependence& dependence = dependences_[name];
      if (call.target.is_float()) numbers_.insert(name);
      const bool fresh = passes_.count() <= 1;
      if (!train || fresh) {
        const auto some = TellingRows(call.output, call.target, call.settings.ignore_index);
        dependence.AddAnswers(some ? some->first : call.output, some ? some->second : call.target, seed);
        // Inputs that tell their neighbours nothing, as sets and parities do, may tell a model all: it has
        // learnt it by now. Of one batch, since the same rows come in each evaluation.
        if (!train && told_.contains("unrelated\n" + name)) {
          Dependence now;
          now.AddAnswers(some ? some->first : call.output, some ? some->second : call.target, seed);
          if (now.z() > kTells * limits_.unrelated) sink.Heal("unrelated", name, last_.mode_step);
        }
      }
      if (!train || dependence.rows() >= kEnoughRows) continue;
      for (const ModelInput& input : ModelInputsOf(view)) {
        const auto sample = LoadSample(view, *input.entry);
        if (sample == nullptr) continue;
        const auto some = TellingRows(*sample, call.target, call.settings.ignore_index);
        dependence.Add(some ? some->first : *sample, some ? some->second : call.target, fresh, seed);
      }
    }
  }

  void Unrelated(const StepView& view, Sink& sink) {
    // Rows that are drawn at random may be made by the training, or be asked for something else each time.
    // That classes come again the same does not help: parities and sums tell neighbours nothing.
    // Nor do a few rows that come again and again: what goes together in them does so by chance, each time.
    if (passes_.count() < limits_.passes || passes_.drawn_at_random() ||
        passes_.of_fewer_rows_than(Dependence::kMostRows))
      return;
    const bool paired = std::any_of(dependences_.begin(), dependences_.end(), [&](const auto& one) {
      return one.second.z() > kTells * limits_.unrelated;
    });
    for (const auto& [name, dependence] : dependences_) {
      // Noise by its nature, beside other targets that go with the inputs: results of games beside moves.
      if (paired && numbers_.contains(name)) continue;
      // What is learnt from its own estimate depends on what was done, which is no input. Classes are no such
      // values.
      if (asked_first_.mostly() && numbers_.contains(name)) continue;
      if (dependence.rows() < static_cast<double>(limits_.unrelated_rows) ||
          dependence.z() > limits_.unrelated || !told_.insert("unrelated\n" + name).second)
        continue;
      Finding finding = Begin(view.rows.info, "unrelated");
      finding.tensor = name;
      finding.what = fmt::format("the targets of {} have nothing to do with the inputs", name);
      finding.why = fmt::format(
          "in {:.0f} rows the targets of inputs that are alike are no more alike than any others ({:.1f} "
          "standard "
          "errors), and of rows that it had not been trained on the model told nothing either: what it "
          "learns, it "
          "learns by heart",
          dependence.rows(), dependence.z());
      finding.remedy =
          "check that inputs and targets belong together: look at some samples after all shuffling, joining "
          "and "
          "slicing";
      finding.causes = {"inputs and targets shuffled apart", "targets shifted by a row",
                        "a wrong join or index", "targets that the inputs do not tell"};
      finding.evidence = {
          {"rows", dependence.rows()}, {"dependence_z", dependence.z()}, {"passes", passes_.count()}};
      finding.threshold = fmt::format("{} rows, dependence below {:g} standard errors, {:g} passes (Luff)",
                                      limits_.unrelated_rows, limits_.unrelated, limits_.passes);
      sink.Report(std::move(finding));
    }
  }

  // Masks that lie on the mirrored or turned image, on one side only.
  void Turned(const StepView& view, Sink& sink) {
    if (told_.contains("turned")) return;
    const std::size_t turn = TurnOfOneSide(trained_masks_, evaluated_masks_, limits_.share, limits_.z);
    if (turn == 0) return;
    told_.insert("turned");
    const double training = trained_masks_.share(turn);
    const double evaluation = evaluated_masks_.share(turn);
    Finding finding = Begin(view.rows.info, "turned");
    finding.what = fmt::format(
        "{:.0f} % of the masks of {} belong to the image {}", 100 * std::max(training, evaluation),
        training > evaluation ? "the training" : "evaluations", MaskTurns::NameOf(turn));
    finding.why = fmt::format(
        "they go together with the image's values if it is {}, and not as it is; of {} {:.0f} % do",
        MaskTurns::NameOf(turn), training > evaluation ? "evaluations" : "the training",
        100 * std::min(training, evaluation));
    finding.remedy =
        "turn an image and its mask together: draw each random flip or rotation once, and apply it to both";
    finding.causes = {"a flip or rotation of the image that leaves its mask behind",
                      "a random transformation that is drawn once for the image and again for the mask",
                      "rows and columns exchanged where images or masks are read"};
    finding.evidence = {{"share_of_training", training},
                        {"share_of_evaluations", evaluation},
                        {"rows", trained_masks_.rows()},
                        {"evaluated_rows", evaluated_masks_.rows()}};
    finding.threshold =
        fmt::format("{:g} of the masks on one side, hardly any on the other, {:g} standard errors (Luff)",
                    limits_.share, limits_.z);
    sink.Report(std::move(finding));
  }

  // Targets that the model has made itself, before it knows anything.
  void OwnAnswer(const StepView& view, Sink& sink) {
    Finding finding = Begin(view.rows.info, "own_answers");
    if (own_answers_.OnTrainStep(view, &reader_, kMaxClasses, &finding)) sink.Report(std::move(finding));
  }

  // Rows of next tokens that follow in another row of the batch.
  void Exchanged(const StepView& view, Sink& sink) {
    if (told_.contains("exchanged_rows")) return;
    const std::optional<ExchangedTokens::Found> found = exchanged_.Add(view);
    if (!found) return;
    told_.insert("exchanged_rows");
    Finding finding = Begin(view.rows.info, "exchanged_rows");
    finding.tensor = view.trial.tensor(found->loss).name;
    TellExchangedTokens(*found, &finding);
    sink.Report(std::move(finding));
  }

  void TwoLoaders(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("broken_pairs")) {
      Finding finding = Begin(view.rows.info, "two_loaders");
      if (TellBrokenPairs(*event, &finding) && told_.insert("two_loaders").second)
        sink.Report(std::move(finding));
    }
    for (const auto& event : view.index.json_events("dataset")) {
      Finding finding = Begin(view.rows.info, "moved_apart");
      if (TellMovedApart(*event, &finding)) sink.Report(std::move(finding));
    }
  }

  // A part of the training's targets that belongs to other rows.
  void Foreign(Sink& sink) {
    const ForeignTargets::Limits limits{limits_.share, limits_.z, limits_.evaluations};
    const std::optional<ForeignTargets::Found> found = foreign_.Close(limits);
    // Rows that are always wrong tell the same; a model that is hardly there in training tells nothing.
    if (!found || several_tasks_ || LargestDropout() > kHardlyThere || told_.contains("always_wrong") ||
        !told_.insert("part_of_other_rows").second)
      return;
    Finding finding = Begin(last_.Info(), "part_of_other_rows");
    TellForeignTargets(*found, limits, &finding);
    sink.Report(std::move(finding));
  }

  // What a call tells about targets of other rows. A batch of which two losses are taken may be mixed of two.
  void Match(const StepView& view, bool train) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    if (calls.size() != 1) return;
    // One target for each row of the model's input: places of a text are no independent rows, and a denoiser
    // that copies its input is definite where that was changed.
    const std::vector<std::int64_t>& wanted = calls.front().target.whole_shape;
    std::vector<std::uint64_t> keys;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->whole_shape.empty() || wanted.empty()) continue;
      if (sample->whole_shape[0] != wanted[0]) return;
      if (train && keys.empty()) keys = RowHashes(*sample);
    }
    foreign_.Add(calls.front(), reader_.Recognise(calls.front()), train, keys);
  }

  [[nodiscard]] double LargestDropout() const {
    double largest = 0;
    for (const ModuleFacts& module : modules_.modules())
      if (module.kind == ModuleKind::kDropout) largest = std::max(largest, module.Number("p").value_or(1));
    return largest;
  }

  static Finding Begin(const query::StepInfo& info, const char* cause) {
    Finding finding;
    finding.rule = kName;
    finding.page = PageOf(kName);
    finding.cause = cause;
    finding.step = finding.last_step = info.mode_step;
    finding.global_step = info.global_step;
    finding.update = info.update;
    finding.since_step = 0;
    return finding;
  }

  const Limits limits_;
  LossReader reader_;
  ModelModules modules_;
  Anchor last_;
  std::unordered_map<std::uint64_t, Row> seen_;
  bool several_tasks_ = false;
  std::vector<std::uint64_t> batch_;  // rows of the newest captured batch, and their labels
  std::vector<std::int64_t> batch_labels_;
  std::size_t classes_ = 0;
  ExchangedTokens exchanged_;
  ForeignTargets foreign_;
  OwnAnswers own_answers_;
  double eval_rows_ = 0, eval_wrong_ = 0, best_ = 0, again_ = 0, other_ = 0;
  std::int64_t in_a_row_ = 0;
  std::set<std::string> told_;
  AskedFirst asked_first_;
  NoiseTarget noise_;
  NoiseLevel level_;
  MaskTurns trained_masks_, evaluated_masks_;
  Passes passes_;
  std::map<std::string, Dependence> dependences_;  // by name of the loss
  std::set<std::string> numbers_;                  // those of them whose targets are numbers
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LabelNoise>(kName, kParams);
  // 6: noise that was drawn anew; 7: that is drowned; 8: data that are; 10: own targets, hidden times
  // 14: tests by hand make no targets; 15: rows of all inputs; 16: "own_answers", few rows, "two_loaders"
  // 17: "unrelated" heals; 18: beside related targets, and it looks at shared vectors
  spec.version = 18;
  spec.summary = "labels of the training that contradict each other, the inputs, or all that was learned";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::label_noise
