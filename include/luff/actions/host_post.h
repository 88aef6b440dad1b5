#pragma once
#include <cstdint>
#include <string>
#include <utility>
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
  void Release() override;

 private:
  const std::string run_;
  bool made_ = false;
  std::uint64_t next_ = 0;  // number of the next message; 0: not known yet
  std::uint64_t kept_ = 0;  // likewise, of the first that was taken and not dropped; 0: there is none
};

/// The folder of a supervisor that has died, for who goes on in its place: reads what this had not carried
/// out, and says nothing. **Thread-compatible.**
class InheritedPost final : public HostPost {
 public:
  explicit InheritedPost(std::string run) : run_(std::move(run)) {}
  [[nodiscard]] bool reaches() override { return true; }
  /// Errors: kFailedPrecondition.
  [[nodiscard]] Status Send(std::uint64_t sequence, const std::string& object) override;
  /// Takes back whatever the supervisor had to say. True if nothing of it is on its way.
  [[nodiscard]] bool TakeBack(std::uint64_t sequence) override;
  [[nodiscard]] std::vector<std::string> Take() override;

 private:
  const std::string run_;
  std::uint64_t next_ = 0;
};

}  // namespace luff::actions
