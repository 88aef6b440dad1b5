#pragma once
#include <string>

#include "server/net.h"

namespace luff::cli {

/// "127.0.0.1:6006", "[::1]:6006", "6006", "unix:PATH". `option`: what named it.
[[nodiscard]] server::ListenAt ListenAtOrExit(const std::string& text, const char* option);

}  // namespace luff::cli
