#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "watch/door.h"
#include "watch/numbers.h"
#include "watch/said_log.h"
#include "watch/watched_run.h"

/// Judges all runs of a directory, in one process.
namespace luff::watch {

struct FleetOptions {
  std::string base;   // absolute
  std::string state;  // folder of what was said and judged; made if absent
  RunSettings runs;
  std::uint32_t shard = 0, shards = 1;  // judges runs whose id's first digit d has d mod shards = shard
  /// A run that began less than so long ago is left to a supervisor or rules of its own, which may be
  /// starting.
  double grace_s = 3;
  bool earlier = false;  // also runs that had ended before anybody watched this directory
  /// `base` has copies of runs of a bucket, and what is found goes through this door; null: runs of our own.
  std::shared_ptr<Door> door = {};
};

/// How a fleet speaks to people. All called from the thread that calls Turn.
struct Voice {
  /// An event of a finding that was not said before.
  std::function<void(const std::string& run, const rules::Finding& finding, const std::string& event)> found;
  std::function<void(const std::string& line)> say;  // a line about a run or about the fleet itself
};

/// **Fair**: a turn of a run is at most kTurnSteps steps or kTurnNs, the run with the oldest step that nobody
/// has judged comes first, and one whose steps are dear is judged by a thread of its own lane.
/// **Never skips** a step of a run it judges. When it is behind, it says so (Numbers::ready) and judges the
/// backlog of every fourth run in bulk, which costs less for each step.
/// **Exactly once**: findings depend on the run alone and are kept in it; what was said is in a file
/// (SaidLog). Killed anywhere and started again, it says what is missing. Of runs in a bucket, what counts is
/// who commits a finding first (Door): that process says it, and acts.
class Fleet {
 public:
  static constexpr std::size_t kTurnSteps = 200;
  static constexpr std::int64_t kTurnNs = 20'000'000;
  static constexpr double kBehindS = 5, kBehindForS = 30;

  /// Takes the state folder. Errors: kAlreadyExists if another process watches with it; kIo.
  [[nodiscard]] static Result<std::unique_ptr<Fleet>> Open(FleetOptions options, Voice voice);
  ~Fleet();

  /// Looks for runs, judges, acts. Returns how long the caller may wait until the next turn, in ms.
  int Turn();
  void AddTo(std::vector<pollfd>* fds) const;
  void ChildEnded(pid_t pid, const ExitState& state);
  /// Takes the ends of all deliveries' processes.
  void ReapChildren();
  /// Writes checkpoints and ends deliveries; takes at most about `seconds`.
  void Leave(double seconds);

  [[nodiscard]] const Numbers& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::size_t live() const noexcept { return runs_.size(); }
  /// No run is live, and none is waited for.
  [[nodiscard]] bool idle() const noexcept {
    return runs_.empty() && waiting_.empty() && judged_in_bucket_.empty() && failed_in_bucket_.empty() &&
           (options_.door == nullptr || door_idle_);
  }

 private:
  struct Waiting {  // a run that cannot be judged now
    std::int64_t next_ns = 0, pause_ns = 0;
    bool elsewhere = false, told = false;
  };

  Fleet(FleetOptions options, Voice voice, std::unique_ptr<store::SupervisorLock> lock, SaidLog said);
  Status ReadJudged();
  void Scan();
  void TryOpen(const std::string& path, std::int64_t now);
  void Hear(WatchedRun* run);
  /// Acts on an event and says it, or offers it to the door. False if it was said before.
  bool Tell(WatchedRun* run, const Event& event);
  void Say(WatchedRun* run, const Event& event);
  // Of runs in a bucket (fleet_door.cc).
  void Offer(WatchedRun* run, const Event& event);
  void HearDoor();
  void Take(const Told& told);
  /// The copy of a run goes: it is judged no further.
  void Drop(const std::string& run_id);
  void TalkToDoor();
  /// Everything that was found of the run is committed, and what it asked for is done.
  [[nodiscard]] bool IsTold(const std::string& run_id) const;
  void LeaveDoor(double seconds);
  void JudgeFast(std::int64_t now);
  void MoveLanes(WatchedRun* run, const WatchedRun::Turn& turn);
  void Close(const std::string& path);
  void TellNumbers(std::int64_t now);
  void SlowLane(const std::stop_token& stop);
  [[nodiscard]] std::string NameOf(const std::string& path) const;
  /// Whether the run is of this shard; nothing if it cannot be read now.
  [[nodiscard]] std::optional<bool> IsOurs(const std::string& path) const;

  const FleetOptions options_;
  const Voice voice_;
  const std::unique_ptr<store::SupervisorLock> lock_;
  SaidLog said_;
  Numbers numbers_;
  std::map<std::string, std::shared_ptr<WatchedRun>> runs_;  // by path
  std::map<std::string, Waiting> waiting_;
  std::set<std::string> told_failed_;            // paths of runs whose failure was said
  std::map<std::string, std::uint64_t> judged_;  // stamp of runs that are judged to their end, by name
  /// Of a run in a bucket: what was offered and not answered, and commits that are being acted on.
  struct Offered {
    std::vector<std::pair<std::string, Event>> waiting;  // lines; the first `sent` are on their way
    std::size_t sent = 0;
    std::vector<std::uint64_t> acting;
    std::vector<Told> early;  // came before the run was opened
  };
  std::map<std::string, Offered> offered_;               // by the run's id
  std::set<std::string> copies_;                         // ids of runs whose copies are to be judged
  std::map<std::string, std::size_t> judged_in_bucket_;  // not told yet: steps, by the run's id
  std::set<std::string> failed_in_bucket_;               // not told yet: ids of runs that cannot be judged
  std::size_t failed_ = 0, slow_ = 0;
  std::uint64_t turn_ = 0;
  std::int64_t next_scan_ns_ = 0, behind_since_ns_ = -1, next_numbers_ns_ = 0;
  bool behind_ = false, said_fails_ = false, door_idle_ = false, told_not_recorded_ = false;
  std::mutex lane_mutex_;
  std::vector<std::shared_ptr<WatchedRun>> lane_;  // of the slow lane
  std::jthread slow_thread_;
};

}  // namespace luff::watch
