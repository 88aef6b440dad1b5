#pragma once
#include <array>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "luff/base/result.h"

namespace luff::keys {

/// A key that signs, as it lies in its file (mode 0600):
/// {"format": "luff-key", "version": 1, "id", "ed25519", "ed25519_secret"}, the last two in base64: 32 bytes
/// of the public key, and 32 of the seed (RFC 8032). Its bytes are wiped when the object ends, stand in no
/// other file, and are never printed.
class SecretKey {
 public:
  /// Draws a key and writes it into a new file. `id`: "" for one made of the public key. Errors:
  /// kAlreadyExists (the file), kInvalidArgument (the id), kIo.
  [[nodiscard]] static Result<SecretKey> Create(const std::string& path, std::string id);
  /// Errors: kNotFound, kFailedPrecondition if others may read it, kCorruption, kIo, each with the remedy.
  [[nodiscard]] static Result<SecretKey> Read(const std::string& path);
  /// The text of a file. Errors: kCorruption, kUnsupportedVersion.
  [[nodiscard]] static Result<SecretKey> ParseUntrusted(std::string_view text);

  [[nodiscard]] const std::string& id() const noexcept { return id_; }
  /// 32 bytes.
  [[nodiscard]] std::string ed25519() const;
  /// 64 bytes: the signature of `message`.
  [[nodiscard]] std::string Sign(std::string_view message) const;

  SecretKey(SecretKey&& other) noexcept;
  SecretKey& operator=(SecretKey&&) = delete;
  ~SecretKey();

 private:
  SecretKey() = default;
  /// `json`: the file without its secret, which is `seed`.
  [[nodiscard]] static Result<SecretKey> FromSeed(const nlohmann::json& json, const std::string& seed);
  std::string id_;
  std::array<unsigned char, 64> bytes_{};  // seed and public key, as libsodium has them
};

}  // namespace luff::keys
