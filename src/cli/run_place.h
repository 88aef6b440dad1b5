#pragma once
#include <cstdint>
#include <string>

/// Follows a run's directory while its job runs: it may be removed, moved or replaced.
namespace luff::cli {

/// Holds the directory by descriptor, so that it cannot be mistaken for another of the same name.
/// **Thread-compatible.**
class RunPlace {
 public:
  enum class State : std::uint8_t {
    kHere,      // where it was created
    kMoved,     // elsewhere: see path()
    kRemoved,   // nowhere
    kReplaced,  // its path is gone or another directory's; where it is now is unknown
  };
  explicit RunPlace(std::string path);
  ~RunPlace();
  RunPlace(const RunPlace&) = delete;
  RunPlace& operator=(const RunPlace&) = delete;

  /// Finds where it is now. `train_step`: how far the job is; -1 if unknown.
  State Look(std::int64_t train_step);
  [[nodiscard]] State state() const noexcept { return state_; }
  /// Where it is, as long as that is known.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// How far the job was when the directory was last in its place; -1 if unknown.
  [[nodiscard]] std::int64_t last_step() const noexcept { return last_step_; }
  /// True if it has ever held a run.
  [[nodiscard]] bool began() const noexcept { return began_; }

 private:
  [[nodiscard]] bool IsIt(const std::string& path) const noexcept;
  const std::string made_;
  std::string path_;
  int fd_ = -1;
  std::uint64_t device_ = 0, inode_ = 0;
  std::int64_t last_step_ = -1;
  State state_ = State::kHere;
  bool began_ = false;
};

}  // namespace luff::cli
