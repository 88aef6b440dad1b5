#include "rules/state_check.h"

#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr double kLargest = 9007199254740992.0;  // 2^53
constexpr int kMaxDepth = 32;

/// Looks at the text while it is parsed: nothing is kept of it.
class Look final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return Fits(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Fits(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return Fits(value); }
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
  int depth_ = 0;
};

}  // namespace

Status CheckStateUntrusted(std::string_view json) {
  try {
    Look look;
    if (Json::sax_parse(json, &look)) return Status::Ok();
  } catch (const std::exception& error) {
    return Corruption(std::string("state of a rule: ") + error.what());
  }
  return Corruption("state of a rule that is no JSON, too deep, or holds a number beyond 2^53");
}

}  // namespace luff::rules
