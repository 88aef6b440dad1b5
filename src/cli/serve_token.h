#pragma once
#include <CLI/CLI.hpp>
#include <string>

/// `luff serve token add|list|revoke`.
namespace luff::cli {

void AddServeToken(CLI::App& serve);

/// Files of `luff serve` below LUFF_HOME; "" without a home.
[[nodiscard]] std::string TokensPath();
[[nodiscard]] std::string AuditPath();
/// A directory as tokens and the server name it: absolute, without "." and a slash at its end.
[[nodiscard]] std::string AbsoluteDirectory(const std::string& path);

}  // namespace luff::cli
