#pragma once
#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/progress.h"
#include "luff/base/process.h"
#include "luff/rules/choice.h"
#include "luff/rules/coverage.h"

/// The process that judges a run while it is recorded (`luff _evaluate`), as the supervisor sees it.
namespace luff::cli {

/// The name of the folder in `rules/` that it writes into.
inline constexpr const char* kEvaluator = "luff";

/// Never waits. A worker that dies is started again, up to three times. **Thread-compatible.**
class RuleWorker {
 public:
  using Say = std::function<void(const std::string&)>;
  /// `say`: prints lines, each with its line break.
  RuleWorker(std::string run, Say say) : run_(std::move(run)), say_(std::move(say)) {}
  ~RuleWorker();
  RuleWorker(const RuleWorker&) = delete;
  RuleWorker& operator=(const RuleWorker&) = delete;

  /// Does nothing without rules.
  void Start(const std::vector<rules::Choice>& choices, rules::ParameterSet set);
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool living() const noexcept { return pid_ > 0; }
  void AddTo(std::vector<pollfd>* fds) const { fds->push_back({out_, POLLIN, 0}); }  // poll ignores -1
  /// Takes what it has said since.
  void Hear(std::int64_t now_ns);
  /// Call when waitpid reports its end.
  void Ended(const ExitState& state, std::int64_t now_ns);
  /// Nothing more is recorded: it judges the rest and ends.
  void Finish(std::int64_t now_ns);
  /// Kills one that has been told to finish and was not heard of for `idle_ns`.
  void KillIfIdle(std::int64_t now_ns, std::int64_t idle_ns);

  /// The newest TRAIN step it has seen; -1 if none.
  [[nodiscard]] std::int64_t train_step() const noexcept { return train_step_; }
  /// The same and more, for the status line; empty off terminals.
  [[nodiscard]] const Progress& progress() const noexcept { return progress_; }
  [[nodiscard]] const rules::CoverageSummary& coverage() const noexcept { return coverage_; }
  /// Rules that did not judge the whole run.
  [[nodiscard]] const std::set<std::string>& failed_rules() const noexcept { return failed_rules_; }
  /// True if the rules did not see the whole run.
  [[nodiscard]] bool failed() const noexcept { return failed_; }

 private:
  void StartAgain();
  void CannotStart(std::string_view why);
  void HearNote(const std::string& text);
  void TellFinish() const;

  const std::string run_;
  const Say say_;
  std::vector<std::string> command_;
  int in_ = -1, out_ = -1;
  pid_t pid_ = -1;
  int starts_ = 0;
  bool finishing_ = false, done_ = false, failed_ = false;
  std::string heard_;
  std::int64_t heard_ns_ = 0, train_step_ = -1;
  std::set<std::string> failed_rules_, notes_;
  Progress progress_;
  rules::CoverageSummary coverage_;
};

}  // namespace luff::cli
