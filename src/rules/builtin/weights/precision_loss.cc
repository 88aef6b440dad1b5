#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// PrecisionLoss: docs/rules/precision_loss.md.
namespace luff::rules::precision_loss {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "PrecisionLoss";
constexpr std::size_t kMaxOptimizers = 64;
constexpr double kFewest = 64;  // moving elements needed to judge

// Optimizers that round their result to the weight's own dtype. Others may round stochastically, or keep the
// part that was lost.
constexpr std::array kPlain = {"SGD",   "Adam",  "AdamW",  "RMSprop",  "Adagrad",
                               "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD"};

struct Limits {
  double lost;
  std::int64_t looks;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::lost, "lost", "0.8", "share of the moving weights that do not change (Luff)",
     Bound{.least = 0, .most = 1, .above = true}},
    {&Limits::looks, "looks", "5", "looks in a row, at updates 1, 2, 4, 8, 16, ... (Luff)", AtLeast(1)},
};

class PrecisionLoss final : public KeptRule {
 public:
  explicit PrecisionLoss(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain || view.rows.info.superseded) return;
    for (const auto& look : view.index.json_events("rounding")) Judge(view, *look, sink);
  }
  void VisitFields(Fields& io) override { io("optimizers", optimizers_, kMaxOptimizers); }

 private:
  struct Optimizer {
    std::int64_t looks = 0;  // consecutive looks at which updates were lost
    double rate = 0, highest = 0;
    bool told = false;
    std::string tensor;  // named by the open finding
    void VisitFields(Fields& io) {
      io("looks", looks);
      io("rate", rate);
      io("highest", highest);
      io("told", told);
      io("tensor", tensor);
    }
  };
  struct Count {
    double moving = 0, changed = 0, tensors = 0;
    std::string dtype, worst;
    double worst_share = 1;
  };

  static Count CountOf(const Json& look) {
    Count count;
    for (const Json& one : ListIn(look, "parameters")) {
      const double moving = NumberIn(one, "moving");
      const double changed = NumberIn(one, "changed");
      const auto dtype = one.is_object() ? one.find("dtype") : one.end();
      const auto name = one.is_object() ? one.find("name") : one.end();
      if (!(moving > 0) || !(changed >= 0) || dtype == one.end() || !dtype->is_string()) continue;
      std::string kept = dtype->get<std::string>();
      if (kept == "float32" && FlagIn(one, "bfloat16")) kept = "bfloat16 kept in float32";
      if (kept == "float32" && FlagIn(one, "float16")) kept = "float16 kept in float32";
      if (kept == "float32") continue;
      count.moving += moving;
      count.changed += changed;
      count.tensors += 1;
      count.dtype = kept;
      if (changed / moving <= count.worst_share && name != one.end() && name->is_string()) {
        count.worst_share = changed / moving;
        count.worst = name->get<std::string>();
      }
    }
    return count;
  }

  void Judge(const StepView& view, const Json& look, Sink& sink) {
    const double number = NumberIn(look, "optimizer");
    const double rate = NumberIn(look, "lr");
    if (!(number >= 0) || !(number < 4096) || !(rate > 0)) return;
    const auto key = static_cast<std::int64_t>(number);
    if (!optimizers_.contains(key) && optimizers_.size() >= kMaxOptimizers) return;
    Optimizer& one = optimizers_[key];
    // With a rate that is still rising, or has fallen far, lost updates are intended.
    const bool rising = one.rate > 0 && rate > 1.02 * one.rate;
    one.rate = rate;
    one.highest = std::max(one.highest, rate);
    if (rising) one.looks = 0;
    if (rate < 0.5 * one.highest) return;
    const Count count = CountOf(look);
    if (count.moving < kFewest) return;
    if (count.moving - count.changed < (limits_.lost - 1e-9) * count.moving) {
      one.looks = 0;
      if (one.told) sink.Heal("update_lost", one.tensor, view.rows.info.mode_step);
      one.told = false;
      return;
    }
    if (++one.looks < limits_.looks || one.told) return;
    if (!IsPlain(view.trial, number)) return;
    one.told = true;
    one.tensor = count.worst;
    Tell(view, count, rate, sink);
  }

  static bool IsPlain(const query::Trial& trial, double number) {
    const ModelFacts facts = ModelFacts::Of(trial);
    return std::any_of(facts.optimizers().begin(), facts.optimizers().end(), [&](const OptimizerFacts& one) {
      return static_cast<double>(one.number) == number &&
             std::find(kPlain.begin(), kPlain.end(), one.type) != kPlain.end();
    });
  }

  void Tell(const StepView& view, const Count& count, double rate, Sink& sink) const {
    Finding finding = FindingAt(kName, "update_lost", view, TensorAt{format::kNoId});
    finding.tensor = count.worst;
    finding.since_step = 0;
    const double lost = 1 - count.changed / count.moving;
    finding.what = fmt::format("rounding to {} swallows {:.3g} % of the weights' updates",
                               count.dtype.substr(0, count.dtype.find(' ')), 100 * lost);
    finding.why = fmt::format(
        "{:.0f} of {:.0f} weights that were looked at have a gradient, and {:.0f} of them changed: a step of "
        "the "
        "learning rate {:g} is less than half the distance to the next number that the dtype has",
        count.moving, count.moving, count.changed, rate);
    finding.remedy =
        "keep the weights in float32 and compute in 16 bits (torch.autocast), or use an optimizer with "
        "float32 copies, "
        "Kahan summation or stochastic rounding";
    finding.causes = {"model.bfloat16() or model.half() before training",
                      "a learning rate too low for 16 bits", "weights rounded after each update"};
    finding.evidence = {{"moving", count.moving}, {"changed", count.changed}, {"lost", lost}, {"lr", rate}};
    finding.threshold = fmt::format("{:g} % at {} looks in a row, at an unreduced rate (Luff)",
                                    100 * limits_.lost, limits_.looks);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::int64_t, Optimizer> optimizers_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<PrecisionLoss>(kName, kParams);
  spec.summary = "updates of 16-bit weights that rounding swallows";
  return spec;
}

}  // namespace luff::rules::precision_loss
