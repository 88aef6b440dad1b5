#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "luff/query/trial.h"

namespace luff::query {

/// The complete steps of a trial in the order in which they became complete. Positions never change. If a
/// global step appears again (a resumed run), lookups find the later one; the earlier keeps its position.
/// **Thread-compatible.**
class StepTable {
 public:
  std::uint32_t Append(const StepInfo& info, std::uint32_t epoch);
  [[nodiscard]] std::size_t size() const noexcept { return global_step_.size(); }
  [[nodiscard]] StepInfo at(std::size_t n) const noexcept;
  [[nodiscard]] std::uint32_t epoch(std::size_t n) const noexcept { return epoch_[n]; }
  [[nodiscard]] bool superseded(std::size_t n) const noexcept { return superseded_[n] != 0; }
  [[nodiscard]] bool any_superseded() const noexcept { return any_superseded_; }
  [[nodiscard]] Mode mode(std::size_t n) const noexcept { return static_cast<Mode>(mode_[n]); }
  [[nodiscard]] std::int64_t key(std::size_t n, Mode mode) const noexcept {
    return mode == Mode::kGlobal ? global_step_[n] : mode_step_[n];
  }
  [[nodiscard]] std::optional<std::uint32_t> Find(std::int64_t step, Mode mode) const noexcept;
  struct Neighbours {
    std::optional<std::int64_t> before, after;
  };
  [[nodiscard]] Neighbours Around(std::int64_t step, Mode mode) const noexcept;
  /// Steps of a mode, ascending, without superseded ones.
  [[nodiscard]] std::vector<std::int64_t> Steps(Mode mode) const;
  /// True if every step belongs to `mode` and none is superseded.
  [[nodiscard]] bool Uniform(Mode mode) const noexcept;

  [[nodiscard]] const std::vector<std::int64_t>& global_steps() const noexcept { return global_step_; }
  [[nodiscard]] const std::vector<std::int64_t>& mode_steps() const noexcept { return mode_step_; }
  [[nodiscard]] const std::vector<std::int64_t>& updates() const noexcept { return update_; }
  [[nodiscard]] const std::vector<std::uint8_t>& modes() const noexcept { return mode_; }

 private:
  using Index = std::vector<std::pair<std::int64_t, std::uint32_t>>;  // step, position; ascending
  [[nodiscard]] const Index& IndexOf(Mode mode) const noexcept {
    return index_[static_cast<std::size_t>(mode) - 1];
  }
  static std::optional<std::uint32_t> Put(Index* index, std::int64_t step, std::uint32_t n);

  std::vector<std::int64_t> global_step_, mode_step_, update_, wall_, duration_;
  std::vector<std::uint32_t> epoch_;
  std::vector<std::uint8_t> mode_, superseded_;
  std::array<Index, 4> index_;
  bool any_superseded_ = false;
};

}  // namespace luff::query
