#include "catalog/walk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>

#include "base/bounded_read.h"
#include "base/format.h"
#include "luff/format/live.h"

namespace luff::catalog {
namespace {

std::uint64_t Mixed(std::uint64_t hash,
                    std::uint64_t word) {  // FNV-1a over words: no one attacks a cache of one's own
  return (hash ^ word) * 0x100000001b3ULL;
}

std::uint64_t Mixed(std::uint64_t hash, const struct stat& info) {
  hash = Mixed(hash, static_cast<std::uint64_t>(info.st_ino));
  hash = Mixed(hash, static_cast<std::uint64_t>(info.st_size));
  hash = Mixed(hash, static_cast<std::uint64_t>(info.st_mtim.tv_sec));
  return Mixed(hash, static_cast<std::uint64_t>(info.st_mtim.tv_nsec));
}

// As a trial recognises it.
bool IsSmdebugs(int folder, const std::string& name) {
  struct stat info{};
  const auto is_folder = [&](const char* part) {
    return fstatat(folder, (name + part).c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
  };
  return is_folder("/collections/000000000") || (is_folder("/index") && is_folder("/events"));
}

// `name`: of the run in the open directory.
std::uint64_t StampAt(int folder, const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  struct stat info{};
  // A run has a worker, or at least the file that identifies it.
  const auto has = [&](const char* part) {
    return fstatat(folder, (name + part).c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
  };
  const bool own = has("/w0000/live") || has("/run.json");
  if (!own && !IsSmdebugs(folder, name)) return 0;
  if (own) hash = Mixed(hash, info);
  for (const char* part : {"", "/control", "/rules/luff/findings.jsonl", "/index", "/collections/000000000",
                           "/training_job_end.ts"}) {
    if (fstatat(folder, (name + part).c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) hash = Mixed(hash, info);
  }
  return std::max<std::uint64_t>(hash, 1);
}

struct Close {
  void operator()(DIR* of) const noexcept { closedir(of); }
};
using Directory = std::unique_ptr<DIR, Close>;

Directory OpenAt(int folder, const char* name) {
  const int fd =
      openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (folder == AT_FDCWD ? 0 : O_NOFOLLOW));
  DIR* opened = fd < 0 ? nullptr : fdopendir(fd);
  if (opened == nullptr && fd >= 0) close(fd);
  return Directory(opened);
}

class Walker {
 public:
  Found Take(Directory at, const std::string& path) {
    Folder(at.get(), path, 0);
    return std::move(found_);
  }

 private:
  void Folder(DIR* at, const std::string& path, std::size_t depth) {
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(at)) {
      const bool maybe = entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN;
      if (maybe && entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      const std::string below = path + "/" + name;
      if (const std::uint64_t stamp = StampAt(dirfd(at), name); stamp != 0) {
        found_.runs.push_back({below, stamp});
        continue;
      }
      if (depth + 1 > kMaxFolderDepth || folders_ >= kMaxFolders) {
        cut_ = cut_ || folders_ >= kMaxFolders;
        continue;
      }
      ++folders_;
      const Directory next = OpenAt(dirfd(at), name.c_str());
      if (next != nullptr)
        Folder(next.get(), below, depth + 1);
      else if (errno != ENOTDIR && errno != ELOOP && errno != ENOENT)
        found_.left_out.push_back(fmt::format("{}: {}", std::strerror(errno), below));
    }
    if (depth == 0 && cut_)
      found_.left_out.push_back(
          fmt::format("only the first {} directories were looked into: {}", kMaxFolders, path));
  }

  Found found_;
  std::size_t folders_ = 0;
  bool cut_ = false;
};

}  // namespace

std::uint64_t StampOf(const std::string& run) { return StampAt(AT_FDCWD, run); }

bool HasEnded(const std::string& run) {
  const auto page = ReadRegular(run + "/w0000/live", format::kPageBytes, 2);
  if (!page.ok() || page->size() < format::kLiveNewsOffset) return false;
  const auto news =
      format::ParseLiveNewsUntrusted(std::as_bytes(std::span(*page)).subspan(format::kLiveNewsOffset));
  return news && news->state == static_cast<std::uint32_t>(format::LiveState::kEnded);
}

Result<Found> FindRuns(const std::string& folder) {
  Directory opened = OpenAt(AT_FDCWD, folder.c_str());
  if (opened == nullptr) {
    const std::string why = fmt::format("{}: {}", std::strerror(errno), folder);
    return errno == ENOENT ? NotFound("there is no such directory: " + folder) : IoError(why);
  }
  return Walker().Take(std::move(opened), folder);
}

}  // namespace luff::catalog
