#pragma once
#include <cstdint>
#include <string>

/// What becomes of a run's directory while its job runs: removed, moved, replaced.
namespace luff::cli {

/// Holds the directory by descriptor, so that another of the same name is not taken for it.
/// **Thread-compatible.**
class RunPlace {
 public:
  enum class State : std::uint8_t {
    kHere,      // where it was made
    kMoved,     // elsewhere: see path()
    kRemoved,   // nowhere
    kReplaced,  // its name is another directory's, or nobody's; where it is cannot be found out
  };
  explicit RunPlace(std::string path);
  ~RunPlace();
  RunPlace(const RunPlace&) = delete;
  RunPlace& operator=(const RunPlace&) = delete;

  /// Looks where it is now. `train_step`: how far the job is, -1 if that is not known.
  State Look(std::int64_t train_step);
  [[nodiscard]] State state() const noexcept { return state_; }
  /// Where it is, as long as that can be told.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// How far the job was when it was last where it was made; -1 if that is not known.
  [[nodiscard]] std::int64_t last_step() const noexcept { return last_step_; }
  /// It has held a run, at least once.
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
