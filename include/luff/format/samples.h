#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/frames.h"
#include "luff/format/layout.h"

/// Samples of a host: series that are measured together at one moment after the other. Encoding into frames,
/// and parsing of bytes that may be hostile.
namespace luff::format {

/// A value that was not there.
inline constexpr std::int64_t kNoSample = std::numeric_limits<std::int64_t>::min();

/// Definition of a series. `name` is made of parts, from the general to the particular: "cpu.3.busy",
/// "disk.vda.read_bytes", "proc.4711.rss". Ids are scoped by epoch.
struct SeriesDefView {
  std::uint32_t id = 0;
  SeriesUnit unit = SeriesUnit::kNumber;
  SeriesKind kind = SeriesKind::kGauge;
  std::uint32_t device = kNoId;  // GPU number
  std::string_view name;         // borrowed
};
struct SeriesDef {
  std::uint32_t id = 0;
  SeriesUnit unit = SeriesUnit::kNumber;
  SeriesKind kind = SeriesKind::kGauge;
  std::uint32_t device = kNoId;
  std::string name;
  [[nodiscard]] SeriesDefView view() const noexcept { return {id, unit, kind, device, name}; }
};
void PutSeriesDef(const SeriesDefView& def, FrameBuffer* to);
/// Errors: kCorruption. A unit or kind that is not known is one.
[[nodiscard]] Result<std::vector<SeriesDefView>> ParseSeriesDefsUntrusted(std::span<const std::byte> body);

/// Values of one series, one for each moment of its block; kNoSample where there was none.
struct SampledSeries {
  std::uint32_t id = 0;
  SeriesKind kind = SeriesKind::kGauge;
  std::vector<std::int64_t> values;
  std::vector<std::int64_t> maxima;  // of merged gauges; else empty
};

/// Some moments and what was measured at each.
struct SampleBlock {
  std::int64_t first_unix_ns = 0;     // of mono_ns.front()
  std::uint32_t merged = 1;           // how many samples each one here stands for at most
  std::vector<std::int64_t> mono_ns;  // not descending, at most kMaxSamples
  std::vector<SampledSeries> series;  // at most kMaxSeries
  [[nodiscard]] std::int64_t unix_ns(std::size_t at) const noexcept {
    return first_unix_ns + (mono_ns[at] - mono_ns.front());
  }
};
/// Values beyond +-kMaxSampleValue become the nearest that fits. `block` has a moment at least.
void PutSamples(const SampleBlock& block, FrameBuffer* to);
/// Every series of the result has as many values as there are moments. Errors: kCorruption.
[[nodiscard]] Result<SampleBlock> ParseSamplesUntrusted(std::span<const std::byte> body);

/// Joins blocks of one folder in their order and makes `factor` consecutive samples one: the last moment, of
/// counters the last value, of gauges the mean and the maximum. Blocks between which the wall clock was set
/// stay apart.
[[nodiscard]] std::vector<SampleBlock> MergeSamples(std::span<const SampleBlock> blocks, std::size_t factor);

/// "bytes", "s", ...: the unit of SampleValue().
[[nodiscard]] std::string_view UnitName(SeriesUnit unit) noexcept;
/// A stored value in its base unit: seconds, bytes, a share of 1, watts, joules, hertz, degrees Celsius. NaN
/// for kNoSample.
[[nodiscard]] double SampleValue(SeriesUnit unit, std::int64_t value) noexcept;

}  // namespace luff::format
