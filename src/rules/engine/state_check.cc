#include "rules/engine/state_check.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

constexpr double kLargest = 9007199254740992.0;  // 2^53
constexpr std::size_t kMaxDepth = 32;
constexpr std::uint64_t kMaxStateBytes = 64ULL << 20;

bool Fits(const Json& json) {
  if (json.is_structured())
    return std::all_of(json.begin(), json.end(), [](const Json& item) { return Fits(item); });
  return !json.is_number() || std::abs(json.get<double>()) <= kLargest;
}

}  // namespace

Status CheckStateUntrusted(std::string_view json) {
  const Json state = TryParseJson(json, {kMaxStateBytes, kMaxDepth});
  if (!state.is_discarded() && Fits(state)) return Status::Ok();
  return Corruption("a checkpoint that is no JSON, too deep, or holds a number beyond 2^53");
}

}  // namespace luff::rules
