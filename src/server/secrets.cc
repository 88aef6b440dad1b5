#include "server/secrets.h"

#include <algorithm>
#include <stdexcept>

#include <sodium.h>

#include "luff/base/env.h"

namespace luff::server {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000, kMinuteNs = 60 * kSecondNs;

Visitor VisitorOf(const NamedToken& token, std::string key) {
  return {.grants = {{token.role, token.roots}}, .name = token.name, .key = std::move(key)};
}

bool HoldsAt(const Grant& grant, std::string_view path) {
  return grant.roots.empty() || std::ranges::any_of(grant.roots, [&](const std::string& root) {
           return path.starts_with(root) &&
                  (path.size() == root.size() || path[root.size()] == '/' || root == "/");
         });
}

}  // namespace

Role Visitor::role() const {
  Role most = Role::kMetrics;
  for (const Grant& grant : grants) most = std::max(most, grant.role);
  return most;
}

bool Visitor::May(Role least, std::string_view path) const {
  return std::ranges::any_of(grants,
                             [&](const Grant& grant) { return grant.role >= least && HoldsAt(grant, path); });
}

Visitor Visitor::At(std::string_view path) const {
  Visitor here = *this;
  std::erase_if(here.grants, [&](const Grant& grant) { return !HoldsAt(grant, path); });
  return here;
}

bool Visitor::restricted() const {
  return std::ranges::none_of(
      grants, [](const Grant& grant) { return grant.role >= Role::kViewer && grant.roots.empty(); });
}

bool SameSecret(std::string_view a, std::string_view b) {
  const std::string left = HashOf(a);
  const std::string right = HashOf(b);
  return sodium_memcmp(left.data(), right.data(), left.size()) == 0;
}

Secrets::Secrets(const std::string& tokens)
    : file_(tokens),
      seal_(sodium_init() < 0 ? throw std::runtime_error("libsodium finds no source of random numbers")
                              : NewToken()) {}

void Secrets::Add(std::string_view token, Role role) {
  const MutexLock lock(mutex_);
  own_.push_back({.role = role, .hash = HashOf(token)});
}

Status Secrets::Refresh(std::int64_t now_ns) {
  if (file_.path().empty()) return Status::Ok();
  const TokenFile::Mark mark = file_.mark();
  {
    const MutexLock lock(mutex_);
    if (mark == read_mark_ && now_ns - read_ns_ < kSecondNs) return Status::Ok();
    read_ns_ = now_ns;
    read_mark_ = mark;
  }
  auto read = file_.Read();
  const MutexLock lock(mutex_);
  named_ = read.ok() ? *std::move(read) : std::vector<NamedToken>();
  return read.status();
}

const NamedToken* Secrets::Find(std::string_view hash) const {
  const std::int64_t now = Env::Real().NowUnixNs() / kSecondNs;
  const NamedToken* found = nullptr;
  for (const auto* list : {&own_, &named_}) {
    for (const NamedToken& token : *list) {
      if (sodium_memcmp(token.hash.data(), hash.data(), hash.size()) == 0 && !token.expired(now))
        found = &token;
    }
  }
  return found;
}

std::optional<Visitor> Secrets::ByToken(std::string_view token) const {
  const std::string hash = HashOf(token);
  const MutexLock lock(mutex_);
  const NamedToken* known = Find(hash);
  return known == nullptr ? std::nullopt : std::optional(VisitorOf(*known, hash));
}

std::optional<std::string> Secrets::Begin(std::string_view token, std::int64_t now_ns, Visitor* visitor,
                                          bool* wait) {
  const std::string hash = HashOf(token);
  const MutexLock lock(mutex_);
  const NamedToken* known = Find(hash);
  *wait = false;
  if (known == nullptr) {  // a right one always enters: else whoever reaches us could shut all others out
    while (!failed_ns_.empty() && failed_ns_.front() < now_ns - kMinuteNs) failed_ns_.pop_front();
    *wait = failed_ns_.size() >= kTries;
    if (!*wait) failed_ns_.push_back(now_ns);
    return std::nullopt;
  }
  if (sessions_.size() >= kMaxSessions) {
    sessions_.erase(
        std::ranges::min_element(sessions_, {}, [](const auto& session) { return session.second.used_ns; }));
  }
  std::string key = NewToken();
  const std::string kept = HashOf(key);
  *visitor = VisitorOf(*known, kept);
  visitor->csrf = NewToken();
  sessions_[kept] = {*visitor, hash, now_ns};
  return key;
}

std::optional<Visitor> Secrets::BySession(std::string_view key, std::int64_t now_ns) {
  if (key.empty()) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto at = sessions_.find(HashOf(key));
  if (at == sessions_.end()) return std::nullopt;
  if (now_ns - at->second.used_ns > kSessionNs || Find(at->second.token) == nullptr) {
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

std::string Secrets::Sealed(std::string_view text) const {
  const std::string hash = HashOf(seal_ + std::string(text));
  std::string hex(hash.size() * 2 + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), reinterpret_cast<const unsigned char*>(hash.data()), hash.size());
  hex.pop_back();
  return hex;
}

bool Secrets::MayAsk(const Visitor& visitor, std::int64_t now_ns) {
  constexpr std::int64_t kCostNs = kSecondNs / kPerSecond;
  const MutexLock lock(mutex_);
  std::erase_if(asked_until_ns_,  // who asks slowly needs no entry
                [&](const auto& one) { return one.second <= now_ns && one.first != visitor.key; });
  std::int64_t& until = asked_until_ns_[visitor.key];
  until = std::max(until, now_ns);
  if (until - now_ns > kSecondNs) return false;
  until += kCostNs;
  return true;
}

}  // namespace luff::server
