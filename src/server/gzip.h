#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "luff/base/result.h"

/// gzip (RFC 1952), with the deflate that Boost.Beast brings.
namespace luff::server {

/// Makes one member of what comes in pieces. Memory does not depend on their number.
class GzipStream {
 public:
  GzipStream();
  ~GzipStream();
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  /// Both append to `to` what is complete.
  void Add(std::string_view bytes, std::string* to);
  void Finish(std::string* to);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::string Gzipped(std::string_view bytes);
/// For what this program or its build has compressed: one member without optional fields. Errors: kCorruption
/// for anything else, and for more than `most` bytes.
[[nodiscard]] Result<std::string> Gunzipped(std::string_view bytes, std::size_t most);

}  // namespace luff::server
