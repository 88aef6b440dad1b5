#include "rules/facts/run_traces.h"

#include <utility>

namespace luff::rules {
namespace {

constexpr std::uint64_t kMostTraceBytes = 64ULL << 20U;  // of a file; reading it takes several times that
constexpr std::size_t kWorkersRead = 64, kTracesRead = 256;

}  // namespace

void RunTraces::Refresh(const query::Trial& trial) {
  const auto workers = trial.workers();
  if (workers.empty()) return Read(trial, 0);
  for (std::size_t i = 0; i < workers.size() && i < kWorkersRead; ++i) Read(trial, workers[i].worker);
}

void RunTraces::Read(const query::Trial& trial, std::uint32_t worker) {
  const std::vector<profile::TraceFile> files = profile::TracesOf(trial, worker);
  std::size_t& taken = taken_[worker];
  for (; taken < files.size() && all_.size() < kTracesRead; ++taken) {
    if (files[taken].file.empty()) continue;
    auto devices = profile::DevicesOfTrace(trial.path(), worker, files[taken], kMostTraceBytes);
    if (devices.ok())
      all_.push_back({worker, static_cast<std::int64_t>(taken), files[taken], std::move(devices).value()});
  }
}

}  // namespace luff::rules
