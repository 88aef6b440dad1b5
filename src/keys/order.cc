#include "keys/order.h"

#include <algorithm>
#include <array>
#include <exception>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/hex_id.h"
#include "base/json.h"
#include "base/json_number.h"
#include "base/text_escape.h"
#include "luff/base/env.h"

namespace luff::keys {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kDomain =
    "luff-request-v1\n";  // so that no signature for something else counts here
constexpr std::size_t kDepth = 16;
constexpr std::int64_t kSecondNs = 1'000'000'000;

bool Verifies(const store::ControlRecord& record, const PublicKey& key) {
  const std::string signature = FromBase64(record.signature, crypto_sign_BYTES);
  if (signature.size() != crypto_sign_BYTES) return false;
  const std::string message = std::string(kDomain) + record.signed_text;
  return crypto_sign_verify_detached(reinterpret_cast<const unsigned char*>(signature.data()),
                                     reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                     reinterpret_cast<const unsigned char*>(key.ed25519.data())) == 0;
}

/// "40 s", "12 min", "3.2 h", "5 days".
std::string Long(std::int64_t ns) {
  const double s = static_cast<double>(ns) / 1e9;
  if (s < 100) return fmt::format("{:.0f} s", s);
  if (s < 6000) return fmt::format("{:.0f} min", s / 60);
  return s < 100 * 3600.0 ? fmt::format("{:.1f} h", s / 3600) : fmt::format("{:.0f} days", s / 86400);
}

std::string KnownText(std::span<const PublicKey> keys) {
  if (keys.empty()) return "this job knows no key";
  std::string text = "this job knows ";
  for (std::size_t i = 0; i < keys.size() && i < 5; ++i) text += (i == 0 ? "" : ", ") + keys[i].id;
  return keys.size() > 5 ? text + ", …" : text;
}

Status CheckTimes(const Order& order, std::int64_t now) {
  const std::string clocks = "; compare the clocks of the two machines, and sign it again";
  if (now >= order.not_after_unix_ns) {
    return FailedPrecondition(fmt::format("its signature has expired {} ago by this machine's clock{}",
                                          Long(now - order.not_after_unix_ns), clocks));
  }
  const std::int64_t left = order.not_after_unix_ns - now;
  if (left <= kLongestNs) return Status::Ok();
  const std::int64_t validity =
      order.not_after_unix_ns - std::min(order.created_unix_ns, order.not_after_unix_ns);
  if (validity > kLongestNs)
    return FailedPrecondition(
        fmt::format("it was signed to count for {}, and 10 min are the most", Long(validity)));
  return FailedPrecondition(fmt::format("it was signed {} in the future by this machine's clock{}",
                                        Long(order.created_unix_ns - now), clocks));
}

}  // namespace

std::string RightOf(const Order& order) {
  return order.kind == "request" ? TextMember(TryParseOrderedJson(order.body), "action") : order.kind;
}

std::string OrderText(const Order& order) {
  Json json{{"version", 1},
            {"run_id", order.run_id},
            {"nonce", order.nonce},
            {"kind", order.kind},
            {"body", TryParseOrderedJson(order.body)},
            {"finding", order.finding},
            {"reason", order.reason},
            {"author", order.author},
            {"created_unix_ns", order.created_unix_ns},
            {"not_after_unix_ns", order.not_after_unix_ns}};
  return JsonText(json);
}

Result<Order> ParseOrderUntrusted(std::string_view text) {
  if (text.size() > kMaxObjectBytes) return Corruption("the signed text is larger than 64 KiB");
  try {
    const nlohmann::json json = TryParseJson(text, {kMaxObjectBytes, kDepth});
    if (!json.is_object()) return Corruption("the signed text is no JSON object");
    if (const std::int64_t version = WholeMember(json, "version", -1); version != 1) {
      return Status(
          StatusCode::kUnsupportedVersion,
          fmt::format(
              "found version {} of a signed request, this Luff knows 1; sign it with the Luff that the "
              "job has",
              version));
    }
    constexpr std::array<std::string_view, 10> kMembers = {
        "version",         "run_id",           "nonce", "kind", "body", "finding", "reason", "author",
        "created_unix_ns", "not_after_unix_ns"};
    for (const auto& [name, value] : json.items()) {
      // What is not understood might take back the rest.
      if (std::ranges::find(kMembers, name) == kMembers.end())
        return Corruption(fmt::format("the signed text has a member '{}' that this Luff does not know",
                                      name.substr(0, 40)));
    }
    Order order;
    order.run_id = TextMember(json, "run_id");
    order.nonce = TextMember(json, "nonce");
    order.kind = TextMember(json, "kind");
    order.finding = TextMember(json, "finding");
    order.reason = TextMember(json, "reason");
    order.author = TextMember(json, "author");
    order.created_unix_ns = WholeNumber<std::int64_t>(json, "created_unix_ns", -1);
    order.not_after_unix_ns = WholeNumber<std::int64_t>(json, "not_after_unix_ns", -1);
    const auto body = json.find("body");
    if (!IsHexId(order.run_id)) return Corruption("the signed text has no 'run_id' of 32 hexadecimal digits");
    if (!IsHexId(order.nonce)) return Corruption("the signed text has no 'nonce' of 32 hexadecimal digits");
    if (order.kind != "request" && order.kind != "mark" && order.kind != "label")
      return Corruption("the signed text is neither request, mark nor label");
    if (body == json.end() || !body->is_object()) return Corruption("the signed text has no object 'body'");
    if (order.created_unix_ns < 0 || order.not_after_unix_ns < 0)
      return Corruption("the signed text has no 'created_unix_ns' or 'not_after_unix_ns'");
    order.body = JsonText(*body);
    return order;
  } catch (const std::exception& error) {
    return Corruption(std::string("the signed text: ") + error.what());
  }
}

namespace {

using Nonce = std::array<unsigned char, kHexIdDigits / 2>;

Status SignWith(const SecretKey& key, const std::string& run_id, std::int64_t valid_ns, const Nonce& nonce,
                store::ControlRecord* record) {
  if (valid_ns <= 0 || valid_ns > kLongestNs) return InvalidArgument("a signature counts for at most 10 min");
  Order order;
  order.run_id = run_id;
  for (const unsigned char byte : nonce) order.nonce += fmt::format("{:02x}", byte);
  order.kind = record->kind;
  order.body = record->body;
  order.finding = record->finding;
  order.reason = record->reason;
  order.author = record->author;
  order.created_unix_ns = Env::Real().NowUnixNs();
  order.not_after_unix_ns = order.created_unix_ns + valid_ns;
  record->signed_text = OrderText(order);
  LUFF_RETURN_IF_ERROR(ParseOrderUntrusted(record->signed_text).status());
  record->key_id = key.id();
  record->signature = Base64Of(key.Sign(std::string(kDomain) + record->signed_text));
  record->created_unix_ns = order.created_unix_ns;
  if (ObjectText(*record).size() > kMaxObjectBytes)
    return OutOfRange("the request is larger than 64 KiB; ask for less at once");
  return Status::Ok();
}

}  // namespace

Status SignRecord(const SecretKey& key, const std::string& run_id, std::int64_t valid_ns,
                  store::ControlRecord* record) {
  Nonce random{};
  randombytes_buf(random.data(), random.size());
  return SignWith(key, run_id, valid_ns, random, record);
}

Status SignRecordOnce(const SecretKey& key, const std::string& run_id, std::int64_t valid_ns,
                      const std::string& of, store::ControlRecord* record) {
  Nonce nonce{};
  crypto_generichash(nonce.data(), nonce.size(), reinterpret_cast<const unsigned char*>(of.data()), of.size(),
                     nullptr, 0);
  return SignWith(key, run_id, valid_ns, nonce, record);
}

std::string ObjectText(const store::ControlRecord& record) {
  return JsonText(Json{{"version", 1},
                       {"key_id", record.key_id},
                       {"signature", record.signature},
                       {"signed", record.signed_text}}) +
         "\n";
}

Result<store::ControlRecord> ParseObjectUntrusted(std::string_view bytes) {
  if (bytes.size() > kMaxObjectBytes)
    return OutOfRange("the object is larger than 64 KiB, so it was not read");
  const nlohmann::json json = TryParseJson(bytes, {kMaxObjectBytes, kDepth});
  if (!json.is_object() || !json.contains("version"))
    return Corruption("the object is no request: no JSON object with 'version'");
  if (const std::int64_t version = WholeMember(json, "version", -1); version != 1) {
    return Status(
        StatusCode::kUnsupportedVersion,
        fmt::format(
            "found version {} of a request, this Luff knows 1; sign it with the Luff that the job has",
            version));
  }
  store::ControlRecord record;
  record.key_id = TextMember(json, "key_id");
  record.signature = TextMember(json, "signature");
  record.signed_text = TextMember(json, "signed");
  return record;
}

bool IsSigned(const store::ControlRecord& record, std::span<const PublicKey> keys) {
  const PublicKey* key = FindKey(keys, record.key_id);
  return key != nullptr && Verifies(record, *key);
}

Result<Order> CheckRecord(const store::ControlRecord& record, std::span<const PublicKey> keys,
                          const std::string& run_id, std::int64_t now) {
  if (record.key_id.empty() || record.signature.empty() || record.signed_text.empty())
    return FailedPrecondition("it is not signed, and this job has keys; sign it with --key FILE");
  if (record.signed_text.size() > kMaxObjectBytes) return FailedPrecondition("it is larger than 64 KiB");
  const PublicKey* key = FindKey(keys, record.key_id);
  const std::string named = Escaped(record.key_id.substr(0, kMaxIdBytes));
  if (key == nullptr) {
    return FailedPrecondition(
        fmt::format("no key '{}' is in [control] of the job's luff.toml; {}", named, KnownText(keys)));
  }
  if (!Verifies(record, *key)) {
    return FailedPrecondition(fmt::format(
        "the signature is not one of key '{}': it was changed, or another key of that name signed it",
        named));
  }
  if (key->expired(now / kSecondNs)) {
    return FailedPrecondition(
        fmt::format("key '{}' has expired on {}; give it a later day in luff.toml, or use another", named,
                    TimeOf(key->expires_unix_s)));
  }
  auto order = ParseOrderUntrusted(record.signed_text);
  if (!order.ok()) return FailedPrecondition(std::string(order.status().message()));
  if (order->run_id != run_id)
    return FailedPrecondition(fmt::format("it is for another run, {}; sign it for this one", order->run_id));
  LUFF_RETURN_IF_ERROR(CheckTimes(*order, now));
  if (const std::string right = RightOf(*order); !key->May(right)) {
    return FailedPrecondition(
        fmt::format("key '{}' may not {}; it may {}", named, Escaped(right.substr(0, 40)),
                    key->may.empty() ? "do nothing" : fmt::format("{}", fmt::join(key->may, ", "))));
  }
  return order;
}

}  // namespace luff::keys
