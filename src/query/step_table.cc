#include "query/step_table.h"

#include <algorithm>

namespace luff::query {

std::optional<std::uint32_t> StepTable::Put(Index* index, std::int64_t step, std::uint32_t n) {
  if (index->empty() || index->back().first < step) {
    index->emplace_back(step, n);
    return std::nullopt;
  }
  const auto at = std::lower_bound(index->begin(), index->end(), std::pair(step, std::uint32_t{0}));
  if (at != index->end() && at->first == step) return std::exchange(at->second, n);
  index->insert(at, {step, n});
  return std::nullopt;
}

std::uint32_t StepTable::Append(const StepInfo& info, std::uint32_t epoch) {
  const auto n = static_cast<std::uint32_t>(size());
  global_step_.push_back(info.global_step);
  mode_step_.push_back(info.mode_step);
  update_.push_back(info.update);
  wall_.push_back(info.wall_unix_ns);
  duration_.push_back(info.duration_ns);
  epoch_.push_back(epoch);
  mode_.push_back(static_cast<std::uint8_t>(info.mode));
  superseded_.push_back(0);
  const auto earlier = Put(&index_[static_cast<std::size_t>(Mode::kGlobal) - 1], info.global_step, n);
  if (earlier) {
    superseded_[*earlier] = 1;
    any_superseded_ = true;
    if (mode(*earlier) != Mode::kGlobal) {
      Index& index = index_[mode_[*earlier] - 1U];
      const auto at =
          std::lower_bound(index.begin(), index.end(), std::pair(mode_step_[*earlier], std::uint32_t{0}));
      if (at != index.end() && at->first == mode_step_[*earlier] && at->second == *earlier) index.erase(at);
    }
  }
  if (info.mode != Mode::kGlobal)
    (void)Put(&index_[static_cast<std::size_t>(info.mode) - 1], info.mode_step, n);
  return n;
}

StepInfo StepTable::at(std::size_t n) const noexcept {
  StepInfo info;
  info.global_step = global_step_[n];
  info.mode_step = mode_step_[n];
  info.update = update_[n];
  info.mode = mode(n);
  info.wall_unix_ns = wall_[n];
  info.duration_ns = duration_[n];
  info.superseded = superseded(n);
  return info;
}

std::optional<std::uint32_t> StepTable::Find(std::int64_t step, Mode mode) const noexcept {
  const Index& index = IndexOf(mode);
  if (index.empty() || step < index.front().first) return std::nullopt;
  // Steps are usually consecutive, so checks that position first.
  const auto guess = static_cast<std::uint64_t>(step) - static_cast<std::uint64_t>(index.front().first);
  if (guess < index.size() && index[guess].first == step) return index[guess].second;
  const auto at = std::lower_bound(index.begin(), index.end(), std::pair(step, std::uint32_t{0}));
  if (at == index.end() || at->first != step) return std::nullopt;
  return at->second;
}

StepTable::Neighbours StepTable::Around(std::int64_t step, Mode mode) const noexcept {
  const Index& index = IndexOf(mode);
  const auto at = std::lower_bound(index.begin(), index.end(), std::pair(step, std::uint32_t{0}));
  Neighbours result;
  if (at != index.begin()) result.before = std::prev(at)->first;
  if (at != index.end()) result.after = at->first;
  return result;
}

std::vector<std::int64_t> StepTable::Steps(Mode mode) const {
  std::vector<std::int64_t> steps;
  const Index& index = IndexOf(mode);
  steps.reserve(index.size());
  for (const auto& [step, n] : index) steps.push_back(step);
  return steps;
}

bool StepTable::Uniform(Mode mode) const noexcept {
  return !any_superseded_ && (mode == Mode::kGlobal || IndexOf(mode).size() == size());
}

}  // namespace luff::query
