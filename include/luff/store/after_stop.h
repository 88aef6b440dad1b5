#pragma once
#include <cstdint>
#include <string>
#include <string_view>

/// What a worker's process has trained after a finding has stopped it: its script has swallowed the stop.
namespace luff::store {

/// Reason of a gap whose `count` is of such updates.
inline constexpr const char* kTrainedAfterStop = "trained after the stop";

/// Updates that the process of this worker has made after it ended as stopped, and that nobody has recorded.
/// 0 if it made none, or says nothing that can be understood.
[[nodiscard]] std::uint64_t UpdatesAfterStop(const std::string& run, std::uint32_t worker);
/// A decimal number and a line break; 0 for anything else.
[[nodiscard]] std::uint64_t ParseUpdatesUntrusted(std::string_view text);

}  // namespace luff::store
