#pragma once
#include <string_view>

namespace luff::server {

/// A file of the page, compiled into the program.
struct Asset {
  std::string_view path;  // "/assets/index-1a2b.js"
  std::string_view type;  // of its contents
  std::string_view gzipped;
};

/// The page as reports begin with it (server/report.h); the server does not send it.
inline constexpr std::string_view kReportAsset = "/report.html";

/// nullptr if there is none. A build without Node has none at all.
[[nodiscard]] const Asset* FindAsset(std::string_view path);

/// The HTTP interface as OpenAPI 3.1 (openapi.json).
[[nodiscard]] std::string_view OpenApiText() noexcept;

}  // namespace luff::server
