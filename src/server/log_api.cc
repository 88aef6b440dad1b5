#include "server/log_api.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "server/job_log.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kBytes = 256 << 10, kMaxBytes = 1 << 20;

/// "OUT,ERR"
Result<std::optional<LogPlace>> PlaceIn(std::string_view text) {
  if (text.empty()) return std::optional<LogPlace>();
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos) return InvalidArgument("a place in the log is OUT,ERR");
  LogPlace place{};
  LUFF_ASSIGN_OR_RETURN(place[0], WholeNumber<std::uint64_t>(text.substr(0, comma), "offset"));
  LUFF_ASSIGN_OR_RETURN(place[1], WholeNumber<std::uint64_t>(text.substr(comma + 1), "offset"));
  return std::optional<LogPlace>(place);
}

}  // namespace

Result<Response> LogOf(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)run;
  LUFF_ASSIGN_OR_RETURN(const auto offset, PlaceIn(request.Parameter("offset")));
  LUFF_ASSIGN_OR_RETURN(const auto before, PlaceIn(request.Parameter("before")));
  if (offset && before) return InvalidArgument("offset and before exclude each other");
  LUFF_ASSIGN_OR_RETURN(const auto bytes, NumberIn<std::uint64_t>(request, "bytes", kBytes));
  LUFF_ASSIGN_OR_RETURN(const LogPage page, ReadLog(listed.path, offset ? offset : before, before.has_value(),
                                                    std::clamp<std::uint64_t>(bytes, 1, kMaxBytes)));
  Json lines = Json::array();
  for (const LogLine& line : page.lines) {
    Json one{{"stream", line.stream == 0 ? "out" : "err"},
             {"offset", line.offset},
             {"unix_ns", line.unix_ns},
             {"text", line.text}};
    if (!line.whole) one["whole"] = false;
    lines.push_back(std::move(one));
  }
  return Response{.body = JsonText(Json{{"dropped", page.dropped},
                                        {"size", page.size},
                                        {"from", page.from},
                                        {"next", page.next},
                                        {"lines", std::move(lines)}})};
}

}  // namespace luff::server
