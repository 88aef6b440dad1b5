#pragma once
#include <optional>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "server/guard.h"

/// How `luff serve` is to be run: from its options, and the file that `--config` names.
namespace luff::cli {

struct ServeConfig {
  std::vector<std::string> roots;
  std::string listen, auth, public_url, base_path;  // "": not said
  std::string socket_group;
  bool tls_by_proxy = false;
  std::optional<server::Role> values;  // the least role that may see values
  server::ProxySignOn proxy;           // its secret still unread
  std::string proxy_secret_file;
};

/// Reads TOML (docs/serve.md). Errors: kNotFound; kInvalidArgument with the line, and the nearest known key.
[[nodiscard]] Result<ServeConfig> ReadServeConfig(const std::string& path);

}  // namespace luff::cli
