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

void PrintOne(const MachineUse& use, double price_per_hour) {
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
  if (price_per_hour > 0)
    PrintField("cost",
               fmt::format("{:.2f} at {:g} an hour", use.seconds / 3600 * price_per_hour, price_per_hour));
}

}  // namespace

void PrintMachines(const profile::Machines& machines, double price_per_hour) {
  for (const MachineUse& use : machines.all) PrintOne(use, price_per_hour);
}

}  // namespace luff::cli
