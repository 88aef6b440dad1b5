#pragma once
#include <string>
#include <string_view>

#include "luff/base/env.h"
#include "luff/store/writer.h"

/// run.json, written once, identifies a directory as a run.
namespace luff::store {

inline constexpr std::string_view kRunFileName = "run.json";
inline constexpr std::uint64_t kMaxRunFileBytes = 1 << 20;

[[nodiscard]] std::string FormatRunFile(const RunInfo& info);
/// Errors: kCorruption (not JSON, or fields missing), kUnsupportedVersion (names both versions).
[[nodiscard]] Result<RunInfo> ParseRunFileUntrusted(std::string_view text);
/// Errors: kNotFound (no such directory), kFailedPrecondition (a directory that is not a run), those of
/// parsing, kIo.
[[nodiscard]] Result<RunInfo> ReadRunFile(Env& env, const std::string& run_path);

}  // namespace luff::store
