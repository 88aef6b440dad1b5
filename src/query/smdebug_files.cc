#include "query/smdebug_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace luff::query {
namespace {

constexpr std::uint64_t kMaxSmallFileBytes = 256U << 20;  // of an index or collections file

std::int64_t Ns(const timespec& time) noexcept {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

bool ListFolder(const std::string& path, std::vector<std::pair<std::string, bool>>* names) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return false;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool is_folder = entry->d_type == DT_DIR;  // not a link, which may lead out of the directory
    if (entry->d_type == DT_UNKNOWN) {
      struct stat info{};
      is_folder =
          fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
    }
    names->emplace_back(name, is_folder);
  }
  closedir(folder);
  std::sort(names->begin(), names->end());
  return true;
}

std::int64_t MtimeNs(const std::string& path) noexcept {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? Ns(info.st_mtim) : -1;
}

Result<std::unique_ptr<RegularFile>> OpenFile(const std::string& root, const std::string& name) {
  const auto inside = 1 + static_cast<std::size_t>(std::count(name.begin(), name.end(), '/'));
  return RegularFile::Open(root + "/" + name, inside);
}

Status ReadSmallFile(const std::string& root, const std::string& name, std::string* text,
                     std::int64_t* mtime_ns) {
  LUFF_ASSIGN_OR_RETURN(const auto file, OpenFile(root, name));
  if (file->size() > kMaxSmallFileBytes) {
    return Corruption("found a file of " + std::to_string(file->size()) + " bytes, expected at most " +
                      std::to_string(kMaxSmallFileBytes) + ": " + root + "/" + name);
  }
  *mtime_ns = file->mtime_ns();
  text->resize(static_cast<std::size_t>(file->size()));
  return file->ReadAllAt(std::as_writable_bytes(std::span(*text)), 0);
}

}  // namespace luff::query
