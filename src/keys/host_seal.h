#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "keys/public_key.h"
#include "keys/secret_key.h"
#include "luff/actions/host_log.h"

namespace luff::keys {

/// The id of a job in its bucket: 32 hexadecimal digits made of its name, and of the number of the training
/// from the second one on, if it starts several.
[[nodiscard]] std::string JobIdOf(std::string_view name, std::size_t training = 1);
/// 32 hexadecimal digits, random.
[[nodiscard]] std::string NewInstance();

/// Signs messages between the hosts of a job with a key, and opens those that a key with the right `host` has
/// signed.
class KeySeal final : public actions::HostSeal {
 public:
  KeySeal(std::shared_ptr<const SecretKey> key, std::vector<PublicKey> keys)
      : key_(std::move(key)),
        keys_(std::move(keys)) {}
  /// Says why the other hosts would not hear this one. Errors: kInvalidArgument with the remedy.
  [[nodiscard]] static Status Check(const SecretKey& key, const std::vector<PublicKey>& keys,
                                    std::int64_t now_unix_s);
  [[nodiscard]] Result<std::string> Seal(const std::string& text) override;
  [[nodiscard]] Result<std::string> Open(std::string_view object, std::int64_t now_unix_ns) override;
  [[nodiscard]] std::string KeyedHash(const std::string& text) const override;

 private:
  const std::shared_ptr<const SecretKey> key_;
  const std::vector<PublicKey> keys_;
};

}  // namespace luff::keys
