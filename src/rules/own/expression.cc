#include "rules/own/expression.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "base/nearest_names.h"
#include "luff/base/regex.h"
#include "luff/query/trial.h"

namespace luff::rules {
namespace {

constexpr std::array<std::pair<const char*, Stat>, 15> kStats = {{{"value", Stat::kValue},
                                                                  {"mean", Stat::kMean},
                                                                  {"min", Stat::kMin},
                                                                  {"max", Stat::kMax},
                                                                  {"std", Stat::kStd},
                                                                  {"variance", Stat::kVariance},
                                                                  {"sum", Stat::kSum},
                                                                  {"l1", Stat::kL1},
                                                                  {"l2", Stat::kL2},
                                                                  {"abs_mean", Stat::kAbsMean},
                                                                  {"abs_max", Stat::kAbsMax},
                                                                  {"count", Stat::kCount},
                                                                  {"zero_count", Stat::kZeroCount},
                                                                  {"nan_count", Stat::kNanCount},
                                                                  {"inf_count", Stat::kInfCount}}};
constexpr std::array<std::pair<const char*, Fold>, 5> kFolds = {{{"mean", Fold::kMean},
                                                                 {"min", Fold::kMin},
                                                                 {"max", Fold::kMax},
                                                                 {"std", Fold::kStd},
                                                                 {"last", Fold::kLast}}};
constexpr std::array<std::pair<const char*, Op>, 4> kFunctions = {
    {{"abs", Op::kAbs}, {"log", Op::kLog}, {"sqrt", Op::kSqrt}, {"is_finite", Op::kIsFinite}}};
constexpr std::array<std::pair<const char*, Op>, 6> kComparisons = {{{"<=", Op::kLessEqual},
                                                                     {">=", Op::kGreaterEqual},
                                                                     {"==", Op::kEqual},
                                                                     {"!=", Op::kNotEqual},
                                                                     {"<", Op::kLess},
                                                                     {">", Op::kGreater}}};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsComparison(Op op) { return op >= Op::kLess && op <= Op::kNotEqual; }
bool IsTruth(Op op) { return op >= Op::kLess; }

template <typename Table>
auto Lookup(const Table& table, std::string_view name) {
  return std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first == name; });
}

struct Token {
  enum class Kind : std::uint8_t { kEnd, kNumber, kWord, kText, kSign };
  Kind kind = Kind::kEnd;
  std::string_view text;  // of kText: without quotes
  double number = 0;
  std::size_t begin = 0, end = 0;
};

}  // namespace

/// Recursive-descent parser. Each function returns the number of the node that it made, or -1 after Fail.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) { made_.text_ = text; }

  Result<Expression> Parse() {
    if (made_.text_.size() > Expression::kMaxBytes) {
      return InvalidArgument(fmt::format("a condition of {} bytes, at most {} are allowed",
                                         made_.text_.size(), Expression::kMaxBytes));
    }
    Next();
    const int root = Either();
    if (root >= 0 && token_.kind != Token::Kind::kEnd) {
      static_cast<void>(Fail(token_.begin, IsComparison(node(root).op) && IsComparisonSign()
                                               ? "a comparison of a comparison; write 'and' between two"
                                               : "expected an operator, 'and' or 'or'"));
    }
    if (root >= 0 && error_.ok() && !IsTruth(node(root).op))
      static_cast<void>(Fail(node(root).begin, "a number, expected a condition, e.g. 'loss > 5'"));
    if (!error_.ok()) return error_;
    std::size_t values = 0;
    for (const Leaf& leaf : made_.leaves_) {
      values += leaf.window;
      if (values > Expression::kMaxWindow) {
        return Failed(leaf.column,
                      fmt::format("more than {} values would have to be kept, of all that is folded",
                                  Expression::kMaxWindow));
      }
    }
    return std::move(made_);
  }

 private:
  [[nodiscard]] const Node& node(int n) const { return made_.nodes_[static_cast<std::size_t>(n)]; }

  [[nodiscard]] Status Failed(std::size_t column, const std::string& what) const {
    std::string shown = made_.text_;
    for (char& c : shown) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
    }
    return InvalidArgument(
        fmt::format("{} (column {})\n  {}\n  {}^", what, column + 1, shown, std::string(column, ' ')));
  }
  int Fail(std::size_t column, const std::string& what) {
    if (error_.ok()) error_ = Failed(column, what);
    return -1;
  }
  template <typename Table>
  static std::string Nearest(const Table& table, std::string_view name) {
    std::vector<std::string> known;
    for (const auto& entry : table) known.emplace_back(entry.first);
    const std::string near = NearestText(name, known);
    return near.empty() ? fmt::format("; there are {}", fmt::join(known, ", ")) : near;
  }

  int Make(Node made) {
    if (made_.nodes_.size() >= Expression::kMaxNodes) return Fail(made.begin, "the condition is too long");
    made_.nodes_.push_back(made);
    return static_cast<int>(made_.nodes_.size()) - 1;
  }
  int Make(Op op, int left, int right = -1) {
    if (left < 0 || (right < 0 && op >= Op::kAdd && op <= Op::kDivide)) return -1;
    Node made;
    made.op = op;
    made.left = left;
    made.right = right;
    made.begin = node(left).begin;
    made.end = node(right >= 0 ? right : left).end;
    return Make(made);
  }

  // ---- tokens

  void Next() {
    const std::string& text = made_.text_;
    std::size_t at = token_.end;
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
      ++at;
    token_ = Token{};
    token_.begin = token_.end = at;
    if (at >= text.size()) return;
    const std::string_view rest = std::string_view(text).substr(at);
    const char c = rest.front();
    if (IsDigit(c) || (c == '.' && rest.size() > 1 && IsDigit(rest[1]))) {
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), token_.number);
      token_.kind = Token::Kind::kNumber;
      token_.end = at + static_cast<std::size_t>(end - rest.data());
      if (error != std::errc() || !std::isfinite(token_.number))
        static_cast<void>(Fail(at, "a number that is too large"));
    } else if (IsLetter(c)) {
      std::size_t end = 0;
      while (end < rest.size() && (IsLetter(rest[end]) || IsDigit(rest[end]))) ++end;
      token_.kind = Token::Kind::kWord;
      token_.text = rest.substr(0, end);
      token_.end = at + end;
    } else if (c == '"' || c == '\'') {
      const std::size_t end = rest.find(c, 1);
      token_.kind = Token::Kind::kText;
      token_.text = rest.substr(1, end == std::string_view::npos ? end : end - 1);
      token_.end = end == std::string_view::npos ? text.size() : at + end + 1;
      if (end == std::string_view::npos) static_cast<void>(Fail(at, "a name whose quote is not closed"));
    } else {
      token_.kind = Token::Kind::kSign;
      const bool two = rest.size() > 1 && rest[1] == '=' && (c == '<' || c == '>' || c == '=' || c == '!');
      token_.text = rest.substr(0, two ? 2 : 1);
      token_.end = at + token_.text.size();
      if (!two && std::string_view("+-*/().<>").find(c) == std::string_view::npos) {
        static_cast<void>(
            Fail(at, c == '=' ? "'=' is no operator; write '=='" : "a sign that the language does not have"));
      }
    }
  }
  [[nodiscard]] bool IsSign(std::string_view sign) const {
    return token_.kind == Token::Kind::kSign && token_.text == sign;
  }
  [[nodiscard]] bool IsWord(std::string_view word) const {
    return token_.kind == Token::Kind::kWord && token_.text == word;
  }
  [[nodiscard]] bool IsComparisonSign() const {
    return token_.kind == Token::Kind::kSign && Lookup(kComparisons, token_.text) != kComparisons.end();
  }
  bool Take(std::string_view sign) {
    if (!error_.ok() || !IsSign(sign)) return false;
    Next();
    return error_.ok();
  }
  /// Returns false after Fail.
  bool Expect(std::string_view sign, const char* where) {
    if (Take(sign)) return true;
    static_cast<void>(Fail(token_.begin, fmt::format("expected '{}' {}", sign, where)));
    return false;
  }

  // ---- the grammar

  int Truth(int n) {
    if (n >= 0 && !IsTruth(node(n).op))
      return Fail(node(n).begin, "a number, expected a condition, e.g. 'loss > 5'");
    return n;
  }
  int Number(int n) {
    if (n >= 0 && IsTruth(node(n).op)) return Fail(node(n).begin, "a condition, expected a number");
    return n;
  }

  int Either() {
    int left = Both();
    while (left >= 0 && IsWord("or")) {
      Next();
      if (Truth(left) < 0) return -1;
      const int right = Truth(Both());
      left = right < 0 ? -1 : Make(Op::kOr, left, right);
    }
    return left;
  }

  int Both() {
    int left = Not();
    while (left >= 0 && IsWord("and")) {
      Next();
      if (Truth(left) < 0) return -1;
      const int right = Truth(Not());
      left = right < 0 ? -1 : Make(Op::kAnd, left, right);
    }
    return left;
  }

  int Not() {
    if (!IsWord("not")) return Comparison();
    if (++depth_ > Expression::kMaxDepth) return Fail(token_.begin, "the condition is nested too deeply");
    Next();
    const int inner = Truth(Not());
    --depth_;
    return inner < 0 ? -1 : Make(Op::kNot, inner);
  }

  int Comparison() {
    const int left = Sum();
    if (left < 0 || !IsComparisonSign()) return left;
    const Op op = Lookup(kComparisons, token_.text)->second;
    if (Number(left) < 0) return -1;
    Next();
    const int right = Number(Sum());
    return right < 0 ? -1 : Quantify(Make(op, left, right));
  }

  int Sum() {
    int left = Product();
    while (left >= 0 && (IsSign("+") || IsSign("-"))) {
      const Op op = IsSign("+") ? Op::kAdd : Op::kSubtract;
      if (Number(left) < 0) return -1;
      Next();
      left = Make(op, left, Number(Product()));
    }
    return left;
  }

  int Product() {
    int left = Unary();
    while (left >= 0 && (IsSign("*") || IsSign("/"))) {
      const Op op = IsSign("*") ? Op::kMultiply : Op::kDivide;
      if (Number(left) < 0) return -1;
      Next();
      left = Make(op, left, Number(Unary()));
    }
    return left;
  }

  int Unary() {
    if (!error_.ok()) return -1;
    if (++depth_ > Expression::kMaxDepth) return Fail(token_.begin, "the condition is nested too deeply");
    const std::size_t begin = token_.begin;
    int made = -1;
    if (Take("-")) {
      made = Make(Op::kNegate, Number(Unary()));
      if (made >= 0) made_.nodes_.back().begin = begin;
    } else if (Take("(")) {
      made = Either();
      if (made >= 0 && !Expect(")", "here")) made = -1;
    } else {
      made = Primary();
    }
    --depth_;
    return made;
  }

  int Primary() {
    const Token token = token_;
    if (token.kind == Token::Kind::kNumber) {
      Next();
      Node made;
      made.number = token.number;
      made.begin = token.begin;
      made.end = token.end;
      return Make(made);
    }
    if (token.kind == Token::Kind::kText) {
      Next();
      if (token.text.empty()) return Fail(token.begin, "an empty name");
      return Reading(Leaf::Kind::kName, token);
    }
    if (token.kind != Token::Kind::kWord || token.text == "and" || token.text == "or") {
      return Fail(token.begin, token.kind == Token::Kind::kEnd
                                   ? "the condition ends here, expected a number or a name"
                                   : "expected a number or a name");
    }
    Next();
    if (!error_.ok()) return -1;
    if (!IsSign("(")) return Reading(token.text == "loss" ? Leaf::Kind::kLoss : Leaf::Kind::kName, token);
    if (token.text == "any" || token.text == "all") return OfGroup(token);
    const auto function = Lookup(kFunctions, token.text);
    if (function == kFunctions.end()) {
      return Fail(token.begin, fmt::format("there is no function '{}'{}; also any(\"REGEX\"), all(\"REGEX\")",
                                           token.text, Nearest(kFunctions, token.text)));
    }
    Next();
    const int inner = Number(Either());
    if (inner < 0) return -1;
    const std::size_t end = token_.end;
    if (!Expect(")", fmt::format("after what '{}' is of", token.text).c_str())) return -1;
    const int made = Make(function->second, inner);
    if (made < 0) return -1;
    made_.nodes_.back().begin = token.begin;
    made_.nodes_.back().end = end;
    return function->second == Op::kIsFinite ? Quantify(made) : made;
  }

  int OfGroup(const Token& word) {
    Next();
    const Token regex = token_;
    if (regex.kind != Token::Kind::kText) return Fail(regex.begin, "expected a regular expression in quotes");
    const Result<Regex> compiled = Regex::Compile(regex.text);
    if (!compiled.ok()) return Fail(regex.begin + 1, std::string(compiled.status().message()));
    Next();
    if (!error_.ok() || !Expect(")", "after the regular expression")) return -1;
    Token name = regex;
    name.begin = word.begin;
    return Reading(Leaf::Kind::kGroup, name, word.text == "all");
  }

  /// Parses what may follow a name: .statistic and .fold(n).
  int Reading(Leaf::Kind kind, const Token& name, bool all = false) {
    Leaf leaf;
    leaf.kind = kind;
    leaf.name = name.text;
    leaf.column = name.begin;
    Node made;
    made.op = Op::kLeaf;
    made.begin = name.begin;
    made.end = name.kind == Token::Kind::kText && kind == Leaf::Kind::kGroup ? token_.begin : name.end;
    bool stat_seen = false;
    while (error_.ok() && IsSign(".")) {
      Next();
      const Token word = token_;
      if (word.kind != Token::Kind::kWord)
        return Fail(word.begin, "expected a statistic, e.g. 'l2' or 'mean(50)'");
      Next();
      made.end = word.end;
      if (error_.ok() && IsSign("(")) {
        if (!FoldOf(word, &made)) return -1;
        break;
      }
      const auto stat = Lookup(kStats, word.text);
      if (stat == kStats.end() || stat_seen) {
        if (word.text == "last")
          return Fail(word.begin, "'last' needs a number: last(1) is the value before");
        return Fail(word.begin, stat_seen ? "a second statistic; values are folded by e.g. 'mean(50)'"
                                          : fmt::format("there is no statistic '{}'{}", word.text,
                                                        Nearest(kStats, word.text)));
      }
      stat_seen = true;
      leaf.stat = stat->second;
    }
    if (error_.ok() && IsSign(".")) return Fail(token_.begin, "nothing can follow what is folded");
    if (!error_.ok()) return -1;
    if (kind == Leaf::Kind::kGroup) leaf.group = GroupOf(leaf.name, all);
    leaf.window = made.fold == Fold::kNone ? 0 : made.n + (made.fold == Fold::kLast ? 1 : 0);
    made.leaf = LeafOf(std::move(leaf));
    return Make(made);
  }

  bool FoldOf(const Token& word, Node* made) {
    const auto fold = Lookup(kFolds, word.text);
    if (fold == kFolds.end()) {
      const bool stat = Lookup(kStats, word.text) != kStats.end();
      static_cast<void>(Fail(
          word.begin,
          stat ? fmt::format("'{}' cannot be taken of several values; there are "
                             "mean, min, max, std and last",
                             word.text)
               : fmt::format("there is no '{}' of several values{}", word.text, Nearest(kFolds, word.text))));
      return false;
    }
    Next();
    const double n = token_.number;
    if (token_.kind != Token::Kind::kNumber || n < 1 || n > static_cast<double>(Expression::kMaxWindow) ||
        n != std::floor(n)) {
      static_cast<void>(
          Fail(token_.begin,
               fmt::format("expected how many values, a whole number from 1 to {}", Expression::kMaxWindow)));
      return false;
    }
    made->fold = fold->second;
    made->n = static_cast<std::size_t>(n);
    Next();
    made->end = token_.end;
    return error_.ok() && Expect(")", "after the number");
  }

  int GroupOf(const std::string& regex, bool all) {
    for (std::size_t i = 0; i < made_.groups_.size(); ++i) {
      if (made_.groups_[i].regex == regex && made_.groups_[i].all == all) return static_cast<int>(i);
    }
    made_.groups_.push_back({regex, all});
    return static_cast<int>(made_.groups_.size()) - 1;
  }

  int LeafOf(Leaf leaf) {
    for (std::size_t i = 0; i < made_.leaves_.size(); ++i) {
      Leaf& known = made_.leaves_[i];
      if (known.kind != leaf.kind || known.name != leaf.name || known.stat != leaf.stat ||
          known.group != leaf.group)
        continue;
      known.window = std::max(known.window, leaf.window);
      return static_cast<int>(i);
    }
    made_.leaves_.push_back(std::move(leaf));
    return static_cast<int>(made_.leaves_.size()) - 1;
  }

  /// Sets the group whose tensors a comparison checks. Fails if it reads two groups.
  int Quantify(int n) {
    if (n < 0) return -1;
    int group = -1;
    std::vector<int> open = {n};
    while (!open.empty()) {
      const Node& one = node(open.back());
      open.pop_back();
      if (one.right >= 0) open.push_back(one.right);
      if (one.left >= 0) open.push_back(one.left);  // visited first
      if (one.leaf < 0) continue;
      const int of_leaf = made_.leaves_[static_cast<std::size_t>(one.leaf)].group;
      if (of_leaf < 0) continue;
      if (group >= 0 && group != of_leaf) {
        return Fail(
            one.begin,
            "a second group of tensors in one comparison; both sides must ask the same any(…) or all(…)");
      }
      group = of_leaf;
    }
    made_.nodes_[static_cast<std::size_t>(n)].group = group;
    return n;
  }

  Expression made_;
  Token token_;
  Status error_;
  int depth_ = 0;
};

Result<Expression> Expression::ParseUntrusted(std::string_view text) {
  return ExpressionParser(text).Parse();
}

}  // namespace luff::rules
