#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Metrics for machines: the table of docs/spec/metrics.md, and the formats in which its samples are written.
namespace luff::server {

enum class Metric : std::uint8_t {
  kRunInfo,
  kRunState,
  kTrainSteps,
  kLastStep,
  kRunBegun,
  kUpdates,
  kUpdatesSkipped,
  kStepDuration,
  kWorkers,
  kHeartbeatAge,
  kRuleLag,
  kRulesFailed,
  kRunProblems,
  kGaps,
  kCaptureRatio,
  kRunSize,
  kDiskFree,
  kFindings,
  kFindingsSeen,
  kLoss,
  kLossNonFinite,
  kGradientNorm,
  kLearningRate,
  kUpdateRatioMax,
  kUpdateRatioMin,
  kNonFiniteTensors,
  kActions,
  kTensorL2,
  kTensorNonFinite,
  kSeriesDropped,
  kServeInfo,
  kServeRuns,
  kServeOpenRuns,
  kRunsDropped,
  kServeRequests,
  kServeRequestSeconds,
  kServeStreams,
  kPushDropped,
};

enum class MetricType : std::uint8_t { kGauge, kCounter, kHistogram };

struct MetricInfo {
  Metric metric;
  std::string_view name;  // of Prometheus, of a counter with "_total"
  std::string_view dots;  // of OpenTelemetry
  MetricType type;
  std::string_view unit;  // UCUM
  std::string_view help;
};

/// In the order in which they are written, which is that of `Metric`.
[[nodiscard]] const MetricInfo& InfoOf(Metric metric) noexcept;

using Labels = std::vector<std::pair<std::string_view, std::string>>;  // names are literals

/// Upper bounds of the histogram of step durations, in seconds; the twelfth bucket has none.
inline constexpr std::array<double, 11> kStepBounds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};

struct StepHistogram {
  std::array<std::uint64_t, kStepBounds.size() + 1> counts{};  // not cumulative
  double sum_s = 0;
  void Add(double seconds) noexcept;
};

/// Samples that are collected, then written in one of the formats. **Thread-compatible.**
class Exposition {
 public:
  static constexpr std::size_t kMaxLabelBytes = 128;
  static constexpr std::size_t kMaxRunSeries = 80;

  /// Samples that follow are those of a run: each gets the label `run`, and after kMaxRunSeries they are
  /// counted only, except those of tensors that were asked for by name.
  void BeginRun(const std::string& label);
  /// Ends the samples of a run, and says how many were left out.
  void EndRun();
  void Put(Metric metric, Labels labels, double value);
  void Put(Metric metric, Labels labels, const StepHistogram& histogram);

  /// Prometheus' text format 0.0.4.
  [[nodiscard]] std::string Prometheus() const { return Text(false); }
  /// OpenMetrics 1.0.
  [[nodiscard]] std::string OpenMetrics() const { return Text(true); }
  /// One line of JSON: {"metrics": [{"name", "unit", "type", "help", "points": [...]}]}, with the names of
  /// OpenTelemetry.
  [[nodiscard]] std::string Json(std::int64_t unix_ns) const;

 private:
  struct Sample {
    Labels labels;
    double value = 0;
    StepHistogram histogram = {};
  };
  [[nodiscard]] bool Room(Metric metric, std::size_t series);
  void Keep(Metric metric, Sample sample);
  [[nodiscard]] std::string Text(bool open) const;

  std::array<std::vector<Sample>, static_cast<std::size_t>(Metric::kPushDropped) + 1> samples_;
  std::string run_;
  bool in_run_ = false;
  std::size_t series_ = 0, dropped_ = 0;
};

/// Types of the two texts, for Content-Type.
inline constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";
inline constexpr std::string_view kOpenMetricsType =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Whether a client that sends this header Accept prefers OpenMetrics.
[[nodiscard]] bool PrefersOpenMetrics(std::string_view accept) noexcept;

}  // namespace luff::server
