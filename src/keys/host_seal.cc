#include "keys/host_seal.h"

#include <array>

#include <sodium.h>

#include "base/format.h"
#include "base/text_escape.h"
#include "keys/order.h"

namespace luff::keys {
namespace {

constexpr std::string_view kHostDomain = "luff-host-v1\n";  // so that no signature of a request counts here
constexpr std::string_view kHashDomain = "luff-host-hash-v1\n";
constexpr std::string_view kHostRight = "host";
constexpr std::int64_t kNsOfSecond = 1'000'000'000;

template <std::size_t N>
std::string Hex(const std::array<unsigned char, N>& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

std::string JobIdOf(std::string_view name, std::size_t training) {
  std::string text = "luff-job-v1\n" + std::string(name);
  if (training > 1) text += fmt::format("\n{}", training);
  std::array<unsigned char, 16> id{};
  crypto_generichash(id.data(), id.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     nullptr, 0);
  return Hex(id);
}

std::string NewInstance() {
  std::array<unsigned char, 16> random{};
  randombytes_buf(random.data(), random.size());
  return Hex(random);
}

Status KeySeal::Check(const SecretKey& key, const std::vector<PublicKey>& keys, std::int64_t now_unix_s) {
  const PublicKey* const known = FindKey(keys, key.id());
  if (known == nullptr || known->ed25519 != key.ed25519())
    return InvalidArgument(fmt::format(
        "the hosts' key '{}' is not among [[control.keys]]; `luff keys check FILE` prints the lines to add",
        key.id()));
  if (!known->May(kHostRight))
    return InvalidArgument(
        fmt::format("the hosts' key '{}' may not speak for a host; write may = [\"host\"]", key.id()));
  if (known->expired(now_unix_s))
    return InvalidArgument(
        fmt::format("the hosts' key '{}' has expired on {}", key.id(), TimeOf(known->expires_unix_s)));
  return Status::Ok();
}

Result<std::string> KeySeal::Seal(const std::string& text) {
  store::ControlRecord record;
  record.key_id = key_->id();
  record.signed_text = text;
  record.signature = Base64Of(key_->Sign(std::string(kHostDomain) + text));
  std::string object = ObjectText(record);
  if (object.size() > kMaxObjectBytes)
    return OutOfRange(
        "a message to the other hosts is larger than 64 KiB: the job has too many ranks or hosts");
  return object;
}

Result<std::string> KeySeal::Open(std::string_view object, std::int64_t now_unix_ns) {
  auto record = ParseObjectUntrusted(object);
  if (!record.ok()) return FailedPrecondition("it is no message that Luff writes");
  const PublicKey* const key = FindKey(keys_, record->key_id);
  const std::string named = Escaped(record->key_id.substr(0, kMaxIdBytes));
  if (key == nullptr)
    return FailedPrecondition(fmt::format("it is not signed by a key of this job, but by '{}'", named));
  const std::string signature = FromBase64(record->signature, crypto_sign_BYTES);
  const std::string message = std::string(kHostDomain) + record->signed_text;
  if (signature.size() != crypto_sign_BYTES ||
      crypto_sign_verify_detached(reinterpret_cast<const unsigned char*>(signature.data()),
                                  reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                  reinterpret_cast<const unsigned char*>(key->ed25519.data())) != 0)
    return FailedPrecondition(fmt::format("its signature is not one of key '{}'", named));
  if (!key->May(kHostRight))
    return FailedPrecondition(fmt::format("key '{}' may not speak for a host", named));
  if (key->expired(now_unix_ns / kNsOfSecond))
    return FailedPrecondition(fmt::format("key '{}' has expired on {}", named, TimeOf(key->expires_unix_s)));
  return std::move(record->signed_text);
}

std::string KeySeal::KeyedHash(const std::string& text) const {
  if (!key_) return "";
  // Ed25519 signs the same text by the same bytes, which only the key's holders can make.
  const std::string signature = key_->Sign(std::string(kHashDomain) + text);
  std::array<unsigned char, 16> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(signature.data()),
                     signature.size(), nullptr, 0);
  return Hex(hash);
}

}  // namespace luff::keys
