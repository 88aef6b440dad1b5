#include "rules/own/own_rule.h"
#include "base/format.h"
#include "base/json.h"
#include "base/json_number.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "luff/base/env.h"
#include "rules/kit/abstains.h"
#include "rules/kit/ends_later.h"
#include "rules/kit/kept_rule.h"
#include "rules/own/own_channel.h"
#include "rules/own/own_child.h"
#include "rules/own/own_host.h"
#include "rules/own/own_lines.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr int kProtocol = 1;
constexpr std::size_t kWindow = 256;             // steps sent and not answered
constexpr std::size_t kMaxStaged = 1000;         // findings of one step
constexpr std::size_t kMaxState = 1U << 20;      // bytes of saved state
constexpr std::size_t kSaveSteps = 64;           // asks for the state after so many steps,
constexpr std::int64_t kSaveNs = 1'000'000'000;  // and not more often than this
constexpr std::int64_t kLookNs = 100'000'000;    // between looks at its memory
constexpr std::int64_t kPumpNs = 1'000'000;      // between pumps while steps come fast

OwnChild::Options ChildOptions(const OwnRuleOptions& options) {
  OwnChild::Options child;
  child.argv = options.argv;
  child.environment = options.environment;
  child.memory_bytes = options.memory_bytes;
  child.show_output = options.show_output;
  return child;
}

/// A process of its own.
class OwnProcess final : public OwnChannel {
 public:
  explicit OwnProcess(std::unique_ptr<OwnChild> child) : child_(std::move(child)) {}
  bool Send(std::string_view line) override { return child_->Send(line); }
  bool Receive(int wait_ms, std::vector<std::string>* lines) override {
    return child_->Receive(wait_ms, lines);
  }
  [[nodiscard]] End Ended() override { return {child_->Ended(), true}; }
  [[nodiscard]] std::size_t window() const noexcept override { return kWindow; }
  [[nodiscard]] bool has_limits() const noexcept override { return false; }
  [[nodiscard]] std::size_t ResidentBytes() const override { return child_->ResidentBytes(); }
  [[nodiscard]] bool broken() const noexcept override { return child_->broken(); }
  [[nodiscard]] std::string LastWords() const override { return child_->LastWords(); }
  [[nodiscard]] std::string unshielded() const override { return child_->unshielded(); }

 private:
  std::unique_ptr<OwnChild> child_;
};

Result<std::unique_ptr<OwnChannel>> OpenChannel(const OwnRuleOptions& options) {
  if (options.host != nullptr) return options.host->Join();
  LUFF_ASSIGN_OR_RETURN(auto child, OwnChild::Start(ChildOptions(options)));
  return std::unique_ptr<OwnChannel>(std::make_unique<OwnProcess>(std::move(child)));
}

class OwnRule final : public KeptRule, public Abstains, public EndsLater {
 public:
  explicit OwnRule(OwnRuleOptions options) : options_(std::move(options)), env_(Env::Real()) {}

  void OnStep(const StepView& view, Sink& sink) override {
    Judges(view.trial);
    if (ending_) {  // the job was resumed before its end was judged
      Restarted();
      ending_ = ended_ = false;
    }
    end_ = view.number + 1;
    const std::int64_t now = env_.NowMonotonicNs();
    if (now - pumped_ns_ >= kPumpNs) Pump(sink, 0);
  }

  void Judges(const query::Trial& trial) override {
    if (path_.empty()) path_ = trial.path();
  }

  void OnPause(Sink& sink) override {
    if (path_.empty() || (!child_ && behind() == 0)) return;
    // A process of many runs is not waited for: the others would wait, too.
    const bool alone = !child_ || !child_->has_limits();
    Pump(sink, alone && behind() > 0 ? 1 : 0);
  }

  [[nodiscard]] std::size_t behind() const override { return aside_ ? 0 : end_ - std::min(done_, end_); }

  [[nodiscard]] Abstention Abstained() const override {
    const bool none = delivered_ > 0 && raised_ + lacked_ >= delivered_;
    const bool failed = aside_ || (none && raised_ > 0);
    return {failed, none && !failed ? "what it reads" : ""};
  }

  void Ending(const query::Trial& trial, Sink& sink) override {
    Judges(trial);
    if (!std::exchange(ending_, true)) ended_ = false;
    if (pending()) Pump(sink, 0);
  }
  [[nodiscard]] bool pending() const override { return !aside_ && !ended_; }

  void OnEnd(const query::Trial& trial, Sink& sink) override {
    Ending(trial, sink);
    while (!aside_ && !ended_) Pump(sink, 50);
    if (aside_) return;
    child_.reset();
    if (raised_ > 1) {
      sink.Note(fmt::format("it raised at {} of {} steps; those were not judged by it", raised_, end_), true);
    }
    if (end_ > 0 && lacked_ == end_) {
      sink.Note(fmt::format("it never had what it reads: {}", last_lack_), false);
    }
  }

  void VisitFields(Fields& io) override {
    io("end", end_);
    io("delivered", delivered_);
    io("saved", saved_);
    io("state", state_);
    io("deaths", deaths_);
    bool aside = aside_ && !given_up_;  // that its process died for other runs is none of this one's
    io("aside", aside);
    if (io.loading()) aside_ = aside;
    io("raised", raised_);
    io("lacked", lacked_);
    io("last_lack", last_lack_);
    if (!io.loading()) return;
    io.Check(saved_ <= delivered_ && delivered_ <= end_ && end_ <= (std::size_t{1} << 53),
             "numbers of steps that go together");
    next_ = done_ = saved_;
    deaths_ = std::clamp(deaths_, 0, kOwnRuleDeaths);
  }

 private:
  enum class Phase { kNone, kStarting, kRunning, kEnding };

  struct Staged {
    Finding finding;
    bool heal;
  };

  // ---- the child

  void Begin(Sink& sink) {
    Result<std::unique_ptr<OwnChannel>> started = OpenChannel(options_);
    heard_ns_ = env_.NowMonotonicNs();
    if (!started.ok() && options_.host != nullptr &&
        started.status().code() == StatusCode::kFailedPrecondition) {
      aside_ = given_up_ = true;
      sink.Note(fmt::format("it is set aside until luff starts again: {}", started.status().message()), true);
      return;
    }
    if (!started.ok()) {
      deaths_ = kOwnRuleDeaths;
      Died(std::string(started.status().message()), sink);
      return;
    }
    child_ = std::move(started).value();
    if (const std::string why = child_->unshielded(); !why.empty() && deaths_ == 0) {
      sink.Note(fmt::format("the kernel does not keep it from sending signals to other processes: {}", why),
                false);
    }
    Json json;
    json["do"] = "begin";
    json["protocol"] = kProtocol;
    json["rule"] = options_.rule;
    json["run"] = path_;
    json["parameters"] = options_.parameters;
    if (!state_.empty()) json["state"] = state_;
    json["position"] = saved_;
    if (!child_->Send(JsonText(json))) {  // too much is queued for other runs: the next pump tries again
      std::vector<std::string> none;
      child_->Receive(0, &none);  // sends what is queued
      child_.reset();
      return;
    }
    next_ = done_ = saved_;
    saving_ = false;
    save_wanted_ = 0;
    staged_.clear();
    phase_ = Phase::kStarting;
  }

  void Died(const std::string& how, Sink& sink) {
    std::string words = child_ ? child_->LastWords() : "";
    child_.reset();

    staged_.clear();
    phase_ = Phase::kNone;
    next_ = done_ = saved_;
    if (!words.empty()) words = fmt::format("; its last words: {}", words);
    if (deaths_ >= kOwnRuleDeaths) {
      aside_ = true;
      sink.Note(fmt::format("it is set aside: {}{}", how, words), true);
    } else if (++deaths_ == kOwnRuleDeaths) {
      aside_ = true;
      sink.Note(fmt::format("it is set aside, its process ended {} times; the last time: {}{}", deaths_, how,
                            words),
                true);
    } else {
      sink.Note(fmt::format("its process ended ({}) and was started again{}", how, words), false);
    }
  }

  /// The process has ended while it worked for another run: this one begins again where it was saved.
  void Restarted() {
    child_.reset();
    staged_.clear();
    phase_ = Phase::kNone;
    next_ = done_ = saved_;
  }

  /// Handles what the child sent, sends it new steps, and checks that it runs within its limits.
  void Pump(Sink& sink, int wait_ms) {
    if (aside_) return;
    if (!child_) {
      if (end_ == 0 && !ending_) return;
      Begin(sink);
      if (!child_) return;
    }
    std::vector<std::string> lines;
    const bool heard = child_->Receive(wait_ms, &lines);
    const std::int64_t now = env_.NowMonotonicNs();
    pumped_ns_ = now;
    if (heard) heard_ns_ = now;
    if (!HearAll(&lines, sink)) return;
    if (child_->broken()) return Died("it sent a line that is too long", sink);
    if (const OwnChannel::End end = child_->Ended(); !end.how.empty()) {
      child_->Receive(0, &lines);  // its last lines
      if (!HearAll(&lines, sink)) return;
      if (!end.ours) return Restarted();
      return Died(fmt::format("{}{}", end.how, PlaceText()), sink);
    }
    if (child_->has_limits()) {
      if (phase_ == Phase::kRunning) Tell();
      return;
    }
    if (now - looked_ns_ > kLookNs) {
      looked_ns_ = now;
      if (options_.memory_bytes > 0 && child_->ResidentBytes() > options_.memory_bytes) {
        return Died(
            fmt::format("it used more than {} MiB of memory{}", options_.memory_bytes >> 20, PlaceText()),
            sink);
      }
    }
    if (phase_ == Phase::kRunning) Tell();
    const double limit = phase_ == Phase::kStarting ? options_.start_s : options_.step_s;
    const bool waiting = phase_ != Phase::kRunning || next_ > done_ || saving_;
    if (!waiting) heard_ns_ = now;
    if (waiting && static_cast<double>(now - heard_ns_) > limit * 1e9) {
      Died(phase_ == Phase::kStarting ? fmt::format("it did not start within {} s", limit)
                                      : fmt::format("no answer within {} s{}", limit, PlaceText()),
           sink);
    }
  }

  /// Returns false when nothing more can come: the child is dead, or has ended as asked.
  bool HearAll(std::vector<std::string>* lines, Sink& sink) {
    for (const std::string& line : *lines) {
      if (!HearUntrusted(line, sink)) {
        Died(complaint_, sink);
        return false;
      }
      if (ended_) return false;
    }
    lines->clear();
    return true;
  }

  [[nodiscard]] std::string PlaceText() const {
    if (phase_ == Phase::kEnding) return " at the end of the run";
    return next_ > done_ ? fmt::format(" at step number {}", done_) : "";
  }

  void Tell() {
    const bool idle = next_ == done_;
    while (next_ < end_ && next_ - done_ < child_->window()) {
      if (!child_->Send(fmt::format(R"({{"do":"step","number":{}}})", next_))) break;
      ++next_;
    }
    if (idle && next_ > done_) heard_ns_ = env_.NowMonotonicNs();
    if (save_wanted_ >= kSaveSteps && !saving_ && env_.NowMonotonicNs() - saved_ns_ >= kSaveNs) {
      saving_ = child_->Send(R"({"do":"save"})");
      save_wanted_ = 0;
    }
    if (ending_ && done_ == end_ && next_ == end_ && !saving_) {
      if (child_->Send(R"({"do":"end"})")) phase_ = Phase::kEnding;  // else the next pump tries again
    }
  }

  // ---- lines from the child

  /// Returns false, with the reason in complaint_, if the line breaks the protocol or the child gives up.
  bool HearUntrusted(const std::string& text, Sink& sink) {
    Result<OwnLine> parsed = ParseOwnLineUntrusted(text);
    if (!parsed.ok()) {
      complaint_ = parsed.status().message();
      return false;
    }
    OwnLine& line = parsed.value();
    complaint_ = "it sent a line that is not of the protocol";
    switch (line.say) {
      case OwnLine::Say::kReady: phase_ = Phase::kRunning; return true;
      case OwnLine::Say::kFinding:
        line.finding.id.clear();
        line.finding.leader.clear();
        if (staged_.size() < kMaxStaged) staged_.push_back({std::move(line.finding), false});
        return true;
      case OwnLine::Say::kHeal:
        if (staged_.size() < kMaxStaged) staged_.push_back({std::move(line.finding), true});
        return true;
      case OwnLine::Say::kDone:
        if (line.number != done_ || next_ <= done_) return false;
        Done(line, sink);
        return true;
      case OwnLine::Say::kState: Saved(std::move(line), sink); return true;
      case OwnLine::Say::kEnded:
        if (phase_ != Phase::kEnding) return false;
        Deliver(sink);
        ended_ = true;
        return true;
      case OwnLine::Say::kError:
        // Without `again`, the same error would come back with every start: no further attempts.
        if (!line.again) deaths_ = kOwnRuleDeaths;
        complaint_ = line.message;
        return false;
    }
    return false;
  }

  void Done(const OwnLine& line, Sink& sink) {
    const bool again = done_ < delivered_;  // it repeats a step that was delivered before it died
    ++done_;
    ++save_wanted_;
    if (again) {
      staged_.clear();
      return;
    }
    delivered_ = done_;
    if (line.raised && ++raised_ == 1) sink.Note(*line.raised, true);
    if (line.lacks) {
      ++lacked_;
      last_lack_ = *line.lacks;
    }
    Deliver(sink);
  }

  void Deliver(Sink& sink) {
    for (Staged& staged : staged_) {
      if (staged.heal) {
        sink.Heal(staged.finding.cause, staged.finding.tensor, staged.finding.last_step);
      } else {
        sink.Report(std::move(staged.finding));
      }
    }
    staged_.clear();
  }

  void Saved(OwnLine line, Sink& sink) {
    saving_ = false;
    saved_ns_ = env_.NowMonotonicNs();
    if (line.why) {
      sink.Note("it cannot be saved, a restart begins at the first step: " + *line.why, false);
      return;
    }
    if (!line.state) return;  // it has none: a restart repeats all steps
    std::string state = std::move(*line.state);
    if (state.size() > kMaxState) {
      sink.Note(fmt::format("its state has {} bytes, at most {} are saved; a restart begins at an older one",
                            state.size(), kMaxState),
                false);
      return;
    }
    state_ = std::move(state);
    saved_ = done_;
  }

  const OwnRuleOptions options_;
  Env& env_;
  std::string path_;
  std::unique_ptr<OwnChannel> child_;
  Phase phase_ = Phase::kNone;
  // Numbers of steps. Those below end_ exist, those below next_ were sent to the child, those below done_ it
  // has judged, those below delivered_ have their findings reported (unchanged when the child restarts),
  // those below saved_ are covered by state_.
  std::size_t end_ = 0, next_ = 0, done_ = 0, delivered_ = 0, saved_ = 0;
  std::string state_;
  std::vector<Staged> staged_;
  std::size_t save_wanted_ = 0, raised_ = 0, lacked_ = 0;
  int deaths_ = 0;
  bool aside_ = false, saving_ = false, ending_ = false, ended_ = false;
  bool given_up_ = false;  // aside_ because the process of all runs died too often, in this process alone
  std::int64_t heard_ns_ = 0, pumped_ns_ = 0, saved_ns_ = 0, looked_ns_ = 0;
  std::string complaint_, last_lack_;
};

}  // namespace

std::unique_ptr<Rule> MakeOwnRule(OwnRuleOptions options) {
  return std::make_unique<OwnRule>(std::move(options));
}

std::shared_ptr<OwnHost> HostOf(const OwnRuleOptions& options) {
  return std::make_shared<OwnHost>(ChildOptions(options),
                                   OwnHost::Limits{options.step_s, options.start_s, options.memory_bytes});
}

Result<std::string> DescribeOwnRule(const OwnRuleOptions& options) {
  LUFF_ASSIGN_OR_RETURN(const std::unique_ptr<OwnChild> child, OwnChild::Start(ChildOptions(options)));
  try {
    Json json;
    json["do"] = "describe";
    json["protocol"] = kProtocol;
    json["rule"] = options.rule;
    json["parameters"] = options.parameters;
    child->Send(JsonText(json));
    const std::int64_t begun = Env::Real().NowMonotonicNs();
    std::vector<std::string> lines;
    while (static_cast<double>(Env::Real().NowMonotonicNs() - begun) < options.start_s * 1e9) {
      if (lines.empty()) child->Receive(50, &lines);
      if (!lines.empty()) {
        const Json answer = ParseJson(lines.front());
        const std::string say = answer.at("say").get<std::string>();
        if (say == "description") return lines.front();
        if (say == "error") {
          const auto message = answer.at("message").get<std::string>();
          return answer.value("unknown", false) ? NotFound(message) : InvalidArgument(message);
        }
        return Internal("its process does not keep to the protocol");
      }
      const std::string end = child->Ended();
      if (end.empty()) continue;
      child->Receive(0, &lines);
      const std::string words = child->LastWords();
      if (lines.empty()) {
        return InvalidArgument(
            fmt::format("its process ended ({}){}{}", end, words.empty() ? "" : "; its last words: ", words));
      }
    }
    return DeadlineExceeded(fmt::format("it did not say what it is within {} s", options.start_s));
  } catch (const std::exception& error) {
    return InvalidArgument(std::string("its process does not keep to the protocol: ") + error.what());
  }
}

}  // namespace luff::rules
