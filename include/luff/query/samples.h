#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/samples.h"
#include "luff/store/reader.h"

/// What the samplers of a run's hosts measured, while they write it or afterwards: series as columns over
/// time. A step's own time is in query::Trial (StepInfo::wall_unix_ns, duration_ns); samples have the wall
/// clock of their host too, so a step's samples are those between its begin and its end.
///
///     LUFF_ASSIGN_OR_RETURN(auto samples, query::Samples::Open("run"));
///     for (const query::HostSamples& host : samples->hosts())
///       for (const format::SeriesDef& series : host.series())
///         LUFF_ASSIGN_OR_RETURN(const query::SampleColumns columns, host.Read(series.name));
///
/// Names of series, units and documents: docs/spec/run-format.md, "Samples".
namespace luff::query {

/// Part of a run's time, both ends included, by the host's wall clock.
struct TimeSpan {
  std::int64_t from_unix_ns = std::numeric_limits<std::int64_t>::min();
  std::int64_t to_unix_ns = std::numeric_limits<std::int64_t>::max();
  [[nodiscard]] bool Has(std::int64_t unix_ns) const noexcept {
    return unix_ns >= from_unix_ns && unix_ns <= to_unix_ns;
  }
};

/// One series as columns of equal length, ascending by time. Moments without a value are left out.
struct SampleColumns {
  format::SeriesUnit unit = format::SeriesUnit::kNumber;
  format::SeriesKind kind = format::SeriesKind::kGauge;
  std::uint32_t device = format::kNoId;
  std::vector<std::int64_t> unix_ns, mono_ns;
  std::vector<double> value;          // base units: seconds, bytes, share of 1, W, J, Hz, C
  std::vector<double> most;           // of merged gauges their maximum; else as value
  std::vector<std::uint32_t> merged;  // samples that each stands for at most
};

/// Growth of a counter.
struct Rate {
  double amount = 0;   // in base units; what was lost when the counter began again is not in it
  double seconds = 0;  // between the first and the last sample that counted
  [[nodiscard]] double per_second() const noexcept { return seconds > 0 ? amount / seconds : 0; }
};
[[nodiscard]] Rate RateOf(const SampleColumns& counter) noexcept;

/// What one series comes to in a span.
struct SeriesTally {
  format::SeriesUnit unit = format::SeriesUnit::kNumber;
  format::SeriesKind kind = format::SeriesKind::kGauge;
  std::uint64_t count = 0;   // samples, merged ones as many as they stand for
  std::uint64_t raised = 0;  // of these: gauges above 0, counters that had grown since the last sample
  double sum = 0, least = 0, most = 0, first = 0, last = 0;  // of gauges; base units
  double growth = 0, seconds = 0;                            // of counters, and the time that it took
  [[nodiscard]] double mean() const noexcept { return count > 0 ? sum / static_cast<double>(count) : 0; }
  [[nodiscard]] double rate() const noexcept { return seconds > 0 ? growth / seconds : 0; }
  [[nodiscard]] double raised_share() const noexcept {
    return count > 0 ? static_cast<double>(raised) / static_cast<double>(count) : 0;
  }
};
using Tallies = std::map<std::string, SeriesTally, std::less<>>;

/// The samples of one host. **Thread-compatible.**
class HostSamples {
 public:
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }  // of its folder hNNNN
  /// "host": name, boot, cores, limits; "sources": what was read, what not, and why. "" if there is none.
  [[nodiscard]] std::string Document(std::string_view name) const;
  /// All series, by name. A name that was given up and used again (a process) is one series.
  [[nodiscard]] std::vector<format::SeriesDef> series() const;
  /// Errors: kNotFound (no such series), kCorruption and those of reading.
  [[nodiscard]] Result<SampleColumns> Read(std::string_view name, const TimeSpan& span = {}) const;
  /// Several series with one pass over the files, in the order of `names`; one that does not exist is empty.
  [[nodiscard]] Result<std::vector<SampleColumns>> ReadAll(std::span<const std::string> names,
                                                           const TimeSpan& span = {}) const;
  /// All series with samples in the span, in constant memory for each. Errors: those of reading.
  [[nodiscard]] Result<Tallies> Tally(const TimeSpan& span = {}) const;

  /// One series in a block of samples.
  struct BlockSeries {
    const format::SeriesDef* def;  // outlives the call
    const format::SampledSeries* values;
  };
  using BlockVisitor = std::function<void(const format::SampleBlock&, std::span<const BlockSeries>)>;
  /// Calls `use` for each block with moments in the span, ascending by time: the one place where samples are
  /// read. Moments of a block may lie outside of the span. Errors: those of reading, and of WorkBound.
  [[nodiscard]] Status EachBlock(const TimeSpan& span, const BlockVisitor& use) const;
  /// Of the newest sample; 0 if there is none.
  [[nodiscard]] std::int64_t last_unix_ns() const noexcept { return last_unix_ns_; }
  [[nodiscard]] std::int64_t first_unix_ns() const noexcept { return first_unix_ns_; }
  [[nodiscard]] bool ended() const noexcept { return reader_->end().has_value(); }
  [[nodiscard]] std::uint32_t epochs() const noexcept { return reader_->epoch(); }  // lives of its sampler
  [[nodiscard]] const std::vector<std::string>& problems() const noexcept { return reader_->problems(); }

 private:
  friend class Samples;
  [[nodiscard]] Status TakeFrames();
  struct Place {  // of a frame of samples
    const store::SegmentReader* segment = nullptr;
    format::FrameEntry entry{};
    std::uint32_t epoch = 0;
    std::int64_t from_unix_ns = 0, to_unix_ns = 0;
  };
  std::uint32_t number_ = 0;
  std::unique_ptr<store::WorkerReader> reader_;
  std::vector<Place> places_;
  std::map<std::uint64_t, std::size_t> taken_;  // frames of a segment, by its sequence
  std::uint64_t rebuilds_ = 0;
  std::map<std::string, format::SeriesDef, std::less<>> by_name_;
  std::map<std::uint64_t, std::string> name_of_;  // epoch << 32 | id
  std::int64_t first_unix_ns_ = 0, last_unix_ns_ = 0;
};

/// All hosts of a run.
class Samples {
 public:
  /// A run without host folders has no hosts. Errors: kNotFound, kFailedPrecondition (no run), kCorruption.
  [[nodiscard]] static Result<std::unique_ptr<Samples>> Open(const std::string& run_path,
                                                             bool use_live_page = true);
  /// Reads what was written since. Returns true if there was something.
  [[nodiscard]] Result<bool> Refresh();
  [[nodiscard]] std::span<const HostSamples> hosts() const noexcept { return hosts_; }

 private:
  std::string path_;
  store::RunInfo info_;
  store::ReaderOptions options_;
  std::vector<HostSamples> hosts_;  // ascending by number
};

}  // namespace luff::query
