#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/rule.h"

namespace luff::rules {

class OwnHost;

/// How the process of a rule is started, and its limits.
struct OwnRuleOptions {
  std::string rule;               // as the child knows it: "/path/file.py:MyRule"
  std::string name;               // "MyRule"
  std::vector<std::string> argv;  // of the child
  std::vector<std::pair<std::string, std::string>> environment;
  Parameters parameters;  // for its constructor
  double step_s = 10;     // limit for one step, after which the process is killed
  double start_s = 60;    // limit from start to ready
  std::uint64_t memory_bytes = 2ULL << 30;
  bool show_output = false;
  std::shared_ptr<OwnHost>
      host;  // the process that judges all runs; null: each rule has a process of its own
};

/// A rule that runs in its own process (docs/spec/rule-child.md). It gets steps without being waited for, so
/// that it does not delay other rules. Its findings are reported between steps, in order, and only for steps
/// that it has completed. If its process dies, it is started again from its last saved state, and nothing is
/// reported twice; after three deaths it is set aside.
[[nodiscard]] std::unique_ptr<Rule> MakeOwnRule(OwnRuleOptions options);

/// Starts a child to describe the rule. Returns the JSON object of its line "description". Errors: as
/// OwnChild::Start; kNotFound if the child knows no such rule; kInvalidArgument with the child's message;
/// kInternal for a line that breaks the protocol; kDeadlineExceeded.
[[nodiscard]] Result<std::string> DescribeOwnRule(const OwnRuleOptions& options);
/// The process that rules of these options may share, not started yet.
[[nodiscard]] std::shared_ptr<OwnHost> HostOf(const OwnRuleOptions& options);

inline constexpr int kOwnRuleDeaths = 3;

}  // namespace luff::rules
