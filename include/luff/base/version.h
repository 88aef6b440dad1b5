#pragma once
#include <string_view>

namespace luff {

/// The version of this build as CMakeLists.txt declares it, e.g. "0.1.0". **Thread-safe.**
[[nodiscard]] std::string_view Version() noexcept;

}  // namespace luff
