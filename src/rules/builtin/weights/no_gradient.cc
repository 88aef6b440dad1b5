#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "rules/builtin/weights/norm_of_one.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_input.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/facts/unused_twins.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// NoGradient: docs/rules/no_gradient.md.
namespace luff::rules::no_gradient {
namespace {

using format::EventKind;
using format::Form;
using format::Role;
constexpr const char* kName = "NoGradient";
constexpr std::size_t kMaxModules = 1 << 17;
constexpr std::uint32_t kMaxOptimizers = 4096;
constexpr std::int64_t kTwinUpdates = 128;  // without a call of a module; a phase of a training may be short

struct Limits {
  std::int64_t fast, front, late;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::fast, "fast", "5", "updates before a fact that cannot change by itself is told", AtLeast(2)},
    {&Limits::front, "front", "16",
     "updates without a gradient of a part that runs in front of all that have one"},
    {&Limits::late, "late", "48", "updates without a gradient of a part in between; a part may rest for 30"},
};

// Reports parameters that an optimizer updates and that get no gradient, or one of exact zeros.
class NoGradient final : public KeptRule {
 public:
  explicit NoGradient(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode == query::Mode::kTrain || info.mode == query::Mode::kEval) twins_.OnStep(view);
    if (info.mode != query::Mode::kTrain) return;
    makers_.OnStep(view);
    for (const auto& event : view.index.json_events("softmax_of_one"))
      singles_ = StringsIn(*event, "layers", kMostSingles);
    for (const auto& event : view.index.json_events("norm_of_one")) {
      alone_ = StringsIn(*event, "layers", kMostSingles);
      const auto of = event->find("of");
      alone_of_ = of != event->end() && of->is_string() ? of->get<std::string>().substr(0, 16) : "";
    }
    for (const auto& event : view.index.json_events("graphless_term")) TakeTerm(*event);
    for (const auto& entry : view.rows.forms) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role == Role::kOutput && entry.row.form == Bit(Form::kShape) && order_.size() < kMaxModules)
        order_.try_emplace(tensor.module_path, static_cast<std::int64_t>(order_.size()));
    }
    for (const Role role : {Role::kWeight, Role::kBias})
      for (const auto& [entry, tensor] : view.index.summaries(role)) {
        Seen& seen = SeenOf(tensor);
        if (role == Role::kWeight)
          seen.all_zero = entry.summary.count > 0 && entry.summary.zero_count == entry.summary.count;
        const Summary& now = entry.summary;
        seen.moved = seen.moved || (seen.last >= 0 && std::abs(now.sum - seen.sum) > 1e-12 * now.abs_sum);
        seen.sum = now.sum;
        seen.last = info.mode_step;
      }
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      Seen& seen = SeenOf(tensor);
      ++seen.rows;
      if (entry.summary.zero_count != entry.summary.count) {
        seen.last_nonzero = info.mode_step;
        // A term that is switched on later, as in a curriculum, trains from now on.
        if (!of_term_.empty() && open_.contains("graphless_term") && IsOfTerm(tensor.name))
          Heal("graphless_term", view, sink);
      }
      seen.last = info.mode_step;
    }
    for (const ReachFacts& reach : ReachesOf(view.index)) {
      before_ = std::move(without_);
      reached_ = reach.reached_count;
      without_ = reach.without_gradient;
      ++reaches_;
      if (reach.complete()) FollowOwners(view);
    }
    bool due = false;
    for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep)) {
      if (event.row.subject >= kMaxOptimizers || event.worker != view.index.first_worker()) continue;
      if (event.row.subject >= optimizers_.size()) optimizers_.resize(event.row.subject + 1);
      Optimizer& optimizer = optimizers_[event.row.subject];
      if (optimizer.updates++ == 0) optimizer.first_step = info.mode_step;
      const std::int64_t n = optimizer.updates;
      due = due || n == limits_.fast || n == limits_.front || n == limits_.late ||
            (n > limits_.fast && (n & (n - 1)) == 0);
    }
    if (due) Judge(view, sink);
  }

  void VisitFields(Fields& io) override {
    io("seen", seen_);
    if (io.loading()) of_id_.clear();  // it points into seen_
    io("optimizers", optimizers_, kMaxOptimizers);
    io("order", order_, kMaxModules);
    io("without", without_);
    io("before", before_);
    io("reached", reached_);
    io("reaches", reaches_);
    io("open", open_);
    io("makers", makers_);
    io("singles", singles_, kMostSingles);
    io("alone", alone_, kMostSingles);
    io("alone_of", alone_of_, kLongest);
    io("twins", twins_);
    io("of_term", of_term_, kMostOfTerm);
    io("term", term_, kLongest);
    io("by_value", by_value_);
  }

 private:
  struct Seen {  // of the tensor of a gradient or weight
    std::int64_t rows = 0, last = -1, last_nonzero = -1;
    bool all_zero = false;
    double sum = 0;      // of a weight
    bool moved = false;  // it is not what it was
    void VisitFields(Fields& io) {
      io("rows", rows);
      io("sum", sum);
      io("moved", moved);
      io("last", last);
      io("last_nonzero", last_nonzero);
      io("all_zero", all_zero);
    }
  };
  struct Optimizer {
    std::int64_t updates = 0, first_step = 0;
    // Looks in a row, the newest last, at whose steps the backward pass reached parameters, but none of an
    // optimizer that stepped then.
    std::int64_t misdirected = 0;
    void VisitFields(Fields& io) {
      io("updates", updates);
      io("first_step", first_step);
      io("misdirected", misdirected);
    }
  };
  struct One {
    std::string name;
    std::int64_t updates = 0;
    std::int64_t order = -1;  // place of its module in the forward pass; -1: unknown
    bool all_zero = false;
  };

  [[nodiscard]] const Seen* SeenOf(const std::string& name) const {
    const auto it = seen_.find(name);
    return it == seen_.end() ? nullptr : &it->second;
  }

  // Whose parameters the backward pass of this step has reached, and which optimizers have stepped.
  void FollowOwners(const StepView& view) {
    std::set<std::uint32_t> stepped;
    for (const query::EventAt& event : view.index.events(EventKind::kOptimizerStep)) {
      if (event.row.subject < kMaxOptimizers && event.worker == view.index.first_worker())
        stepped.insert(event.row.subject);
    }
    const ModelFacts& facts = view.memo.Facts(view);
    bool own = false;
    for (const auto& [name, parameter] : facts.parameters()) {
      if (own || !parameter.requires_grad || without_.contains(name)) continue;
      const auto number = facts.OptimizerNumber(parameter.optimizer);
      own = number && stepped.contains(*number);
    }
    for (const std::uint32_t number : stepped) {
      if (number >= optimizers_.size()) optimizers_.resize(number + 1);
      optimizers_[number].misdirected = own ? 0 : optimizers_[number].misdirected + 1;
    }
  }

  void Judge(const StepView& view, Sink& sink) {
    const ModelFacts& facts = view.memo.Facts(view);
    std::vector<One> none;
    std::vector<One> zero;
    std::vector<std::string> recurrent;
    std::int64_t first = INT64_MAX;  // first and last place of the modules with gradients
    std::int64_t last = -1;
    std::size_t held = 0;
    bool moving = false;  // some parameter gets a gradient that is not zero
    for (const auto& [name, parameter] : facts.parameters()) {
      if (!parameter.requires_grad || parameter.optimizer.empty()) continue;
      const auto number = facts.OptimizerNumber(parameter.optimizer);
      if (!number || *number >= optimizers_.size() || optimizers_[*number].updates == 0) continue;
      const Optimizer& optimizer = optimizers_[*number];
      ++held;
      One one{name, optimizer.updates, -1, false};
      if (const auto id = view.trial.TensorNamed(name)) {
        const auto it = order_.find(view.trial.tensor(*id).module_path);
        if (it != order_.end()) one.order = it->second;
      }
      const Seen* weight = SeenOf(name);
      one.all_zero = weight != nullptr && weight->all_zero;
      const Seen* gradient = SeenOf("gradient/" + name);
      const bool any = gradient != nullptr && gradient->last >= optimizer.first_step;
      const bool nonzero = gradient != nullptr && gradient->last_nonzero >= optimizer.first_step;
      if (nonzero) {
        moving = true;
        if (one.order >= 0) {
          first = std::min(first, one.order);
          last = std::max(last, one.order);
        }
        continue;
      }
      if (any) {
        // Requires 90 % of the updates: a part that gets gradients only now and then is resting.
        if (IsBiasName(name) || gradient->rows * 10 < optimizer.updates * 9) continue;
        if (!one.all_zero && one.updates >= limits_.front && AtItsFirstStepOnly(name, parameter, optimizer)) {
          recurrent.push_back(name);
        } else {
          zero.push_back(std::move(one));
        }
      } else if (reaches_ >= 2 && without_.contains(name) && before_.contains(name)) {
        none.push_back(std::move(one));
      }
    }
    JudgeTerm(view, none, sink);
    JudgeNone(view, none, Idle(facts, none), held, first, last, sink);
    if (!moving) {
      JudgeAllZero(view, zero, sink);
    } else {
      Heal("all_zero", view, sink);
    }
    JudgeZero(view, zero, held, first, sink);
    JudgeSingle(view, facts, sink);
    JudgeAlone(view, facts, sink);
    JudgeTwins(view, facts, none, sink);
    JudgeRecurrent(view, recurrent, sink);
  }

  [[nodiscard]] bool IsOfTerm(const std::string& gradient) const {
    return std::any_of(of_term_.begin(), of_term_.end(),
                       [&](const std::string& name) { return gradient == "gradient/" + name; });
  }

  void TakeTerm(const nlohmann::json& event) {
    of_term_ = StringsIn(event, "layers", kMostOfTerm);
    const auto text = [&](const char* key) {
      const auto at = event.find(key);
      return at != event.end() && at->is_string() ? at->get<std::string>() : std::string();
    };
    term_ = text("loss");
    if (term_.size() >= kLongest) term_.clear();
    by_value_ = text("lost") == "value";
  }

  // Parameters whose loss is a term without a graph: only its value is added. Takes them from `none`.
  void JudgeTerm(const StepView& view, std::vector<One>& none, Sink& sink) {
    const auto of_term = [&](const One& one) {
      return one.updates >= limits_.late &&
             std::find(of_term_.begin(), of_term_.end(), one.name) != of_term_.end();
    };
    std::vector<std::string> names;
    for (const One& one : none) {
      if (of_term(one)) names.push_back(one.name);
    }
    if (names.empty() || term_.empty()) return Heal("graphless_term", view, sink);
    std::erase_if(none, of_term);
    Finding finding = Found(view, "graphless_term", names, false);
    finding.threshold = fmt::format("facts of the graph, {} updates (Luff)", limits_.late);
    finding.what = fmt::format("a term of the loss has no graph: {} of {} trains nothing", term_,
                               finding.tensor.substr(0, finding.tensor.rfind('.')));
    finding.why = fmt::format(
        "{}, and the loss is a sum with an operand without a graph: its value counts, and none of the {} "
        "parameter{} behind it ever gets a gradient, whatever the learning rate is",
        by_value_ ? "it is computed with a graph, and no backward pass goes through it"
                  : "it is computed of what they give, without a graph",
        names.size(), names.size() == 1 ? "" : "s");
    finding.remedy =
        by_value_
            ? "add the loss itself, not its value: without .item(), float(), .data, detach(), NumPy or "
              "torch.tensor(loss)"
            : "give the loss what the model returns: values, not values.detach(), .data or a copy by way "
              "of NumPy, and not under no_grad(); detach only what is the target";
    finding.causes = {by_value_ ? "loss + other.item() in place of loss + other"
                                : "the prediction is detached in place of the target",
                      "a term that is computed under no_grad()"};
    sink.Report(std::move(finding));
  }

  // Those of an optimizer that has updated them often enough.
  [[nodiscard]] std::vector<std::string> Updated(const ModelFacts& facts,
                                                 const std::vector<std::string>& all) const {
    std::vector<std::string> names;
    for (const std::string& name : all) {
      const ParameterFacts* parameter = facts.Find(name);
      const auto number = parameter == nullptr ? std::nullopt : facts.OptimizerNumber(parameter->optimizer);
      if (number && *number < optimizers_.size() && optimizers_[*number].updates >= limits_.fast)
        names.push_back(name);
    }
    return names;
  }

  // Parameters whose every way to the loss leads through a number that is normalised alone.
  void JudgeAlone(const StepView& view, const ModelFacts& facts, Sink& sink) {
    const std::vector<std::string> names = Updated(facts, alone_);
    if (names.empty()) return Heal("norm_of_one", view, sink);
    Finding finding = Found(view, "norm_of_one", names, false);
    finding.threshold =
        fmt::format("a fact of the graph, in 3 looks in a row, {} updates (Luff)", limits_.fast);
    const OfOne& how = HowAlone(alone_of_);
    finding.what = fmt::format("{} has no say in the loss: {}", finding.tensor, how.what);
    finding.why = fmt::format(
        "{} parameter{} reach{} the loss through that number only, which is the same whatever {} compute{}",
        names.size(), names.size() == 1 ? "" : "s", names.size() == 1 ? "es" : "",
        names.size() == 1 ? "it" : "they", names.size() == 1 ? "s" : "");
    finding.remedy = how.remedy;
    finding.causes = {how.cause};
    sink.Report(std::move(finding));
  }

  // Layers over whose only output a softmax is taken: it is 1 for whatever input.
  void JudgeSingle(const StepView& view, const ModelFacts& facts, Sink& sink) {
    const std::vector<std::string> names = Updated(facts, singles_);
    if (names.empty()) return Heal("softmax_of_one", view, sink);
    Finding finding = Found(view, "softmax_of_one", names, false);
    finding.threshold = fmt::format("a fact of the graph, {} updates (Luff)", limits_.fast);
    finding.what =
        fmt::format("a softmax is taken over the only output of {}: it is always 1", finding.tensor);
    finding.why =
        "its axis has one value, so that what the layer computes makes no difference, and its gradient is "
        "zero";
    finding.remedy =
        "give softmax the axis of the places that are to be weighed (dim=1 for scores of (batch, places, "
        "1)); for a "
        "probability of two classes use a sigmoid, or a layer with two outputs";
    finding.causes = {"dim=-1 over scores with a last axis of length 1", "a softmax after nn.Linear(n, 1)"};
    sink.Report(std::move(finding));
  }

  // A module that never runs, while one of its kind runs more than once in its place.
  void JudgeTwins(const StepView& view, const ModelFacts& facts, const std::vector<One>& none, Sink& sink) {
    std::set<std::string> idle;
    for (const One& one : none) {
      const Seen* weight = SeenOf(one.name);
      const Seen* gradient = SeenOf("gradient/" + one.name);
      if (one.updates >= kTwinUpdates && gradient == nullptr &&
          (weight == nullptr ? IsBiasName(one.name) : !weight->moved))
        idle.insert(one.name);
    }
    const auto found = twins_.Judge(facts, idle);
    if (!found) return Heal("unused_twin", view, sink);
    Finding finding = Found(view, "unused_twin", found->weights, false);
    finding.threshold = fmt::format("never in {} updates, nor in an evaluation (Luff)", kTwinUpdates);
    finding.what =
        fmt::format("{} never runs, and {}, of the same kind and shape, runs {} in each forward pass",
                    found->unused, found->used, found->times == 2 ? "twice" : "three times");
    finding.why =
        "the optimizer holds its weights, and no loss reaches them: what it should compute, another module "
        "computes, whose weights serve two purposes";
    finding.remedy = fmt::format(
        "call {} in forward() where it is meant, in the place of one of the calls of {}; remove it if they "
        "are to share their weights",
        found->unused, found->used);
    finding.causes = {"a copied line of forward() that still names the other module"};
    finding.evidence = {{"calls", found->times}, {"parameters", found->weights.size()}};
    sink.Report(std::move(finding));
  }

  // Weights that a recurrent layer multiplies its last state by have a gradient of exact zeros, and those for
  // its input have not: only its first step counts, whose state is zero.
  [[nodiscard]] bool AtItsFirstStepOnly(const std::string& name, const ParameterFacts& parameter,
                                        const Optimizer& optimizer) const {
    constexpr std::string_view kState = "weight_hh";
    const std::size_t in_path = parameter.path.rfind(kState);
    const std::size_t at = name.rfind(kState);
    if (in_path == std::string::npos || at == std::string::npos ||
        parameter.path.substr(in_path) != name.substr(at))
      return false;
    std::string input = name;
    input.replace(at, kState.size(), "weight_ih");
    const Seen* gradient = SeenOf("gradient/" + input);
    return gradient != nullptr && gradient->last_nonzero >= optimizer.first_step;
  }

  void JudgeRecurrent(const StepView& view, const std::vector<std::string>& all, Sink& sink) {
    for (const bool backwards : {false, true}) {
      const char* cause = backwards ? "backward_unused" : "first_step_only";
      std::vector<std::string> names;
      for (const std::string& name : all) {
        if (name.ends_with("_reverse") == backwards) names.push_back(name);
      }
      if (names.empty()) {
        Heal(cause, view, sink);
      } else {
        TellRecurrent(view, cause, names, backwards, sink);
      }
    }
  }

  void TellRecurrent(const StepView& view, const char* cause, const std::vector<std::string>& names,
                     bool backwards, Sink& sink) {
    Finding finding = Found(view, cause, names, false);
    finding.threshold = fmt::format("a fact of the gradients, {} updates (Luff)", limits_.front);
    if (backwards) {
      finding.what =
          "the backward direction of a recurrent layer has seen only the last element of a sequence";
      finding.why =
          "the gradient of the weights for its state is exactly zero in each update, that of the weights for "
          "its input is not: what is used is its first step, which begins at the end of the sequence, as in "
          "output[:, -1]";
      finding.remedy =
          "use the final states: torch.cat([h[-2], h[-1]], 1) of the h that the layer returns beside its "
          "output; or the mean or maximum of the output over time";
      finding.causes = {"output[:, -1] of a bidirectional layer"};
    } else {
      finding.what = "a recurrent layer never uses its state: only its first step counts";
      finding.why =
          "the gradient of the weights for its state is exactly zero in each update, that of the weights for "
          "its input is not: the loss sees the first step of each sequence, or sequences have one";
      finding.remedy =
          "use the last step, output[:, -1], or the state that the layer returns; check batch_first and the "
          "order of the axes (time, batch); hand the state of one call on to the next where calls are steps";
      finding.causes = {"output[:, 0] in place of output[:, -1]",
                        "batch and time exchanged, or an axis of time of length 1",
                        "a cell that begins at a state of zeros in each call"};
    }
    sink.Report(std::move(finding));
  }

  // Parameters without a gradient of optimizers that have stepped often and hold no others, while the
  // backward pass reaches a network of which no optimizer that steps then holds anything: they were given
  // another one. A head whose loss comes later steps beside the optimizer of what is reached.
  [[nodiscard]] std::set<std::string> Idle(const ModelFacts& facts, const std::vector<One>& none) const {
    std::map<std::string, std::int64_t> held;
    for (const One& one : none) {
      if (const ParameterFacts* parameter = facts.Find(one.name); one.updates >= limits_.late)
        ++held[parameter->optimizer];
    }
    for (const OptimizerFacts& optimizer : facts.optimizers()) {
      const auto number = facts.OptimizerNumber(optimizer.name);
      const bool misdirected =
          number && *number < optimizers_.size() && optimizers_[*number].misdirected >= 2;
      if (held.contains(optimizer.name) && (held[optimizer.name] != optimizer.parameters || !misdirected))
        held.erase(optimizer.name);
    }
    std::set<std::string> names;
    for (const One& one : none) {
      if (reached_ > 0 && held.contains(facts.Find(one.name)->optimizer)) names.insert(one.name);
    }
    return names;
  }

  // A part that ran before all parts with gradients is cut off. One that ran between them may rest for a
  // while. One that did not run is resting.
  void JudgeNone(const StepView& view, const std::vector<One>& none, const std::set<std::string>& idle,
                 std::size_t held, std::int64_t first, std::int64_t last, Sink& sink) {
    std::vector<std::string> names;
    const bool nothing = reaches_ >= 2 && reached_ == 0 && !none.empty() && last < 0;
    for (const One& one : none) {
      const bool front = one.order >= 0 && one.order < first && last >= 0;
      const bool between = one.order >= 0 && one.order < last;
      if ((nothing && one.updates >= limits_.fast) || (front && one.updates >= limits_.front) ||
          (between && one.updates >= limits_.late) || idle.contains(one.name) ||
          (order_.empty() && one.updates >= 4 * limits_.late))
        names.push_back(one.name);
    }
    if (names.empty()) return Heal("no_gradient", view, sink);
    Finding finding = Found(view, "no_gradient", names, names.size() == held);
    finding.what = nothing
                       ? "the backward pass reaches no parameter of the model"
                       : fmt::format("{} parameter{} of the optimizer never get{} a gradient", names.size(),
                                     names.size() == 1 ? "" : "s", names.size() == 1 ? "s" : "");
    finding.why = nothing
                      ? "the loss does not depend on the model any more where backward() is called"
                      : "their part of the model runs in front of parts that get gradients, and no gradient "
                        "comes back to it: the graph is cut in between, or what it gives is not used";
    finding.remedy =
        "use the result of this part; look for detach(), .data, no_grad(), .item(), argmax or NumPy between "
        "these parameters and the loss; "
        "freeze with requires_grad_(False) what is not meant to be trained";
    if (const std::string whole = WholeOptimizer(view, names); !whole.empty() && !nothing) {
      finding.what = fmt::format("{} steps, and none of its {} parameters has ever had a gradient then",
                                 whole, names.size());
      finding.why = "each backward pass before its updates is of a loss that does not reach them";
      finding.remedy =
          "give the optimizer the parameters of the network whose loss is computed before its step (of a "
          "copy "
          "or a reference it has none; two optimizers may be exchanged); else " +
          finding.remedy;
    }
    finding.causes = {"graph cut by detach(), .data or no_grad()", "a result that is computed and not used",
                      "an operation without a gradient (argmax, round)", "a loss made into a new tensor"};
    sink.Report(std::move(finding));
  }

  // The optimizer whose parameters these are, all of them; "" if there is none.
  static std::string WholeOptimizer(const StepView& view, const std::vector<std::string>& names) {
    const ModelFacts& facts = view.memo.Facts(view);
    const ParameterFacts* first = facts.Find(names.front());
    if (first == nullptr) return "";
    const auto holds = [&](const std::string& name) {
      const ParameterFacts* one = facts.Find(name);
      return one != nullptr && one->optimizer == first->optimizer;
    };
    const auto same = [&](const OptimizerFacts& one) {
      return one.name == first->optimizer && one.parameters == static_cast<std::int64_t>(names.size());
    };
    const bool whole = std::all_of(names.begin(), names.end(), holds) &&
                       std::any_of(facts.optimizers().begin(), facts.optimizers().end(), same);
    return whole ? first->optimizer : "";
  }

  void JudgeZero(const StepView& view, const std::vector<One>& zero, std::size_t held, std::int64_t first,
                 Sink& sink) {
    std::vector<std::string> names;
    bool product = false;
    for (const One& one : zero) product = product || (one.all_zero && one.updates >= limits_.fast);
    for (const One& one : zero) {
      const bool front = one.order >= 0 && one.order < first && first != INT64_MAX;
      if ((product && one.all_zero && one.updates >= limits_.fast) || (front && one.updates >= limits_.late))
        names.push_back(one.name);
    }
    if (names.empty()) return Heal("zero_gradient", view, sink);
    Finding finding = Found(view, "zero_gradient", names, names.size() == held);
    finding.what = fmt::format("the gradient of {} parameter{} is exactly zero in each update", names.size(),
                               names.size() == 1 ? "" : "s");
    finding.why =
        product ? "these weights are all zero and so are their gradients: factors of a product that all "
                  "start at zero stay there for ever"
                : "what lies behind these weights passes nothing back";
    finding.remedy = product ? "draw one of the factors at random (LoRA: A random, B zero)"
                             : "look for dead or saturated units, or a factor of zero, behind these weights";
    finding.causes = product
                         ? std::vector<std::string>{"both factors of an adapter start at zero",
                                                    "a branch whose input and output layers start at zero"}
                         : std::vector<std::string>{"dead ReLUs behind these weights", "saturated units",
                                                    "gradients that are lost in half precision"};
    sink.Report(std::move(finding));
  }

  // Only a warning: a policy may wait long for its first reward.
  void JudgeAllZero(const StepView& view, const std::vector<One>& zero, Sink& sink) {
    std::vector<std::string> names;
    bool product = false;
    for (const One& one : zero) {
      product = product || one.all_zero;
      if (one.updates >= limits_.late) names.push_back(one.name);
    }
    if (names.empty() || product) return Heal("all_zero", view, sink);
    Finding finding = Found(view, "all_zero", names, false);
    finding.what = fmt::format("every gradient is exactly zero, in each of {} updates", zero.front().updates);
    finding.why =
        "what is differentiated does not depend on the model, or is multiplied by zero: nothing is learnt";
    finding.remedy =
        "look for a factor of zero, a mask that leaves nothing, a clamp or a margin between the model and "
        "backward()";
    finding.causes = {"a weight of the loss that is zero", "a mask or a filter that leaves no element",
                      "outputs beyond a clamp or a margin", "rewards that are all alike"};
    if (makers_.Any("relu")) {
      finding.remedy = "leave the ReLU behind the last layer out; else " + finding.remedy;
      finding.causes.insert(finding.causes.begin(), "a ReLU at the output whose units are dead");
    }
    sink.Report(std::move(finding));
  }

  Finding Found(const StepView& view, const char* cause, const std::vector<std::string>& names, bool all) {
    Finding finding = FindingAt(kName, cause, view, TensorAt{format::kNoId});
    finding.tensor = open_.try_emplace(cause, names.front()).first->second;
    for (const std::string& name : names) {
      if (name != finding.tensor) finding.other_tensors.push_back(name);
    }
    finding.severity = all ? Severity::kStop : Severity::kWarn;
    std::optional<std::int64_t> since;
    for (const Optimizer& optimizer : optimizers_) {
      if (optimizer.updates > 0) since = std::min(since.value_or(optimizer.first_step), optimizer.first_step);
    }
    finding.since_step = since.value_or(0);
    finding.evidence = {{"parameters", names.size()}, {"reached", reached_}};
    finding.threshold = fmt::format("{} updates; {} for a part in front, {} for one in between (Luff)",
                                    limits_.fast, limits_.front, limits_.late);
    return finding;
  }

  void Heal(const std::string& cause, const StepView& view, Sink& sink) {
    const auto it = open_.find(cause);
    if (it == open_.end()) return;
    sink.Heal(cause, it->second, view.rows.info.mode_step);
    open_.erase(it);
  }

  Seen& SeenOf(const query::TensorInfo& tensor) {
    if (tensor.id >= of_id_.size()) of_id_.resize(tensor.id + 1, nullptr);
    if (of_id_[tensor.id] == nullptr) of_id_[tensor.id] = &seen_[tensor.name];
    return *of_id_[tensor.id];
  }

  const Limits limits_;
  std::map<std::string, Seen> seen_;           // by tensor
  std::vector<Seen*> of_id_;                   // into seen_, by tensor id
  std::vector<Optimizer> optimizers_;          // by number
  std::map<std::string, std::int64_t> order_;  // module -> place among those that ran
  std::set<std::string> without_, before_;     // names in the newest event, and in the one before
  std::int64_t reached_ = -1, reaches_ = 0;
  std::map<std::string, std::string> open_;  // cause -> tensor
  LossInputMakers makers_;
  static constexpr std::size_t kMostSingles = 16, kMostOfTerm = 64, kLongest = 512;
  std::vector<std::string> alone_;    // parameters behind numbers that are normalised alone
  std::string alone_of_;              // how: as norm_of_one.h has it
  std::vector<std::string> singles_;  // weights of layers of one output that a softmax gets
  std::vector<std::string> of_term_;  // parameters whose loss is a term without a graph
  std::string term_;                  // that loss
  bool by_value_ = false;             // it has a graph of its own
  UnusedTwins twins_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters&) -> MadeRule {
    if (limits.front < limits.fast || limits.late < limits.front)
      return InvalidArgument("'fast', 'front' and 'late' must ascend");
    return std::unique_ptr<Rule>(new NoGradient(limits));
  });
  // 4: an optimizer of another network is told from a head that begins late; 5: a ReLU at the output;
  // 6: "softmax_of_one"; 7: "graphless_term", "unused_twin"
  spec.version = 8;  // 8: "graphless_term" heals at once
  spec.aliases = {"AdapterNotTraining"};
  spec.summary = "parameters of the optimizer that get no gradient, or exact zeros";
  spec.needs = [](const Parameters&) -> std::vector<Need> {
    return {{.collection = "module_calls",
             .roles = {Role::kOutput},
             .forms = Bit(Form::kShape),
             .save_interval = 1024,
             .first_steps = 3},
            {.collection = "gradients", .roles = {Role::kGradient}, .forms = Bit(Form::kSummary)},
            {.collection = "weights", .roles = {Role::kWeight}, .forms = Bit(Form::kSummary)}};
  };
  return spec;
}

}  // namespace luff::rules::no_gradient
