#pragma once
#include <string_view>

namespace luff {

/// The version of this build, e.g. "0.1.0": the one that CMakeLists.txt declares. Never fails, any thread.
[[nodiscard]] std::string_view Version() noexcept;

}  // namespace luff
