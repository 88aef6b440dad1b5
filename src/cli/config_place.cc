#include "cli/config_place.h"

#include <optional>

namespace luff::cli {
namespace {

/// The words in quotes, in the order in which a message names them.
std::vector<std::string_view> QuotedIn(std::string_view message) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; (at = message.find_first_of("'\"", at)) != std::string_view::npos; ++at) {
    const std::size_t end = message.find(message[at], at + 1);
    if (end == std::string_view::npos) break;
    words.push_back(message.substr(at + 1, end - at - 1));
    at = end;
  }
  return words;
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the parser lets a file be
std::optional<toml::source_region> PlaceOfKey(const toml::node& node, std::string_view wanted) {
  std::optional<toml::source_region> found;
  if (const toml::table* table = node.as_table(); table != nullptr) {
    for (const auto& [key, value] : *table) {
      if (key.str() == wanted) return key.source();
    }
    for (const auto& [key, value] : *table) {
      if (!found) found = PlaceOfKey(value, wanted);
    }
  } else if (const toml::array* list = node.as_array(); list != nullptr) {
    for (const toml::node& one : *list) {
      if (!found) found = PlaceOfKey(one, wanted);
    }
  }
  return found;
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the parser lets a file be
std::optional<toml::source_region> PlaceOfText(const toml::node& node, std::string_view wanted) {
  std::optional<toml::source_region> found;
  if (const toml::table* table = node.as_table(); table != nullptr) {
    for (const auto& [key, value] : *table) {
      if (!found) found = PlaceOfText(value, wanted);
    }
  } else if (const toml::array* list = node.as_array(); list != nullptr) {
    for (const toml::node& one : *list) {
      if (!found) found = PlaceOfText(one, wanted);
    }
  } else if (node.is_string() && node.value<std::string>() == wanted) {
    found = node.source();
  }
  return found;
}

/// The one of a list of collections that a message names, by its place or its quoted name; null if it names
/// none.
const toml::node* NamedTable(const toml::node& node, std::string_view message,
                             const std::vector<std::string_view>& words) {
  const toml::table* table = node.as_table();
  const toml::array* list = table != nullptr ? table->get_as<toml::array>("collections") : nullptr;
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    if (message.find(fmt::format("collections[{}]", i)) != std::string_view::npos) return list->get(i);
    const toml::table* one = list->get_as<toml::table>(i);
    const auto name = one != nullptr ? (*one)["name"].value<std::string>() : std::nullopt;
    if (name && std::find(words.begin(), words.end(), *name) != words.end()) return one;
  }
  return nullptr;
}

}  // namespace

Status ConfigPlace::AtWhatItNames(const Status& status, const toml::node& node) const {
  const std::vector<std::string_view> words = QuotedIn(status.message());
  const toml::node* named = NamedTable(node, status.message(), words);
  const toml::node& inside = named != nullptr ? *named : node;
  for (const std::string_view word : words) {
    if (const auto found = PlaceOfKey(inside, word)) return At(status, *found);
  }
  if (!words.empty()) {
    if (const auto found = PlaceOfText(inside, words.front())) return At(status, *found);
  }
  return At(status, inside.source());
}

}  // namespace luff::cli
