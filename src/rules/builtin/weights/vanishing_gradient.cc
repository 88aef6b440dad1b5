#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// VanishingGradient: docs/rules/vanishing_gradient.md.
namespace luff::rules::vanishing_gradient {
namespace {

using format::Role;
constexpr const char* kName = "VanishingGradient";

struct Limits {
  double threshold, ratio;
  std::int64_t updates, first, layers;
  double straight;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::threshold, "threshold", "1e-7", "mean absolute value (original)", {}, "0.0000001"},
    {&Limits::ratio, "ratio", "1e-4", "mean |g| of a layer over the largest of the step (Luff)"},
    {&Limits::updates, "updates", "56",
     "recorded updates before anything is said that is no fact of the start (Luff)"},
    {&Limits::first, "first", "4", "first updates that all show a fall from layer to layer (Luff)",
     AtLeast(1)},
    {&Limits::layers, "layers", "5", "layers of which it can be said (Luff)", AtLeast(3)},
    {&Limits::straight, "straight", "0.95", "correlation of place and log of the gradient (Luff)"},
};

// smdebug's rule: the mean |g| of any gradient lies below the threshold.
class Original final : public KeptRule {
 public:
  explicit Original(const Limits& limits) : threshold_(limits.threshold) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      const double mean = entry.summary.abs_mean();
      if (!(mean < threshold_)) continue;
      Finding finding = FindingAt(kName, "small", view, entry);
      finding.what = fmt::format("the mean absolute value of {} is {:.3g}", finding.tensor, mean);
      finding.why = "what the optimizer gets from it is next to nothing";
      finding.remedy =
          "use ReLU-like activations, normalisation, residual connections or another initialisation";
      finding.evidence = {{"abs_mean", mean}};
      finding.threshold = fmt::format("below {:g} (original)", threshold_);
      sink.Report(std::move(finding));
    }
  }

 private:
  const double threshold_;
};

// Luff's rule. In the long run: the gradient of a layer's weights is smaller than `ratio` times the largest
// of the step in 30 of the last 32 updates, and the loss has not fallen since its first values. A gradient
// that was not recorded does not count as small. A share that grows from block to block of updates waits: a
// last layer that began at zero passes on as much as it has grown.
//
// From the start on: the gradients of the first recorded updates fall geometrically from the last layer to
// the first. With x = place of a layer and y = log of the mean |g| of its weights, a straight line fits
// (correlation of at least `straight`) and falls below `ratio` over at least `layers` layers in each of the
// first `first` updates. The first layer must also have hardly moved (below 1e-5 of its norm per update where
// changes are recorded), since an optimizer may scale its gradient up. Small targets, a position behind a
// batch norm, a gate that starts at zero or a last layer that starts small make gradients small, but not
// smaller from layer to layer.
constexpr double kStill = 1e-5;   // of a weight's norm per update
constexpr int kBlock = 16;        // updates whose shares of the largest gradient are averaged
constexpr double kRising = 0.05;  // growth of that mean from one block to the next, at least

// Sigmoids between the layers: their slope is 1/4 at most, whatever they get, so a fall by `kBounded` through
// three of them or more is their doing, and no optimizer mends what the layers in front are told. It is
// reported where the loss stands still as well.
constexpr double kBounded = 1e-2;            // of the last layer's gradient arrives at the first, at most
constexpr double kPassed = 0.35;             // of its gradient a layer passes on, at most
constexpr std::int64_t kSigmoids = 3;        // between layers
constexpr std::int64_t kBoundedLayers = 4;   // with weights
constexpr std::int64_t kStandingStill = 96;  // updates during which the loss has not fallen by 3 %

bool IsLayer(const std::string& type) {
  const ModuleKind kind = KindOfModule(type);
  return kind == ModuleKind::kLinear || kind == ModuleKind::kConvolution;
}

class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    tracker_.OnStep(view);
    std::vector<Seen> seen;
    double largest = 0;
    std::uint32_t worker = 0;
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      if (IsBiasName(tensor.name) || entry.summary.finite_count() == 0) continue;
      if (entry.summary.finite_count() != entry.summary.count) return;  // NonFinite reports these
      if (seen.empty()) worker = entry.worker;
      if (entry.worker != worker) continue;
      const double size = entry.summary.abs_mean();
      seen.push_back({entry.tensor, size});
      largest = std::max(largest, size);
    }
    if (seen.size() < 2 || !(largest > 0)) return;
    ++updates_;
    if (FromTheStart(view, seen, worker, sink) || ThroughSigmoids(view, sink)) return;
    const Seen* smallest = nullptr;
    std::vector<std::string> others;
    for (const Seen& one : seen) {
      History& history = histories_[view.trial.tensor(one.tensor).name];
      const bool small = one.size < limits_.ratio * largest;
      history.bits = (history.bits << 1U) | (small ? 1U : 0U);
      ++history.count;
      if (small && history.since < 0) history.since = info.mode_step;
      if (!small && history.bits == 0) history.since = -1;
      history.zero = history.zero && one.size == 0;
      history.Follow(one.size / largest);
      if (open_.empty() && history.Rising()) continue;
      if (history.zero && StateIsZero(view.trial.tensor(one.tensor).name)) continue;
      if (history.count >= limits_.updates && std::popcount(history.bits) >= 30 && small) {
        if (!history.zero && PassesBeside(view, one, seen, limits_.ratio * largest)) continue;
        if (smallest == nullptr || one.size < smallest->size) smallest = &one;
        others.push_back(view.trial.tensor(one.tensor).name);
      }
    }
    if (smallest == nullptr || !tracker_.EnoughEvidence(limits_.updates) ||
        tracker_.AnyImprovedSinceSettled(0.03)) {
      if (!open_.empty() && smallest == nullptr) {
        sink.Heal("ratio", open_, info.mode_step);
        open_.clear();
      }
      return;
    }
    if (open_.empty()) open_ = view.trial.tensor(smallest->tensor).name;
    Finding finding = FindingAt(kName, "ratio", view, TensorAt{smallest->tensor, worker});
    finding.tensor = open_;
    for (std::string& name : others) {
      if (name != open_) finding.other_tensors.push_back(std::move(name));
    }
    finding.severity = Severity::kStop;
    finding.since_step = std::max<std::int64_t>(0, histories_[open_].since);
    finding.what =
        fmt::format("the gradient vanishes: mean |g| is {:.2g} here and {:.2g} in the layer with the largest",
                    smallest->size, largest);
    finding.why = fmt::format(
        "it was below {:g} of the largest in 30 of the last 32 updates, and the loss does not fall: these "
        "layers learn nothing",
        limits_.ratio);
    finding.remedy =
        "replace sigmoid or tanh by ReLU-like activations, add normalisation or residual connections, or "
        "initialise for the "
        "activation in use";
    finding.causes = {"saturating activations in a deep net", "initialisation too small or too large",
                      "dead ReLUs behind these layers"};
    finding.evidence = {
        {"abs_mean", smallest->size}, {"largest_abs_mean", largest}, {"ratio", smallest->size / largest}};
    finding.threshold = fmt::format(
        "ratio below {:g} in 30 of 32 updates, after {} updates, and no fall of the loss by 3 % (Luff)",
        limits_.ratio, limits_.updates);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("losses", tracker_);
    io("histories", histories_);
    io("updates", updates_);
    io("open", open_);
    io("falling", falling_);
    io("said", said_);
    io("first_layer_moved", first_layer_moved_);
    io("bounded", bounded_);
  }

 private:
  struct History {
    bool zero = true;        // each gradient so far was exactly zero
    std::uint32_t bits = 0;  // the last 32 updates, newest in the lowest bit: 1 = small
    std::int64_t count = 0;
    std::int64_t since = -1;
    double sum = 0, mean = 0, mean_before = 0;  // of the shares of this block of updates, of the last two
    void Follow(double share) {
      sum += share;
      if (count % kBlock != 0) return;
      mean_before = mean;
      mean = sum / kBlock;
      sum = 0;
    }
    // What lies behind the layer begins to pass gradients on, as a last layer does that begins at zero.
    // Steady growth since the start adds kBlock / count of it in a block; half of that is asked for.
    [[nodiscard]] bool Rising() const {
      const double growth =
          std::max(kRising, 0.5 * kBlock / static_cast<double>(std::max<std::int64_t>(count, 1)));
      return mean_before > 0 && mean > (1 + growth) * mean_before;
    }
    void VisitFields(Fields& io) {
      io("zero", zero);
      io("bits", bits);
      io("count", count);
      io("since", since);
      io("sum", sum);
      io("mean", mean);
      io("mean_before", mean_before);
    }
  };
  struct Seen {
    query::TensorId tensor;
    double size;
  };

  // Whether a layer of the same module that comes first gets gradients. Then they do not vanish on the way to
  // it: this layer's alone are small, as of the keys of an attention whose weights are still even.
  [[nodiscard]] bool PassesBeside(const StepView& view, const Seen& one, const std::vector<Seen>& seen,
                                  double least) const {
    const std::string_view module = ModuleOf(view.trial.tensor(one.tensor).name);
    return !module.empty() && std::any_of(seen.begin(), seen.end(), [&](const Seen& other) {
      const std::string& name = view.trial.tensor(other.tensor).name;
      if (other.tensor >= one.tensor || other.size < least || ModuleOf(name) != module) return false;
      const auto history = histories_.find(name);
      return history != histories_.end() && std::popcount(history->second.bits) <= 2;
    });
  }
  // "gradient/Net_block.mixer" of "gradient/Net_block.mixer.keys.weight"; nothing for a layer of the model
  // itself.
  static std::string_view ModuleOf(std::string_view name) {
    for (int part = 0; part < 2; ++part) {
      const std::size_t at = name.rfind('.');
      name = at == std::string_view::npos ? std::string_view() : name.substr(0, at);
    }
    return name;
  }

  // Whether a gradient of exact zeros is that of the weights for a state that is always zero, as where
  // sequences have one step: those for the input get gradients. NoGradient tells of it; nothing vanishes.
  [[nodiscard]] bool StateIsZero(std::string name) const {
    constexpr std::string_view kState = "weight_hh";
    const std::size_t at = name.rfind(kState);
    if (at == std::string::npos) return false;
    name.replace(at, kState.size(), "weight_ih");
    const auto input = histories_.find(name);
    return input != histories_.end() && !input->second.zero;
  }

  // Returns true once this has been reported, so that it is not reported again under the other cause.
  bool FromTheStart(const StepView& view, const std::vector<Seen>& seen, std::uint32_t worker, Sink& sink) {
    if (said_) return true;
    if (updates_ > limits_.first || (falling_ + 1 < updates_ && bounded_.updates + 1 < updates_))
      return false;
    // Layers in the order of the model, which is the order of tensor ids.
    std::vector<std::pair<query::TensorId, double>> line;
    for (const Seen& one : seen) {
      if (one.size > 0 && IsLayer(view.trial.tensor(one.tensor).module_type))
        line.emplace_back(one.tensor, std::log(one.size));
    }
    std::sort(line.begin(), line.end());
    const double n = static_cast<double>(line.size());
    if (n < static_cast<double>(std::min(limits_.layers, kBoundedLayers))) return false;
    double sum_y = 0;
    for (const auto& [tensor, y] : line) sum_y += y;
    const double mean_x = (n - 1) / 2;
    const double mean_y = sum_y / n;
    double xx = 0;
    double xy = 0;
    double yy = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const double x = static_cast<double>(i) - mean_x;
      const double y = line[i].second - mean_y;
      xx += x * x;
      xy += x * y;
      yy += y * y;
    }
    if (!(xx > 0) || !(yy > 0)) return false;
    const double correlation = xy / std::sqrt(xx * yy);
    const double ratio = std::exp(-xy / xx * (n - 1));
    const query::TensorInfo& first = view.trial.tensor(line.front().first);
    const double passed = std::exp(-xy / xx);
    if (correlation >= limits_.straight && ratio < kBounded && passed < kPassed) {
      ++bounded_.updates;
      bounded_.layers = static_cast<std::int64_t>(line.size());
      bounded_.ratio = ratio;
      bounded_.passed = passed;
      bounded_.tensor = first.name;
    }
    if (n < static_cast<double>(limits_.layers) || falling_ + 1 < updates_) return false;
    const std::string weight = ParameterOfGradient(first.name);
    for (const WeightChange& change : view.index.weight_changes()) {
      if (change.worker == worker && change.name == weight && change.previous_sum_sq > 0)
        first_layer_moved_ = std::max(first_layer_moved_, std::sqrt(change.sum_sq / change.previous_sum_sq));
    }
    if (!(correlation >= limits_.straight) || !(ratio < limits_.ratio) || first_layer_moved_ >= kStill)
      return false;
    ++falling_;
    if (falling_ < limits_.first) return false;
    said_ = true;
    Finding finding = FindingAt(kName, "start", view, TensorAt{line.front().first, worker});
    for (std::size_t i = 1; i + 1 < line.size(); ++i) {
      if (line[i].second < line.back().second + std::log(1e-2))
        finding.other_tensors.push_back(view.trial.tensor(line[i].first).name);
    }
    finding.severity = Severity::kStop;
    finding.since_step = 0;
    finding.what = fmt::format(
        "the gradient vanishes on its way back through {} layers: each passes on {:.0f} % of what it gets, "
        "and "
        "{:.1g} of it arrives at the first",
        line.size(), 100 * std::exp(-xy / xx), ratio);
    finding.why =
        "it is so from the start on: the first layers get next to nothing and learn next to nothing, "
        "whatever "
        "the last ones do";
    finding.remedy =
        "replace sigmoid or tanh by ReLU-like activations, add normalisation or residual connections, or "
        "initialise for the activation in use";
    finding.causes = {"saturating activations in a deep net", "initialisation too small"};
    finding.evidence = {{"ratio", ratio},
                        {"per_layer", std::exp(-xy / xx)},
                        {"layers", n},
                        {"correlation", correlation},
                        {"first_layer_moves", first_layer_moved_}};
    finding.threshold = fmt::format(
        "a straight line (correlation {:g}) over {} layers or more that falls below {:g}, in each of the "
        "first "
        "{} updates (Luff)",
        limits_.straight, limits_.layers, limits_.ratio, limits_.first);
    sink.Report(std::move(finding));
    return true;
  }

  // What the first updates showed of gradients that fall from layer to layer, by less than `ratio` asks for.
  struct Bounded {
    std::int64_t updates = 0, layers = 0;
    double ratio = 1, passed = 1;
    std::string tensor;
    bool told = false, over = false;
    void VisitFields(Fields& io) {
      io("updates", updates);
      io("layers", layers);
      io("ratio", ratio);
      io("passed", passed);
      io("tensor", tensor);
      io("told", told);
      io("over", over);
    }
  };

  // Sigmoids of a model that layers with weights follow; of several models the most.
  static std::int64_t SigmoidsBetween(const ModelFacts& facts) {
    std::int64_t most = 0;
    std::map<std::string, std::int64_t> behind;  // by model: those that no layer follows so far
    std::map<std::string, std::int64_t> between;
    for (const ModuleFacts& module : facts.modules()) {
      if (module.type == "Sigmoid" || module.type == "Hardsigmoid") ++behind[module.model];
      if (!IsLayer(module.type)) continue;
      between[module.model] += behind[module.model];
      behind[module.model] = 0;
      most = std::max(most, between[module.model]);
    }
    return most;
  }

  // Returns true once this has been reported.
  bool ThroughSigmoids(const StepView& view, Sink& sink) {
    if (bounded_.told) {
      if (!bounded_.over && tracker_.AnyImprovedSinceSettled(0.03)) {
        bounded_.over = true;  // such nets may learn at last
        sink.Heal("sigmoids", bounded_.tensor, view.rows.info.mode_step);
      }
      return true;
    }
    if (bounded_.updates < limits_.first || bounded_.layers < kBoundedLayers) return false;
    if (updates_ < kStandingStill || !tracker_.EnoughEvidence(kStandingStill)) return false;
    const std::int64_t sigmoids = SigmoidsBetween(view.memo.Facts(view));
    const bool stands = open_.empty() && !tracker_.AnyImprovedSinceSettled(0.03);
    if (!stands || sigmoids < kSigmoids) {
      bounded_ = {};  // judged once
      return false;
    }
    bounded_.told = true;
    Finding finding = FindingAt(kName, "sigmoids", view, TensorAt{format::kNoId});
    finding.tensor = bounded_.tensor;
    finding.since_step = 0;
    finding.what = fmt::format(
        "the gradient vanishes on its way back through {} sigmoids: each layer passes on {:.0f} % of what it "
        "gets, and {:.1g} of it arrives at the first",
        sigmoids, 100 * bounded_.passed, bounded_.ratio);
    finding.why = fmt::format(
        "the slope of a sigmoid is 1/4 at most, so it is so from the start on; in the first {} updates the "
        "loss "
        "has not fallen: outputs hardly depend on the input, and what the first layers are told is next to "
        "nothing",
        kStandingStill);
    finding.remedy =
        "replace the sigmoids between the layers by ReLU-like activations, or add normalisation or residual "
        "connections; a sigmoid belongs behind the last layer only";
    finding.causes = {"sigmoids in a deep net"};
    finding.evidence = {{"ratio", bounded_.ratio},
                        {"per_layer", bounded_.passed},
                        {"layers", bounded_.layers},
                        {"sigmoids", sigmoids}};
    finding.threshold = fmt::format(
        "{} sigmoids between layers, a straight line (correlation {:g}) that falls below {:g} in each of the "
        "first {} updates, and no fall of the loss by 3 % in {} updates (Luff)",
        kSigmoids, limits_.straight, kBounded, limits_.first, kStandingStill);
    sink.Report(std::move(finding));
    return true;
  }

  const Limits limits_;
  LossTracker tracker_;
  Bounded bounded_;
  std::map<std::string, History> histories_;
  std::int64_t updates_ = 0;
  std::string open_;
  std::int64_t falling_ = 0;  // first updates in which gradients fall from layer to layer
  bool said_ = false;
  double first_layer_moved_ = 0;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Luff, Original>(kName, kParams);  // gradients and losses are always captured
  // 3: gradients that grow wait; 4: states of zeros; 5: "sigmoids"; 6: layers beside that get gradients
  spec.version = 6;
  spec.summary =
      "gradients of some layers are next to nothing beside those of others, and the loss does not fall";
  return spec;
}

}  // namespace luff::rules::vanishing_gradient
