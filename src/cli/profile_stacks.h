#pragma once
#include <string>
#include <vector>

#include "cli/json.h"
#include "luff/profile/stacks.h"

namespace luff::cli {

/// What `luff profile` shows of stacks: where workers stand, and the lines that long waits are spent in.
class StacksView {
 public:
  /// `worker`: whose lines are shown; stands are those of all workers.
  StacksView(const query::Trial& trial, std::uint32_t worker);
  /// Prints the stands; nothing if there are none.
  void PrintStalls() const;
  void PrintLines() const;
  [[nodiscard]] Json Stalls() const;
  [[nodiscard]] Json Lines() const;

 private:
  std::vector<profile::Stall> stalls_;
  std::string culprits_;
  std::vector<profile::LineTime> lines_;
  bool several_ = false;  // workers
};

}  // namespace luff::cli
