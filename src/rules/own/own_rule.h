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

/// How the process of a rule is started, and what it may use.
struct OwnRuleOptions {
  std::string rule;               // as its child knows it: "/path/file.py:MyRule"
  std::string name;               // "MyRule"
  std::vector<std::string> argv;  // of the child
  std::vector<std::pair<std::string, std::string>> environment;
  Parameters parameters;  // for its constructor
  double step_s = 10;     // for one step; longer: it hangs, and is killed
  double start_s = 60;    // from start to ready
  std::uint64_t memory_bytes = 2ULL << 30;
  bool show_output = false;
};

/// A rule that lives in a process of its own (docs/spec/rule-child.md). It is told of steps without waiting
/// for it, so that no rule waits for another; what it found is handed over between steps, always of whole
/// steps and in their order. When its process dies it is started again from its last checkpoint, and what it
/// had said already is not said twice; after three deaths it is set aside.
[[nodiscard]] std::unique_ptr<Rule> MakeOwnRule(OwnRuleOptions options);

/// Asks the child what the rule is. The answer is the JSON object of its line "description".
/// Errors: kInvalidArgument with what the child says; kDeadlineExceeded.
[[nodiscard]] Result<std::string> DescribeOwnRule(const OwnRuleOptions& options);

inline constexpr int kOwnRuleDeaths = 3;

}  // namespace luff::rules
