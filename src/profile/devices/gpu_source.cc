#include "profile/devices/gpu_source.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "luff/base/env.h"
#include "profile/devices/nvml.h"
#include "profile/system/machine_text.h"
#include "profile/system/text.h"

namespace luff::profile {
namespace {

constexpr std::int64_t kSlowCallNs = 5'000'000;  // a reading of all devices; then it is read half as often
constexpr std::uint64_t kRarest = 20;            // ticks between two readings: 10 s
constexpr std::int64_t kHungNs = 10'000'000'000;
// Ticks at which processes are counted: often enough for two windows of ten seconds in a row.
constexpr std::uint64_t kCountAt = 60, kCountAgainAfter = 20, kMostCounts = 3;

}  // namespace

/// Shared by the sampler and the thread that asks the driver.
struct GpuSource::Asked {
  std::mutex mutex;
  std::condition_variable wake;
  bool wanted = false, slow = false, once = false, quit = false;
  bool opened = false, none = false;
  std::string why;
  std::vector<GpuInfo> infos;
  std::vector<GpuReading> readings;
  bool fresh = false;         // readings that nobody took
  std::int64_t asked_ns = 0;  // since when an answer is awaited; 0: none is
  std::int64_t took_ns = 0;   // the last one
  // Of the sampler's thread only.
  std::uint64_t every = 1, next = 0, counts = 0;  // counts: of processes
  bool hung = false;

  void Serve(const std::string& library) {
    auto nvml = std::make_unique<Nvml>();
    const bool open = nvml->Open(library);
    {
      const std::lock_guard lock(mutex);
      opened = true;
      none = !open;
      why = nvml->why();
      infos = nvml->devices();
      asked_ns = 0;
      if (!open) return;
    }
    for (;;) {
      bool with_slow = false, with_once = false;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return wanted || quit; });
        if (quit) return;
        wanted = false;
        with_slow = slow;
        with_once = once;
      }
      const std::int64_t begin = Env::Real().NowMonotonicNs();
      std::vector<GpuReading> now;
      for (std::size_t i = 0; i < infos.size(); ++i) now.push_back(nvml->Read(i, with_slow, with_once));
      const std::lock_guard lock(mutex);
      readings = std::move(now);
      fresh = true;
      took_ns = with_once ? 0 : Env::Real().NowMonotonicNs() - begin;
      asked_ns = 0;
    }
  }
};

/// A card of AMD, as the kernel's driver describes it in files.
struct GpuSource::Amd {
  std::size_t index = 0;
  std::string name;
  KernelFile busy, memory_busy, used, total, power, temperature, clock;
};

GpuSource::GpuSource(bool enabled, const std::string& nvml, const std::string& root) {
  if (!enabled) {
    why_none_ = "not asked for";
    return;
  }
  if (root.empty() || !nvml.empty()) {
    nvidia_ = std::make_shared<Asked>();
    nvidia_->asked_ns = Env::Real().NowMonotonicNs();
    std::thread([asked = nvidia_, nvml] { asked->Serve(nvml); }).detach();
  }
  const std::string cards = root + "/sys/class/drm";
  for (const std::string& name : NamesIn(cards, 256)) {
    if (!name.starts_with("card") || !NumberOf(name.substr(4)) || amd_.size() >= 64) continue;
    const std::string device = cards + "/" + name + "/device/";
    KernelFile vendor(device + "vendor");
    if (!vendor.Read().starts_with("0x1002")) continue;
    auto card = std::make_unique<Amd>();
    card->index = amd_.size();
    card->name = "AMD " + name;
    card->busy = KernelFile(device + "gpu_busy_percent");
    card->memory_busy = KernelFile(device + "mem_busy_percent");
    card->used = KernelFile(device + "mem_info_vram_used");
    card->total = KernelFile(device + "mem_info_vram_total");
    for (const std::string& monitor : NamesIn(device + "hwmon", 4)) {
      const std::string folder = device + "hwmon/" + monitor + "/";
      card->power = KernelFile(folder + "power1_average");
      card->temperature = KernelFile(folder + "temp1_input");
      card->clock = KernelFile(folder + "freq1_input");
    }
    amd_.push_back(std::move(card));
  }
}

GpuSource::~GpuSource() {
  if (nvidia_ == nullptr) return;
  const std::lock_guard lock(nvidia_->mutex);
  nvidia_->quit = true;
  nvidia_->wake.notify_all();  // the thread, if the driver lets it go, ends by itself
}

namespace {

/// Names of the series of one GPU.
class GpuBoard {
 public:
  GpuBoard(std::size_t index, Board* board)
      : prefix_("gpu." + std::to_string(index) + "."),
        device_(static_cast<std::uint32_t>(index)),
        board_(board) {}
  void Set(const char* name, SeriesUnit unit, std::optional<std::int64_t> value,
           SeriesKind kind = SeriesKind::kGauge) {
    if (value) board_->Set(board_->Series(prefix_ + name, unit, kind, device_), value);
  }

 private:
  const std::string prefix_;
  const std::uint32_t device_;
  Board* board_;
};

void Show(std::size_t index, const GpuReading& reading, Board* board) {
  GpuBoard gpu(index, board);
  constexpr auto kShare = SeriesUnit::kShare;
  constexpr auto kBytes = SeriesUnit::kBytes;
  constexpr auto kCounter = SeriesKind::kCounter;
  gpu.Set("utilisation", kShare, reading.utilisation);
  gpu.Set("memory.utilisation", kShare, reading.memory_utilisation);
  gpu.Set("memory.used", kBytes, reading.memory_used);
  gpu.Set("memory.total", kBytes, reading.memory_total);
  gpu.Set("power", SeriesUnit::kPower, reading.power_mw);
  gpu.Set("energy", SeriesUnit::kEnergy, reading.energy_uj, kCounter);
  gpu.Set("clock", SeriesUnit::kFrequency, reading.sm_clock_khz);
  gpu.Set("clock.max", SeriesUnit::kFrequency, reading.max_sm_clock_khz);
  gpu.Set("memory.clock", SeriesUnit::kFrequency, reading.memory_clock_khz);
  gpu.Set("clock.reasons", SeriesUnit::kBits, reading.clock_reasons);
  gpu.Set("temperature", SeriesUnit::kTemperature, reading.temperature);
  gpu.Set("sm_active", kShare, reading.sm_active);
  gpu.Set("sm_occupancy", kShare, reading.sm_occupancy);
  gpu.Set("tensor_active", kShare, reading.tensor_active);
  gpu.Set("memory.active", kShare, reading.dram_active);
  gpu.Set("pcie.sent", kBytes, reading.pcie_sent);
  gpu.Set("pcie.received", kBytes, reading.pcie_received);
  gpu.Set("ecc_errors", SeriesUnit::kNumber, reading.ecc_errors, kCounter);
  gpu.Set("pcie.replays", SeriesUnit::kNumber, reading.pcie_replays, kCounter);
  gpu.Set("pcie.width", SeriesUnit::kNumber, reading.pcie_width);
  gpu.Set("processes", SeriesUnit::kNumber, reading.processes);
}

}  // namespace

void GpuSource::Sample(std::uint64_t tick, Board* board) {
  std::size_t before = 0;  // AMD's come after NVIDIA's
  if (nvidia_ != nullptr) {
    Asked& asked = *nvidia_;
    const std::lock_guard lock(asked.mutex);
    const std::int64_t now = Env::Real().NowMonotonicNs();
    before = asked.infos.size();
    if (asked.fresh) {
      for (std::size_t i = 0; i < asked.readings.size(); ++i) Show(i, asked.readings[i], board);
      asked.fresh = false;
      if (asked.took_ns > kSlowCallNs) asked.every = std::min(asked.every * 2, kRarest);
    }
    asked.hung = asked.asked_ns != 0 && now - asked.asked_ns > kHungNs;
    if (asked.opened && !asked.none && asked.asked_ns == 0 && tick >= asked.next) {
      asked.wanted = true;
      asked.slow = tick % kSlow < asked.every;
      asked.once = asked.counts < kMostCounts && tick >= kCountAt + asked.counts * kCountAgainAfter;
      if (asked.once) ++asked.counts;
      asked.asked_ns = now;
      asked.next = tick + asked.every;
      asked.wake.notify_all();
    }
  }
  for (const auto& card : amd_) {
    GpuReading reading;
    reading.utilisation = Scaled(ParseOneNumberUntrusted(card->busy.Read()), 10'000);
    reading.memory_utilisation = Scaled(ParseOneNumberUntrusted(card->memory_busy.Read()), 10'000);
    reading.memory_used = ParseOneNumberUntrusted(card->used.Read());
    reading.memory_total = ParseOneNumberUntrusted(card->total.Read());
    if (const Counted uw = ParseOneNumberUntrusted(card->power.Read())) reading.power_mw = *uw / 1000;
    reading.temperature = ParseOneNumberUntrusted(card->temperature.Read());
    if (const Counted hz = ParseOneNumberUntrusted(card->clock.Read())) reading.sm_clock_khz = *hz / 1000;
    Show(before + card->index, reading, board);
  }
}

void GpuSource::Report(std::vector<SourceReport>* reports) const {
  if (!amd_.empty()) {
    reports->push_back(ReportOf("gpu.amd", amd_.front()->busy));
  }
  if (nvidia_ == nullptr) {
    if (!why_none_.empty()) reports->push_back({"gpu", SourceState::kAbsent, "", 0, why_none_});
    return;
  }
  const std::lock_guard lock(nvidia_->mutex);
  SourceReport report{"gpu", SourceState::kRead, "", 0, ""};
  if (nvidia_->hung) {
    report.state = SourceState::kFailed;
    report.why = "a call of the driver does not return";
  } else if (!nvidia_->opened) {
    report.state = SourceState::kUnread;
  } else if (nvidia_->none) {
    report.state = SourceState::kAbsent;
    report.why = nvidia_->why;
  } else if (nvidia_->every > 1) {
    report.why = "the driver is slow, so it is asked every " + std::to_string(nvidia_->every) + " samples";
  }
  reports->push_back(report);
}

nlohmann::ordered_json GpuSource::Described() const {
  auto all = nlohmann::ordered_json::array();
  std::vector<GpuInfo> infos;
  if (nvidia_ != nullptr) {
    const std::lock_guard lock(nvidia_->mutex);
    infos = nvidia_->infos;
  }
  for (const GpuInfo& info : infos) {
    all.push_back({{"index", all.size()}, {"name", info.name}, {"uuid", info.uuid}, {"mig", info.mig}});
    if (info.memory_total) all.back()["memory"] = *info.memory_total;
  }
  for (const auto& card : amd_) all.push_back({{"index", all.size()}, {"name", card->name}});
  return all;
}

}  // namespace luff::profile
