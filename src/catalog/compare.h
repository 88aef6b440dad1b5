#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "catalog/card.h"
#include "catalog/divergence.h"
#include "luff/query/trial.h"

/// What distinguishes 2 to kMaxCompared runs: settings, findings, and the step at which their numbers part.
namespace luff::catalog {

inline constexpr std::size_t kMaxCompared = 8;

/// A run that is compared.
struct Compared {
  Card card;
  std::unique_ptr<query::Trial> trial;
};
/// Errors: kInvalidArgument for fewer than 2 runs, more than kMaxCompared, or one that is named twice; those
/// of opening.
[[nodiscard]] Result<std::vector<Compared>> OpenCompared(const std::vector<std::string>& runs);

/// Something that was set, and does not have the same value in all runs.
struct SettingRow {
  std::string kind;  // run, parameter, version, environment, optimizer, schedule, loss, model
  std::string name;
  std::vector<std::optional<std::string>> values;  // of each run
};
/// Rows that differ, in the order of kinds as above, then by name. `same`: how many settings are the same in
/// all runs. At most kMaxRows of a kind; `left_out`: how many more differ.
struct Settings {
  std::vector<SettingRow> rows;
  std::uint64_t same = 0, left_out = 0;
  static constexpr std::size_t kMaxRows = 60;
};
[[nodiscard]] Settings CompareSettings(const std::vector<Compared>& runs);

/// Findings of one rule and cause, of those that stand and lead.
struct FindingRow {
  std::string rule, cause;
  struct Of {
    std::uint64_t count = 0;  // 0: the run has none
    std::string severity, tensor, mode;
    std::int64_t since_step = 0;  // of the earliest
  };
  std::vector<Of> runs;
};
[[nodiscard]] std::vector<FindingRow> CompareFindings(const std::vector<Compared>& runs);

/// What a person reads of a divergence, one sentence each. `a`, `b`: what the runs are called.
[[nodiscard]] std::vector<std::string> SentencesOf(const Divergence& divergence, const Compared& of_a,
                                                   const Compared& of_b, const std::string& a,
                                                   const std::string& b);

/// What the runs are called: their names, or their paths where two have the same name.
[[nodiscard]] std::vector<std::string> NamesOf(const std::vector<Compared>& runs);

/// How noise is estimated, and from which source.
inline constexpr const char* kNoiseText =
    "Noise is the jitter of a number from step to step around a straight line, in the 64 steps before "
    "(Gasser, Sroka, "
    "Jennen-Steinmetz 1986, Biometrika 73:625, with the median). Two runs differ beyond it where 5 recorded "
    "steps in a row lie "
    "more than 5 standard deviations of both runs' noise and more than 0.1 % apart, in the same direction.";

/// The whole comparison (docs/spec/catalog.md, section 5): each run against the first.
[[nodiscard]] Result<nlohmann::ordered_json> CompareRuns(const std::vector<Compared>& runs);

}  // namespace luff::catalog
