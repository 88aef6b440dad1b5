#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "luff/store/writer.h"
#include "rules/testing/fake_trial.h"
#include "store/test_run.h"

namespace luff::rules::testing {

/// A training beside a machine that was sampled twice a second: a trial in memory, and a host folder on disk
/// with the same clock.
class MachineStory {
 public:
  using Unit = format::SeriesUnit;
  using Kind = format::SeriesKind;
  /// A series: its value at each sample, from the seconds since the begin.
  struct Series {
    Unit unit;
    Kind kind;
    std::function<double(double seconds)> value;  // base units; what is not finite is absent
  };

  MachineStory() {
    run_ = directory_.path() + "/run";
    (void)store::CreateRun(run_, store::TestRun(), false, false);
    // Two cores, half of one used by the training.
    Counter("cpu.busy", 0.6);
    Counter("rank.0.cpu", 0.5);
    Counter("rank.0.run_queue", 0);
    Gauge("rank.0.rss", Unit::kBytes, 1e9);
    Gauge("rank.0.threads", Unit::kNumber, 4);
    Gauge("rank.0.disk_wait", Unit::kNumber, 0);
    Gauge("rank.0.children.count", Unit::kNumber, 0);
    Gauge("memory.total", Unit::kBytes, 24e9);
    Gauge("memory.available", Unit::kBytes, 12e9);
  }
  /// Grows by so much a second.
  MachineStory& Counter(const std::string& name, double rate, Unit unit = Unit::kNanoseconds) {
    series_[name] = {unit, Kind::kCounter, [rate](double seconds) { return rate * seconds; }};
    return *this;
  }
  MachineStory& Gauge(const std::string& name, Unit unit, double value) {
    series_[name] = {unit, Kind::kGauge, [value](double) { return value; }};
    return *this;
  }
  MachineStory& Put(const std::string& name, const Series& series) {
    series_[name] = series;
    return *this;
  }
  MachineStory& Host(const std::string& json) {
    host_ = json;
    return *this;
  }
  /// Steps of 0.1 s: so much of each waits for data, and for a core.
  MachineStory& Steps(double wait_share, double queue_share) {
    wait_ = wait_share;
    queue_ = queue_share;
    return *this;
  }

  /// Writes samples of so many seconds, and returns the training.
  FakeTrial& Tell(double seconds, double sampled_s = -1) {
    if (sampled_s < 0) sampled_s = seconds;
    store::WriterOptions options;
    options.run_path = run_;
    options.worker = 1;
    options.host = true;
    options.live_page = false;
    auto writer = store::WorkerWriter::Open(options, store::TestRun()).value();
    store::StepBatch batch;
    batch.documents = {{"host", host_}};
    std::uint32_t id = 0;
    for (const auto& [name, one] : series_)
      batch.series.push_back({id++, one.unit, one.kind, format::kNoId, name});
    (void)writer->PublishLoose(batch);
    const auto samples = static_cast<std::int64_t>(sampled_s * 2) + 1;
    for (std::int64_t first = 0; first < samples; first += 10) {
      batch.clear();
      format::SampleBlock block;
      block.first_unix_ns = kStart + first * 500'000'000;
      std::uint32_t number = 0;
      for (const auto& [name, one] : series_) block.series.push_back({number++, one.kind, {}, {}});
      for (std::int64_t i = first; i < std::min(first + 10, samples); ++i) {
        block.mono_ns.push_back(i * 500'000'000);
        std::size_t at = 0;
        for (const auto& [name, one] : series_) {
          const double value = one.value(static_cast<double>(i) * 0.5);
          block.series[at++].values.push_back(std::isfinite(value) ? Stored(one.unit, value)
                                                                   : format::kNoSample);
        }
      }
      batch.samples = {block};
      (void)writer->PublishLoose(batch);
    }
    (void)writer->Close(format::EndReason::kCompleted);
    trial_.SetPath(run_);
    for (std::int64_t step = 1; step <= static_cast<std::int64_t>(seconds * 10); ++step) {
      trial_.Step().Phases(
          {{format::Phase::kDataWait, 100 * wait_}, {format::Phase::kForward, 100 * (1 - wait_)}}, 50,
          100 * queue_);
      trial_.Last().info.wall_unix_ns = kStart + step * 100'000'000;
    }
    return trial_;
  }
  static constexpr std::int64_t kStart = 1'700'000'000'000'000'000;

 private:
  static std::int64_t Stored(Unit unit, double value) {
    switch (unit) {
      case Unit::kNanoseconds: return static_cast<std::int64_t>(value * 1e9);
      case Unit::kShare:
      case Unit::kEnergy: return static_cast<std::int64_t>(value * 1e6);
      case Unit::kPower:
      case Unit::kTemperature: return static_cast<std::int64_t>(value * 1e3);
      case Unit::kFrequency: return static_cast<std::int64_t>(value * 1e-3);
      default: return static_cast<std::int64_t>(value);
    }
  }
  store::TemporaryDirectory directory_;
  std::string run_;
  std::string host_ = R"({"name":"node","cores":2,"allowed_cores":2,"limit_cores":null})";
  std::map<std::string, Series> series_;
  double wait_ = 0, queue_ = 0;
  FakeTrial trial_;
};

}  // namespace luff::rules::testing
