#pragma once
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>

#include "luff/base/status.h"

namespace luff {

/// Reads JSON without building a tree: callers open thousands of small files at once, and a tree takes ten
/// times the memory of its text. Accepts what RFC 8259 allows, without checking UTF-8, nested at most 64
/// deep. The first mistake ends the scan: every later call fails too. **Thread-compatible.**
class JsonScan {
 public:
  JsonScan(std::string_view text, std::deque<std::string>* unescaped) : text_(text), unescaped_(unescaped) {}

  /// Reads '{'. Use: `if (!scan.BeginObject()) ...; for (std::string_view key; scan.NextKey(&key);) ...`.
  /// Every value must be read or skipped.
  bool BeginObject() { return Begin('{'); }
  bool NextKey(std::string_view* key) {
    if (!NextItem('}')) return false;
    return String(key) && Expect(':');
  }
  bool BeginArray() { return Begin('['); }
  bool NextElement() { return NextItem(']'); }

  bool String(std::string_view* to);
  bool Integer(std::int64_t* to);
  bool Natural(std::uint64_t* to, const char* what);
  bool Null() { return Word("null"); }
  /// Skips any value.
  bool Skip();
  /// True if nothing but blanks is left.
  bool End() {
    Blanks();
    return failed_ || at_ == text_.size() ? !failed_ : Fail("the end");
  }
  [[nodiscard]] char Peek() {
    Blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool Fail(const char* expected) {
    if (!failed_) {
      failed_ = true;
      expected_ = expected;
    }
    return false;
  }
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  /// Offset of the next byte; after a mistake, the offset of the mistake.
  [[nodiscard]] std::size_t at() const noexcept { return at_; }
  /// After a mistake: kCorruption, with what was found, what was expected, and where.
  [[nodiscard]] Status status() const;

 private:
  static constexpr int kMaxDepth = 64;  // as JsonLimits

  void Blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  bool Begin(char open) {
    if (failed_) return false;
    if (Peek() != open) return Fail(open == '{' ? "an object" : "an array");
    if (++depth_ > kMaxDepth) return Fail("fewer objects in one another");
    ++at_;
    first_ = true;
    return true;
  }
  bool NextItem(char close) {
    if (failed_) return false;
    if (Peek() == close) {
      ++at_;
      --depth_;
      first_ = false;
      return false;
    }
    if (first_) {
      first_ = false;
      return true;
    }
    return Expect(',');
  }
  bool Expect(char c) {
    if (failed_) return false;
    if (Peek() != c) return Fail(c == ',' ? "',' or the end of a list" : "':'");
    ++at_;
    return true;
  }
  bool Word(std::string_view word) {
    if (failed_) return false;
    Blanks();
    if (text_.substr(at_, word.size()) != word) return Fail("a value");
    at_ += word.size();
    return true;
  }
  bool Unescape(std::size_t from, std::string_view* to);
  bool Hex4(std::uint32_t* to);

  std::string_view text_;
  std::deque<std::string>* unescaped_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool first_ = false, failed_ = false;
  const char* expected_ = "";
};

}  // namespace luff
