#include "luff/format/names.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace luff::format {

std::string_view ModeName(Mode mode) noexcept {
  const auto at = static_cast<std::size_t>(mode) - 1;
  return at < kModeNames.size() ? kModeNames[at] : "GLOBAL";
}

std::string PhaseName(std::uint8_t phase) {
  return phase < kPhaseNames.size() ? kPhaseNames[phase] : "phase " + std::to_string(phase);
}

Result<Mode> ParseMode(std::string_view name) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const auto* const found = std::ranges::find(kModeNames, upper);
  if (found != kModeNames.end()) return static_cast<Mode>(found - kModeNames.begin() + 1);
  return InvalidArgument("found mode \"" + std::string(name) + "\", expected TRAIN, EVAL, PREDICT or GLOBAL");
}

}  // namespace luff::format
