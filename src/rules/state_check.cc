#include "rules/state_check.h"

#include <cmath>
#include <exception>
#include <string>

#include <nlohmann/json.hpp>

#include "rules/json_text.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr double kLargest = 9007199254740992.0;  // 2^53
constexpr int kMaxDepth = 32;

/// Looks at the text while it is parsed: nothing is kept of it.
class Look final : public nlohmann::json_sax<Json> {
 public:
  explicit Look(bool large_reals) : large_reals_(large_reals) {}
  [[nodiscard]] bool found_large() const noexcept { return found_large_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return Fits(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Fits(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override {
    if (Fits(value)) return true;
    found_large_ = true;
    return large_reals_ && std::isfinite(value);
  }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return ++depth_ <= kMaxDepth; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ <= kMaxDepth; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  static bool Fits(double value) { return std::abs(value) <= kLargest; }  // false for NaN
  bool large_reals_, found_large_ = false;
  int depth_ = 0;
};

Status LookAt(std::string_view json, Look* look) {
  try {
    if (Json::sax_parse(json, look)) return Status::Ok();
  } catch (const std::exception& error) {
    return Corruption(std::string("state of a rule: ") + error.what());
  }
  return Corruption("state of a rule that is no JSON, too deep, or holds a number beyond 2^53");
}

constexpr double kTame = 0.5;  // an integer could not be it

bool IsLarge(const Json& json) {
  return json.is_number_float() && !(std::abs(json.get<double>()) <= kLargest);
}

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
  Look look(false);
  return LookAt(json, &look);
}

Status CheckRuleStateUntrusted(std::string_view json,
                               const std::function<Result<std::unique_ptr<Rule>>()>& make) {
  Look look(true);
  LUFF_RETURN_IF_ERROR(LookAt(json, &look));
  if (!look.found_large()) return Status::Ok();
  LUFF_ASSIGN_OR_RETURN(const auto rule, make());
  try {
    const Json state = ParseJson(json);
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
