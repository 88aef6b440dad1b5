#include "server/overview_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "base/format.h"
#include "base/mapped_file.h"
#include "luff/base/env.h"
#include "server/overview_file.h"

namespace luff::server {
namespace {

constexpr std::string_view kEnd = ".overview", kTemporary = ".part";
constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;
constexpr std::int64_t kStaleNs = 3'600'000'000'000;

std::int64_t UsedNs(const struct stat& info) {
  return static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

/// The file's columns, if they are of this run and mode. `sums`: as ParseOverviewUntrusted.
Result<OverviewFile> Parsed(const MappedFile& file, const std::string& id, const query::Trial& trial,
                            query::Mode mode, bool sums) {
  LUFF_ASSIGN_OR_RETURN(OverviewFile parsed, ParseOverviewUntrusted(file.bytes(), sums));
  const bool fits = parsed.mode == mode && parsed.state.tensors <= trial.tensor_count() &&
                    parsed.state.to <= trial.step_count();
  if (!fits || parsed.binding != BindingOf(id, trial, parsed.state))
    return FailedPrecondition("the overview is of another run");
  return parsed;
}

}  // namespace

std::string OverviewCache::DefaultFolder() {
  for (const auto& [name, below] : {std::pair("XDG_CACHE_HOME", ""), std::pair("HOME", "/.cache")}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value == '/') return std::string(value) + below + "/luff/overviews";
  }
  return {};
}

bool OverviewCache::Usable() const {
  if (folder_.empty() || max_bytes_ == 0) return false;
  (void)Env::Real().MakeDirectories(folder_);
  struct stat info{};
  return lstat(folder_.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & 077) == 0;
}

std::string OverviewCache::PathOf(const std::string& id, query::Mode mode) const {
  return fmt::format("{}/{}-{}{}", folder_, id, query::ModeName(mode), kEnd);
}

void OverviewCache::Load(const std::string& id, const query::Trial& trial, Overview* overview) const {
  if (!Usable()) return;
  const std::string path = PathOf(id, overview->mode());
  const auto file = MappedFile::Open(path, kMaxFile);
  if (!file.ok()) return;
  const auto parsed = Parsed(**file, id, trial, overview->mode(), true);
  if (!parsed.ok()) return;  // it is written anew once the overview is built
  overview->Adopt(parsed->state, parsed->columns, *file);
  (void)utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // used now
}

void OverviewCache::MakeRoom(std::uint64_t coming, const std::string& except) const {
  struct Known {
    std::string path;
    std::int64_t used_ns;
    std::uint64_t bytes;
  };
  const auto names = Env::Real().List(folder_);
  if (!names.ok()) return;
  std::vector<Known> known;
  std::uint64_t all = coming;
  for (const std::string& name : *names) {
    const bool temporary = name.ends_with(kTemporary);
    const std::string path = folder_ + "/" + name;
    struct stat info{};
    if (!(temporary || name.ends_with(kEnd)) || path == except || lstat(path.c_str(), &info) != 0) continue;
    if (temporary && Env::Real().NowUnixNs() - UsedNs(info) > kStaleNs) {
      (void)Env::Real().Remove(path);  // of a process that was killed
      continue;
    }
    all += static_cast<std::uint64_t>(info.st_size);
    if (!temporary) known.push_back({path, UsedNs(info), static_cast<std::uint64_t>(info.st_size)});
  }
  std::ranges::sort(known, {}, &Known::used_ns);
  for (const Known& one : known) {
    if (all <= max_bytes_) return;
    if (Env::Real().Remove(one.path).ok()) all -= one.bytes;
  }
}

void OverviewCache::Save(const std::string& id, const query::Trial& trial, Overview* overview) const {
  const Overview::State state = overview->state();
  const std::uint64_t bytes = OverviewFileBytes(*overview);
  if (state.columns == 0 || bytes > std::min(max_bytes_, kMaxFile) || !Usable()) return;
  const std::string path = PathOf(id, overview->mode());
  const OverviewBinding binding = BindingOf(id, trial, state);
  {
    const auto other = MappedFile::Open(path, kMaxFile);
    const auto parsed = other.ok() ? Parsed(**other, id, trial, overview->mode(), true) : other.status();
    if (parsed.ok() && parsed->state.to - parsed->state.from > state.to - state.from) return;
  }
  MakeRoom(bytes, path);
  static std::atomic<unsigned> number = 0;
  const std::string temporary = fmt::format("{}.{}.{}{}", path, getpid(), ++number, kTemporary);
  auto opened = Env::Real().Open(temporary, Env::OpenMode::kCreateNew);
  if (!opened.ok()) return;
  // Space is taken first: a full disk then shows here, not later.
  Status written = (*opened)->Reserve(0, bytes);
  const std::string head = OverviewHead(*overview, binding);
  if (written.ok()) written = (*opened)->WriteAt(std::as_bytes(std::span(head)), 0);
  std::uint64_t offset = head.size();
  for (std::size_t i = 0; i < state.columns && written.ok(); ++i) {
    const Overview::Kept column = overview->kept(i);
    if (column.words == nullptr) continue;
    const auto words = std::as_bytes(std::span(column.words, Overview::WordsOf(state.stride)));
    written = (*opened)->WriteAt(words, offset);
    offset += (words.size() + kOverviewPage - 1) / kOverviewPage * kOverviewPage;
  }
  if (written.ok()) written = (*opened)->Truncate(bytes);
  opened->reset();
  if (written.ok()) written = Env::Real().Rename(temporary, path);
  if (!written.ok()) {
    (void)Env::Real().Remove(temporary);
    return;
  }
  const auto file = MappedFile::Open(path, kMaxFile);
  const auto parsed = file.ok() ? Parsed(**file, id, trial, overview->mode(), false) : file.status();
  if (parsed.ok() && parsed->binding == binding) overview->Adopt(parsed->state, parsed->columns, *file);
}

}  // namespace luff::server
