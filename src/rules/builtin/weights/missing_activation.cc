#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// MissingActivation: docs/rules/missing_activation.md.
namespace luff::rules::missing_activation {
namespace {

constexpr const char* kName = "MissingActivation";
constexpr std::size_t kMaxPairs = 16;
constexpr std::int64_t kWide = 8;

struct Limits {
  std::int64_t updates;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "16", "updates during which the graph shows it (Luff)", AtLeast(1)},
};

// "net.fc" of "net.fc.weight"; "" for a name without a dot.
std::string_view ParentOf(std::string_view path) noexcept {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

// "fc" of "fc12", "dense" of "dense_1": names that differ in their number only are steps of one chain.
std::string_view StemOf(std::string_view path) noexcept {
  const std::size_t dot = path.rfind('.');
  std::string_view name = dot == std::string_view::npos ? path : path.substr(dot + 1);
  const std::size_t length = name.size();
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  if (name.size() < length && name.size() > 1 && name.back() == '_') name.remove_suffix(1);
  return name;
}

// How many numbers a layer gets and gives.
struct Width {
  std::int64_t in = 0, out = 0;
};
Width WidthOf(const ParameterFacts& weight, bool keras) {
  if (weight.shape.size() != 2) return {};
  return keras ? Width{weight.shape[0], weight.shape[1]} : Width{weight.shape[1], weight.shape[0]};
}

class MissingActivation final : public KeptRule {
 public:
  explicit MissingActivation(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded) return;
    for (const auto& event : view.index.json_events("linear_layers")) Take(*event);
    for (const auto& event : view.index.json_events("softmax_layers")) TakeChain(*event);
    TellChain(view, sink);
    if (!told_.empty() && Find(view.memo.Facts(view)).empty()) {
      sink.Heal(linear_told_ ? "linear_model" : "linear_pair", told_, info.mode_step);
      told_.clear();
    }
    if (pairs_.empty() || !told_.empty()) return;
    if (view.index.events(format::EventKind::kOptimizerStep).empty() || ++updates_ < limits_.updates) return;
    const ModelFacts& facts = view.memo.Facts(view);
    const std::vector<Pair> found = Find(facts);
    if (!found.empty()) Tell(view, found, facts.keras(), sink);
  }

  void VisitFields(Fields& io) override {
    io("updates", updates_);
    io("pairs", pairs_, kMaxPairs);
    io("linear", linear_);
    io("linear_told", linear_told_);
    io("told", told_);
    io("chain", chain_, kMaxPairs);
    io("chained", chained_);
    io("chain_told", chain_told_);
  }

 private:
  using Pair = std::pair<std::string, std::string>;  // paths of two layers

  void Take(const nlohmann::json& event) {
    const auto pairs = event.find("pairs");
    const auto linear = event.find("linear");
    if (pairs == event.end() || !pairs->is_array()) return;
    pairs_.clear();
    for (const auto& pair : *pairs) {
      if (pairs_.size() >= kMaxPairs || !pair.is_array() || pair.size() != 2 || !pair[0].is_string() ||
          !pair[1].is_string())
        continue;
      pairs_[pair[0].get<std::string>()] = pair[1].get<std::string>();
    }
    linear_ = linear != event.end() && linear->is_boolean() && linear->get<bool>();
  }

  void TakeChain(const nlohmann::json& event) {
    const auto layers = event.find("layers");
    if (layers == event.end() || !layers->is_array()) return;
    chain_.clear();
    chained_ = 0;
    for (const auto& layer : *layers) {
      if (chain_.size() < kMaxPairs && layer.is_string()) chain_.push_back(layer.get<std::string>());
    }
  }

  // Two softmaxes or more in the places of activations: one alone may share something out on purpose. A
  // factor of a product, as of topics and their words, has no bias, and few numbers may be shares of classes.
  void TellChain(const StepView& view, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    const ModelFacts& facts = view.memo.Facts(view);
    const bool meant = chain_.size() < 3 ||
                       !std::all_of(
                           chain_.begin(), chain_.end(),
                           [&](const auto& name) {
                             const ParameterFacts* layer = facts.Find(name);
                             return layer != nullptr && layer->requires_grad && !layer->optimizer.empty() &&
                                    HasBias(facts, *layer, std::string(ParentOf(layer->path))) &&
                                    (name == chain_.back() || WidthOf(*layer, facts.keras()).out >= kWide);
                           });
    if (meant) {
      if (!chain_told_.empty()) sink.Heal("softmax_between", chain_told_, info.mode_step);
      chain_told_.clear();
      return;
    }
    if (!chain_told_.empty() || view.index.events(format::EventKind::kOptimizerStep).empty() ||
        ++chained_ < limits_.updates)
      return;
    Finding finding = FindingAt(kName, "softmax_between", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    for (const std::string& name : chain_) {
      const std::string path(ParentOf(facts.Find(name)->path));
      if (finding.tensor.empty()) {
        finding.tensor = path;
      } else {
        finding.other_tensors.push_back(path);
      }
    }
    chain_told_ = finding.tensor;
    finding.what =
        fmt::format("{} linear layers in a row have a softmax for their activation", chain_.size());
    finding.why =
        "the graph of the backward pass shows that each gets the softmax of what the one before gives, and "
        "nothing else does: the numbers between them sum to 1, so that they are small and gain at each "
        "other's cost, and gradients nearly vanish";
    finding.remedy =
        "apply an activation of single numbers between layers (ReLU, GELU, tanh); a softmax "
        "belongs behind the last layer, if anywhere";
    finding.causes = {"torch.nn.Softmax in the place of an activation"};
    finding.evidence = {{"layers", chain_.size()}, {"updates", chained_}};
    finding.threshold = fmt::format("a fact of the graph, {} updates (Luff)", limits_.updates);
    sink.Report(std::move(finding));
  }

  // The pairs of which nothing says that they are meant: both are trained layers of the same model, the first
  // has a bias (a factor of a product of matrices has none), and it is not narrower than both its sides.
  std::vector<Pair> Find(const ModelFacts& facts) const {
    std::vector<Pair> found;
    for (const auto& [first_name, second_name] : pairs_) {
      const ParameterFacts* first = facts.Find(first_name);
      const ParameterFacts* second = facts.Find(second_name);
      if (first == nullptr || second == nullptr || first->model != second->model) continue;
      const Width before = WidthOf(*first, facts.keras());
      const Width behind = WidthOf(*second, facts.keras());
      if (before.out != behind.in) continue;
      if (!first->requires_grad || first->optimizer.empty() || second->optimizer.empty()) continue;
      const std::int64_t inner = before.out;
      if (inner < 2 || inner < std::min(before.in, behind.out)) continue;
      const std::string one(ParentOf(first->path));
      const std::string other(ParentOf(second->path));
      const auto& types = facts.ModuleTypes(first->model);
      const auto is = [&](const std::string& path, std::string_view type) {
        const auto at = types.find(path);
        return at != types.end() && at->second == type;
      };
      if (!is(one, "Linear") || !is(other, "Linear") || !HasBias(facts, *first, one)) continue;
      // An embedding and the classifier behind it may be two layers on purpose. Steps of a chain are not.
      const bool chain = ParentOf(one) == ParentOf(other) &&
                         (is(std::string(ParentOf(one)), "Sequential") || StemOf(one) == StemOf(other));
      if (linear_ || chain) found.emplace_back(one, other);
    }
    return found;
  }

  static bool HasBias(const ModelFacts& facts, const ParameterFacts& weight, const std::string& module) {
    return std::any_of(facts.parameters().begin(), facts.parameters().end(), [&](const auto& entry) {
      return entry.second.model == weight.model && entry.second.path == module + ".bias";
    });
  }

  void Tell(const StepView& view, const std::vector<Pair>& found, bool keras, Sink& sink) {
    Finding finding =
        FindingAt(kName, linear_ ? "linear_model" : "linear_pair", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    told_ = finding.tensor = found.front().first;
    linear_told_ = linear_;
    for (const auto& [first, second] : found) {
      for (const std::string& name : {first, second}) {
        if (name != finding.tensor && std::find(finding.other_tensors.begin(), finding.other_tensors.end(),
                                                name) == finding.other_tensors.end())
          finding.other_tensors.push_back(name);
      }
    }
    const auto& [first, second] = found.front();
    std::set<std::string> layers;
    for (const auto& [one, other] : pairs_) layers.insert({one, other});
    finding.what = linear_
                       ? fmt::format("the model has {} layers and no activation: it is linear in its input",
                                     layers.size())
                       : fmt::format("no activation stands between {} and {}", first, second);
    finding.why = fmt::format(
        "the graph{} shows that {} gets what {} gives and that nothing else does: two linear layers in a row "
        "can say no more than one",
        keras ? " of the model" : " of the backward pass", second, first);
    finding.remedy =
        fmt::format("apply an activation (ReLU, GELU) to what {} gives, or leave one layer out", first);
    finding.causes = {"an activation that is defined and never called", "an activation that was left out"};
    finding.evidence = {{"pairs", found.size()}, {"updates", updates_}};
    finding.threshold = fmt::format("a fact of the graph, {} updates (Luff)", limits_.updates);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::int64_t updates_ = 0;
  std::map<std::string, std::string> pairs_;  // weight of a layer -> weight of the one behind it
  bool linear_ = false, linear_told_ = false;
  std::string told_;                // tensor of the finding
  std::vector<std::string> chain_;  // weights of layers with a softmax between each two
  std::int64_t chained_ = 0;        // updates with it
  std::string chain_told_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<MissingActivation>(kName, kParams);
  spec.version = 2;  // 2: "softmax_between"
  spec.summary = "linear layers in a row with no activation between them, or with softmaxes only";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::missing_activation
