#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/samples.h"

/// What a run's machines did in a span of time, by their samples.
namespace luff::profile {

/// Of one process that trains, and what lies below it. What was not measured is absent.
struct RankUse {
  std::uint32_t worker = 0;
  std::optional<double> cores;      // on which it ran, in the mean
  std::optional<double> run_queue;  // threads that could have run and had no core, in the mean
  std::optional<double> rss, most_rss, threads;
  std::optional<double> anonymous;  // bytes of rss that are neither of files nor shared
  std::optional<double> disk_wait;  // share of the time in which its first thread waited for storage
  std::optional<double> read_rate, write_rate;  // bytes a second
  double children = 0;                          // processes below it, in the mean
  std::optional<double> children_cores, children_run_queue, children_rss;
  std::optional<double> children_disk_wait;  // share of their time in which they waited for storage
  struct Child {
    std::uint32_t place = 0;
    double cores = 0, disk_wait = 0;
  };
  std::vector<Child> busiest;  // children with a series of their own, the busiest first
};

struct GpuUse {
  std::uint32_t index = 0;
  std::string name;
  bool mig = false;
  std::optional<double> utilisation, most_utilisation, sm_active, tensor_active, memory_active;  // shares
  std::optional<double> memory_used, most_memory_used, memory_total, watts, temperature, energy_j, processes;
  // Of the samples that say why its clock is low: shares, and its clock then and otherwise.
  std::optional<double> thermal, power;
  double clock = 0, throttled_clock = 0;  // Hz; 0: not known
};

struct FlowUse {  // a disk or an interface
  std::string name;
  double in_rate = 0, out_rate = 0;  // bytes a second: read or received, written or sent
  double busy = 0;                   // of a disk: share of the time
};

struct MachineUse {
  std::uint32_t host = 0;
  std::string name;
  std::int64_t from_unix_ns = 0, to_unix_ns = 0;  // of its samples
  double seconds = 0;
  double cores = 0;  // that count: allowed, and within the container's limit
  std::optional<double> all_cores, limit_cores;
  std::optional<double> busy, steal;             // cores, in the mean
  std::optional<double> throttled, throttled_s;  // share of the container's periods; seconds, all threads
  std::optional<double> memory_total, memory_least_available, memory_limit, memory_used;
  std::optional<double> swap_in_rate, swap_ticks;  // bytes a second; share of samples with any
  std::optional<double> cpu_some, memory_some, memory_full, io_some, io_full;  // pressure, shares of the time
  std::vector<RankUse> ranks;
  std::vector<FlowUse> disks, networks;
  std::vector<GpuUse> gpus;
  std::optional<double> package_j, gpu_j;
  std::optional<double> sampler_cores, sampler_rss;
  std::uint32_t lives = 1;                          // of its sampler
  bool ended = false;                               // its sampler came to its end
  [[nodiscard]] double job_cores() const noexcept;  // of all ranks and their children
};

/// Errors: those of reading.
[[nodiscard]] Result<MachineUse> UseOf(const query::HostSamples& host, const query::TimeSpan& span = {});

/// What the sampler could not read, as sentences; only what a reader would miss.
[[nodiscard]] std::vector<std::string> NotMeasured(const query::HostSamples& host);

/// "412 MB", "1.6 GB".
[[nodiscard]] std::string BytesText(double bytes);

}  // namespace luff::profile
