#include "rules/facts/run_traces.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace luff::rules {
namespace {

constexpr std::uint64_t kMostTraceBytes = 64ULL << 20U;  // of a file; reading it takes several times that
constexpr std::uint64_t kLeastTraceBytes = 4ULL << 20U;  // what a file counts for at least
constexpr std::size_t kWorkersRead = 64, kTracesRead = 256, kTracesTried = 256;

}  // namespace

void RunTraces::Refresh(const query::Trial& trial, bool all) {
  std::uint64_t budget = all ? std::numeric_limits<std::uint64_t>::max() : kMostTraceBytes;
  const auto workers = trial.workers();
  if (workers.empty()) return Read(trial, 0, &budget);
  for (std::size_t i = 0; i < workers.size() && i < kWorkersRead; ++i)
    Read(trial, workers[i].worker, &budget);
}

void RunTraces::Read(const query::Trial& trial, std::uint32_t worker, std::uint64_t* budget) {
  std::set<std::string>& taken = taken_[worker];
  for (profile::TraceFile& file : profile::TracesOf(trial, worker)) {
    if (*budget == 0 || all_.size() == kTracesRead || taken.size() == kTracesTried) return;
    if (file.file.empty() || !taken.insert(file.file).second) continue;
    *budget -= std::min(*budget, std::max(file.bytes, kLeastTraceBytes));
    auto devices = profile::DevicesOfTrace(trial.path(), worker, file, kMostTraceBytes);
    if (devices.ok()) all_.push_back({worker, std::move(file), std::move(devices).value()});
  }
}

}  // namespace luff::rules
