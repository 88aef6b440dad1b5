#pragma once
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "profile/sampler/source.h"

namespace luff::profile {

/// GPUs: NVIDIA's by its driver's library, which is loaded if it is there, AMD's by files. A driver is asked
/// in a thread of its own: it may hang for ever, and the sampler goes on. **Thread-compatible.**
class GpuSource final : public Source {
 public:
  /// `nvml`: library to load; "": the driver's. `root` is before /sys.
  GpuSource(bool enabled, const std::string& nvml, const std::string& root);
  ~GpuSource() override;
  void Sample(std::uint64_t tick, Board* board) override;
  void Report(std::vector<SourceReport>* reports) const override;
  /// What the document "host" says of them: index, name, memory.
  [[nodiscard]] nlohmann::ordered_json Described() const;

 private:
  struct Asked;
  struct Amd;
  std::shared_ptr<Asked> nvidia_;  // shared with the thread, which may outlive this
  std::vector<std::unique_ptr<Amd>> amd_;
  std::string why_none_;
};

}  // namespace luff::profile
