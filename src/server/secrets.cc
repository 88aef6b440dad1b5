#include "server/secrets.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include <sodium.h>

namespace luff::server {
namespace {

std::string HashOf(std::string_view text) {
  std::string hash(crypto_generichash_BYTES, '\0');
  crypto_generichash(reinterpret_cast<unsigned char*>(hash.data()), hash.size(),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  return hash;
}

constexpr std::int64_t kMinuteNs = 60 * std::int64_t{1'000'000'000};

}  // namespace

std::string_view RoleName(Role role) noexcept {
  switch (role) {
    case Role::kMetrics: return "metrics";
    case Role::kViewer: return "viewer";
    case Role::kOperator: return "operator";
    case Role::kAdmin: return "admin";
  }
  return "viewer";
}

std::string NewToken() {
  std::array<unsigned char, 32> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_URLSAFE_NO_PADDING), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(),
                    sodium_base64_VARIANT_URLSAFE_NO_PADDING);
  text.pop_back();  // the terminating zero
  return text;
}

Secrets::Secrets() {
  if (sodium_init() < 0) throw std::runtime_error("libsodium finds no source of random numbers");
}

void Secrets::Add(std::string_view token, Role role) {
  const MutexLock lock(mutex_);
  tokens_.push_back({HashOf(token), role});
}

std::optional<Role> Secrets::RoleOf(std::string_view token) {
  const Hash hash = HashOf(token);
  std::optional<Role> role;
  for (const Known& known : tokens_) {
    if (sodium_memcmp(known.hash.data(), hash.data(), hash.size()) == 0) role = known.role;
  }
  return role;
}

std::optional<Visitor> Secrets::ByToken(std::string_view token) {
  const MutexLock lock(mutex_);
  const auto role = RoleOf(token);
  if (!role) return std::nullopt;
  return Visitor{*role, ""};
}

std::optional<std::string> Secrets::Begin(std::string_view token, std::int64_t now_ns, Visitor* visitor,
                                          bool* wait) {
  const MutexLock lock(mutex_);
  while (!failed_ns_.empty() && failed_ns_.front() < now_ns - kMinuteNs) failed_ns_.pop_front();
  *wait = failed_ns_.size() >= kTries;
  if (*wait) return std::nullopt;
  const auto role = RoleOf(token);
  if (!role) {
    failed_ns_.push_back(now_ns);
    return std::nullopt;
  }
  if (sessions_.size() >= kMaxSessions) {
    sessions_.erase(
        std::ranges::min_element(sessions_, {}, [](const auto& session) { return session.second.used_ns; }));
  }
  std::string key = NewToken();
  *visitor = {*role, NewToken()};
  sessions_[HashOf(key)] = {*visitor, now_ns};
  return key;
}

std::optional<Visitor> Secrets::BySession(std::string_view key, std::int64_t now_ns) {
  if (key.empty()) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto at = sessions_.find(HashOf(key));
  if (at == sessions_.end()) return std::nullopt;
  if (now_ns - at->second.used_ns > kSessionNs) {
    sessions_.erase(at);
    return std::nullopt;
  }
  at->second.used_ns = now_ns;
  return at->second.visitor;
}

void Secrets::End(std::string_view key) {
  const MutexLock lock(mutex_);
  sessions_.erase(HashOf(key));
}

}  // namespace luff::server
