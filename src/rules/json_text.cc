#include "rules/json_text.h"

namespace luff::rules {

using Json = nlohmann::json;

std::string JsonText(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json ParseJson(std::string_view text) { return Json::parse(text); }

Json TryParseJson(std::string_view text) { return Json::parse(text, nullptr, false); }

}  // namespace luff::rules
