#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/env.h"
#include "luff/base/result.h"

/// Commands to a running job: files control/NNNNNN.json in the run directory, created with link(2) and never
/// changed.
namespace luff::store {

/// One control record. JSON fields: number, kind, phase, proposal, train_step, deadline_s, reason, finding,
/// body, created_unix_ns, author, and of signed records key_id, signature and signed, which nobody here
/// checks (the room `keys` does).
struct ControlRecord {
  std::uint64_t number = 0;  // NNNNNN of the file name
  std::string
      kind;  // "stop", "lower_lr", "skip_batch", "rollback", "capture", "outcome", "note", "keys", ...
  std::string phase;             // "propose", "commit", "abort", "" for one-phase kinds
  std::uint64_t proposal = 0;    // commit and abort: number of the proposal
  std::int64_t train_step = -1;  // propose: the count of TRAIN steps after which it is carried out
  double deadline_s = 10.0;      // how long a worker waits at that step for the decision
  std::string reason;            // text for people
  std::string finding;           // id of the finding, or ""
  std::string body;              // JSON text, by kind
  std::string author;            // "luff run", ...
  std::int64_t created_unix_ns = 0;
  std::string key_id, signature;  // of a signed record: whose key, and the signature in base64; else ""
  std::string signed_text;        // member `signed`: the text that was signed, which says all of it once more
};

/// Signs a record that is about to be written: fills key_id, signature and signed_text.
using RecordSigner = std::function<Status(ControlRecord*)>;

/// Writes the record with the next free number (retries when another process takes it).
/// Errors: kIo, kNotFound (no run there).
[[nodiscard]] Result<std::uint64_t> WriteControl(const std::string& run_path, const ControlRecord& record,
                                                 Env& env = Env::Real());

/// Decides a proposal: writes `record` (phase commit or abort, with `proposal`) unless the log already holds
/// a decision. Returns the first decision in the log, which is the one that counts and may be another
/// process's. Reads as ReadCommands does. Errors: kIo, kNotFound, kFailedPrecondition; the outcome is then
/// unknown, and the caller may try again.
[[nodiscard]] Result<ControlRecord> DecideControl(const std::string& run_path, const ControlRecord& record);

/// Reads records with numbers greater than `after`, ascending. Never returns a record without having read all
/// records before it. Skips unreadable ones and reports them in `problems`.
[[nodiscard]] Result<std::vector<ControlRecord>> ReadControl(const std::string& run_path, std::uint64_t after,
                                                             std::vector<std::string>* problems);

/// Like ReadControl(), for processes that carry out the records: reads only from folders and files that the
/// user owns and nobody else may write, checked by descriptor. Skips other records. Further error:
/// kFailedPrecondition (folders).
[[nodiscard]] Result<std::vector<ControlRecord>> ReadCommands(const std::string& run_path,
                                                              std::uint64_t after);

/// Leaves out marks and labels that the supervisor has refused (a later `reply`). `records`: the whole log.
[[nodiscard]] std::vector<ControlRecord> WithoutRefused(std::vector<ControlRecord> records);

/// Parses one record. Bounds: at most 1 MiB, depth at most 16.
[[nodiscard]] Result<ControlRecord> ParseControlUntrusted(std::string_view json);

}  // namespace luff::store
