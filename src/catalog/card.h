#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "luff/base/result.h"
#include "luff/query/trial.h"

/// What is worth knowing of a run at a glance (docs/spec/catalog.md). Made from the run alone.
namespace luff::catalog {

/// A parameter: what a word of the command line, or a setting of an optimizer, stands for.
using Parameter = std::variant<bool, double, std::string>;

/// A recorded scalar or loss over the run. In TRAIN one value a step; in EVAL the mean of each evaluation,
/// that is, of the EVAL steps between two updates.
struct Scalar {
  std::string name;
  bool eval = false;
  std::uint64_t count = 0;  // of values, or of evaluations
  double first = 0, last = 0, min = 0, max = 0;
  std::int64_t last_step = 0, min_step = 0, max_step = 0;  // mode steps; of an evaluation its last one
};

/// The EVAL steps between two updates: the mean of a scalar over them, at the last one.
struct Evaluation {
  query::ScalarAt mean;
  std::int64_t first_step = 0;  // mode step
  std::size_t steps = 0;        // that hold the scalar
};
[[nodiscard]] std::vector<Evaluation> EvaluationsOf(const std::vector<query::ScalarAt>& values);
/// Only the means.
[[nodiscard]] std::vector<query::ScalarAt> MeansOfEvaluations(const std::vector<query::ScalarAt>& values);

/// The finding that a verdict shows: the one that stopped the job; of a job that was not stopped, of those
/// that stand and lead, the gravest, then the earliest.
struct Headline {
  std::string rule, severity, tensor, mode, what;
  std::int64_t since_step = 0;
};

struct Card {
  std::string run;   // absolute path
  std::string name;  // last part of the path
  std::string run_id, host, framework;
  std::vector<std::string> command;
  std::map<std::string, std::string> versions;  // of the framework and its like
  std::map<std::string, Parameter> parameters;  // at most kMaxParameters
  std::string sweep, trial;                     // what `luff.trial_run` calls them, or ""
  std::vector<std::string> tags;                // sorted
  std::string title, note;                      // what people call it and say of it, or ""
  std::string outcome, why;                     // of the job: running, completed, stopped, failed
  std::string verdict;                          // one of VerdictWords()
  std::int64_t begun_unix_ns = 0;
  double took_s = 0;                           // to the last step
  std::map<std::string, std::uint64_t> steps;  // by mode
  std::uint64_t workers = 0;
  std::uint64_t findings = 0;      // that stand and lead
  std::vector<std::string> rules;  // of these, sorted, each once
  Headline headline;               // rule is "" if there is none
  std::string loss, eval_loss;     // names of the main ones in TRAIN and EVAL; "" if none
  std::vector<Scalar> scalars;     // losses first; at most kMaxScalars
  std::vector<double>
      course;  // of `loss`, or else of `eval_loss`: means of kCoursePoints equal stretches; NaN: not finite
  std::vector<std::string> problems;  // damage
  // Of runs in a bucket only, else 0 and "".
  std::int64_t heard_unix_ns = 0;  // when the card was put, by the bucket's clock
  std::string pruned;              // what `luff prune` has removed: "payload", "all"
};

inline constexpr std::size_t kMaxParameters = 256;
inline constexpr std::size_t kMaxScalars = 128;
inline constexpr std::size_t kCoursePoints = 32;
/// Longest text of a card, in bytes; longer ones end with "...".
inline constexpr std::size_t kMaxText = 1024;

/// running, ok, findings, stopped, failed, empty, damaged.
[[nodiscard]] const std::vector<std::string>& VerdictWords();

/// Reads a run. A run that is damaged has a card that says so. Errors: kNotFound if there is none.
[[nodiscard]] Result<Card> ReadCard(const std::string& run);
/// The card of a run that is open, as far as the trial has read it.
[[nodiscard]] Card CardOf(const std::string& run, const query::Trial& trial);

/// One line of JSON.
[[nodiscard]] std::string ToJson(const Card& card);

/// A number, a truth value ("true", "True", "false", "False") or else the text itself.
[[nodiscard]] Parameter ParameterOf(const std::string& text);

/// "lr", "0.01" and the like from the words of a command: `--name value`, `--name=value`, `name=value`.
/// Leaves out the values of names that sound like secrets.
[[nodiscard]] std::map<std::string, Parameter> ParametersOf(const std::vector<std::string>& command);

/// Returns the scalar of a name and mode; nullptr if there is none.
[[nodiscard]] const Scalar* FindScalar(const Card& card, const std::string& name, bool eval);

}  // namespace luff::catalog
