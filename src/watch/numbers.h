#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

/// What a process that judges many runs tells machines of itself. No label names a run: ten thousand runs do
/// not make ten thousand series.
namespace luff::watch {

/// How many runs are in which state.
struct RunStates {
  std::size_t live = 0, ended = 0, elsewhere = 0, waiting = 0, failed = 0;
};

/// What a bucket was asked for.
struct Traffic {
  std::uint64_t gets = 0, puts = 0;      // requests; `puts` has lists, too, which stores charge alike
  std::uint64_t sent = 0, received = 0;  // bytes of objects
};

/// **Thread-safe.**
class Numbers {
 public:
  static constexpr std::array<double, 10> kBounds = {0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300};  // seconds

  /// `lag_s`: from the moment at which the first of them was published to now.
  void Judged(std::size_t steps, double lag_s);
  void Found(const std::string& rule, const std::string& severity);
  void Checkpointed(bool ok);
  /// A bucket was asked for so much more.
  void AskedBucket(const Traffic& more);
  /// `lag_s`: of the oldest step that is not judged, over all runs; 0: none waits.
  void SetRuns(const RunStates& states, double lag_s, std::size_t slow, bool ready);

  [[nodiscard]] bool ready() const;
  /// Prometheus' text format, version 0.0.4.
  [[nodiscard]] std::string Prometheus() const;
  /// Seconds below which the share `q` (0 to 1) of all judged steps lagged: an upper bound of a bucket.
  [[nodiscard]] double LagQuantile(double q) const;

 private:
  mutable std::mutex mutex_;
  RunStates states_;
  double lag_s_ = 0, lag_sum_ = 0;
  std::size_t slow_ = 0;
  bool ready_ = false;
  std::uint64_t steps_ = 0, saved_ = 0, not_saved_ = 0;
  Traffic asked_;
  std::array<std::uint64_t, kBounds.size() + 1> lags_{};
  std::map<std::pair<std::string, std::string>, std::uint64_t> found_;
};

}  // namespace luff::watch
