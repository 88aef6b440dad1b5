#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "luff/profile/input.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/drawn_passes.h"
#include "rules/facts/early_ends.h"
#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/passes.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/facts/still_weights.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// StepSkipped: docs/rules/step_skipped.md.
namespace luff::rules::step_skipped {
namespace {

using format::EventKind;
using format::Role;
constexpr const char *kName = "StepSkipped", *kEarly = "ends_early";
constexpr std::size_t kMaxWorkers = 4096, kMaxOptimizers = 1024, kMaxBatches = 64;
// An update is one of few if so many batches' gradients were cleared before it, and updates come once in a
// pass over the data: then optimizer.step() stands outside of the loop over batches. Attacks on inputs,
// gradients of single samples or tasks that a script gathers itself are cleared too, many times in a pass.
constexpr std::int64_t kFew = 3, kCycles = 3;
constexpr std::int64_t kUnused =
    4;  // updates in a row, from the first one on, that used the last loss of several
constexpr std::int64_t kMostTold = 32, kSampled = 16;  // updates of which the hook tells losses, and passes
constexpr double kPassesPerUpdate = 0.75, kMostMade = 1e9;
constexpr std::int64_t kHalf = 2;  // of the updates have a start of a loader: the first came before the run
constexpr double kWithout = 3;     // passes over the data that have begun, two of them without any update
constexpr std::int64_t kFewerRows = 4;  // times: passes that are only looked at
constexpr std::int64_t kTwice =
    2;  // as many backward passes as at the end: one batch may be used again and again

struct Limits {
  std::int64_t updates, empty;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::updates, "updates", "24", "updates left out in a row; a loss scale that adapts needs fewer",
     AtLeast(2)},
    {&Limits::empty, "empty", "8", "updates in a row without a gradient (Luff)", AtLeast(2)},
};

// An update was skipped if gradients were computed and cleared with no optimizer step in between. Accumulated
// gradients are not cleared before an update. An adaptive loss scaler skips a few updates and then steps. An
// optimizer that steps after its gradients were cleared, with no backward pass in between, has none to use,
// which is as good as skipping. Gradients that a user sets by hand are recorded.
class StepSkipped final : public KeptRule {
 public:
  explicit StepSkipped(const Limits& limits) : updates_(limits.updates), empty_(limits.empty) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    // What is started after an evaluation is told in its step.
    for (const query::StepPhases& phases : view.rows.phases)
      if (phases.worker == view.index.first_worker())
        started_ += phases.begins[static_cast<std::size_t>(format::Phase::kDataStart)];
    if (info.mode == query::Mode::kTrain) Drawn(view, sink);
    drawn_.StepEnds(view);
    if (info.mode == query::Mode::kTrain) passes_.OnTrainStep(view);
    early_.OnStep(view);
    if (info.mode != query::Mode::kTrain) return;
    if (const auto found = early_.Judge(view); found && !early_open_)
      TellEarly(*found, FindingAt(kName, kEarly, view, TensorAt{format::kNoId}), sink);
    if (early_.over() && std::exchange(early_open_, false)) sink.Heal(kEarly, "", info.mode_step);
    Unused(view, sink);
    Count(view);
    still_.OnTrainStep(view);
    // A closure computes and clears gradients many times in one update; its gradients are recorded.
    const auto gradients = view.index.summaries(Role::kGradient);
    const bool used = !gradients.empty();
    const bool nothing = std::all_of(gradients.begin(), gradients.end(), [](const auto& one) {
      return one.entry.summary.zero_count == one.entry.summary.count;
    });
    for (const query::EventAt& event : view.rows.events) {
      if (workers_.size() >= kMaxWorkers && !workers_.contains(event.worker)) continue;
      State& state = workers_[event.worker];
      switch (static_cast<EventKind>(event.row.kind)) {
        case EventKind::kOptimizerStep:
          state.lost = state.lost_rows = 0;
          state.made = false;
          ++state.updates;
          if (state.open && state.worked && state.discarded < kFew) {
            sink.Heal("skipped", "", info.mode_step);
            state.open = false;
          }
          OneOfFew(view, event.worker, state, sink);
          Used(view, event, nothing, state, sink);
          break;
        case EventKind::kBackward:
          state.made = !used;
          state.worked = true;
          state.cleared.clear();
          break;
        case EventKind::kZeroGrad:
          if (state.cleared.size() < kMaxOptimizers) state.cleared.insert(event.row.subject);
          // model.zero_grad() in the middle of a run: gradients may be computed only to be inspected.
          if (!state.made || (event.row.subject == format::kNoId && state.updates > 0)) break;
          Lost(state, info, false);
          break;
        case EventKind::kStepSkipped: Lost(state, info, true); break;
        default: break;
      }
      if (state.lost >= updates_ && !IsLookedAt(state)) Tell(view, event.worker, state, sink);
    }
    CountRows(view);
    if (none_open_ && still_.moved()) {
      none_open_ = false;
      sink.Heal("none", "", info.mode_step);
    } else if (!none_open_ && passes_.count() >= kWithout && !passes_.drawn_at_random() && StandsStill() &&
               still_.backwards() >= kTwice * updates_) {
      TellNone(view.memo.Facts(view), FindingAt(kName, "none", view, TensorAt{format::kNoId}),
               Severity::kStop, sink);
    }
  }

  void OnEnd(const query::Trial& trial, Sink& sink) override {
    NeverStepped(trial, sink);
    if (const auto found = early_.OnEnd(trial))
      TellEarly(*found, FindingAt(kName, kEarly, trial, format::kNoId, 0, last_.Info()), sink);
    // What was cut short may have been on its way to its first update.
    if (none_open_ || !StandsStill() || trial.outcome().state != "completed") return;
    TellNone(ModelFacts::Of(trial), FindingAt(kName, "none", trial, format::kNoId, 0, last_.Info()),
             Severity::kWarn, sink);
  }

  void VisitFields(Fields& io) override {
    io("workers", workers_, kMaxWorkers);
    io("used", used_, kMaxOptimizers);
    io("last", last_);
    io("passes", passes_);
    io("unused", unused_);
    io("losses_made", losses_made_);
    io("started", started_);
    io("some_used", some_used_);
    io("unused_open", unused_open_);
    io("of_passes", of_passes_);
    io("only_passes", only_passes_);
    io("still", still_);
    io("none_open", none_open_);
    drawn_.VisitFields(io);
    io("early", early_);
    io("early_open", early_open_);
  }

 private:
  // What the hook says of a step with an update: how many losses, or passes of a model, were made for it.
  struct Made {
    std::int64_t count = 0;
    std::string of;  // kind of the loss, or name of the model
    bool passes = false;
  };

  [[nodiscard]] Made MadeIn(const StepView& view) const {
    Made made;
    for (const char* kind : {"unused_passes", "unused_losses"}) {  // losses say more
      if (only_passes_ && std::string_view(kind) == "unused_losses") continue;
      for (const auto& event : view.index.json_events(kind)) {
        const double number = NumberIn(*event, "made");
        if (!(number >= static_cast<double>(kFew) + 1 && number <= kMostMade)) continue;
        made.passes = std::string_view(kind) == "unused_passes";
        made.count = static_cast<std::int64_t>(number);
        const auto name = event->find(made.passes ? "model" : "loss");
        made.of = name != event->end() && name->is_string() ? name->get<std::string>() : "";
      }
    }
    return made;
  }

  // Each update so far used the last of several losses of the same kind, or passes of a model, of as many
  // batches: backward() and step() stand behind the loop over batches. A search along a line computes many
  // losses of one batch, an evaluation with gradients comes after the first update, and whoever chooses one
  // of several batches by its loss computes that loss again.
  void Unused(const StepView& view, Sink& sink) {
    const std::uint32_t worker = view.index.first_worker();
    if (some_used_ || view.index.events(EventKind::kOptimizerStep).empty()) return;
    const auto forwards = static_cast<std::int64_t>(view.index.events(EventKind::kForward).size());
    Made made = MadeIn(view);
    if (unused_open_) {
      const bool told = of_passes_ ? view.rows.info.mode_step < kSampled : unused_ < kMostTold;
      unused_ += made.count > 0 ? 1 : 0;
      if (made.count > 0 || (!told && forwards > kFew)) return;
      some_used_ = true;
      unused_open_ = false;
      sink.Heal("unused", "", view.rows.info.mode_step);
      return;
    }
    std::set<std::uint64_t> batches;
    bool chosen = false;  // the last one had come before
    for (const query::EventAt& event : view.index.events(EventKind::kBatch)) {
      if (event.worker != worker) continue;
      chosen = batches.contains(event.row.argument);
      if (batches.size() < kMaxBatches) batches.insert(event.row.argument);
    }
    // Of the first step, which opened the run, most batches were gone before they could be told apart, and of
    // passes nothing is known but how many there were.
    const bool first = unused_ == 0;
    if (first && made.count == 0) {
      made.count = forwards;
      only_passes_ = true;
    }
    const std::int64_t others = first ? forwards : static_cast<std::int64_t>(batches.size());
    if (made.count <= kFew || others <= kFew || chosen) {
      some_used_ = true;
      return;
    }
    ++unused_;
    losses_made_ += made.count;
    if (unused_ < kUnused || made.of.empty()) return;
    // Passes whose batches a model makes of its last answers, step by step, may be meant to be cut off.
    if (made.passes && !IsAPass(view, made.count) && !passes_.begun_again()) return;
    unused_open_ = true;
    of_passes_ = made.passes;
    Finding finding = FindingAt(kName, "unused", view, TensorAt{format::kNoId, worker});
    finding.since_step = 0;
    finding.what = fmt::format("only the last batch of each pass is learnt: {} of {} {} were used", unused_,
                               losses_made_, made.passes ? "forward passes" : "losses");
    finding.why = fmt::format(
        "each of the {} updates so far followed the last of several {}{}, of as many batches; the others "
        "were "
        "computed with gradients, and no backward pass used them",
        unused_, made.passes ? "forward passes of " : "", made.of);
    finding.remedy = fmt::format(
        "{}call loss.backward() and optimizer.step() inside the loop over batches; or add the losses up and "
        "call backward() on their sum",
        made.passes ? "compute the loss, and " : "");
    finding.causes = {"backward() and step() stand outside of the loop over batches",
                      "losses that are meant to be added up, and overwrite each other"};
    finding.evidence = {{"losses", losses_made_}, {"used", unused_}};
    finding.threshold = fmt::format(
        "a fact of the graph: the first {} updates used one {} each, {} or more were made before it (Luff)",
        kUnused, made.passes ? "pass" : "loss", kFew);
    sink.Report(std::move(finding));
  }

  void Drawn(const StepView& view, Sink& sink) {
    const auto found = drawn_.OnTrainStep(view);
    if (!found) return;
    if (found->over) return sink.Heal("drawn", "", view.rows.info.mode_step);
    Finding finding = FindingAt(kName, "drawn", view, TensorAt{format::kNoId, view.index.first_worker()});
    found->Describe(&finding);
    sink.Report(std::move(finding));
  }

  void TellEarly(const EarlyEnds::Found& found, Finding finding, Sink& sink) {
    early_open_ = true;
    found.Describe(&finding);
    sink.Report(std::move(finding));
  }

  // Whether so many batches are a pass of a loader, of which the last may be left out, and loaders were
  // started for the updates so far. A model that is unrolled on one batch may be cut off as often by chance.
  [[nodiscard]] bool IsAPass(const StepView& view, std::int64_t count) const {
    if (kHalf * started_ < unused_) return false;
    const auto loaders = profile::LoadersOf(view.trial.Document("loaders"));
    return std::any_of(loaders.begin(), loaders.end(), [&](const profile::Loader& loader) {
      return loader.batches > kFew && count <= loader.batches && count >= loader.batches - 1;
    });
  }

  [[nodiscard]] bool StandsStill() const {
    if (still_.backwards() < updates_) return false;
    return std::none_of(workers_.begin(), workers_.end(), [](const auto& one) {
      return one.second.updates > 0 || one.second.open;  // gradients that are cleared are told already
    });
  }

  void TellNone(const ModelFacts& facts, Finding finding, Severity severity, Sink& sink) {
    std::string name;
    std::int64_t held = 0;
    for (const auto& [parameter, fact] : facts.parameters()) {
      if (fact.optimizer.empty() || !fact.requires_grad) continue;
      ++held;
      name = fact.optimizer;
    }
    if (held == 0) return;
    none_open_ = true;
    finding.severity = severity;
    finding.since_step = 0;
    finding.what = fmt::format("no optimizer ever stepped: {} backward passes, and no weight has changed",
                               still_.backwards());
    finding.why = fmt::format(
        "{} holds {} parameters and the backward passes give them gradients, but its step() is never called: "
        "the model is as it was at the first step",
        name, held);
    finding.remedy =
        "call optimizer.step(), and optimizer.zero_grad() after it; where a condition stands before them, as "
        "for gradients that are accumulated, it must hold within the batches of a pass";
    finding.causes = {"optimizer.step() is missing, or is named without being called",
                      "a condition for accumulated gradients that never holds: so many batches never come"};
    finding.evidence = {{"backward_passes", still_.backwards()}, {"parameters", held}};
    finding.threshold =
        fmt::format("{} backward passes and no update, in {} (Luff)", updates_,
                    severity == Severity::kStop ? "two passes over the data" : "all of the run");
    sink.Report(std::move(finding));
  }

  struct Use {  // of an optimizer
    std::int64_t cleared = 0, steps = 0;
    void VisitFields(Fields& io) {
      io("cleared", cleared);
      io("steps", steps);
    }
  };

  void Count(const StepView& view) {
    last_.Take(view.rows.info);
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != view.index.first_worker() || event.row.subject == format::kNoId) continue;
      if (used_.size() >= kMaxOptimizers && !used_.contains(event.row.subject)) continue;
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kZeroGrad) ++used_[event.row.subject].cleared;
      if (kind == EventKind::kOptimizerStep || kind == EventKind::kStepSkipped)
        ++used_[event.row.subject].steps;
    }
  }

  // An optimizer whose gradients were cleared again and again, as in a loop, and that never stepped, while
  // another did. Its parameters are in no other: a wrapper shares them with what it wraps, and either may be
  // the one that the document names as theirs.
  void NeverStepped(const query::Trial& trial, Sink& sink) const {
    const ModelFacts facts = ModelFacts::Of(trial);
    std::int64_t most = 0;
    for (const auto& [number, use] : used_) most = std::max(most, use.steps);
    if (most < updates_) return;
    for (const OptimizerFacts& optimizer : facts.optimizers()) {
      const auto use = used_.find(optimizer.number);
      if (use == used_.end() || use->second.steps > 0 || use->second.cleared < updates_) continue;
      std::int64_t own = 0;
      for (const auto& [name, parameter] : facts.parameters())
        own += parameter.optimizer == optimizer.name && parameter.requires_grad ? 1 : 0;
      if (own == 0 || own != optimizer.parameters || optimizer.foreign != 0 || optimizer.shared != 0)
        continue;
      Finding finding = FindingAt(kName, "never", trial, format::kNoId, 0, last_.Info());
      finding.since_step = 0;
      finding.what = fmt::format("{} (optimizer {}) never stepped: its {} parameters are as they were",
                                 optimizer.name, optimizer.number, own);
      finding.why = fmt::format(
          "its gradients were cleared {} times, and another optimizer stepped {} times: what it holds is "
          "never "
          "trained",
          use->second.cleared, most);
      finding.remedy = fmt::format("call {}.step() after the backward pass of its own loss", optimizer.name);
      finding.causes = {"step() is missing for one of several optimizers", "the other optimizer steps twice"};
      finding.evidence = {{"cleared", use->second.cleared}, {"others", most}};
      finding.threshold = fmt::format("a fact at the end, {} times cleared and {} updates of another (Luff)",
                                      updates_, updates_);
      sink.Report(std::move(finding));
    }
  }

  struct State {
    bool made = false;  // there are gradients that no update has used yet
    bool open = false;
    bool by_scaler = false;  // a loss scaler reported the newest skip
    std::int64_t lost = 0;   // skipped updates in a row
    std::int64_t since = -1;
    std::int64_t updates = 0;
    std::int64_t used_rows = 0, lost_rows = 0;  // most of a pass with an update, and of those lost since
    std::set<std::uint32_t> cleared;  // optimizers whose gradients were cleared since the last backward pass
    std::int64_t empty = 0;           // updates in a row without a gradient
    bool open_empty = false;
    bool worked = false;         // a backward pass since the last update
    std::int64_t discarded = 0;  // gradients that were cleared since the last update
    std::int64_t discarded_since = -1;
    std::int64_t cycles = 0,
                 in_cycles = 0;  // updates in a row that are one of few; gradients cleared in them
    std::int64_t cycles_since = -1;
    double passes = 0, passes_at = 0;  // at the last update; before the first of these cycles
    bool open_rarely = false;
    void VisitFields(Fields& io) {
      io("cleared", cleared, kMaxOptimizers);
      io("empty", empty);
      io("open_empty", open_empty);
      io("worked", worked);
      io("discarded", discarded);
      io("discarded_since", discarded_since);
      io("cycles", cycles);
      io("in_cycles", in_cycles);
      io("cycles_since", cycles_since);
      io("passes", passes);
      io("passes_at", passes_at);
      io("open_rarely", open_rarely);
      io("made", made);
      io("open", open);
      io("by_scaler", by_scaler);
      io("lost", lost);
      io("since", since);
      io("updates", updates);
      io("used_rows", used_rows);
      io("lost_rows", lost_rows);
    }
  };

  static void Lost(State& state, const query::StepInfo& info, bool by_scaler) {
    if (state.lost++ == 0) state.since = info.mode_step;
    state.by_scaler = by_scaler;
    state.made = false;
    if (!by_scaler && state.discarded++ == 0) state.discarded_since = info.mode_step;
  }

  // Called when an optimizer has stepped.
  void OneOfFew(const StepView& view, std::uint32_t worker, State& state, Sink& sink) const {
    if (!std::exchange(state.worked, false)) return;  // of another optimizer, after the same backward pass
    const std::int64_t discarded = std::exchange(state.discarded, 0);
    const double before = std::exchange(state.passes, passes_.count());
    if (discarded < kFew) {
      state.cycles = state.in_cycles = 0;
      if (std::exchange(state.open_rarely, false)) sink.Heal("rarely", "", view.rows.info.mode_step);
      return;
    }
    if (state.cycles++ == 0) {
      state.cycles_since = state.discarded_since;
      state.passes_at = before;
    }
    state.in_cycles += discarded;
    const bool each_pass =
        state.passes - state.passes_at >= kPassesPerUpdate * static_cast<double>(state.cycles);
    if (state.cycles < kCycles || state.in_cycles < updates_ || !each_pass || state.open ||
        passes_.drawn_at_random() || HasClosures(view))
      return;
    state.open_rarely = true;
    Finding finding = FindingAt(kName, "rarely", view, TensorAt{format::kNoId, worker});
    finding.since_step = state.cycles_since;
    finding.what = fmt::format(
        "only one update in a pass over the data: the gradients of {} batches were cleared, {} used",
        state.in_cycles, state.cycles);
    finding.why =
        "each batch's gradients are cleared before an optimizer steps, but for those of the last batch of "
        "each pass";
    finding.remedy = "call optimizer.step() inside the loop over batches, after each loss.backward()";
    finding.causes = {"optimizer.step() stands outside of the loop over batches",
                      "gradients that are to add up over a pass, and are cleared for each batch"};
    finding.evidence = {{"cleared", state.in_cycles}, {"updates", state.cycles}, {"passes", state.passes}};
    finding.threshold = fmt::format("{} cleared gradients, {} and more before each of {} updates (Luff)",
                                    updates_, kFew, kCycles);
    sink.Report(std::move(finding));
  }

  // Called when an optimizer has stepped. `nothing`: no recorded gradient of the step has a value other than
  // zero.
  void Used(const StepView& view, const query::EventAt& event, bool nothing, State& state, Sink& sink) const {
    if (view.index.summaries(Role::kWeight).empty()) return;  // then gradients are not recorded either
    const bool cleared = state.cleared.contains(event.row.subject) || state.cleared.contains(format::kNoId);
    if (!nothing || !cleared) {
      state.empty = 0;
      if (std::exchange(state.open_empty, false)) sink.Heal("empty", "", view.rows.info.mode_step);
      return;
    }
    if (++state.empty < empty_) return;
    state.open_empty = true;
    Finding finding = FindingAt(kName, "empty", view, TensorAt{format::kNoId, event.worker});
    finding.severity = Severity::kStop;
    finding.since_step = std::max<std::int64_t>(view.rows.info.mode_step - state.empty + 1, 0);
    finding.what = fmt::format("{} updates in a row had no gradient to use", state.empty);
    finding.why =
        "the gradients are cleared after the backward pass and before the optimizer steps, so the model "
        "stands "
        "still";
    finding.remedy =
        "call optimizer.zero_grad() before loss.backward() and optimizer.step() after it, with nothing that "
        "clears gradients in between";
    finding.causes = {"zero_grad() stands between backward() and optimizer.step()",
                      "optimizer.step() is called before loss.backward()"};
    finding.evidence = {{"updates", state.empty}};
    finding.threshold = fmt::format("{} in a row (Luff)", empty_);
    sink.Report(std::move(finding));
  }

  static bool HasClosures(const StepView& view) {  // clears and computes gradients many times per update
    const auto& optimizers = view.memo.Facts(view).optimizers();
    return std::any_of(optimizers.begin(), optimizers.end(),
                       [](const OptimizerFacts& one) { return one.type == "LBFGS"; });
  }

  // How many rows models got in steps with updates, and in those whose gradients were thrown away since.
  void CountRows(const StepView& view) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto at = workers_.find(input.entry->worker);
      if (at == workers_.end()) continue;
      const auto shape = view.trial.Shape(input.entry->tensor, view.rows.info.global_step,
                                          query::Mode::kGlobal, input.entry->worker);
      if (!shape.ok() || shape.value().shape.empty()) continue;
      State& state = at->second;
      const std::int64_t rows = shape.value().shape.front();
      if (!view.index.events(EventKind::kOptimizerStep).empty()) {
        state.used_rows = std::max(state.used_rows, rows);
      } else if (state.lost > 1) {  // the newest sample may be of a pass before
        state.lost_rows = std::max(state.lost_rows, rows);
      }
    }
  }

  // Whether gradients may be made to be looked at only, as those of a Fisher information at the end of a
  // task: in as many passes as there were updates, or in passes of far fewer rows, as single samples.
  static bool IsLookedAt(const State& state) {
    if (state.by_scaler || state.updates == 0) return false;
    return state.lost <= state.updates ||
           (state.lost_rows > 0 && kFewerRows * state.lost_rows <= state.used_rows);
  }

  void Tell(const StepView& view, std::uint32_t worker, State& state, Sink& sink) const {
    if (!state.open && HasClosures(view)) return;
    state.open = true;
    Finding finding = FindingAt(kName, "skipped", view, TensorAt{format::kNoId, worker});
    finding.severity = Severity::kStop;
    finding.since_step = state.since;
    finding.what = fmt::format("{} updates in a row were left out{}", state.lost,
                               state.updates == 0 ? "; none was ever made" : "");
    finding.why =
        state.by_scaler
            ? "the loss scaler found gradients that are not finite each time, so the model stands still"
            : "gradients were made and cleared each time and no optimizer stepped in between, so the "
              "model stands still";
    finding.remedy =
        "let the loss scale adapt: it must fall when gradients overflow. Without a scaler, call "
        "optimizer.step()";
    finding.causes = {"a fixed loss scale at which gradients overflow",
                      "gradients that are not finite anyway",
                      "optimizer.step() is missing, or its condition never holds"};
    finding.evidence = {{"left_out", state.lost}, {"updates_before", state.updates}};
    finding.threshold =
        fmt::format("{} in a row; a scale that adapts has been halved as often by then (Luff)", updates_);
    sink.Report(std::move(finding));
  }

  const std::int64_t updates_, empty_;
  EarlyEnds early_;
  bool early_open_ = false;
  Passes passes_;
  std::int64_t unused_ = 0,
               losses_made_ = 0;  // updates so far that used one loss of several, and these losses
  std::int64_t started_ = 0;      // loaders
  bool some_used_ = false, unused_open_ = false, of_passes_ = false;
  bool only_passes_ = false;  // of the first step no losses are known
  StillWeights still_;
  bool none_open_ = false;
  DrawnPasses drawn_;
  std::map<std::uint32_t, State> workers_;
  std::map<std::uint32_t, Use> used_;  // by number of the optimizer
  Anchor last_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<StepSkipped>(kName, kParams);
  // 5: losses that no backward pass uses; "never"; 6: Passes by samples; 7: "none"; 8: less of "unused"; 9:
  // "drawn"; 10: passes after many updates; 11: "ends_early"; 12: passes of fewer rows; 13: "ends_early"
  // beside evaluations only
  spec.version = 13;
  spec.summary =
      "gradients or losses are made and thrown away: the update is always left out, or all but once in a "
      "pass";
  spec.needs = [](const Parameters&) { return std::vector<Need>{SampleNeeds().front()}; };
  return spec;
}

}  // namespace luff::rules::step_skipped
