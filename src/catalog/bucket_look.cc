#include "catalog/bucket_look.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/format.h"
#include "base/hex_id.h"
#include "catalog/bucket_card.h"

namespace luff::catalog {
namespace {

constexpr std::size_t kMaxLookLine = 4096;
constexpr std::size_t kDropAfter = 1 << 20;  // bytes that were read are dropped in pieces of this

/// The next word of a line, and the line behind it.
std::string_view NextWord(std::string_view* line) {
  const std::size_t end = std::min(line->find(' '), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(std::min(end + 1, line->size()));
  return word;
}

template <typename Number>
bool ReadNumber(std::string_view word, Number* number) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *number);
  return error == std::errc() && end == word.data() + word.size();
}

}  // namespace

Result<LookReader::Item> LookReader::Next() {
  if (at_ > kDropAfter) {
    bytes_.erase(0, at_);
    at_ = 0;
  }
  const std::size_t end = bytes_.find('\n', at_);
  if (end == std::string::npos)
    return bytes_.size() - at_ > kMaxLookLine ? Result<Item>(Corruption("found a line without an end"))
                                              : Result<Item>(Item());
  return Line(std::string_view(bytes_).substr(at_, end - at_), end + 1);
}

Result<LookReader::Item> LookReader::Line(std::string_view line, std::size_t after) {
  const std::string_view whole = line;
  const std::string_view kind = NextWord(&line);
  Item item;
  if (kind == "." && line.empty()) {
    item.kind = Kind::kEnd;
  } else if (kind == "#" && ReadNumber(line, &item.count)) {
    item.kind = Kind::kCount;
  } else if (kind == "!" || kind == "E") {
    item.kind = kind == "!" ? Kind::kNote : Kind::kError;
    item.text = line.substr(0, kMaxLookLine);
  } else if (kind == "=" || kind == "+") {
    item.kind = Kind::kRun;
    item.run.run_id = NextWord(&line);
    bool good =
        IsHexId(item.run.run_id) && ReadNumber(NextWord(&line), &item.run.stamp) && item.run.stamp != 0;
    if (kind == "+") {
      std::size_t size = 0;
      good = good && ReadNumber(NextWord(&line), &item.run.heard_unix_ns) &&
             ReadNumber(NextWord(&line), &size) && size <= kMaxBucketCard;
      if (good && bytes_.size() - after < size + 1) return Item();
      if (good) {
        item.run.card = bytes_.substr(after, size);
        after += size + 1;
      }
    }
    if (!good || !line.empty())
      return Corruption(fmt::format("found '{}' in a list of cards", whole.substr(0, 100)));
  } else {
    return Corruption(fmt::format("found '{}' in a list of cards", whole.substr(0, 100)));
  }
  at_ = after;
  return item;
}

}  // namespace luff::catalog
