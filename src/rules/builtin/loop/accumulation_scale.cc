#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_rows.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// AccumulationScale: docs/rules/accumulation_scale.md.
namespace luff::rules::accumulation_scale {
namespace {

using Json = nlohmann::json;
using format::EventKind;
constexpr const char* kName = "AccumulationScale";
constexpr std::size_t kMaxPasses = 256;
constexpr double kFewTargets = 8;        // in a batch
constexpr std::size_t kMaxRows = 4096;   // of batches that were thrown away
constexpr std::int64_t kRecurring = 16;  // rows of them that were given again

struct Limits {
  std::int64_t passes, times;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::passes, "passes", "3", "fewest backward passes before an update (Luff)", AtLeast(2)},
    {&Limits::times, "times", "2", "updates that must say so (Luff)", AtLeast(1)},
};

class AccumulationScale final : public KeptRule {
 public:
  explicit AccumulationScale(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded || told_) return;
    bool updated = false;
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != view.index.first_worker()) continue;
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kForward && models_.size() < kMaxPasses) models_.insert(event.row.subject);
      if (kind == EventKind::kBatch && batches_.size() < kMaxPasses) batches_.insert(event.row.argument);
      if (kind == EventKind::kClipGrad) {
        clipped_ = clipped_ || Clips(view);
        asked_ = std::isinf(std::bit_cast<double>(event.row.argument));
      }
      // The norm of gradients that are cleared next is looked at.
      read_ = read_ || (kind == EventKind::kZeroGrad && asked_ && !updated);
      if (kind == EventKind::kZeroGrad || kind == EventKind::kOptimizerStep) asked_ = false;
      if (kind == EventKind::kBackward) worked_ = true;
      cleared_ += kind == EventKind::kZeroGrad && worked_ && !updated ? 1 : 0;
      updated = updated || kind == EventKind::kOptimizerStep;
    }
    if (steps_ == 0 || !mean_) TakeLosses(view);
    if (steps_ > 0 || !middle_.empty()) Recur(view, steps_ > 0 && !updated);
    ++steps_;
    for (const auto& window : view.index.json_events("accumulation")) Judge(view, *window, sink);
    if (updated) {
      models_.clear();
      before_ = std::exchange(batches_, {});
      steps_ = 0;
      mean_ = clipped_ = worked_ = false;
      cleared_ = 0;
    }
  }
  void VisitFields(Fields& io) override {
    io("models", models_, kMaxPasses);
    io("batches", batches_, kMaxPasses);
    io("before", before_, kMaxPasses);
    io("steps", steps_);
    io("mean", mean_);
    io("clipped", clipped_);
    io("worked", worked_);
    io("cleared", cleared_);
    io("lost", lost_);
    io("dropped", dropped_);
    io("middle", middle_, kMaxRows);
    io("recurring", recurring_);
    io("asked", asked_);
    io("read", read_);
    io("of", of_);
    io("by_hand", by_hand_);
    io("seen", seen_);
    io("told", told_);
    io("loss", loss_);
    io("reader", reader_);
  }

 private:
  // False if the gradients are known to have been within the limit.
  static bool Clips(const StepView& view) {
    double norm = HUGE_VAL;
    double limit = 0;
    for (const auto& [entry, tensor] : view.index.scalars(format::Role::kOptimizerSetting)) {
      if (tensor.name == "clip/norm") norm = entry.value;
      if (tensor.name == "clip/limit") limit = entry.value;
      if (tensor.name == "clip/norm_2") return true;
    }
    return !(norm <= limit);
  }

  // Rows of a pass that is neither the first of an update nor its last are kept, if gradients were cleared
  // before it, and counted when they come again: an attack on inputs makes new ones.
  void Recur(const StepView& view, bool in_the_middle) {
    for (const std::uint64_t row : RowsOfStep(view)) {
      recurring_ += middle_.contains(row) ? 1 : 0;
      if (in_the_middle && cleared_ > 0 && middle_.size() < kMaxRows) middle_.insert(row);
    }
  }

  // Sets mean_ if the value of a loss proves that it is a mean over its samples.
  void TakeLosses(const StepView& view) {
    for (const LossCall& call : reader_.Read(view)) {
      const Recognition known = reader_.Recognise(call);
      if (!known.by_value || known.broadcast || !call.value || known.per_sample.size() < 2 || !call.whole())
        continue;
      double sum = 0;
      for (const double term : known.per_sample) sum += term;
      const double mean = sum / static_cast<double>(known.per_sample.size());
      if (std::abs(mean - *call.value) > 1e-3 * std::max(std::abs(mean), 1e-6)) continue;
      mean_ = true;
      loss_ = call.kind;
      return;
    }
  }

  // Judges one update: one model, a new batch in each pass, gradients added up and used as they are.
  void Judge(const StepView& view, const Json& window, Sink& sink) {
    const double passes = NumberIn(window, "passes");
    const Json& factors = ListIn(window, "factors");
    if (!(passes >= static_cast<double>(limits_.passes)) || !(passes <= kMaxPasses) || factors.empty())
      return;
    if (models_.size() != 1 || static_cast<double>(steps_) != passes ||
        static_cast<double>(batches_.size()) != passes)
      return;
    if (FlagIn(window, "moved"))
      return;  // steps by hand, as of a task that is adapted to: each batch has counted
    const bool added = FlagIn(window, "added");
    if (!added && FlagIn(window, "multiple")) {
      if (mean_) Cleared(view, passes, factors, sink);
      if (!told_ && !by_hand_) Dropped(view, passes, window, sink);
    }
    // Gradients that are put together by hand once are so on purpose, also where the last ones fit as they
    // are.
    by_hand_ = by_hand_ || (!added && !FlagIn(window, "multiple"));
    if (!mean_ || !added || !FlagIn(window, "untouched") || clipped_ || told_) return;
    double least = HUGE_VAL;
    double most = -HUGE_VAL;
    for (const Json& factor : factors) {
      if (!factor.is_number()) return;
      least = std::min(least, factor.get<double>());
      most = std::max(most, factor.get<double>());
    }
    const auto is = [&](double wanted) {
      return std::abs(least - wanted) <= 1e-6 * wanted && most - least <= 1e-6 * wanted;
    };
    const bool none = is(1);
    const bool twice = is(1 / (passes * passes));
    if (!none && !twice) {
      if (seen_ > 0 && is(1 / passes)) seen_ = 0;
      return;
    }
    if (!IsSgd(view.trial, NumberIn(window, "optimizer"))) return;
    if (++seen_ < limits_.times) return;
    Tell(view, passes, twice, sink);
  }

  // Each loss was divided by the number of passes, as one does to add gradients up, and the gradients of all
  // but the last were cleared: the optimizer gets those of one batch, divided. Passes that are cleared to
  // look at gradients only (attacks on inputs, gradients of single samples) divide by nothing.
  void Cleared(const StepView& view, double passes, const Json& factors, Sink& sink) {
    const bool divided = std::all_of(factors.begin(), factors.end(), [&](const Json& factor) {
      return factor.is_number() && std::abs(factor.get<double>() * passes - 1) <= 1e-6;
    });
    if (!divided || static_cast<double>(cleared_) < passes - 1) {
      lost_ = 0;
      return;
    }
    if (++lost_ < limits_.times) return;
    TellCleared(view, passes, 1 / passes, limits_.times, sink);
  }

  // The losses were not divided, and all gradients but those of the last batch were cleared. Passes whose
  // gradients are only looked at have the targets of one batch (attacks on its inputs), other sizes than the
  // last one (single samples), batches that come again for the next update (memories of earlier tasks),
  // another number for each update (updates that are left out), or a script that reads them. Where targets
  // are not known, as of losses that a script writes itself, rows that were thrown away come again.
  void Dropped(const StepView& view, double passes, const Json& window, Sink& sink) {
    const bool whole =
        static_cast<double>(cleared_) >= passes - 1 && !read_ && !FlagIn(window, "reads") &&
        (!AreKnown(window) || (IsOneNumber(ListIn(window, "factors")) &&
                               AreOfSeveralBatches(ListIn(window, "targets"), ListIn(window, "sizes")))) &&
        !ListIn(window, "targets").empty() &&
        std::none_of(batches_.begin(), batches_.end(),
                     [&](std::uint64_t batch) { return before_.contains(batch); });
    if (!whole || passes != of_) dropped_ = 0;
    of_ = passes;
    if (!whole || ++dropped_ < limits_.times + 1) return;
    if (!AreKnown(window) && recurring_ < kRecurring) return;
    const Json& factor = ListIn(window, "factors").front();
    TellCleared(view, passes, factor.is_number() ? factor.get<double>() : 1, limits_.times + 1, sink);
  }

  // Whether the target of some pass is known.
  static bool AreKnown(const Json& window) {
    const Json& targets = ListIn(window, "targets");
    return !std::all_of(targets.begin(), targets.end(), [](const Json& one) { return one.is_null(); });
  }

  static bool IsOneNumber(const Json& factors) {
    return std::all_of(factors.begin(), factors.end(), [&](const Json& factor) {
      return factor.is_number() && factor == factors.front() && factor.get<double>() > 0;
    });
  }

  // Whether the passes' targets have one size, and are those of several batches. The process's first pass is
  // not known: it did not know yet that others follow.
  static bool AreOfSeveralBatches(const Json& targets, const Json& sizes) {
    std::set<std::int64_t> different;
    std::set<double> size;
    std::size_t known = 0;
    for (std::size_t i = 0; i < targets.size() && i < sizes.size(); ++i) {
      if (i == 0 && targets[i].is_null()) continue;
      if (!targets[i].is_number_integer() || !sizes[i].is_number()) return false;
      different.insert(targets[i].get<std::int64_t>());
      size.insert(sizes[i].get<double>());
      ++known;
    }
    if (known < 2 || known + 1 < targets.size() || size.size() != 1) return false;
    // Batches of a few labels often have the same.
    return *size.begin() <= kFewTargets ? different.size() > 1 : 2 * different.size() > known;
  }

  void TellCleared(const StepView& view, double passes, double factor, std::int64_t updates, Sink& sink) {
    told_ = true;
    const bool divided = factor != 1;
    Finding finding = FindingAt(kName, "cleared", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = fmt::format(
        "only the last of every {:g} batches counts: the gradients of the others are cleared", passes);
    finding.why = fmt::format(
        "an update comes after {:g} backward passes, each of another batch, and gradients were cleared "
        "before each "
        "of them, so they never add up: {:g} of {:g} batches are thrown away{}",
        passes, passes - 1, passes,
        divided ? fmt::format(", and the update is that of one batch times {:.3g}", factor) : std::string());
    finding.remedy = fmt::format(
        "call optimizer.zero_grad() once for each update, right after optimizer.step(), so that all {:g} "
        "batches count"
        "{}; or, if no sum is meant, optimizer.step() after each backward pass",
        passes, divided ? std::string() : fmt::format("; then use (loss / {:g}).backward()", passes));
    finding.causes = {"zero_grad() stands in the loop over batches, outside of the condition for step()"};
    finding.evidence = {{"passes", passes}, {"factor", factor}};
    finding.threshold = fmt::format("a fact, in {} updates (Luff)", updates);
    sink.Report(std::move(finding));
  }

  // SGD's update scales with the gradient; other optimizers divide the scale out again.
  static bool IsSgd(const query::Trial& trial, double number) {
    const ModelFacts facts = ModelFacts::Of(trial);
    return std::any_of(facts.optimizers().begin(), facts.optimizers().end(), [&](const OptimizerFacts& one) {
      return static_cast<double>(one.number) == number && one.type == "SGD";
    });
  }

  void Tell(const StepView& view, double passes, bool twice, Sink& sink) {
    told_ = true;
    Finding finding = FindingAt(kName, twice ? "scaled_twice" : "not_scaled", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = twice ? fmt::format("gradients of {:g} batches are divided by {:g} twice", passes, passes)
                         : fmt::format("gradients of {:g} batches are added up, not averaged", passes);
    finding.why =
        twice ? fmt::format(
                    "{} is a mean already, and each came in with a factor of 1/{:g}: the update is that of "
                    "one batch divided by {:g}",
                    loss_, passes * passes, passes)
              : fmt::format(
                    "{} is a mean over its batch, and each of {:g} backward passes before an update came in "
                    "with a factor of 1: the update is {:g} times that of one large batch",
                    loss_, passes, passes);
    finding.remedy = fmt::format("(loss / {:g}).backward(), once", passes);
    finding.causes = {twice ? "the loss and the gradients, or the loss twice, are divided"
                            : "the loss is not divided by the number of batches",
                      "the learning rate was meant for it"};
    finding.evidence = {{"passes", passes}, {"factor", twice ? 1 / (passes * passes) : 1}};
    finding.threshold = fmt::format("factor {} in {} updates (Luff)", twice ? "1/n^2" : "1", limits_.times);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossReader reader_;
  std::set<std::uint32_t> models_;            // models called since the last update
  std::set<std::uint64_t> batches_, before_;  // since the last update, and for that one
  std::unordered_set<std::uint64_t> middle_;  // rows of passes that were thrown away
  std::int64_t recurring_ = 0;                // of them, each time
  bool asked_ = false, read_ = false;  // the norm of gradients, by a limit of infinity; of cleared ones
  std::int64_t steps_ = 0, seen_ = 0;
  std::int64_t cleared_ = 0,
               lost_ = 0;     // zero_grad() since the window's first pass; windows that lost passes
  std::int64_t dropped_ = 0;  // updates in a row that lost passes whose losses nothing divided
  double of_ = 0;             // passes of the newest of them
  bool by_hand_ = false;      // an update got other gradients than the last pass has left
  bool mean_ = false, clipped_ = false, worked_ = false, told_ = false;
  std::string loss_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<AccumulationScale>(kName, kParams);
  spec.version = 4;  // 4: "cleared" of losses that a script writes; gradients that are read; 2: "cleared"; 3:
                     // of losses that are not divided; not beside steps by hand
  spec.summary =
      "gradients of several batches that are added up instead of averaged, or cleared but for the last";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::accumulation_scale
