#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/tensor/hash.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/equal_rows.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/model_modules.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// RepeatedBatch: docs/rules/repeated_batch.md.
namespace luff::rules::repeated_batch {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "RepeatedBatch";
constexpr std::size_t kMaxReplicas = 64;
constexpr double kNearly = 0.9;  // the first steps may be another loader's
constexpr std::uint64_t kStateBits = (1ULL << 52) - 1;

struct Limits {
  std::int64_t shared, stuck, single;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::shared, "shared", "6", "batches in a row that two replicas share (Luff)", AtLeast(2)},
    {&Limits::stuck, "stuck", "100", "updates with one batch after others (Luff)", AtLeast(2)},
    {&Limits::single, "single", "64", "updates with the only batch so far (Luff)", AtLeast(2)},
};

// A model in a worker. Replicas of a data-parallel training are models of one process or of several.
struct Replica {
  std::string model;
  std::uint32_t worker = 0;
  std::deque<std::uint64_t> batches;  // the newest, one per update
  std::int64_t count = 0;             // batches so far
  std::uint64_t weights = 0;          // hash of all weights at its newest step, independent of their order
  std::int64_t weights_changed = 0;   // how often that hash changed
  std::uint64_t newest = 0;           // the newest batch
  std::int64_t times = 0;             // updates in a row with it
  std::int64_t longest = 0;           // most updates in a row with an earlier batch
  std::int64_t different = 0;         // how often the batch changed
  std::int64_t last_update = -1;
  std::int64_t since = 0;    // mode step at which `newest` first came
  std::int64_t came = -1;    // global step at which it got its newest batch,
  std::int64_t before = -1;  // and the one before it
  void VisitFields(Fields& io) {
    io("model", model);
    io("worker", worker);
    io("batches", batches);
    io("count", count);
    io("weights", weights);
    io("weights_changed", weights_changed);
    io("newest", newest);
    io("times", times);
    io("longest", longest);
    io("different", different);
    io("last_update", last_update);
    io("since", since);
    io("came", came);
    io("before", before);
  }
};

class RepeatedBatch final : public KeptRule {
 public:
  explicit RepeatedBatch(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.superseded) return;
    equal_.OnStep(view);
    if (info.mode == query::Mode::kTrain && !told_equal_) JudgeEqual(view, sink);
    if (info.mode == query::Mode::kEval) {
      const std::int64_t rows = InputRows(view);
      evaluating_ += rows;  // over all passes of the evaluation
      widest_ = std::max(widest_, rows);
      alike_ += rows > 0 && rows == rows_ ? 1 : 0;
      return;
    }
    if (info.mode != query::Mode::kTrain) return;
    if (modules_.OnStep(view)) facts_ = view.memo.Facts(view);
    rows_ = std::max(rows_, InputRows(view));
    for (const query::StepPhases& phases : view.rows.phases)
      started_ +=
          static_cast<std::int64_t>(phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)]);
    TakeWeights(view);
    TakeBatches(view, sink);
    evaluated_ = std::max(evaluated_, evaluating_);
    batched_ = batched_ || (alike_ >= 2 && widest_ == rows_);
    evaluating_ = widest_ = alike_ = 0;
    if (told_) return;
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      for (std::size_t j = i + 1; j < replicas_.size() && !told_; ++j) {
        if (Shares(replicas_[i], replicas_[j])) TellShared(view, replicas_[i], replicas_[j], sink);
      }
    }
  }

  void VisitFields(Fields& io) override {
    io("replicas", replicas_, kMaxReplicas);
    io("told", told_);
    io("rows", rows_);
    io("evaluating", evaluating_);
    io("evaluated", evaluated_);
    io("widest", widest_);
    io("alike", alike_);
    io("batched", batched_);
    io("started", started_);
    io("equal", equal_);
    io("told_equal", told_equal_);
  }

 private:
  Replica* ReplicaOf(const std::string& model, std::uint32_t worker) {
    for (Replica& replica : replicas_) {
      if (replica.model == model && replica.worker == worker) return &replica;
    }
    if (replicas_.size() >= kMaxReplicas) return nullptr;
    replicas_.emplace_back();
    replicas_.back().model = model;
    replicas_.back().worker = worker;
    return &replicas_.back();
  }

  // Rows of the largest input, before any were left out of its sample.
  static std::int64_t InputRows(const StepView& view) {
    std::int64_t rows = 0;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto shape = view.trial.Shape(input.entry->tensor, view.rows.info.global_step,
                                          query::Mode::kGlobal, input.entry->worker);
      if (!shape.ok()) continue;
      const auto& whole =
          shape.value().global_shape.empty() ? shape.value().shape : shape.value().global_shape;
      if (whole.size() >= 2) rows = std::max(rows, whole[0]);
    }
    return rows;
  }

  // Computes a fingerprint of each model's weights, which is equal for replicas whatever their names.
  void TakeWeights(const StepView& view) {
    std::map<std::pair<std::string, std::uint32_t>, std::uint64_t> sums;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kWeight)) {
      const ParameterFacts* parameter = facts_.Find(tensor.name);
      if (parameter == nullptr) continue;
      const std::array<double, 3> numbers = {entry.summary.sum, entry.summary.sum_sq,
                                             static_cast<double>(entry.summary.count)};
      sums[{parameter->model, entry.worker}] += HashBytes(numbers.data(), sizeof(numbers)) & kStateBits;
    }
    for (const auto& [key, sum] : sums) {
      Replica* replica = ReplicaOf(key.first, key.second);
      if (replica == nullptr) continue;
      const std::uint64_t now = sum & kStateBits;
      if (now != replica->weights) ++replica->weights_changed;
      replica->weights = now;
    }
  }

  void TakeBatches(const StepView& view, Sink& sink) {
    for (const query::EventAt& event : view.index.events(EventKind::kBatch)) {
      const ModuleFacts* module = modules_.OfNumber(event.row.subject);
      const std::string model = module != nullptr ? module->model : fmt::format("#{}", event.row.subject);
      if (module != nullptr && !module->path.empty()) continue;
      Replica* replica = ReplicaOf(model, event.worker);
      if (replica == nullptr) continue;
      const std::uint64_t batch = event.row.argument & kStateBits;
      // Several passes of one batch between two updates (closures, two losses) are one use of it.
      const bool same_use =
          replica->count > 0 && batch == replica->newest && replica->last_update == view.rows.info.update;
      replica->last_update = view.rows.info.update;
      if (same_use) continue;
      if (replica->count > 0 && batch == replica->newest) {
        ++replica->times;
      } else {
        replica->longest = std::max(replica->longest, replica->times);
        replica->times = 1;
        replica->since = view.rows.info.mode_step;
        replica->different += replica->count > 0 ? 1 : 0;
      }
      replica->newest = batch;
      replica->before = std::exchange(replica->came, view.rows.info.global_step);
      ++replica->count;
      replica->batches.push_back(batch);
      if (static_cast<std::int64_t>(replica->batches.size()) > std::max<std::int64_t>(limits_.shared, 1) + 1)
        replica->batches.pop_front();
      JudgeOne(view, *replica, sink);
    }
  }

  // Reports a model that gets one batch again and again.
  void JudgeOne(const StepView& view, const Replica& replica, Sink& sink) {
    if (told_) return;
    // It had other batches before, and none for this long: the source of batches is stuck.
    const bool stuck =
        replica.different >= 4 && replica.times >= limits_.stuck && replica.times >= 4 * replica.longest;
    if (!stuck && (replica.different > 0 || replica.times < limits_.single)) return;
    const auto loader = profile::TrainingLoader(view.trial.Document("loaders"));
    // It never had another batch, and this one is not the whole data set: an evaluation has more rows, and
    // their number is a power of two, as batch sizes are. Nor does the loader end there, or a loop or a
    // framework that takes one batch of it, as each does on purpose. Without a loader, evaluations come in
    // batches of the same size: one pass over more rows is a finer grid, or a test set beside few samples.
    const bool part = loader && loader->trains ? loader->by_next && loader->batches != 1 : batched_;
    const bool single = !stuck && rows_ >= 4 && (rows_ & (rows_ - 1)) == 0 && evaluated_ > rows_ && part;
    // It never had another batch, and a loader that has more of them was started for nearly every one.
    const bool begins_again = !stuck && !single && loader && loader->by_next &&
                              static_cast<double>(started_) >= kNearly * static_cast<double>(replica.times);
    const std::int64_t batches = begins_again ? loader->batches : 0;
    if (!stuck && !single && batches < 2) return;
    told_ = true;
    Finding finding = FindingAt(kName, "same", view, TensorAt{format::kNoId, replica.worker});
    finding.tensor = replica.model;
    finding.since_step = replica.since;
    finding.what =
        fmt::format("{} was trained with one and the same batch in {} updates", replica.model, replica.times);
    finding.why = stuck ? fmt::format("{} others came before it: what hands out batches does not go on",
                                      replica.different)
                  : batches > 1
                      ? fmt::format(
                            "its loader has {} batches, was started {} times, and gives its first one "
                            "each time: the other data are never used",
                            batches, started_)
                      : fmt::format("it has {} rows, an evaluation has {}: the other data are never used",
                                    rows_, evaluated_);
    finding.remedy = "make the iterator once, outside the loop, and take the next batch from it";
    finding.causes = {"next(iter(loader)) in the loop", "an index that is not advanced",
                      "a test with one batch that was left in"};
    finding.evidence = {{"updates", replica.times},
                        {"batches_before", replica.different},
                        {"rows", rows_},
                        {"evaluation_rows", evaluated_}};
    finding.threshold =
        stuck ? fmt::format("{} updates, four times as many as ever before (Luff)", limits_.stuck)
              : fmt::format("{} updates, the only batch so far (Luff)", limits_.single);
    sink.Report(std::move(finding));
  }

  [[nodiscard]] bool HasDropout() const {
    return std::any_of(modules_.modules().begin(), modules_.modules().end(),
                       [](const ModuleFacts& module) { return module.kind == ModuleKind::kDropout; });
  }

  // Reports batches of which all rows are one.
  void JudgeEqual(const StepView& view, Sink& sink) {
    if (!equal_.IsReady()) return;
    const auto loader = profile::TrainingLoader(view.trial.Document("loaders"));
    const bool trains = loader && loader->trains;
    const std::optional<EqualRows::Found> found =
        equal_.Judge(trains ? loader->batch_size : 0, trains && loader->batches != 1, HasDropout());
    if (!found) return;
    told_equal_ = true;
    const ModelInput& input = ModelInputsOf(view).front();
    Finding finding = FindingAt(kName, "one_row", view, TensorAt{format::kNoId, input.entry->worker});
    finding.tensor = input.model;
    finding.what =
        fmt::format("each batch that {} is trained with holds one row {} times", input.model, found->rows);
    finding.why = fmt::format(
        "in {} captured batches in a row all rows were equal, in every number of all "
        "inputs{}{}{}; evaluations have rows that differ: a batch teaches no more than one row of it, and "
        "each "
        "epoch leaves the others out",
        found->batches, found->targets ? " and in their targets" : "",
        found->answers ? ", and so were the answers" : "",
        found->different > 1 ? ", while from batch to batch they were others"
                             : ", and it was the same row each time");
    finding.remedy =
        "read each row by its own index: look for a constant or outer index in __getitem__ or in the slicing "
        "of "
        "the batch, and for rows that were expanded or repeated";
    finding.causes = {"x[0] or x[i] in the place of x[i:i + n]",
                      "expand, repeat or a list that was multiplied", "a Dataset that does not use its index",
                      "a collate function that stacks one sample"};
    finding.evidence = {{"rows", found->rows}, {"batches", found->batches}, {"different", found->different}};
    finding.threshold = fmt::format("{} captured batches in a row (Luff)", EqualRows::kBatches);
    sink.Report(std::move(finding));
  }

  // True if both are at work: each got its newest batch after the other's last but one. The parts of a
  // resumed run, and models that are trained one after the other, do not live at the same time.
  static bool TakeTurns(const Replica& a, const Replica& b) noexcept {
    return a.came > b.before && b.came > a.before;
  }

  // True if two replicas with equal weights that are updated together got the same batches, while batches
  // differ.
  [[nodiscard]] bool Shares(const Replica& a, const Replica& b) const {
    if (!TakeTurns(a, b)) return false;
    const auto needed = static_cast<std::size_t>(limits_.shared);
    // The hook may see the very first batch of a run for only one of them.
    if (std::abs(a.count - b.count) > 1 || a.batches.size() < needed || b.batches.size() < needed)
      return false;
    if (a.weights == 0 || a.weights != b.weights || a.weights_changed < 3 || b.weights_changed < 3)
      return false;
    if (!std::equal(a.batches.end() - limits_.shared, a.batches.end(), b.batches.end() - limits_.shared))
      return false;
    const auto first = a.batches.end() - limits_.shared;
    return std::any_of(first, a.batches.end(), [&](std::uint64_t batch) { return batch != *first; });
  }

  void TellShared(const StepView& view, const Replica& a, const Replica& b, Sink& sink) {
    told_ = true;
    const auto name = [&](const Replica& replica) {
      return a.worker == b.worker ? replica.model
                                  : fmt::format("{} of worker {}", replica.model, replica.worker);
    };
    Finding finding = FindingAt(kName, "shared", view, TensorAt{format::kNoId, b.worker});
    finding.tensor = b.model;
    finding.since_step = 0;
    if (a.worker == b.worker) {
      finding.other_tensors = {a.model};
      finding.other_count = 1;
    }
    finding.what = fmt::format("{} and {} get the same batches", name(a), name(b));
    finding.why = fmt::format(
        "the last {} batches of both were equal in every value, and their weights are kept equal: the second "
        "replica adds no information, only cost",
        limits_.shared);
    finding.remedy =
        "give each replica its own shard, e.g. by DistributedSampler, or by a seed that depends on the "
        "rank";
    finding.causes = {"no distributed sampler", "the same seed and the whole data set on every rank",
                      "rank or world size not passed to the data loader"};
    finding.evidence = {{"batches", limits_.shared}};
    finding.threshold = fmt::format("{} batches in a row, not all alike (Luff)", limits_.shared);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  ModelModules modules_;
  ModelFacts facts_;
  std::vector<Replica> replicas_;
  EqualRows equal_;
  bool told_ = false, told_equal_ = false;
  std::int64_t rows_ = 0, evaluating_ = 0, evaluated_ = 0;
  std::int64_t widest_ = 0,
               alike_ = 0;    // of the evaluation's passes: the most rows, and how many have `rows_`
  bool batched_ = false;      // an evaluation came in batches as large as the training's
  std::int64_t started_ = 0;  // loaders, in TRAIN steps of all workers
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<RepeatedBatch>(kName, kParams);
  // 2: loaders that are started for each update; 3: by a call in the script; 4: batched_; 5: equal_
  spec.version = 5;
  spec.aliases = {"DuplicateShard"};
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  spec.summary = "batches that replicas share, one batch again and again, or one row as all of a batch";
  return spec;
}

}  // namespace luff::rules::repeated_batch
