#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// NVIDIA's management library, loaded at run time. Only calls that are known to be cheap are made again and
/// again: utilisation, memory, power, energy, clocks, their reasons, temperature and, from Hopper on, GPM.
namespace luff::profile {

/// What one GPU says at a moment; what it does not say is absent.
struct GpuReading {
  using Maybe = std::optional<std::int64_t>;
  Maybe utilisation, memory_utilisation;  // millionths of the time in which a kernel, or a copy, ran
  Maybe memory_used, memory_total;        // bytes
  Maybe power_mw, energy_uj;
  Maybe sm_clock_khz, max_sm_clock_khz, memory_clock_khz;
  Maybe clock_reasons;                                        // bits: why its clock is lower than it could be
  Maybe temperature;                                          // thousandths of a degree Celsius
  Maybe sm_active, sm_occupancy, tensor_active, dram_active;  // millionths, of GPM
  Maybe pcie_sent, pcie_received;                             // bytes a second, of GPM
  Maybe ecc_errors, pcie_replays, pcie_width;
  Maybe processes;  // that compute on it, ours included; asked once
};
struct GpuInfo {
  std::string name, uuid;
  std::optional<std::int64_t> memory_total;
  bool mig = false;
};
/// Bits of clock_reasons that slow a GPU down because it is hot, or has no more power.
inline constexpr std::int64_t kThermalReasons = 0x20 | 0x40;  // software and hardware thermal slowdown
inline constexpr std::int64_t kPowerReasons = 0x4 | 0x80;     // software power cap, hardware power brake

/// **Thread-hostile**: all calls from one thread. Any of them may hang as long as the driver does.
class Nvml {
 public:
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  /// Loads `library` ("": the driver's) and counts devices. False, with why(), if there is nothing to ask.
  [[nodiscard]] bool Open(const std::string& library);
  [[nodiscard]] const std::string& why() const noexcept { return why_; }
  [[nodiscard]] const std::vector<GpuInfo>& devices() const noexcept { return infos_; }
  /// `slow`: also what changes rarely. `once`: also processes, which cost milliseconds.
  [[nodiscard]] GpuReading Read(std::size_t device, bool slow, bool once);

 private:
  struct Calls;
  struct Device;
  void AskGpm(Device* device, GpuReading* reading);
  void* library_ = nullptr;
  std::unique_ptr<Calls> calls_;
  std::vector<std::unique_ptr<Device>> handles_;
  std::vector<GpuInfo> infos_;
  std::string why_;
};

}  // namespace luff::profile
