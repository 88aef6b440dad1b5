#pragma once
#include <cstdint>
#include <string>
#include <vector>

/// Actions recorded in a run: its audit (docs/spec/control.md).
namespace luff::cli {

/// One action or delivery, as the audit records it.
struct KeptAction {
  std::string id, action, kind;  // action, kind: name and kind of the configuration entry
  std::string rule, finding;     // what caused it; `finding` is an id
  std::string asked;             // who asked for it, and why; "" if a finding caused it
  std::string state;             // the last event of the audit: "done", "dry_run", "carried_out", ...
  std::string detail;            // the latest message
  std::int64_t begun_unix_ns = 0, unix_ns = 0;  // its first and its last line
  std::int64_t train_step = -1;                 // of a stop or a correction; -1: none
  int attempts = 0;                             // of a delivery
};

struct KeptActions {
  std::vector<KeptAction> actions;  // in the order in which they were begun
  std::uint64_t left_out =
      0;  // how often a due action was suppressed, by its rate or because too many waited
};

[[nodiscard]] KeptActions ActionsOfRun(const std::string& run);

/// The outcome for people: "done", "dry run", "carried out after 31 TRAIN steps", "failed: HTTP 404".
[[nodiscard]] std::string StateText(const KeptAction& action);

}  // namespace luff::cli
