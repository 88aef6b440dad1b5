#include "luff/query/samples.h"

#include <algorithm>

#include "luff/base/work_bound.h"

namespace luff::query {
namespace {

constexpr std::size_t kMaxSeriesNames = 100'000;  // of one host; more is hostile

std::uint64_t KeyOf(std::uint32_t epoch, std::uint32_t id) noexcept {
  return std::uint64_t{epoch} << 32U | id;
}

struct SampleAt {
  double value, most;
};
/// The value at a moment that has one, in its base unit, and the largest that it stands for.
SampleAt ValueAt(const HostSamples::BlockSeries& series, std::size_t at) noexcept {
  const format::SampledSeries& values = *series.values;
  const double value = format::SampleValue(series.def->unit, values.values[at]);
  const bool merged = !values.maxima.empty() && values.maxima[at] != format::kNoSample;
  return {value, merged ? format::SampleValue(series.def->unit, values.maxima[at]) : value};
}

}  // namespace

Rate RateOf(const SampleColumns& counter) noexcept {
  Rate rate;
  for (std::size_t i = 1; i < counter.value.size(); ++i) {
    const double more = counter.value[i] - counter.value[i - 1];
    const auto passed = static_cast<double>(counter.mono_ns[i] - counter.mono_ns[i - 1]) * 1e-9;
    if (more < 0 || passed <= 0) continue;  // began again, or another boot
    rate.amount += more;
    rate.seconds += passed;
  }
  return rate;
}

std::string HostSamples::Document(std::string_view name) const {
  const auto at = reader_->documents().find(std::string(name));
  return at == reader_->documents().end() ? std::string() : at->second;
}

std::vector<format::SeriesDef> HostSamples::series() const {
  std::vector<format::SeriesDef> all;
  for (const auto& [name, def] : by_name_) all.push_back(def);
  return all;
}

Status HostSamples::TakeFrames() {
  if (reader_->rebuilds() != rebuilds_) {
    places_.clear();
    taken_.clear();
    rebuilds_ = reader_->rebuilds();
  }
  std::vector<std::byte> scratch;
  for (const auto& segment : reader_->segments()) {
    LUFF_ASSIGN_OR_RETURN(const auto frames, segment->Frames());
    const std::uint32_t epoch = segment->header().epoch;
    std::size_t& taken = taken_[segment->sequence()];
    for (; taken < frames.size(); ++taken) {
      const format::FrameEntry& entry = frames[taken];
      const auto kind = static_cast<format::FrameKind>(entry.kind);
      if (kind != format::FrameKind::kSeriesDefs && kind != format::FrameKind::kSamples) continue;
      const auto body = segment->ReadFrame(entry, &scratch);
      if (!body.ok()) continue;  // `luff verify` names it
      if (kind == format::FrameKind::kSeriesDefs) {
        const auto defs = format::ParseSeriesDefsUntrusted(*body);
        if (!defs.ok()) continue;
        for (const format::SeriesDefView& view : *defs) {
          if (name_of_.size() >= kMaxSeriesNames) break;
          std::string name(view.name);
          name_of_.try_emplace(KeyOf(epoch, view.id), name);
          by_name_.try_emplace(name, format::SeriesDef{view.id, view.unit, view.kind, view.device, name});
        }
        continue;
      }
      const auto block = format::ParseSamplesUntrusted(*body);
      if (!block.ok()) continue;
      const std::int64_t last = block->unix_ns(block->mono_ns.size() - 1);
      places_.push_back({segment.get(), entry, epoch, block->first_unix_ns, last});
      if (first_unix_ns_ == 0 || block->first_unix_ns < first_unix_ns_) first_unix_ns_ = block->first_unix_ns;
      last_unix_ns_ = std::max(last_unix_ns_, last);
    }
  }
  return Status::Ok();
}

Status HostSamples::EachBlock(const TimeSpan& span, const BlockVisitor& use) const {
  std::vector<std::byte> scratch;
  std::vector<BlockSeries> known;
  for (const Place& place : places_) {
    if (place.to_unix_ns < span.from_unix_ns || place.from_unix_ns > span.to_unix_ns) continue;
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
    LUFF_ASSIGN_OR_RETURN(const auto body, place.segment->ReadFrame(place.entry, &scratch));
    LUFF_ASSIGN_OR_RETURN(const format::SampleBlock block, format::ParseSamplesUntrusted(body));
    known.clear();
    for (const format::SampledSeries& series : block.series) {
      const auto name = name_of_.find(KeyOf(place.epoch, series.id));
      if (name == name_of_.end()) continue;
      const auto def = by_name_.find(name->second);
      if (def != by_name_.end()) known.push_back({&def->second, &series});
    }
    use(block, known);
  }
  return Status::Ok();
}

Result<std::vector<SampleColumns>> HostSamples::ReadAll(std::span<const std::string> names,
                                                        const TimeSpan& span) const {
  std::vector<SampleColumns> columns(names.size());
  std::map<std::string_view, std::size_t> wanted;
  for (std::size_t i = 0; i < names.size(); ++i) {
    wanted.try_emplace(names[i], i);
    if (const auto def = by_name_.find(names[i]); def != by_name_.end()) {
      columns[i].unit = def->second.unit;
      columns[i].kind = def->second.kind;
      columns[i].device = def->second.device;
    }
  }
  LUFF_RETURN_IF_ERROR(EachBlock(span, [&](const format::SampleBlock& block, const auto& all) {
    for (const BlockSeries& series : all) {
      const auto at = wanted.find(series.def->name);
      if (at == wanted.end()) continue;
      SampleColumns& to = columns[at->second];
      for (std::size_t i = 0; i < block.mono_ns.size(); ++i) {
        const std::int64_t unix_ns = block.unix_ns(i);
        if (series.values->values[i] == format::kNoSample || !span.Has(unix_ns)) continue;
        const auto [value, most] = ValueAt(series, i);
        to.unix_ns.push_back(unix_ns);
        to.mono_ns.push_back(block.mono_ns[i]);
        to.value.push_back(value);
        to.most.push_back(most);
        to.merged.push_back(block.merged);
      }
    }
  }));
  for (std::size_t i = 0; i < names.size(); ++i) {  // a name that was asked for twice
    if (const std::size_t first = wanted[names[i]]; first != i) columns[i] = columns[first];
  }
  return columns;
}

namespace {

/// A tally that is being made.
struct OpenTally {
  SeriesTally tally;
  double before = 0;
  std::int64_t before_ns = -1;

  void Add(double value, double largest, std::uint32_t merged, std::int64_t mono_ns) {
    if (tally.count == 0) tally.first = tally.least = tally.most = value;
    tally.count += merged;
    tally.last = value;
    tally.least = std::min(tally.least, value);
    tally.most = std::max(tally.most, largest);
    if (tally.kind == format::SeriesKind::kGauge) {
      tally.sum += value * merged;
      tally.raised += value > 0 ? merged : 0;
      return;
    }
    const std::int64_t passed = mono_ns - before_ns;
    if (before_ns >= 0 && value >= before && passed > 0) {
      tally.growth += value - before;
      tally.seconds += static_cast<double>(passed) * 1e-9;
      tally.raised += value > before ? merged : 0;
    }
    before = value;
    before_ns = mono_ns;
  }
};

}  // namespace

Result<Tallies> HostSamples::Tally(const TimeSpan& span) const {
  std::map<std::string_view, OpenTally> open;
  LUFF_RETURN_IF_ERROR(EachBlock(span, [&](const format::SampleBlock& block, const auto& all) {
    for (const BlockSeries& series : all) {
      OpenTally& to = open[series.def->name];
      to.tally.unit = series.def->unit;
      to.tally.kind = series.def->kind;
      for (std::size_t i = 0; i < block.mono_ns.size(); ++i) {
        if (series.values->values[i] == format::kNoSample || !span.Has(block.unix_ns(i))) continue;
        const auto [value, most] = ValueAt(series, i);
        to.Add(value, most, block.merged, block.mono_ns[i]);
      }
    }
  }));
  Tallies tallies;
  for (const auto& [name, one] : open) {
    if (one.tally.count > 0) tallies.emplace(name, one.tally);
  }
  return tallies;
}

Result<SampleColumns> HostSamples::Read(std::string_view name, const TimeSpan& span) const {
  if (!by_name_.contains(name))
    return NotFound("found no series \"" + std::string(name) + "\" of host " + std::to_string(number_));
  const std::string owned(name);
  LUFF_ASSIGN_OR_RETURN(auto columns, ReadAll({&owned, 1}, span));
  return std::move(columns.front());
}

Result<std::unique_ptr<Samples>> Samples::Open(const std::string& run_path, bool use_live_page) {
  LUFF_ASSIGN_OR_RETURN(store::RunInfo info, store::ReadRunInfo(run_path));
  auto samples = std::make_unique<Samples>();
  samples->path_ = run_path;
  samples->info_ = std::move(info);
  samples->options_.use_live_page = use_live_page;
  LUFF_RETURN_IF_ERROR(samples->Refresh().status());
  return samples;
}

Result<bool> Samples::Refresh() {
  bool news = false;
  LUFF_ASSIGN_OR_RETURN(const auto numbers, store::HostNumbers(path_));
  for (const std::uint32_t number : numbers) {
    if (std::ranges::any_of(hosts_, [&](const HostSamples& host) { return host.number() == number; }))
      continue;
    HostSamples host;
    host.number_ = number;
    auto reader = store::WorkerReader::Open(store::HostFolder(path_, number), number, info_, options_);
    if (!reader.ok()) continue;  // just made, or no folder at all
    host.reader_ = std::move(reader).value();
    LUFF_RETURN_IF_ERROR(host.TakeFrames());
    hosts_.push_back(std::move(host));
    news = true;
  }
  std::ranges::sort(hosts_, {}, &HostSamples::number);
  for (HostSamples& host : hosts_) {
    LUFF_ASSIGN_OR_RETURN(const bool more, host.reader_->Refresh());
    if (!more) continue;
    LUFF_RETURN_IF_ERROR(host.TakeFrames());
    news = true;
  }
  return news;
}

}  // namespace luff::query
