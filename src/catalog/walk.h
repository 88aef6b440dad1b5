#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/result.h"

/// Finds the runs below a directory.
namespace luff::catalog {

struct FoundRun {
  std::string path;
  std::uint64_t stamp = 0;  // changes when the run does; see StampOf
};

struct Found {
  std::vector<FoundRun> runs;
  std::vector<std::string> left_out;  // directories that were not looked into, and why
};

/// Looks at most this deep below the directory, and into this many directories that are no runs.
inline constexpr std::size_t kMaxFolderDepth = 4;
inline constexpr std::size_t kMaxFolders = 20'000;

/// Follows no links, and skips directories whose names begin with a dot. Errors: kNotFound, those of opening
/// `folder`.
[[nodiscard]] Result<Found> FindRuns(const std::string& folder);

/// A hash of times and sizes: of the run directory, its first worker's live page and the findings of its
/// rules; of a directory of smdebug (docs/spec/smdebug.md), of its folders and its end. It changes when a
/// settled run is resumed, tagged, moved or replaced. 0 if there is no run.
[[nodiscard]] std::uint64_t StampOf(const std::string& run);

/// Whether the first worker of a run says that it has ended. Reads one page.
[[nodiscard]] bool HasEnded(const std::string& run);

}  // namespace luff::catalog
