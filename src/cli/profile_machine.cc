#include "cli/profile_machine.h"

#include <algorithm>

#include "base/format.h"
#include "base/text_escape.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "luff/profile/input.h"

namespace luff::cli {
namespace {

using profile::BytesText;
using profile::MachineUse;

constexpr double kJoulePerKwh = 3.6e6;
constexpr std::size_t kMostLines = 4;  // ranks, disks, interfaces that a screen shows
constexpr double kIdleRate = 10e3;     // bytes a second that are not worth a line

double PerCent(double share) { return 100 * share; }

Json Maybe(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::string EnergyText(double joule) {
  const double kwh = joule / kJoulePerKwh;
  return kwh < 0.0995 ? fmt::format("{:.2g} Wh", kwh * 1000) : fmt::format("{:.3g} kWh", kwh);
}

void PrintField(const char* label, const std::string& text) { fmt::print("    {:<11} {}\n", label, text); }

void PrintCores(const MachineUse& use) {
  if (!use.busy) return;
  const double all = use.all_cores.value_or(use.cores);
  const double job = use.job_cores();
  std::string text = fmt::format("{:.1f} of {:.0f} busy", *use.busy, all);
  if (!use.ranks.empty())
    text += fmt::format(": the job {:.1f}, all else {:.1f}", job, std::max(0.0, *use.busy - job));
  if (use.cores > 0 && use.cores < all - 0.01) text += fmt::format("; the job may use {:.1f}", use.cores);
  if (use.steal && *use.steal > 0.01 * all)
    text += fmt::format("; {:.0f} % taken by other machines on this host", PerCent(*use.steal / all));
  if (use.throttled && *use.throttled > 0)
    text += fmt::format("; throttled by the limit in {:.0f} % of its periods", PerCent(*use.throttled));
  PrintField("cores", text);
}

void PrintMemory(const MachineUse& use) {
  std::vector<std::string> parts;
  if (use.memory_least_available && use.memory_total)
    parts.push_back(fmt::format("{} of {} available at the least", BytesText(*use.memory_least_available),
                                BytesText(*use.memory_total)));
  if (use.memory_limit && use.memory_used)
    parts.push_back(fmt::format("{} of the limit of {} used at the most", BytesText(*use.memory_used),
                                BytesText(*use.memory_limit)));
  if (use.swap_in_rate && *use.swap_in_rate > 0)
    parts.push_back(fmt::format("{}/s swapped in", BytesText(*use.swap_in_rate)));
  if (!parts.empty()) PrintField("memory", fmt::format("{}", fmt::join(parts, "; ")));
}

void PrintRank(const profile::RankUse& rank) {
  std::vector<std::string> parts;
  if (rank.cores) parts.push_back(fmt::format("{:.1f} cores", *rank.cores));
  if (rank.run_queue && *rank.run_queue >= 0.05)
    parts.push_back(fmt::format("{:.1f} threads waiting for one", *rank.run_queue));
  if (rank.most_rss) parts.push_back(fmt::format("{} at the most", BytesText(*rank.most_rss)));
  if (rank.read_rate && *rank.read_rate > kIdleRate)
    parts.push_back(fmt::format("reads {}/s", BytesText(*rank.read_rate)));
  if (rank.disk_wait && *rank.disk_wait >= 0.01)
    parts.push_back(fmt::format("waits for storage {:.0f} % of the time", PerCent(*rank.disk_wait)));
  PrintField(fmt::format("rank {}", rank.worker).c_str(), fmt::format("{}", fmt::join(parts, ", ")));
  if (rank.children < 0.05) return;
  std::string text = fmt::format("{:.1f} processes below it", rank.children);
  if (rank.children_cores) text += fmt::format(", {:.1f} cores together", *rank.children_cores);
  if (!rank.busiest.empty()) text += fmt::format(", the busiest {:.2f}", rank.busiest.front().cores);
  if (rank.children_disk_wait && *rank.children_disk_wait >= 0.005)
    text += fmt::format(", waiting for storage {:.0f} % of their time", PerCent(*rank.children_disk_wait));
  PrintField("  workers", text);
}

void PrintPressure(const MachineUse& use) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, const std::optional<double>& share) {
    if (share) parts.push_back(fmt::format("{} {:.0f} %", what, PerCent(*share)));
  };
  add("cores", use.cpu_some);
  add("memory", use.memory_some);
  add("storage", use.io_some);
  if (!parts.empty())
    PrintField("waited for", fmt::format("{} of the time, by anybody", fmt::join(parts, ", ")));
}

void PrintFlows(const char* label, std::vector<profile::FlowUse> flows, const char* in, const char* out) {
  std::ranges::sort(flows, std::greater(), [](const auto& one) { return one.in_rate + one.out_rate; });
  std::size_t shown = 0;
  for (const profile::FlowUse& flow : flows) {
    if (flow.in_rate + flow.out_rate < kIdleRate && flow.busy < 0.05) continue;
    if (++shown > kMostLines) break;
    std::string text = fmt::format("{}: {} {}/s, {} {}/s", Escaped(flow.name), in, BytesText(flow.in_rate),
                                   out, BytesText(flow.out_rate));
    if (flow.busy > 0) text += fmt::format(", busy {:.0f} %", PerCent(flow.busy));
    PrintField(shown == 1 ? label : "", text);
  }
}

void PrintGpu(const profile::GpuUse& gpu) {
  std::vector<std::string> parts;
  if (!gpu.name.empty()) parts.push_back(Escaped(gpu.name));
  if (gpu.utilisation)
    parts.push_back(fmt::format("a kernel runs {:.0f} % of the time", PerCent(*gpu.utilisation)));
  if (gpu.sm_active) parts.push_back(fmt::format("multiprocessors active {:.0f} %", PerCent(*gpu.sm_active)));
  if (gpu.tensor_active) parts.push_back(fmt::format("tensor cores {:.0f} %", PerCent(*gpu.tensor_active)));
  if (gpu.most_memory_used && gpu.memory_total)
    parts.push_back(
        fmt::format("{} of {} at the most", BytesText(*gpu.most_memory_used), BytesText(*gpu.memory_total)));
  if (gpu.watts) parts.push_back(fmt::format("{:.0f} W", *gpu.watts));
  if (gpu.temperature) parts.push_back(fmt::format("up to {:.0f} C", *gpu.temperature));
  if (gpu.thermal && *gpu.thermal > 0)
    parts.push_back(fmt::format("slowed down by heat {:.0f} % of the time", PerCent(*gpu.thermal)));
  PrintField(fmt::format("GPU {}", gpu.index).c_str(), fmt::format("{}", fmt::join(parts, ", ")));
}

}  // namespace

MachineView::MachineView(const std::string& run, double price_per_hour) : price_per_hour_(price_per_hour) {
  const auto samples = query::Samples::Open(run);
  if (!samples.ok() || (*samples)->hosts().empty()) {
    not_seen_.emplace_back(
        "the machine: no sampler has measured it (`luff run` and attach() start one, unless profile is off)");
    return;
  }
  for (const query::HostSamples& host : (*samples)->hosts()) {
    auto use = profile::UseOf(host);
    if (!use.ok()) {
      not_seen_.push_back("a machine: " + Escaped(use.status().ToString()));
      continue;
    }
    for (const std::string& line : profile::NotMeasured(host)) {
      std::string text = Escaped(line);
      if (std::ranges::find(not_seen_, text) == not_seen_.end()) not_seen_.push_back(std::move(text));
    }
    if (use->lives > 1)
      not_seen_.push_back(fmt::format("parts of the time of {}: its sampler was started {} times",
                                      Escaped(use->name), use->lives));
    machines_.push_back(std::move(use).value());
  }
}

void MachineView::PrintOne(const MachineUse& use) const {
  fmt::print("\n  machine {}, measured for {}\n", Escaped(use.name), profile::TimeText(use.seconds));
  PrintCores(use);
  PrintMemory(use);
  for (std::size_t i = 0; i < std::min(use.ranks.size(), kMostLines); ++i) PrintRank(use.ranks[i]);
  if (use.ranks.size() > kMostLines)
    PrintField("", fmt::format("and {} more ranks; --json has all", use.ranks.size() - kMostLines));
  PrintPressure(use);
  PrintFlows("disks", use.disks, "read", "written");
  PrintFlows("network", use.networks, "received", "sent");
  for (const profile::GpuUse& gpu : use.gpus) PrintGpu(gpu);
  if (use.package_j || use.gpu_j) {
    std::vector<std::string> parts;
    if (use.package_j) parts.push_back("processors " + EnergyText(*use.package_j));
    if (use.gpu_j) parts.push_back("GPUs " + EnergyText(*use.gpu_j));
    PrintField("energy", fmt::format("{}", fmt::join(parts, ", ")));
  }
  if (price_per_hour_ > 0)
    PrintField("cost",
               fmt::format("{:.2f} at {:g} an hour", use.seconds / 3600 * price_per_hour_, price_per_hour_));
}

void MachineView::Print() const {
  for (const MachineUse& use : machines_) PrintOne(use);
}

Json MachineView::Described() const {
  Json all = Json::array();
  for (const MachineUse& use : machines_) {
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
    one["ranks"] = Json::array();
    for (const profile::RankUse& rank : use.ranks) {
      one["ranks"].push_back({{"worker", rank.worker},
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
      Json& children = one["ranks"].back()["busiest_children"] = Json::array();
      for (const auto& child : rank.busiest)
        children.push_back({{"place", child.place}, {"cores", child.cores}, {"disk_wait", child.disk_wait}});
    }
    const auto flows = [&](const char* key, const std::vector<profile::FlowUse>& from, const char* in,
                           const char* out) {
      one[key] = Json::array();
      for (const profile::FlowUse& flow : from)
        one[key].push_back({{"name", flow.name}, {in, flow.in_rate}, {out, flow.out_rate}});
    };
    flows("disks", use.disks, "read_a_second", "written_a_second");
    flows("networks", use.networks, "received_a_second", "sent_a_second");
    one["gpus"] = Json::array();
    for (const profile::GpuUse& gpu : use.gpus) {
      one["gpus"].push_back({{"index", gpu.index},
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
    const auto kwh = [](const std::optional<double>& joule) {
      return joule ? Json(*joule / kJoulePerKwh) : Json(nullptr);
    };
    one["energy_kwh"] = {{"processors", kwh(use.package_j)}, {"gpus", kwh(use.gpu_j)}};
    one["cost"] = price_per_hour_ > 0 ? Json(use.seconds / 3600 * price_per_hour_) : Json(nullptr);
    one["sampler"] = {{"cores", Maybe(use.sampler_cores)},
                      {"rss", Maybe(use.sampler_rss)},
                      {"lives", use.lives},
                      {"ended", use.ended}};
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace luff::cli
