#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "capture/testing.h"
#include "device/testing/loaded_double.h"

/// A session that reads the memory of an accelerator, on the double of its driver.
namespace luff::capture::testing {

using device::testing::BeginDouble;
using device::testing::Controls;
using device::testing::Faults;
using device::testing::OnDevice;
using device::testing::Streams;
using format::GapReason;

inline constexpr std::chrono::seconds kLong{120};
inline constexpr const char* kSummaries = R"({"defaults": false, "collections": [
  {"name": "weights", "forms": ["summary"], "save": {"save_interval": 1}},
  {"name": "losses", "forms": ["summary", "raw"], "save": {"save_interval": 1}}]})";

struct DeviceFixture : ::testing::Test {
  const Controls* driver = nullptr;
  std::shared_ptr<Disk> disk = std::make_shared<Disk>();
  std::unique_ptr<Session> session;
  TensorId weight = 0, loss = 0;
  LayoutId layout = 0, scalar = 0;
  device::DevicePointer at = 0;
  device::Stream stream = nullptr;

  void Begin(const Faults& faults, const char* config = kSummaries, bool thread = true,
             bool accelerators = true) {
    driver = &BeginDouble(faults);
    session = StartSession(disk, config, thread, {}, "/", accelerators);
    ASSERT_NE(session, nullptr);
    weight = session->DefineTensor("fc.weight", format::Role::kWeight, "fc", "Linear");
    loss = session->DefineTensor("loss_output_0", format::Role::kLoss, "", "");
    layout = session->DefineLayout(MakeLayout(DType::kFloat32, {64}));
    scalar = session->DefineLayout(MakeLayout(DType::kFloat32, {}));
    at = OnDevice(*driver, std::vector<float>(64, 0));
    stream = driver->stream(0);
  }
  void TearDown() override {
    session.reset();
    EXPECT_STREQ(driver->misuse(), "");
  }
  [[nodiscard]] DevicePlace Place() const { return {0, reinterpret_cast<std::uint64_t>(stream), 0}; }
  [[nodiscard]] TensorRef Ref() const {
    return {weight, layout, reinterpret_cast<const std::byte*>(at), 0, 0};
  }
  /// The training's work of a step: it writes the step's number into all 64 elements.
  void Write(float value) {
    const std::vector<float> now(64, value);
    driver->write_later(stream, at, now.data(), 256);
  }
  void Step(std::int64_t step, bool with_loss = false) {
    Write(static_cast<float>(step));
    session->BeginStep(format::Mode::kTrain, step);
    const TensorRef ref = Ref();
    session->CaptureOnDevice({&ref, 1}, Place(), 1);
    if (with_loss) session->ScalarOnDevice({loss, scalar, DType::kFloat32, at, 1}, Place());
    session->EndStep({format::Mode::kTrain, step, step, step});
  }
  void Close(std::chrono::milliseconds deadline = kLong) {
    session->Close(format::EndReason::kCompleted, deadline);
  }

  struct Found {
    std::map<std::int64_t, double> sums;         // by step
    std::map<GapReason, std::uint64_t> gaps;     // values
    std::map<std::int64_t, std::string> events;  // by step
    std::vector<std::int64_t> steps;
  };
  Found Read() {
    Found found;
    const auto steps = disk->Steps(), loose = disk->Loose();
    for (const Disk::Step& step : steps) {
      const std::int64_t number = step.batch.mark.global_step;
      found.steps.push_back(number);
      for (const format::SummaryRow& row : step.batch.summaries) {
        if (row.tensor == weight) found.sums[number] = row.sum;
      }
      for (const std::string& event : step.batch.event_json) found.events[number] = event;
    }
    for (const auto* all : {&steps, &loose}) {
      for (const Disk::Step& step : *all) {
        for (const format::GapRow& gap : step.batch.gaps)
          found.gaps[static_cast<GapReason>(gap.reason)] += gap.count;
      }
    }
    return found;
  }
};

inline constexpr const char* kAllForms = R"({"defaults": false, "collections": [
  {"name": "weights", "forms": ["summary", "histogram", "raw", "hash", "units", "difference", "extra", "shape"],
   "save": {"save_interval": 1}},
  {"name": "losses", "forms": ["summary", "raw"], "save": {"save_interval": 1}}]})";

inline std::vector<float> Values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random() % 8 == 0 ? 0 : static_cast<float>(random() % 100'000) / 1e4F - 4;
  return values;
}

}  // namespace luff::capture::testing
