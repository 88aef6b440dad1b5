#include "server/trace_json.h"

#include <algorithm>

#include "base/format.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostRows = 50;

Json ToldOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json Times(const std::vector<profile::OperatorTime>& times) {
  Json all = Json::array();
  for (std::size_t i = 0; i < std::min(times.size(), kMostRows); ++i)
    all.push_back({{"name", times[i].name},
                   {"calls", times[i].calls},
                   {"self", times[i].self_s},
                   {"total", times[i].total_s}});
  return all;
}

Json Summary(const profile::TraceSummary& summary) {
  Json json{{"events", summary.events},
            {"span", summary.span_s},
            {"in_operators", summary.operators_s},
            {"operators", Times(summary.operators)},
            {"functions", Times(summary.functions)},
            {"kernels", Times(summary.kernels)},
            {"syncs", Times(summary.syncs)}};
  Json& copies = json["copies"] = Json::array();
  for (std::size_t i = 0; i < std::min(summary.copies.size(), kMostRows); ++i) {
    const profile::TraceSummary::Copy& copy = summary.copies[i];
    copies.push_back(
        {{"kind", copy.kind}, {"calls", copy.calls}, {"bytes", copy.bytes}, {"seconds", copy.seconds}});
  }
  json["device"] = {{"span", summary.device_span_s},
                    {"busy", summary.device_busy_s},
                    {"idle_host", summary.idle_host_s},
                    {"idle_kernel", summary.idle_kernel_s},
                    {"idle_unknown", summary.idle_unknown_s}};
  return json;
}

}  // namespace

Json DescribeTraces(const profile::TraceReport& report, const std::string& run) {
  Json all = Json::array();
  for (const profile::TraceFile& file : report.files) {
    const std::string path =
        file.file.empty() ? "" : fmt::format("{}w{:04}/{}", run, report.worker, file.file);
    all.push_back({{"first_step", file.first_step},
                   {"steps", file.steps},
                   {"bytes", file.bytes},
                   {"cost", file.cost_s},
                   {"file", ToldOrNull(path)},
                   {"refused", ToldOrNull(file.refused)},
                   {"finding", ToldOrNull(file.finding)},
                   {"rule", ToldOrNull(file.rule)}});
    if (!report.last || file.file != report.last->file) continue;
    if (report.summary)
      all.back()["summary"] = Summary(*report.summary);
    else
      all.back()["unread"] = report.problem;
  }
  return all;
}

}  // namespace luff::server
