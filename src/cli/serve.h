#pragma once
#include <cstdint>
#include <string>

#include "server/guard.h"
#include "server/net.h"

namespace luff::cli {

/// "127.0.0.1:6006", "[::1]:6006", "6006", "unix:PATH". `option`: what named it.
[[nodiscard]] server::ListenAt ListenAtOrExit(const std::string& text, const char* option);

/// "http://[::1]:6006". `port`: the one that was taken.
[[nodiscard]] std::string OriginOf(const server::ListenAt& at, std::uint16_t port);

/// What the guard knows of it. The last origin is the one to name to those who come by another name.
[[nodiscard]] server::Place PlaceAt(const server::ListenAt& at, std::uint16_t port);

}  // namespace luff::cli
