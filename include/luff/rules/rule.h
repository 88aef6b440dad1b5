#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/query/trial.h"
#include "luff/rules/finding.h"

/// The rule interface. Adding a rule: one file src/rules/builtin/FOLDER/NAME.cc, its test, its page
/// docs/rules/NAME.md.
namespace luff::rules {

/// What a rule needs captured; `luff run` captures the union of all needs and no more.
struct Need {
  std::string collection = {};                 // name of the collection to create or extend
  std::vector<std::string> include = {};       // regexes on tensor names
  std::vector<format::Role> roles = {};        // or by role
  std::vector<std::string> module_types = {};  // and (when not empty) only of these module types: "ReLU"
  std::uint32_t forms = 0;                     // format::Form bits
  UnitAxis unit_axis = UnitAxis::kChannel;
  std::string mode = "TRAIN";  // or "EVAL", "GLOBAL"
  std::int64_t save_interval = 1;
  std::int64_t first_steps = 0;  // also every step before this one: facts of the initialisation
  // `include` is asked only for tensors of these roles; none: of all. An expression that may match what
  // modules get or give makes a hook look at each of their calls.
  std::vector<format::Role> include_roles = {};
};

enum class ParameterSet { kLuff, kOriginal };

/// One parameter: values arrive as text, as the original's do.
struct Parameter {
  std::string name;
  std::string luff_default;
  std::string original_default;
  std::string doc;  // meaning, unit, where the default comes from
};

using Parameters = std::map<std::string, std::string>;  // complete after Registry::Make

class StepIndex;  // src/rules/kit/step_index.h
class StepMemo;   // src/rules/facts/step_memo.h

/// What a rule is told of one complete step.
struct StepView {
  const query::Trial& trial;
  const query::Trial::StepRows& rows;
  std::size_t number;      // its place among the complete steps of the trial
  StepMemo& memo;          // what rules ask alike, found once
  const StepIndex& index;  // the rows by what they are
};

/// Receives findings. A finding with the same rule, cause and tensor as an open one updates it.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Report(Finding finding) = 0;  // new, or update of an open one
  virtual void Heal(const std::string& cause, const std::string& tensor, std::int64_t step) = 0;
  /// What a person should know of the rule itself, not of the run: it failed, or it lacks data. Said once.
  virtual void Note(const std::string& text, bool failed) {
    (void)text;
    (void)failed;
  }
};

/// **Thread-compatible.** One rule over one trial. Incremental: small state, told of each complete step once,
/// in order.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual void OnStep(const StepView& view, Sink& sink) = 0;
  /// The run has ended; `view` of the last step may be missing.
  virtual void OnEnd(const query::Trial& trial, Sink& sink) {
    (void)trial;
    (void)sink;
  }
  /// A rule that works elsewhere hands over what has come meanwhile. Called between steps.
  virtual void OnPause(Sink& sink) { (void)sink; }
  /// Steps that it was told of and has not judged yet.
  [[nodiscard]] virtual std::size_t behind() const { return 0; }
  /// State as JSON, and back. A checkpoint of another version or other parameters is not loaded (start from
  /// step 0).
  [[nodiscard]] virtual std::string SaveState() const = 0;
  [[nodiscard]] virtual Status LoadState(std::string_view json) = 0;
};

struct RuleSpec {
  std::string name;                  // "VanishingGradient"
  std::string source = {};           // of a rule of the user's: the text that names it; "" if it is built in
  std::vector<std::string> aliases;  // other names by which it is found, of checks that it includes
  int version = 1;                   // of state and behaviour
  std::string summary;               // one line for `luff rules`
  std::string page;                  // "docs/rules/vanishing_gradient.md"
  std::vector<Parameter> parameters;
  std::function<std::vector<Need>(const Parameters&)> needs;
  std::function<Result<std::unique_ptr<Rule>>(const Parameters&)> make;
  std::string text = {};  // of a rule of the user's: what its author says of it, several lines
};

/// All built-in rules, by name. Immutable after start.
[[nodiscard]] std::span<const RuleSpec> BuiltinRules();
/// Errors: kNotFound with the nearest names.
[[nodiscard]] Result<const RuleSpec*> FindRule(std::string_view name);
/// Fills in defaults of the set. Errors: kInvalidArgument for unknown parameters (nearest names) or values
/// that do not parse.
[[nodiscard]] Result<Parameters> CompleteParameters(const RuleSpec& rule, ParameterSet set,
                                                    const Parameters& given);

// Parsing of parameter text as the original does: "True"/"true"/"1", numbers, comma lists with blanks.
[[nodiscard]] Result<bool> ParseBool(std::string_view text);
[[nodiscard]] Result<double> ParseDouble(std::string_view text);
[[nodiscard]] Result<std::int64_t> ParseInt(std::string_view text);
[[nodiscard]] std::vector<std::string> ParseList(std::string_view text);

}  // namespace luff::rules
