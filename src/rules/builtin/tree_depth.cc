#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "rules/builtin/builtin.h"
#include "rules/select.h"

/// TreeDepth: docs/rules/tree_depth.md.
namespace luff::rules {
namespace {

constexpr const char* kName = "TreeDepth";
constexpr const char* kPage = "docs/rules/tree_depth.md";
constexpr const char* kTensors = "^trees/Node$";

class TreeDepth final : public Rule {
 public:
  TreeDepth(Regex pattern, double depth) : tensors_(std::move(pattern)), depth_(depth) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const query::TensorId id : tensors_.Of(view.trial)) {
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
      finding.threshold = fmt::format("deeper than {:g} (original)", depth_);
      sink.Report(std::move(finding));
    }
  }
  [[nodiscard]] std::string SaveState() const override { return "{}"; }
  [[nodiscard]] Status LoadState(std::string_view) override { return Status::Ok(); }

 private:
  MatchingTensors tensors_;
  const double depth_;
};

}  // namespace

RuleSpec TreeDepthSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.version = 1;
  spec.page = kPage;
  spec.summary = "trees of a boosted model that are too deep";
  spec.parameters = {
      {"depth", "8", "4",
       "levels below the root that are allowed; 4 is the original's, 6 is XGBoost's own default"},
      {"tensor_regex", kTensors, kTensors, "tensors that hold the nodes' numbers of a step's trees"},
  };
  spec.needs = [](const Parameters& parameters) {
    Need need;
    need.collection = "tree_nodes";
    need.include = {TextOf(parameters, "tensor_regex")};
    if (TextOf(parameters, "tensor_regex") == kTensors) {  // no tensor of a module's is called so
      need.include_roles = {format::Role::kOther, format::Role::kCustom};
    }
    need.forms = Bit(format::Form::kRaw);
    return std::vector<Need>{need};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(const double depth, ParseDouble(TextOf(parameters, "depth")));
    LUFF_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(TextOf(parameters, "tensor_regex")));
    return std::unique_ptr<Rule>(new TreeDepth(std::move(pattern), depth));
  };
  return spec;
}

}  // namespace luff::rules
