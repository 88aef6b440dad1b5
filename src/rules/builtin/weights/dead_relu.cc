#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// DeadRelu: docs/rules/dead_relu.md.
namespace luff::rules::dead_relu {
namespace {

using format::Form;
using format::Role;
constexpr const char* kName = "DeadRelu";
constexpr std::size_t kMaxUnits = 1 << 20;

struct Limits {
  double inactivity, layer;
  std::int64_t interval, window, born_captures, values;
  double born_share, died_share;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "tensor_regex", ".*relu_output",
     "outputs to inspect (original; Luff's set takes modules of type ReLU and ReLU6)"},
    {nullptr, "collection_names", "None", "collections to inspect (original)"},
    {&Limits::inactivity, "threshold_inactivity", "1.0",
     "percent of positive outputs below which a node is dead (original)"},
    {&Limits::layer, "threshold_layer", "50.0", "percent of dead nodes (original)"},
    {&Limits::interval, "interval", "8", "TRAIN steps between two captures", AtLeast(1), "1"},
    {&Limits::window, "window", "4", "captures in a row without a positive output (Luff)", AtLeast(1)},
    {&Limits::born_captures, "born_captures", "3",
     "captures after which units that never fired count as born dead (Luff)", AtLeast(1)},
    {&Limits::values, "values", "64", "outputs of a unit before it is judged (Luff)"},
    {&Limits::born_share, "born_share", "0.5", "share of units that never gave a positive output (Luff)"},
    {&Limits::died_share, "died_share", "0.95", "share of units that give none any more (Luff)"},
};

// smdebug's rule: a node is dead when less than threshold_inactivity percent of its outputs are > 0; fires
// when more than threshold_layer percent of a tensor's nodes are dead.
class Original final : public KeptRule {
 public:
  Original(TensorSelector selector, const Limits& limits) : selector_(std::move(selector)), limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& entry : view.rows.units) {
      if (!selector_.Selects(view.trial, entry.tensor) || entry.counts.positive.empty() ||
          entry.counts.values_per_unit == 0)
        continue;
      std::size_t dead = 0;
      for (const std::uint64_t positive : entry.counts.positive) {
        dead += 100.0 * static_cast<double>(positive) / static_cast<double>(entry.counts.values_per_unit) <
                        limits_.inactivity
                    ? 1
                    : 0;
      }
      const double percent =
          100.0 * static_cast<double>(dead) / static_cast<double>(entry.counts.positive.size());
      if (!(percent > limits_.layer)) continue;
      Finding finding = FindingAt(kName, "dead", view, entry);
      finding.what = fmt::format("{:.3g} % of the nodes of {} are dead", percent, finding.tensor);
      finding.why =
          fmt::format("less than {:g} % of their outputs in this batch are positive", limits_.inactivity);
      finding.remedy = "lower the learning rate, check biases and inputs, or use LeakyReLU";
      finding.evidence = {{"dead_percent", percent}};
      finding.threshold = fmt::format("more than {:g} % of the nodes (original)", limits_.layer);
      sink.Report(std::move(finding));
    }
  }

 private:
  TensorSelector selector_;
  const Limits limits_;
};

// Luff's rule: a unit is dead when it gave no positive output in the last `window` captures. It is born dead
// if it never gave one, and no update moved a weight far before its first capture. If most units are born
// dead, initialisation or inputs are wrong, which is known after `born_captures`. Units that die later are a
// mistake only when hardly any are left, as a penalty on activations lets units die on purpose. In a deep
// plain net all samples look alike, and each unit is on or off for all of them: then as many are always on as
// are always off.

constexpr double kMovedFar =
    0.5;  // a first update of half a weight's size can kill units, whatever the initialisation
constexpr double kOneSided = 0.4;  // share of units by which those born dead must outnumber those always on

class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    if (!moved_known_) FirstMove(view);
    for (const auto& [entry, tensor] : view.index.units(Role::kOutput)) {
      if (tensor.module_type != "ReLU" && tensor.module_type != "ReLU6") continue;
      const std::size_t units = entry.counts.positive.size();
      if (units < 2 || units > kMaxUnits) continue;
      Layer& layer = layers_[fmt::format("{}\n{}", entry.worker, tensor.name)];
      if (layer.idle.size() != units || layer.ever.size() != units) {
        layer = {};
        layer.idle.assign(units, 0);
        layer.ever.assign(units, 0);
        layer.always.assign(units, 1);
        layer.first_step = view.rows.info.mode_step;
      }
      ++layer.captures;
      // The first steps are captured densely; idleness counts captures an interval apart.
      const bool counts = layer.counted == 0 ||
                          view.rows.info.mode_step >= layer.last_counted + limits_.interval ||
                          view.rows.info.mode_step % limits_.interval == 0;
      if (counts) {
        ++layer.counted;
        layer.last_counted = view.rows.info.mode_step;
      }
      layer.values = std::min<std::uint64_t>(layer.values + entry.counts.values_per_unit, 1ULL << 60);
      Count count;
      for (std::size_t i = 0; i < units; ++i) {
        const bool all_zero =
            i < entry.counts.zero.size() && entry.counts.zero[i] == entry.counts.values_per_unit;
        if (!all_zero) {  // also true for non-finite values: that is not death
          layer.idle[i] = 0;
          layer.ever[i] = 1;
        } else if (counts) {
          layer.idle[i] = std::min<std::uint32_t>(layer.idle[i] + 1, 1U << 30);
        }
        if (entry.counts.positive[i] != entry.counts.values_per_unit) layer.always[i] = 0;
        count.born += layer.ever[i] == 0 ? 1 : 0;
        count.always += layer.always[i] != 0 ? 1 : 0;
        count.dead += layer.ever[i] == 0 || layer.idle[i] >= limits_.window ? 1 : 0;
      }
      if (layer.values < static_cast<std::uint64_t>(limits_.values)) continue;
      Judge(view, entry, layer, count, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("layers", layers_);
    io("moved_known", moved_known_);
    io("moved_far", moved_far_);
  }

 private:
  struct Layer {
    std::int64_t captures = 0;
    std::uint64_t values = 0;  // per unit, all captures together
    std::int64_t first_step = 0, since = -1;
    bool open = false;
    std::vector<std::uint32_t> idle;    // captures in a row without a positive output, an interval apart
    std::vector<unsigned char> ever;    // has given an output other than zero
    std::vector<unsigned char> always;  // has given positive outputs only
    std::int64_t counted = 0, last_counted = 0;
    void VisitFields(Fields& io) {
      io("captures", captures);
      io("values", values);
      io("first_step", first_step);
      io("since", since);
      io("open", open);
      io("idle", idle, kMaxUnits);
      io("ever", ever, kMaxUnits);
      io("always", always, kMaxUnits);
      io.Check(ever.size() == idle.size() && always.size() == idle.size(), "of one length for all units");
      io("counted", counted);
      io("last_counted", last_counted);
    }
  };
  struct Count {
    std::int64_t dead = 0, born = 0, always = 0;
  };

  // Takes in whether the first measured update moved some weight far.
  void FirstMove(const StepView& view) {
    for (const WeightChange& change : view.index.weight_changes()) {
      if (!(change.previous_sum_sq > 0)) continue;
      moved_known_ = true;
      if (!(change.sum_sq <= kMovedFar * kMovedFar * change.previous_sum_sq)) moved_far_ = true;
    }
  }

  void Judge(const StepView& view, const query::Trial::UnitEntry& entry, Layer& layer, const Count& count,
             Sink& sink) {
    const double units = static_cast<double>(layer.idle.size());
    const bool born_known = !moved_far_ && layer.captures >= limits_.born_captures &&
                            static_cast<double>(count.born - count.always) >= kOneSided * units;
    const std::int64_t born = born_known ? count.born : 0;
    const bool window_passed = layer.counted >= limits_.window;
    const std::int64_t dead = window_passed || born_known ? count.dead : 0;
    const double dead_share = static_cast<double>(dead) / units;
    const double born_share = static_cast<double>(born) / units;
    const bool all = dead_share >= limits_.died_share;
    const std::string& name = view.trial.tensor(entry.tensor).name;
    if (!all && born_share < limits_.born_share) {
      if (layer.open) sink.Heal("dead", name, view.rows.info.mode_step);
      layer.open = false;
      layer.since = -1;
      return;
    }
    if (layer.since < 0)
      layer.since = born_share >= limits_.born_share ? layer.first_step : view.rows.info.mode_step;
    layer.open = true;
    Finding finding = FindingAt(kName, "dead", view, entry);
    finding.severity = all ? Severity::kStop : Severity::kWarn;
    finding.since_step = layer.since;
    finding.what = fmt::format("{} of the {} ReLU units behind {} are dead", dead, layer.idle.size(), name);
    finding.why = born > 0 && born == dead
                      ? fmt::format(
                            "they never gave a positive output, from the start on ({} captured batches); "
                            "a dead unit has no gradient, so it can hardly come back",
                            layer.captures)
                      : fmt::format(
                            "they gave no positive output in the last {} captured batches{}; a dead unit "
                            "has no gradient, so it can hardly come back",
                            limits_.window, born > 0 ? fmt::format(" ({} of them never did)", born) : "");
    finding.remedy =
        "check the biases' initialisation and the scale of the inputs, lower the learning rate, or use "
        "LeakyReLU";
    finding.causes = born_share >= limits_.born_share
                         ? std::vector<std::string>{"biases far below zero", "inputs that are not normalised",
                                                    "weights of one sign"}
                         : std::vector<std::string>{"learning rate too high", "a batch with wild values",
                                                    "a penalty on activations that is too strong"};
    finding.evidence = {{"dead_share", dead_share}, {"born_dead_share", born_share}, {"units", units}};
    finding.threshold = fmt::format("{:g} % born dead, or {:g} % dead (Luff)", 100 * limits_.born_share,
                                    100 * limits_.died_share);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Layer> layers_;
  bool moved_known_ = false, moved_far_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<Luff, Original>(kName, kParams);
  spec.version = 2;  // 2: born dead is known after three captures
  spec.summary = "units of a ReLU layer that never give a positive output";
  spec.needs = [](const Parameters& all) {
    std::vector<Need> needs = {{.collection = "relu_outputs",
                                .roles = {Role::kOutput},
                                .module_types = {"ReLU", "ReLU6"},
                                .forms = Bit(Form::kUnits),
                                .first_steps = 4}};
    if (IsOriginal(all)) needs = SelectedNeeds(all, "relu_output", Bit(Form::kUnits));
    for (Need& need : needs) {
      if (IsOriginal(all)) need.unit_axis = UnitAxis::kAllButFirst;
      need.save_interval = IntervalOf(all);
    }
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::dead_relu
