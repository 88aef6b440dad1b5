#include "luff/actions/inherit.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/format.h"
#include "luff/actions/host_post.h"
#include "luff/base/env.h"
#include "luff/query/trial.h"
#include "luff/store/owner.h"

namespace luff::actions {
namespace {

constexpr std::chrono::milliseconds kBusyTurn{20}, kIdleTurn{500};
constexpr std::int64_t kLockNs = 10'000'000'000;     // until the kernel has freed the lock of one who died
constexpr std::int64_t kUnknownNs = 60'000'000'000;  // in which the proposal is not found among the messages

Result<std::unique_ptr<store::SupervisorLock>> TakeOver(const std::string& run) {
  const std::int64_t begin_ns = Env::Real().NowMonotonicNs();
  while (true) {
    auto lock = store::SupervisorLock::Take(run);
    const bool taken = !lock.ok() && lock.status().code() == StatusCode::kAlreadyExists;
    if (!taken || Env::Real().NowMonotonicNs() - begin_ns > kLockNs) return lock;
    std::this_thread::sleep_for(kBusyTurn);
  }
}

Result<store::ControlRecord> RecordOf(const std::string& run, std::uint64_t number) {
  LUFF_ASSIGN_OR_RETURN(const auto records, store::ReadCommands(run, number - 1));
  for (const store::ControlRecord& record : records) {
    if (record.number == number && record.phase == "propose") return record;
  }
  return NotFound(fmt::format("the run has no proposal {} to its workers", number));
}

std::string Told(const ActionNews& news) {
  switch (news.what) {
    case ActionNews::What::kCommitted:
      return fmt::format("it carries out {} after {} TRAIN steps, as all hosts of the job have agreed",
                         news.request.kind, news.train_step);
    case ActionNews::What::kAborted:
    case ActionNews::What::kRefused:
      return fmt::format("{} is not carried out: {}", news.request.kind, news.detail);
    case ActionNews::What::kFailed: return news.detail;
    default: return "";
  }
}

}  // namespace

Status Inherit(const Inheritance& inheritance, std::unique_ptr<HostSeal> seal,
               const std::function<void(std::uint64_t, int)>& signal,
               const std::function<void(const std::string&)>& say) {
  const std::string& run = inheritance.run;
  LUFF_ASSIGN_OR_RETURN(const auto lock, TakeOver(run));
  LUFF_ASSIGN_OR_RETURN(const store::ControlRecord asked, RecordOf(run, inheritance.bequest.proposal));
  LUFF_ASSIGN_OR_RETURN(const auto trial, query::Trial::Open(run));
  const auto hosts = std::make_shared<HostLog>(inheritance.job, inheritance.instance,
                                               std::make_unique<InheritedPost>(run), std::move(seal), false);
  Coordinator coordinator(inheritance.stop, LogOf(run), hosts);
  Env& env = Env::Real();
  const std::int64_t begin_ns = env.NowMonotonicNs();
  coordinator.Inherit(inheritance.bequest, asked, begin_ns);
  bool found = false, late = false;
  std::string why;
  while (true) {
    const Result<bool> news = trial->Refresh();
    static_cast<void>(news);  // what cannot be read now is read later
    const auto workers = trial->workers();
    // The process of a rank that has obeyed may live on, and is ended as its supervisor would.
    if (std::ranges::none_of(workers, [&](const auto& one) {
          return (one.alive && !one.ended) || (coordinator.stopping() && one.pid != 0);
        }))
      return Status::Ok();
    hosts->Look(env.NowUnixNs());
    // Proposal and decision may be read at once.
    found = found || hosts->open() != nullptr ||
            hosts->DecisionOf(inheritance.bequest.followed, &why, &late) != HostLog::Decision::kOpen;
    const std::int64_t now_ns = env.NowMonotonicNs();
    const auto asks = coordinator.Poll(now_ns, trial->world_size(), workers, trial->Acks());
    if (asks != Coordinator::Signal::kNone) {
      for (const query::WorkerInfo& worker : workers) {
        if (worker.pid != 0) signal(worker.pid, asks == Coordinator::Signal::kKill ? SIGKILL : SIGTERM);
      }
    }
    for (const ActionNews& one : coordinator.TakeNews()) {
      if (const std::string told = Told(one); !told.empty()) say(told);
    }
    const bool idle = coordinator.state() == Coordinator::State::kIdle;
    if (idle && !hosts->doubts() && !hosts->has_late_commit()) return Status::Ok();
    if (!found && now_ns - begin_ns > kUnknownNs)
      return NotFound("the messages of the job's hosts are not there any more");
    std::this_thread::sleep_for(idle ? kIdleTurn : kBusyTurn);
  }
}

}  // namespace luff::actions
