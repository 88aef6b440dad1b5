#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "base/format.h"
#include "luff/profile/phase_buckets.h"

namespace luff::profile {
namespace {

constexpr std::size_t kMostBands = 64;  // of one machine; more GPUs are left out
constexpr double kLongestS = 30;        // between two samples, times those that were merged: else a gap

/// Where a series goes: into the band of a name ("": none), times a factor, with all others that go there.
struct Target {
  std::string band;
  double times = 1;
};

/// "disk.vda.read" with "disk." and ".read".
bool Is(std::string_view name, std::string_view begin, std::string_view end) {
  return name.size() > begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end);
}

Target TargetOf(std::string_view name) {
  if (name == "cpu.busy") return {"cores.busy"};
  if (name == "cpu.steal") return {"cores.stolen"};
  if (name == "memory.total") return {"memory.used"};
  if (name == "memory.available") return {"memory.used", -1};
  if (name == "pressure.cpu.some" || name == "pressure.memory.some" || name == "pressure.io.some")
    return {std::string(name.substr(0, name.rfind('.')))};
  // "rank.0.cpu" and what lies below it together, but not each child, which is in the sum.
  if (name.starts_with("rank.") && name.find(".child.") == std::string_view::npos) {
    if (name.ends_with(".cpu")) return {"cores.job"};
    if (name.ends_with(".rss")) return {"memory.job"};
  }
  if (Is(name, "disk.", ".read")) return {"disk.read"};
  if (Is(name, "disk.", ".written")) return {"disk.written"};
  if (Is(name, "net.", ".received") || Is(name, "rdma.", ".received")) return {"net.received"};
  if (Is(name, "net.", ".sent") || Is(name, "rdma.", ".sent")) return {"net.sent"};
  if (name.starts_with("gpu.")) {
    for (const char* kind : {".utilisation", ".sm_active", ".memory.used", ".power"}) {
      if (name.ends_with(kind)) return {std::string(name)};
    }
  }
  if (name.starts_with("energy.")) return {"power.processors"};
  return {};
}

/// Adds values that lie between two moments to the buckets that they overlap. Moments ascend.
class Folding {
 public:
  Folding(const PhaseBuckets& buckets, Band* band)
      : buckets_(buckets),
        band_(*band),
        weights_(buckets.step.size(), 0) {
    band_.Grow(weights_.size());
  }
  void Add(std::int64_t from_ns, std::int64_t to_ns, double value) {
    // Buckets ascend; one that ends before this value begins sees no later one either, but for clocks that
    // were set: they lose nothing but what lies before.
    while (at_ < weights_.size() && buckets_.end_unix_ns[at_] < from_ns) ++at_;
    for (std::size_t i = at_; i < weights_.size() && buckets_.begin_unix_ns[i] <= to_ns; ++i) {
      const std::int64_t begin = std::max(from_ns, buckets_.begin_unix_ns[i]);
      const std::int64_t end = std::min(to_ns, buckets_.end_unix_ns[i]);
      if (end <= begin) continue;
      const auto weight = static_cast<double>(end - begin);
      const auto number = static_cast<float>(value);
      band_.lo[i] = std::fmin(band_.lo[i], number);
      band_.hi[i] = std::fmax(band_.hi[i], number);
      const double sum = std::isnan(band_.mean[i]) ? 0 : static_cast<double>(band_.mean[i]) * weights_[i];
      weights_[i] += weight;
      band_.mean[i] = static_cast<float>((sum + value * weight) / weights_[i]);
    }
  }

 private:
  const PhaseBuckets& buckets_;
  Band& band_;
  std::vector<double> weights_;
  std::size_t at_ = 0;
};

/// The values of one series between its samples.
struct Series {
  double before = 0;
  std::int64_t before_ns = -1;  // monotonic
};

/// The sum of some series at each moment of a block.
struct Summed {
  std::vector<double> value;
  std::vector<std::int64_t> took_ns;  // 0: nothing there
  void Begin(std::size_t moments) {
    value.assign(moments, 0);
    took_ns.assign(moments, 0);
  }
};

}  // namespace

Result<MachineBands> BandsOf(const query::HostSamples& host, const PhaseBuckets& buckets) {
  MachineBands bands;
  bands.host = host.number();
  if (buckets.step.empty()) return bands;
  std::map<std::string, std::pair<std::unique_ptr<Folding>, Summed>, std::less<>> open;
  std::map<std::string, Band, std::less<>> found;
  std::map<const format::SeriesDef*, std::pair<Series, Target>> series;
  // A rate needs the sample before the first bucket, too.
  constexpr std::int64_t kBefore = 60'000'000'000;
  const std::int64_t first = buckets.begin_unix_ns.front();
  const query::TimeSpan span{first < INT64_MIN + kBefore ? first : first - kBefore,
                             buckets.end_unix_ns.back()};
  LUFF_RETURN_IF_ERROR(host.EachBlock(span, [&](const format::SampleBlock& block, const auto& all) {
    for (auto& [name, one] : open) one.second.Begin(block.mono_ns.size());
    for (const query::HostSamples::BlockSeries& here : all) {
      const auto [known, fresh] = series.try_emplace(here.def);
      if (fresh) known->second.second = TargetOf(here.def->name);
      auto& [state, target] = known->second;
      if (target.band.empty()) continue;
      auto to = open.find(target.band);
      if (to == open.end()) {
        if (open.size() == kMostBands) continue;
        to = open.try_emplace(target.band).first;
        to->second.first = std::make_unique<Folding>(buckets, &found[target.band]);
        to->second.second.Begin(block.mono_ns.size());
      }
      Summed& sum = to->second.second;
      for (std::size_t i = 0; i < block.mono_ns.size(); ++i) {
        if (here.values->values[i] == format::kNoSample) continue;
        const double now = format::SampleValue(here.def->unit, here.values->values[i]);
        const std::int64_t passed = state.before_ns < 0 ? 0 : block.mono_ns[i] - state.before_ns;
        const double before = std::exchange(state.before, now);
        state.before_ns = block.mono_ns[i];
        const bool counts = here.def->kind == format::SeriesKind::kCounter;
        const bool gap = passed <= 0 || static_cast<double>(passed) > kLongestS * 1e9 * block.merged;
        if (counts && (gap || now < before)) continue;
        sum.value[i] += target.times * (counts ? (now - before) * 1e9 / static_cast<double>(passed) : now);
        sum.took_ns[i] = std::max(sum.took_ns[i], gap ? std::int64_t{1} : passed);
      }
    }
    for (auto& [name, one] : open) {
      auto& [folding, sum] = one;
      for (std::size_t i = 0; i < sum.took_ns.size(); ++i) {
        if (sum.took_ns[i] == 0) continue;
        const std::int64_t at = block.unix_ns(i);
        folding->Add(at - sum.took_ns[i], at, sum.value[i]);
      }
    }
  }));
  // Its size alone does not say how much of the memory is used.
  if (std::ranges::none_of(series, [](const auto& one) { return one.first->name == "memory.available"; }))
    found.erase("memory.used");
  for (auto& [name, band] : found) {
    if (std::ranges::any_of(band.mean, [](float value) { return !std::isnan(value); }))
      bands.bands.push_back({name, std::move(band)});
  }
  return bands;
}

}  // namespace luff::profile
