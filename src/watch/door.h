#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "watch/numbers.h"

namespace luff::rules {
class OwnChild;
}

/// Where a fleet that judges runs of a bucket has its words: a process of Luff's Python package fetches the
/// runs, and puts what was found, if nobody else has put it before (docs/spec/bucket-format.md, 14).
namespace luff::watch {

/// What the door tells of a run.
struct Told {
  std::string run_id;
  std::vector<std::string> lines;  // of findings: they stand in the bucket
  std::uint64_t number = 0;        // of their commit; 0: they are known to be said
  bool act = false;                // it is ours to carry out what they ask for, and to say Done(number) then
  bool again = false;              // what was asked of the job has not reached it: it is asked once more
  std::optional<bool> open;        // the copy is there, and is to be judged; false: no more
  std::optional<bool> idle;        // whether no run of the bucket is live or waits to be judged
  std::vector<std::string> news;   // ids of runs whose copies have changed: they are to be looked at now
  Traffic asked;                   // what the bucket was asked for since the last word of it
  std::string say;                 // for people
};

/// None of these waits. What is asked of one run is done in this order.
class Door {
 public:
  Door() = default;
  virtual ~Door() = default;
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  /// Asks to commit lines of findings. Each comes back in a Told, whoever was first. False: not now.
  [[nodiscard]] virtual bool Commit(const std::string& run_id, const std::vector<std::string>& lines) = 0;
  /// What a commit asked for was carried out.
  [[nodiscard]] virtual bool Done(const std::string& run_id, std::uint64_t number) = 0;
  /// Puts a signed request to the job.
  [[nodiscard]] virtual bool Request(const std::string& run_id, const std::string& object) = 0;
  /// The run is judged to its end; its copy may go.
  [[nodiscard]] virtual bool Judged(const std::string& run_id, std::size_t steps) = 0;
  /// The run cannot be judged as it is; its copy may go.
  [[nodiscard]] virtual bool Failed(const std::string& run_id) = 0;
  /// What has come since the last call.
  [[nodiscard]] virtual std::vector<Told> Hear() = 0;
  /// True once after the process behind it was started anew: what was not answered is to be asked again.
  [[nodiscard]] virtual bool BegunAnew() = 0;
  /// Lets it finish what it was asked for, for at most so long.
  virtual void Leave(double seconds) = 0;
};

/// A door whose process is a child of this one.
class BucketDoor final : public Door {
 public:
  /// Starts the process and waits until it knows the bucket. Errors: those that it tells; kDeadlineExceeded.
  [[nodiscard]] static Result<std::unique_ptr<BucketDoor>> Open(std::vector<std::string> argv);
  ~BucketDoor() override;

  /// Folder of the copies of runs, and of what is to outlive this process.
  [[nodiscard]] const std::string& base() const noexcept { return base_; }
  [[nodiscard]] const std::string& state() const noexcept { return state_; }

  [[nodiscard]] bool Commit(const std::string& run_id, const std::vector<std::string>& lines) override;
  [[nodiscard]] bool Done(const std::string& run_id, std::uint64_t number) override;
  [[nodiscard]] bool Request(const std::string& run_id, const std::string& object) override;
  [[nodiscard]] bool Judged(const std::string& run_id, std::size_t steps) override;
  [[nodiscard]] bool Failed(const std::string& run_id) override;
  [[nodiscard]] std::vector<Told> Hear() override;
  [[nodiscard]] bool BegunAnew() override;
  void Leave(double seconds) override;

 private:
  explicit BucketDoor(std::vector<std::string> argv);
  [[nodiscard]] Status Start();

  const std::vector<std::string> argv_;
  std::unique_ptr<rules::OwnChild> child_;
  std::string base_, state_;
  std::vector<Told> told_;
  std::int64_t next_start_ns_ = 0, pause_ns_ = 0;
  bool begun_anew_ = false, ready_ = false;
};

/// A line of the process. Nothing for one that tells nothing.
[[nodiscard]] Told ParseToldUntrusted(const std::string& line);

}  // namespace luff::watch
