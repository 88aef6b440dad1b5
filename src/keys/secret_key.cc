#include "keys/secret_key.h"

#include <algorithm>
#include <utility>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/private_file.h"
#include "keys/public_key.h"
#include "luff/base/env.h"

namespace luff::keys {
namespace {

constexpr std::uint64_t kMaxFileBytes = 4096;
constexpr std::size_t kSeedBytes = crypto_sign_SEEDBYTES;
static_assert(crypto_sign_SECRETKEYBYTES == 64 && crypto_sign_PUBLICKEYBYTES == kPublicBytes);

void Wipe(std::string* text) { sodium_memzero(text->data(), text->size()); }

}  // namespace

SecretKey::SecretKey(SecretKey&& other) noexcept : id_(std::move(other.id_)), bytes_(other.bytes_) {
  sodium_memzero(other.bytes_.data(), other.bytes_.size());
}

SecretKey::~SecretKey() { sodium_memzero(bytes_.data(), bytes_.size()); }

std::string SecretKey::ed25519() const {
  return {bytes_.begin() + kSeedBytes, bytes_.begin() + kSeedBytes + kPublicBytes};
}

std::string SecretKey::Sign(std::string_view message) const {
  std::string signature(crypto_sign_BYTES, '\0');
  crypto_sign_detached(reinterpret_cast<unsigned char*>(signature.data()), nullptr,
                       reinterpret_cast<const unsigned char*>(message.data()), message.size(), bytes_.data());
  return signature;
}

Result<SecretKey> SecretKey::Create(const std::string& path, std::string id) {
  if (sodium_init() < 0) return IoError("libsodium finds no source of random numbers");
  SecretKey key;
  std::array<unsigned char, kPublicBytes> pub{};
  crypto_sign_keypair(pub.data(), key.bytes_.data());
  key.id_ = std::move(id);
  if (key.id_.empty()) {
    key.id_ = "k";
    for (std::size_t i = 0; i < 6; ++i) key.id_ += fmt::format("{:02x}", pub[i]);
  }
  LUFF_RETURN_IF_ERROR(CheckId(key.id_));
  std::string seed(key.bytes_.begin(), key.bytes_.begin() + kSeedBytes);
  std::string secret = Base64Of(seed);
  // By hand: the library would leave copies of the secret behind.
  std::string text = fmt::format(
      "{{\"format\": \"luff-key\", \"version\": 1, \"id\": \"{}\",\n \"ed25519\": \"{}\",\n"
      " \"ed25519_secret\": \"{}\"}}\n",
      key.id_, Base64Of(key.ed25519()), secret);
  Status written = WriteNewFile(Env::Real(), path, text);
  Wipe(&seed), Wipe(&secret), Wipe(&text);
  if (written.code() == StatusCode::kAlreadyExists)
    return AlreadyExists("a key is never written over; name a new file, or remove this one: " + path);
  if (!written.ok()) return written.WithContext("the key cannot be written");
  return key;
}

Result<SecretKey> SecretKey::Read(const std::string& path) {
  Result<std::string> text = ReadPrivate(path, kMaxFileBytes);
  if (text.status().code() == StatusCode::kNotFound) {
    return NotFound(
        "there is no key in this file; a key that is lost is replaced by a new one (`luff keys new`), whose "
        "line goes into luff.toml instead of the old one: " +
        path);
  }
  if (!text.ok()) return text.status();
  Result<SecretKey> key = ParseUntrusted(*text);
  Wipe(&*text);
  if (!key.ok()) return Status(key.status().code(), fmt::format("{}: {}", key.status().message(), path));
  return key;
}

Result<SecretKey> SecretKey::ParseUntrusted(std::string_view text) {
  if (sodium_init() < 0) return IoError("libsodium finds no source of random numbers");
  const nlohmann::json json = TryParseJson(text, {.bytes = kMaxFileBytes, .depth = 4});
  if (!json.is_object() || TextMember(json, "format") != "luff-key")
    return Corruption("this is no key of Luff, which `luff keys new FILE` makes");
  if (const std::int64_t version = WholeMember(json, "version", -1); version != 1) {
    return Status(
        StatusCode::kUnsupportedVersion,
        fmt::format("found a key of version {}, this Luff knows 1; use the Luff that made it", version));
  }
  SecretKey key;
  key.id_ = TextMember(json, "id");
  LUFF_RETURN_IF_ERROR(CheckId(key.id_));
  std::string seed = FromBase64(TextMember(json, "ed25519_secret"), kSeedBytes);
  if (seed.size() != kSeedBytes) return Corruption("the key has no 'ed25519_secret' of 32 bytes in base64");
  std::array<unsigned char, kPublicBytes> pub{};
  crypto_sign_seed_keypair(pub.data(), key.bytes_.data(),
                           reinterpret_cast<const unsigned char*>(seed.data()));
  Wipe(&seed);
  if (FromBase64(TextMember(json, "ed25519"), kPublicBytes) != key.ed25519())
    return Corruption("the public part of the key does not belong to the secret one: the file was changed");
  return key;
}

}  // namespace luff::keys
