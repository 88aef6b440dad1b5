#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/boosted_rules.h"
#include "rules/builtin/builtin.h"
#include "rules/select.h"

/// TreeDepth: docs/rules/tree_depth.md.
namespace luff::rules {
namespace {

constexpr const char* kName = "TreeDepth";
constexpr const char* kPage = "docs/rules/tree_depth.md";
constexpr const char* kTensors = "^trees/Node$";
constexpr const char* kColumns = "(^|/)trees/(Depth|Cover|Feature)$";

class TreeDepth final : public Rule {
 public:
  // `unless_levels`: silent where the levels themselves were recorded.
  TreeDepth(Regex pattern, double depth, bool unless_levels)
      : tensors_(std::move(pattern)),
        depth_(depth),
        unless_levels_(unless_levels) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const query::TensorId id : tensors_.Of(view.trial)) {
      if (unless_levels_ && view.trial.FindTensor("trees/Depth").ok()) return;
      const std::optional<std::vector<double>> ids = ReadNumbers(view, id);
      if (!ids) continue;
      double largest = -1;
      for (const double one : *ids) largest = std::isfinite(one) ? std::max(largest, one) : largest;
      if (largest < 0) continue;
      // Nodes are numbered as in a full binary tree, from 0: level d holds 2^d - 1 to 2^(d + 1) - 2.
      const double depth = std::floor(std::log2(largest + 1));
      if (!(depth > depth_)) continue;
      Finding finding = FindingAt(kName, kPage, "deep", view.trial, id, 0, view.rows.info);
      finding.what = fmt::format("a tree is {:g} levels deep", depth);
      finding.why = "deep trees fit single samples: the model learns noise by heart";
      finding.remedy = "lower max_depth, raise min_child_weight or gamma";
      finding.causes = {"max_depth too large for so many samples", "min_child_weight 0", "no regularisation"};
      finding.evidence = {{"depth", depth}, {"largest_node", largest}};
      finding.threshold = fmt::format("deeper than {:g} ({})", depth_, unless_levels_ ? "Luff" : "original");
      sink.Report(std::move(finding));
    }
  }
  [[nodiscard]] std::string SaveState() const override { return "{}"; }
  [[nodiscard]] Status LoadState(std::string_view) override { return Status::Ok(); }

 private:
  MatchingTensors tensors_;
  const double depth_;
  const bool unless_levels_;
};

}  // namespace

RuleSpec TreeDepthSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 2;
  spec.page = kPage;
  spec.summary = "trees of a boosted model that are too deep";
  spec.parameters = {
      {"depth", "8", "4",
       "levels below the root that are allowed; 4 is the original's, 6 is XGBoost's own default"},
      {"tensor_regex", kTensors, kTensors, "tensors that hold the nodes' numbers of a step's trees"},
      {"lone_share", "0.25", "0.25",
       "share of the leaves with one or two samples from which deep is too deep (Luff)"},
      {"rounds", "3", "3", "rounds in a row with such trees and without a better evaluation (Luff)"},
  };
  spec.needs = [](const Parameters& parameters) {
    const std::string pattern = TextOf(parameters, "tensor_regex");
    Need need;
    need.collection = "tree_nodes";
    need.include = {!IsOriginal(parameters) && pattern == kTensors ? kColumns : pattern};
    if (pattern == kTensors) {  // no tensor of a module's is called so
      need.include_roles = {format::Role::kOther, format::Role::kCustom};
    }
    need.forms = Bit(format::Form::kRaw);
    return std::vector<Need>{need};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(const double depth, ParseDouble(TextOf(parameters, "depth")));
    LUFF_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(TextOf(parameters, "tensor_regex")));
    BoostedDepthLimits limits;
    limits.depth = depth;
    LUFF_ASSIGN_OR_RETURN(limits.lone_share, ParseDouble(TextOf(parameters, "lone_share")));
    LUFF_ASSIGN_OR_RETURN(limits.rounds, ParseInt(TextOf(parameters, "rounds")));
    if (limits.rounds < 1) return InvalidArgument("'rounds' must be at least 1");
    const bool original = IsOriginal(parameters);
    std::unique_ptr<Rule> nodes(new TreeDepth(std::move(pattern), depth, !original));
    if (original) return nodes;
    return Together(std::move(nodes), BoostedTreeDepth(limits));
  };
  return spec;
}

}  // namespace luff::rules
