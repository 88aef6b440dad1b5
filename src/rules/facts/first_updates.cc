#include "rules/facts/first_updates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"

namespace luff::rules {
namespace {

using format::Role;

Finding Begin(const char* cause, const query::StepInfo& info) {
  Finding finding;
  finding.page = PageOf("WeightUpdateRatio");
  finding.cause = cause;
  finding.step = finding.last_step = info.mode_step;
  finding.global_step = info.global_step;
  finding.update = info.update;
  finding.since_step = 0;
  return finding;
}

}  // namespace

void FirstUpdates::OnStep(const StepView& view) {
  if (over_) return;
  if (view.rows.info.update > kEarly) {
    over_ = true;
    gradients_.clear();
    return;
  }
  for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
    if (!tensor.name.ends_with(".lr")) continue;
    const auto [known, fresh] = rates_.emplace(tensor.name, entry.value);
    if (!fresh && known->second != entry.value) constant_ = false;
    if (!(entry.value > 0)) constant_ = false;  // a warm-up that begins at 0
  }
}

bool FirstUpdates::Judge(const StepView& view, const WeightMove& move, const WeightMove& lasting, double loss,
                         std::string* open_small, Sink& sink) {
  if (over_) return false;
  Thrown(view, move, loss, sink);
  Leaps(view, lasting, loss, sink);
  return Hopeless(view, loss, open_small, sink);
}

void FirstUpdates::Thrown(const StepView& view, const WeightMove& move, double loss, Sink& sink) {
  if (!std::isfinite(loss)) return;
  if (losses_ < 2) reference_ = std::max(reference_, std::abs(loss));
  ++losses_;
  high_ = reference_ > 0 && loss > limits_.loss_factor * reference_ ? high_ + 1 : 0;
  if (move.Ratio() > moved_) {
    moved_ = move.Ratio();
    tensor_ = move.tensor;
    worker_ = move.worker;
  }
  if (said_ || high_ < 2 || moved_ <= limits_.thrown) return;
  said_ = true;
  Finding finding = Begin("thrown", view.rows.info);
  finding.severity = Severity::kStop;
  finding.tensor = tensor_;
  finding.worker = worker_;
  finding.what = fmt::format(
      "the first updates throw the weights away: one moved them by {:.2g} times their own size, and the loss "
      "is "
      "{:.2g} times its first values",
      moved_, loss / reference_);
  finding.why = "what the initialisation gave is lost, and gradients grow with the weights";
  finding.remedy = "lower the learning rate (by ten to a hundred), warm it up, or clip gradients";
  finding.causes = {"learning rate far too high", "gradients of a bad batch or a bad initialisation"};
  finding.evidence = {{"ratio", moved_}, {"loss", loss}, {"first_loss", reference_}};
  finding.threshold = fmt::format(
      "a move of all weights above {:g} of their size, and two losses in a row above {:g} times the first "
      "two, "
      "within {} updates (Luff)",
      limits_.thrown, limits_.loss_factor, kEarly);
  Report(std::move(finding), sink);
}

void FirstUpdates::Leaps(const StepView& view, const WeightMove& move, double loss, Sink& sink) {
  Finding finding = Begin("leaps", view.rows.info);
  if (!leap_.OnStep(view, move, loss, &finding) || said_) return;
  said_ = true;
  leapt_ = finding.tensor;
  Report(std::move(finding), sink);
}

std::string FirstUpdates::Recovered(double level) {
  if (leapt_.empty() || !(level < kLeft * leap_.drawn_loss())) return {};
  return std::exchange(leapt_, {});
}

void FirstUpdates::Report(Finding finding, Sink& sink) const {
  for (const auto& [name, rate] : rates_) {
    if (finding.evidence.size() < 8) finding.evidence.emplace_back(name, rate);
  }
  sink.Report(std::move(finding));
}

// An update is measured at the step after it, with the gradients of the step before.
bool FirstUpdates::Hopeless(const StepView& view, double loss, std::string* open_small, Sink& sink) {
  double gain = 0;
  double largest = 0;
  bool any = false;
  bool moved = false;
  std::string lead;
  std::uint32_t worker = 0;
  for (const WeightChange& change : view.index.weight_changes()) {
    if (!(change.previous_sum_sq > 0) || !std::isfinite(change.sum_sq)) continue;
    const auto gradient = gradients_.find(change.name);
    if (gradient == gradients_.end() || !(gradient->second > 0)) continue;
    if (!any) {
      worker = change.worker;
      lead = change.name;
    }
    if (change.worker != worker) continue;
    any = true;
    moved = moved || change.sum_sq > 0;
    gain += gradient->second * std::sqrt(change.sum_sq);
    largest = std::max(largest, std::sqrt(change.sum_sq / change.previous_sum_sq));
  }
  if (any && rows_ < limits_.first) {
    ++rows_;
    const double share = std::isfinite(loss) && loss != 0 ? gain / std::abs(loss) : 1;
    best_ = std::max(best_, share);
    hopeless_ += moved && largest < kStill && share < limits_.progress ? 1 : 0;
  }
  gradients_.clear();
  if (rows_ < limits_.first) {
    for (const auto& [entry, tensor] : view.index.summaries(Role::kGradient)) {
      if (entry.summary.finite_count() == entry.summary.count)
        gradients_.emplace(ParameterOfGradient(tensor.name), entry.summary.l2());
    }
    return false;
  }
  if (said_ || !any || hopeless_ < limits_.first || !constant_ || rates_.empty() ||
      view.memo.Facts(view).has_scheduler())
    return false;
  said_ = said_small_ = true;
  *open_small = lead;
  Finding finding = Begin("small", view.rows.info);
  finding.tensor = lead;
  finding.worker = worker;
  finding.what = fmt::format(
      "updates are far too small: even if each lowered the loss as far as it could, that would be {:.1g} of "
      "it",
      best_);
  const auto& optimizers = view.memo.Facts(view).optimizers();
  const bool scheduled = std::any_of(optimizers.begin(), optimizers.end(),
                                     [](const OptimizerFacts& one) { return one.scheduled; });
  finding.why =
      fmt::format("at this speed nothing is learnt in {:.0g} updates, and {}", 1 / std::max(best_, 1e-30),
                  scheduled ? "the scheduler that was made for the optimizer has not stepped so far"
                            : "no warm-up or scheduler is there to change it");
  finding.remedy = scheduled ? "step the scheduler after each update if it counts updates, or raise the "
                               "learning rate (by a thousand and more)"
                             : "raise the learning rate (by a thousand and more)";
  finding.causes = {"learning rate far too low", "gradients scaled down by mistake"};
  if (scheduled)
    finding.causes = {"a warm-up that counts updates and is stepped once per epoch",
                      "learning rate far too low", "gradients scaled down by mistake"};
  finding.evidence = {{"share_of_loss_per_update", best_}, {"largest_relative_update", largest}};
  finding.threshold = fmt::format(
      "in each of the first {} updates: |gradient| |change| below {:g} of the loss and every change below "
      "{:g} of "
      "the weight; a constant learning rate, no scheduler (Luff)",
      limits_.first, limits_.progress, kStill);
  Report(std::move(finding), sink);
  return true;
}

void FirstUpdates::VisitFields(Fields& io) {
  io("losses", losses_);
  io("reference", reference_);
  io("high", high_);
  io("moved", moved_);
  io("tensor", tensor_);
  io("worker", worker_);
  io("rates", rates_);
  io("constant", constant_);
  io("rows", rows_);
  io("hopeless", hopeless_);
  io("best", best_);
  io("over", over_);
  io("said", said_);
  io("said_small", said_small_);
  io("gradients", gradients_);
  io("leap", leap_);
  io("leapt", leapt_);
}

}  // namespace luff::rules
