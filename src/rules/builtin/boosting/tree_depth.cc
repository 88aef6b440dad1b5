#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/boosting/boosted_rules.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// TreeDepth: docs/rules/tree_depth.md.
namespace luff::rules::tree_depth {
namespace {

constexpr const char* kName = "TreeDepth";
constexpr const char* kTensors = "^trees/Node$";
constexpr const char* kColumns = "(^|/)trees/(Depth|Cover|Feature)$";

struct Limits {
  double depth;
  std::string tensors;
  double lone_share;
  std::int64_t rounds;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::depth, "depth", "8",
     "levels below the root that are allowed; 4 is the original's, 6 is XGBoost's own default", Bound{}, "4"},
    {&Limits::tensors, "tensor_regex", kTensors, "tensors that hold the nodes' numbers of a step's trees"},
    {&Limits::lone_share, "lone_share", "0.25",
     "share of the leaves with one or two samples from which deep is too deep (Luff)"},
    {&Limits::rounds, "rounds", "3", "rounds in a row with such trees and without a better evaluation (Luff)",
     AtLeast(1)},
};

class TreeDepth final : public KeptRule {
 public:
  // `unless_levels`: silent if the levels themselves were recorded.
  TreeDepth(Regex pattern, double depth, bool unless_levels)
      : tensors_(std::move(pattern)),
        depth_(depth),
        unless_levels_(unless_levels) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const query::TensorId id : tensors_.Of(view.trial)) {
      if (unless_levels_ && view.trial.TensorNamed("trees/Depth")) return;
      const std::optional<std::vector<double>> ids = ReadNumbers(view, id);
      if (!ids) continue;
      double largest = -1;
      for (const double one : *ids) largest = std::isfinite(one) ? std::max(largest, one) : largest;
      if (largest < 0) continue;
      // Nodes are numbered as in a full binary tree, from 0: level d holds 2^d - 1 to 2^(d + 1) - 2.
      const double depth = std::floor(std::log2(largest + 1));
      if (!(depth > depth_)) continue;
      Finding finding = FindingAt(kName, "deep", view, TensorAt{id});
      finding.what = fmt::format("a tree is {:g} levels deep", depth);
      finding.why = "deep trees fit single samples: the model learns noise by heart";
      finding.remedy = "lower max_depth, raise min_child_weight or gamma";
      finding.causes = {"max_depth too large for so many samples", "min_child_weight 0", "no regularisation"};
      finding.evidence = {{"depth", depth}, {"largest_node", largest}};
      finding.threshold = fmt::format("deeper than {:g} ({})", depth_, unless_levels_ ? "Luff" : "original");
      sink.Report(std::move(finding));
    }
  }

 private:
  MatchingTensors tensors_;
  const double depth_;
  const bool unless_levels_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(limits.tensors));
    const bool original = IsOriginal(all);
    auto nodes = std::make_unique<TreeDepth>(std::move(pattern), limits.depth, !original);
    if (original) return std::unique_ptr<Rule>(std::move(nodes));
    return std::unique_ptr<Rule>(
        Together(std::move(nodes), BoostedTreeDepth({limits.depth, limits.lone_share, limits.rounds})));
  });
  spec.version = 2;
  spec.summary = "trees of a boosted model that are too deep";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    const std::string pattern = TextOf(all, "tensor_regex");
    Need need = {.collection = "tree_nodes",
                 .include = {!IsOriginal(all) && pattern == kTensors ? kColumns : pattern},
                 .forms = Bit(format::Form::kRaw)};
    if (pattern == kTensors)  // no tensor of a module has such a name
      need.include_roles = {format::Role::kOther, format::Role::kCustom};
    return {need};
  };
  return spec;
}

}  // namespace luff::rules::tree_depth
