#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "luff/base/result.h"

/// The folder `hosts` of a run, through which its supervisor and `luff sync` pass on what the hosts of a job
/// tell each other (docs/spec/control.md, Several hosts): `out/NNNNNN.json` is to be put, `in/NNNNNN.json`
/// stands in the log under this number, `kept/NNNNNN.json` did, and is of a stop that is under way, `begun`
/// has the number that the log had come to when this host's upload began.
namespace luff::store {

/// Makes the folder, which is what `luff sync` waits for. Errors: kIo.
[[nodiscard]] Status MakeHostFolder(const std::string& run_path);
/// Removes what an earlier supervisor and its upload have left; call it before an upload begins.
void ClearHostFolder(const std::string& run_path);
/// Removes the folder: the job has no other hosts any more.
void RemoveHostFolder(const std::string& run_path);
/// Whether a supervisor has made the folder: the job has ranks on other hosts.
[[nodiscard]] bool HasHostFolder(const std::string& run_path);
/// The number that the log had come to; nothing while no upload has looked. Reads as ReadCommands() does.
[[nodiscard]] std::optional<std::uint64_t> HostLogBegun(const std::string& run_path);
/// The message with this number, moved on into `kept`; empty if it is none. Errors: kNotFound while there is
/// none, kIo, kResourceExhausted.
[[nodiscard]] Result<std::string> TakeHostMessage(const std::string& run_path, std::uint64_t number);
/// The lowest number that is in `kept` or in `in`; 0 if there is none.
[[nodiscard]] std::uint64_t FirstKeptHostMessage(const std::string& run_path);
/// One that was taken and not dropped. Errors: as of TakeHostMessage.
[[nodiscard]] Result<std::string> ReadKeptHostMessage(const std::string& run_path, std::uint64_t number);
/// Removes one that was taken.
void DropHostMessage(const std::string& run_path, std::uint64_t number);
/// Gives a message to the upload. Errors: kOutOfRange, kIo.
[[nodiscard]] Status GiveHostMessage(const std::string& run_path, std::uint64_t sequence,
                                     const std::string& object);
/// True if the upload has not begun with it, and never will.
[[nodiscard]] bool TakeBackHostMessage(const std::string& run_path, std::uint64_t sequence);
/// Takes back whatever the upload has not begun with. True if nothing is left with which it has.
[[nodiscard]] bool TakeBackAllHostMessages(const std::string& run_path);

}  // namespace luff::store
