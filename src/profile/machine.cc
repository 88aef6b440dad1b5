#include "luff/profile/machine.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "profile/devices/nvml.h"

namespace luff::profile {
namespace {

using query::SeriesTally;
using query::Tallies;

constexpr std::size_t kMaxText = std::size_t{1} << 20U;

/// Looks up what was measured.
class Measured {
 public:
  explicit Measured(const Tallies& tallies) : tallies_(tallies) {}
  [[nodiscard]] const SeriesTally* Find(std::string_view name) const {
    const auto at = tallies_.find(name);
    return at == tallies_.end() ? nullptr : &at->second;
  }
  [[nodiscard]] std::optional<double> Rate(std::string_view name) const {
    const SeriesTally* tally = Find(name);
    if (tally == nullptr || tally->seconds <= 0) return std::nullopt;
    return tally->rate();
  }
  [[nodiscard]] std::optional<double> Growth(std::string_view name) const {
    const SeriesTally* tally = Find(name);
    if (tally == nullptr || tally->seconds <= 0) return std::nullopt;
    return tally->growth;
  }
  [[nodiscard]] std::optional<double> Mean(std::string_view name) const {
    const SeriesTally* tally = Find(name);
    return tally == nullptr ? std::nullopt : std::optional(tally->mean());
  }
  [[nodiscard]] std::optional<double> Last(std::string_view name) const {
    const SeriesTally* tally = Find(name);
    return tally == nullptr ? std::nullopt : std::optional(tally->last);
  }
  [[nodiscard]] std::optional<double> Most(std::string_view name) const {
    const SeriesTally* tally = Find(name);
    return tally == nullptr ? std::nullopt : std::optional(tally->most);
  }
  [[nodiscard]] std::optional<double> Least(std::string_view name) const {
    const SeriesTally* tally = Find(name);
    return tally == nullptr ? std::nullopt : std::optional(tally->least);
  }
  /// The parts after `prefix` up to the next point, without repetition.
  [[nodiscard]] std::vector<std::string> Names(std::string_view prefix) const {
    std::vector<std::string> names;
    for (auto at = tallies_.lower_bound(prefix); at != tallies_.end() && at->first.starts_with(prefix);
         ++at) {
      const std::string_view rest = std::string_view(at->first).substr(prefix.size());
      const std::string name(rest.substr(0, rest.find('.')));
      if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    return names;
  }

 private:
  const Tallies& tallies_;
};

std::optional<std::uint32_t> IndexOf(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

RankUse RankOf(const Measured& all, std::uint32_t worker) {
  RankUse rank;
  rank.worker = worker;
  const std::string prefix = fmt::format("rank.{}.", worker);
  rank.cores = all.Rate(prefix + "cpu");
  rank.run_queue = all.Rate(prefix + "run_queue");
  rank.rss = all.Last(prefix + "rss");
  rank.most_rss = all.Most(prefix + "rss");
  rank.anonymous = all.Last(prefix + "anonymous");
  rank.threads = all.Mean(prefix + "threads");
  rank.disk_wait = all.Mean(prefix + "disk_wait");
  rank.read_rate = all.Rate(prefix + "read");
  rank.write_rate = all.Rate(prefix + "written");
  rank.children = all.Mean(prefix + "children.count").value_or(0);
  rank.children_cores = all.Rate(prefix + "children.cpu");
  rank.children_run_queue = all.Rate(prefix + "children.run_queue");
  rank.children_rss = all.Last(prefix + "children.rss");
  if (const auto waiting = all.Mean(prefix + "children.disk_wait"); waiting && rank.children > 0)
    rank.children_disk_wait = std::min(1.0, *waiting / rank.children);
  for (const std::string& place : all.Names(prefix + "child.")) {
    const auto number = IndexOf(place);
    const auto cores = all.Rate(prefix + "child." + place + ".cpu");
    if (!number || !cores) continue;
    rank.busiest.push_back({*number, *cores, all.Mean(prefix + "child." + place + ".disk_wait").value_or(0)});
  }
  std::ranges::sort(rank.busiest, std::greater(), &RankUse::Child::cores);
  return rank;
}

/// How often the clock was held down, and how far, from samples of both at once.
Status AddReasons(const query::HostSamples& host, const query::TimeSpan& span, GpuUse* gpu) {
  const std::string prefix = fmt::format("gpu.{}.", gpu->index);
  const std::string names[] = {prefix + "clock.reasons", prefix + "clock"};
  LUFF_ASSIGN_OR_RETURN(const auto columns, host.ReadAll(names, span));
  const query::SampleColumns& reasons = columns[0];
  const query::SampleColumns& clock = columns[1];
  double thermal = 0, power = 0, held_clock = 0, held = 0, free_clock = 0, free = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < reasons.value.size(); ++i) {
    const auto bits = static_cast<std::int64_t>(reasons.value[i]);
    thermal += (bits & kThermalReasons) != 0 ? 1 : 0;
    power += (bits & kPowerReasons) != 0 ? 1 : 0;
    while (at < clock.mono_ns.size() && clock.mono_ns[at] < reasons.mono_ns[i]) ++at;
    if (at == clock.mono_ns.size() || clock.mono_ns[at] != reasons.mono_ns[i]) continue;
    const bool is_held = (bits & (kThermalReasons | kPowerReasons)) != 0;
    (is_held ? held_clock : free_clock) += clock.value[at];
    (is_held ? held : free) += 1;
  }
  if (reasons.value.empty()) return Status::Ok();
  const auto count = static_cast<double>(reasons.value.size());
  gpu->thermal = thermal / count;
  gpu->power = power / count;
  if (held > 0) gpu->throttled_clock = held_clock / held;
  if (free > 0) gpu->clock = free_clock / free;
  return Status::Ok();
}

GpuUse GpuOf(const Measured& all, std::uint32_t index) {
  GpuUse gpu;
  gpu.index = index;
  const std::string prefix = fmt::format("gpu.{}.", index);
  gpu.utilisation = all.Mean(prefix + "utilisation");
  gpu.most_utilisation = all.Most(prefix + "utilisation");
  gpu.sm_active = all.Mean(prefix + "sm_active");
  gpu.tensor_active = all.Mean(prefix + "tensor_active");
  gpu.memory_active = all.Mean(prefix + "memory.active");
  gpu.memory_used = all.Mean(prefix + "memory.used");
  gpu.most_memory_used = all.Most(prefix + "memory.used");
  gpu.memory_total = all.Last(prefix + "memory.total");
  gpu.watts = all.Mean(prefix + "power");
  gpu.temperature = all.Most(prefix + "temperature");
  gpu.energy_j = all.Growth(prefix + "energy");
  gpu.processes = all.Last(prefix + "processes");
  if (const auto most = all.Most(prefix + "clock.max")) gpu.clock = *most;
  return gpu;
}

/// The document "host".
void AddHost(const query::HostSamples& host, MachineUse* use) {
  const std::string text = host.Document("host");
  const auto json = text.size() > kMaxText ? nlohmann::json() : TryParseJson(text);
  if (!json.is_object()) return;
  use->name = TextMember(json, "name");
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_number()) return std::nullopt;
    const double value = at->get<double>();
    return value > 0 && value < 1e6 ? std::optional(value) : std::nullopt;
  };
  use->all_cores = number("cores");
  use->limit_cores = number("limit_cores");
  use->cores = number("allowed_cores").value_or(use->all_cores.value_or(0));
  if (use->limit_cores && *use->limit_cores < use->cores) use->cores = *use->limit_cores;
  const auto gpus = json.find("gpus");
  if (gpus == json.end() || !gpus->is_array()) return;
  for (GpuUse& gpu : use->gpus) {
    if (gpu.index >= gpus->size() || !(*gpus)[gpu.index].is_object()) continue;
    const auto& described = (*gpus)[gpu.index];
    gpu.name = TextMember(described, "name");
    gpu.mig = FlagMember(described, "mig");
  }
}

}  // namespace

double MachineUse::job_cores() const noexcept {
  double sum = 0;
  for (const RankUse& rank : ranks) sum += rank.cores.value_or(0) + rank.children_cores.value_or(0);
  return sum;
}

Result<MachineUse> UseOf(const query::HostSamples& host, const query::TimeSpan& span) {
  LUFF_ASSIGN_OR_RETURN(const Tallies tallies, host.Tally(span));
  const Measured all(tallies);
  MachineUse use;
  use.host = host.number();
  use.lives = host.epochs();
  use.ended = host.ended();
  use.from_unix_ns = std::max(span.from_unix_ns, host.first_unix_ns());
  use.to_unix_ns = std::min(span.to_unix_ns, host.last_unix_ns());
  if (const SeriesTally* busy = all.Find("cpu.busy")) use.seconds = busy->seconds;
  use.busy = all.Rate("cpu.busy");
  use.steal = all.Rate("cpu.steal");
  const auto periods = all.Growth("cgroup.cpu.periods");
  const auto throttled = all.Growth("cgroup.cpu.throttled_periods");
  if (periods && throttled && *periods > 0) {
    use.throttled = *throttled / *periods;
    use.throttled_s = all.Growth("cgroup.cpu.throttled");
  }
  use.memory_total = all.Last("memory.total");
  use.memory_least_available = all.Least("memory.available");
  use.memory_limit = all.Last("cgroup.memory.limit");
  if (use.memory_limit && use.memory_total && *use.memory_limit > *use.memory_total) use.memory_limit.reset();
  use.memory_used = all.Most("cgroup.memory.used");
  use.swap_in_rate = all.Rate("vm.swapped_in");
  if (const SeriesTally* swapped = all.Find("vm.swapped_in"); swapped != nullptr && swapped->count > 1)
    use.swap_ticks = static_cast<double>(swapped->raised) / static_cast<double>(swapped->count - 1);
  use.cpu_some = all.Rate("pressure.cpu.some");
  use.memory_some = all.Rate("pressure.memory.some");
  use.memory_full = all.Rate("pressure.memory.full");
  use.io_some = all.Rate("pressure.io.some");
  use.io_full = all.Rate("pressure.io.full");
  for (const std::string& name : all.Names("rank.")) {
    if (const auto worker = IndexOf(name)) use.ranks.push_back(RankOf(all, *worker));
  }
  std::ranges::sort(use.ranks, {}, &RankUse::worker);
  for (const std::string& name : all.Names("disk.")) {
    const std::string prefix = "disk." + name;
    use.disks.push_back({name, all.Rate(prefix + ".read").value_or(0),
                         all.Rate(prefix + ".written").value_or(0), all.Rate(prefix + ".busy").value_or(0)});
  }
  for (const char* kind : {"net.", "rdma."}) {
    for (const std::string& name : all.Names(kind)) {
      const auto in = all.Rate(kind + name + ".received"), out = all.Rate(kind + name + ".sent");
      if (in && out) use.networks.push_back({name, *in, *out, 0});
    }
  }
  for (const std::string& name : all.Names("gpu.")) {
    if (const auto index = IndexOf(name)) use.gpus.push_back(GpuOf(all, *index));
  }
  std::ranges::sort(use.gpus, {}, &GpuUse::index);
  for (GpuUse& gpu : use.gpus) {
    LUFF_RETURN_IF_ERROR(AddReasons(host, span, &gpu));
    if (gpu.energy_j) use.gpu_j = use.gpu_j.value_or(0) + *gpu.energy_j;
  }
  for (const std::string& name : all.Names("energy.")) {
    if (const auto joule = all.Growth("energy." + name)) use.package_j = use.package_j.value_or(0) + *joule;
  }
  use.sampler_cores = all.Rate("sampler.cpu");
  use.sampler_rss = all.Most("sampler.rss");
  AddHost(host, &use);
  return use;
}

std::vector<std::string> NotMeasured(const query::HostSamples& host) {
  std::vector<std::string> lines;
  const std::string text = host.Document("sources");
  const auto json = text.size() > kMaxText ? nlohmann::json() : TryParseJson(text);
  if (!json.is_array()) return lines;
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"cores", "cores"},
      {"memory", "memory"},
      {"paging", "swapping"},
      {"disks", "disks"},
      {"network", "network"},
      {"cgroup.cpu", "throttling by the container's limit"},
      {"pressure.cpu", "pressure on cores"},
      {"pressure.memory", "pressure on memory"},
      {"pressure.io", "pressure on storage"},
      {"ranks.io", "bytes that the training reads"},
      {"children", "processes of data loaders"},
      {"energy", "energy of the processors"},
      {"gpu", "GPUs"}};
  for (const auto& one : json) {
    if (!one.is_object() || TextMember(one, "state") == "read") continue;
    const std::string name = TextMember(one, "name");
    const auto* const known =
        std::ranges::find(kNames, name, &std::pair<std::string_view, std::string_view>::first);
    if (known == std::end(kNames)) continue;
    std::string why = TextMember(one, "why");
    if (why.empty()) {
      const std::string path = TextMember(one, "path"), error = TextMember(one, "error");
      why = path + (path.empty() || error.empty() ? "" : ": ") + error;
    }
    if (why.empty()) why = TextMember(one, "state");
    lines.push_back(fmt::format("{}: {}", known->second, why));
    if (lines.size() == 32) break;
  }
  return lines;
}

std::string BytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(kUnits)) bytes /= 1000, ++unit;
  return fmt::format("{:.{}f} {}", bytes, bytes < 9.95 && unit > 0 ? 1 : 0, kUnits[unit]);
}

}  // namespace luff::profile
