#pragma once
#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cli/heir.h"
#include "cli/live_outputs.h"
#include "cli/machine_sampler.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/rule_worker.h"
#include "cli/run_place.h"
#include "cli/supervise.h"
#include "cli/verdict.h"
#include "luff/actions/runner.h"
#include "luff/base/process.h"
#include "luff/query/trial.h"

/// One training of a job, as the supervisor watches it: its run, rules, findings, actions and outputs.
namespace luff::cli {

/// What the trainings of a job have in common.
class Job {
 public:
  virtual ~Job() = default;
  /// Monotonic time. Stands still while the job is stopped (Ctrl-Z).
  [[nodiscard]] virtual std::int64_t Now() noexcept = 0;
  /// Prints lines, each with its line break. `SayAsItIs`: for text that is already escaped.
  virtual void Say(const std::string& text) = 0;
  virtual void SayAsItIs(const std::string& text) = 0;
  /// Sends a signal to all processes of the job; if it has several trainings, only to these and those below
  /// them.
  /// Returns false if none of them can be reached from here.
  virtual bool Signal(int number, const std::vector<pid_t>& of_training) = 0;
};

inline constexpr std::int64_t kNsPerMs = 1'000'000;

/// How long something may do nothing at the end of a job before it is left or killed.
[[nodiscard]] std::int64_t FinishIdleNs();

/// Never waits: the supervisor calls it in turns. After the training has ended it goes on until the rules
/// have judged the rest, deliveries have arrived and outputs are written. **Thread-compatible.**
class Watch {
 public:
  /// `options`: the job's, with the run, outputs and lock of this training.
  Watch(Job& job, SuperviseOptions options);

  /// Starts rule worker and outputs. Resumed runs: findings of an earlier part are not reported again.
  void Start();
  /// Reads findings and lets actions act. `job_lives`: new actions may begin.
  void Look(bool job_lives);
  void AddTo(std::vector<pollfd>* fds);
  void Hear() { rules_.Hear(job_.Now()); }
  [[nodiscard]] bool Owns(pid_t pid) const noexcept;
  /// Takes the end of a child that it owns.
  void ChildEnded(pid_t pid, const ExitState& state);

  /// Steps of recording workers so far; -1 if none records.
  [[nodiscard]] std::int64_t StepsOfTheLiving();
  /// True if all processes that recorded have completed the training or were stopped. Those that failed may
  /// be started again by their launcher, which gets a minute for it.
  [[nodiscard]] bool TrainingEnded();
  /// The training has ended: no action begins any more.
  void End();
  /// Goes on with what is left to do after `End`. `interrupted`: within bounds no more. `job_lives`:
  /// deliveries have the time that they always have. True when all is done.
  /// `exit`: how the command ended; nullopt if it has started several trainings, whose workers say how each
  /// of them ended. An upload has the outcome before it ends.
  [[nodiscard]] bool Finish(bool interrupted, bool job_lives, const std::optional<ExitState>& exit);
  /// Writes the outcome into the run, unless that is done, and prints the verdict.
  [[nodiscard]] Verdict Conclude(const std::optional<ExitState>& exit);

  [[nodiscard]] bool ended() const noexcept { return phase_ != Phase::kWatching; }
  [[nodiscard]] bool busy() const noexcept { return runner_.coordinator().busy(); }
  [[nodiscard]] bool stopping() const noexcept { return runner_.coordinator().stopping(); }
  [[nodiscard]] std::int64_t train_step() const noexcept { return rules_.train_step(); }
  /// For the status line of a terminal. Without rules it is read here, otherwise by their process.
  [[nodiscard]] const Progress& progress();
  [[nodiscard]] bool has_rules() const noexcept { return !options_.choices.empty(); }
  [[nodiscard]] std::size_t findings() const noexcept { return findings_.size(); }
  [[nodiscard]] const std::string& run() const noexcept { return options_.run; }

 private:
  enum class Phase : std::uint8_t { kWatching, kJudging, kDelivering, kWriting, kDone };
  /// Writes the tags of the command line as soon as there is a run to write them into.
  void Tag();
  void TakeEarlierFindings();
  /// Keeps the newest form of a finding. Returns whether it is new to us.
  bool Keep(const rules::Finding& finding);
  void ReadFindings();
  void OnFinding(const std::string& line, std::vector<FindingEvent>* events);
  void AppendFinding(const std::string& line);
  bool RefreshTrial();
  void Act();
  void Enter(Phase phase);
  bool Delivered(bool interrupted);
  bool Written(bool interrupted);
  /// What is known of the end, now.
  [[nodiscard]] Ending EndingOf(const std::optional<ExitState>& exit);

  Job& job_;
  SuperviseOptions options_;
  const std::string findings_path_;
  std::optional<RunPlace> place_;  // until the verdict
  std::optional<HowEnded> recorded_;
  std::shared_ptr<actions::HostLog> hosts_;  // the other hosts of the job; null if it has none
  actions::Runner runner_;
  LiveOutputs outputs_;
  std::optional<Heir> heir_;  // of a job with other hosts
  MachineSampler sampler_;
  bool rules_told_ = false;  // that the training has ended
  RuleWorker rules_;
  Teller teller_;
  Phase phase_ = Phase::kWatching;
  std::int64_t entered_ns_ = 0, news_ns_ = 0, outputs_cpu_ns_ = -1;  // of the phase
  std::int64_t looked_ns_ = 0, dead_since_ns_ = -1;
  bool said_ = false, cancelled_ = false, signalled_ = false, findings_file_failed_ = false;
  std::uint64_t findings_read_ = 0;
  std::map<std::string, rules::Severity> before_;  // by id: findings of an earlier part of a resumed run
  std::vector<rules::Finding> findings_;           // of all parts, in their newest form
  std::unordered_map<std::string, std::size_t> finding_at_;  // by id: place in findings_
  std::unique_ptr<query::Trial> trial_;
  ProgressReader progress_;
};

}  // namespace luff::cli
