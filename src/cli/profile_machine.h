#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "luff/profile/machine.h"

namespace luff::cli {

/// What `luff profile` says of the machines of a run.
class MachineView {
 public:
  /// Reads the samples of a run; nothing is shown where there are none. `price_per_hour`: of the machine, in
  /// any currency; 0: not known.
  MachineView(const std::string& run, double price_per_hour);
  void Print() const;
  [[nodiscard]] Json Described() const;
  /// What was not measured, and why, as sentences.
  [[nodiscard]] const std::vector<std::string>& not_seen() const noexcept { return not_seen_; }

 private:
  void PrintOne(const profile::MachineUse& use) const;
  std::vector<profile::MachineUse> machines_;
  std::vector<std::string> not_seen_;
  double price_per_hour_;
};

}  // namespace luff::cli
