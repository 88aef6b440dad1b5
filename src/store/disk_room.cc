#include "store/disk_room.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <vector>

namespace luff::store {

DiskSpace DiskSpaceOf(const std::string& directory) noexcept {
  struct statvfs info{};
  if (statvfs(directory.c_str(), &info) != 0) return {};
  const auto unit = static_cast<std::uint64_t>(info.f_frsize);
  return {info.f_blocks * unit, info.f_bavail * unit};
}

std::uint64_t PayloadMargin(std::uint64_t total) noexcept {
  return std::min<std::uint64_t>(64ULL << 20, total / 20);
}

DiskReserve::DiskReserve(Env& env, const std::string& directory) : env_(env), path_(directory + "/reserve") {}

void DiskReserve::Take() {
  auto file = env_.Open(path_, Env::OpenMode::kReadWrite);
  if (!file.ok()) return;
  // Writes zeros instead of preallocating: that takes the blocks even where files can't be preallocated.
  const std::vector<std::byte> zeros(kBytes);
  if (!(*file)->WriteAt(zeros, 0).ok()) Release();
}

void DiskReserve::Release() { (void)env_.Remove(path_); }

}  // namespace luff::store
