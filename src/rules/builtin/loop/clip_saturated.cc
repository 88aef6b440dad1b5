#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ClipSaturated: docs/rules/clip_saturated.md.
namespace luff::rules::clip_saturated {
namespace {

constexpr const char* kName = "ClipSaturated";
constexpr const char* kCause = "always";
constexpr const char* kNorm = "clip/norm";
constexpr const char* kOneSided = "one_sided";
constexpr const char* kMisplaced = "misplaced";
constexpr const char* kScaled = "scaled";
constexpr const char* kNothing = "nothing";
constexpr std::int64_t kScaledUpdates = 8;
constexpr double kLeastScale = 8, kEqual = 0.02;
constexpr double kLeastOfScale = 0.01;  // a limit above this share of the scale was multiplied by it, too
constexpr double kUsualLimit = 1e6;     // a larger one is given to learn the norm
constexpr std::int64_t kMisplacedUpdates = 16;
using format::EventKind;

struct Limits {
  double factor;
  std::int64_t steps, updates, tensors;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::factor, "factor", "50", "norm of the gradients over the limit (Luff)", Above(0)},
    {&Limits::steps, "steps", "64", "clipped steps in a row (Luff)", AtLeast(1)},
    {&Limits::updates, "updates", "24", "one_sided: steps in a row with gradients of one sign (Luff)",
     AtLeast(1)},
    {&Limits::tensors, "tensors", "3", "one_sided: gradients of at least 16 elements (Luff)", AtLeast(1)},
};

// A gradient whose elements are cut at zero from one side: some are exactly zero, the others have one sign.
// Of n elements that are free to have either, all have one with probability 2^(1 - n).
int SideOf(const query::Trial::SummaryEntry& entry) {
  const Summary& s = entry.summary;
  if (s.finite_count() != s.count || s.count < 16 || s.zero_count == s.count || s.zero_count * 8 < s.count)
    return 0;
  if (s.min(entry.dtype) == 0) return 1;
  return s.max(entry.dtype) == 0 ? -1 : 0;
}

// Every one of the last `steps` clipped gradients was more than `factor` times too large, and no loss has
// improved.
class ClipSaturated final : public KeptRule {
 public:
  explicit ClipSaturated(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    tracker_.OnStep(view);
    JudgeSides(view, sink);
    JudgePlace(view, sink);
    JudgeScale(view, sink);
    JudgeNothing(view, sink);
    const query::Trial::ScalarEntry* norm = nullptr;
    for (const auto& entry : view.rows.scalars) {
      const std::string& name = view.trial.tensor(entry.tensor).name;
      if (name == "clip/limit") limit_ = entry.value;
      if (name == kNorm && norm == nullptr) norm = &entry;
    }
    if (norm == nullptr || !std::isfinite(norm->value) || !(limit_ > 0)) return;
    const double factor = norm->value / limit_;
    if (!(factor > limits_.factor)) {
      row_ = 0;
      if (open_) sink.Heal(kCause, kNorm, info.mode_step);
      open_ = false;
      return;
    }
    if (row_ == 0) since_ = info.mode_step;
    least_ = row_ == 0 ? factor : std::min(least_, factor);
    ++row_;
    if (scaled_open_ || row_ < limits_.steps || !tracker_.EnoughEvidence(limits_.steps) ||
        tracker_.AnyImproved(0.02))
      return;
    open_ = true;
    Finding finding = FindingAt(kName, kCause, view, *norm);
    finding.since_step = since_;
    finding.what =
        fmt::format("clipping divides every gradient by {:.2g} and more, {} times in a row", least_, row_);
    finding.why =
        "the limit decides the length of each step, not the gradient: with plain SGD the learning rate is in "
        "effect so many times smaller, and the loss does not fall";
    finding.remedy =
        "raise the limit to about the usual norm (see the series clip/norm), or find out why gradients are "
        "so large";
    finding.causes = {"limit far too small", "a loss that is summed instead of averaged",
                      "inputs or targets that are not normalised"};
    finding.evidence = {{"smallest_factor", least_}, {"norm", norm->value}, {"limit", limit_}};
    finding.threshold =
        fmt::format("norm above {:g} times the limit in {} clipped steps in a row, and no better loss (Luff)",
                    limits_.factor, limits_.steps);
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("losses", tracker_);
    io("limit", limit_);
    io("row", row_);
    io("since", since_);
    io("least", least_);
    io("open", open_);
    io("sided", sided_);
    io("sided_since", sided_since_);
    io("sided_open", sided_open_);
    io("waiting", waiting_);
    io("early", early_);
    io("behind", behind_);
    io("in_vain", in_vain_);
    io("behind_updates", behind_updates_);
    io("since_update", since_update_);
    io("placed", placed_);
    io("mattered", mattered_);
    io("place_updates", place_updates_);
    io("place_open", place_open_);
    io("optimizer", optimizer_);
    io("scaled", scaled_);
    io("scaled_since", scaled_since_);
    io("scaled_open", scaled_open_);
    io("unscaled", unscaled_);
    io("scale", scale_);
    io("place_limit", place_limit_);
    io("empty", empty_);
    io("empty_over", empty_over_);
    io("empty_open", empty_open_);
    io("unlimited", unlimited_);
  }

 private:
  // Every gradient of a step has one side. Dead ReLUs make zeros, too, but leave both signs.
  void JudgeSides(const StepView& view, Sink& sink) {
    std::int64_t tensors = 0;
    int side = 0;
    bool all = true;
    const query::Trial::SummaryEntry* lead = nullptr;
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kGradient)) {
      if (entry.summary.count < 16) continue;
      const int own = SideOf(entry);
      all = all && own != 0 && (side == 0 || own == side);
      side = own;
      ++tensors;
      if (lead == nullptr) lead = &entry;
    }
    if (tensors == 0) return;
    if (!all || tensors < limits_.tensors) {
      sided_ = 0;
      if (!sided_open_.empty()) sink.Heal(kOneSided, sided_open_, view.rows.info.mode_step);
      sided_open_.clear();
      return;
    }
    if (sided_++ == 0) sided_since_ = view.rows.info.mode_step;
    if (sided_ < limits_.updates) return;
    Finding finding = FindingAt(kName, kOneSided, view, *lead);
    if (sided_open_.empty()) sided_open_ = finding.tensor;
    finding.tensor = sided_open_;
    finding.since_step = sided_since_;
    finding.what =
        fmt::format("no gradient has an element {} zero, and many are exactly zero, in {} steps in a row",
                    side > 0 ? "below" : "above", sided_);
    finding.why =
        fmt::format("something cuts them off at zero: weights can only become {}, whatever the loss asks for",
                    side > 0 ? "smaller" : "larger");
    finding.remedy =
        "clip gradients from both sides (clamp_(-limit, limit), clip_grad_norm_), not with clamp_(min=0), "
        "relu or abs";
    finding.causes = {"grad.clamp_(min=0) instead of a limit on both sides",
                      "a hook that applies relu to gradients"};
    finding.evidence = {{"gradients", tensors}, {"steps", sided_}};
    finding.threshold = fmt::format(
        "a fact: {} gradients or more of at least 16 elements, all of one sign with an eighth at zero, in {} "
        "steps in a row "
        "(Luff)",
        limits_.tensors, limits_.updates);
    sink.Report(std::move(finding));
  }

  // Every call that clips came when no gradient waited for an update: an optimizer had used it, or it was not
  // made yet. Functions that are hooked to gradients clip during the backward pass, one tensor each.
  void JudgePlace(const StepView& view, Sink& sink) {
    if (placed_) return;
    const std::uint32_t worker = view.index.first_worker();
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != worker) continue;
      switch (static_cast<EventKind>(event.row.kind)) {
        case EventKind::kBackward:
          waiting_ = true;
          behind_ = false;
          in_vain_ += std::exchange(early_, false) ? 1 : 0;
          break;
        case EventKind::kZeroGrad: waiting_ = false; break;
        case EventKind::kStepSkipped:
        case EventKind::kOptimizerStep:
          // Of several optimizers one may be cleared while the gradients of another wait. Gradients that were
          // clipped and used without a backward pass in between were set by hand.
          placed_ = placed_ || early_ || (place_updates_ > 0 && event.row.subject != optimizer_);
          behind_ = std::exchange(waiting_, false);
          since_update_ = 0;
          optimizer_ = event.row.subject;
          ++place_updates_;
          break;
        case EventKind::kClipGrad: {
          const double limit = std::bit_cast<double>(event.row.argument);
          if (waiting_ || !(limit > 0 && limit < kUsualLimit) || ++since_update_ > 1) {
            placed_ = true;
            break;
          }
          place_limit_ = limit;
          early_ = !behind_;
          in_vain_ += behind_ ? 1 : 0;
          behind_updates_ += behind_ ? 1 : 0;
          break;
        }
        default: break;
      }
    }
    double squares = 0;  // of the gradients that the optimizer has used
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kGradient))
      squares += entry.summary.l2() * entry.summary.l2();
    mattered_ = mattered_ || (place_limit_ > 0 && squares > place_limit_ * place_limit_);
    if (placed_ && std::exchange(place_open_, false)) sink.Heal(kMisplaced, "", view.rows.info.mode_step);
    if (placed_ || in_vain_ < kMisplacedUpdates || place_updates_ < kMisplacedUpdates || !mattered_) return;
    place_open_ = true;
    const bool late = behind_updates_ == in_vain_;
    Finding finding = FindingAt(kName, kMisplaced, view, TensorAt{format::kNoId, worker});
    finding.since_step = 0;
    finding.what = fmt::format("clipping has no effect: each of {} calls came {}", in_vain_,
                               late ? "after optimizer.step() had used the gradients"
                                    : "before loss.backward() had made the gradients");
    finding.why = "what is clipped is not what the optimizer uses: updates are as large as without clipping";
    finding.remedy = "clip gradients between loss.backward() and optimizer.step()";
    finding.causes = {late ? "clip_grad_norm_ stands behind optimizer.step()"
                           : "clip_grad_norm_ stands before loss.backward()"};
    finding.evidence = {{"calls", in_vain_}, {"updates", place_updates_}};
    finding.threshold = fmt::format(
        "a fact: all calls that clip, {} or more, and gradients whose norm was above the limit (Luff)",
        kMisplacedUpdates);
    sink.Report(std::move(finding));
  }

  // A loss scaler multiplies the loss by a large factor, and divides the gradients by it before they are
  // used. Clipped before that, they come out with a norm of the limit divided by the factor.
  void JudgeScale(const StepView& view, Sink& sink) {
    const std::uint32_t worker = view.index.first_worker();
    double limit = 0;
    std::int64_t clips = 0;
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != worker) continue;
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kScaleLoss) scale_ = std::bit_cast<double>(event.row.argument);
      if (kind == EventKind::kClipGrad) limit = std::bit_cast<double>(event.row.argument);
      clips += kind == EventKind::kClipGrad ? 1 : 0;
    }
    if (clips != 1 || !(limit > 0) || !(scale_ >= kLeastScale) || limit >= kLeastOfScale * scale_) return;
    double norm = 0;
    for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting))
      if (tensor.name == kNorm) norm = entry.value;
    double squares = 0;
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kGradient))
      squares += entry.worker == worker ? entry.summary.l2() * entry.summary.l2() : 0;
    if (!std::isfinite(norm) || !(norm > limit) || !(squares > 0) || !std::isfinite(squares)) return;
    const double used = std::sqrt(squares) * scale_ / limit;
    if (!(std::abs(used - 1) <= kEqual)) {
      scaled_ = 0;
      unscaled_ = true;
      if (std::exchange(scaled_open_, false)) sink.Heal(kScaled, kNorm, view.rows.info.mode_step);
      return;
    }
    if (scaled_++ == 0) scaled_since_ = view.rows.info.mode_step;
    if (scaled_ < kScaledUpdates) return;
    scaled_open_ = true;
    Finding finding = FindingAt(kName, kScaled, view, TensorAt{format::kNoId, worker});
    finding.tensor = kNorm;
    finding.since_step = unscaled_ ? scaled_since_ : 0;
    finding.what = fmt::format(
        "gradients are clipped while they are still multiplied by the loss scale of {:g}: what is used has a "
        "norm of {:.2g}",
        scale_, std::sqrt(squares));
    finding.why = fmt::format(
        "in {} updates in a row the norm before clipping was above the limit of {:g}, and the gradients that "
        "the optimizer got have that limit divided by the scale as their norm",
        scaled_, limit);
    finding.remedy =
        "call scaler.unscale_(optimizer) before clip_grad_norm_, and scaler.step(optimizer) after it";
    finding.causes = {"clip_grad_norm_ stands before scaler.unscale_()", "scaler.unscale_() is missing"};
    finding.evidence = {{"scale", scale_}, {"limit", limit}, {"norm_used", std::sqrt(squares)}};
    finding.threshold = fmt::format("a fact: equal within {:g} % in {} updates in a row (Luff)", 100 * kEqual,
                                    kScaledUpdates);
    sink.Report(std::move(finding));
  }

  // Each call got no gradient at all, or only zeros, while an optimizer used others: the list of parameters
  // was empty, as a generator is that was gone through before. Another model's gradients may be zero, too.
  void JudgeNothing(const StepView& view, Sink& sink) {
    if (empty_over_) return;
    const std::uint32_t worker = view.index.first_worker();
    std::int64_t clips = 0, updates = 0;
    bool backward = false, waits = false;
    double limit = 0;
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != worker) continue;
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kBackward) backward = true;
      updates += kind == EventKind::kOptimizerStep ? 1 : 0;
      if (kind != EventKind::kClipGrad) continue;
      ++clips;
      waits = backward && updates == 0;
      limit = std::bit_cast<double>(event.row.argument);
    }
    if (clips == 0) return;
    double norm = NAN;
    for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting))
      if (tensor.name == kNorm) norm = entry.value;
    if (clips != 1 || updates != 1 || !waits || norm != 0) {
      empty_over_ = true;
      if (std::exchange(empty_open_, false)) sink.Heal(kNothing, kNorm, view.rows.info.mode_step);
      return;
    }
    double squares = 0;
    for (const auto& [entry, tensor] : view.index.summaries(format::Role::kGradient))
      squares += entry.worker == worker ? entry.summary.l2() * entry.summary.l2() : 0;
    if (!(squares > 0) || !std::isfinite(squares)) return;  // nothing was captured at this step
    ++empty_;
    unlimited_ = std::max(unlimited_, limit > 0 && limit < kUsualLimit ? std::sqrt(squares) / limit : 0);
    if (empty_ < kMisplacedUpdates || !(unlimited_ > 1) || HasFrozenWeights(view)) return;
    empty_open_ = true;
    Finding finding = FindingAt(kName, kNothing, view, TensorAt{format::kNoId, worker});
    finding.tensor = kNorm;
    finding.since_step = 0;
    finding.what =
        fmt::format("clipping gets no gradients: it measured a norm of 0 in each of {} updates", empty_);
    finding.why = fmt::format(
        "the gradients with which these updates were made have norms of up to {:.3g} times the limit: what "
        "is clipped are "
        "not the parameters that are trained, or no parameters at all",
        unlimited_);
    finding.remedy =
        "give clip_grad_norm_ the parameters anew, model.parameters(), at each call: a generator that the "
        "optimizer has "
        "gone through is empty; or keep list(model.parameters())";
    finding.causes = {"params = model.parameters() given to the optimizer first, and then to clip_grad_norm_",
                      "the parameters of another model"};
    finding.evidence = {{"updates", empty_}, {"norm_over_limit", unlimited_}};
    finding.threshold = fmt::format(
        "a fact: a norm of exactly 0 in all calls, {} or more, and gradients above the limit (Luff)",
        kMisplacedUpdates);
    sink.Report(std::move(finding));
  }

  // A part of a model is frozen, as by a setting of the program: what is clipped may be that part.
  static bool HasFrozenWeights(const StepView& view) {
    const auto& parameters = view.memo.Facts(view).parameters();
    return std::any_of(parameters.begin(), parameters.end(), [](const auto& entry) {
      const ParameterFacts& one = entry.second;
      const std::size_t dot = one.path.rfind('.');
      return !one.requires_grad &&
             one.path.find("weight", dot == std::string::npos ? 0 : dot + 1) != std::string::npos;
    });
  }

  const Limits limits_;
  LossTracker tracker_;
  std::int64_t scaled_ = 0, scaled_since_ = 0;   // updates in a row whose gradients were clipped as scaled
  double scale_ = 0;                             // of the loss, the newest
  bool scaled_open_ = false, unscaled_ = false;  // `unscaled_`: some update was as it should be
  bool waiting_ = false, behind_ = false,
       early_ = false;  // a gradient waits for an update; was used; clipped before it is made
  std::int64_t in_vain_ = 0, behind_updates_ = 0, since_update_ = 0, place_updates_ = 0;
  std::uint32_t optimizer_ = 0;
  double place_limit_ = 0;
  bool placed_ = false, mattered_ = false, place_open_ = false;
  std::int64_t empty_ = 0;  // updates for which clipping measured a norm of 0
  double unlimited_ = 0;    // largest norm of the gradients of such an update, over the limit
  bool empty_over_ = false, empty_open_ = false;
  double limit_ = 0, least_ = 0;
  std::int64_t row_ = 0, since_ = 0, sided_ = 0, sided_since_ = 0;
  bool open_ = false;
  std::string sided_open_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ClipSaturated>(kName, kParams);
  spec.version = 5;  // 3: "misplaced"; 4: "scaled"; 5: "nothing"
  spec.summary =
      "clipping cuts every gradient by a large factor and nothing is learnt, cuts one side off, or comes at "
      "the wrong place, as before a loss scale is taken off";
  spec.needs = [](const Parameters&) -> std::vector<Need> {  // settings are always recorded
    return {{.collection = "gradients",
             .roles = {format::Role::kGradient},
             .forms = Bit(format::Form::kSummary)}};
  };
  return spec;
}

}  // namespace luff::rules::clip_saturated
