#pragma once
#include <compare>
#include <cstdint>

#include "luff/format/layout.h"
#include "luff/query/trial.h"

/// What a trial and a stream over a run both need to say which of its steps are complete.
namespace luff::query {

/// Orders the steps of a run.
struct StepKey {
  std::uint32_t epoch = 0;
  std::int64_t global_step = 0;
  friend auto operator<=>(const StepKey&, const StepKey&) = default;
};

/// Computes in double, because times in files may be any numbers and their difference may overflow.
[[nodiscard]] inline double SecondsBetween(std::int64_t from_ns, std::int64_t to_ns) noexcept {
  return (static_cast<double>(to_ns) - static_cast<double>(from_ns)) * 1e-9;
}

[[nodiscard]] inline StepInfo InfoOf(const format::StepMark& mark) noexcept {
  StepInfo info;
  info.global_step = mark.global_step;
  info.mode_step = mark.mode_step;
  info.update = mark.update;
  info.mode = static_cast<Mode>(mark.mode);
  info.wall_unix_ns = mark.wall_unix_ns;
  info.duration_ns = mark.duration_ns;
  return info;
}

}  // namespace luff::query
