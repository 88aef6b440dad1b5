#include "base/json_scan.h"

#include <cstring>

#include "base/text_escape.h"

namespace luff {
namespace {

bool IsDigit(char c) noexcept { return c >= '0' && c <= '9'; }

}  // namespace

bool JsonScan::Hex4(std::uint32_t* to) {
  if (text_.size() - at_ < 4) return Fail("four hexadecimal digits");
  *to = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = text_[at_++];
    const int digit = IsDigit(c)             ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return Fail("four hexadecimal digits");
    *to = *to << 4 | static_cast<std::uint32_t>(digit);
  }
  return true;
}

/// Precondition: at_ is at the first backslash of a string that begins at `from`.
bool JsonScan::Unescape(std::size_t from, std::string_view* to) {
  std::string& text = unescaped_->emplace_back(text_.substr(from, at_ - from));
  while (at_ < text_.size() && text_[at_] != '"') {
    const char c = text_[at_++];
    if (c != '\\') {
      text += c;
      continue;
    }
    if (at_ == text_.size()) break;
    const char escaped = text_[at_++];
    switch (escaped) {
      case '"':
      case '\\':
      case '/': text += escaped; break;
      case 'b': text += '\b'; break;
      case 'f': text += '\f'; break;
      case 'n': text += '\n'; break;
      case 'r': text += '\r'; break;
      case 't': text += '\t'; break;
      case 'u': {
        std::uint32_t code = 0;
        if (!Hex4(&code)) return false;
        if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
          at_ += 2;
          std::uint32_t low = 0;
          if (!Hex4(&low)) return false;
          if (low < 0xDC00 || low > 0xDFFF) return Fail("the second half of a character");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xD800 && code <= 0xDFFF) {
          code = 0xFFFD;
        }
        AppendUtf8(code, &text);
        break;
      }
      default: return Fail("an escape that JSON has");
    }
  }
  if (at_ == text_.size()) return Fail("the end of a string");
  ++at_;
  *to = text;
  return true;
}

bool JsonScan::String(std::string_view* to) {
  if (failed_) return false;
  if (Peek() != '"') return Fail("a string");
  const std::size_t from = ++at_;
  const char* begin = text_.data() + from;
  const auto* end = static_cast<const char*>(std::memchr(begin, '"', text_.size() - from));
  if (end == nullptr) {
    at_ = text_.size();
    return Fail("the end of a string");
  }
  const auto size = static_cast<std::size_t>(end - begin);
  if (const auto* escape = static_cast<const char*>(std::memchr(begin, '\\', size)); escape != nullptr) {
    at_ = from + static_cast<std::size_t>(escape - begin);
    return Unescape(from, to);
  }
  *to = {begin, size};
  at_ = from + size + 1;
  return true;
}

bool JsonScan::Integer(std::int64_t* to) {
  if (failed_) return false;
  const bool negative = Peek() == '-';
  if (negative) ++at_;
  const std::size_t from = at_;
  std::uint64_t value = 0;
  for (; at_ < text_.size() && IsDigit(text_[at_]); ++at_) {
    if (value > (std::uint64_t{1} << 60)) return Fail("an integer of 63 bits at most");
    value = value * 10 + static_cast<std::uint64_t>(text_[at_] - '0');
  }
  if (at_ == from) return Fail("an integer");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E'))
    return Fail("an integer");
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return Fail("an integer of 63 bits at most");
  *to = negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
  return true;
}

bool JsonScan::Natural(std::uint64_t* to, const char* what) {
  std::int64_t value = 0;
  if (!Integer(&value)) return false;
  if (value < 0) return Fail(what);
  *to = static_cast<std::uint64_t>(value);
  return true;
}

bool JsonScan::Skip() {
  if (failed_) return false;
  std::string_view text;
  switch (Peek()) {
    case '{': {
      if (!BeginObject()) return false;
      while (NextKey(&text)) {
        if (!Skip()) return false;
      }
      return !failed_;
    }
    case '[': {
      if (!BeginArray()) return false;
      while (NextElement()) {
        if (!Skip()) return false;
      }
      return !failed_;
    }
    case '"': return String(&text);
    case 't': return Word("true");
    case 'f': return Word("false");
    case 'n': return Word("null");
    default: {
      const std::size_t from = at_;
      while (at_ < text_.size() && (IsDigit(text_[at_]) || std::strchr("+-.eE", text_[at_]) != nullptr))
        ++at_;
      return at_ != from || Fail("a value");
    }
  }
}

Status JsonScan::status() const {
  if (!failed_) return Status::Ok();
  std::string found = at_ < text_.size() ? "'" + std::string(1, text_[at_]) + "'" : "the end of the file";
  if (at_ < text_.size() &&
      (static_cast<unsigned char>(text_[at_]) < 0x20 || static_cast<unsigned char>(text_[at_]) > 0x7E)) {
    found = "byte " + std::to_string(static_cast<unsigned char>(text_[at_]));
  }
  return Corruption("found " + found + " at byte " + std::to_string(at_) + ", expected " + expected_);
}

}  // namespace luff
