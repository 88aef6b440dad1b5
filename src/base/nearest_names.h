#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luff {

/// The names, at most three, that somebody who wrote `name` may have meant, the nearest first; none if none
/// is near. Near is what differs by a few letters (one in three; two neighbours exchanged count once), what
/// begins with `name` or is its beginning, and, after these, what contains it. Case does not matter.
[[nodiscard]] std::vector<std::string> NearestNames(std::string_view name,
                                                    std::span<const std::string> known);

/// "; nearest: A, B" for error messages; "" if none is near.
[[nodiscard]] std::string NearestText(std::string_view name, std::span<const std::string> known);

}  // namespace luff
