#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define TOML_ENABLE_FORMATTERS 1
#include <toml++/toml.h>

#include "base/format.h"
#include "base/nearest_names.h"
#include "luff/base/result.h"
#include "luff/query/trial.h"

namespace luff::cli {

/// Adds the place of a mistake in a configuration file: messages end in "…: FILE, line N".
class ConfigPlace {
 public:
  explicit ConfigPlace(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] Status At(const Status& status, const toml::source_region& where) const {
    // Lines after the first show the place; they stay below.
    const std::string_view message = status.message();
    const std::size_t cut = std::min(message.find('\n'), message.size());
    return {status.code(), fmt::format("{}: {}, line {}{}", message.substr(0, cut), path_, where.begin.line,
                                       message.substr(cut))};
  }
  /// Adds the place of what a message quotes: the first key inside `node` that it names, or else `node`.
  [[nodiscard]] Status AtWhatItNames(const Status& status, const toml::node& node) const;
  [[nodiscard]] Status Wrong(const toml::node& node, const std::string& what) const {
    return At(InvalidArgument(what), node.source());
  }
  [[nodiscard]] Status Unknown(const toml::key& key, std::string_view place,
                               const std::vector<std::string>& known) const {
    return At(InvalidArgument(fmt::format("unknown key '{}' {}{}; known: {}", key.str(), place,
                                          NearestText(key.str(), known), fmt::join(known, ", "))),
              key.source());
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Registers one of the user's own rules that the file chooses.
  void KnowOwnRule(const std::string& name) { own_rules_.push_back(name); }
  [[nodiscard]] bool IsOwnRule(const std::string& name) const {
    return std::find(own_rules_.begin(), own_rules_.end(), name) != own_rules_.end();
  }

 private:
  const std::string path_;
  std::vector<std::string> own_rules_;
};

}  // namespace luff::cli
