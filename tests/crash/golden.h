#pragma once
#include <cstdint>
#include <string>

/// The golden run of format version 1: small, with every kind of frame, the same bytes each time.
namespace luff::store {

/// Writes the run directory `path` (must not exist). Returns false, with a message on stderr, on failure.
bool WriteGoldenRun(const std::string& path);
/// Returns what a reader must find in it, as JSON: steps, tensors, values and summaries.
std::string GoldenTwin();

inline constexpr int kGoldenSteps = 10;
inline constexpr std::uint32_t kGoldenHost = 3;  // of its samples

}  // namespace luff::store
