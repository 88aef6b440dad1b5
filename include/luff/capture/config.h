#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/collections.h"
#include "luff/format/names.h"
#include "luff/store/writer.h"
#include "luff/tensor/summary.h"

/// What is captured, and when. docs/capture.md describes the JSON form.
namespace luff::capture {

inline constexpr std::size_t kMaxCollections = 64;
inline constexpr std::size_t kRoleCount = format::kRoleNames.size();
inline constexpr std::size_t kModeCount = format::kModeNames.size();  // index = mode - 1

/// When a collection is saved in one mode, counted by **mode step**.
struct SaveMode {
  std::int64_t save_interval = 500;
  std::int64_t start_step = 0;
  std::optional<std::int64_t> end_step;  // exclusive
  std::vector<std::int64_t> save_steps;  // sorted; in addition to the interval
  /// True if listed, or start <= step < end and a multiple of the interval (not shifted by start). Negative:
  /// never.
  [[nodiscard]] bool ShouldSave(std::int64_t mode_step) const noexcept;
  friend bool operator==(const SaveMode&, const SaveMode&) = default;
};

/// What to do with raw values when no memory is free.
enum class Policy : std::uint8_t {
  kDegrade = 0,  // bfloat16 under pressure, then summary only
  kBlock = 1,    // the training waits, at most 200 ms a step
  kDrop = 2,     // summary only
};

using format::RoleBit;  // for the masks of a CollectionConfig

/// Tensors grouped by name or role, with their own forms and save configuration.
struct CollectionConfig {
  std::string name;
  std::vector<std::string> include, exclude;  // regexes, searched anywhere in the name
  std::vector<std::string> tensor_names;      // exact
  std::vector<std::string> module_types;
  std::uint32_t roles = 0;  // bit per Role
  // `include` is tried only on tensors of these roles
  std::uint32_t include_roles = ~format::kOnRequestRoles;
  std::uint32_t forms = 0;  // Form bits
  UnitAxis unit_axis = UnitAxis::kChannel;
  std::array<SaveMode, kModeCount> save;
  store::Retention keep;
  std::uint64_t max_bytes = 0;  // raw bytes, 0: no limit
  Policy policy = Policy::kDegrade;
};

/// What is recorded of where the time goes.
/// kFull: also how long modules take, on one step in many.
enum class Profile : std::uint8_t { kOff = 0, kBasic = 1, kFull = 2 };

struct Config {
  std::vector<CollectionConfig> collections;
  double max_overhead = 0.05;
  std::uint64_t max_bytes = 0, summary_max_bytes = 0;
  std::uint64_t pool_max_bytes = 0;  // 0: min(512 MiB, 5 % of memory)
  store::WriterOptions::Direct direct_io = store::WriterOptions::Direct::kAuto;
  store::WriterOptions::Sync sync = store::WriterOptions::Sync::kNone;
  bool events = true;
  Profile profile = Profile::kBasic;
  /// Without a step for this long, or 20 times the median of the last steps if that is longer, it is recorded
  /// where the process stands.
  std::int64_t stalled_after_ns = 30'000'000'000;
  /// Whether memory of accelerators is read. Off, because no run on one has shown yet that it is safe.
  bool accelerators = false;
};

/// "" means the default: summaries of weights, biases and gradients, and the losses themselves, at every
/// step. Errors: kInvalidArgument that names the key, its place and the nearest known key.
[[nodiscard]] Result<Config> ParseConfigUntrusted(std::string_view json);

/// The run's "collections" document: a JSON array; a collection's number is its index.
[[nodiscard]] std::string DescribeCollections(const Config& config);

}  // namespace luff::capture
