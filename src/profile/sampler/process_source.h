#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "profile/sampler/source.h"
#include "profile/system/machine_text.h"

namespace luff::profile {

/// A process that trains: a worker of the run on this machine.
struct RankProcess {
  std::uint32_t worker = 0;
  int pid = 0;
  std::int64_t start_ticks = 0;  // of the process; a pid that was given to another one is not followed
};

/// Processes that train, and what lies below them (workers of data loaders). **Thread-compatible.**
class ProcessSource final : public Source {
 public:
  explicit ProcessSource(const std::string& root);
  ~ProcessSource() override;
  /// The processes from now on.
  void Follow(const std::vector<RankProcess>& ranks);
  /// How many processes and threads the machine has ever started, as read before Sample(). While that stays
  /// the same nobody can have a new child, and children are not looked for. Absent: they always are.
  void SetStarted(Counted started) noexcept { started_ = started; }
  void Sample(std::uint64_t tick, Board* board) override;
  void Report(std::vector<SourceReport>* reports) const override;
  static constexpr std::size_t kMostChildren = 128;  // of a rank; more are counted, not followed
  static constexpr std::size_t kMostPlaces = 32;     // with series of their own

 private:
  struct Child;
  struct Rank;
  void SampleRank(std::uint64_t tick, Rank* rank, Board* board);
  /// `threads`: those to look below besides the first, if this is a look at all of them.
  void FindChildren(std::uint64_t tick, const std::vector<std::string>* threads, Rank* rank);
  /// False if there is no such process.
  bool FollowChild(int pid, Rank* rank);
  void SampleChildren(std::uint64_t tick, Rank* rank, Board* board);
  void AddThreads(const std::vector<std::string>& threads, Rank* rank);
  const std::string root_;
  const std::int64_t tick_ns_, page_bytes_;
  Counted started_;
  std::map<std::uint32_t, std::unique_ptr<Rank>> ranks_;  // by worker
  SourceState children_ = SourceState::kUnread, io_ = SourceState::kUnread;
  int children_error_ = 0, io_error_ = 0;
};

}  // namespace luff::profile
