#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luff {

/// The three names nearest to `name` (edit distance), for error messages.
[[nodiscard]] std::vector<std::string> NearestNames(std::string_view name,
                                                    std::span<const std::string> known);

}  // namespace luff
