#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "luff/base/regex.h"
#include "luff/base/result.h"
#include "luff/capture/config.h"

namespace luff::capture {

[[nodiscard]] constexpr std::uint32_t Bit(format::Form form) noexcept {
  return static_cast<std::uint32_t>(form);
}

/// Collections with compiled expressions: decides which collections a tensor belongs to, and what is due
/// when. Collections are bits of a 64-bit mask. **Thread-safe** after Make (immutable).
class Plan {
 public:
  [[nodiscard]] static Result<Plan> Make(Config config);

  /// Returns the collections of a tensor, of those from number `first` on. Slow (regexes): once per name.
  [[nodiscard]] std::uint64_t Match(std::string_view name, format::Role role, std::string_view module_type,
                                    std::size_t first = 0) const;
  /// Returns the collections to save in this mode step.
  [[nodiscard]] std::uint64_t DueCollections(format::Mode mode, std::int64_t mode_step) const noexcept;
  /// Returns the form bits of collections.
  [[nodiscard]] std::uint32_t FormsOf(std::uint64_t collections) const noexcept;
  /// Collections that may hold a tensor of this role, whatever its name.
  [[nodiscard]] std::uint64_t PossibleFor(format::Role role) const noexcept {
    return possible_[static_cast<std::size_t>(role)];
  }
  /// Collections that ask for raw values.
  [[nodiscard]] std::uint64_t raw_collections() const noexcept { return raw_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] const CollectionConfig& collection(int index) const noexcept {
    return config_.collections[static_cast<std::size_t>(index)];
  }
  /// False for gradients and optimizer state outside training.
  [[nodiscard]] static bool RoleSavedIn(format::Role role, format::Mode mode) noexcept;

 private:
  struct Matcher {
    std::vector<Regex> include, exclude;
  };
  Config config_;
  std::vector<Matcher> matchers_;
  std::array<std::uint64_t, kRoleCount> possible_{};
  std::uint64_t raw_ = 0;
};

}  // namespace luff::capture
