#include <sys/stat.h>

#include <algorithm>

#include "luff/base/env.h"
#include "luff/store/mirror.h"
#include "luff/store/reader.h"
#include "store/paths.h"
#include "store/read_cache.h"
#include "store/run_file.h"

namespace luff::store {
namespace {

constexpr std::int64_t kCheckEveryNs = 100'000'000;
constexpr std::int64_t kFreshNs = 2'000'000'000;

/// The number of a folder wNNNN of a worker, or hNNNN of a host.
std::optional<std::uint32_t> ParseFolderName(const std::string& name, char letter) noexcept {
  if (name.size() < 5 || name.size() > 10 || name[0] != letter) return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : name.substr(1)) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (number >= 0xFFFFFFFFU) return std::nullopt;
  return static_cast<std::uint32_t>(number);
}

}  // namespace

Result<RunInfo> ReadRunInfo(const std::string& run_path) { return ReadRunFile(Env::Real(), run_path); }

Result<std::vector<std::uint32_t>> HostNumbers(const std::string& run_path) {
  LUFF_ASSIGN_OR_RETURN(const auto names, Env::Real().List(run_path));
  std::vector<std::uint32_t> numbers;
  for (const std::string& name : names) {
    const auto number = ParseFolderName(name, 'h');
    if (number && HostDirectory(run_path, *number) == run_path + "/" + name) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::string HostFolder(const std::string& run_path, std::uint32_t host) {
  return HostDirectory(run_path, host);
}

Result<std::unique_ptr<RunReader>> RunReader::Open(const std::string& run_path,
                                                   const ReaderOptions& options) {
  LUFF_ASSIGN_OR_RETURN(RunInfo info, ReadRunInfo(run_path));
  std::unique_ptr<RunReader> reader(new RunReader());
  reader->path_ = run_path;
  reader->info_ = std::move(info);
  reader->options_ = options;
  reader->options_.mirror = Mirror::Of(run_path);
  reader->cache_ = std::make_shared<ReadCache>();
  LUFF_RETURN_IF_ERROR(reader->FindWorkers().status());
  return reader;
}

Result<bool> RunReader::FindWorkers(bool thorough) {
  Env& env = Env::Real();
  const std::int64_t now = env.NowMonotonicNs();
  // Once all workers exist, only a run resumed with another world size adds more, so the directory is checked
  // rarely.
  const std::int64_t every = workers_.size() >= info_.world_size ? 5 * kCheckEveryNs : kCheckEveryNs;
  if (!thorough && mtime_ns_ >= 0 && now - checked_monotonic_ns_ < every) return false;
  checked_monotonic_ns_ = now;
  struct stat info{};
  if (stat(path_.c_str(), &info) != 0) return false;  // the directory was removed
  const std::int64_t modified =
      static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
  const std::int64_t age = env.NowUnixNs() - modified;
  if (!thorough && modified == mtime_ns_ && (age > kFreshNs || age < -kFreshNs)) return false;
  mtime_ns_ = modified;
  LUFF_ASSIGN_OR_RETURN(const auto names, env.List(path_));
  bool news = false;
  for (const std::string& name : names) {
    const auto worker = ParseFolderName(name, 'w');
    if (!worker) continue;
    const auto at =
        std::lower_bound(workers_.begin(), workers_.end(), *worker,
                         [](const auto& known, std::uint32_t key) { return known->worker() < key; });
    if (at != workers_.end() && (*at)->worker() == *worker) continue;
    LUFF_ASSIGN_OR_RETURN(auto reader,
                          WorkerReader::Open(path_ + "/" + name, *worker, info_, options_, cache_));
    workers_.insert(at, std::move(reader));
    news = true;
  }
  return news;
}

Result<bool> RunReader::Refresh(bool thorough) {
  LUFF_ASSIGN_OR_RETURN(bool news, FindWorkers(thorough));
  for (const auto& worker : workers_) {
    LUFF_ASSIGN_OR_RETURN(const bool more, worker->Refresh(thorough));
    news = news || more;
  }
  return news;
}

}  // namespace luff::store
