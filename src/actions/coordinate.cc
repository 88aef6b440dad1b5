#include "luff/actions/coordinate.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "luff/actions/requests.h"
#include "luff/actions/runner.h"
#include "luff/base/env.h"
#include "luff/query/trial.h"
#include "luff/store/owner.h"

namespace luff::actions {
namespace {

bool AnyLives(const std::vector<query::WorkerInfo>& workers) {
  return std::ranges::any_of(workers, [](const auto& one) { return one.alive && !one.ended; });
}

bool IsAnswered(const std::string& run, std::uint64_t request) {
  const auto records = store::ReadControl(run, request, nullptr);
  return records.ok() && std::ranges::any_of(*records, [&](const store::ControlRecord& record) {
           return record.kind == "reply" && record.proposal == request;
         });
}

}  // namespace

Status Coordinate(const std::string& run, std::uint64_t request, const std::function<bool()>& leave,
                  std::shared_ptr<Gate> gate) {
  constexpr std::chrono::milliseconds kTurn{20};
  LUFF_ASSIGN_OR_RETURN(const auto lock, store::SupervisorLock::Take(run));
  LUFF_ASSIGN_OR_RETURN(const auto trial, query::Trial::Open(run));
  RunnerOptions options;
  options.run = run;
  options.gate = std::move(gate);
  Runner runner(std::move(options));
  while (!leave() && !IsAnswered(run, request)) {
    const Result<bool> news = trial->Refresh();
    static_cast<void>(news);  // what cannot be read now is read later
    const auto workers = trial->workers();
    std::int64_t furthest = -1;
    for (const query::WorkerInfo& worker : workers) furthest = std::max(furthest, worker.last_train_step);
    if (!AnyLives(workers)) runner.JobEnded();
    static_cast<void>(
        runner.Poll(Env::Real().NowMonotonicNs(), furthest, trial->world_size(), workers, trial->Acks()));
    std::this_thread::sleep_for(kTurn);
  }
  return Status::Ok();
}

bool IsTraining(const std::string& run) {
  const auto trial = query::Trial::Open(run);
  return trial.ok() && AnyLives((*trial)->workers());
}

}  // namespace luff::actions
