#include "cli/config_control.h"

namespace luff::cli {
namespace {

Result<keys::PublicKey> ReadKey(const toml::table& table, const ConfigPlace& place) {
  keys::PublicKey key;
  bool may = false;
  for (const auto& [name, node] : table) {
    if (name == "id" || name == "ed25519") {
      const auto text = node.value<std::string>();
      if (!node.is_string()) return place.Wrong(node, fmt::format("'{}' of a key is no string", name.str()));
      if (name == "id") {
        key.id = *text;
        if (const Status good = keys::CheckId(key.id); !good.ok()) return place.At(good, node.source());
      } else {
        key.ed25519 = keys::FromBase64(*text, keys::kPublicBytes);
        if (key.ed25519.size() != keys::kPublicBytes)
          return place.Wrong(
              node, "'ed25519' is no base64 of 32 bytes; `luff keys check FILE` prints it for a key");
      }
    } else if (name == "may") {
      const toml::array* list = node.as_array();
      if (list == nullptr)
        return place.Wrong(node, "'may' is no list of rights; write e.g. may = [\"stop\"]");
      may = true;
      for (const toml::node& right : *list) {
        const auto text = right.value<std::string>();
        if (!right.is_string()) return place.Wrong(right, "'may' holds something that is no string");
        if (const Status good = keys::CheckRight(*text); !good.ok()) return place.At(good, right.source());
        key.may.push_back(*text);
      }
    } else if (name == "expires") {
      Result<std::int64_t> time = InvalidArgument("'expires' is no day; write e.g. expires = \"2027-01-31\"");
      if (node.is_string()) {
        time = keys::ParseTime(*node.value<std::string>());
      } else if (const auto* day = node.as_date(); day != nullptr) {
        time = keys::ParseTime(
            fmt::format("{:04}-{:02}-{:02}", day->get().year, day->get().month, day->get().day));
      }
      if (!time.ok()) return place.At(time.status(), node.source());
      key.expires_unix_s = *time;
    } else {
      return place.Unknown(name, "in a key of [control]", {"id", "ed25519", "may", "expires"});
    }
  }
  if (key.id.empty() || key.ed25519.empty() || !may)
    return place.Wrong(table, "a key needs 'id', 'ed25519' and 'may', as `luff keys new` prints them");
  return key;
}

}  // namespace

Result<ControlConfig> ReadControl(const toml::table& table, const ConfigPlace& place) {
  ControlConfig control;
  std::vector<keys::PublicKey>& keys = control.keys;
  for (const auto& [name, node] : table) {
    if (name == "host_key") {
      control.host_key = node.value_or(std::string());
      if (control.host_key.empty())
        return place.Wrong(
            node, "'host_key' of [control] names no file; `luff keys new hosts.key --may host` makes one");
      continue;
    }
    if (name != "keys") return place.Unknown(name, "in [control]", {"keys", "host_key"});
    const toml::array* list = node.as_array();
    if (list == nullptr)
      return place.Wrong(node, "'keys' of [control] is no list; write [[control.keys]] and one key below");
    for (const toml::node& one : *list) {
      const toml::table* key = one.as_table();
      if (key == nullptr) return place.Wrong(one, "a key of [control] is no table; write [[control.keys]]");
      LUFF_ASSIGN_OR_RETURN(keys::PublicKey read, ReadKey(*key, place));
      keys.push_back(std::move(read));
    }
    if (const Status good = keys::CheckKeys(keys); !good.ok()) return place.At(good, node.source());
  }
  if (keys.empty())
    return place.Wrong(table, "[control] without keys says nothing; add [[control.keys]], or remove it");
  return control;
}

}  // namespace luff::cli
