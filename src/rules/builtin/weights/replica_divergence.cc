#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ReplicaDivergence: docs/rules/replica_divergence.md.
namespace luff::rules::replica_divergence {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "ReplicaDivergence";
constexpr std::size_t kMaxTensors = 64;  // compared per pair of replicas
constexpr std::size_t kLongestName = 1 << 12;
constexpr std::size_t kMaxReplicas = 256;  // workers, or models in one process
constexpr std::int64_t kFirstCaptures = 4;
// Times as many updates without a wrapper that averages gradients: processes may average weights.
constexpr std::int64_t kLocal = 32;

struct Limits {
  std::int64_t updates;
  double tolerance;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "16",
     "updates for which they differ; copies that are averaged now and then are equal again", AtLeast(1)},
    {&Limits::tolerance, "tolerance", "1e-5",
     "relative difference of sums of a weight, above what rounding makes", AtLeast(0)},
};

bool SameBits(const Summary& a, const Summary& b) noexcept {
  return a.count == b.count && a.sum == b.sum && a.sum_sq == b.sum_sq && a.min_bits == b.min_bits &&
         a.max_bits == b.max_bits;
}

bool Differ(const Summary& a, const Summary& b, double tolerance) noexcept {
  const auto apart = [&](double x, double y, double scale) {
    return std::isfinite(x) && std::isfinite(y) && std::abs(x - y) > tolerance * scale;
  };
  return apart(a.sum, b.sum, a.abs_sum + b.abs_sum) || apart(a.sum_sq, b.sum_sq, a.sum_sq + b.sum_sq);
}

class ReplicaDivergence final : public KeptRule {
 public:
  explicit ReplicaDivergence(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    Called(view);
    if (view.rows.info.mode != query::Mode::kTrain) return;
    wrapped_ = wrapped_ || !view.index.json_events("replicas").empty();
    for (const auto& event : view.index.json_events("weights_set"))
      if (const double number = NumberIn(*event, "optimizer"); number >= 0 && set_.size() < kMaxReplicas)
        set_.insert(static_cast<std::uint32_t>(std::min<double>(number, format::kNoId)));
    for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep)) {
      if (event.worker != view.index.first_worker()) continue;
      if (total_.size() < 4096 || total_.contains(event.row.subject)) ++total_[event.row.subject];
    }
    if (view.index.summaries(Role::kWeight).empty()) return;
    Workers(view, sink);
    Models(view, sink);
  }

  // A training that ends sooner: workers that have never been equal again.
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    if (trial.outcome().state != "completed") return;
    for (auto& [key, pair] : pairs_) {
      if (!IsOfWorkers(key.first) || pair.open || pair.since < 0 || pair.together || pair.differs.empty() ||
          Updates() - pair.updates_at < limits_.updates)
        continue;
      Finding finding = FindingAt(kName, "diverged", trial, format::kNoId, Number(key.second), last_.Info());
      finding.severity = Severity::kWarn;
      Fill(key, pair, pair.differs, pair.differing, Updates() - pair.updates_at, &finding);
      sink.Report(std::move(finding));
    }
  }

  void VisitFields(Fields& io) override {
    io("wrapped", wrapped_);
    io("last", last_);
    io("pairs", pairs_);
    io("total", total_);
    io("workers", workers_);
    io("models", models_);
    io("captures", captures_);
    io("set", set_, kMaxReplicas);
  }

 private:
  struct Pair {
    std::vector<std::pair<std::string, std::string>> tensors;  // names in the first and the second replica
    std::int64_t since = -1;                                   // TRAIN step at which they first differed
    std::int64_t updates_at = 0;                               // updates made until then
    std::vector<std::uint32_t> optimizers;                     // of two models in one process: their numbers
    std::int64_t ahead = 0;  // updates that the first had made more than the other when they were found
    bool take_turns = true;  // each makes one update, and then the other does
    bool open = false, together = false;  // told; equal again after they differed
    std::string differs;                  // weight that differed last
    std::size_t differing = 0;
    std::array<std::uint64_t, 2> batches{};  // that the models got last in training: hashes
    std::array<bool, 2> evaluated{};         // each of the models
    // What replicas of one training never are: given the same batch, of which they would learn the same and
    // need no average, or both asked in evaluations, as what is compared is.
    bool compared = false;
    void VisitFields(Fields& io) {
      io("together", together);
      io("differs", differs, kLongestName);
      io("differing", differing);
      io("batches", batches);
      io("evaluated", evaluated);
      io("compared", compared);
      io("tensors", tensors);
      io("since", since);
      io("updates_at", updates_at);
      io("optimizers", optimizers, 2);
      io.Check(optimizers.empty() || optimizers.size() == 2, "two optimizers, or none");
      io("ahead", ahead);
      io("take_turns", take_turns);
      io("open", open);
    }
  };

  // False for constant weights (biases of zeros, scales of ones): these are equal even in parts of a model
  // that are not copies.
  static bool Tells(const Summary& summary) noexcept {
    return summary.min_bits != summary.max_bits && summary.count > 1 &&
           summary.nan_count + summary.inf_count == 0;
  }

  void Workers(const StepView& view, Sink& sink) {
    // tensor -> worker -> summary
    std::map<std::string, std::map<std::uint32_t, const Summary*>> rows;
    std::uint32_t first = UINT32_MAX;
    bool several = false;
    for (const auto& entry : view.rows.summaries) {
      if (first == UINT32_MAX) first = entry.worker;
      several = several || entry.worker != first;
    }
    if (!several) return;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kWeight)) {
      rows[tensor.name][entry.worker] = &entry.summary;
    }
    for (const auto& [name, of_worker] : rows) {
      if (of_worker.size() < 2) continue;
      const auto& [lead, reference] = *of_worker.begin();
      for (const auto& [worker, summary] : of_worker) {
        if (worker == lead) continue;
        const std::string other = fmt::format("worker {}", worker);
        const std::string key = other + "\n" + name;
        if (captures_ < kFirstCaptures && !workers_.contains(key) &&
            workers_.size() < kMaxTensors * kMaxReplicas) {
          workers_.insert(key);  // equality at the start is judged once
          Pair& pair = pairs_[{fmt::format("worker {}", lead), other}];
          if (Tells(*reference) && SameBits(*reference, *summary) && pair.tensors.size() < kMaxTensors)
            pair.tensors.emplace_back(name, name);
        }
      }
    }
    ++captures_;
    for (auto& [key, pair] : pairs_) {
      if (!IsOfWorkers(key.first)) continue;
      const std::uint32_t a = Number(key.first);
      const std::uint32_t b = Number(key.second);
      std::string differs;
      std::size_t count = 0;
      for (const auto& [name, same] : pair.tensors) {
        const auto it = rows.find(name);
        if (it == rows.end() || !it->second.contains(a) || !it->second.contains(b)) continue;
        if (!Differ(*it->second.at(a), *it->second.at(b), limits_.tolerance)) continue;
        if (count++ == 0) differs = name;
      }
      Judge(view, key, pair, differs, count, b, sink);
    }
  }

  static bool IsOfWorkers(const std::string& name) noexcept { return name.starts_with("worker "); }

  [[nodiscard]] std::int64_t Updates() const {
    std::int64_t updates = 0;
    for (const auto& [number, made] : total_) updates = std::max(updates, made);
    return updates;
  }

  static std::uint32_t Number(const std::string& worker) {
    std::uint32_t number = 0;
    for (const char c : worker) {
      if (c >= '0' && c <= '9') number = number * 10 + static_cast<std::uint32_t>(c - '0');
    }
    return number;
  }

  void Models(const StepView& view, Sink& sink) {
    const bool looks = total_.size() > 1 && view.rows.info.mode_step < 256 && Power(view.rows.info.mode_step);
    if (looks) Look(view);
    if (pairs_.empty()) return;
    std::map<std::string, const Summary*> rows;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kWeight)) {
      if (entry.worker == view.rows.summaries.front().worker) rows[tensor.name] = &entry.summary;
    }
    for (auto& [key, pair] : pairs_) {
      if (key.first.starts_with("worker ")) continue;
      // Learners that go several updates each, as clients of a federation do, are meant to part.
      pair.take_turns = pair.take_turns && std::abs(Ahead(pair.optimizers) - pair.ahead) <= 1;
      std::string differs;
      std::size_t count = 0;
      for (const auto& [name, other] : pair.tensors) {
        const auto a = rows.find(name);
        const auto b = rows.find(other);
        if (a == rows.end() || b == rows.end() || !Differ(*a->second, *b->second, limits_.tolerance))
          continue;
        if (count++ == 0) differs = other;
      }
      // Neighbours that average their weights after each update are close, and need not be equal.
      const bool averaged = std::ranges::any_of(
          pair.optimizers, [this](std::uint32_t number) { return set_.contains(number); });
      Judge(view, key, pair, differs, pair.take_turns && !pair.compared && !averaged ? count : 0, 0, sink);
    }
  }

  // Which models were called in this step, with which batch.
  void Called(const StepView& view) {
    const bool train = view.rows.info.mode == query::Mode::kTrain;
    const bool models = std::any_of(pairs_.begin(), pairs_.end(), [](const auto& one) {
      return !one.first.first.starts_with("worker ") && !one.second.compared;
    });
    if (!models) return;
    std::map<std::uint32_t, std::string> of_module;
    for (const query::EventAt& event : view.index.events(EventKind::kBatch)) {
      if (of_module.empty()) {
        for (const ModuleFacts& module : view.memo.Facts(view).modules())
          if (module.number) of_module.emplace(*module.number, module.model);
      }
      const auto model = of_module.find(event.row.subject);
      if (model == of_module.end() || event.row.argument == 0) continue;
      for (auto& [key, pair] : pairs_) {
        if (model->second != key.first && model->second != key.second) continue;
        const std::size_t which = model->second == key.second ? 1 : 0;
        if (!train) {
          pair.evaluated[which] = true;
        } else {
          pair.batches[which] = event.row.argument;
        }
        pair.compared = pair.compared || (pair.evaluated[0] && pair.evaluated[1]) ||
                        (train && pair.batches[0] == pair.batches[1]);
      }
    }
  }

  static bool Power(std::int64_t step) noexcept { return step < 8 || (step & (step - 1)) == 0; }

  // Finds models of the same shape, trained by separate optimizers with the same settings, whose weights
  // began equal. The weights of a step are those before its updates, so the first steps still show the
  // initial ones.
  void Look(const StepView& view) {
    const ModelFacts& facts = view.memo.Facts(view);
    struct Model {
      std::string form, optimizer;
      std::vector<std::string> weights;
      bool whole = true;  // one optimizer holds all trained parameters
    };
    std::map<std::string, Model> models;
    for (const auto& [name, parameter] : facts.parameters()) {
      if (models.size() >= kMaxReplicas && !models.contains(parameter.model)) continue;
      Model& model = models[parameter.model];
      model.form += fmt::format("{} {};", parameter.path, fmt::join(parameter.shape, "x"));
      if (!parameter.requires_grad) continue;
      if (model.optimizer.empty()) model.optimizer = parameter.optimizer;
      model.whole = model.whole && !parameter.optimizer.empty() && model.optimizer == parameter.optimizer;
      if (!IsBiasName(name)) model.weights.push_back(name);
    }
    std::map<std::string, const Summary*> rows;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kWeight)) {
      rows.try_emplace(tensor.name, &entry.summary);
    }
    for (auto a = models.begin(); a != models.end(); ++a) {
      for (auto b = std::next(a); b != models.end(); ++b) {
        const Model& one = a->second;
        const Model& other = b->second;
        if (one.form != other.form || !one.whole || !other.whole || one.optimizer == other.optimizer)
          continue;
        if (Settings(view, one.optimizer) != Settings(view, other.optimizer)) continue;
        const std::string key = a->first + "\n" + b->first;
        if (models_.contains(key)) continue;
        if (one.weights.size() != other.weights.size() || one.weights.empty()) continue;
        Pair pair;
        bool equal = true;
        bool known = true;
        for (std::size_t i = 0; i < one.weights.size() && equal && known; ++i) {
          const auto x = rows.find(one.weights[i]);
          const auto y = rows.find(other.weights[i]);
          known = x != rows.end() && y != rows.end();
          if (!known) break;
          equal = SameBits(*x->second, *y->second);
          if (equal && Tells(*x->second) && pair.tensors.size() < kMaxTensors)
            pair.tensors.emplace_back(one.weights[i], other.weights[i]);
        }
        if (!known) continue;
        models_.insert(key);
        const auto first = facts.OptimizerNumber(one.optimizer);
        const auto second = facts.OptimizerNumber(other.optimizer);
        if (!equal || pair.tensors.empty()) continue;
        if (first && second) pair.optimizers = {*first, *second};
        pair.ahead = Ahead(pair.optimizers);
        pairs_[{a->first, b->first}] = std::move(pair);
      }
    }
  }

  // How many updates the first of two optimizers has made more than the other.
  [[nodiscard]] std::int64_t Ahead(const std::vector<std::uint32_t>& optimizers) const {
    const auto made = [this](std::uint32_t number) {
      const auto at = total_.find(number);
      return at == total_.end() ? 0 : at->second;
    };
    return optimizers.size() == 2 ? made(optimizers[0]) - made(optimizers[1]) : 0;
  }

  // Settings of an optimizer in this step; keys omit its name.
  static std::map<std::string, double> Settings(const StepView& view, const std::string& optimizer) {
    std::map<std::string, double> settings;
    const std::string prefix = fmt::format("optimizer/{}.", optimizer);
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
      if (tensor.name.starts_with(prefix)) settings[tensor.name.substr(prefix.size())] = entry.value;
    }
    return settings;
  }

  void Judge(const StepView& view, const std::pair<std::string, std::string>& key, Pair& pair,
             const std::string& differs, std::size_t count, std::uint32_t worker, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    const std::int64_t updates = Updates();
    last_.Take(info);
    pair.differs = differs.substr(0, kLongestName);
    pair.differing = count;
    if (count == 0) {
      if (pair.open) sink.Heal("diverged", key.second, info.mode_step);
      pair.open = false;
      pair.together = pair.together || pair.since >= 0;
      pair.since = -1;
      return;
    }
    if (pair.since < 0) {
      pair.since = info.mode_step;
      pair.updates_at = updates;
    }
    // Processes that average their weights themselves, now and then, have no wrapper that averages gradients.
    const bool meant = IsOfWorkers(key.first) && !wrapped_;
    if (updates - pair.updates_at < limits_.updates * (meant ? kLocal : 1)) return;
    pair.open = true;
    Finding finding = FindingAt(kName, "diverged", view, TensorAt{format::kNoId, worker});
    finding.severity = Severity::kStop;
    Fill(key, pair, differs, count, updates - pair.updates_at, &finding);
    sink.Report(std::move(finding));
  }

  void Fill(const std::pair<std::string, std::string>& key, const Pair& pair, const std::string& differs,
            std::size_t count, std::int64_t updates, Finding* made) const {
    Finding& finding = *made;
    finding.tensor = key.second;
    finding.other_tensors = {differs};
    finding.since_step = pair.since;
    finding.what =
        fmt::format("{} and {} began with equal weights and are no longer equal", key.first, key.second);
    finding.why = fmt::format(
        "{} of {} weights that are compared differ, {} first, for {} updates now: their gradients "
        "are not averaged",
        count, pair.tensors.size(), differs, updates);
    finding.remedy =
        "call the wrapper (DistributedDataParallel), not the module inside it, and average gradients before "
        "each "
        "update; if they are meant to differ, begin with different weights";
    finding.causes = {"the module is called instead of the wrapper that synchronises it",
                      "gradients are not averaged before the update",
                      "parameters that the wrapper does not know"};
    finding.evidence = {{"tensors_that_differ", count}, {"tensors_compared", pair.tensors.size()}};
    finding.threshold = fmt::format("sums that differ by {:g} of their size over {} updates (Luff)",
                                    limits_.tolerance, limits_.updates);
  }

  const Limits limits_;
  std::map<std::pair<std::string, std::string>, Pair> pairs_;
  std::map<std::uint32_t, std::int64_t> total_;  // updates by optimizer
  std::set<std::string> workers_, models_;       // pairs that have been judged
  std::set<std::uint32_t> set_;  // optimizers whose weights something else sets between updates
  std::int64_t captures_ = 0;
  bool wrapped_ = false;  // in DistributedDataParallel, on some worker
  Anchor last_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ReplicaDivergence>(kName, kParams);
  spec.version = 5;  // 5: workers without a wrapper; 2: models that take turns; 3: that are compared; 4:
                     // whose weights are averaged
  spec.summary = "replicas of a model that began equal and are no longer so";
  spec.needs = [](const Parameters&) -> std::vector<Need> {
    return {{.collection = "weights", .roles = {Role::kWeight}, .forms = Bit(format::Form::kSummary)}};
  };
  return spec;
}

}  // namespace luff::rules::replica_divergence
