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

/// Writes spaces over the value of the member "ed25519_secret", wherever it stands, and returns its bytes; ""
/// if there is none, or it is no base64.
std::string TakeSecret(std::string* text) {
  static constexpr std::string_view kName = "\"ed25519_secret\"";
  static constexpr std::string_view kSpace = " \t\r\n";
  std::string seed;
  for (std::size_t at = 0; (at = text->find(kName, at)) != std::string::npos;) {
    at = text->find_first_not_of(kSpace, at + kName.size());
    if (at == std::string::npos || (*text)[at] != ':') continue;
    at = text->find_first_not_of(kSpace, at + 1);
    if (at == std::string::npos || (*text)[at] != '"') continue;
    const std::size_t end = text->find('"', at + 1);
    const std::size_t size = (end == std::string::npos ? text->size() : end) - (at + 1);
    Wipe(&seed);
    seed = FromBase64(std::string_view(*text).substr(at + 1, size), kSeedBytes);
    sodium_memzero(text->data() + at + 1, size);
    std::fill_n(text->begin() + static_cast<std::ptrdiff_t>(at) + 1, size, ' ');
    at += 1 + size;
  }
  return seed;
}

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
  // In one place that is wiped: the libraries for JSON and for formatting leave copies of the secret behind.
  std::string text;
  text.reserve(kMaxFileBytes);
  text.append("{\"format\": \"luff-key\", \"version\": 1, \"id\": \"").append(key.id_);
  text.append("\",\n \"ed25519\": \"").append(Base64Of(key.ed25519()));
  text.append("\",\n \"ed25519_secret\": \"").append(secret).append("\"}\n");
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
  if (text.size() > kMaxFileBytes) return Corruption("the file is too large for a key");
  // The parser of JSON leaves copies of what it reads behind, so it sees the text without the secret.
  std::string blank(text);
  std::string seed = TakeSecret(&blank);
  const nlohmann::json json = TryParseJson(blank, {.bytes = kMaxFileBytes, .depth = 4});
  Result<SecretKey> key = FromSeed(json, seed);
  Wipe(&seed);
  return key;
}

Result<SecretKey> SecretKey::FromSeed(const nlohmann::json& json, const std::string& seed) {
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
  if (seed.size() != kSeedBytes) return Corruption("the key has no 'ed25519_secret' of 32 bytes in base64");
  std::array<unsigned char, kPublicBytes> pub{};
  crypto_sign_seed_keypair(pub.data(), key.bytes_.data(),
                           reinterpret_cast<const unsigned char*>(seed.data()));
  if (FromBase64(TextMember(json, "ed25519"), kPublicBytes) != key.ed25519())
    return Corruption("the public part of the key does not belong to the secret one: the file was changed");
  return key;
}

}  // namespace luff::keys
