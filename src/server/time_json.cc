#include "server/time_json.h"

#include <algorithm>
#include <string>

#include "server/stacks_json.h"
#include "server/trace_json.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kJoulePerKwh = 3.6e6;

Json Maybe(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json Ranks(const profile::MachineUse& use) {
  Json all = Json::array();
  for (const profile::RankUse& rank : use.ranks) {
    all.push_back({{"worker", rank.worker},
                   {"cores", Maybe(rank.cores)},
                   {"threads", Maybe(rank.threads)},
                   {"threads_waiting", Maybe(rank.run_queue)},
                   {"rss", Maybe(rank.rss)},
                   {"most_rss", Maybe(rank.most_rss)},
                   {"disk_wait", Maybe(rank.disk_wait)},
                   {"read_a_second", Maybe(rank.read_rate)},
                   {"written_a_second", Maybe(rank.write_rate)},
                   {"children", rank.children},
                   {"children_cores", Maybe(rank.children_cores)},
                   {"children_disk_wait", Maybe(rank.children_disk_wait)}});
    Json& children = all.back()["busiest_children"] = Json::array();
    for (const auto& child : rank.busiest)
      children.push_back({{"place", child.place}, {"cores", child.cores}, {"disk_wait", child.disk_wait}});
  }
  return all;
}

Json Flows(const std::vector<profile::FlowUse>& from, const char* in, const char* out) {
  Json all = Json::array();
  for (const profile::FlowUse& flow : from)
    all.push_back({{"name", flow.name}, {in, flow.in_rate}, {out, flow.out_rate}});
  return all;
}

Json Gpus(const profile::MachineUse& use) {
  Json all = Json::array();
  for (const profile::GpuUse& gpu : use.gpus) {
    all.push_back({{"index", gpu.index},
                   {"name", gpu.name},
                   {"utilisation", Maybe(gpu.utilisation)},
                   {"sm_active", Maybe(gpu.sm_active)},
                   {"tensor_active", Maybe(gpu.tensor_active)},
                   {"memory_used", Maybe(gpu.memory_used)},
                   {"memory_total", Maybe(gpu.memory_total)},
                   {"watts", Maybe(gpu.watts)},
                   {"temperature", Maybe(gpu.temperature)},
                   {"thermal", Maybe(gpu.thermal)},
                   {"power_limited", Maybe(gpu.power)}});
  }
  return all;
}

Json Machine(const profile::MachineUse& use, double unsampled_s, double price_per_hour) {
  Json one{{"host", use.host}, {"name", use.name}, {"seconds", use.seconds}, {"cores", use.cores}};
  one["cores_of_machine"] = Maybe(use.all_cores);
  one["cores_limit"] = Maybe(use.limit_cores);
  one["cores_busy"] = Maybe(use.busy);
  one["cores_job"] = use.ranks.empty() ? Json(nullptr) : Json(use.job_cores());
  one["cores_stolen"] = Maybe(use.steal);
  one["throttled"] = Maybe(use.throttled);
  one["memory"] = {{"total", Maybe(use.memory_total)},
                   {"least_available", Maybe(use.memory_least_available)},
                   {"limit", Maybe(use.memory_limit)},
                   {"most_used_of_limit", Maybe(use.memory_used)},
                   {"swapped_in_a_second", Maybe(use.swap_in_rate)}};
  one["pressure"] = {{"cpu_some", Maybe(use.cpu_some)},
                     {"memory_some", Maybe(use.memory_some)},
                     {"memory_full", Maybe(use.memory_full)},
                     {"io_some", Maybe(use.io_some)},
                     {"io_full", Maybe(use.io_full)}};
  one["ranks"] = Ranks(use);
  one["disks"] = Flows(use.disks, "read_a_second", "written_a_second");
  one["networks"] = Flows(use.networks, "received_a_second", "sent_a_second");
  one["gpus"] = Gpus(use);
  const auto kwh = [](const std::optional<double>& joule) {
    return joule ? Json(*joule / kJoulePerKwh) : Json(nullptr);
  };
  one["energy_kwh"] = {{"processors", kwh(use.package_j)}, {"gpus", kwh(use.gpu_j)}};
  one["cost"] = price_per_hour > 0 ? Json(use.seconds / 3600 * price_per_hour) : Json(nullptr);
  one["sampler"] = {{"cores", Maybe(use.sampler_cores)},
                    {"rss", Maybe(use.sampler_rss)},
                    {"lives", use.lives},
                    {"ended", use.ended},
                    {"not_sampled", unsampled_s}};
  return one;
}

Json Loaders(const std::vector<profile::LoaderUse>& loaders) {
  Json all = Json::array();
  for (const profile::LoaderUse& use : loaders) {
    Json workers = Json::object();
    for (const auto& [worker, seconds] : use.by_worker) workers[std::to_string(worker)] = seconds;
    all.push_back({{"number", use.loader.number},
                   {"loaders", use.loaders},
                   {"type", use.loader.type},
                   {"workers", use.loader.workers},
                   {"asked", use.batches},
                   {"ready", use.ready},
                   {"waited", use.waited_s},
                   {"waited_by_worker", std::move(workers)}});
  }
  return all;
}

constexpr std::size_t kMostModules = 100;

/// Seconds a timed step; null where nothing was timed.
Json Modules(const profile::ModuleTable& table) {
  if (table.steps == 0) return nullptr;
  const auto steps = static_cast<double>(table.steps);
  const auto a_step = [&](const std::optional<double>& s) { return s ? Json(*s / steps) : Json(nullptr); };
  Json lines = Json::array();
  for (std::size_t i = 0; i < std::min(table.lines.size(), kMostModules); ++i) {
    const profile::ModuleLine& line = table.lines[i];
    lines.push_back({{"module", line.name.empty() ? Json(nullptr) : Json(line.name)},
                     {"type", line.type},
                     {"share", line.share},
                     {"calls", static_cast<double>(line.calls) / steps},
                     {"forward", a_step(line.forward_s)},
                     {"forward_own", line.forward_own_s / steps},
                     {"backward", a_step(line.backward_s)},
                     {"backward_own", a_step(line.backward_own_s)}});
  }
  return {{"steps", table.steps},
          {"modules", table.modules},
          {"seconds", table.own_s / steps},
          {"lines", std::move(lines)}};
}

/// Seconds of a rank in its TRAIN steps.
Json RankTimes(const profile::RankTimes& rank) {
  Json json{{"worker", rank.worker}, {"steps", rank.steps}, {"seconds", rank.wall_s}};
  json["cpu"] = rank.timed_s > 0 ? Json(rank.cpu_s) : Json(nullptr);
  json["run_queue"] = rank.timed_s > 0 ? Json(rank.run_queue_s) : Json(nullptr);
  json["phases"] = Json::object();
  for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
    if (rank.seconds[i] > 0)
      json["phases"][std::string(format::PhaseName(static_cast<std::uint8_t>(i)))] = rank.seconds[i];
  }
  return json;
}

/// What a run with TRAIN steps that have phases says of them.
Json Phases(const query::Trial& trial, const profile::TimeReport& report,
            const std::vector<rules::Finding>& findings) {
  const profile::PhaseTable& table = report.table;
  Json json{{"worker", table.worker}, {"workers", table.workers}, {"verdict", report.verdict.text}};
  json["steps"] = table.steps;
  json["seconds"] = table.wall_s;
  json["step"] = {{"median", table.median_s}, {"p95", table.p95_s}};
  json["evaluation"] = {{"steps", table.other_steps}, {"seconds", table.other_s}};
  json["phases"] = Json::array();
  for (const profile::PhaseLine& line : table.lines) {
    json["phases"].push_back({{"phase", format::PhaseName(static_cast<std::uint8_t>(line.phase))},
                              {"steps", line.steps},
                              {"seconds", line.total_s},
                              {"share", line.share},
                              {"median", line.median_s},
                              {"p95", line.p95_s},
                              {"device_steps", line.device_steps},
                              {"device_seconds", line.device_s}});
  }
  json["device"] = nullptr;
  if (table.device_steps > 0)
    json["device"] = {{"steps", table.device_steps},
                      {"host_seconds", table.device_wall_s},
                      {"seconds", table.device_s},
                      {"idle_steps", table.idle_steps},
                      {"text", profile::DeviceText(table)}};
  json["thread"] = nullptr;
  if (table.timed_s > 0)
    json["thread"] = {{"seconds", table.timed_s}, {"cpu", table.cpu_s}, {"run_queue", table.run_queue_s}};
  json["saving"] = nullptr;
  json["cause"] = nullptr;
  json["remedy"] = nullptr;
  if (report.verdict.cause && report.verdict.cause->estimate.saving_s > 0) {
    const profile::Estimate& estimate = report.verdict.cause->estimate;
    json["cause"] = report.verdict.cause->cause;
    json["remedy"] = report.verdict.cause->remedy;
    json["saving"] = {{"seconds", report.verdict.saving_s},
                      {"seconds_a_step", estimate.saving_s},
                      {"share", estimate.saving_s / report.verdict.means.step_s},
                      {"low", estimate.low_s},
                      {"high", estimate.high_s},
                      {"method", estimate.method}};
  }
  json["traced"] = {{"steps", table.traced_steps}, {"seconds", table.traced_s}};
  json["modules"] = Modules(report.modules);
  json["loaders"] = Loaders(report.loaders);
  json["ranks"] = Json::array();
  for (const profile::RankTimes& rank : table.ranks) json["ranks"].push_back(RankTimes(rank));
  json["skew"] = profile::SkewOf(table.ranks);
  json["findings"] = Json::array();
  for (const rules::Finding& finding : findings)
    json["findings"].push_back({{"id", finding.id},
                                {"rule", finding.rule},
                                {"cause", finding.cause},
                                {"what", finding.what},
                                {"remedy", finding.remedy}});
  json["not_seen"] = profile::NotSeen(trial, report);
  return json;
}

}  // namespace

Json DescribeTime(const ToldTime& told, const TimeOptions& options) {
  const profile::PhaseTable& table = told.report.table;
  Json json =
      table.steps > 0
          ? Phases(told.trial, told.report, told.findings)
          : Json{{"steps", 0}, {"why", profile::WhyNoSteps(told.trial, table)}, {"not_seen", Json::array()}};
  json["machines"] = Json::array();
  for (std::size_t i = 0; i < told.machines.all.size(); ++i)
    json["machines"].push_back(
        Machine(told.machines.all[i], told.machines.unsampled_s[i], options.price_per_hour));
  for (const std::string& line : told.machines.not_seen) json["not_seen"].push_back(line);
  AddStacks(told.stacks, options.most_stalls, &json);
  json["traces"] = DescribeTraces(told.traces, options.run);
  return json;
}

}  // namespace luff::server
