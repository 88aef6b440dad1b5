#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "keys/public_key.h"
#include "luff/actions/gate.h"

namespace luff::keys {

/// Admits what these keys have signed, each signature once.
class KeyGate final : public actions::Gate {
 public:
  explicit KeyGate(std::vector<PublicKey> keys) : keys_(std::move(keys)) {}

  void SetRun(const std::string& run_id) override { run_id_ = run_id; }
  [[nodiscard]] Result<store::ControlRecord> Admit(const store::ControlRecord& record,
                                                   std::int64_t now_unix_ns) override;
  void Remember(const store::ControlRecord& record) override;
  [[nodiscard]] Result<store::ControlRecord> Open(std::string_view object, std::int64_t now_unix_ns) override;
  [[nodiscard]] std::string KeysJson() const override { return KeysText(keys_); }

 private:
  /// As CheckRecord(), and no replay. Sets `nonce` to that of what was signed.
  [[nodiscard]] Result<store::ControlRecord> Check(const store::ControlRecord& record,
                                                   std::int64_t now_unix_ns, std::string* nonce) const;

  const std::vector<PublicKey> keys_;
  std::string run_id_;
  std::set<std::string> nonces_;  // of this run; each stands in a record of the log, which bounds them
};

/// The keys that a run's control log names last; empty if it names none, or has taken them back.
[[nodiscard]] std::vector<PublicKey> KeysOfRun(const std::string& run);
/// The gate of a run that somebody else has begun; null if the run has no keys. What cannot be read admits
/// nothing.
[[nodiscard]] std::shared_ptr<actions::Gate> GateOfRun(const std::string& run);
/// The gate of these keys; null if there are none.
[[nodiscard]] std::shared_ptr<actions::Gate> GateOf(std::vector<PublicKey> keys);

}  // namespace luff::keys
