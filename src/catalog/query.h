#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Questions to the catalog, as text: `outcome = stopped and lr > 0.01` (docs/spec/catalog.md).
namespace luff::catalog {

/// A comparison, or several joined by words.
struct Condition {
  enum class Kind : std::uint8_t { kAnd, kOr, kNot, kCompare };
  enum class Op : std::uint8_t { kEqual, kUnequal, kLess, kLessEqual, kGreater, kGreaterEqual, kContains };
  Kind kind = Kind::kCompare;
  std::vector<Condition> parts;  // of kAnd, kOr; one of kNot
  // Of kCompare:
  std::string field;
  std::size_t column = 0;  // of the field in the text, from 1; 0: none
  Op op = Op::kEqual;
  std::string text;  // as it was written, without quotes
  bool is_number = false;
  double number = 0;  // durations in seconds, dates in seconds since 1970
};

/// Errors: kInvalidArgument, with the place, what was found and what was expected.
[[nodiscard]] Result<Condition> ParseCondition(std::string_view text);

/// Most conditions in one text, and how deep they may be nested.
inline constexpr std::size_t kMaxConditions = 200;
inline constexpr std::size_t kMaxDepth = 20;

}  // namespace luff::catalog
