#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "luff/base/result.h"
#include "luff/query/trial.h"
#include "server/overview.h"

/// An overview as a file: docs/spec/overview.md, section 3.
namespace luff::server {

/// What binds a file to a run: a file of other steps or names is not used.
struct OverviewBinding {
  std::uint64_t run = 0;    // hash of the run's id and of when it was created
  std::uint64_t names = 0;  // hash of the names of the first tensors
  std::uint64_t steps = 0;  // hash of the numbers of the steps that were read
  friend bool operator==(const OverviewBinding&, const OverviewBinding&) = default;
};

/// `id`: of the run. The run must have the steps and tensors of `state`.
[[nodiscard]] OverviewBinding BindingOf(const std::string& id, const query::Trial& trial,
                                        const Overview::State& state);

/// Head and columns, as they lie in the file one after another; each piece begins at a page.
[[nodiscard]] std::string OverviewHead(const Overview& overview, const OverviewBinding& binding);
[[nodiscard]] std::uint64_t OverviewFileBytes(const Overview& overview);

struct OverviewFile {
  OverviewBinding binding;
  query::Mode mode = query::Mode::kTrain;
  Overview::State state;
  std::vector<Overview::Kept> columns;  // point into the bytes
};
/// Checks sizes, places and sums of all that is used. `file` is aligned to 8 bytes. `sums`: false leaves out
/// the sums, which no fuzzer finds. Errors: kCorruption, kUnsupportedVersion.
[[nodiscard]] Result<OverviewFile> ParseOverviewUntrusted(std::span<const std::byte> file, bool sums = true);

inline constexpr std::size_t kOverviewPage = 4096;

}  // namespace luff::server
