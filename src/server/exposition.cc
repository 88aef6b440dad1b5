#include "server/exposition.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text_escape.h"
#include "luff/base/version.h"

namespace luff::server {
namespace {

using enum MetricType;

constexpr MetricInfo kTable[] = {
    {Metric::kRunInfo, "luff_run_info", "luff.run.info", kGauge, "1",
     "Always 1; the labels say which run it is."},
    {Metric::kRunState, "luff_run_state", "luff.run.state", kGauge, "1",
     "1 for the state that the run is in, 0 for the others."},
    {Metric::kTrainSteps, "luff_train_steps_total", "luff.train.steps", kCounter, "{step}",
     "Complete steps in TRAIN."},
    {Metric::kLastStep, "luff_last_step_timestamp_seconds", "luff.last_step.timestamp", kGauge, "s",
     "When the newest complete step began."},
    {Metric::kRunBegun, "luff_run_begun_timestamp_seconds", "luff.run.begun.timestamp", kGauge, "s",
     "When the run began."},
    {Metric::kUpdates, "luff_updates_total", "luff.updates", kCounter, "{update}",
     "Updates before the newest complete step."},
    {Metric::kUpdatesSkipped, "luff_updates_skipped_total", "luff.updates.skipped", kCounter, "{update}",
     "Updates that a gradient scaler left out, of the first worker."},
    {Metric::kStepDuration, "luff_step_duration_seconds", "luff.step.duration", kHistogram, "s",
     "How long complete TRAIN steps took."},
    {Metric::kWorkers, "luff_workers", "luff.workers", kGauge, "{worker}", "Workers by state."},
    {Metric::kHeartbeatAge, "luff_heartbeat_age_seconds", "luff.heartbeat.age", kGauge, "s",
     "How long ago a worker that has not ended was heard of; those that are silent for longest."},
    {Metric::kRuleLag, "luff_rule_lag_steps", "luff.rule.lag", kGauge, "{step}",
     "Complete steps that a rule had not seen at the last checkpoint, at most 10 s old while they work."},
    {Metric::kRulesFailed, "luff_rules_failed", "luff.rules.failed", kGauge, "{rule}",
     "Rules that failed and are set aside."},
    {Metric::kRunProblems, "luff_run_problems", "luff.run.problems", kGauge, "{problem}",
     "Damage that was found in the run."},
    {Metric::kGaps, "luff_gaps_total", "luff.gaps", kCounter, "{value}",
     "Values and steps that are missing, by reason."},
    {Metric::kCaptureRatio, "luff_capture_ratio", "luff.capture.ratio", kGauge, "1",
     "Share of the training thread's time that copying and summing up tensors and handing over steps took, "
     "the "
     "hook's own Python not included."},
    {Metric::kRunSize, "luff_run_size_bytes", "luff.run.size", kGauge, "By",
     "What the files of the run's workers take on disk; retention makes it smaller."},
    {Metric::kDiskFree, "luff_disk_free_bytes", "luff.disk.free", kGauge, "By",
     "Room on the run's file system for who runs this."},
    {Metric::kFindings, "luff_findings", "luff.findings", kGauge, "{finding}",
     "Findings that stand, also those that follow from another one."},
    {Metric::kFindingsSeen, "luff_findings_seen_total", "luff.findings.seen", kCounter, "{finding}",
     "Findings so far, healed ones too."},
    {Metric::kLoss, "luff_loss", "luff.loss", kGauge, "1",
     "Newest value of a loss or scalar; in EVAL the mean of the last evaluation."},
    {Metric::kLossNonFinite, "luff_loss_nonfinite", "luff.loss.nonfinite", kGauge, "1",
     "1 if that value is not finite: NaN compares false in queries."},
    {Metric::kGradientNorm, "luff_gradient_norm", "luff.gradient.norm", kGauge, "1",
     "L2 norm of the gradients at the newest step that has any."},
    {Metric::kLearningRate, "luff_learning_rate", "luff.learning_rate", kGauge, "1",
     "Learning rate of the newest update."},
    {Metric::kUpdateRatioMax, "luff_update_ratio_max", "luff.update_ratio.max", kGauge, "1",
     "Largest change of a weight in an update, as L2 norms: that of the change, over that of the weight."},
    {Metric::kUpdateRatioMin, "luff_update_ratio_min", "luff.update_ratio.min", kGauge, "1",
     "Smallest change of a weight in an update."},
    {Metric::kNonFiniteTensors, "luff_nonfinite_tensors", "luff.tensors.nonfinite", kGauge, "{tensor}",
     "Tensors with NaN or infinite values at the newest TRAIN step with summaries."},
    {Metric::kActions, "luff_actions_total", "luff.actions", kCounter, "{action}",
     "Lines of the audit of actions."},
    {Metric::kTensorL2, "luff_tensor_l2", "luff.tensor.l2", kGauge, "1",
     "L2 norm of the finite values of a tensor that was asked for, at its newest TRAIN step."},
    {Metric::kTensorNonFinite, "luff_tensor_nonfinite", "luff.tensor.nonfinite", kGauge, "{value}",
     "NaN and infinite values of a tensor that was asked for, at its newest TRAIN step."},
    {Metric::kSeriesDropped, "luff_run_series_dropped", "luff.run.series.dropped", kGauge, "{series}",
     "Series of the run that are left out because there are too many."},
    {Metric::kServeInfo, "luff_serve_info", "luff.serve.info", kGauge, "1",
     "Always 1; the label says which Luff it is."},
    {Metric::kServeRuns, "luff_serve_runs", "luff.serve.runs", kGauge, "{run}",
     "Runs below the directories that are served."},
    {Metric::kServeOpenRuns, "luff_serve_open_runs", "luff.serve.open_runs", kGauge, "{run}",
     "Runs that are open."},
    {Metric::kRunsDropped, "luff_exported_runs_dropped", "luff.exported.runs.dropped", kGauge, "{run}",
     "Runs without metrics because there are too many."},
    {Metric::kServeRequests, "luff_serve_requests_total", "luff.serve.requests", kCounter, "{request}",
     "Requests that were answered, by the class of the status."},
    {Metric::kServeRequestSeconds, "luff_serve_request_seconds_total", "luff.serve.request.time", kCounter,
     "s", "Time that answering them took."},
    {Metric::kServeStreams, "luff_serve_streams", "luff.serve.streams", kGauge, "{stream}",
     "Event streams that are open."},
    {Metric::kPushDropped, "luff_push_dropped_total", "luff.push.dropped", kCounter, "{sample}",
     "Samples of a run that could not be pushed."},
};
static_assert(std::size(kTable) == static_cast<std::size_t>(Metric::kPushDropped) + 1);
static_assert([] {
  for (std::size_t i = 0; i < std::size(kTable); ++i) {
    if (kTable[i].metric != static_cast<Metric>(i)) return false;
  }
  return true;
}());

std::string_view TypeText(MetricType type) {
  return type == kCounter ? "counter" : type == kHistogram ? "histogram" : "gauge";
}

/// Harmless on a terminal and in a dashboard, and cut to kMaxLabelBytes at a character.
std::string Cut(const std::string& label) {
  std::string text = Escaped(label);
  if (text.size() <= Exposition::kMaxLabelBytes) return text;
  std::size_t end = Exposition::kMaxLabelBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  text.resize(end);
  return text;
}

/// A label's value between quotes.
void PutValue(const std::string& text, std::string* to) {
  for (const char c : text) {
    if (c == '\\' || c == '"') *to += '\\';
    *to += c;
  }
}

std::string LabelsText(const Labels& labels, std::string_view le = "") {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += text.empty() ? "{" : ",";
    text += name;
    text += "=\"";
    PutValue(value, &text);
    text += '"';
  }
  if (!le.empty()) text += fmt::format("{}le=\"{}\"", text.empty() ? "{" : ",", le);
  return text.empty() ? text : text + "}";
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// A bound as both formats want it: "0.1", "1.0".
std::string Bound(double value) {
  std::string text = fmt::format("{}", value);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

nlohmann::ordered_json JsonNumber(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

bool IsOfTensor(Metric metric) { return metric == Metric::kTensorL2 || metric == Metric::kTensorNonFinite; }

}  // namespace

const MetricInfo& InfoOf(Metric metric) noexcept { return kTable[static_cast<std::size_t>(metric)]; }

void StepHistogram::Add(double seconds) noexcept {
  const auto at = std::ranges::lower_bound(kStepBounds, seconds);
  ++counts[static_cast<std::size_t>(at - kStepBounds.begin())];
  sum_s += seconds;
}

void Exposition::BeginRun(const std::string& label) {
  run_ = Cut(label);
  in_run_ = true;
  series_ = dropped_ = 0;
}

void Exposition::EndRun() {
  series_ = 0;
  Put(Metric::kSeriesDropped, {}, static_cast<double>(dropped_));
  in_run_ = false;
}

bool Exposition::Room(Metric metric, std::size_t series) {
  if (!in_run_ || IsOfTensor(metric)) return true;
  if (series_ + series >= kMaxRunSeries) {  // one is for the number of those left out
    dropped_ += series;
    return false;
  }
  series_ += series;
  return true;
}

void Exposition::Keep(Metric metric, Sample sample) {
  for (auto& [name, value] : sample.labels) value = Cut(value);
  if (in_run_) sample.labels.insert(sample.labels.begin(), {"run", run_});
  samples_[static_cast<std::size_t>(metric)].push_back(std::move(sample));
}

void Exposition::Put(Metric metric, Labels labels, double value) {
  if (Room(metric, 1)) Keep(metric, {std::move(labels), value});
}

void Exposition::Put(Metric metric, Labels labels, const StepHistogram& histogram) {
  if (Room(metric, kStepBounds.size() + 3)) Keep(metric, {std::move(labels), 0, histogram});
}

std::string Exposition::Text(bool open) const {
  std::string text;
  for (const MetricInfo& info : kTable) {
    const auto& samples = samples_[static_cast<std::size_t>(info.metric)];
    if (samples.empty()) continue;
    std::string_view family = info.name;
    if (open && info.type == kCounter) family.remove_suffix(std::string_view("_total").size());
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family, info.help, TypeText(info.type));
    for (const Sample& sample : samples) {
      if (info.type != kHistogram) {
        text += fmt::format("{}{} {}\n", info.name, LabelsText(sample.labels), Number(sample.value));
        continue;
      }
      std::uint64_t below = 0;
      for (std::size_t i = 0; i < sample.histogram.counts.size(); ++i) {
        below += sample.histogram.counts[i];
        const std::string le = i < kStepBounds.size() ? Bound(kStepBounds[i]) : "+Inf";
        text += fmt::format("{}_bucket{} {}\n", info.name, LabelsText(sample.labels, le), below);
      }
      const std::string labels = LabelsText(sample.labels);
      text += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", info.name, labels,
                          Number(sample.histogram.sum_s), below);
    }
  }
  return open ? text + "# EOF\n" : text;
}

std::string Exposition::Json(std::int64_t unix_ns) const {
  using Json = nlohmann::ordered_json;
  Json metrics = Json::array();
  for (const MetricInfo& info : kTable) {
    const auto& samples = samples_[static_cast<std::size_t>(info.metric)];
    if (samples.empty()) continue;
    Json points = Json::array();
    for (const Sample& sample : samples) {
      Json point{{"labels", Json::object()}};
      for (const auto& [name, value] : sample.labels) point["labels"][std::string(name)] = value;
      if (info.type == kHistogram) {
        point["counts"] = sample.histogram.counts;
        point["sum"] = sample.histogram.sum_s;
      } else {
        point["value"] = JsonNumber(sample.value);
      }
      points.push_back(std::move(point));
    }
    metrics.push_back({{"name", info.dots},
                       {"type", TypeText(info.type)},
                       {"unit", info.unit},
                       {"help", info.help},
                       {"points", std::move(points)}});
  }
  return JsonText(Json{{"unix_ns", unix_ns},
                       {"version", Version()},
                       {"bounds", kStepBounds},
                       {"metrics", std::move(metrics)}});
}

bool PrefersOpenMetrics(std::string_view accept) noexcept {
  return accept.find("application/openmetrics-text") != std::string_view::npos;
}

}  // namespace luff::server
