#include "rules/engine/recorded.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "rules/kit/need_names.h"

namespace luff::rules {
namespace {

// A collection that saves this much more rarely than a rule asks for was not made for it: modes that nobody
// names are saved every 500 steps.
constexpr std::int64_t kMuchRarer = 50;
constexpr std::int64_t kFewSteps = 16;  // what ends this early shows the begin alone

std::vector<std::string> Texts(const nlohmann::json& from, const char* key) {
  std::vector<std::string> texts;
  const auto at = from.find(key);
  if (at == from.end() || !at->is_array()) return texts;
  for (const nlohmann::json& one : *at)
    if (one.is_string()) texts.push_back(one.get<std::string>());
  return texts;
}

bool Among(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

void Recorded::ReadUntrusted(std::string_view document) {
  collections_.clear();
  const nlohmann::json json = TryParseJson(document);
  known_ = json.is_array() && !json.empty();
  if (!known_) return;
  for (const nlohmann::json& one : json) {
    if (!one.is_object()) continue;
    Collection collection;
    if (const auto name = one.find("name"); name != one.end() && name->is_string())
      collection.name = name->get<std::string>();
    collection.roles = Texts(one, "roles");
    collection.include = Texts(one, "include");
    collection.module_types = Texts(one, "module_types");
    const std::vector<std::string> forms = Texts(one, "forms");
    for (const auto& [form, text] : kFormNames)
      if (Among(forms, text)) collection.forms |= static_cast<std::uint32_t>(form);
    const auto save = one.find("save");
    if (save != one.end() && save->is_object()) {
      for (const auto& [mode, when] : save->items()) {
        if (!when.is_object()) continue;
        const auto end = when.find("end_step");
        const bool begin_alone =
            end != when.end() && end->is_number_integer() && end->get<std::int64_t>() < kFewSteps;
        const auto every = when.find("save_interval");
        if (begin_alone || every == when.end() || !every->is_number_integer()) continue;
        collection.saved.push_back({mode, every->get<std::int64_t>()});
      }
    }
    collections_.push_back(std::move(collection));
  }
}

bool Recorded::Saves(const Collection& one, const Need& need) {
  if ((need.forms & ~one.forms) != 0) return false;
  return std::ranges::any_of(one.saved, [&](const Saved& saved) {
    return saved.mode == need.mode && saved.interval / kMuchRarer <= need.save_interval;
  });
}

bool Recorded::HoldsOne(const Need& need) const {
  const auto any = [&](const auto& fits) {
    return std::ranges::any_of(collections_,
                               [&](const Collection& one) { return fits(one) && Saves(one, need); });
  };
  if (need.roles.empty() && need.include.empty())
    return any([&](const Collection& one) {  // others of the name follow it: losses_2
      return one.name == need.collection || one.name.starts_with(need.collection + "_");
    });
  const auto types = [&](const Collection& one) {
    return one.module_types.empty() || std::ranges::all_of(need.module_types, [&](const std::string& type) {
             return Among(one.module_types, type);
           });
  };
  return std::ranges::all_of(need.roles,
                             [&](format::Role role) {
                               const std::string_view name = kRoleNames[static_cast<std::size_t>(role)];
                               return any([&](const Collection& one) {
                                 // A collection with types wanted by nobody else is not the tensors of a
                                 // role.
                                 const bool all = !need.module_types.empty() || one.module_types.empty();
                                 return all && types(one) && Among(one.roles, name);
                               });
                             }) &&
         std::ranges::all_of(need.include, [&](const std::string& expression) {
           return any([&](const Collection& one) { return Among(one.include, expression); });
         });
}

bool Recorded::Holds(std::span<const Need> needs) const {
  return !known_ || std::ranges::all_of(needs, [&](const Need& need) { return HoldsOne(need); });
}

}  // namespace luff::rules
