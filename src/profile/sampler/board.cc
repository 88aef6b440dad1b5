#include "profile/sampler/board.h"

#include <algorithm>

namespace luff::profile {

std::uint32_t Board::Series(std::string_view name, SeriesUnit unit, SeriesKind kind, std::uint32_t device) {
  if (last_ < defs_.size() && defs_[after_[last_]].name == name) return last_ = after_[last_];
  const auto known = ids_.find(name);
  if (known != ids_.end()) {
    after_[last_] = known->second;
    return last_ = known->second;
  }
  if (defs_.size() >= format::kMaxSeries) return kNone;
  const auto id = static_cast<std::uint32_t>(defs_.size());
  defs_.push_back({id, unit, kind, device, std::string(name)});
  ids_.emplace(name, id);
  now_.push_back(format::kNoSample);
  values_.emplace_back();
  after_.push_back(0);
  after_[last_] = id;
  return last_ = id;
}

void Board::Set(std::uint32_t series, std::optional<std::int64_t> value) {
  if (series < now_.size() && value) now_[series] = *value;
}

void Board::EndMoment(std::int64_t mono_ns, std::int64_t unix_ns) {
  if (mono_ns_.empty()) first_unix_ns_ = unix_ns;
  const std::size_t at = mono_ns_.size();
  mono_ns_.push_back(mono_ns_.empty() ? mono_ns : std::max(mono_ns, mono_ns_.back()));
  for (std::size_t i = 0; i < now_.size(); ++i) {
    if (now_[i] == format::kNoSample) continue;
    if (values_[i].empty()) values_[i].reserve(std::max(kUsualMoments, at + 1));
    values_[i].resize(at, format::kNoSample);
    values_[i].push_back(now_[i]);
    now_[i] = format::kNoSample;
  }
}

void Board::TakeInto(store::StepBatch* batch, bool all_definitions) {
  const std::size_t from = all_definitions ? 0 : written_;
  batch->series.insert(batch->series.end(), defs_.begin() + static_cast<std::ptrdiff_t>(from), defs_.end());
  written_ = defs_.size();
  if (mono_ns_.empty()) return;
  format::SampleBlock block;
  block.first_unix_ns = first_unix_ns_;
  block.series.reserve(values_.size());
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].empty()) continue;
    values_[i].resize(mono_ns_.size(), format::kNoSample);
    block.series.push_back({defs_[i].id, defs_[i].kind, std::move(values_[i]), {}});
    values_[i] = {};
  }
  block.mono_ns.swap(mono_ns_);
  batch->samples.push_back(std::move(block));
}

}  // namespace luff::profile
