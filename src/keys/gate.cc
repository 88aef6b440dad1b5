#include "keys/gate.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "keys/order.h"

namespace luff::keys {
namespace {

/// What the last record `keys` says; no keys if there is none. Errors: those of reading; kCorruption if a
/// record cannot be read, which may be the one.
Result<std::vector<PublicKey>> ReadKeysOfRun(const std::string& run) {
  std::vector<std::string> unreadable;
  LUFF_ASSIGN_OR_RETURN(const auto records, store::ReadControl(run, 0, &unreadable));
  const store::ControlRecord* last = nullptr;
  for (const store::ControlRecord& record : records) {
    if (record.kind == "keys") last = &record;
  }
  if (!unreadable.empty()) return Corruption(unreadable.front());
  if (last == nullptr) return std::vector<PublicKey>();
  return ParseKeysUntrusted(last->body);
}

/// JSON of both is the same, without the number of an object of a bucket, which the supervisor adds.
bool SameBody(const std::string& beside, const std::string& signed_body) {
  auto one = TryParseJson(beside), other = TryParseJson(signed_body);
  if (one.is_object()) one.erase("object");
  return (beside.empty() && signed_body.empty()) || (!one.is_discarded() && one == other);
}

}  // namespace

Result<store::ControlRecord> KeyGate::Check(const store::ControlRecord& record, std::int64_t now_unix_ns,
                                            std::string* nonce) const {
  LUFF_ASSIGN_OR_RETURN(const Order order, CheckRecord(record, keys_, run_id_, now_unix_ns));
  if (nonces_.contains(order.nonce))
    return FailedPrecondition("it was here before: a signature counts once; sign it again to ask again");
  store::ControlRecord good;
  good.number = record.number;
  good.created_unix_ns = record.created_unix_ns;
  good.kind = order.kind;
  good.body = order.body;
  good.finding = order.finding;
  good.reason = order.reason;
  good.author = fmt::format("{} (key {})", order.author, record.key_id);
  good.key_id = record.key_id;
  good.signature = record.signature;
  good.signed_text = record.signed_text;
  *nonce = order.nonce;
  return good;
}

Result<store::ControlRecord> KeyGate::Admit(const store::ControlRecord& record, std::int64_t now_unix_ns) {
  std::string nonce;
  auto good = Check(record, now_unix_ns, &nonce);
  if (!good.ok()) return good;
  // A label that was signed must not be written as a request, or the other way round.
  if (good->kind != record.kind)
    return FailedPrecondition(
        fmt::format("what was signed is a {}, and the record a {}", good->kind, record.kind));
  // Readers show what stands beside the signed text.
  if (!SameBody(record.body, good->body) || record.finding != good->finding || record.reason != good->reason)
    return FailedPrecondition("what was signed is not what the record says");
  nonces_.insert(std::move(nonce));
  return good;
}

void KeyGate::Remember(const store::ControlRecord& record) {
  if (!IsSigned(record, keys_)) return;
  if (auto order = ParseOrderUntrusted(record.signed_text); order.ok()) nonces_.insert(order->nonce);
}

Result<store::ControlRecord> KeyGate::Open(std::string_view object, std::int64_t now_unix_ns) {
  auto record = ParseObjectUntrusted(object);
  if (!record.ok()) return FailedPrecondition(std::string(record.status().message()));
  std::string nonce;
  LUFF_ASSIGN_OR_RETURN(store::ControlRecord good, Check(*record, now_unix_ns, &nonce));
  good.created_unix_ns = now_unix_ns;
  return good;
}

std::vector<PublicKey> KeysOfRun(const std::string& run) {
  auto keys = ReadKeysOfRun(run);
  return keys.ok() ? *std::move(keys) : std::vector<PublicKey>();
}

std::shared_ptr<actions::Gate> GateOfRun(const std::string& run) {
  auto keys = ReadKeysOfRun(run);
  if (keys.ok() && keys->empty()) return nullptr;
  return std::make_shared<KeyGate>(keys.ok() ? *std::move(keys) : std::vector<PublicKey>());
}

std::shared_ptr<actions::Gate> GateOf(std::vector<PublicKey> keys) {
  return keys.empty() ? nullptr : std::make_shared<KeyGate>(std::move(keys));
}

}  // namespace luff::keys
