#include "luff/rules/evaluator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/base/env.h"
#include "rules/engine/evidence.h"
#include "rules/engine/grouping.h"
#include "rules/engine/recorded.h"
#include "rules/engine/state_check.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/abstains.h"
#include "rules/kit/ends_later.h"
#include "rules/kit/step_index.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxCheckpointBytes = 64ULL << 20;
constexpr std::uint64_t kMaxFindingsBytes = 256ULL << 20;
constexpr std::size_t kMaxOtherTensors = 20;
constexpr std::size_t kMaxNotes = 16;
constexpr std::size_t kMaxReason = 500;  // bytes of an exception's message
constexpr std::int64_t kHoldForValuesNs = 60'000'000'000;
constexpr int kCheckpointVersion = 2;  // 2: states name their fields

// How much the rule knows about the cause so far: its evidence `detail`, 0 without one.
double DetailOf(const Finding& finding) {
  for (const auto& [name, value] : finding.evidence) {
    if (name == "detail") return value;
  }
  return 0;
}

class EvaluatorImpl final : public Evaluator {
 public:
  EvaluatorImpl(EvaluatorOptions options, Listener listener)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        env_(Env::Real()) {}

  Status Start() {
    for (const Choice& choice : options_.choices) {
      running_.push_back({&choice, nullptr, 0, 0, {}});
      LUFF_RETURN_IF_ERROR(Make(running_.back()));
    }
    if (options_.folder.empty()) return Status::Ok();
    LUFF_RETURN_IF_ERROR(env_.MakeDirectories(options_.folder));
    LUFF_ASSIGN_OR_RETURN(lock_, env_.Open(options_.folder + "/lock", Env::OpenMode::kReadWrite));
    if (!lock_->TryLock()) {
      return FailedPrecondition("another process evaluates rules here; wait for it or end it: " +
                                options_.folder);
    }
    LUFF_RETURN_IF_ERROR(LoadCheckpoint());
    return OpenFindings();
  }

  Result<std::size_t> Advance(const query::Trial& trial, std::size_t limit) override {
    std::size_t done = 0;
    if (HoldsForValues(trial)) return done;
    const std::size_t end = trial.step_count();
    // After a restart rules may be at different steps: the one furthest behind determines the first step.
    while (done < limit && position_ < end) {
      if (const Status status = trial.ReadStepRows(position_, &rows_); !status.ok()) {
        ++unreadable_;
      } else {
        const std::uint64_t missed = trial.values_missed();
        // What a trace takes is nobody's fault, and passes.
        std::erase_if(rows_.phases, [](const query::StepPhases& phases) {
          return (phases.head.flags & format::kStepTraced) != 0;
        });
        memo_.Clear();
        index_.Build(trial, rows_);
        const StepView view{trial, rows_, position_, memo_, index_};
        evidence_.OnStep(view);
        for (Running& running : running_) {
          if (running.position > position_) continue;
          Ask(running, [&](Rule& rule, Sink& sink) { rule.OnStep(view, sink); });
        }
        TakeInTold();
        if (trial.values_missed() != missed) ++unreadable_;
      }
      ++position_;
      ++done;
      for (Running& running : running_) running.position = std::max(running.position, position_);
      LUFF_RETURN_IF_ERROR(error_);
    }
    for (Running& running : running_) {
      Ask(running, [&](Rule& rule, Sink& sink) {
        if (auto* const later = dynamic_cast<EndsLater*>(&rule); later != nullptr) later->Judges(trial);
        rule.OnPause(sink);
      });
      TakeInTold();
    }
    LUFF_RETURN_IF_ERROR(error_);
    if (done > 0) LookAtCollections(trial);
    const std::int64_t now = env_.NowMonotonicNs();
    if (last_checkpoint_ns_ == 0) last_checkpoint_ns_ = now;
    if (position_ >= checkpoint_position_ + static_cast<std::size_t>(options_.checkpoint_steps) ||
        (position_ > checkpoint_position_ &&
         static_cast<double>(now - last_checkpoint_ns_) > options_.checkpoint_seconds * 1e9)) {
      (void)Checkpoint();  // if it fails, a restart begins earlier but repeats no finding
    }
    return done;
  }

  bool ReadyToFinish(const query::Trial& trial) override {
    bool ready = true;
    for (Running& running : running_) {
      auto* const later = dynamic_cast<EndsLater*>(running.rule.get());  // null as well if it was set aside
      if (later == nullptr) continue;
      Ask(running, [&](Rule&, Sink& sink) { later->Ending(trial, sink); });
      TakeInTold();
      ready = ready && (running.aside || !later->pending());
    }
    return ready;
  }

  Status Finish(const query::Trial& trial) override {
    LookAtCollections(trial);
    for (Running& running : running_) Ask(running, [&](Rule& rule, Sink& sink) { rule.OnEnd(trial, sink); });
    TakeInTold();
    LUFF_RETURN_IF_ERROR(error_);
    // Findings that are open at the end are written once more, with their last step.
    for (Finding& finding : findings_) {
      if (!finding.healed && finding.last_step > written_last_[finding.id])
        LUFF_RETURN_IF_ERROR(Write(finding, "update"));
    }
    (void)Checkpoint();
    return Status::Ok();
  }

  Status Checkpoint() override {
    last_checkpoint_ns_ = env_.NowMonotonicNs();
    checkpoint_position_ = position_;
    if (options_.folder.empty()) return Status::Ok();
    try {
      Json json;
      json["version"] = kCheckpointVersion;
      json["findings_bytes"] = findings_bytes_;
      json["evidence"] = evidence_.bits();
      Json rules = Json::array();
      for (Running& running : running_) {
        std::string state;
        Ask(running, [&](Rule& rule, Sink&) { state = rule.SaveState(); });
        const RuleCoverage covered = CoverageOf(running);
        rules.push_back({{"rule", running.choice->spec->name},
                         {"version", running.choice->spec->version},
                         {"parameters", running.choice->parameters},
                         {"position", running.position},
                         {"suppressed", running.suppressed},
                         {"notes", NotesAsJson(running)},
                         {"aside", running.aside},
                         {"unjudged", covered.aside},
                         {"lacks", covered.lacks},
                         {"state", std::move(state)}});
      }
      json["rules"] = std::move(rules);
      Json findings = Json::array();
      for (const Finding& finding : findings_) {
        findings.push_back({{"finding", ToJson(finding, "state")},
                            {"written_last", written_last_[finding.id]},
                            {"next_update", next_update_[finding.id]}});
      }
      json["findings"] = std::move(findings);
      return WriteWholeFile(env_, CheckpointPath(), JsonText(json));
    } catch (const std::exception& error) {
      return Internal(fmt::format("a checkpoint of rules cannot be written as JSON: {}", error.what()));
    }
  }

  [[nodiscard]] const std::vector<Finding>& findings() const noexcept override { return findings_; }
  [[nodiscard]] std::size_t steps_done() const noexcept override { return position_; }
  [[nodiscard]] std::size_t unreadable_steps() const noexcept override { return unreadable_; }
  [[nodiscard]] std::size_t behind() const override {
    std::size_t most = 0;
    for (const Running& running : running_) {
      if (!running.aside) most = std::max(most, running.rule->behind());
    }
    return most;
  }
  [[nodiscard]] std::vector<RuleNote> notes() const override {
    std::vector<RuleNote> all;
    for (const Running& running : running_) all.insert(all.end(), running.notes.begin(), running.notes.end());
    return all;
  }
  [[nodiscard]] std::vector<RuleCoverage> coverage() const override {
    std::vector<RuleCoverage> all;
    for (const Running& running : running_) all.push_back(CoverageOf(running));
    return all;
  }
  [[nodiscard]] std::size_t suppressed_findings() const noexcept override {
    std::size_t all = 0;
    for (const Running& running : running_) all += running.suppressed;
    return all;
  }

 private:
  struct Running {
    const Choice* choice;
    std::unique_ptr<Rule> rule;
    std::size_t position;  // complete steps this rule has seen
    std::size_t suppressed = 0;
    std::vector<RuleNote> notes;
    bool aside = false;  // it threw: it is not called again, and `rule` is null
  };

  /// A report of a rule at one step: a finding, or (healed) the end of one.
  struct Told {
    Running* by;
    Finding finding;
    bool healed;
  };

  class SinkOf final : public Sink {
   public:
    SinkOf(EvaluatorImpl* owner, Running* by) : owner_(owner), told_(&owner->told_), by_(by) {}
    void Report(Finding finding) override {
      finding.rule = by_->choice->spec->name;
      told_->push_back({by_, std::move(finding), false});
    }
    void Heal(const std::string& cause, const std::string& tensor, std::int64_t step) override {
      Finding finding;
      finding.rule = by_->choice->spec->name;
      finding.cause = cause;
      finding.tensor = tensor;
      finding.last_step = step;
      told_->push_back({by_, std::move(finding), true});
    }

    void Note(const std::string& text, bool failed) override { owner_->OnNote(by_, text, failed); }

   private:
    EvaluatorImpl* owner_;
    std::vector<Told>* told_;
    Running* by_;
  };

  void LookAtCollections(const query::Trial& trial) {
    std::string document = trial.Document("collections");
    if (document == collections_) return;
    collections_ = std::move(document);
    recorded_.ReadUntrusted(collections_);
  }

  /// True while the values of steps are on their way (a run in a bucket), for at most kHoldForValuesNs: rules
  /// that read values would judge without them.
  bool HoldsForValues(const query::Trial& trial) {
    if (!trial.awaits_values()) {
      held_since_ns_ = 0;
      return false;
    }
    const std::int64_t now = env_.NowMonotonicNs();
    if (held_since_ns_ == 0) held_since_ns_ = now;
    return now - held_since_ns_ < kHoldForValuesNs;
  }

  /// Calls a rule. If it throws, it may be in any state: it is set aside, and the others continue.
  template <typename Call>
  void Ask(Running& running, const Call& call) {
    if (running.aside) return;
    SinkOf sink(this, &running);
    try {
      call(*running.rule, sink);
    } catch (const std::exception& error) {
      SetAside(running, error.what());
    } catch (...) {
      SetAside(running, "an exception that is no std::exception");
    }
  }

  void SetAside(Running& running, std::string_view why) {
    running.aside = true;
    running.rule.reset();
    OnNote(&running,
           fmt::format("it is set aside: it failed at step {} of the run: {}", position_,
                       why.substr(0, kMaxReason)),
           true);
  }

  /// Makes the rule; sets it aside if that throws.
  Status Make(Running& running) {
    try {
      LUFF_ASSIGN_OR_RETURN(running.rule, running.choice->spec->make(running.choice->parameters));
    } catch (const std::exception& error) {
      SetAside(running, error.what());
    }
    return Status::Ok();
  }

  /// Processes the reports of one step, those closest to the cause first.
  void TakeInTold() {
    std::stable_sort(told_.begin(), told_.end(), [](const Told& a, const Told& b) {
      return TierOf(a.finding.rule) < TierOf(b.finding.rule);
    });
    for (Told& told : told_) {
      if (told.healed) {
        OnHeal(told.finding);
      } else {
        OnReport(*told.by, std::move(told.finding));
      }
    }
    told_.clear();
  }

  [[nodiscard]] std::string CheckpointPath() const { return options_.folder + "/checkpoint.json"; }
  [[nodiscard]] std::string FindingsPath() const { return options_.folder + "/findings.jsonl"; }

  Finding* OpenFinding(const Finding& like) {
    for (auto it = findings_.rbegin(); it != findings_.rend(); ++it) {
      if (!it->healed && it->rule == like.rule && it->cause == like.cause && it->tensor == like.tensor)
        return &*it;
    }
    return nullptr;
  }

  void OnReport(Running& by, Finding finding) {
    if (finding.other_tensors.size() > kMaxOtherTensors) {
      finding.other_count += finding.other_tensors.size() - kMaxOtherTensors;
      finding.other_tensors.resize(kMaxOtherTensors);
    }
    if (Finding* open = OpenFinding(finding)) {
      const bool worse = finding.severity > open->severity ||
                         (finding.severity == open->severity && DetailOf(finding) > DetailOf(*open));
      open->last_step = std::max(open->last_step, finding.last_step);
      if (worse) {
        finding.id = open->id;
        finding.leader = open->leader;
        finding.step = open->step;
        finding.global_step = open->global_step;
        finding.update = open->update;
        finding.since_step = open->since_step;
        finding.last_step = open->last_step;
        *open = std::move(finding);
      }
      // Written again when it became worse, or when it has lasted twice as long as when it was written last
      // (and at least 100 steps more).
      if (worse || open->last_step >= next_update_[open->id]) {
        next_update_[open->id] =
            open->last_step + std::max<std::int64_t>(100, open->last_step - open->since_step);
        Remember(Write(*open, "update"));
      }
      return;
    }
    std::size_t of_rule = 0;
    for (const Finding& known : findings_) of_rule += known.rule == finding.rule ? 1 : 0;
    if (of_rule >= options_.max_findings_per_rule) {
      ++by.suppressed;
      return;
    }
    finding.id = FindingId(finding.rule, finding.cause, finding.tensor, finding.step);
    next_update_[finding.id] =
        finding.last_step + std::max<std::int64_t>(100, finding.last_step - finding.since_step);
    finding.leader = LeaderOf(finding, findings_);
    findings_.push_back(std::move(finding));
    Remember(Write(findings_.back(), "new"));
    if (findings_.back().leader.empty()) Lead(findings_.size() - 1);
  }

  /// Makes a new finding the leader of earlier findings that follow from it.
  void Lead(std::size_t place) {
    const Finding leader = findings_[place];
    for (std::size_t i = 0; i < place; ++i) {
      if (!TakesOver(leader, findings_[i])) continue;
      for (Finding& follower : findings_) {
        if (follower.leader != findings_[i].id) continue;
        follower.leader = leader.id;
        Remember(Write(follower, "update"));
      }
      findings_[i].leader = leader.id;
      Remember(Write(findings_[i], "update"));
    }
  }

  void OnHeal(const Finding& like) {
    Finding* open = OpenFinding(like);
    if (open == nullptr) return;
    open->healed = true;
    open->last_step = std::max(open->last_step, like.last_step);
    const std::string id = open->id;
    Remember(Write(*open, "healed"));
    Release(id);
  }

  /// Lets findings that outlast their leader stand on their own, or follow from another one.
  void Release(const std::string& healed) {
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < findings_.size(); ++i) {
      if (findings_[i].leader == healed && !findings_[i].healed) left.push_back(i);
    }
    std::stable_sort(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
      return TierOf(findings_[a].rule) < TierOf(findings_[b].rule);
    });
    for (const std::size_t i : left) {
      findings_[i].leader = LeaderOf(findings_[i], findings_);
      Remember(Write(findings_[i], "update"));
    }
  }

  void OnNote(Running* by, const std::string& text, bool failed) {
    std::vector<RuleNote>& notes = by->notes;
    const bool known =
        std::any_of(notes.begin(), notes.end(), [&](const RuleNote& note) { return note.text == text; });
    if (known || (notes.size() >= kMaxNotes && !by->aside)) return;
    notes.push_back({by->choice->spec->name, text, failed});
    if (options_.on_note) options_.on_note(notes.back());
  }

  [[nodiscard]] RuleCoverage CoverageOf(const Running& running) const {
    RuleCoverage covered{running.choice->spec->name, running.aside, evidence_.LackOf(*running.choice), {}};
    if (running.aside) return covered;
    if (const auto* own = dynamic_cast<const Abstains*>(running.rule.get()); own != nullptr) {
      const Abstains::Abstention abstained = own->Abstained();
      covered.aside = abstained.failed;
      covered.lacks = abstained.lacks;
    }
    // Own rules say themselves what they lack.
    if (!covered.lacks.empty() && running.choice->spec->source.empty() &&
        !recorded_.Holds(running.choice->spec->needs(running.choice->parameters)))
      covered.lacks = kNotRecorded;
    return covered;
  }

  static Json NotesAsJson(const Running& running) {
    Json notes = Json::array();
    for (const RuleNote& note : running.notes)
      notes.push_back({{"text", note.text}, {"failed", note.failed}});
    return notes;
  }

  void Remember(Status status) {
    if (error_.ok()) error_ = std::move(status);
  }

  Status Write(const Finding& finding, std::string_view event) {
    written_last_[finding.id] = finding.last_step;
    const std::string line = ToJson(finding, std::string(event)) + "\n";
    if (const auto it = replayed_.find(line); it != replayed_.end()) {
      replayed_.erase(it);
      return Status::Ok();
    }
    if (findings_file_) {
      const auto* data = reinterpret_cast<const std::byte*>(line.data());
      LUFF_RETURN_IF_ERROR(findings_file_->WriteAt({data, line.size()}, findings_bytes_));
      findings_bytes_ += line.size();
    }
    if (listener_) listener_(finding, std::string(event));
    return Status::Ok();
  }

  // Reports the notes of a rule that was set aside again: this may be the rule worker of another supervisor,
  // which has not seen them.
  void LoadPosition(const Json& saved, Running* running) {
    running->position = saved.at("position").get<std::size_t>();
    running->suppressed = saved.at("suppressed").get<std::size_t>();
    for (const Json& note : saved.value("notes", Json::array())) {
      if (running->notes.size() > kMaxNotes) break;
      running->notes.push_back(
          {running->choice->spec->name, note.at("text").get<std::string>(), note.at("failed").get<bool>()});
      if (running->aside && running->notes.back().failed && options_.on_note)
        options_.on_note(running->notes.back());
    }
  }

  // A checkpoint that does not fit is not an error: the rules begin at the first step and repeat no line.
  Status LoadCheckpoint() {
    Result<std::string> text = ReadWholeFile(env_, CheckpointPath(), kMaxCheckpointBytes);
    if (!text.ok() || !CheckStateUntrusted(*text).ok()) return Status::Ok();
    try {
      const Json json = ParseJson(text.value());
      if (json.at("version").get<int>() != kCheckpointVersion) return Status::Ok();
      std::set<std::string> loaded;
      for (const Json& saved : json.at("rules")) {
        for (Running& running : running_) {
          const RuleSpec& spec = *running.choice->spec;
          if (saved.at("rule").get<std::string>() != spec.name) continue;
          if (saved.at("version").get<int>() != spec.version ||
              saved.at("parameters").get<Parameters>() != running.choice->parameters) {
            continue;
          }
          if (saved.value("aside", false)) {
            running.aside = true;
            running.rule.reset();
            LoadPosition(saved, &running);
            loaded.insert(spec.name);
            continue;
          }
          if (running.aside) continue;  // making it failed
          const auto state = saved.at("state").get<std::string>();
          if (!running.rule->LoadState(state).ok()) {
            LUFF_ASSIGN_OR_RETURN(running.rule, spec.make(running.choice->parameters));
            continue;
          }
          LoadPosition(saved, &running);
          loaded.insert(spec.name);
        }
      }
      for (const Json& saved : json.at("findings")) {
        auto parsed = ParseFindingUntrusted(saved.at("finding").get<std::string>());
        if (!parsed.ok() || !loaded.contains(parsed.value().first.rule)) continue;
        Finding finding = std::move(parsed).value().first;
        written_last_[finding.id] = saved.at("written_last").get<std::int64_t>();
        next_update_[finding.id] = saved.at("next_update").get<std::int64_t>();
        findings_.push_back(std::move(finding));
      }
      checkpoint_findings_bytes_ = json.at("findings_bytes").get<std::uint64_t>();
      evidence_.Add(json.value("evidence", std::uint64_t{0}));
      whole_checkpoint_ = loaded.size() == running_.size();
    } catch (const std::exception&) {
      for (Running& running : running_) {
        running = {running.choice, nullptr, 0, 0, {}};
        LUFF_RETURN_IF_ERROR(Make(running));
      }
      findings_.clear();
      whole_checkpoint_ = false;
    }
    // Rules that were set aside do not hold back the others.
    std::optional<std::size_t> least;
    for (const Running& running : running_) {
      if (!running.aside) least = std::min(least.value_or(running.position), running.position);
    }
    position_ = least.value_or(running_.empty() ? 0 : running_.front().position);
    checkpoint_position_ = position_;
    return Status::Ok();
  }

  // Cuts off a torn last line. Remembers the lines after the checkpoint, because rules will report them
  // again.
  Status OpenFindings() {
    LUFF_ASSIGN_OR_RETURN(findings_file_, env_.Open(FindingsPath(), Env::OpenMode::kReadWrite));
    LUFF_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env_, FindingsPath(), kMaxFindingsBytes));
    const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
    if (whole != text.size()) LUFF_RETURN_IF_ERROR(findings_file_->Truncate(whole));
    findings_bytes_ = whole;
    std::size_t from = whole_checkpoint_ ? std::min<std::size_t>(checkpoint_findings_bytes_, whole) : 0;
    while (from < whole) {
      const std::size_t end = text.find('\n', from) + 1;
      replayed_.insert(text.substr(from, end - from));
      from = end;
    }
    return Status::Ok();
  }

  const EvaluatorOptions options_;
  const Listener listener_;
  Env& env_;
  std::vector<Running> running_;
  std::vector<Told> told_;  // at the current step
  std::vector<Finding> findings_;
  std::map<std::string, std::int64_t> written_last_, next_update_;  // by id
  std::multiset<std::string> replayed_;
  query::Trial::StepRows rows_;
  StepMemo memo_;
  StepIndex index_;
  Recorded recorded_;
  std::string collections_;  // the document that it has read
  Evidence evidence_;
  std::size_t position_ = 0, checkpoint_position_ = 0, unreadable_ = 0;
  std::int64_t held_since_ns_ = 0;  // monotonic; 0: not held
  std::int64_t last_checkpoint_ns_ = 0;
  std::unique_ptr<File> lock_, findings_file_;
  std::uint64_t findings_bytes_ = 0, checkpoint_findings_bytes_ = 0;
  bool whole_checkpoint_ = false;
  Status error_;
};

}  // namespace

Result<std::unique_ptr<Evaluator>> Evaluator::Open(const EvaluatorOptions& options, Listener listener) {
  auto evaluator = std::make_unique<EvaluatorImpl>(options, std::move(listener));
  LUFF_RETURN_IF_ERROR(evaluator->Start());
  return std::unique_ptr<Evaluator>(std::move(evaluator));
}

}  // namespace luff::rules
