#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "luff/query/trial.h"
#include "luff/store/writer.h"
#include "store/test_run.h"

namespace luff::profile::testing {

using format::Mode;
using format::Phase;
using Milliseconds = std::vector<std::pair<Phase, std::int64_t>>;

/// A run that is written step by step, one worker after the other.
class Written {
 public:
  explicit Written(std::uint64_t segment_bytes = 8 << 20, std::uint64_t summary_max_bytes = 0)
      : segment_bytes_(segment_bytes),
        summary_max_bytes_(summary_max_bytes) {
    auto info = store::CreateRun(path(), {}, false, false);
    EXPECT_TRUE(info.ok());
    run_ = *info;
    Worker(0);
  }
  [[nodiscard]] std::string path() const { return directory_.path() + "/run"; }
  void Worker(std::uint32_t worker) {
    if (writer_ != nullptr) {
      EXPECT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
    }
    store::WriterOptions options;
    options.run_path = path();
    options.worker = worker;
    options.segment_bytes_meta = segment_bytes_;
    options.summary_max_bytes = summary_max_bytes_;
    options.max_bytes = summary_max_bytes_ * 4;
    auto writer = store::WorkerWriter::Open(options, run_);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    writer_ = std::move(*writer);
    step_ = train_ = now_ns_ = 0;
  }
  void Step(Mode mode, const Milliseconds& ms, std::int64_t queue_ms = -1) {
    Publish(mode, ms, queue_ms, {});
  }
  /// A TRAIN step in which modules were timed.
  void TimedStep(const Milliseconds& ms, const format::ModuleTimesHead& head,
                 std::vector<format::ModuleTimeRow> rows) {
    store::StepBatch batch;
    batch.phases.head.flags = format::kStepTimed;
    batch.modules = {head, std::move(rows)};
    Publish(Mode::kTrain, ms, -1, std::move(batch));
  }
  /// A step with times of a device, which was idle when it began.
  void DeviceStep(Mode mode, const Milliseconds& ms, const Milliseconds& device_ms, Phase idle_at,
                  bool idle) {
    device_ms_ = device_ms;
    idle_at_ = idle ? std::optional(idle_at) : std::nullopt;
    Publish(mode, ms, -1, {});
    device_ms_.clear();
  }
  /// A TRAIN step in which operators were traced.
  void TracedStep(const Milliseconds& ms) {
    store::StepBatch batch;
    batch.phases.head.flags = format::kStepTraced;
    Publish(Mode::kTrain, ms, -1, std::move(batch));
  }
  void Document(std::string name, std::string json) {
    store::StepBatch batch;
    batch.documents.emplace_back(std::move(name), std::move(json));
    EXPECT_TRUE(writer_->PublishLoose(batch).ok());
  }
  /// Time that no step has.
  void Pause(std::int64_t ms) { now_ns_ += ms * 1'000'000; }
  static constexpr std::int64_t kBegin = 1'700'000'000'000'000'000;
  [[nodiscard]] const store::RunInfo& info() const { return run_; }
  [[nodiscard]] std::unique_ptr<query::Trial> Read(format::EndReason reason = format::EndReason::kCompleted) {
    EXPECT_TRUE(writer_->Close(reason).ok());
    auto trial = query::Trial::Open(path());
    EXPECT_TRUE(trial.ok()) << trial.status().ToString();
    return std::move(*trial);
  }

 private:
  void Publish(Mode mode, const Milliseconds& ms, std::int64_t queue_ms, store::StepBatch batch) {
    batch.mark.global_step = step_++;
    batch.mark.mode_step = mode == Mode::kTrain ? train_++ : 0;
    batch.mark.mode = static_cast<std::uint8_t>(mode);
    format::PhasesHead& head = batch.phases.head;
    head = {
        0,         queue_ms < 0 ? -1 : 0, queue_ms < 0 ? -1 : queue_ms * 1'000'000, -1, 1, 0, format::kNoId,
        head.flags};
    for (const auto& [phase, took] : ms) {
      batch.phases.rows[head.rows++] = {
          static_cast<std::uint8_t>(phase), 0, 1, format::kNoId, 0, took * 1'000'000};
      head.wall_ns += took * 1'000'000;
    }
    for (const auto& [phase, took] : device_ms_) {
      const std::uint16_t idle = idle_at_ == phase ? 1 : 0;
      batch.phases.rows[head.rows++] = {
          static_cast<std::uint8_t>(phase), 1, idle, format::kNoId, -1, took * 1'000'000};
      head.device_ns = std::max<std::int64_t>(head.device_ns, 0) + took * 1'000'000;
    }
    now_ns_ += head.wall_ns;
    batch.mark.wall_unix_ns = kBegin + now_ns_;
    batch.mark.duration_ns = head.wall_ns;
    EXPECT_TRUE(writer_->PublishStep(batch).ok());
  }

  const std::uint64_t segment_bytes_, summary_max_bytes_;
  store::TemporaryDirectory directory_;
  store::RunInfo run_;
  std::unique_ptr<store::WorkerWriter> writer_;
  std::int64_t step_ = 0, train_ = 0, now_ns_ = 0;
  Milliseconds device_ms_;  // of the step that is written
  std::optional<Phase> idle_at_;
};

}  // namespace luff::profile::testing
