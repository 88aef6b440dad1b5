#include "rules/state_check.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr double kLargest = 9007199254740992.0;  // 2^53
constexpr std::size_t kMaxDepth = 32;
constexpr std::uint64_t kMaxStateBytes = 64ULL << 20;
constexpr const char* kWrong = "state of a rule that is no JSON, too deep, or holds a number beyond 2^53";

bool Fits(double value) { return std::abs(value) <= kLargest; }  // false for NaN

bool IsLarge(const Json& json) { return json.is_number_float() && !Fits(json.get<double>()); }

/// False for an integer beyond 2^53. `large`: set where a real is.
bool Integers(const Json& json, bool* large) {
  if (json.is_structured())
    return std::all_of(json.begin(), json.end(), [&](const Json& item) { return Integers(item, large); });
  if (json.is_number_integer()) return Fits(json.get<double>());
  *large = *large || IsLarge(json);
  return true;
}

constexpr double kTame = 0.5;  // an integer could not be it

/// Puts kTame in the place of each large number.
void Tame(Json* json) {
  if (IsLarge(*json)) *json = std::copysign(kTame, json->get<double>());
  if (json->is_structured()) {
    for (Json& item : *json) Tame(&item);
  }
}

/// True when `saved` has a tame number wherever `json` has a large one.
bool SavedTame(const Json& json, const Json& saved) {
  if (IsLarge(json)) return saved.is_number_float() && std::abs(saved.get<double>()) == kTame;
  if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); ++i) {
      if (!SavedTame(json[i], saved.is_array() && i < saved.size() ? saved[i] : Json())) return false;
    }
  } else if (json.is_object()) {
    for (const auto& [key, item] : json.items()) {
      const auto at = saved.is_object() ? saved.find(key) : saved.end();
      if (!SavedTame(item, at != saved.end() ? *at : Json())) return false;
    }
  }
  return true;
}

}  // namespace

Status CheckStateUntrusted(std::string_view json) {
  const Json state = TryParseJson(json, {kMaxStateBytes, kMaxDepth});
  bool large = false;
  if (!state.is_discarded() && Integers(state, &large) && !large) return Status::Ok();
  return Corruption(kWrong);
}

Status CheckRuleStateUntrusted(std::string_view json,
                               const std::function<Result<std::unique_ptr<Rule>>()>& make) {
  const Json state = TryParseJson(json, {kMaxStateBytes, kMaxDepth});
  bool large = false;
  if (state.is_discarded() || !Integers(state, &large)) return Corruption(kWrong);
  if (!large) return Status::Ok();
  LUFF_ASSIGN_OR_RETURN(const auto rule, make());
  try {
    Json tame = state;
    Tame(&tame);
    LUFF_RETURN_IF_ERROR(rule->LoadState(JsonText(tame)));
    if (SavedTame(state, ParseJson(rule->SaveState()))) return Status::Ok();
  } catch (const std::exception& error) {
    return Corruption(std::string("state of a rule: ") + error.what());
  }
  return Corruption("state of a rule that holds a number beyond 2^53 where it has integers");
}

}  // namespace luff::rules
