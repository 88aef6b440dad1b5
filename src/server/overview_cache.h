#pragma once
#include <cstdint>
#include <string>

#include "luff/query/trial.h"
#include "server/overview.h"

namespace luff::server {

/// Overviews on disk, so that they are read from a run only once: docs/spec/overview.md, section 4. Nothing
/// that happens to the folder is an error: what cannot be kept or read is built again. Several processes may
/// share it. **Thread-safe.**
class OverviewCache {
 public:
  /// `folder`: absolute, made when it is needed; "" for none. It must belong to this user alone. Holds at
  /// most `max_bytes`; what was not used for longest goes.
  OverviewCache(std::string folder, std::uint64_t max_bytes)
      : folder_(std::move(folder)),
        max_bytes_(max_bytes) {}

  /// Fills a new overview with what is kept of the run called `id`, as far as that is still true.
  void Load(const std::string& id, const query::Trial& trial, Overview* overview) const;
  /// Keeps it, unless another process has kept more. The overview then lives in the file, not in memory.
  void Save(const std::string& id, const query::Trial& trial, Overview* overview) const;

  /// $XDG_CACHE_HOME/luff/overviews, or ~/.cache/luff/overviews; "" if neither variable is set.
  [[nodiscard]] static std::string DefaultFolder();
  static constexpr std::uint64_t kDefaultBytes = std::uint64_t{4} << 30;

 private:
  [[nodiscard]] bool Usable() const;
  [[nodiscard]] std::string PathOf(const std::string& id, query::Mode mode) const;
  /// Removes what is too much, so that `coming` bytes fit.
  void MakeRoom(std::uint64_t coming, const std::string& except) const;

  const std::string folder_;
  const std::uint64_t max_bytes_;
};

}  // namespace luff::server
