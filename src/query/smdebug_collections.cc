#include "query/smdebug_collections.h"

#include <algorithm>
#include <cctype>
#include <exception>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::query {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kMaxWorkers = 1U << 20;

std::string ListOf(const Json& json, const char* key, std::vector<std::string>* to) {
  const auto at = json.find(key);
  if (at == json.end() || at->is_null() || at->is_boolean()) return "";
  if (!at->is_array()) return std::string("\"") + key + "\" that is no list";
  for (const Json& item : *at) {
    if (!item.is_string()) return std::string("an element of \"") + key + "\" that is no text";
    to->push_back(item.get<std::string>());
  }
  return "";
}

/// Returns "fc1" for "fc1_input_0"; "" for other names. `number` is 0 for the number 0, else 1.
std::string_view BeforeNumbered(std::string_view name, std::string_view word, std::size_t* number) {
  const std::size_t at = name.rfind(word);
  if (at == std::string_view::npos || at + word.size() == name.size()) return {};
  const std::string_view digits = name.substr(at + word.size());
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) return {};
  *number = digits == "0" ? 0 : 1;
  return name.substr(0, at);
}

bool IsLossName(std::string_view name) {
  return name.find("Loss") != std::string_view::npos || name.find("loss") != std::string_view::npos;
}

/// Returns "fc1" for "Net_fc1.weight", which has the name of the model's class, the path and the parameter.
std::string ModuleOfParameter(std::string_view name) {
  const std::size_t begin = name.find('_');
  const std::size_t end = name.rfind('.');
  if (begin == std::string_view::npos || end == std::string_view::npos || end <= begin) return {};
  return std::string(name.substr(begin + 1, end - begin - 1));
}

}  // namespace

void SmdebugCollections::Parse(const std::map<std::string, std::string>& texts,
                               std::vector<Problem>* problems) {
  collections_.clear();
  num_workers_ = 1;
  text_.clear();
  for (const auto& [file, text] : texts) {
    const auto problem = [&](const std::string& what, std::uint64_t offset = 0) {
      problems->push_back({file, offset, what});
    };
    try {
      const Json json = ParseOrderedJson(text);
      const auto collections = json.is_object() ? json.find("collections") : json.end();
      if (!json.is_object() || collections == json.end() || !collections->is_object()) {
        problem("no object \"collections\"");
        continue;
      }
      if (const auto meta = json.find("_meta"); meta != json.end() && meta->is_object()) {
        const auto count = meta->find("num_workers");
        if (count != meta->end() && count->is_number_integer() && count->get<std::int64_t>() >= 1 &&
            count->get<std::int64_t>() <= kMaxWorkers) {
          num_workers_ = std::max(num_workers_, count->get<std::uint32_t>());
        } else {
          problem("no number of workers in \"_meta\"");
        }
      } else {
        problem("no \"_meta\"");
      }
      if (text_.empty()) text_ = JsonText(*collections);
      for (const auto& [name, body] : collections->items()) {
        if (!body.is_object()) {
          problem("a collection \"" + name + "\" that is no object");
          continue;
        }
        Collection& collection = collections_[name];
        std::vector<std::string> tensors;
        std::vector<std::string> patterns;
        std::string wrong = ListOf(body, "tensor_names", &tensors);
        if (const std::string other = ListOf(body, "include_regex", &patterns); wrong.empty()) wrong = other;
        if (!wrong.empty()) problem(wrong + " in collection \"" + name + "\"");
        collection.tensors.insert(tensors.begin(), tensors.end());
        for (const std::string& pattern : patterns) {
          if (!collection.patterns.insert(pattern).second) continue;
          auto regex = Regex::Compile(pattern);
          if (!regex.ok()) {
            problem("an expression in collection \"" + name + "\" that does not compile (" +
                    std::string(regex.status().message()) + ")");
            continue;
          }
          collection.regexes.push_back(std::move(regex).value());
        }
      }
    } catch (const Json::parse_error& error) {
      problem(std::string("no JSON (") + error.what() + ")", error.byte == 0 ? 0 : error.byte - 1);
    } catch (const std::exception& error) {
      problem(std::string("no JSON (") + error.what() + ")");
    }
  }
}

std::vector<std::string> SmdebugCollections::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, collection] : collections_) names.push_back(name);
  return names;
}

void SmdebugCollections::Describe(TensorInfo* info) const {
  info->collections.clear();
  const auto in = [&](std::string_view name) {
    return std::find(info->collections.begin(), info->collections.end(), name) != info->collections.end();
  };
  for (const auto& [name, collection] : collections_) {
    const bool member = collection.tensors.contains(info->name) ||
                        std::any_of(collection.regexes.begin(), collection.regexes.end(),
                                    [&](const Regex& regex) { return regex.Search(info->name); });
    if (member) info->collections.push_back(name);
  }
  info->role = Role::kOther;
  info->module_path.clear();
  const std::string_view name = info->name;
  std::size_t number = 0;
  if (name.starts_with("gradient")) {
    info->role = Role::kGradient;
    const std::size_t slash = name.find('/');
    if (slash != std::string_view::npos) info->module_path = ModuleOfParameter(name.substr(slash + 1));
  } else if (const auto base = BeforeNumbered(name, "_input_", &number); !base.empty()) {
    info->role = !IsLossName(base) ? Role::kInput : number == 0 ? Role::kLossInput : Role::kLabel;
    info->module_path = base;
  } else if (const auto out = BeforeNumbered(name, "_output_", &number); !out.empty()) {
    info->role = in("losses") || IsLossName(out) ? Role::kLoss : Role::kOutput;
    info->module_path = out;
  } else if (in("weights")) {
    info->role = Role::kWeight;
    info->module_path = ModuleOfParameter(name);
  } else if (in("biases")) {
    info->role = Role::kBias;
    info->module_path = ModuleOfParameter(name);
  } else if (in("gradients")) {
    info->role = Role::kGradient;
  } else if (in("losses")) {
    info->role = Role::kLoss;
  } else if (in("metrics") || in("sm_metrics") || name.starts_with("scalar/")) {
    info->role = Role::kScalar;
  } else if (in("optimizer_variables")) {
    info->role = Role::kOptimizerState;
  } else if (in("labels")) {
    info->role = Role::kLabel;
  } else if (in("predictions") || in("outputs")) {
    info->role = Role::kOutput;
  } else if (in("inputs")) {
    info->role = Role::kInput;
  } else {
    info->role = Role::kCustom;
  }
}

}  // namespace luff::query
