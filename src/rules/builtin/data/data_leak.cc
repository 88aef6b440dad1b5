#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/sample.h"
#include "rules/facts/side_optimizers.h"
#include "rules/facts/target_columns.h"
#include "rules/facts/window_overlap.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// DataLeak: docs/rules/data_leak.md.
namespace luff::rules::data_leak {
namespace {

constexpr const char* kName = "DataLeak";
constexpr std::size_t kMaxInputs = 4;
constexpr std::size_t kMaxHashes = 8192;   // of training rows; beyond, about half of them are dropped
constexpr std::size_t kMaxFeatures = 256;  // features whose values are counted

struct Limits {
  std::int64_t rows;
  double share, chance;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::rows, "rows", "16", "rows of an evaluation, at least (Luff)"},
    {&Limits::share, "share", "0.1", "share of rows that are rows of the training (Luff)"},
    {&Limits::chance, "chance", "0.2", "largest part of that share that chance may explain (Luff)"},
};

// A set of row hashes. Beyond kMaxHashes it keeps only 1 / rate of all hashes, chosen by value, so that rows
// of evaluations can be sampled the same way.
class RowSet {
 public:
  void Add(std::uint64_t hash) {
    if (!Chosen(hash)) return;
    hashes_.insert(hash);
    while (hashes_.size() > kMaxHashes) {
      rate_ *= 2;
      std::erase_if(hashes_, [&](std::uint64_t known) { return !Chosen(known); });
    }
  }
  [[nodiscard]] bool sampled() const noexcept { return rate_ > 1; }  // not all rows are known
  [[nodiscard]] bool Chosen(std::uint64_t hash) const noexcept { return hash % rate_ == 0; }
  [[nodiscard]] bool Has(std::uint64_t hash) const { return hashes_.contains(hash); }
  /// Estimated number of distinct rows.
  [[nodiscard]] double size() const noexcept { return static_cast<double>(hashes_.size() * rate_); }
  void VisitFields(Fields& io) {
    io("rate", rate_);
    io("hashes", hashes_, kMaxHashes);
    io.Check(rate_ != 0, "a rate above 0");
  }

 private:
  std::uint64_t rate_ = 1;
  std::unordered_set<std::uint64_t> hashes_;
};

// Probability that two rows are equal by chance: the rate of repeats within batches, or the estimate for
// independent features, whichever is larger.
class Chance {
 public:
  void Add(const SampleValues& sample, const std::vector<std::uint64_t>& hashes) {
    std::map<std::uint64_t, double> same;
    for (const std::uint64_t hash : hashes) ++same[hash];
    for (const auto& [hash, count] : same) equal_ += count * (count - 1) / 2;
    const double n = static_cast<double>(hashes.size());
    pairs_ += n * (n - 1) / 2;
    if (looked_ >= kLooked) return;
    ++looked_;
    // Sum over features of the log probability that two rows agree.
    const Rows rows = RowsOf(sample);
    double log_agree = 0;
    std::vector<std::uint64_t> column(rows.count);  // bits, so that NaN equals itself
    for (std::size_t f = 0; f < std::min(rows.width, kMaxFeatures); ++f) {
      for (std::size_t i = 0; i < rows.count; ++i)
        column[i] = std::bit_cast<std::uint64_t>(static_cast<double>(sample.values[i * rows.width + f]));
      std::sort(column.begin(), column.end());
      double agree = 0;
      for (auto level = column.begin(); level != column.end();) {
        const auto next = std::upper_bound(level, column.end(), *level);
        const double share = static_cast<double>(next - level) / n;
        agree += share * share;
        level = next;
      }
      // Counts each row's agreement with itself (1 / n): n rows that all differ do not prove a smaller
      // chance.
      log_agree += std::log(std::min(agree + 1e-12, 1.0));
    }
    log_agree_ = looked_ == 1 ? log_agree : std::max(log_agree_, log_agree);
  }
  [[nodiscard]] double probability() const noexcept {
    const double seen = pairs_ > 0 ? equal_ / pairs_ : 0;
    return std::max(seen, looked_ > 0 ? std::exp(log_agree_) : 1.0);
  }
  void VisitFields(Fields& io) {
    io("equal", equal_);
    io("pairs", pairs_);
    io("log_agree", log_agree_);
    io("looked", looked_);
  }

 private:
  static constexpr std::int64_t kLooked = 8;
  double equal_ = 0, pairs_ = 0, log_agree_ = 0;
  std::int64_t looked_ = 0;
};

class DataLeak final : public KeptRule {
 public:
  explicit DataLeak(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const std::optional<bool> train = IsTraining(view.rows.info, last_);
    loaded_ = loaded_ || LoadsWeights(view.index);
    if (!train) return;
    const std::set<std::uint64_t> batches = BatchesOf(view);
    // A pass over the batch that is being trained on (by a teacher, or for a metric) is part of the training.
    if (*train) {
      if (!Shares(batches, looked_at_)) TakePass();
      DropPass();
      Judge(view.trial, sink);
      last_.Take(view.rows.info);
      // Weights that were set back, and another optimizer: the next fold begins, which has learnt nothing
      // yet.
      // A load is told in the step before an update, or in the next.
      if (NewOptimizer(view)) fresh_ = 2;
      if ((fresh_ > 0 && loaded_) || IsDrawnAnew(view)) inputs_.clear();
      fresh_ = loaded_ ? 0 : std::max<std::int64_t>(fresh_ - 1, 0);
      loaded_ = false;
      trained_on_ = batches;
      Targets(view, sink);
    } else {
      TakePass();
      looked_at_ = batches;
      pass_labelled_ = !view.index.losses().empty() || !LossReader::Read(view).empty();
      labelled_ = labelled_ || pass_labelled_;
      if (Shares(batches, trained_on_)) return;
    }
    if (*train && UpdatesFewWeights(view)) return;  // an architecture is chosen by rows that are kept apart
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadRows(view, input, inputs_, kMaxInputs);
      if (sample == nullptr || RowsOf(*sample).width < 2) continue;
      Input& one = inputs_[view.trial.tensor(input.entry->tensor).name];
      const std::vector<std::uint64_t> hashes = RowHashes(*sample);
      if (*train) {
        one.trained_at = view.rows.info.mode_step;
        one.chance.Add(*sample, hashes);
        one.Cover(hashes);
        if (!sample->whole_shape.empty()) {
          one.batch = std::max(one.batch, static_cast<double>(sample->whole_shape[0]));
          one.trained = static_cast<double>(view.rows.info.mode_step + 1) * one.batch;
        }
        for (const std::uint64_t hash : hashes) one.rows.Add(hash);
        one.windows.Train(*sample);
      } else if (!IsPast(one)) {
        double rows = 0;
        double found = 0;
        for (const std::uint64_t hash : hashes) {
          if (!one.rows.Chosen(hash)) continue;
          ++rows;
          found += one.rows.Has(hash) ? 1 : 0;
        }
        one.pass_rows = rows;
        one.pass_batch = sample->whole_shape.empty() ? 0 : static_cast<double>(sample->whole_shape[0]);
        one.pass_found = found;
        one.pass_windows = one.windows.Evaluate(*sample);
      }
    }
  }
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    TakePass();
    Judge(trial, sink);
  }

  void VisitFields(Fields& io) override {
    io("open", open_);
    io("last", last_);
    io("inputs", inputs_, kMaxInputs);
    io("targets", targets_, kMaxInputs);
    io("told", told_);
    io("labelled", labelled_);
    io("pass_labelled", pass_labelled_);
    io("looked_at", looked_at_, kMaxBatches);
    io("trained_on", trained_on_, kMaxBatches);
    io("optimizer", optimizer_);
    io("loaded", loaded_);
    io("fresh", fresh_);
  }

 private:
  static constexpr std::size_t kMaxBatches = 64;  // of one step

  // Whether an optimizer that was never seen before has made an update, beside the first. Folds may be many.
  bool NewOptimizer(const StepView& view) {
    const std::int64_t before = optimizer_;
    for (const query::EventAt& event : view.index.events(format::EventKind::kOptimizerStep))
      optimizer_ = std::max(optimizer_, static_cast<std::int64_t>(event.row.subject));
    return before >= 0 && optimizer_ > before;
  }

  // Whether an optimizer's weights were set back to what they were before its first update, or drawn anew:
  // the next fold, with the same optimizer.
  static bool IsDrawnAnew(const StepView& view) {
    const auto events = view.index.json_events("weights_set_back");
    return std::any_of(events.begin(), events.end(), [](const auto& event) {
      const auto to = event->find("to");
      return to != event->end() && to->is_string() && (*to == "drawn" || *to == "first");
    });
  }

  // Hashes of the batches that models got in this step.
  static std::set<std::uint64_t> BatchesOf(const StepView& view) {
    std::set<std::uint64_t> batches;
    for (const query::EventAt& event : view.index.events(format::EventKind::kBatch)) {
      if (batches.size() < kMaxBatches) batches.insert(event.row.argument);
    }
    return batches;
  }
  static bool Shares(const std::set<std::uint64_t>& a, const std::set<std::uint64_t>& b) {
    return std::any_of(a.begin(), a.end(), [&](std::uint64_t batch) { return b.contains(batch); });
  }

  // Counts the newest pass without gradients as part of the evaluation.
  void TakePass() {
    for (auto& [name, input] : inputs_) {
      const double rows = input.pass_rows;
      const double found = input.pass_found;
      input.seen += rows;
      input.found += found;
      if (pass_labelled_) {
        input.labelled_seen += rows;
        input.labelled_found += found;
        if (rows > 0) (found == 0 ? input.apart : input.left_out).Add(input.pass_windows);
      }
      if (rows >= 4 && found == 0) input.clean += rows;
      if (rows > 0) input.stretch = found == 0 ? input.stretch + rows : 0;
      input.longest = std::max(input.longest, input.stretch);
      const bool as_trained = input.pass_batch <= input.batch;  // the last may be smaller
      (as_trained ? input.alike : input.unlike) += rows;
      if (!as_trained) input.unlike_found += found;
      if (rows >= 4 && found >= 0.9 * rows) input.full += rows;
    }
    DropPass();
  }
  void DropPass() {
    for (auto& [name, input] : inputs_) {
      input.pass_rows = input.pass_found = 0;
      input.pass_windows = {};
    }
    pass_labelled_ = false;
    looked_at_.clear();
  }

  // Looks for the target among the columns of the input, where a step calls one model and one loss.
  void Targets(const StepView& view, Sink& sink) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    const std::vector<ModelInput>& inputs = ModelInputsOf(view);
    if (told_ || calls.size() != 1) return;
    for (const ModelInput& input : inputs)
      if (input.model != inputs.front().model) return;
    for (const ModelInput& input : inputs) {
      const auto sample = LoadRows(view, input, targets_, kMaxInputs);
      if (sample == nullptr) continue;
      const std::string& name = view.trial.tensor(input.entry->tensor).name;
      OfInput& of = targets_[name];
      of.Add(*sample, calls.front().target);
      std::size_t told = 0;  // targets of a row that are among its inputs
      std::vector<std::size_t> found;
      for (const TargetColumns& one : of.targets) {
        const std::vector<std::size_t> places = one.Found();
        if (places.empty() || one.rows() < kTargetRows || one.batches() < kTargetBatches) continue;
        if (told++ == 0) found = places;
      }
      // A state that changes slowly, or a setting that the target repeats, is one of several.
      if (2 * told < of.targets.size() || told == 0) continue;
      const TargetColumns& columns = of.targets.front();
      told_ = true;
      Finding finding = FindingAt(kName, "target", view, *input.entry);
      finding.since_step = 0;
      finding.what =
          of.targets.size() > 1 || sample->shape.size() == 3
              ? fmt::format("{} of the {} targets of each row are values of its input {}", told,
                            of.targets.size(), name)
              : fmt::format("column {} of {} is the target of {}", found.front(), name, calls.front().kind);
      finding.why = fmt::format(
          "in all {} rows the target is {}, up to a scale: the model learns to copy it, and where "
          "the "
          "target is not known beforehand it has nothing to copy",
          columns.rows(),
          of.targets.size() > 1 || sample->shape.size() == 3
              ? fmt::format("value {} of the input's {}", found.front(), columns.columns())
              : "this column");
      finding.remedy = of.targets.size() > 1 || sample->shape.size() == 3
                           ? "let windows of inputs end before their targets begin: check the indices of both"
                           : "drop the target's column before the inputs are made";
      finding.causes = {"the target was not taken out of the table", "a column that is made from the target",
                        "a wrong column as target", "windows of inputs that reach into their targets"};
      finding.evidence = {{"column", found.front()},      {"columns_that_are", found.size()},
                          {"targets", of.targets.size()}, {"targets_among_inputs", told},
                          {"columns", columns.columns()}, {"rows", columns.rows()}};
      finding.threshold = fmt::format("all of {} rows in {} batches (Luff)", kTargetRows, kTargetBatches);
      sink.Report(std::move(finding));
      return;
    }
  }

  // The columns of an input that each target of a row may be. A window (N, T, F) is looked at place by place.
  struct OfInput {
    std::vector<TargetColumns> targets;

    // Targets as many as half of a row's places, or of a window's steps, may be meant to be its values: those
    // of autoencoders, and of models that predict each next step.
    void Add(const SampleValues& input, const SampleValues& target) {
      const std::size_t axes = input.shape.size();
      const Rows rows = RowsOf(input);
      const Rows wanted = RowsOf(target);
      if ((axes != 2 && axes != 3) || wanted.count != rows.count || wanted.width == 0 || !target.whole())
        return;
      const std::size_t places = axes == 2 ? rows.width : static_cast<std::size_t>(input.shape[1]);
      if (wanted.width > 1 && 2 * wanted.width > places) return;
      if (targets.empty()) targets.resize(std::min(wanted.width, kMaxTargets));
      if (targets.size() != std::min(wanted.width, kMaxTargets)) return;
      SampleValues flat = input;
      flat.shape =
          flat.whole_shape = {static_cast<std::int64_t>(rows.count), static_cast<std::int64_t>(rows.width)};
      if (!input.whole()) return;
      SampleValues one = target;
      one.shape = one.whole_shape = {static_cast<std::int64_t>(rows.count)};
      for (std::size_t h = 0; h < targets.size(); ++h) {
        one.values.clear();
        for (std::size_t i = 0; i < rows.count; ++i)
          one.values.push_back(target.values[i * wanted.width + h]);
        targets[h].Add(flat, one);
      }
    }
    void VisitFields(Fields& io) { io("targets", targets, kMaxTargets); }
  };

  struct Input {
    RowSet rows;
    Chance chance;
    double seen = 0, found = 0;                    // rows of this evaluation
    double labelled_seen = 0, labelled_found = 0;  // of them in passes that compare something with a target
    double clean = 0, full = 0;       // of them in passes with no / with at least 90 % training rows
    double stretch = 0, longest = 0;  // rows of passes one after another without a training row; the longest
    double pass_rows = 0, pass_found = 0;  // of the newest pass, which may prove to be part of training
    double batch = 0, pass_batch = 0;      // rows of the training's largest batch, and of the newest pass
    // Rows of passes over batches of the training's size, and of others, and what was found in the latter.
    double alike = 0, unlike = 0, unlike_found = 0;
    std::int64_t trained_at = -1;  // TRAIN step of the newest
    double trained = 0;            // rows of the training's batches so far, those not seen included
    WindowOverlap windows;
    WindowOverlap::Told pass_windows;  // of the newest pass
    // Windows of passes with targets: without a row of the training, and with one, which look at its rows.
    WindowOverlap::Told apart, left_out;
    double covered = 0;                   // share of the training's rows that are known, of late
    double lately = 0, lately_known = 0;  // rows of the training since the last evaluation, and known ones
    void Cover(const std::vector<std::uint64_t>& hashes) {
      if (hashes.empty()) return;
      const auto known =
          std::count_if(hashes.begin(), hashes.end(), [&](std::uint64_t hash) { return rows.Has(hash); });
      covered += (static_cast<double>(known) / static_cast<double>(hashes.size()) - covered) / 8;
      lately += static_cast<double>(hashes.size());
      lately_known += static_cast<double>(known);
    }
    // The training set is looked at beside another, both shuffled: of its batches as many rows are known as
    // of all that was trained on, and beside them is a stretch of batches without one, which would hold some
    // if the two were mixed; or batches of another size, none of which holds one.
    [[nodiscard]] bool LooksAtBoth() const {
      const double others = seen - longest;
      if (!(others > 0) || !(longest > 0) || !(found > 0) || !(trained > 0)) return false;
      const double share = std::min(found / others, 1 - 1e-9);
      const double known = std::max(lately > 0 ? lately_known / lately : covered, rows.size() / trained);
      if (alike > 0 && found >= kAsTrained * known * alike && unlike >= kFewest && unlike_found == 0)
        return true;
      return share >= kAsTrained * known && -longest * std::log1p(-share) >= kNotByChance;
    }
    static constexpr double kAsTrained = 0.75;  // of the share of known rows, at least
    static constexpr double kFewest = 16;       // rows of batches of another size
    static constexpr double kNotByChance = 14;  // logarithm of a chance of one in a million
    void VisitFields(Fields& io) {
      io("covered", covered);
      io("lately", lately);
      io("lately_known", lately_known);
      io("stretch", stretch);
      io("longest", longest);
      io("trained", trained);
      io("trained_at", trained_at);
      io("batch", batch);
      io("pass_batch", pass_batch);
      io("alike", alike);
      io("unlike", unlike);
      io("unlike_found", unlike_found);
      io("rows", rows);
      io("chance", chance);
      io("seen", seen);
      io("found", found);
      io("labelled_seen", labelled_seen);
      io("labelled_found", labelled_found);
      io("clean", clean);
      io("full", full);
      io("windows", windows);
      io("pass_windows", pass_windows);
      io("apart", apart);
      io("left_out", left_out);
      io("pass_rows", pass_rows);
      io("pass_found", pass_found);
    }
  };

  // Whether the training of an input's model is over, and another one goes on: its answers serve that, as
  // those of a teacher do.
  [[nodiscard]] bool IsPast(const Input& input) const {
    return input.trained_at >= 0 && std::any_of(inputs_.begin(), inputs_.end(), [&](const auto& other) {
             return other.second.trained_at >= input.trained_at + kPast;
           });
  }

  void Judge(const query::Trial& trial, Sink& sink) {
    for (auto& [name, input] : inputs_) {
      // Beside passes that are measured, one that is not is none of the evaluation: scores of a pool from
      // which rows are chosen, features, an index to search in.
      if (input.labelled_seen > 0) {
        input.seen = input.labelled_seen;
        input.found = input.labelled_found;
      }
      if (input.seen > 0) {
        Compare(trial, name, input, sink);
        input.lately = input.lately_known = 0;
      }
      Windows(trial, name, input, sink);
      input.apart = input.left_out = {};
      input.seen = input.found = input.clean = input.full = 0;
      input.stretch = input.longest = input.alike = input.unlike = input.unlike_found = 0;
      input.labelled_seen = input.labelled_found = 0;
    }
    labelled_ = false;
  }

  void Compare(const query::Trial& trial, const std::string& name, const Input& input, Sink& sink) {
    if (input.seen < static_cast<double>(limits_.rows)) return;
    const double share = input.found / input.seen;
    // Share of rows that would also be training rows if the evaluation drew new ones from the same
    // distribution.
    const double expected = 1 - std::exp(-input.rows.size() * input.chance.probability());
    // The run also evaluates its training set, in separate batches.
    const bool beside = (input.clean > 0 && input.full >= 0.9 * input.found) || input.LooksAtBoth();
    // A pass over training rows that compares nothing with a target is none: features of a frozen model, a
    // teacher's answers, pseudo-labels.
    const bool used = !labelled_ && share >= 0.75 * input.covered;
    if (beside || used || share < limits_.share || expected > limits_.chance * share) {
      if (share < limits_.share && open_.erase(name) > 0) sink.Heal("rows", name, last_.mode_step);
      return;
    }
    open_.insert(name);
    Finding finding = FindingAt(kName, "rows", trial, format::kNoId, 0, last_.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.what = fmt::format("{:.0f} of the {:.0f} rows of {} in an evaluation are rows of the training",
                               input.found, input.seen, name);
    finding.why = fmt::format(
        "they are equal in every value, where {:.2g} % would be so by chance; what an evaluation says of "
        "them is "
        "no measure of generalisation",
        100 * expected);
    finding.remedy = "split before augmenting or oversampling, and remove duplicates across the splits";
    finding.causes = share >= 0.95 ? std::vector<std::string>{"evaluations use the training set",
                                                              "the split was made after the data were copied"}
                                   : std::vector<std::string>{"splits overlap", "duplicates in the data set",
                                                              "oversampling before the split"};
    finding.evidence = {{"share", share},
                        {"rows", input.seen},
                        {"expected_share", expected},
                        {"training_rows", input.rows.size()}};
    finding.threshold = fmt::format("{:g} % of the rows, and chance would give {:g} % of that at most (Luff)",
                                    100 * limits_.share, 100 * limits_.chance);
    sink.Report(std::move(finding));
  }

  // Windows of a series that lie between windows of the training.
  void Windows(const query::Trial& trial, const std::string& name, const Input& input, Sink& sink) {
    const WindowOverlap::Told& apart = input.apart;
    if (apart.rows < static_cast<double>(limits_.rows) || apart.between < kBetween * apart.rows ||
        4 * input.left_out.rows > apart.rows || input.windows.recurs() || input.covered < kKnown ||
        input.rows.sampled() || !open_.insert(name + "\nwindows").second)
      return;
    Finding finding = FindingAt(kName, "windows", trial, format::kNoId, 0, last_.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.what = fmt::format(
        "{:.0f} of the {:.0f} windows of {} in an evaluation lie between windows of the training that "
        "overlap "
        "them",
        apart.between, apart.rows, name);
    finding.why = fmt::format(
        "half of their {} places or more are, bit by bit, those of a training window that begins earlier, "
        "and "
        "of one that begins later: the training has seen what comes next, so that the evaluation does not "
        "tell how well the model foresees it",
        input.windows.length());
    finding.remedy =
        "split the series by time first, and cut windows of each part afterwards; leave a gap of a window's "
        "length between them";
    finding.causes = {"overlapping windows that are divided at random (random_split, train_test_split)",
                      "crops of the same recordings in both sets"};
    finding.evidence = {{"between", apart.between}, {"rows", apart.rows}, {"length", input.windows.length()}};
    finding.threshold = fmt::format("{:g} % of the windows (Luff)", 100 * kBetween);
    sink.Report(std::move(finding));
  }

  static constexpr std::int64_t kPast = 32;  // TRAIN steps of others since a model was trained
  static constexpr double kKnown = 0.25;   // share of training rows that are known, to tell a pass over them
  static constexpr double kBetween = 0.3;  // windows of a later time have no later neighbour
  static constexpr std::int64_t kTargetRows = 256, kTargetBatches = 8;
  static constexpr std::size_t kMaxTargets = 16;  // of a row
  const Limits limits_;
  Anchor last_;
  bool told_ = false;                       // of a target
  bool labelled_ = false;                   // this evaluation compares outputs with targets
  bool pass_labelled_ = false;              // its newest pass does
  std::map<std::string, OfInput> targets_;  // by input
  std::set<std::string> open_;
  std::map<std::string, Input> inputs_;
  std::int64_t optimizer_ = -1;                     // the one that began last
  std::int64_t fresh_ = 0;                          // steps in which a load still belongs to a new optimizer
  bool loaded_ = false;                             // weights, since the last TRAIN step
  std::set<std::uint64_t> looked_at_, trained_on_;  // batches of the newest pass, and of the last TRAIN step
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters&) -> MadeRule {
    return std::unique_ptr<Rule>(Together(std::make_unique<DataLeak>(limits), BoostedDataLeak()));
  });
  spec.version = 11;  // 11: folds of one optimizer, teachers; 10: a training set shuffled again; 9: folds in
                      // which the weights are set back; 6: beside passes with targets; 7: without
                      // "all_labels"; 8: windows, of boosting
  spec.summary = "rows of evaluations that are rows of the training, and targets among the inputs";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::data_leak
