// The whole path of values in the memory of an accelerator, on the double of its driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_effort.h"
#include "capture/device_testing.h"
#include "luff/capture/phases.h"

namespace luff::capture::device_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the fixture and its store
using device::Code;

struct Device : DeviceFixture {};

// Half of it is surely waited for what never comes; the rest is room for the writer thread.
constexpr std::chrono::milliseconds kEnd{4000};

TEST_F(Device, ValuesArriveAtTheirOwnStep) {
  Faults faults;
  faults.streams = Streams::kThreads;
  Begin(faults);
  for (std::int64_t step = 0; step < 30; ++step) Step(step);
  Close();
  const Found found = Read();
  ASSERT_EQ(found.steps.size(), 30U);
  for (std::int64_t step = 0; step < 30; ++step) {
    EXPECT_EQ(found.steps[static_cast<std::size_t>(step)], step);
    EXPECT_EQ(found.sums.at(step), 64.0 * static_cast<double>(step));
  }
  EXPECT_TRUE(found.gaps.empty());
}

TEST_F(Device, LossesAreNumbersAndTensors) {
  Begin({});
  Step(3, true);
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 1U);
  const store::StepBatch& batch = steps[0].batch;
  ASSERT_EQ(batch.scalars.size(), 1U);
  EXPECT_EQ(batch.scalars[0].tensor, loss);
  EXPECT_EQ(batch.scalars[0].value, 3.0);
  ASSERT_EQ(batch.summaries.size(), 2U);
  ASSERT_EQ(batch.index.size(), 1U);
  EXPECT_EQ(batch.index[0].tensor, loss);
  const auto value = disk->Value(batch.index[0]);
  ASSERT_TRUE(value.ok()) << value.status().ToString();
  float number = 0;
  ASSERT_EQ(value->size(), 4U);
  std::memcpy(&number, value->data(), 4);
  EXPECT_EQ(number, 3.0F);
}

TEST_F(Device, ScalarsOfEachTypeAreConverted) {
  Begin({});
  session->BeginStep(format::Mode::kTrain, 0);
  const auto record = [&](const char* name, DType dtype, device::DevicePointer data, double factor) {
    const TensorId id = session->DefineTensor(name, format::Role::kScalar, "", "");
    session->ScalarOnDevice({id, scalar, dtype, data, factor}, Place());
  };
  record("a", DType::kFloat64, OnDevice(*driver, std::vector<double>{0.1}), 1);
  record("b", DType::kInt64, OnDevice(*driver, std::vector<std::int64_t>{-7}), 1);
  record("c", DType::kBFloat16, OnDevice(*driver, std::vector<std::uint16_t>{0x3FC0}), 2);
  record("d", DType::kFloat16, OnDevice(*driver, std::vector<std::uint16_t>{0x3C00}), 1);
  record("e", DType::kComplex64, OnDevice(*driver, std::vector<float>{1, 1}), 1);
  session->EndStep({});
  Close();
  const auto steps = disk->Steps();
  std::vector<double> values;
  for (const format::ScalarRow& row : steps[0].batch.scalars) values.push_back(row.value);
  EXPECT_EQ(values, (std::vector<double>{0.1, -7, 3, 1}));
  EXPECT_EQ(Read().gaps.at(GapReason::kUnsupported), 1U);
}

TEST_F(Device, GradientsAreDividedByAScaleOnTheDevice) {
  Begin({});
  Write(32);
  session->BeginStep(format::Mode::kTrain, 0);
  DevicePlace place = Place();
  place.divisor = OnDevice(*driver, std::vector<float>{16});
  const TensorRef ref = Ref();
  session->CaptureOnDevice({&ref, 1}, place, 1);
  session->EndStep({});
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps[0].batch.summaries.size(), 1U);
  const format::SummaryRow& row = steps[0].batch.summaries[0];
  EXPECT_EQ(row.sum, 128);
  EXPECT_EQ(row.sum_sq, 256);
  EXPECT_EQ(row.abs_sum, 128);
  EXPECT_EQ(std::bit_cast<double>(row.min_bits), 2);
  EXPECT_EQ(std::bit_cast<double>(row.max_bits), 2);
}

TEST_F(Device, AScaleOfZeroIsAGap) {
  Begin({});
  session->BeginStep(format::Mode::kTrain, 0);
  DevicePlace place = Place();
  place.divisor = OnDevice(*driver, std::vector<float>{0});
  const TensorRef ref = Ref();
  session->CaptureOnDevice({&ref, 1}, place, 1);
  session->EndStep({});
  Close();
  EXPECT_TRUE(Read().sums.empty());
  EXPECT_EQ(Read().gaps.at(GapReason::kUnsupported), 1U);
}

TEST_F(Device, NothingIsReadUnlessItIsAskedFor) {
  Begin({}, kSummaries, true, false);
  session->BeginStep(format::Mode::kTrain, 0);
  const TensorRef ref = Ref();
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->EndStep({});
  Close();
  EXPECT_TRUE(Read().sums.empty());
  EXPECT_EQ(Read().gaps.at(GapReason::kUnsupported), 1U);
  EXPECT_EQ(driver->counts().launches, 0);
}

TEST_F(Device, NonFiniteValuesAreCounted) {
  Begin({});
  Write(NAN);
  session->BeginStep(format::Mode::kTrain, 0);
  const TensorRef ref = Ref();
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->EndStep({});
  ASSERT_TRUE(session->Flush(kLong));
  EXPECT_EQ(session->nonfinite_summaries(), 1U);
}

TEST_F(Device, ResultsThatDoNotComeAreAGapAfter64Steps) {
  Faults faults;
  faults.lost_event = 2;  // the first tells when the work begins
  Begin(faults);
  for (std::int64_t step = 0; step < 70; ++step) Step(step);
  ASSERT_TRUE(session->Flush(kLong));
  const Found found = Read();
  ASSERT_EQ(found.steps.size(), 70U);
  EXPECT_EQ(found.sums.count(0), 0U);
  EXPECT_EQ(found.sums.size(), 69U);
  EXPECT_EQ(found.sums.at(69), 64.0 * 69);
  Close();
  EXPECT_EQ(Read().gaps.at(GapReason::kDeviceLate), 1U);
}

TEST_F(Device, AStepWaitsUntilItsValuesAreThere) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  Step(0);
  Step(1);
  EXPECT_FALSE(session->Flush(std::chrono::milliseconds(30)));
  EXPECT_TRUE(disk->Steps().empty());
  driver->run(1 << 20);
  ASSERT_TRUE(session->Flush(kLong));
  EXPECT_EQ(Read().sums.at(1), 64);
}

TEST_F(Device, TheEndWaitsForABoundedTime) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  for (std::int64_t step = 0; step < 5; ++step) Step(step);
  Close(kEnd);
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 5U);
  EXPECT_TRUE(found.sums.empty());
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceLate), 5U);
  MutexLock lock(disk->mutex);
  EXPECT_EQ(disk->closed, 1);
  EXPECT_EQ(disk->reason, format::EndReason::kCompleted);
}

TEST_F(Device, TheSameWithoutAWriterThread) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults, kSummaries, false);
  Step(0);
  driver->run(1 << 20);
  for (std::int64_t step = 1; step < 4; ++step) Step(step);
  Close(kEnd);
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 4U);
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceLate), 3U);
}

TEST_F(Device, AStickyErrorIsToldAtItsStep) {
  Faults faults;
  faults.streams = Streams::kManual;
  faults.breaking_launch = 3;
  Begin(faults);
  for (std::int64_t step = 0; step < 6; ++step) {
    Step(step);
    driver->run(1 << 20);
    ASSERT_TRUE(session->Flush(kLong));  // afterwards the driver tells of no earlier work
  }
  Close();
  const Found found = Read();
  ASSERT_EQ(found.steps.size(), 6U);
  EXPECT_EQ(found.sums.size(), 2U);
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceError), 4U);
  ASSERT_EQ(found.events.size(), 1U);
  EXPECT_EQ(found.events.begin()->first, 2);
  const std::string expected =
      R"x({"kind":"device_error","device":0,"error":"CUDA_ERROR_ILLEGAL_ADDRESS (700)","place":"","sticky":true})x";
  EXPECT_EQ(found.events.begin()->second, expected);
}

TEST_F(Device, AnErrorOfOursCostsTheValuesAndNothingElse) {
  Faults faults;
  faults.failing_call = 4;
  faults.failure = 801;
  Begin(faults);
  for (std::int64_t step = 0; step < 6; ++step) Step(step);
  session->BeginStep(format::Mode::kTrain, 6);
  session->Scalar(loss, 1.5);
  session->EndStep({format::Mode::kTrain, 6, 6, 6});
  EXPECT_TRUE(session->health().accepting);
  Close();
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 7U);
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceError), 6U);
  ASSERT_EQ(found.events.size(), 1U);
  EXPECT_NE(found.events.at(0).find("\"sticky\":false"), std::string::npos);
}

TEST_F(Device, NoMemoryIsAGapAndLaterStepsAreRead) {
  Faults faults;
  faults.failing_call = 9;  // what loads and makes is done
  faults.failure = device::kOutOfMemory;
  Begin(faults);
  for (std::int64_t step = 0; step < 100; ++step) Step(step);
  Close();
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 100U);
  EXPECT_GT(found.sums.size(), 20U);
  for (const auto& [step, sum] : found.sums) EXPECT_EQ(sum, 64.0 * static_cast<double>(step));
}

TEST_F(Device, CapturedGraphsAreLeftAlone) {
  Faults faults;
  faults.capturing = true;
  Begin(faults);
  session->BeginStep(format::Mode::kTrain, 0);
  const TensorRef ref = Ref();
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->EndStep({});
  Close();
  EXPECT_EQ(Read().gaps.at(GapReason::kCapturedGraph), 1U);
  EXPECT_EQ(driver->counts().launches, 0);
}

TEST_F(Device, AnAbandonedStepLeavesNothing) {
  Begin({});
  session->BeginStep(format::Mode::kTrain, 0);
  const TensorRef ref = Ref();
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->AbandonStep();
  Step(0);
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].batch.summaries.size(), 1U);
  EXPECT_EQ(driver->counts().device_allocations, 0);
}

TEST_F(Device, NothingIsReadWhenNothingIsDue) {
  Begin(
      {},
      R"({"defaults": false, "collections": [{"name": "weights", "forms": ["summary"], "save": {"save_interval": 10}}]})");
  for (std::int64_t step = 1; step < 10; ++step) Step(step);
  EXPECT_EQ(driver->counts().launches, 0);
  Close();
}

TEST_F(Device, TensorsOfBothKindsInOneStep) {
  Faults faults;
  faults.streams = Streams::kThreads;
  Begin(faults);
  const TensorId other = session->DefineTensor("cpu.weight", format::Role::kWeight, "", "");
  const std::vector<float> values(64, 5);
  session->BeginStep(format::Mode::kTrain, 0);
  const TensorRef host{other, layout, testing::Bytes(values), 0, 0}, ref = Ref();
  session->Capture({&host, 1});
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->EndStep({});
  Close();
  EXPECT_EQ(disk->Steps()[0].batch.summaries.size(), 2U);
}

// What a device took of each phase stands beside what the host took.
TEST_F(Device, PhasesHaveTimesOfTheDevice) {
  Faults faults;
  faults.elapsed_ms = 3;
  Begin(faults);
  DevicePlace other = Place();
  other.stream = reinterpret_cast<std::uint64_t>(driver->stream(0));
  for (std::int64_t step = 0; step < 6; ++step) {
    Write(1);
    session->BeginStep(format::Mode::kTrain, step);
    EnterPhase(format::Phase::kForward);
    LeavePhase(format::Phase::kForward);
    session->BeginPhaseOnDevice(format::Phase::kForward, Place());
    session->BeginPhaseOnDevice(format::Phase::kBackward, Place());
    session->BeginPhaseOnDevice(format::Phase::kForward, step == 4 ? other : Place());
    session->BeginPhaseOnDevice(format::Phase::kOther, Place());
    const TensorRef ref = Ref();
    session->CaptureOnDevice({&ref, 1}, Place(), 1);
    session->EndStepOnDevice(Place());
    session->EndStep({format::Mode::kTrain, step, step, step});
  }
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 6U);
  for (const Disk::Step& step : steps) {
    const store::StepPhases& phases = step.batch.phases;
    const auto number = step.batch.mark.global_step;
    std::map<int, std::pair<std::int64_t, int>> found;  // phase -> time, idle
    for (std::uint32_t i = 0; i < phases.head.rows; ++i) {
      if (phases.rows[i].clock == 1)
        found[phases.rows[i].phase] = {phases.rows[i].duration_ns, phases.rows[i].count};
    }
    // The first step had begun before the device was read, and the second with its end.
    ASSERT_EQ(phases.head.device_ns, number == 0 ? -1 : number == 4 ? 3'000'000 : 15'000'000) << number;
    if (number == 0 || number == 4) {  // of what is in two streams only the whole time is known
      EXPECT_TRUE(found.empty());
      continue;
    }
    ASSERT_EQ(found.size(), 3U);
    EXPECT_EQ(found.at(0), std::pair(std::int64_t{6'000'000}, 0));
    // Whether the device had done the step before is known if that step is.
    EXPECT_EQ(found.at(static_cast<int>(format::Phase::kForward)),
              std::pair(std::int64_t{6'000'000}, number == 1 || number == 5 ? 0 : 1));
    EXPECT_EQ(found.at(static_cast<int>(format::Phase::kBackward)), std::pair(std::int64_t{3'000'000}, 0));
  }
}

TEST_F(Device, TimesOfADeviceThatNeverComeHoldAStepForABoundedTime) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  for (std::int64_t step = 0; step < 4; ++step) {
    session->BeginStep(format::Mode::kTrain, step);
    EnterPhase(format::Phase::kForward);
    LeavePhase(format::Phase::kForward);
    const TensorRef ref = Ref();
    if (step == 0) session->CaptureOnDevice({&ref, 1}, Place(), 1);
    session->BeginPhaseOnDevice(format::Phase::kForward, Place());
    session->EndStepOnDevice(Place());
    session->EndStep({format::Mode::kTrain, step, step, step});
  }
  Close(kEnd);
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 4U);
  for (const Disk::Step& step : steps) EXPECT_EQ(step.batch.phases.head.device_ns, -1);
  const auto counters = session->health().counters;
  EXPECT_TRUE(std::ranges::any_of(
      counters, [](const auto& one) { return one.name == std::string("late_times") && one.value == 3; }));
}

TEST_F(Device, WithoutProfileNothingIsMarked) {
  Begin({}, R"({"defaults": false, "profile": "off", "collections": [
    {"name": "weights", "forms": ["summary"], "save": {"save_interval": 1}}]})");
  Step(0);
  const int before = driver->counts().events;
  for (int step = 0; step < 3; ++step) {
    session->BeginPhaseOnDevice(format::Phase::kForward, Place());
    session->EndStepOnDevice(Place());
  }
  EXPECT_EQ(driver->counts().events, before);
  Close();
}

// A driver that fails once, at any of its calls, also those that never should: each step is there, a value is
// right or a gap, and the training's own memory is as it was.
TEST_F(Device, ADriverThatFailsAtAnyCall) {
  const int stride = AllCases() ? 1 : FewerCases() ? 11 : 3;
  int named = 0;
  for (const Code failure : {Code{400}, device::kOutOfMemory, Code{700}}) {
    bool reached = true;
    for (int call = 1; reached && call < 400; call += stride) {
      Faults faults;
      faults.failing_any = call;
      faults.failure = failure;
      disk = std::make_shared<Disk>();
      Begin(faults, kAllForms);
      constexpr std::int64_t kSteps = 5;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        session->BeginPhaseOnDevice(format::Phase::kForward, Place());
        Step(step, true);
        session->EndStepOnDevice(Place());
      }
      Close();
      reached = driver->counts().calls >= call;
      const Found found = Read();
      ASSERT_EQ(found.steps.size(), static_cast<std::size_t>(kSteps)) << "call " << call;
      for (const auto& [step, sum] : found.sums)
        ASSERT_EQ(sum, 64.0 * static_cast<double>(step)) << "call " << call;
      std::uint64_t missing = 0;
      for (const auto& [reason, count] : found.gaps) missing += count;
      ASSERT_GE(missing + found.sums.size(), static_cast<std::size_t>(kSteps)) << "call " << call;
      for (const Counter& counter : session->health().counters) {
        if (counter.name == "device_errors" && counter.value != 0) ++named;
      }
      float weights[64] = {};
      driver->read(weights, at, sizeof weights);
      for (const float one : weights) ASSERT_EQ(one, static_cast<float>(kSteps - 1)) << "call " << call;
      session.reset();
      ASSERT_STREQ(driver->misuse(), "") << "call " << call;
    }
  }
  EXPECT_GT(named, 3);
}

TEST_F(Device, ADeviceThatIsResetBetweenSteps) {
  Begin({}, kAllForms);
  for (std::int64_t step = 0; step < 3; ++step) Step(step, true);
  ASSERT_TRUE(session->Flush(kLong));
  driver->reset_device(0);
  at = OnDevice(*driver, std::vector<float>(64, 0));  // the training begins anew there
  stream = driver->stream(0);
  for (std::int64_t step = 3; step < 6; ++step) Step(step, true);
  Close();
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 6U);
  EXPECT_EQ(found.sums.size(), 3U);
  EXPECT_GT(found.gaps.at(GapReason::kDeviceError), 0U);
  ASSERT_EQ(found.events.size(), 1U);
  EXPECT_NE(found.events.at(3).find("CUDA_ERROR_CONTEXT_IS_DESTROYED (709)"), std::string::npos);
}

// Streams with delays and faults from a seed: a step has the right value or a gap, no step is lost, and
// nothing waits without a bound.
TEST_F(Device, Interleavings) {
  const int seeds = AllCases() ? 1000 : FewerCases() ? 3 : 12;
  for (int seed = 1; seed <= seeds; ++seed) {
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    Faults faults;
    faults.streams = Streams::kThreads;
    faults.seed = static_cast<std::uint64_t>(seed);
    faults.longest_delay_us = static_cast<int>(random() % 150);
    if (random() % 16 == 0) faults.lost_event = static_cast<int>(random() % 60) + 1;
    if (random() % 4 == 0) {
      faults.failing_call = static_cast<int>(random() % 100) + 1;
      faults.failure = random() % 2 == 0 ? device::kOutOfMemory : 400;
    }
    if (random() % 4 == 0) faults.breaking_launch = static_cast<int>(random() % 40) + 1;
    disk = std::make_shared<Disk>();
    const bool whole = seed % 2 == 0;
    Begin(faults, whole ? kAllForms : kSummaries);
    constexpr std::int64_t kSteps = 30;
    std::int64_t recorded = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      if (random() % 10 == 0) {
        session->BeginStep(format::Mode::kTrain, step);
        const TensorRef ref = Ref();
        session->CaptureOnDevice({&ref, 1}, Place(), 1);
        session->AbandonStep();
      }
      Step(step, random() % 2 == 0);
      ++recorded;
      if (random() % 16 == 0) static_cast<void>(session->Flush(std::chrono::milliseconds(random() % 3)));
    }
    Close(faults.lost_event == 0 ? std::chrono::milliseconds(kLong) : std::chrono::milliseconds(2000));
    const Found found = Read();
    ASSERT_EQ(found.steps.size(), static_cast<std::size_t>(recorded)) << "seed " << seed;
    ASSERT_TRUE(std::is_sorted(found.steps.begin(), found.steps.end()));
    for (const auto& [step, sum] : found.sums)
      ASSERT_EQ(sum, 64.0 * static_cast<double>(step)) << "seed " << seed << ", step " << step;
    for (const Disk::Step& step : disk->Steps()) {
      for (const format::IndexRow& row : step.batch.index) {
        const auto value = disk->Value(row);
        ASSERT_TRUE(value.ok());
        float first = -1;
        std::memcpy(&first, value->data(), 4);
        ASSERT_EQ(first, static_cast<float>(step.batch.mark.global_step)) << "seed " << seed;
      }
      for (const auto& [id, units] : step.batch.units)
        ASSERT_EQ(units.sum.at(0), static_cast<double>(step.batch.mark.global_step)) << "seed " << seed;
    }
    std::uint64_t missing = 0;
    for (const auto& [reason, count] : found.gaps) missing += count;
    ASSERT_GE(missing + found.sums.size(), static_cast<std::size_t>(recorded)) << "seed " << seed;
    session.reset();
    ASSERT_STREQ(driver->misuse(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace luff::capture::device_test
