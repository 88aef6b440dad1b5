#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "luff/query/trial.h"

/// How far a training has come, for the status line of `luff run`.
namespace luff::cli {

struct Progress {
  std::int64_t step = -1;  // the newest TRAIN step; -1: none yet
  std::int64_t planned =
      -1;                 // TRAIN steps or updates that the framework said it makes in all; -1: it did not
  bool updates = false;   // `planned` counts updates, `done` too
  std::int64_t done = 0;  // of those planned
  std::string loss_name;  // "" if the step has one loss only
  double loss = NAN;      // NaN: unknown, unless `has_loss`
  bool has_loss = false;
  double lr_low = NAN, lr_high = NAN;  // NaN: unknown
  double per_second = NAN;             // TRAIN steps, over the last ten seconds of them
  double left_s = NAN;                 // NaN: nobody knows
  std::int64_t wall_unix_ns = 0;       // of the newest step of any mode
};

/// One line; what is unknown is left out.
[[nodiscard]] std::string ProgressLine(const Progress& progress);
/// Takes a line that our rule worker wrote. Anything else changes nothing.
void TakeProgressLine(const std::string& line, Progress* progress);

/// Reads a live run. It looks at its newest steps only. **Thread-compatible.**
class ProgressReader {
 public:
  /// Looks at what has come since.
  void Look(const query::Trial& trial);
  [[nodiscard]] const Progress& progress() const noexcept { return now_; }

 private:
  struct Sample {
    std::int64_t step = 0, update = 0, wall_ns = 0;
  };
  void ReadNumbers(const query::Trial& trial, std::size_t n);
  void ReadPlan(const query::Trial& trial);
  void Measure(const query::StepInfo& info);

  Progress now_;
  std::size_t looked_ = 0;
  std::int64_t begin_ = 0;  // the step or update with which the planned training began
  std::string boosting_, plan_;
  std::deque<Sample> samples_;  // one for each look, of the last ten seconds
  Sample first_;                // of the planned training
  query::Trial::StepRows rows_;
};

/// The status line: "step 420 of 1000, loss 0.312, lr 0.001, 112 steps/s, 5 s left, no findings". What
/// matters least is left out until it has at most `width` columns. `now_unix_ns`: tells how long no step has
/// come.
struct StatusParts {
  std::string before = {};  // e.g. "3 trainings, 2 of them ended, newest at "
  std::size_t findings = 0;
  bool rules = true, stopping = false;
};
[[nodiscard]] std::string StatusLine(const Progress& progress, const StatusParts& parts,
                                     std::int64_t now_unix_ns, std::size_t width);

}  // namespace luff::cli
