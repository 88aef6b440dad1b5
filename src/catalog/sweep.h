#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "catalog/catalog.h"
#include "catalog/same_numbers.h"
#include "catalog/separation.h"

/// A whole sweep: which trials were bad, why, what they share, and what stopping them saved.
namespace luff::catalog {

inline constexpr std::size_t kMaxTrials = 10'000;
inline constexpr std::uint64_t kSweepBudget = 40'000'000;  // rows of all trials together
inline constexpr std::size_t kFewestSame = 3;              // TRAIN steps of "the same numbers"

/// A trial of a sweep.
struct SweepTrial {
  std::string run, name;  // path; name of the trial, or of the run if it has none
  std::string outcome, verdict, why;
  std::string rule, cause, severity, mode, tensor, what;  // of the finding that leads; "" if there is none
  std::int64_t since_step = 0;
  std::vector<std::pair<std::string, std::string>> findings;  // rule and cause, of all that stand and lead
  /// A finding stopped it, a finding of severity stop stands, or the job failed.
  bool bad = false;
  bool ended = false;    // it is judged: it has ended, and recorded steps
  bool stopped = false;  // by a finding, not by a person
  bool resumed = false;  // a finding stopped an earlier part; it completed without findings: a wrong stop
  std::uint64_t steps = 0, workers = 1;
  double took_s = 0;                      // from its begin to its last step
  std::optional<double> loss, best_loss;  // of the main loss in TRAIN: the last and the least
  std::map<std::string, Parameter> parameters;
};

/// What is known of the hours that stops saved. An estimate: a trial that was stopped would have taken as
/// long as the middle one of those that completed.
struct Saved {
  std::uint64_t stopped = 0, completed = 0, wrong = 0;
  double median_s = 0;  // of the completed trials, from begin to last step
  std::uint64_t median_steps = 0;
  double hours = 0;        // of devices: (median - duration at the stop) x workers, never negative
  double share = 0;        // of all steps that would have been made: steps not made
  double spent_hours = 0;  // of all trials
  bool known = false;      // at least kFewestCompleted completed
  static constexpr std::uint64_t kFewestCompleted = 3;
};

/// A rule and its cause, and the trials in which it stands and leads (of a stopped one: what stopped it too).
struct SharedFinding {
  std::string rule, cause;
  std::vector<std::size_t> trials;
};

/// Trials that compute the same numbers.
struct SameTrials {
  std::vector<std::size_t> trials;
  std::uint64_t steps = 0;          // TRAIN steps of the shortest of them
  std::vector<std::string> differ;  // parameters that are not the same in all of them
};

struct Sweep {
  std::string name, folder;
  std::vector<SweepTrial> trials;       // in the order in which they began
  std::vector<SharedFinding> findings;  // of bad trials, the most frequent first
  std::vector<Separation> separations;
  std::vector<SameTrials> same;
  std::vector<Nearest> nearest;  // of each trial
  Saved saved;
  std::vector<std::string> notes;  // what was not looked at, and why
};

/// Reads the sweep `name` below `folder`. `index`, `progress`: as for Ask. Errors: kNotFound with the nearest
/// names if no run belongs to it.
[[nodiscard]] Result<Sweep> ReadSweep(const std::string& index, const std::string& folder,
                                      const std::string& name, const Progress& progress = {});

/// Of trials alone, for ReadSweep and tests.
[[nodiscard]] Saved SavedBy(const std::vector<SweepTrial>& trials);
[[nodiscard]] std::vector<SharedFinding> Share(const std::vector<SweepTrial>& trials);

/// Sentences for people: what the bad trials share, which trials are the same, and what was saved, with its
/// basis.
[[nodiscard]] std::vector<std::string> SharedText(const Sweep& sweep);
[[nodiscard]] std::vector<std::string> SameText(const Sweep& sweep);
[[nodiscard]] std::string SavedText(const Saved& saved);
/// "trial-3, trial-7 and 4 more".
[[nodiscard]] std::string NamesIn(const Sweep& sweep, const std::vector<std::size_t>& trials);

/// docs/spec/catalog.md, section 6.
[[nodiscard]] nlohmann::ordered_json ToJson(const Sweep& sweep);

}  // namespace luff::catalog
