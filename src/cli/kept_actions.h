#pragma once
#include <cstdint>
#include <string>
#include <vector>

/// Actions that a run tells of: its audit (docs/spec/control.md).
namespace luff::cli {

/// One action or delivery, with all that the audit says of it.
struct KeptAction {
  std::string id, action, kind;  // of the entry in the configuration: its name, its kind
  std::string rule, finding;     // what it was done about; `finding` is an id
  std::string state;             // the last event of the audit: "done", "dry_run", "carried_out", ...
  std::string detail;            // what was said last
  std::int64_t begun_unix_ns = 0, unix_ns = 0;  // its first and its last line
  std::int64_t train_step = -1;                 // of a stop or a correction; -1: none
  int attempts = 0;                             // of a delivery
};

struct KeptActions {
  std::vector<KeptAction> actions;  // in the order in which they were begun
  std::uint64_t left_out =
      0;  // times an action was due and kept silent, by its rate or because too many waited
};

[[nodiscard]] KeptActions ActionsOfRun(const std::string& run);

/// "done", "dry run", "carried out after step 31", "failed: HTTP 404": what became of it, for people.
[[nodiscard]] std::string StateText(const KeptAction& action);

}  // namespace luff::cli
