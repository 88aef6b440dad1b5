#pragma once
#include <string>
#include <vector>

#include "profile/sampler/source.h"

namespace luff::profile {

/// The control groups of a process, and pressure: the group's if it has such files, else the machine's.
class CgroupSource final : public Source {
 public:
  /// `process`: "self", or a process id as text.
  CgroupSource(const std::string& root, const std::string& process);
  void Sample(std::uint64_t tick, Board* board) override;
  void Report(std::vector<SourceReport>* reports) const override;
  /// Cores that the group may use, in millionths; none without a limit.
  [[nodiscard]] std::optional<std::int64_t> cores() const noexcept { return cores_; }

 private:
  const std::string root_;
  bool v2_cpu_ = false, v2_memory_ = false, v2_io_ = false;
  KernelFile cpu_stat_, cpu_used_, memory_used_, memory_limit_, memory_events_, io_;
  KernelFile pressure_cpu_, pressure_memory_, pressure_io_;
  bool pressure_of_group_ = false;
  std::optional<std::int64_t> cores_, memory_bytes_;
};

}  // namespace luff::profile
