#include "cli/serve_config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "cli/config_place.h"
#include "luff/base/env.h"

namespace luff::cli {
namespace {

constexpr std::uint64_t kMaxServeConfigBytes = 1 << 20;

class ServeReader : private ConfigPlace {
 public:
  using ConfigPlace::ConfigPlace;

  Result<ServeConfig> Read(const toml::table& file) const {
    ServeConfig config;
    const Texts texts = {{"listen", &config.listen},
                         {"auth", &config.auth},
                         {"public_url", &config.public_url},
                         {"base_path", &config.base_path},
                         {"socket_group", &config.socket_group}};
    for (const auto& [key, node] : file) {
      const std::string_view name = key.str();
      if (name == "roots") {
        LUFF_ASSIGN_OR_RETURN(config.roots, ListOf(node, name));
      } else if (name == "tls_by_proxy") {
        if (!node.is_boolean()) return Wrong(node, "'tls_by_proxy' is neither true nor false");
        config.tls_by_proxy = *node.value<bool>();
      } else if (name == "values") {
        LUFF_ASSIGN_OR_RETURN(config.values, RoleOf(node, name));
      } else if (name == "proxy") {
        LUFF_RETURN_IF_ERROR(ReadProxy(node, &config));
      } else {
        LUFF_ASSIGN_OR_RETURN(const bool taken, TakeText(texts, key, node));
        if (!taken)
          return Unknown(key, "at the top level", Known(texts, {"roots", "tls_by_proxy", "values", "proxy"}));
      }
    }
    return config;
  }

 private:
  using Texts = std::vector<std::pair<std::string_view, std::string*>>;

  static std::vector<std::string> Known(const Texts& texts, std::vector<std::string> others) {
    for (const auto& [name, target] : texts) others.emplace_back(name);
    return others;
  }

  Result<bool> TakeText(const Texts& texts, const toml::key& key, const toml::node& node) const {
    const auto at = std::ranges::find(texts, key.str(), &Texts::value_type::first);
    if (at == texts.end()) return false;
    if (!node.is_string()) return Wrong(node, fmt::format("'{}' is no string", key.str()));
    *at->second = *node.value<std::string>();
    return true;
  }

  Result<std::vector<std::string>> ListOf(const toml::node& node, std::string_view name) const {
    const toml::array* list = node.as_array();
    if (list == nullptr) return Wrong(node, fmt::format("'{}' is no list of strings", name));
    std::vector<std::string> found;
    for (const toml::node& one : *list) {
      if (!one.is_string()) return Wrong(one, fmt::format("'{}' holds something that is no string", name));
      found.push_back(*one.value<std::string>());
    }
    return found;
  }

  Result<server::Role> RoleOf(const toml::node& node, std::string_view name) const {
    if (!node.is_string()) return Wrong(node, fmt::format("'{}' is no name of a role", name));
    auto role = server::ParseRole(*node.value<std::string>());
    return role.ok() ? role : At(role.status(), node.source());
  }

  Status ReadProxy(const toml::node& node, ServeConfig* config) const {
    const toml::table* table = node.as_table();
    if (table == nullptr) return Wrong(node, "'proxy' is no table; write [proxy] and its keys below");
    const Texts texts = {{"user_header", &config->proxy.user_header},
                         {"groups_header", &config->proxy.groups_header},
                         {"secret_header", &config->proxy.secret_header},
                         {"secret_file", &config->proxy_secret_file}};
    for (const auto& [key, value] : *table) {
      if (key.str() == "group") {
        LUFF_RETURN_IF_ERROR(ReadGroups(value, &config->proxy));
        continue;
      }
      LUFF_ASSIGN_OR_RETURN(const bool taken, TakeText(texts, key, value));
      if (!taken) return Unknown(key, "in [proxy]", Known(texts, {"group"}));
    }
    return Status::Ok();
  }

  Status ReadGroups(const toml::node& node, server::ProxySignOn* proxy) const {
    const toml::array* list = node.as_array();
    if (list == nullptr || !list->is_array_of_tables())
      return Wrong(node, "'group' is no list of tables; write [[proxy.group]] and its keys below");
    for (const toml::node& one : *list) {
      server::ProxySignOn::Group group;
      bool has_role = false;
      const Texts texts = {{"name", &group.name}};
      for (const auto& [key, value] : *one.as_table()) {
        if (key.str() == "role") {
          LUFF_ASSIGN_OR_RETURN(group.grant.role, RoleOf(value, "role"));
          has_role = true;
        } else if (key.str() == "roots") {
          LUFF_ASSIGN_OR_RETURN(group.grant.roots, ListOf(value, "roots"));
        } else {
          LUFF_ASSIGN_OR_RETURN(const bool taken, TakeText(texts, key, value));
          if (!taken) return Unknown(key, "in [[proxy.group]]", {"name", "role", "roots"});
        }
      }
      if (group.name.empty() || !has_role) return Wrong(one, "[[proxy.group]] needs 'name' and 'role'");
      proxy->groups.push_back(std::move(group));
    }
    return Status::Ok();
  }
};

}  // namespace

Result<ServeConfig> ReadServeConfig(const std::string& path) {
  // It says who may see and do what.
  struct stat info{};
  const bool there = stat(path.c_str(), &info) == 0;
  if (there &&
      ((info.st_uid != geteuid() && info.st_uid != 0) || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)) {
    return FailedPrecondition(
        "others can write the configuration, which says who may do what, or it is another user's; chmod go-w "
        "it: " +
        path);
  }
  const Result<std::string> text = ReadWholeFile(Env::Real(), path, kMaxServeConfigBytes);
  if (!text.ok()) return text.status().WithContext("the configuration file cannot be read");
  try {
    return ServeReader(path).Read(toml::parse(*text, path));
  } catch (const toml::parse_error& error) {
    const auto& where = error.source().begin;
    return InvalidArgument(
        fmt::format("{}: {}, line {}, column {}", error.description(), path, where.line, where.column));
  }
}

}  // namespace luff::cli
