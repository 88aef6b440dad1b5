#include "luff/format/samples.h"

#include <algorithm>
#include <map>
#include <string>

#include "luff/base/bytes.h"

namespace luff::format {
namespace {

struct SeriesDefHead {
  std::uint32_t id;
  std::uint8_t unit, kind;
  std::uint16_t name_bytes;
  std::uint32_t device;
  std::uint32_t reserved;
};
static_assert(sizeof(SeriesDefHead) == 16);

constexpr std::int64_t kMaxTime = std::int64_t{1} << 62;
constexpr std::int64_t kClockMoved = 1'000'000;  // ns by which two clocks may drift apart between two frames

std::uint64_t ZigZag(std::int64_t value) noexcept {
  return static_cast<std::uint64_t>(value) << 1U ^ static_cast<std::uint64_t>(value >> 63);
}
std::int64_t UnZigZag(std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(value >> 1U) ^ -static_cast<std::int64_t>(value & 1U);
}

/// 0 for no value, else 1 + the difference to the last value that there was.
void PutValues(std::span<const std::int64_t> values, std::size_t count, FrameBuffer* to) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i >= values.size() || values[i] == kNoSample) {
      to->PutVarint(0);
      continue;
    }
    const std::int64_t value = std::clamp(values[i], -kMaxSampleValue, kMaxSampleValue);
    to->PutVarint(ZigZag(value - last) + 1);
    last = value;
  }
}

bool ReadValuesUntrusted(ByteCursor* cursor, std::size_t count, std::vector<std::int64_t>* values) {
  std::int64_t last = 0;
  values->reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t code = 0;
    if (!cursor->ReadVarint(&code)) return false;
    if (code == 0) {
      values->push_back(kNoSample);
      continue;
    }
    const std::int64_t difference = UnZigZag(code - 1);
    if (difference < -2 * kMaxSampleValue || difference > 2 * kMaxSampleValue) return false;
    last += difference;
    if (last < -kMaxSampleValue || last > kMaxSampleValue) return false;
    values->push_back(last);
  }
  return true;
}

}  // namespace

void PutSeriesDef(const SeriesDefView& def, FrameBuffer* to) {
  const std::string_view name = def.name.substr(0, kMaxNameBytes);
  const SeriesDefHead head{def.id,
                           static_cast<std::uint8_t>(def.unit),
                           static_cast<std::uint8_t>(def.kind),
                           static_cast<std::uint16_t>(name.size()),
                           def.device,
                           0};
  to->PutValue(head);
  to->Put(name.data(), name.size());
  to->PutZeros(AlignUp(name.size(), 8) - name.size());
}

Result<std::vector<SeriesDefView>> ParseSeriesDefsUntrusted(std::span<const std::byte> body) {
  std::vector<SeriesDefView> defs;
  ByteCursor cursor(body);
  while (!cursor.at_end()) {
    SeriesDefHead head{};
    SeriesDefView def;
    if (!cursor.Read(&head) || head.name_bytes > kMaxNameBytes ||
        !cursor.ReadText(head.name_bytes, &def.name) || !cursor.Align(8)) {
      return Corruption("definition of a series is longer than its frame");
    }
    if (head.unit > static_cast<std::uint8_t>(SeriesUnit::kBits) ||
        head.kind > static_cast<std::uint8_t>(SeriesKind::kCounter)) {
      return Corruption("series of unknown unit " + std::to_string(head.unit) + " or kind " +
                        std::to_string(head.kind));
    }
    def.id = head.id;
    def.unit = static_cast<SeriesUnit>(head.unit);
    def.kind = static_cast<SeriesKind>(head.kind);
    def.device = head.device;
    defs.push_back(def);
  }
  return defs;
}

void PutSamples(const SampleBlock& block, FrameBuffer* to) {
  const std::size_t count = std::min<std::size_t>(block.mono_ns.size(), kMaxSamples);
  const bool maxima = std::ranges::any_of(block.series, [](const auto& s) { return !s.maxima.empty(); });
  SamplesHead head{};
  head.first_mono_ns = block.mono_ns.front();
  head.first_unix_ns = block.first_unix_ns;
  head.samples = static_cast<std::uint32_t>(count);
  head.series = static_cast<std::uint32_t>(std::min<std::size_t>(block.series.size(), kMaxSeries));
  head.merged = block.merged;
  head.flags = maxima ? kSamplesMaxima : 0;
  to->PutValue(head);
  for (std::size_t i = 1; i < count; ++i)
    to->PutVarint(
        static_cast<std::uint64_t>(std::max<std::int64_t>(block.mono_ns[i] - block.mono_ns[i - 1], 0)));
  for (std::size_t s = 0; s < head.series; ++s) {
    const SampledSeries& series = block.series[s];
    to->PutVarint(series.id);
    to->PutValue(static_cast<std::uint8_t>(series.kind));
    PutValues(series.values, count, to);
    if (maxima && series.kind == SeriesKind::kGauge)
      PutValues(series.maxima.empty() ? series.values : series.maxima, count, to);
  }
}

Result<SampleBlock> ParseSamplesUntrusted(std::span<const std::byte> body) {
  ByteCursor cursor(body);
  SamplesHead head{};
  if (!cursor.Read(&head)) {
    return Corruption("found " + std::to_string(body.size()) + " bytes of samples, expected at least " +
                      std::to_string(sizeof(head)));
  }
  if (head.samples == 0 || head.samples > kMaxSamples || head.series > kMaxSeries || head.merged == 0 ||
      (head.flags & ~kSamplesMaxima) != 0 || head.first_mono_ns < 0 || head.first_mono_ns > kMaxTime ||
      head.first_unix_ns < 0 || head.first_unix_ns > kMaxTime) {
    return Corruption("found " + std::to_string(head.samples) + " samples of " + std::to_string(head.series) +
                      " series, expected 1 to " + std::to_string(kMaxSamples) + " of at most " +
                      std::to_string(kMaxSeries) + " with their times");
  }
  // A value has a byte at least, so what is read is bounded by what is there.
  if (std::uint64_t{head.samples} * head.series > body.size())
    return Corruption("samples are longer than their frame");
  SampleBlock block;
  block.first_unix_ns = head.first_unix_ns;
  block.merged = head.merged;
  block.mono_ns.reserve(head.samples);
  block.mono_ns.push_back(head.first_mono_ns);
  for (std::uint32_t i = 1; i < head.samples; ++i) {
    std::uint64_t more = 0;
    if (!cursor.ReadVarint(&more) || more > static_cast<std::uint64_t>(kMaxTime - block.mono_ns.back()) ||
        more > static_cast<std::uint64_t>(kMaxTime - block.unix_ns(block.mono_ns.size() - 1)))
      return Corruption("times of samples are cut off, or beyond any clock");
    block.mono_ns.push_back(block.mono_ns.back() + static_cast<std::int64_t>(more));
  }
  for (std::uint32_t s = 0; s < head.series; ++s) {
    SampledSeries series;
    std::uint64_t id = 0;
    std::uint8_t kind = 0;
    if (!cursor.ReadVarint(&id) || id >= kNoId || !cursor.Read(&kind) ||
        kind > static_cast<std::uint8_t>(SeriesKind::kCounter))
      return Corruption("series of samples without a number or kind that is known");
    series.id = static_cast<std::uint32_t>(id);
    series.kind = static_cast<SeriesKind>(kind);
    const bool maxima = (head.flags & kSamplesMaxima) != 0 && series.kind == SeriesKind::kGauge;
    if (!ReadValuesUntrusted(&cursor, head.samples, &series.values) ||
        (maxima && !ReadValuesUntrusted(&cursor, head.samples, &series.maxima)))
      return Corruption("values of series " + std::to_string(id) + " are cut off, or too large");
    block.series.push_back(std::move(series));
  }
  if (!cursor.at_end()) return Corruption("samples are shorter than their frame");
  return block;
}

namespace {

/// Where a moment of a joined block comes from.
struct Moment {
  const SampleBlock* block;
  std::size_t at;
};

std::int64_t ClockOffset(const SampleBlock& block) noexcept {
  return block.first_unix_ns - block.mono_ns.front();
}

SampleBlock MergeMoments(std::span<const Moment> moments, std::size_t factor) {
  SampleBlock merged;
  merged.merged = 0;
  std::map<std::pair<std::uint32_t, SeriesKind>, std::size_t> place;
  for (const Moment& moment : moments) {
    for (const SampledSeries& series : moment.block->series) {
      if (place.try_emplace({series.id, series.kind}, merged.series.size()).second)
        merged.series.push_back({series.id, series.kind, {}, {}});
    }
  }
  for (std::size_t from = 0; from < moments.size(); from += factor) {
    const auto group = moments.subspan(from, std::min(factor, moments.size() - from));
    const Moment& last = group.back();
    if (merged.mono_ns.empty()) merged.first_unix_ns = last.block->unix_ns(last.at);
    merged.mono_ns.push_back(last.block->mono_ns[last.at]);
    std::uint32_t stands_for = 0;
    std::vector<double> sum(merged.series.size());
    std::vector<std::size_t> count(merged.series.size());
    for (SampledSeries& series : merged.series) {
      series.values.push_back(kNoSample);
      if (series.kind == SeriesKind::kGauge) series.maxima.push_back(kNoSample);
    }
    for (const Moment& moment : group) {
      stands_for += std::min(moment.block->merged, 1U << 24U);
      for (const SampledSeries& series : moment.block->series) {
        const std::int64_t value = series.values[moment.at];
        if (value == kNoSample) continue;
        const std::size_t to = place[{series.id, series.kind}];
        SampledSeries& out = merged.series[to];
        if (series.kind == SeriesKind::kCounter) {
          out.values.back() = value;
          continue;
        }
        const std::int64_t most = series.maxima.empty() ? value : series.maxima[moment.at];
        out.maxima.back() = std::max(out.maxima.back(), most);
        sum[to] += static_cast<double>(value);
        ++count[to];
        out.values.back() = static_cast<std::int64_t>(sum[to] / static_cast<double>(count[to]));
      }
    }
    merged.merged = std::max(merged.merged, std::min(stands_for, 1U << 24U));
  }
  return merged;
}

}  // namespace

std::vector<SampleBlock> MergeSamples(std::span<const SampleBlock> blocks, std::size_t factor) {
  std::vector<SampleBlock> result;
  std::vector<Moment> open;
  const auto close = [&] {
    if (!open.empty()) result.push_back(MergeMoments(open, factor));
    open.clear();
  };
  const SampleBlock* before = nullptr;
  for (const SampleBlock& block : blocks) {
    if (before != nullptr) {
      const std::int64_t moved = ClockOffset(block) - ClockOffset(*before);
      const bool apart = moved < -kClockMoved || moved > kClockMoved ||
                         block.mono_ns.front() < before->mono_ns.back() || block.merged != before->merged;
      if (apart) close();
    }
    before = &block;
    for (std::size_t at = 0; at < block.mono_ns.size(); ++at) {
      open.push_back({&block, at});
      if (open.size() == std::size_t{kMaxSamples} / 8 * factor) close();
    }
  }
  close();
  return result;
}

std::string_view UnitName(SeriesUnit unit) noexcept {
  switch (unit) {
    case SeriesUnit::kNanoseconds: return "s";
    case SeriesUnit::kBytes: return "bytes";
    case SeriesUnit::kShare: return "share";
    case SeriesUnit::kPower: return "W";
    case SeriesUnit::kEnergy: return "J";
    case SeriesUnit::kFrequency: return "Hz";
    case SeriesUnit::kTemperature: return "C";
    case SeriesUnit::kBits: return "bits";
    case SeriesUnit::kNumber: break;
  }
  return "";
}

double SampleValue(SeriesUnit unit, std::int64_t value) noexcept {
  if (value == kNoSample) return std::numeric_limits<double>::quiet_NaN();
  const auto number = static_cast<double>(value);
  switch (unit) {
    case SeriesUnit::kNanoseconds: return number * 1e-9;
    case SeriesUnit::kShare:
    case SeriesUnit::kEnergy: return number * 1e-6;
    case SeriesUnit::kPower:
    case SeriesUnit::kTemperature: return number * 1e-3;
    case SeriesUnit::kFrequency: return number * 1e3;
    case SeriesUnit::kNumber:
    case SeriesUnit::kBytes:
    case SeriesUnit::kBits: break;
  }
  return number;
}

}  // namespace luff::format
