#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/format/collections.h"
#include "luff/rules/choice.h"
#include "rules/kit/need_names.h"

namespace luff::rules {
namespace {

using OrderedJson = nlohmann::ordered_json;
using format::Form;
using format::Role;

constexpr std::int64_t kMaxFirstSteps = 256;

std::uint32_t Bits(std::initializer_list<Form> forms) {
  std::uint32_t bits = 0;
  for (const Form form : forms) bits |= static_cast<std::uint32_t>(form);
  return bits;
}

Need Default(const char* collection, std::vector<Role> roles, const char* mode) {
  Need need;
  need.collection = collection;
  need.roles = std::move(roles);
  need.forms = Bits({Form::kSummary});
  need.mode = mode;
  return need;
}

bool SameTensors(const Need& a, const Need& b) {
  return a.collection == b.collection && a.include == b.include && a.include_roles == b.include_roles &&
         a.roles == b.roles && a.module_types == b.module_types && a.unit_axis == b.unit_axis;
}

// A collection has one set of forms, and one interval per mode. Needs of the same tensors and forms share a
// collection, with the smallest interval per mode; other needs become collections of their own.
struct Saving {
  std::string mode;
  std::int64_t interval;
  std::int64_t first_steps;
};
struct Wanted {
  Need need;
  std::vector<Saving> save;
};

void Add(std::vector<Wanted>* wanted, const Need& need) {
  for (Wanted& known : *wanted) {
    if (!SameTensors(known.need, need) || known.need.forms != need.forms) continue;
    for (Saving& saving : known.save) {
      if (saving.mode == need.mode) {
        saving.interval = std::min(saving.interval, need.save_interval);
        saving.first_steps = std::max(saving.first_steps, need.first_steps);
        return;
      }
    }
    known.save.push_back({need.mode, need.save_interval, need.first_steps});
    return;
  }
  wanted->push_back({need, {{need.mode, need.save_interval, need.first_steps}}});
}

bool OnlyNamesACollection(const Need& need) {
  return need.include.empty() && need.roles.empty() && need.module_types.empty();
}

// A rule that has to inspect "losses" needs the tensors of that collection, in its own forms.
Status SelectAsBuiltIn(const std::string& rule, Need* need) {
  const format::BuiltInCollection* built_in = format::FindBuiltInCollection(need->collection);
  if (built_in == nullptr || (built_in->include.empty() && built_in->roles == 0)) {
    std::string known;
    for (const format::BuiltInCollection& one : format::kBuiltInCollections)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
    return InvalidArgument(fmt::format(
        "rule {} names the collection \"{}\", which nobody has defined: define it under [capture] of the "
        "configuration file, or give tensor_regex; there are {}",
        rule, need->collection, known));
  }
  if (!built_in->include.empty()) need->include = {std::string(built_in->include)};
  for (std::size_t number = 0; number < kRoleNames.size(); ++number) {
    const auto role = static_cast<Role>(number);
    if ((built_in->roles & format::RoleBit(role)) != 0) need->roles.push_back(role);
    if (built_in->roles != 0 && !built_in->include.empty() &&
        ((built_in->roles | format::kFreeRoles) & format::RoleBit(role)) != 0)
      need->include_roles.push_back(role);
  }
  return Status::Ok();
}

// The forms that rules need of a collection that the user defines.
void AddForms(std::uint32_t forms, OrderedJson* collection) {
  if (!collection->contains("forms") || !(*collection)["forms"].is_array()) return;  // all that rules use
  OrderedJson& listed = (*collection)["forms"];
  for (const auto& [form, text] : kFormNames) {
    const bool there = std::find(listed.begin(), listed.end(), text) != listed.end();
    if ((forms & static_cast<std::uint32_t>(form)) != 0 && !there) listed.push_back(text);
  }
}

OrderedJson ToCollection(const Wanted& wanted, const std::string& name) {
  OrderedJson json;
  json["name"] = name;
  json["include"] = wanted.need.include;
  const auto names_of = [](const std::vector<Role>& roles) {
    OrderedJson names = OrderedJson::array();
    for (const Role role : roles) names.push_back(kRoleNames[static_cast<std::size_t>(role)]);
    return names;
  };
  if (!wanted.need.include_roles.empty()) json["include_roles"] = names_of(wanted.need.include_roles);
  json["roles"] = names_of(wanted.need.roles);
  json["module_types"] = wanted.need.module_types;
  OrderedJson forms = OrderedJson::array();
  for (const auto& [form, text] : kFormNames) {
    if ((wanted.need.forms & static_cast<std::uint32_t>(form)) != 0) forms.push_back(text);
  }
  json["forms"] = std::move(forms);
  json["unit_axis"] = kAxisNames[static_cast<std::size_t>(wanted.need.unit_axis)];
  OrderedJson save = OrderedJson::object();
  for (const Saving& saving : wanted.save) {
    OrderedJson first = OrderedJson::array();
    for (std::int64_t step = 0; step < std::min(saving.first_steps, kMaxFirstSteps); ++step) {
      if (step % saving.interval != 0) first.push_back(step);
    }
    save[saving.mode] = {{"save_interval", saving.interval},
                         {"start_step", 0},
                         {"end_step", nullptr},
                         {"save_steps", std::move(first)}};
  }
  json["save"] = std::move(save);
  return json;
}

}  // namespace

Result<std::string> CaptureConfigFor(std::span<const Choice> choices, std::string_view extra) {
  std::vector<Wanted> wanted;
  for (const char* mode : {"TRAIN", "EVAL", "PREDICT", "GLOBAL"}) {
    Add(&wanted, Default("losses", {Role::kLoss}, mode));
    Add(&wanted, Default("scalars", {Role::kScalar}, mode));
  }
  Add(&wanted, Default("weights", {Role::kWeight}, "TRAIN"));
  Add(&wanted, Default("biases", {Role::kBias}, "TRAIN"));
  Add(&wanted, Default("gradients", {Role::kGradient}, "TRAIN"));
  Add(&wanted, Default("optimizer_settings", {Role::kOptimizerSetting}, "TRAIN"));
  try {
    const OrderedJson more = TryParseJson(extra.empty() ? "{}" : extra);
    if (!more.is_object()) return InvalidArgument("the capture configuration is no JSON object");
    std::map<std::string, std::uint32_t> forms;  // that rules need of the user's own collections, by name
    if (const auto own = more.find("collections"); own != more.end() && own->is_array()) {
      for (const OrderedJson& one : *own) {
        if (one.is_object() && one.contains("name") && one["name"].is_string()) forms[one["name"]] = 0;
      }
    }
    for (const Choice& choice : choices) {
      for (Need& need : choice.spec->needs(choice.parameters)) {
        if (OnlyNamesACollection(need)) {
          if (const auto own = forms.find(need.collection); own != forms.end()) {
            own->second |= need.forms;
            continue;
          }
          LUFF_RETURN_IF_ERROR(SelectAsBuiltIn(choice.spec->name, &need));
        }
        Add(&wanted, need);
      }
    }
    OrderedJson config;
    OrderedJson collections = OrderedJson::array();
    std::vector<std::string> names;
    for (const Wanted& one : wanted) {
      std::string name = one.need.collection;
      for (int number = 2; std::find(names.begin(), names.end(), name) != names.end(); ++number) {
        name = fmt::format("{}_{}", one.need.collection, number);
      }
      names.push_back(name);
      collections.push_back(ToCollection(one, name));
    }
    config["collections"] = std::move(collections);
    config["events"] = true;
    config["max_overhead"] = 0.05;
    config["max_bytes"] = 0;
    for (const auto& [key, value] : more.items()) {
      if (key != "collections") {
        config[key] = value;
        continue;
      }
      if (!value.is_array()) return InvalidArgument("'collections' of the capture configuration is no list");
      for (OrderedJson collection : value) {
        if (!collection.is_object() || !collection.contains("name") || !collection["name"].is_string()) {
          return InvalidArgument("a collection of the capture configuration has no name");
        }
        AddForms(forms[collection["name"]], &collection);
        auto& list = config["collections"];
        const auto same = std::find_if(list.begin(), list.end(), [&](const OrderedJson& known) {
          return known["name"] == collection["name"];
        });
        if (same != list.end()) {
          *same = std::move(collection);
        } else {
          list.push_back(std::move(collection));
        }
      }
    }
    return JsonText(config);
  } catch (const std::exception& error) {
    return InvalidArgument(fmt::format("the capture configuration does not parse: {}", error.what()));
  }
}

}  // namespace luff::rules
