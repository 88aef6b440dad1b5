#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// Conditions that users write: `loss.mean(50) > 3 * loss.mean(500)`. The language: docs/own-rules.md.
namespace luff::rules {

/// A statistic of a tensor in one step. kValue: the number itself, of scalars, losses and one-element
/// tensors.
enum class Stat : std::uint8_t {
  kValue,
  kMean,
  kMin,
  kMax,
  kStd,
  kVariance,
  kSum,
  kL1,
  kL2,
  kAbsMean,
  kAbsMax,
  kCount,
  kZeroCount,
  kNanCount,
  kInfCount,
};

/// How the newest n values are combined; kLast: the value n values ago.
enum class Fold : std::uint8_t { kNone, kMean, kMin, kMax, kStd, kLast };

enum class Op : std::uint8_t {
  kNumber,
  kLeaf,
  kNegate,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kAbs,
  kLog,
  kSqrt,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  kIsFinite,
  kNot,
  kAnd,
  kOr,
};

/// One input of a condition: a statistic of a tensor, or of each tensor of a group.
struct Leaf {
  enum class Kind : std::uint8_t { kLoss, kName, kGroup };
  Kind kind = Kind::kName;
  std::string name;  // of the tensor, or the regular expression of the group
  Stat stat = Stat::kValue;
  int group = -1;          // of kGroup
  std::size_t window = 0;  // values that are kept
  std::size_t column = 0;  // position in the text
};

struct Group {
  std::string regex;
  bool all = false;  // all("…"), else any("…")
};

struct Node {
  Op op = Op::kNumber;
  int left = -1, right = -1;
  double number = 0;
  int leaf = -1;
  Fold fold = Fold::kNone;
  std::size_t n = 0;               // values that are folded
  int group = -1;                  // of a comparison or is_finite: its tensors are checked one by one
  std::size_t begin = 0, end = 0;  // in the text
};

/// **Thread-safe** (immutable). A parsed condition. Its last node is the root and gives a truth value.
class Expression {
 public:
  static constexpr std::size_t kMaxBytes = 4096;
  static constexpr std::size_t kMaxNodes = 512;
  static constexpr int kMaxDepth = 64;
  static constexpr std::size_t kMaxWindow = 100'000;  // kept values of all leaves together

  /// Errors: kInvalidArgument; the message marks the position below the text and gives the nearest names.
  [[nodiscard]] static Result<Expression> ParseUntrusted(std::string_view text);

  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const std::vector<Node>& nodes() const noexcept { return nodes_; }
  [[nodiscard]] const std::vector<Leaf>& leaves() const noexcept { return leaves_; }
  [[nodiscard]] const std::vector<Group>& groups() const noexcept { return groups_; }
  [[nodiscard]] int root() const noexcept { return static_cast<int>(nodes_.size()) - 1; }

 private:
  friend class ExpressionParser;
  std::string text_;
  std::vector<Node> nodes_;
  std::vector<Leaf> leaves_;
  std::vector<Group> groups_;
};

}  // namespace luff::rules
