#include "server/tokens.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include <sodium.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/nearest_names.h"
#include "base/private_file.h"
#include "luff/base/env.h"

namespace luff::server {
namespace {

constexpr std::uint64_t kMaxBytes = 4 << 20;
constexpr std::size_t kMaxName = 64, kMaxRoots = 64, kMaxRoot = 4096;
constexpr std::array kRoles = {Role::kMetrics, Role::kViewer, Role::kOperator, Role::kAdmin};

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '@';
  });
}

std::string HexOf(std::string_view bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                 bytes.size());
  text.pop_back();
  return text;
}

std::string BytesOf(std::string_view hex) {
  std::string bytes(hex.size() / 2, '\0');
  std::size_t size = 0;
  if (sodium_hex2bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), hex.data(), hex.size(),
                     nullptr, &size, nullptr) != 0)
    return {};
  bytes.resize(size);
  return bytes;
}

}  // namespace

std::string_view RoleName(Role role) noexcept {
  switch (role) {
    case Role::kMetrics: return "metrics";
    case Role::kViewer: return "viewer";
    case Role::kOperator: return "operator";
    case Role::kAdmin: return "admin";
  }
  return "metrics";
}

Result<Role> ParseRole(std::string_view name) {
  const auto* const at = std::ranges::find(kRoles, name, RoleName);
  if (at != kRoles.end()) return *at;
  return InvalidArgument(fmt::format("'{}' is no role; there are metrics, viewer, operator and admin", name));
}

std::string HashOf(std::string_view text) {
  std::string hash(crypto_generichash_BYTES, '\0');
  crypto_generichash(reinterpret_cast<unsigned char*>(hash.data()), hash.size(),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  return hash;
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

Result<std::vector<NamedToken>> ParseTokensUntrusted(std::string_view text) {
  const nlohmann::json json = TryParseJson(text, {.bytes = kMaxBytes, .depth = 8});
  const auto list = json.is_object() ? json.find("tokens") : json.end();
  if (!json.is_object() || WholeMember(json, "version", -1) != 1 || list == json.end() || !list->is_array() ||
      list->size() > TokenFile::kMaxTokens)
    return Corruption("this is no file of tokens, version 1");
  std::vector<NamedToken> tokens;
  for (const nlohmann::json& one : *list) {
    if (!one.is_object()) return Corruption("a token is no object");
    NamedToken token{.name = TextMember(one, "name"), .hash = BytesOf(TextMember(one, "blake2b"))};
    const auto role = ParseRole(TextMember(one, "role"));
    token.created_unix_s = WholeMember(one, "created_unix_s", -1);
    token.expires_unix_s = WholeMember(one, "expires_unix_s", -1);
    if (!IsName(token.name) || !role.ok() || token.hash.size() != crypto_generichash_BYTES ||
        token.expires_unix_s < 0)
      return Corruption(fmt::format("token {} lacks a name, role, blake2b or expires_unix_s", tokens.size()));
    token.role = *role;
    const auto roots = one.find("roots");
    if (roots == one.end() || !roots->is_array() || roots->size() > kMaxRoots)
      return Corruption(fmt::format("token '{}' has no list 'roots'", token.name));
    for (const nlohmann::json& root : *roots) {
      if (!root.is_string() || !root.get_ref<const std::string&>().starts_with('/') ||
          root.get_ref<const std::string&>().size() > kMaxRoot)
        return Corruption(fmt::format("a root of token '{}' is no absolute path", token.name));
      token.roots.push_back(root.get<std::string>());
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::string TokensText(const std::vector<NamedToken>& tokens) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const NamedToken& token : tokens) {
    list.push_back({{"name", token.name},
                    {"role", RoleName(token.role)},
                    {"blake2b", HexOf(token.hash)},
                    {"created_unix_s", token.created_unix_s},
                    {"expires_unix_s", token.expires_unix_s},
                    {"roots", token.roots}});
  }
  const nlohmann::ordered_json json{{"version", 1}, {"tokens", std::move(list)}};
  return JsonText(json, 1) + "\n";
}

TokenFile::Mark TokenFile::mark() const noexcept {
  struct stat file = {};
  if (::stat(path_.c_str(), &file) != 0) return {};
  return {static_cast<std::int64_t>(file.st_ino), file.st_size, file.st_ctim.tv_sec, file.st_ctim.tv_nsec};
}

Result<std::vector<NamedToken>> TokenFile::Read() const {
  const auto text = ReadPrivate(path_, kMaxBytes);
  if (text.status().code() == StatusCode::kNotFound) return std::vector<NamedToken>();
  if (!text.ok()) return text.status();
  auto tokens = ParseTokensUntrusted(*text);
  if (!tokens.ok()) return Corruption(fmt::format("{}: {}", tokens.status().message(), path_));
  return tokens;
}

template <typename Change>
Status TokenFile::Alter(const Change& change) const {
  Env& env = Env::Real();
  LUFF_RETURN_IF_ERROR(env.MakeDirectories(std::filesystem::path(path_).parent_path().string()));
  LUFF_ASSIGN_OR_RETURN(const auto lock, env.Open(path_ + ".lock", Env::OpenMode::kReadWrite));
  if (!lock->TryLock()) return Unavailable("another luff serve token changes this file now: " + path_);
  LUFF_ASSIGN_OR_RETURN(std::vector<NamedToken> tokens, Read());
  LUFF_RETURN_IF_ERROR(change(&tokens));
  return WriteWholeFile(env, path_, TokensText(tokens));
}

Result<std::string> TokenFile::Add(NamedToken like) const {
  if (!IsName(like.name)) {
    return InvalidArgument(
        fmt::format("a name has 1 to {} letters, digits, '.', '_', '-' and '@'", kMaxName));
  }
  if (like.roots.size() > kMaxRoots) return InvalidArgument(fmt::format("at most {} roots", kMaxRoots));
  if (sodium_init() < 0) return IoError("libsodium finds no source of random numbers");
  const std::string token = NewToken();
  like.hash = HashOf(token);
  like.created_unix_s = Env::Real().NowUnixNs() / 1'000'000'000;
  LUFF_RETURN_IF_ERROR(Alter([&](std::vector<NamedToken>* tokens) -> Status {
    if (std::ranges::find(*tokens, like.name, &NamedToken::name) != tokens->end())
      return AlreadyExists(fmt::format("there is a token '{}' already; revoke it first", like.name));
    if (tokens->size() == kMaxTokens) return ResourceExhausted("there are too many tokens; revoke some");
    tokens->push_back(like);
    return Status::Ok();
  }));
  return token;
}

Status TokenFile::Revoke(std::string_view name) const {
  return Alter([&](std::vector<NamedToken>* tokens) -> Status {
    std::vector<std::string> names;
    for (const NamedToken& token : *tokens) names.push_back(token.name);
    if (std::erase_if(*tokens, [&](const NamedToken& token) { return token.name == name; }) > 0)
      return Status::Ok();
    if (names.empty()) return NotFound("there are no named tokens");
    return NotFound(fmt::format("there is no token '{}'{}", name, NearestText(name, names)));
  });
}

}  // namespace luff::server
