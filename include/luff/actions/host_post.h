#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/actions/host_log.h"

namespace luff::actions {

/// Passes messages on through the folder `hosts` of the run, which `luff sync` empties and fills.
/// **Thread-compatible.**
class FolderPost final : public HostPost {
 public:
  /// Removes what an earlier supervisor has left there.
  explicit FolderPost(std::string run);
  void Look() override;
  [[nodiscard]] bool reaches() override;
  [[nodiscard]] Status Send(std::uint64_t sequence, const std::string& object) override;
  [[nodiscard]] bool TakeBack(std::uint64_t sequence) override;
  [[nodiscard]] std::vector<std::string> Take() override;

 private:
  const std::string run_;
  bool made_ = false;
  std::uint64_t next_ = 0;  // number of the next message; 0: not known yet
};

}  // namespace luff::actions
