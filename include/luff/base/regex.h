#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "luff/base/result.h"

namespace luff {

/// A compiled regular expression, PCRE2 with UTF-8: the dialect of Python's `re`, look-aheads included.
///
/// **Thread-safe** once compiled. Matching is bounded (100,000 backtracks, depth 1,000, 10 MiB of heap), so
/// that no expression from a configuration or a request can hang a thread. Beyond the bound it reports no
/// match. Cheap to copy.
class Regex {
 public:
  static constexpr std::size_t kMaxPatternBytes = 10'000;

  /// Errors: kInvalidArgument with the byte offset of the mistake.
  [[nodiscard]] static Result<Regex> Compile(std::string_view pattern);
  /// True if the expression matches anywhere in `text`.
  [[nodiscard]] bool Search(std::string_view text) const noexcept;
  /// True if the expression matches the whole of `text`.
  [[nodiscard]] bool FullMatch(std::string_view text) const noexcept;
  [[nodiscard]] const std::string& pattern() const noexcept;

 private:
  struct State;
  explicit Regex(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  [[nodiscard]] bool Match(std::string_view text, bool whole) const noexcept;
  std::shared_ptr<const State> state_;
};

}  // namespace luff
