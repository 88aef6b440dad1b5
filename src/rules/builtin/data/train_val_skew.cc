#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/facts/asked_dataset.h"
#include "rules/facts/collected_rows.h"
#include "rules/facts/column_order.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/correlations.h"
#include "rules/facts/distinct_rows.h"
#include "rules/facts/evaluations.h"
#include "rules/facts/features.h"
#include "rules/facts/foreign_evaluations.h"
#include "rules/facts/id_effects.h"
#include "rules/facts/input_places.h"
#include "rules/facts/passes.h"
#include "rules/facts/phases.h"
#include "rules/facts/prepared_apart.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/facts/target_skew.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// TrainValSkew: docs/rules/train_val_skew.md.
namespace luff::rules::train_val_skew {
namespace {

constexpr const char* kName = "TrainValSkew";
constexpr std::size_t kMaxInputs = 16;
constexpr std::size_t kMaxMade = 64;  // models whose inputs are made by the graph
constexpr double kMaxKurtosis = 20;   // above it, a sample says little about the spread

struct Limits {
  std::int64_t rows;
  double shift, spread, share, absent, together, apart;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::rows, "rows", "32", "rows of the training and of an evaluation, at least (Luff)"},
    {&Limits::shift, "shift", "2.5", "distance of means in deviations of the training (Luff)"},
    {&Limits::spread, "spread", "2.5", "ratio of deviations, either way (Luff)", Above(1)},
    {&Limits::share, "share", "0.5", "share of features that differ so (Luff)"},
    {&Limits::absent, "absent", "0.1",
     "share of features that never vary in training and do in evaluations (Luff)"},
    {&Limits::together, "together", "0.4", "correlation, on one side, of values that go together (Luff)"},
    {&Limits::apart, "apart", "0.33", "share of it that is left on the other side, at most (Luff)"},
};

class TrainValSkew final : public KeptRule {
 public:
  explicit TrainValSkew(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::optional<bool> train = IsTraining(view.rows.info, last_);
    collected_.OnStep(view);
    if (!train || collected_.collects()) return;
    if (*train) {
      Judge(view.trial, sink);
      last_.Take(view.rows.info);
      turns_.OnTrainStep(view);
      if (phases_.OnStep(view)) {  // fine-tuning has other data
        inputs_.clear();
        targets_ = TargetSkew();
        arrangements_.clear();
        passes_.Restart(view.rows.info.mode_step);
        steps_ = 0;
      }
      ++steps_;
      passes_.OnTrainStep(view);
    }
    targets_.Add(view, *train);
    foreign_.OnStep(view, *train);
    if (*train) Asked(view, sink);
    for (const auto& event : view.index.json_events("made_inputs")) {
      const auto model = event->find("model");
      if (model != event->end() && model->is_string() && fed_back_.size() < kMaxMade)
        fed_back_.insert(model->get<std::string>());
    }
    Arrange(view, *train);
    for (const ModelInput& input : ModelInputsOf(view)) {
      // Calls that go on from their own results, as rollouts and solvers of equations do, have no inputs that
      // could be compared: evaluations may go further. Parts that get what the part before has made have no
      // data: what they get moves as that part learns.
      const bool cast = !IsFloating(input.entry->dtype);
      if ((cast && !IsCast(view, input)) || fed_back_.contains(input.model)) continue;
      auto sample = LoadRows(view, input, inputs_, kMaxInputs);
      if (sample == nullptr) continue;
      if (cast) {
        auto numbers = std::make_shared<SampleValues>(*sample);
        numbers->dtype = DType::kFloat32;
        sample = std::move(numbers);
      }
      const std::string& name = view.trial.tensor(input.entry->tensor).name;
      if (!cast) floats_.insert(name);
      Input& one = inputs_[name];
      (*train ? one.seen : one.evaluated_seen).Add(*sample);
      (*train ? one.training : one.evaluation).Add(*sample);
      (*train ? one.together : one.evaluated_together).Add(*sample);
      one.apart.Add(*sample, *train);
      // A channel of an image is one feature; lost are single places.
      const Rows rows = RowsOf(*sample);
      if (sample->shape.size() < 4 || rows.width > Features::kMaxFeatures) continue;
      SampleValues flat = *sample;
      flat.shape = {static_cast<std::int64_t>(rows.count), static_cast<std::int64_t>(rows.width)};
      (*train ? one.places : one.evaluated_places).Add(flat);
    }
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    if (!collected_.collects()) Judge(trial, sink, true);
  }

  void VisitFields(Fields& io) override {
    io("open", open_);
    io("last", last_);
    io("turns", turns_);
    io("phases", phases_);
    io("steps", steps_);
    io("inputs", inputs_, kMaxInputs);
    io("targets", targets_);
    io("foreign", foreign_);
    io("arrangements", arrangements_, kMaxArranged);
    io("passes", passes_);
    io("collected", collected_);
    io("fed_back", fed_back_, kMaxMade);
    io("floats", floats_, kMaxInputs);
  }

 private:
  struct Input {
    Features training, evaluation;
    Features places, evaluated_places;  // the same of images, each place a feature
    Correlations together, evaluated_together;
    DistinctRows seen, evaluated_seen;
    PreparedApart apart;
    void VisitFields(Fields& io) {
      io("training", training);
      io("evaluation", evaluation);
      io("places", places);
      io("evaluated_places", evaluated_places);
      io("together", together);
      io("evaluated_together", evaluated_together);
      io("seen", seen);
      io("evaluated_seen", evaluated_seen);
      io("apart", apart);
    }
    // Different rows in sums of the training, and of evaluations: of few that come at every step, sums grow
    // and evidence does not.
    [[nodiscard]] std::int64_t Trained(const auto& sums) const { return std::min(sums.rows(), seen.count()); }
    [[nodiscard]] std::int64_t Evaluated(const auto& sums) const {
      return std::min(sums.rows(), evaluated_seen.count());
    }
  };

  // Which place of a row holds what, and which id is which.
  struct Arrangement {
    InputPlaces places, evaluated_places;
    IdEffects ids, evaluated_ids;
    std::uint64_t order = 0;  // of the rows of the last evaluation
    void VisitFields(Fields& io) {
      io("places", places);
      io("evaluated_places", evaluated_places);
      io("ids", ids);
      io("evaluated_ids", evaluated_ids);
      io("order", order);
    }
  };

  // Whether integers are numbers to a model: Keras' models of layers make floats of what they are given. Ids
  // are integers on both sides; bytes are pixels, unless a table looks them up.
  [[nodiscard]] bool IsCast(const StepView& view, const ModelInput& input) const {
    const ModelFacts& facts = view.memo.Facts(view);
    if (!facts.keras() || IsComplex(input.entry->dtype)) return false;
    const auto& types = facts.ModuleTypes(input.model);
    const auto own = types.find("");
    if (own == types.end() || (own->second != "Sequential" && own->second != "Functional")) return false;
    const bool table =
        std::any_of(types.begin(), types.end(), [](const auto& one) { return one.second == "Embedding"; });
    if (input.entry->dtype == DType::kUInt8) return !table;
    const auto known = floats_.find(view.trial.tensor(input.entry->tensor).name);
    return known != floats_.end() && !table;
  }

  void Arrange(const StepView& view, bool train) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    const SampleValues* target = calls.size() == 1 ? &calls.front().target : nullptr;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const std::string& name = view.trial.tensor(input.entry->tensor).name;
      if (fed_back_.contains(input.model) ||
          (arrangements_.size() >= kMaxArranged && !arrangements_.contains(name)))
        continue;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr) continue;
      Arrangement& one = arrangements_[name];
      // Rows that come again would make chance look certain; a few pairs of ids do in any data.
      if (train && passes_.count() >= kOnePass) continue;
      if (sample->is_float()) (train ? one.places : one.evaluated_places).Add(*sample, target);
      if (IsIds(sample->dtype)) (train ? one.ids : one.evaluated_ids).Add(*sample, target, !train);
    }
  }

  // Reports inputs whose places, or ids, mean others in evaluations than in training.
  void Arranged(const query::Trial& trial, const std::string& name, Arrangement& one, bool end, Sink& sink) {
    const std::optional<MovedPlaces> moved = FindMoved(one.places, one.evaluated_places);
    if (moved && open_.insert(name + "\nmoved").second) Moved(trial, name, *moved, sink);
    // Of rows that are shuffled for each evaluation nobody can tell which of them belong together. The only
    // evaluation of a training, of all rows in one call, has them as they are.
    const std::uint64_t order = one.evaluated_ids.Order();
    const bool only = end && one.order == 0 && one.evaluated_ids.batches() == 1;
    const bool again = order != 0 && (order == one.order || only);
    one.order = order;
    if (!again) return;
    const std::optional<Recoded> recoded = FindRecoded(one.ids, one.evaluated_ids);
    if (recoded && open_.insert(name + "\nrecoded").second) TellRecoded(trial, name, *recoded, sink);
  }

  void Asked(const StepView& view, Sink& sink) const {
    for (const auto& event : view.index.json_events("dataset")) {
      Finding finding = FindingAt(kName, "", view.trial, format::kNoId, 0, view.rows.info);
      if (TellAskedDataset(*event, &finding)) sink.Report(std::move(finding));
    }
  }

  // Reports columns or arguments of ids that hold each other's ids in evaluations.
  void Exchanged(const query::Trial& trial, Sink& sink) {
    if (std::none_of(arrangements_.begin(), arrangements_.end(),
                     [](const auto& one) { return one.second.evaluated_ids.rows() > 0; }))
      return;
    std::vector<IdColumn> columns;
    for (const auto& [name, one] : arrangements_) {
      const std::size_t count = std::min(one.ids.columns().size(), one.evaluated_ids.columns().size());
      for (std::size_t f = 0; f < count && columns.size() < kMaxIdColumns; ++f)
        columns.push_back({count > 1 ? fmt::format("column {} of {}", f, name) : name, &one.ids.columns()[f],
                           &one.evaluated_ids.columns()[f]});
    }
    const std::optional<ExchangedIds> found = FindExchanged(columns);
    if (!found || !open_.insert("\nexchanged").second) return;
    Finding finding = FindingOn("exchanged", "", trial);
    finding.what = fmt::format("{} and {} are swapped: evaluations and training give them each other's ids",
                               found->first, found->second);
    finding.why = fmt::format(
        "ids of each are {:.3g} standard errors or more away from being as frequent in evaluations as in "
        "training, "
        "and {:.2g} at most if the two are exchanged",
        found->as_they_are, found->exchanged);
    finding.remedy = "call the model with the same order of arguments, or of columns, in both; name them";
    finding.causes = {"two arguments in the wrong order in one of the calls",
                      "columns in another order in one of the tables"};
    finding.evidence = {{"as_they_are", found->as_they_are}, {"exchanged", found->exchanged}};
    finding.threshold = "8 standard errors as they are, 4 at most if exchanged (Luff)";
    sink.Report(std::move(finding));
  }

  void Moved(const query::Trial& trial, const std::string& name, const MovedPlaces& moved, Sink& sink) const {
    std::string columns;
    for (const auto& [from, to] : moved.columns) {
      if (columns.size() > 120) break;
      columns += fmt::format("{}{} as {}", columns.empty() ? "" : ", ", to, from);
    }
    Finding finding = FindingOn("moved", name, trial);
    finding.what = moved.columns.empty()
                       ? fmt::format("{} is {} in evaluations, compared with training", name, moved.how)
                       : fmt::format("{} columns of {} are exchanged in evaluations, compared with training",
                                     moved.columns.size(), name);
    finding.why = fmt::format(
        "{} of its places are unlike those of the training as they are ({:.3g} times what chance gives) and "
        "like them if {} ({:.2g} times)",
        moved.by_targets ? "correlations with the targets" : "means", moved.as_it_is,
        moved.columns.empty() ? "it is taken so" : "columns are read so: " + columns, moved.moved);
    finding.remedy =
        "prepare training and evaluation inputs by one function; name columns in place of their order, and "
        "look "
        "at one row of each";
    finding.causes =
        moved.columns.empty()
            ? std::vector<std::string>{"another reader with another order of axes or channels",
                                       "a flip, rotation, transposition or reversal on one side only"}
            : std::vector<std::string>{"columns in another order in one of the tables",
                                       "columns that are joined or stacked in another order"};
    finding.evidence = {
        {"as_it_is", moved.as_it_is}, {"moved", moved.moved}, {"columns", moved.columns.size()}};
    finding.threshold = "10 times what chance gives as they are, 3 times at most if moved (Luff)";
    sink.Report(std::move(finding));
  }

  void TellRecoded(const query::Trial& trial, const std::string& name, const Recoded& recoded,
                   Sink& sink) const {
    Finding finding = FindingOn("recoded", name, trial);
    finding.what = fmt::format("the ids of column {} of {} mean others in evaluations than in training",
                               recoded.column, name);
    finding.why = fmt::format(
        "the targets of its {} ids differ on both sides, by far more than those of rows of one id; were they "
        "the same ids, their mean targets would correlate by about {:.2f}: they do by {:.2f}",
        recoded.ids, recoded.expected, recoded.r);
    finding.remedy =
        "make the table from names to ids once, from the training data, and use it for all sets; keep an id "
        "for "
        "names that it does not have";
    finding.causes = {
        "names that were numbered in each set by itself (factorize, LabelEncoder, a vocabulary)",
        "a sorted list of names on one side, one in order of appearance on the other"};
    finding.evidence = {{"column", recoded.column},
                        {"ids", recoded.ids},
                        {"correlation", recoded.r},
                        {"expected", recoded.expected}};
    finding.threshold = "a correlation of 0.3 at most, five standard errors below what is expected (Luff)";
    sink.Report(std::move(finding));
  }

  // Called when an evaluation may have ended. Compares its features with those of the training so far.
  void Judge(const query::Trial& trial, Sink& sink, bool end = false) {
    if (!turns_.alternate() && steps_ >= kSteps) {
      Targets(trial, sink);
      for (const TargetSkew::CutTargets& one : targets_.Cut())
        if (open_.insert(one.loss + "\ncut").second)
          Tell(trial, one.loss, CutText("the target of " + one.loss, one.cut, one.in_training, "targets_cut"),
               sink);
    }
    targets_.Next();
    if (const auto foreign = foreign_.Close(end);
        foreign && !turns_.alternate() && open_.insert("\nother_rows").second) {
      Finding finding = FindingOn("other_rows", "", trial);
      TellForeignEvaluations(*foreign, &finding);
      sink.Report(std::move(finding));
    }
    if (!turns_.alternate() && steps_ >= kSteps) Exchanged(trial, sink);
    for (auto& [name, one] : arrangements_) {
      if (!turns_.alternate() && steps_ >= kSteps &&
          one.evaluated_places.rows() + one.evaluated_ids.rows() > 0)
        Arranged(trial, name, one, end, sink);
      one.evaluated_places.Clear();
      one.evaluated_ids.Clear();
    }
    for (auto& [name, input] : inputs_) {
      if (input.evaluation.rows() == 0) continue;
      if (!turns_.alternate() && steps_ >= kSteps) {
        if (!Apart(trial, name, input, sink)) {
          Compare(trial, name, input, sink);
          const bool image = input.places.rows() > 0;
          Absent(trial, name, input, image ? input.places : input.training,
                 image ? input.evaluated_places : input.evaluation, sink);
          Mixed(trial, name, input, sink);
        }
      }
      input.apart.Next();
      input.evaluation.Clear();
      input.evaluated_together.Clear();
      input.evaluated_places.Clear();
      input.evaluated_seen.Clear();
    }
  }

  // Whether evaluations have inputs like those of the training, as far as the rows can tell: of means, half a
  // deviation is more than four standard errors.
  [[nodiscard]] bool InputsAlike() const {
    double judged = 0;
    double unlike = 0;
    for (const auto& [name, input] : inputs_) {
      const Features& t = input.training;
      const Features& e = input.evaluation;
      if (t.kind() != e.kind() || input.Trained(t) < 4 * limits_.rows ||
          input.Evaluated(e) < 4 * limits_.rows)
        return false;
      for (std::size_t i = 0; i < t.size(); ++i) {
        if (e.count(i) == 0 || (!t.varies(i) && !e.varies(i))) continue;
        ++judged;
        unlike += Alike(t.mean(i), t.variance(i), e.mean(i), e.variance(i)) ? 0 : 1;
      }
    }
    return judged > 0 && unlike <= 0.1 * judged;
  }

  // Reports targets of evaluations that differ from those of the training though inputs and outputs do not.
  void Targets(const query::Trial& trial, Sink& sink) {
    const std::vector<TargetSkew::Unlike> all =
        targets_.Compare({limits_.shift, limits_.spread, limits_.share, 4 * limits_.rows});
    if (all.empty() || !InputsAlike()) return;
    for (const TargetSkew::Unlike& one : all) {
      if (!open_.insert(one.loss + "\ntargets").second) continue;
      const double spread = one.spread >= 1 ? one.spread : 1 / one.spread;
      Finding finding = FindingOn("targets", one.loss, trial);
      finding.what =
          fmt::format("the targets of {} are scaled otherwise in evaluations than in training", one.loss);
      finding.why = fmt::format(
          "their means lie {:.3g} deviations of the training apart, and their deviations differ {:.3g} "
          "times, "
          "while inputs and outputs are distributed as in training: what these evaluations say is no measure "
          "of the model",
          std::abs(one.shift), spread);
      finding.remedy =
          "prepare the targets of both by the same steps; if evaluations use original units, turn the "
          "outputs "
          "back before they are compared";
      finding.causes = {"targets that were scaled in the training data only", "another column as target",
                        "a transformation that is undone on one side only"};
      finding.evidence = {{"shift", one.shift}, {"spread_ratio", one.spread}, {"evaluation_rows", one.rows}};
      finding.threshold =
          fmt::format("means {:g} deviations apart or deviations {:g} times as large or small (Luff)",
                      limits_.shift, limits_.spread);
      sink.Report(std::move(finding));
    }
  }

  // Reports what one side does to the rows of an input and the other does not. Returns whether there is any.
  bool Apart(const query::Trial& trial, const std::string& name, const Input& input, Sink& sink) {
    std::vector<SideText> found;
    if (std::min(input.seen.count(), input.evaluated_seen.count()) >= limits_.rows)
      found = input.apart.Find(name);
    for (const char* cause : {"cut", "by_row", "code", "erased"}) {
      const auto one = std::find_if(found.begin(), found.end(),
                                    [cause](const SideText& text) { return text.cause == cause; });
      if (IsOpen(cause, name, one != found.end(), sink)) Tell(trial, name, *one, sink);
    }
    const auto order = FindColumnOrder(input.training, input.evaluation, input.Trained(input.training),
                                       input.Evaluated(input.evaluation));
    if (order && open_.insert(name + "\nmoved").second)
      Moved(trial, name, {order->how, {}, false, order->as_it_is, order->reordered}, sink);
    return !found.empty() || order;
  }

  void Tell(const query::Trial& trial, const std::string& tensor, const SideText& text, Sink& sink) const {
    Finding finding = FindingOn(text.cause.c_str(), tensor, trial);
    finding.what = text.what;
    finding.why = text.why;
    finding.remedy = text.remedy;
    finding.causes = text.causes;
    finding.evidence = text.evidence;
    finding.threshold = text.threshold;
    sink.Report(std::move(finding));
  }

  void Compare(const query::Trial& trial, const std::string& name, const Input& input, Sink& sink) {
    const Features& t = input.training;
    const Features& e = input.evaluation;
    // With few features, each must be known well.
    const std::int64_t rows = t.size() < 4 ? 4 * limits_.rows : limits_.rows;
    if (t.kind() != e.kind() || input.Trained(t) < rows || input.Evaluated(e) < rows) return;
    std::size_t judged = 0;
    std::size_t unlike = 0;
    double worst_shift = 0;
    double worst_spread = 1;
    for (std::size_t i = 0; i < t.size(); ++i) {
      if (e.count(i) == 0) continue;
      if (!t.varies(i) || t.kurtosis(i) > kMaxKurtosis) continue;
      ++judged;
      const double deviation = std::sqrt(t.variance(i));
      const double shift = std::abs(e.mean(i) - t.mean(i)) / deviation;
      const double spread = std::sqrt(e.variance(i)) / deviation;
      if (shift >= limits_.shift || spread >= limits_.spread || spread * limits_.spread <= 1) ++unlike;
      worst_shift = std::max(worst_shift, shift);
      if (std::abs(std::log(std::max(spread, 1e-9))) > std::abs(std::log(std::max(worst_spread, 1e-9))))
        worst_spread = spread;
    }
    const double share = judged == 0 ? 0 : static_cast<double>(unlike) / static_cast<double>(judged);
    if (!IsOpen("skew", name, judged > 0 && share >= limits_.share, sink)) return;
    Finding finding = FindingOn("skew", name, trial);
    finding.what = fmt::format(
        "{} of the {} features of {} are distributed otherwise in evaluations than in "
        "training",
        unlike, judged, name);
    finding.why = fmt::format(
        "measured in deviations of the training, means lie up to {:.3g} apart, and deviations differ by up "
        "to "
        "{:.3g} times: what an evaluation says of this model holds for other data",
        worst_shift, worst_spread >= 1 ? worst_spread : 1 / std::max(worst_spread, 1e-9));
    finding.remedy =
        "prepare validation inputs by the very same steps, with the mean and deviation of the "
        "training data";
    finding.causes = {"the scaler was applied to the training data only",
                      "another preparation or channel order", "validation data from another source"};
    const double ratio = worst_spread >= 1 ? worst_spread : 1 / std::max(worst_spread, 1e-9);
    if (ratio > 0.5 * kLevels && ratio < 2 * kLevels)
      finding.causes.insert(finding.causes.begin(), "one of them was divided by 255, and the other was not");
    finding.evidence = {{"unlike_share", share},
                        {"largest_shift", worst_shift},
                        {"spread_ratio", worst_spread},
                        {"training_rows", input.Trained(t)},
                        {"evaluation_rows", input.Evaluated(e)}};
    finding.threshold = fmt::format(
        "{:g} % of the features with means {:g} deviations apart or deviations {:g} times as large or small "
        "(Luff)",
        100 * limits_.share, limits_.shift, limits_.spread);
    sink.Report(std::move(finding));
  }

  // Reports features that are constant in training. Among kAbsentRows rows, even a flag that is set in one
  // row of twenty would have shown.
  void Absent(const query::Trial& trial, const std::string& name, const Input& input,
              const Features& training, const Features& evaluation, Sink& sink) {
    if (training.kind() != evaluation.kind() || input.Trained(training) < kAbsentRows ||
        input.Evaluated(evaluation) < limits_.rows)
      return;
    std::size_t absent = 0;
    std::size_t all = 0;
    for (std::size_t i = 0; i < training.size(); ++i) {
      if (evaluation.count(i) == 0) continue;
      const bool lost = !training.varies(i) && evaluation.varies(i) && evaluation.kurtosis(i) <= kMaxKurtosis;
      absent += lost ? 1 : 0;
      all += lost || (training.varies(i) && training.kurtosis(i) <= kMaxKurtosis) ? 1 : 0;
    }
    const bool enough = static_cast<double>(absent) >= limits_.absent * static_cast<double>(all);
    if (!IsOpen("absent", name, absent >= 2 && enough, sink)) return;
    Finding finding = FindingOn("absent", name, trial);
    finding.what =
        fmt::format("{} of the {} {} of {} have one value in all training rows and vary in evaluations",
                    absent, all, &training == &input.places ? "places" : "features", name);
    finding.why =
        "what these features say cannot be learnt, and the model was never shown what evaluations give it";
    finding.remedy =
        "prepare training inputs by the same steps as those of evaluations; look for columns that were lost";
    finding.causes = {"columns lost or overwritten in the training data",
                      "another preparation or column order", "training data of one source only"};
    finding.evidence = {{"absent", absent}, {"features", all}, {"training_rows", input.Trained(training)}};
    finding.threshold = fmt::format("{:g} % of the features, and two at least, after {} rows (Luff)",
                                    100 * limits_.absent, kAbsentRows);
    sink.Report(std::move(finding));
  }

  // Reports values that go together in the rows of one side and not in those of the other, although each of
  // them has the same mean and deviation there: their rows hold values of several samples.
  void Mixed(const query::Trial& trial, const std::string& name, const Input& input, Sink& sink) {
    const Correlations& t = input.together;
    const Correlations& e = input.evaluated_together;
    if (t.kind() != e.kind() || input.Trained(t) < kAbsentRows || input.Evaluated(e) < limits_.rows) return;
    const auto variance = [](const Correlations& sums, std::int64_t rows) {
      const double fresh = static_cast<double>(rows) / static_cast<double>(sums.rows());
      return 1 / std::max(sums.independent() * fresh - 3, 1.0);
    };
    const double error = std::sqrt(variance(t, input.Trained(t)) + variance(e, input.Evaluated(e)));
    std::size_t strong = 0;
    std::size_t lost = 0;
    double training = 0;
    double evaluation = 0;
    for (std::size_t i = 0; i < t.pairs(); ++i) {
      const Correlations::Pair a = t.at(i);
      const Correlations::Pair b = e.at(i);
      const double stronger = std::max(std::abs(a.r), std::abs(b.r));
      if (stronger < limits_.together) continue;
      ++strong;
      // Where distributions differ, so may the samples.
      const bool alike = Alike(a.mean_x, a.variance_x, b.mean_x, b.variance_x) &&
                         Alike(a.mean_y, a.variance_y, b.mean_y, b.variance_y);
      const double apart = std::abs(std::atanh(kAtMost * a.r) - std::atanh(kAtMost * b.r));
      if (!alike || std::min(std::abs(a.r), std::abs(b.r)) > limits_.apart * stronger ||
          apart < kErrors * error)
        continue;
      if (lost++ > 0) continue;
      training = a.r;
      evaluation = b.r;
    }
    if (!IsOpen("mixed", name, lost >= (t.pairs() == 1 ? 1 : kPairs) && 2 * lost >= strong, sink)) return;
    Finding finding = FindingOn("mixed", name, trial);
    const bool in_training = std::abs(training) > std::abs(evaluation);
    finding.what = fmt::format(
        "{} of {} are correlated in {} but not in {}",
        t.pairs() == 1 ? "neighbouring values" : fmt::format("{} of {} pairs of features", lost, strong),
        name, in_training ? "training" : "evaluations", in_training ? "evaluations" : "training");
    finding.why = fmt::format(
        "{} correlation is {:.2g} in training and {:.2g} in evaluations, while means and deviations agree: a "
        "row holds values of several samples, or parts of it were overwritten",
        t.pairs() == 1 ? "their" : "one", training, evaluation);
    finding.remedy =
        "transpose or permute axes where a reshape changes their order; keep each sample in its row";
    finding.causes = {"reshape or view in place of transpose", "columns that were shuffled one by one",
                      "columns that were lost in one of them"};
    finding.evidence = {{"lost", lost},
                        {"strong", strong},
                        {"training_correlation", training},
                        {"evaluation_correlation", evaluation},
                        {"training_rows", input.Trained(t)},
                        {"evaluation_rows", input.Evaluated(e)}};
    finding.threshold = fmt::format(
        "half of the pairs that are correlated by {:g} on one side, by at most {:g} of that on the other "
        "(Luff)",
        limits_.together, limits_.apart);
    sink.Report(std::move(finding));
  }

  // Keeps which findings are open, and heals one that no longer holds. Returns whether it holds.
  bool IsOpen(const char* cause, const std::string& input, bool holds, Sink& sink) {
    const std::string key = input + "\n" + cause;
    if (holds) {
      open_.insert(key);
    } else if (open_.erase(key) > 0) {
      sink.Heal(cause, input, last_.mode_step);
    }
    return holds;
  }

  Finding FindingOn(const char* cause, const std::string& input, const query::Trial& trial) const {
    Finding finding = FindingAt(kName, cause, trial, format::kNoId, 0, last_.Info());
    finding.tensor = input;
    finding.since_step = 0;
    return finding;
  }

  static bool Alike(double mean, double variance, double other_mean, double other_variance) {
    const double larger = std::max(variance, other_variance);
    return 2 * std::min(variance, other_variance) >= larger && 4 * std::pow(mean - other_mean, 2) <= larger;
  }

  static constexpr double kLevels = 255;     // of a pixel
  static constexpr std::int64_t kSteps = 8;  // by then, optimizers of adversaries have taken turns
  static constexpr std::int64_t kAbsentRows = 128;
  static constexpr std::size_t kMaxArranged = 4;  // inputs whose places are compared
  static constexpr std::size_t kMaxIdColumns = 32;
  static constexpr double kOnePass = 1.5;
  static constexpr std::size_t kPairs = 3;  // of a table: one or two may go together by chance
  static constexpr double kErrors = 5;      // standard errors of Fisher's transformed correlation
  static constexpr double kAtMost = 0.999;  // its value stays finite
  const Limits limits_;
  Anchor last_;
  OptimizerTurns turns_;
  Phases phases_;
  std::int64_t steps_ = 0;  // TRAIN steps of this phase
  std::set<std::string> open_;
  std::set<std::string> fed_back_;  // models that go on from what the graph has made
  std::set<std::string> floats_;    // inputs that were floats
  std::map<std::string, Input> inputs_;
  TargetSkew targets_;
  ForeignEvaluations foreign_;
  std::map<std::string, Arrangement> arrangements_;
  Passes passes_;
  CollectedRows collected_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters&) -> MadeRule {
    return std::unique_ptr<Rule>(Together(std::make_unique<TrainValSkew>(limits), BoostedTrainValSkew()));
  });
  // 5: targets; 6: silent of data that a policy collects; 7: and of rollouts; 8: of boosting, places, ids; 9:
  // rows that come again count once; 10: learnt rows are not collected; 11: integers that Keras makes floats
  // of; 13: "cut", "by_row", "code", "targets_cut", columns of a table in another order; 14: other_rows
  spec.version = 14;
  spec.summary = "inputs of evaluations that are distributed otherwise than those of the training";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::train_val_skew
