#include "catalog/query.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/format.h"
#include "base/text_escape.h"

namespace luff::catalog {
namespace {

struct Word {
  enum class Kind : std::uint8_t { kName, kText, kOp, kOpen, kClose, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;
  std::size_t at = 0;
};

bool IsNameByte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return std::isalnum(byte) != 0 || byte >= 0x80 ||
         std::string_view("_./:@+-*%").find(c) != std::string_view::npos;
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Result<std::vector<Word>> WordsOf(std::string_view text) {
  std::vector<Word> words;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    const std::size_t at = i;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
    } else if (c == '(' || c == ')') {
      words.push_back({c == '(' ? Word::Kind::kOpen : Word::Kind::kClose, std::string(1, c), at});
      ++i;
    } else if (c == '\'' || c == '"') {
      const std::size_t end = text.find(c, i + 1);
      if (end == std::string_view::npos)
        return InvalidArgument(
            fmt::format("the quote at column {} is not closed: {}", at + 1, Escaped(text)));
      words.push_back({Word::Kind::kText, std::string(text.substr(i + 1, end - i - 1)), at});
      i = end + 1;
    } else if (std::string_view("=!<>~").find(c) != std::string_view::npos) {
      ++i;
      if (i < text.size() && text[i] == '=') ++i;
      words.push_back({Word::Kind::kOp, std::string(text.substr(at, i - at)), at});
    } else if (IsNameByte(c)) {
      while (i < text.size() && IsNameByte(text[i])) ++i;
      words.push_back({Word::Kind::kName, std::string(text.substr(at, i - at)), at});
    } else {
      return InvalidArgument(
          fmt::format("found '{}' at column {}, expected a name, a value, =, !=, <, <=, >, >=, ~ or "
                      "a parenthesis; put texts in quotes: {}",
                      Escaped(text.substr(i, 1)), at + 1, Escaped(text)));
    }
  }
  words.push_back({Word::Kind::kEnd, "", text.size()});
  return words;
}

// "2026-11-24" or "2026-11-24T18:30": local time.
bool ParseDate(const std::string& text, double* seconds) {
  std::tm local{};
  const char* rest = strptime(text.c_str(), "%Y-%m-%d", &local);
  if (rest == nullptr || text.size() < 10) return false;
  if (*rest == 'T') {
    const char* after = strptime(rest, "T%H:%M:%S", &local);
    rest = after != nullptr ? after : strptime(rest, "T%H:%M", &local);
  }
  if (rest == nullptr || *rest != 0) return false;
  local.tm_isdst = -1;
  const std::time_t time = std::mktime(&local);
  *seconds = static_cast<double>(time);
  return time != -1;
}

// A number, or a duration: 90s, 10m, 2h, 1d.
bool ParseNumber(const std::string& text, double* number) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || std::isnan(value)) return false;
  const std::string unit = end;
  const double factor = unit.empty()  ? 1
                        : unit == "s" ? 1
                        : unit == "m" ? 60
                        : unit == "h" ? 3600
                        : unit == "d" ? 86400
                                      : 0;
  *number = value * factor;
  return factor != 0;
}

class Parser {
 public:
  Parser(std::string_view text, std::vector<Word> words) : text_(text), words_(std::move(words)) {}

  Result<Condition> Whole() {
    LUFF_ASSIGN_OR_RETURN(Condition condition, Either(0));
    if (Now().kind != Word::Kind::kEnd) return Unexpected("and, or, or the end");
    return condition;
  }

 private:
  [[nodiscard]] const Word& Now() const { return words_[at_]; }
  [[nodiscard]] bool Is(const char* word) const {
    return Now().kind == Word::Kind::kName && Lower(Now().text) == word;
  }

  [[nodiscard]] Status Unexpected(std::string_view expected) const {
    const std::string found = Now().kind == Word::Kind::kEnd ? "the end" : "'" + Escaped(Now().text) + "'";
    return InvalidArgument(
        fmt::format("found {} at column {}, expected {}: {}", found, Now().at + 1, expected, Escaped(text_)));
  }

  Result<Condition> Joined(std::size_t depth, Condition::Kind kind, const char* word,
                           Result<Condition> (Parser::*part)(std::size_t)) {
    LUFF_ASSIGN_OR_RETURN(Condition first, (this->*part)(depth));
    if (!Is(word)) return first;
    Condition all;
    all.kind = kind;
    all.parts.push_back(std::move(first));
    while (Is(word)) {
      ++at_;
      LUFF_ASSIGN_OR_RETURN(Condition next, (this->*part)(depth));
      all.parts.push_back(std::move(next));
    }
    return all;
  }
  Result<Condition> Either(std::size_t depth) {
    return Joined(depth, Condition::Kind::kOr, "or", &Parser::Both);
  }
  Result<Condition> Both(std::size_t depth) {
    return Joined(depth, Condition::Kind::kAnd, "and", &Parser::One);
  }

  Result<Condition> One(std::size_t depth) {
    if (depth > kMaxDepth || ++count_ > kMaxConditions)
      return InvalidArgument(fmt::format(
          "the condition is nested more than {} deep, or has more than {} parts", kMaxDepth, kMaxConditions));
    if (Is("not")) {
      ++at_;
      Condition inverse;
      inverse.kind = Condition::Kind::kNot;
      LUFF_ASSIGN_OR_RETURN(Condition part, One(depth + 1));
      inverse.parts.push_back(std::move(part));
      return inverse;
    }
    if (Now().kind == Word::Kind::kOpen) {
      ++at_;
      LUFF_ASSIGN_OR_RETURN(Condition inner, Either(depth + 1));
      if (Now().kind != Word::Kind::kClose) return Unexpected("and, or, or ')'");
      ++at_;
      return inner;
    }
    return Comparison();
  }

  Result<Condition> Comparison() {
    static const std::pair<std::string_view, Condition::Op> kOps[] = {
        {"=", Condition::Op::kEqual},         {"==", Condition::Op::kEqual},
        {"!=", Condition::Op::kUnequal},      {"<", Condition::Op::kLess},
        {"<=", Condition::Op::kLessEqual},    {">", Condition::Op::kGreater},
        {">=", Condition::Op::kGreaterEqual}, {"~", Condition::Op::kContains}};
    Condition one;
    if (Now().kind != Word::Kind::kName && Now().kind != Word::Kind::kText)
      return Unexpected("the name of a field");
    one.field = Now().text;
    one.column = Now().at + 1;
    ++at_;
    const auto op = std::find_if(std::begin(kOps), std::end(kOps),
                                 [&](const auto& known) { return known.first == Now().text; });
    if (Now().kind != Word::Kind::kOp || op == std::end(kOps)) return Unexpected("=, !=, <, <=, >, >= or ~");
    one.op = op->second;
    ++at_;
    if (Now().kind != Word::Kind::kName && Now().kind != Word::Kind::kText) return Unexpected("a value");
    one.text = Now().text;
    if (Now().kind == Word::Kind::kName)
      one.is_number = ParseDate(one.text, &one.number) || ParseNumber(one.text, &one.number);
    ++at_;
    return one;
  }

  const std::string_view text_;
  const std::vector<Word> words_;
  std::size_t at_ = 0, count_ = 0;
};

}  // namespace

Result<Condition> ParseCondition(std::string_view text) {
  LUFF_ASSIGN_OR_RETURN(std::vector<Word> words, WordsOf(text));
  return Parser(text, std::move(words)).Whole();
}

}  // namespace luff::catalog
