#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/loss/formula_parts.h"
#include "rules/facts/json_event.h"
#include "rules/facts/phases.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// LossFormula: docs/rules/loss_formula.md.
namespace luff::rules::loss_formula {
namespace {

constexpr const char* kName = "LossFormula";

struct Limits {
  std::int64_t updates;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "16", "updates of one optimizer by such a loss (Luff)", AtLeast(1)},
};

struct Fault {
  std::string_view name;
  const char* what;
  const char* why;
  const char* remedy;
  const char* cause;
  bool stop;  // the training can only go wrong
};

constexpr std::array kFaults = std::to_array<Fault>({
    {"softmax_axis", "the softmax of the loss runs over another axis than that of the classes",
     "probabilities of a target are taken along one axis, but they sum to 1 along another: over the samples "
     "of "
     "the batch, say, which then compete with each other, and classes do not",
     "give the softmax (or the sum of exponentials) the axis of the classes: dim=1, or dim=-1",
     "dim=0 where dim=1 is meant", false},
    {"likelihood_minimised", "the training makes the logarithm of the targets' probabilities small",
     "the loss is a mean of these logarithms without a minus: it falls without bound while targets become "
     "improbable",
     "put a minus before it: loss = -log_probability.mean()", "the minus of the loss is missing", true},
    {"half_of_bce", "the loss is the first half of a binary cross entropy",
     "it is -y * log(p) alone: where y is 0 it is 0 whatever the output is, so that the answer 1 for all "
     "rows "
     "is the best",
     "add the other half, - (1 - y) * log(1 - p), or use binary_cross_entropy_with_logits",
     "the term of targets that are 0 is missing", false},
    {"mean_error", "the loss is the mean of signed errors",
     "neither a square nor an absolute value stands between outputs minus targets and their mean: its "
     "gradient is the same whatever the targets are, and it falls without bound",
     "take the square or the absolute value of the errors before the mean: ((output - target) ** 2).mean()",
     "a missing square, or a missing abs()", true},
    {"squared_mean", "the loss is the square of the mean error, not the mean of squared errors",
     "errors of opposite signs cancel out before they are squared: any outputs with the right mean are the "
     "best",
     "square before the mean: ((output - target) ** 2).mean()", "square and mean in the wrong order", false},
    {"focal_upside_down", "the focal loss weights samples by p instead of 1 - p",
     "it is -p**g * log(p) of the targets' probabilities p: it is 0 not only where p is 1, but where p is 0, "
     "too, so that wrong answers are the best",
     "weight by (1 - p) ** gamma", "p where 1 - p is meant", true},
    {"overlap_minimised", "the training makes the overlap of output and target small",
     "the loss is a Dice coefficient or an intersection over union itself, which is 1 for the right answer, "
     "or adds it to another loss of the same targets",
     "minimise 1 - overlap: put a minus before the coefficient", "the coefficient in the place of the loss",
     true},
    {"overlap_of_scores", "the overlap of the loss takes scores for probabilities",
     "a Dice coefficient or an intersection over union of the outputs of a linear layer, as they are: scores "
     "below 0 shrink the sum of the sizes, so that the loss falls without bound and nothing is met by it",
     "take probabilities: torch.sigmoid(scores), or a softmax over the classes, before the overlap",
     "a sigmoid or softmax that is missing", false},
    {"similarity_minimised", "the training makes embeddings and their targets unlike",
     "the loss is the mean cosine between the model's vectors and vectors without a gradient, with a plus: "
     "it "
     "is "
     "least where they are opposite",
     "put a minus before the similarity: loss = -F.cosine_similarity(p, z.detach()).mean(), or 1 - it",
     "the minus of the similarity is missing", false},
    {"divergence_maximised", "the training makes the divergence of its codes from N(0, 1) large",
     "1 + log(variance) - mean**2 - variance is minus twice the divergence, and it is added to the loss as "
     "it "
     "is: the loss falls without bound as means and variances grow",
     "multiply it by -0.5: -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()",
     "the minus of the divergence is missing", true},
    {"errors_maximised", "the loss falls as errors grow, on both sides of the target",
     "it is the smaller of two multiples of the error, of which one is below 0: a quantile loss takes the "
     "larger",
     "take the maximum: torch.max(q * error, (q - 1) * error).mean()", "min in the place of max, or a minus",
     true},
    {"margin_of_zeros", "the margin loss gets targets of 0 and 1 where it needs -1 and 1",
     "it multiplies outputs by targets: where the target is 0 the loss is the same whatever the output is, "
     "so "
     "that the answer 1 for all rows is the best",
     "give it targets of -1 and 1: 2 * y - 1", "labels of 0 and 1", false},
    {"squashed_twice", "the loss is made of a sigmoid or softmax of another one",
     "the second works on numbers between 0 and 1: its results stay near even, the loss cannot come near its "
     "least value, and gradients are small",
     "remove one of the two: the one at the end of the model, or the one in the loss",
     "the model ends with a sigmoid or softmax, and the loss applies one, too", false},
    {"weights_without_effect",
     "the weights of the samples have no effect: they multiply the mean of the samples' losses",
     "the loss, or the logarithms of the probabilities, were averaged to one number before the weights came: "
     "it is multiplied by each of them, so that every sample counts like any other, and only the sum of all "
     "weights matters",
     "multiply before the mean: give the loss reduction=\"none\", then (loss * weight).mean(); of a policy, "
     "(log_probs * returns).mean() with one log-probability for each return",
     "a loss with its usual reduction, or a mean(), in front of the weights", false},
    {"scale_without_cost",
     "the loss divides errors by a scale that the model predicts, and nothing makes the scale cost anything",
     "squared errors are divided by an exponential or a softplus with a gradient (or multiplied by one), and "
     "no other "
     "term holds it: the loss nears 0 as the variance grows, whatever the predictions are",
     "add the logarithm of the scale: 0.5 * (log_var + (y - mean) ** 2 / log_var.exp()).mean(), or use "
     "torch.nn.GaussianNLLLoss",
     "a Gaussian likelihood without its logarithm", false},
    {"moving_gain", "the gain of the policy is part of the graph: the critic is trained by the policy's loss",
     "log-probabilities of the actions are multiplied by an advantage that comes from the critic's values "
     "with "
     "their gradient; the same values are fitted to returns: the policy's term moves them to whatever makes "
     "it "
     "small",
     "detach the advantage: advantage = (returns - values).detach()", "an advantage without detach()", false},
    {"moving_target", "training moves the target of the loss, too",
     "the target is a number plus a discount times an answer of a model, and it is part of the graph: its "
     "gradient changes that answer so that the target meets the prediction",
     "compute the target under torch.no_grad(), or detach() it", "a bootstrapped target without detach()",
     false},
});

// Whether a fault is only that the loss goes the wrong way: for some rows, at least.
bool IsDirection(std::string_view fault) noexcept {
  constexpr std::string_view kNames[] = {"likelihood_minimised", "half_of_bce",       "mean_error",
                                         "focal_upside_down",    "overlap_minimised", "similarity_minimised",
                                         "divergence_maximised", "errors_maximised"};
  return std::find(std::begin(kNames), std::end(kNames), fault) != std::end(kNames);
}

class LossFormula final : public KeptRule {
 public:
  explicit LossFormula(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded) return;
    const auto& updates = view.index.events(format::EventKind::kOptimizerStep);
    if (phases_.OnStep(view)) {  // another loss; what was told of the first phase stands
      fault_.clear();
      if (!told_.empty() && earlier_.size() < kFaults.size()) earlier_.insert(told_);
      told_.clear();
      updates_ = 0;
    }
    for (const auto& event : view.index.json_events("loss_formula")) {
      const auto fault = event->find("fault");
      if (fault == event->end() || !fault->is_string()) continue;
      const auto& name = fault->get_ref<const std::string&>();
      const std::string before = std::exchange(fault_, Known(name) == nullptr ? "" : name);
      if (fault_ != before) {
        later_ = all_ >= limits_.updates;
        // A model that was trained may be made worse on purpose: rows that are to be forgotten, an attack.
        if (later_ && IsDirection(fault_)) fault_.clear();
      }
      updates_ = 0;
      first_step_ = info.mode_step;
    }
    all_ += updates.empty() ? 0 : 1;
    TellHelped(view, sink);
    TellParts(view, sink);
    const Fault* fault = Known(fault_);
    // Adversaries, whose optimizers take turns, have losses that fit no target, though one of them may have
    // been trained alone at first.
    if (phases_.several()) {
      for (const std::string& earlier : std::exchange(earlier_, {}))
        if (earlier != told_) sink.Heal(earlier, "", info.mode_step);
    }
    if (fault == nullptr || phases_.several()) {
      if (!told_.empty()) sink.Heal(told_, "", info.mode_step);
      told_.clear();
      return;
    }
    if (!told_.empty() || updates.empty() || ++updates_ < limits_.updates) return;
    Finding finding = FindingAt(kName, fault_.c_str(), view, TensorAt{format::kNoId});
    finding.severity = fault->stop && !later_ ? Severity::kStop : Severity::kWarn;
    finding.since_step = first_step_;
    finding.what = fault->what;
    finding.why = fmt::format("the graph of the backward pass says so: {}", fault->why);
    finding.remedy = fault->remedy;
    finding.causes = {fault->cause};
    finding.evidence = {{"updates", static_cast<double>(updates_)}};
    finding.threshold = fmt::format("a fact of the graph, {} updates (Luff)", limits_.updates);
    sink.Report(std::move(finding));
    told_ = fault_;
  }

  void VisitFields(Fields& io) override {
    io("phases", phases_);
    io("first_step", first_step_);
    io("updates", updates_);
    io("fault", fault_, kMaxName);
    io("told", told_, kMaxName);
    io("earlier", earlier_, kFaults.size());
    io("all", all_);
    io("later", later_);
    io("helped", helped_);
    io("parts", parts_, kParts.size());
  }

 private:
  static constexpr std::size_t kMaxName = 64, kMaxModel = 512;

  static const Fault* Known(std::string_view name) noexcept {
    const auto* found =
        std::find_if(kFaults.begin(), kFaults.end(), [&](const Fault& one) { return one.name == name; });
    return found == kFaults.end() ? nullptr : found;
  }

  // Of adversaries, whose losses have no formula in common: the signs of their gradients at the critic's
  // scores are the fact. Told once; a hook writes the event once.
  void TellHelped(const StepView& view, Sink& sink) {
    if (helped_) return;
    for (const auto& event : view.index.json_events("critic_helped")) {
      const auto critic = event->find("critic"), generator = event->find("generator");
      if (critic == event->end() || generator == event->end() || !critic->is_string() ||
          !generator->is_string())
        continue;
      const std::string names[] = {critic->get<std::string>(), generator->get<std::string>()};
      if (names[0].size() > kMaxModel || names[1].size() > kMaxModel) continue;
      helped_ = true;
      Finding finding = FindingAt(kName, "critic_helped", view, TensorAt{format::kNoId});
      finding.severity = Severity::kWarn;
      finding.tensor = names[1];
      finding.since_step = 0;
      finding.what = fmt::format("{} is trained to help {}, not to deceive it", Or(names[1], "the generator"),
                                 Or(names[0], "the critic"));
      finding.why =
          "both losses move the critic's scores of what is generated the same way, away from those of the "
          "data: "
          "the signs of the gradients at the scores say so, in all updates that were looked at. The critic "
          "wins, and what is generated becomes ever easier to tell from data";
      finding.remedy =
          "turn the generator's term: give it the label of data (ones where the critic learns ones for "
          "data), "
          "or put a minus before the mean of the critic's scores of what is generated";
      finding.causes = {"zeros in place of ones as the generator's labels",
                        "a minus too many or too few in a Wasserstein or hinge loss",
                        "backward(-1) in place of backward(1), or the other way round"};
      finding.evidence = {{"updates", NumberIn(*event, "updates")}};
      finding.threshold = "a fact of the gradients, in 6 updates of the generator in a row (Luff)";
      sink.Report(std::move(finding));
      return;
    }
  }

  // Whatever the other losses and optimizers of the training are: a hook has seen it in several roots.
  void TellParts(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("formula_part")) {
      const auto fault = event->find("fault");
      if (fault == event->end() || !fault->is_string()) continue;
      const FaultyPart* part = PartNamed(fault->get_ref<const std::string&>());
      if (part == nullptr || !parts_.emplace(part->name).second) continue;
      Finding finding = FindingAt(kName, std::string(part->name).c_str(), view, TensorAt{format::kNoId});
      finding.severity = Severity::kWarn;
      finding.since_step = 0;
      finding.what = part->what;
      finding.why = fmt::format("the graph of the backward pass says so: {}", part->why);
      finding.remedy = part->remedy;
      finding.causes = {part->cause};
      finding.threshold = "a fact of the graph, in 3 backward passes (Luff)";
      sink.Report(std::move(finding));
    }
  }

  static std::string Or(const std::string& name, const char* other) { return name.empty() ? other : name; }

  const Limits limits_;
  bool helped_ = false;  // "critic_helped" was told
  Phases phases_;
  std::int64_t updates_ = 0, first_step_ = 0;  // since the fault was read
  std::int64_t all_ = 0;                       // steps with updates, of the run
  bool later_ = false;                         // the fault was read behind updates without it
  std::string fault_, told_;
  std::set<std::string> earlier_;  // told of earlier phases
  std::set<std::string> parts_;    // that were told
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LossFormula>(kName, kParams);
  spec.version = 7;  // 2: "squashed_twice"; 4: phases, "moving_gain", "similarity_minimised"; 5:
                     // "weights_without_effect", "scale_without_cost"; 6: "critic_helped",
                     // "overlap_of_scores"; 7: parts
  spec.summary = "a loss that a script writes itself, of a formula that cannot be meant";
  return spec;
}

}  // namespace luff::rules::loss_formula
