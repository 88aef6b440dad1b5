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

/// The rule interface. To add a rule, write one file src/rules/builtin/FOLDER/NAME.cc, its test, and its page
/// docs/rules/NAME.md.
namespace luff::rules {

/// Tensors that a rule needs captured. `luff run` captures its defaults and the union of all needs.
struct Need {
  std::string collection = {};                 // name of the collection to create or extend
  std::vector<std::string> include = {};       // regexes on tensor names
  std::vector<format::Role> roles = {};        // also all tensors of these roles,
  std::vector<std::string> module_types = {};  // but only of these module types (empty: all): "ReLU"
  std::uint32_t forms = 0;                     // format::Form bits
  UnitAxis unit_axis = UnitAxis::kChannel;
  std::string mode = "TRAIN";  // or "EVAL", "GLOBAL"
  std::int64_t save_interval = 1;
  std::int64_t first_steps = 0;  // also every step before this one, to see the initialisation
  // `include` is matched only against tensors of these roles; empty: all roles. An expression that may match
  // inputs or outputs of modules makes the hook inspect every module call.
  std::vector<format::Role> include_roles = {};
};

enum class ParameterSet { kLuff, kOriginal };

/// One parameter. Values arrive as text, as in the original.
struct Parameter {
  std::string name;
  std::string luff_default;
  std::string original_default;
  std::string doc;  // meaning, unit, where the default comes from
};

using Parameters = std::map<std::string, std::string>;  // complete after CompleteParameters

class StepIndex;  // src/rules/kit/step_index.h
class StepMemo;   // src/rules/facts/step_memo.h

/// One complete step, as rules see it.
struct StepView {
  const query::Trial& trial;
  const query::Trial::StepRows& rows;
  std::size_t number;      // index among the complete steps of the trial
  StepMemo& memo;          // results that several rules need, computed once
  const StepIndex& index;  // the rows by role, form and kind
};

/// Receives findings. A finding with the same rule, cause and tensor as an open one updates it.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Report(Finding finding) = 0;  // new, or update of an open one
  virtual void Heal(const std::string& cause, const std::string& tensor, std::int64_t step) = 0;
  /// Reports something about the rule itself rather than the run: it failed, or it lacks data. A text that
  /// was reported before is dropped.
  virtual void Note(const std::string& text, bool failed) {
    (void)text;
    (void)failed;
  }
};

/// **Thread-compatible.** One rule over one trial. It works incrementally: it receives each complete step
/// once, in order, and keeps a small state.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual void OnStep(const StepView& view, Sink& sink) = 0;
  /// Called once, after the last step of the run.
  virtual void OnEnd(const query::Trial& trial, Sink& sink) {
    (void)trial;
    (void)sink;
  }
  /// Called between steps: a rule that runs in another process reports what has arrived from it.
  virtual void OnPause(Sink& sink) { (void)sink; }
  /// Steps that it received and has not judged yet.
  [[nodiscard]] virtual std::size_t behind() const { return 0; }
  /// The state as JSON. It is loaded only into a rule of the same version and parameters; otherwise the rule
  /// starts at step 0.
  [[nodiscard]] virtual std::string SaveState() const = 0;
  [[nodiscard]] virtual Status LoadState(std::string_view json) = 0;
};

struct RuleSpec {
  std::string name;                  // "VanishingGradient"
  std::string source = {};           // user's own rule: the text that selects it; "" if built in
  std::vector<std::string> aliases;  // other names that select it: checks that it includes
  int version = 1;                   // of state and behaviour
  std::string summary;               // one line for `luff rules`
  std::string page;                  // "docs/rules/vanishing_gradient.md"
  std::vector<Parameter> parameters;
  std::function<std::vector<Need>(const Parameters&)> needs;
  std::function<Result<std::unique_ptr<Rule>>(const Parameters&)> make;
  std::string text = {};  // user's own rule: its author's description, several lines
};

/// All built-in rules, sorted by name. Immutable.
[[nodiscard]] std::span<const RuleSpec> BuiltinRules();
/// Finds a built-in rule by its name or an alias. Errors: kNotFound with the nearest names.
[[nodiscard]] Result<const RuleSpec*> FindRule(std::string_view name);
/// Returns `given` with the defaults of the set added. Errors: kInvalidArgument for unknown parameters
/// (nearest names) or values that do not parse.
[[nodiscard]] Result<Parameters> CompleteParameters(const RuleSpec& rule, ParameterSet set,
                                                    const Parameters& given);

// Parse parameter text as the original does: "True"/"true"/"1", numbers, and lists separated by ',' (or ';')
// with blanks.
[[nodiscard]] Result<bool> ParseBool(std::string_view text);
[[nodiscard]] Result<double> ParseDouble(std::string_view text);
[[nodiscard]] Result<std::int64_t> ParseInt(std::string_view text);
[[nodiscard]] std::vector<std::string> ParseList(std::string_view text);

}  // namespace luff::rules
