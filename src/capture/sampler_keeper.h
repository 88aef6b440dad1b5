#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace luff::capture {

/// Has the machine measured beside a run that no `luff run` watches: starts `luff _sample` where no sampler
/// of this machine writes into the run, and once more if that one dies. **Owned by the writer thread.** Never
/// waits longer than the start of a program takes.
class SamplerKeeper {
 public:
  /// `program`: path of `luff`; "" starts none. `environment`: of the sampler.
  SamplerKeeper(std::string program, std::vector<std::string> environment, std::string run_path);
  /// To be called about once a second.
  void Look(std::int64_t now_ns) noexcept;

 private:
  std::string program_;
  std::vector<std::string> environment_;
  std::string run_path_, folder_;
  std::int64_t next_ns_ = 0;
  int starts_ = 0;
};

}  // namespace luff::capture
