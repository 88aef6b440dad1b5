#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "luff/base/result.h"

/// gzip (RFC 1952), with the deflate that Boost.Beast brings.
namespace luff::server {

[[nodiscard]] std::string Gzipped(std::string_view bytes);
/// For what this program or its build has compressed: one member without optional fields. Errors: kCorruption
/// for anything else, and for more than `most` bytes.
[[nodiscard]] Result<std::string> Gunzipped(std::string_view bytes, std::size_t most);

}  // namespace luff::server
