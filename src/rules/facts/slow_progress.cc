#include "rules/facts/slow_progress.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"

namespace luff::rules {
namespace {

using format::Role;

constexpr std::size_t kMaxWeights = 1 << 17, kMaxOptimizers = 1024;
constexpr std::int64_t kGradientLooks = 32;  // steps with gradients after which eps is judged
constexpr std::int64_t kLeastMeasured = 8;   // captures before the sum is judged
constexpr double kBegun = 1e-6;              // squared norm of a weight beside the heaviest one
constexpr double kMoved = 0.01;              // of a weight's size, by all updates
constexpr double kFirstOfRAdam = 0.02;       // of its rate, in the first update that it warms up
constexpr double kFaintRate = 1e-5;          // rate times factor of the loss, for optimizers without eps
constexpr double kUsualRate =
    0.01;  // lr / eps, the rate of the equivalent gradient descent, if not raised; Adam's rates go up to it

Finding Begin(const StepView& view, const char* cause) {
  Finding finding = FindingAt("WeightUpdateRatio", cause, view, TensorAt{format::kNoId});
  finding.since_step = 0;
  return finding;
}

bool IsAdam(const std::string& type) {
  return type == "Adam" || type == "AdamW" || type == "NAdam" || type == "RAdam" || type == "Adamax";
}

}  // namespace

bool SlowProgress::OnStep(const StepView& view, double loss, Sink& sink) {
  if (over_ && damped_over_) return false;
  bool reported = false;
  if (!over_) {
    passes_.OnTrainStep(view);
    Add(view, loss);
    reported = Creeping(view, sink);
  }
  return (!damped_over_ && JudgeGradients(view, sink)) || reported;
}

void SlowProgress::Add(const StepView& view, double loss) {
  for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
    if (!tensor.name.ends_with(".lr")) continue;
    const auto [known, fresh] = rates_.emplace(tensor.name, entry.value);
    rising_ = rising_ || (!fresh && entry.value > known->second) || !(entry.value > 0);
    known->second = entry.value;
  }
  double gain = 0;
  double largest = 0;
  bool any = false;
  double heaviest = 0;  // norm of a weight
  for (const WeightChange& change : view.index.weight_changes())
    heaviest = std::max(heaviest, change.previous_sum_sq);
  for (const WeightChange& change : view.index.weight_changes()) {
    const auto gradient = gradients_.find(change.name);
    if (gradient == gradients_.end() || !std::isfinite(change.sum_sq)) continue;
    gain += gradient->second * std::sqrt(change.sum_sq);
    // A weight that began at zero leaves it at any rate.
    if (change.previous_sum_sq > kBegun * heaviest)
      largest = std::max(largest, std::sqrt(change.sum_sq / change.previous_sum_sq));
    if (lead_.empty()) lead_ = change.name;
    any = true;
  }
  if (any) {
    gained_ += std::isfinite(loss) && loss != 0 ? gain / std::abs(loss) : 1;
    moved_ += largest;
    ++measured_;
  }
  // The next change starts from the weights of this step, so it belongs to the gradients of this step.
  if (!any && !gradients_.empty()) return;
  gradients_.clear();
  for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
    if (entry.summary.finite_count() == entry.summary.count && gradients_.size() < kMaxWeights)
      gradients_.emplace(ParameterOfGradient(tensor.name), entry.summary.l2());
  }
}

bool SlowProgress::Creeping(const StepView& view, Sink& sink) {
  if (gained_ >= limits_.gained || moved_ >= kMoved) over_ = true;  // it has moved: the check is over
  if (over_ || measured_ < kLeastMeasured || passes_.drawn_at_random() ||
      passes_.count() < static_cast<double>(limits_.passes))
    return false;
  over_ = true;
  if (rising_ || rates_.empty() || gained_ <= 0 || collected_.collects()) return false;
  const auto& optimizers = view.memo.Facts(view).optimizers();
  const bool warms = std::any_of(optimizers.begin(), optimizers.end(),
                                 [](const OptimizerFacts& one) { return one.type == "RAdam"; });
  if (warms && gained_ >= kFirstOfRAdam * limits_.gained) return false;
  Finding finding = Begin(view, "creeping");
  finding.tensor = lead_;
  finding.what = fmt::format(
      "{:.0f} passes over the data can have lowered the loss by no more than {:.1g} of it: updates are far "
      "too small",
      std::floor(passes_.count() - 1), gained_);
  finding.why =
      "the sum of |gradient| |change| over all updates bounds what they can have gained, to first order; at "
      "this speed "
      "nothing is learnt";
  finding.remedy = "raise the learning rate (by a hundred and more)";
  finding.causes = {"learning rate far too low", "gradients scaled down or clipped to nothing",
                    "a scheduler that never leaves its beginning"};
  finding.evidence = {{"share_of_loss", gained_}, {"share_of_weights", moved_}, {"passes", passes_.count()}};
  for (const auto& [name, rate] : rates_) {
    if (finding.evidence.size() < 8) finding.evidence.emplace_back(name, rate);
  }
  finding.threshold = fmt::format(
      "below {:g} of the loss and below {:g} of each weight in {} passes, the rate not rising (Luff)",
      limits_.gained, kMoved, limits_.passes - 1);
  sink.Report(std::move(finding));
  return true;
}

// Root mean square of all gradients of an optimizer, in the steps looked at: what Adam divides by; 0 if it
// has none.
double SlowProgress::UsualGradient(const OptimizerFacts& optimizer) const {
  const auto squares = squares_.find(optimizer.name);
  const auto seen = seen_.find(optimizer.name);
  if (squares == squares_.end() || seen == seen_.end() || seen->second == 0) return 0;
  return std::sqrt(squares->second / static_cast<double>(seen->second));
}

// The same in the step in which it was largest.
double SlowProgress::LargestGradient(const OptimizerFacts& optimizer) const {
  const auto largest = largest_.find(optimizer.name);
  return largest == largest_.end() ? 0 : largest->second;
}

// True when an optimizer has had enough steps to be judged.
bool SlowProgress::MeasureGradients(const StepView& view, const ModelFacts& facts) {
  struct Gradients {
    double sum_sq = 0, count = 0;
  };
  std::map<std::string, Gradients> now;  // by optimizer
  for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
    const ParameterFacts* parameter = facts.Find(ParameterOfGradient(tensor.name));
    if (parameter == nullptr || parameter->optimizer.empty() || now.size() >= kMaxOptimizers) continue;
    Gradients& gradients = now[parameter->optimizer];
    gradients.sum_sq += entry.summary.l2() * entry.summary.l2();
    gradients.count += static_cast<double>(entry.summary.count);
  }
  bool due = false;
  for (const auto& [optimizer, gradients] : now) {
    if (largest_.size() >= kMaxOptimizers && !largest_.contains(optimizer)) continue;
    double& largest = largest_[optimizer];
    if (gradients.count > 0) squares_[optimizer] += gradients.sum_sq / gradients.count;
    if (gradients.count > 0) largest = std::max(largest, std::sqrt(gradients.sum_sq / gradients.count));
    due = ++seen_[optimizer] == kGradientLooks || due;
  }
  return due;
}

bool SlowProgress::JudgeGradients(const StepView& view, Sink& sink) {
  const ModelFacts& facts = view.memo.Facts(view);
  if (facts.missing()) return false;
  const bool due = MeasureGradients(view, facts);
  damped_over_ = due;
  bool reported = false;
  for (const auto& event : view.index.json_events("faint_loss")) {
    const double factor = NumberIn(*event, "weight");
    for (const OptimizerFacts& optimizer : facts.optimizers())
      reported = reported || (factor > 0 && Faint(view, optimizer, factor, sink));
  }
  damped_over_ = due || reported;
  for (const OptimizerFacts& optimizer : facts.optimizers())
    reported = reported || (due && Damped(view, optimizer, sink));
  return reported;
}

bool SlowProgress::Damped(const StepView& view, const OptimizerFacts& optimizer, Sink& sink) {
  const double gradient = UsualGradient(optimizer);
  if (!(gradient > 0) || !IsAdam(optimizer.type) || !(gradient < limits_.damped * optimizer.eps) ||
      !(optimizer.lr <= kUsualRate * optimizer.eps))
    return false;
  Finding finding = Begin(view, "damped");
  finding.tensor = optimizer.name;
  finding.what = fmt::format("the eps of {} ({:g}) is {:.0f} times its gradients (root mean square {:.1g})",
                             optimizer.name, optimizer.eps, optimizer.eps / gradient, gradient);
  finding.why = fmt::format(
      "it divides by the gradients' size plus eps, so it divides by eps alone: a plain gradient descent "
      "with the rate "
      "{:.1g}",
      optimizer.lr / optimizer.eps);
  finding.remedy = "lower eps (the default is 1e-8), or raise the learning rate";
  finding.causes = {"eps taken for another setting", "an eps of another optimizer or library"};
  finding.evidence = {{"eps", optimizer.eps}, {"gradient_rms", gradient}, {"lr", optimizer.lr}};
  finding.threshold =
      fmt::format("gradients below {:g} of eps in {} steps, and a rate of {:g} of it at most (Luff)",
                  limits_.damped, kGradientLooks, kUsualRate);
  sink.Report(std::move(finding));
  return true;
}

bool SlowProgress::Faint(const StepView& view, const OptimizerFacts& optimizer, double factor, Sink& sink) {
  const double gradient = LargestGradient(optimizer);
  if (!(gradient > 0)) return false;
  const bool normalises = optimizer.eps > 0;
  if (normalises ? gradient >= optimizer.eps : !(optimizer.lr > 0) || optimizer.lr * factor >= kFaintRate)
    return false;
  Finding finding = Begin(view, "faint");
  finding.tensor = optimizer.name;
  finding.what = fmt::format("the loss is multiplied by {:.1g} before the backward pass", factor);
  finding.why =
      normalises
          ? fmt::format(
                "{} divides by the gradients' size plus eps, and its eps ({:g}) is larger than the gradients "
                "(root mean square {:.1g})",
                optimizer.name, optimizer.eps, gradient)
          : fmt::format("with the rate {:g} of {}, that is a rate of {:.1g}", optimizer.lr, optimizer.name,
                        optimizer.lr * factor);
  finding.remedy = "remove the factor that scales the loss down, or raise the learning rate by as much";
  finding.causes = {"a division by a number of samples that a mean has divided by already",
                    "a weight of one loss that is applied to all of them"};
  finding.evidence = {
      {"factor", factor}, {"gradient_rms", gradient}, {"lr", optimizer.lr}, {"eps", optimizer.eps}};
  finding.threshold =
      fmt::format("a factor below 1e-5, and gradients below eps or a rate below {:g} (Luff)", kFaintRate);
  sink.Report(std::move(finding));
  return true;
}

void SlowProgress::VisitFields(Fields& io) {
  io("passes", passes_);
  io("collected", collected_);
  io("gradients", gradients_, kMaxWeights);
  io("rates", rates_, kMaxOptimizers);
  io("rising", rising_);
  io("gained", gained_);
  io("moved", moved_);
  io("measured", measured_);
  io("lead", lead_);
  io("largest", largest_, kMaxOptimizers);
  io("squares", squares_, kMaxOptimizers);
  io("seen", seen_, kMaxOptimizers);
  io("over", over_);
  io("damped_over", damped_over_);
}

}  // namespace luff::rules
