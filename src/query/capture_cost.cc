#include "luff/query/capture_cost.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::query {

std::optional<CaptureCost> ParseCaptureCostUntrusted(std::string_view document) {
  constexpr JsonLimits kSmall{.bytes = 4096, .depth = 4};
  const nlohmann::json json = TryParseJson(document, kSmall);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&](const char* name) -> std::uint64_t {
    const auto at = json.find(name);
    return at != json.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
  };
  const std::uint64_t spent = number("spent_ns");
  const std::uint64_t time = number("time_ns");
  if (time == 0) return std::nullopt;
  const double time_s = static_cast<double>(time) * 1e-9;
  return CaptureCost{number("steps"), std::min(static_cast<double>(spent) * 1e-9, time_s), time_s};
}

std::optional<CaptureCost> CaptureCostOf(const Trial& trial) {
  return ParseCaptureCostUntrusted(trial.Document("cost"));
}

}  // namespace luff::query
