#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/tensor/hash.h"
#include "rules/facts/collected_rows.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// BatchOrder: docs/rules/batch_order.md.
namespace luff::rules::batch_order {
namespace {

constexpr const char* kName = "BatchOrder";
constexpr std::size_t kMaxLabels = 1024;
constexpr std::size_t kMaxWindow = 4096;
constexpr std::size_t kMaxMet = 8192;                 // targets that are known again
constexpr std::uint64_t kKeyBits = (1ULL << 52) - 1;  // what a state keeps
constexpr std::int64_t kBack = -1;                    // of a target that came again
constexpr std::size_t kKeys = 3;                      // by which windows may be sorted
constexpr std::int64_t kPasses = 3;                   // with the same order; two may be a try
constexpr std::uint8_t kRises = 1, kFalls = 2;
constexpr std::size_t kManyLabels = 4;  // adversaries have up to three: real, generated, and smoothed real

struct Limits {
  std::int64_t batches, rows;
  double within, within_variance;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::batches, "batches", "12",
     "captured batches before labels are judged; twice as many for numbers", AtLeast(2)},
    {&Limits::rows, "rows", "8", "targets in a batch; smaller batches are not judged", AtLeast(2)},
    {&Limits::within, "within", "0.35",
     "chance that two labels of a batch differ, as a share of that of two labels of all"},
    {&Limits::within_variance, "within_variance", "0.1",
     "share of the variance of numbers that lies within batches"},
};

// Impurity of labels: the chance that two of them differ.
double Impurity(const std::map<std::int64_t, double>& counts) {
  double total = 0;
  double squares = 0;
  for (const auto& [label, count] : counts) {
    total += count;
    squares += count * count;
  }
  return total > 0 ? 1 - squares / (total * total) : 0;
}

class BatchOrder final : public KeptRule {
 public:
  explicit BatchOrder(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    collected_.OnStep(view);  // what a policy collects goes up and down with it
    if (view.rows.info.mode == query::Mode::kTrain && !view.rows.info.superseded) last_.Take(view.rows.info);
    if (view.rows.info.mode != query::Mode::kTrain || collected_.collects()) return;
    // Calls of one kind in one step are one batch: real and generated samples may come one after the other.
    std::map<std::string, std::vector<const LossCall*>> of_kind;
    const std::vector<LossCall>& calls = reader_.Read(view);
    for (const LossCall& call : calls) {
      if (call.worker == calls.front().worker) of_kind[call.kind].push_back(&call);
    }
    for (const auto& [name, group] : of_kind) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(name)) continue;
      if (group.size() == 1 && IsWindow(group.front()->target)) {
        Windows(view, *group.front(), &kinds_[name], sink);
        continue;
      }
      std::vector<double> targets;
      bool one_each = true;  // one target per sample, not per pixel or token
      for (const LossCall* call : group) {
        const auto& shape = call->target.shape;
        one_each = one_each && (shape.size() == 1 || (shape.size() == 2 && shape[1] == 1));
        targets.insert(targets.end(), call->target.values.begin(), call->target.values.end());
      }
      if (!one_each || static_cast<std::int64_t>(targets.size()) < limits_.rows) continue;
      const LossCall& first = *group.front();
      const bool binary = AreShares(targets) && std::all_of(targets.begin(), targets.end(),
                                                            [](double y) { return y == 0 || y == 1; });
      Kind& kind = kinds_[name];
      if (!first.target.is_float() || binary) {
        Labels(view, first, targets, &kind, sink);
      } else {
        Numbers(view, first, targets, &kind, sink);
      }
    }
  }

  void OnEnd(const query::Trial& trial, Sink& sink) override { SameOrder(trial, sink); }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("collected", collected_);
    io("last", last_);
  }

 private:
  struct Kind {
    std::map<std::int64_t, double> labels;
    std::int64_t batches = 0;
    double impurity = 0;  // sum over batches
    std::int64_t last = 0, same = 0,
                 pairs = 0;  // top label of the newest batch; of `pairs` neighbours, how many share it
    double offset = 0, scale = 1;
    double numbers = 0, sum = 0, squares = 0, within = 0;
    double means_sum = 0, means_squares = 0, products = 0, last_mean = 0;
    std::int64_t crossings = 0, back = 0;       // how many targets, each once, came again in a later pass
    std::map<std::uint64_t, std::int64_t> met;  // by target: the crossings before it was first seen
    bool above = false;
    bool dead = false;                            // no longer judged
    std::array<std::uint8_t, kKeys> orders = {};  // of windows, by key: kRises, kFalls, or both
    void VisitFields(Fields& io) {
      io("labels", labels, kMaxLabels);
      io("batches", batches);
      io("impurity", impurity);
      io("last", last);
      io("same", same);
      io("pairs", pairs);
      io("offset", offset);
      io("scale", scale);
      io("numbers", numbers);
      io("sum", sum);
      io("squares", squares);
      io("within", within);
      io("means_sum", means_sum);
      io("means_squares", means_squares);
      io("products", products);
      io("last_mean", last_mean);
      io("crossings", crossings);
      io("back", back);
      io("met", met, kMaxMet);
      io("above", above);
      io("dead", dead);
      io("orders", orders);
    }
  };

  // Reports a sampler that draws the order of each pass from its seed and a number of the pass, which nobody
  // tells it.
  void SameOrder(const query::Trial& trial, Sink& sink) const {
    const std::vector<profile::Loader> loaders = profile::LoadersOf(trial.Document("loaders"));
    const auto at = std::find_if(loaders.begin(), loaders.end(), [](const profile::Loader& loader) {
      return loader.trains && loader.same_epoch >= kPasses;
    });
    if (at == loaders.end() || last_.mode_step < 0) return;
    Finding finding = FindingAt(kName, "same_order", trial, format::kNoId, 0, last_.Info());
    finding.since_step = 0;
    finding.what = fmt::format("each of {} passes over the data had the same order", at->same_epoch);
    finding.why =
        "DistributedSampler shuffles by its seed and the number of the epoch, and set_epoch was not called "
        "between "
        "passes: the same samples meet in the same batches, on the same process, pass after pass";
    finding.remedy = "call sampler.set_epoch(epoch) at the head of each epoch";
    finding.causes = {"set_epoch is missing", "set_epoch is called on another sampler than the loader's"};
    finding.evidence = {{"passes", at->same_epoch}};
    finding.threshold = fmt::format("a fact, in {} passes (Luff)", kPasses);
    sink.Report(std::move(finding));
  }

  void Labels(const StepView& view, const LossCall& call, const std::vector<double>& targets, Kind* kind,
              Sink& sink) const {
    std::map<std::int64_t, double> counts;
    for (const double target : targets) {
      if (!(std::abs(target) < 1e15)) return;
      if (call.target.is_float() || target != call.settings.ignore_index)
        ++counts[static_cast<std::int64_t>(target)];
    }
    if (counts.empty() || kind->dead) return;
    for (const auto& [label, count] : counts) kind->labels[label] += count;
    if (kind->labels.size() > kMaxLabels) {  // names or words: batches cannot hold all of them
      *kind = {};
      kind->dead = true;
      return;
    }
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (kind->batches > 0) {
      ++kind->pairs;
      kind->same += most->first == kind->last ? 1 : 0;
    }
    kind->last = most->first;
    ++kind->batches;
    const double rows = static_cast<double>(targets.size());
    kind->impurity += Impurity(counts) * rows / (rows - 1);
    const double overall = Impurity(kind->labels);
    const double within = kind->impurity / static_cast<double>(kind->batches);
    if (kind->batches < limits_.batches || overall < 0.2 || within >= limits_.within * overall) return;
    // Single-class batches that alternate are intended (real and generated samples). Sorted data stay with a
    // class for a while, or go through many classes.
    const double same = static_cast<double>(kind->same) / static_cast<double>(kind->pairs);
    if (kind->labels.size() < kManyLabels && same <= 0.5 + 0.5 * (1 - overall)) return;
    Finding finding = FindingAt(kName, "sorted", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what =
        fmt::format("batches of {} hold few classes each: the data are sorted by class", call.kind);
    finding.why = fmt::format(
        "two targets of one batch differ with probability {:.2f}, two of all so far ({} classes) with "
        "{:.2f}; the "
        "model forgets each class while it sees the next",
        within, kind->labels.size(), overall);
    finding.remedy = "shuffle the training data (shuffle=True, or a sampler that mixes)";
    finding.causes = {"files that are read class by class, and no shuffling",
                      "a shuffle buffer that is smaller than a class"};
    finding.evidence = {{"difference_within_batches", within},
                        {"difference_overall", overall},
                        {"neighbours_alike", same},
                        {"batches", kind->batches}};
    finding.threshold =
        fmt::format("less than {:g} of the overall, {} batches (Luff)", limits_.within, limits_.batches);
    sink.Report(std::move(finding));
  }

  // Several numbers a row: a window of a series, or several quantities.
  static bool IsWindow(const SampleValues& target) {
    const std::size_t width = RowsOf(target).width;
    return target.is_float() && (target.shape.size() == 2 || target.shape.size() == 3) && width > 1 &&
           width <= kMaxWindow && !std::all_of(target.values.begin(), target.values.end(), [](double y) {
             return y == 0 || y == 1;
           });
  }

  // What windows may be sorted by: their mean, their first and their last value.
  static std::array<double, kKeys> KeysOf(const double* row, std::size_t width) {
    double sum = 0;
    for (std::size_t j = 0; j < width; ++j) sum += row[j];
    return {sum / static_cast<double>(width), row[0], row[width - 1]};
  }

  // Reports windows that are sorted: by one of the keys, the rows of each batch so far rise all, or fall all,
  // and batches go from low to high pass after pass. Windows in the order of time go up and down within a
  // batch.
  void Windows(const StepView& view, const LossCall& call, Kind* kind, Sink& sink) const {
    const Rows rows = RowsOf(call.target);
    if (static_cast<std::int64_t>(rows.count) < limits_.rows || kind->dead) return;
    std::vector<double> means;
    std::array<double, kKeys> last = {};
    for (std::size_t i = 0; i < rows.count; ++i) {
      const std::array<double, kKeys> keys = KeysOf(&call.target.values[i * rows.width], rows.width);
      for (std::size_t k = 0; i > 0 && k < kKeys; ++k) {
        if (keys[k] > last[k]) kind->orders[k] |= kRises;
        if (keys[k] < last[k]) kind->orders[k] |= kFalls;
      }
      last = keys;
      means.push_back(keys[0]);
    }
    const bool sorted = std::any_of(kind->orders.begin(), kind->orders.end(),
                                    [](std::uint8_t order) { return order == kRises || order == kFalls; });
    kind->dead = !sorted;
    if (sorted) Numbers(view, call, means, kind, sink);
  }

  // Reports sorted numbers: little variance within batches, and batch means that follow each other and start
  // again with each pass over the data. Targets that only drift are not sorted. A table's rows come again
  // with the next pass, with the numbers they had: what a value network makes of its own answers, or a policy
  // of new episodes, goes up and down likewise and never comes again.
  void Numbers(const StepView& view, const LossCall& call, const std::vector<double>& targets, Kind* kind,
               Sink& sink) const {
    double mean = 0;
    for (const double target : targets) mean += target / static_cast<double>(targets.size());
    if (!std::isfinite(mean) || kind->dead) return;
    double variance = 0;
    for (const double target : targets) variance += (target - mean) * (target - mean);
    if (kind->batches == 0) {  // units of the first batch keep sums small
      kind->offset = mean;
      kind->scale = std::sqrt(variance / static_cast<double>(targets.size()));
      if (!(kind->scale > 0)) kind->scale = mean != 0 ? std::abs(mean) : 1;
    }
    mean = (mean - kind->offset) / kind->scale;
    variance /= kind->scale * kind->scale;
    if (!(std::abs(mean) < 1e5) || !(variance < 1e10)) return;
    const double count = static_cast<double>(targets.size());
    if (kind->batches > 0) {
      kind->products += mean * kind->last_mean;
      ++kind->pairs;
      const double centre = kind->means_sum / static_cast<double>(kind->batches);
      const bool above = mean > centre;
      if (above != kind->above) ++kind->crossings;
      kind->above = above;
    }
    for (const double target : targets) {
      const std::uint64_t key = HashBytes(&target, sizeof(target)) & kKeyBits;
      const auto known = kind->met.find(key);
      if (known != kind->met.end()) {
        if (known->second == kBack || known->second + 2 > kind->crossings) continue;
        known->second = kBack;  // once: what ends an episode has one value, again and again
        ++kind->back;
      } else if (kind->met.size() < kMaxMet) {
        kind->met.emplace(key, kind->crossings);
      }
    }
    ++kind->batches;
    kind->last_mean = mean;
    kind->means_sum += mean;
    kind->means_squares += mean * mean;
    kind->numbers += count;
    kind->sum += count * mean;
    kind->squares += variance + count * mean * mean;
    kind->within += variance;
    if (kind->batches < 2 * limits_.batches) return;
    const double batches = static_cast<double>(kind->batches);
    const double grand = kind->sum / kind->numbers;
    const double total = kind->squares - kind->numbers * grand * grand;
    const double centre = kind->means_sum / batches;
    const double spread = kind->means_squares / batches - centre * centre;
    if (!(total > 0) || !(spread > 0) || kind->within >= limits_.within_variance * total) return;
    const double correlation = (kind->products / static_cast<double>(kind->pairs) - centre * centre) / spread;
    if (correlation < 0.6 || kind->crossings < 4 || kind->crossings > kind->batches / 3) return;
    const double known = static_cast<double>(kind->met.size());
    if (static_cast<double>(kind->back) < std::min(2 * count, known / 2)) return;
    Finding finding = FindingAt(kName, "sorted", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what =
        fmt::format("targets of {} are sorted: each batch holds values close to each other", call.kind);
    finding.why = fmt::format(
        "{:.1f} % of the targets' variance lies within batches, the means of neighbouring batches are alike "
        "(correlation {:.2f}), pass after pass",
        100 * kind->within / total, correlation);
    finding.remedy =
        "shuffle the training data (shuffle=True, or a sampler that mixes), unless a state is carried from "
        "batch to "
        "batch";
    finding.causes = {"a table sorted by its target, and no shuffling"};
    finding.evidence = {{"share_within_batches", kind->within / total},
                        {"neighbours_correlation", correlation},
                        {"batches", batches}};
    finding.threshold = fmt::format("less than {:g} of the variance, {} batches (Luff)",
                                    limits_.within_variance, 2 * limits_.batches);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossReader reader_;  // only its static Read is used, so it is not saved
  std::map<std::string, Kind> kinds_;
  CollectedRows collected_;
  Anchor last_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<BatchOrder>(kName, kParams);
  spec.version = 5;  // 2: windows; 3: learnt rows are not collected; 4: "same_order"; 5: numbers that return
  spec.summary = "training data that come sorted by their targets, or in the same order each time";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::batch_order
