#include "keys/public_key.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/nearest_names.h"

namespace luff::keys {
namespace {

constexpr std::uint64_t kMaxListBytes = 64 << 10;

bool Digits(std::string_view text, std::size_t at, std::size_t count, int* number) {
  if (at + count > text.size()) return false;
  const char* const end = text.data() + at + count;
  const auto [stopped, error] = std::from_chars(text.data() + at, end, *number);
  return error == std::errc() && stopped == end && text[at] != '-';
}

}  // namespace

bool PublicKey::May(std::string_view right) const { return std::ranges::find(may, right) != may.end(); }

Status CheckId(std::string_view id) {
  const bool good = !id.empty() && id.size() <= kMaxIdBytes && std::ranges::all_of(id, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '@';
  });
  if (good) return Status::Ok();
  return InvalidArgument(
      fmt::format("the id of a key is 1 to {} letters, digits, '.', '_', '-' and '@'", kMaxIdBytes));
}

Status CheckRight(std::string_view right) {
  if (std::ranges::find(kRights, right) != std::end(kRights)) return Status::Ok();
  const std::vector<std::string> known(std::begin(kRights), std::end(kRights));
  return InvalidArgument(fmt::format("'{}' is nothing that a key may be allowed{}; there are {}", right,
                                     NearestText(std::string(right), known), fmt::join(known, ", ")));
}

Status CheckKeys(std::span<const PublicKey> keys) {
  if (keys.size() > kMaxKeys)
    return InvalidArgument(fmt::format("{} keys, expected at most {}", keys.size(), kMaxKeys));
  std::set<std::string> ids;
  for (const PublicKey& key : keys) {
    LUFF_RETURN_IF_ERROR(CheckId(key.id));
    if (key.ed25519.size() != kPublicBytes)
      return InvalidArgument(fmt::format(
          "'ed25519' of key '{}' is no base64 of 32 bytes, as `luff keys new` prints it", key.id));
    if (!ids.insert(key.id).second) return InvalidArgument(fmt::format("two keys have the id '{}'", key.id));
    for (const std::string& right : key.may) LUFF_RETURN_IF_ERROR(CheckRight(right));
  }
  return Status::Ok();
}

const PublicKey* FindKey(std::span<const PublicKey> keys, std::string_view id) {
  const auto at = std::ranges::find(keys, id, &PublicKey::id);
  return at == keys.end() ? nullptr : &*at;
}

Result<std::int64_t> ParseTime(std::string_view text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  bool good = Digits(text, 0, 4, &year) && Digits(text, 5, 2, &month) && Digits(text, 8, 2, &day) &&
              text[4] == '-' && text[7] == '-';
  if (good && text.size() != 10) {
    good = text.size() == 20 && text[10] == 'T' && text[13] == ':' && text[16] == ':' && text[19] == 'Z' &&
           Digits(text, 11, 2, &hour) && Digits(text, 14, 2, &minute) && Digits(text, 17, 2, &second) &&
           hour < 24 && minute < 60 && second < 60;
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!good || year < 1970 || !date.ok())
    return InvalidArgument(fmt::format("'{}' is no time; expected e.g. 2027-01-31, or 2027-01-31T12:00:00Z",
                                       text.substr(0, 40)));
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return std::int64_t{days} * 86400 + hour * 3600 + minute * 60 + second;
}

std::string TimeOf(std::int64_t unix_s) {
  const std::chrono::sys_seconds time{std::chrono::seconds(unix_s)};
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count());
}

std::string Base64Of(std::string_view bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the terminating zero
  return text;
}

std::string FromBase64(std::string_view text, std::size_t most) {
  std::string bytes(most, '\0');
  std::size_t size = 0;
  if (text.size() > 4 * (most / 3 + 1) ||
      sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &size, nullptr, sodium_base64_VARIANT_ORIGINAL) != 0)
    return {};
  bytes.resize(size);
  return bytes;
}

std::string KeysText(std::span<const PublicKey> keys) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PublicKey& key : keys) {
    list.push_back({{"id", key.id},
                    {"ed25519", Base64Of(key.ed25519)},
                    {"may", key.may},
                    {"expires_unix_s", key.expires_unix_s}});
  }
  return JsonText(nlohmann::ordered_json{{"keys", std::move(list)}});
}

Result<std::vector<PublicKey>> ParseKeysUntrusted(std::string_view text) {
  const nlohmann::json json = TryParseJson(text, {.bytes = kMaxListBytes, .depth = 8});
  const auto list = json.is_object() ? json.find("keys") : json.end();
  if (!json.is_object() || list == json.end() || !list->is_array() || list->size() > kMaxKeys)
    return Corruption("this is no list of keys");
  std::vector<PublicKey> keys;
  for (const nlohmann::json& one : *list) {
    if (!one.is_object()) return Corruption("a key is no object");
    PublicKey key;
    key.id = TextMember(one, "id");
    key.ed25519 = FromBase64(TextMember(one, "ed25519"), kPublicBytes);
    key.expires_unix_s = WholeMember(one, "expires_unix_s", -1);
    const auto may = one.find("may");
    if (may == one.end() || !may->is_array() || may->size() > 64 || key.expires_unix_s < 0)
      return Corruption("a key without 'may' or 'expires_unix_s'");
    for (const nlohmann::json& right : *may) {
      // A right of a newer Luff is nothing that this one could check.
      if (right.is_string() && CheckRight(right.get<std::string>()).ok())
        key.may.push_back(right.get<std::string>());
    }
    keys.push_back(std::move(key));
  }
  if (const Status good = CheckKeys(keys); !good.ok()) return Corruption(std::string(good.message()));
  return keys;
}

}  // namespace luff::keys
