#include "device/borders.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "device/testing/collector_fixture.h"

namespace luff::device::borders_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the fixture and the double

constexpr std::uint8_t kForward = 3, kBackward = 5;

struct Borders : CollectorFixture {
  Stream stream = nullptr;
  Layout layout = Dense(DType::kFloat32, {64});
  DevicePointer at = 0;

  /// A device is marked once it was read.
  void BeginRead(const Faults& faults) {
    Begin(faults);
    stream = driver->stream(0);
    at = OnDevice(*driver, std::vector<float>(64, 1));
    Read();
  }
  void Read() {
    std::shared_ptr<Ticket> ticket;
    const Input input{at, &layout};
    ASSERT_EQ(collector->Read(0, Handle(), {&input, 1}, {}, &ticket), Refusal::kNone);
    tickets.push_back(std::move(ticket));
  }
  [[nodiscard]] std::uint64_t Handle() const { return reinterpret_cast<std::uint64_t>(stream); }
  std::shared_ptr<StepPassed> Step(const std::vector<std::uint8_t>& phases) {
    for (const std::uint8_t phase : phases) collector->BeginPhase(0, Handle(), phase);
    return collector->EndStep(0, Handle());
  }
  static Arrival AwaitStep(const StepPassed& passed) {
    const auto until = std::chrono::steady_clock::now() + kLong;
    while (passed.arrival() == Arrival::kWaits && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return passed.arrival();
  }
  std::vector<std::shared_ptr<Ticket>> tickets;
};

TEST_F(Borders, AStepIsDividedAtItsBorders) {
  Faults faults;
  faults.elapsed_ms = 2;
  BeginRead(faults);
  EXPECT_EQ(Step({kForward}), nullptr);  // it had begun before
  for (int i = 0; i < 200; ++i) {        // more than are kept on their way
    const auto passed = Step({kForward, kBackward, kNoPhase});
    ASSERT_NE(passed, nullptr);
    ASSERT_EQ(AwaitStep(*passed), Arrival::kHere);
    ASSERT_EQ(passed->stretches().size(), 4U);
    const std::uint8_t expected[] = {kNoPhase, kForward, kBackward, kNoPhase};
    for (std::size_t part = 0; part < 4; ++part) {
      EXPECT_EQ(passed->stretches()[part].phase, expected[part]);
      EXPECT_EQ(passed->stretches()[part].ns, 2'000'000);
    }
    EXPECT_EQ(passed->total_ns(), 8'000'000);
    EXPECT_EQ(passed->was_idle(),
              i > 0);  // of the first step nothing is known; work is done before its call returns
  }
  EXPECT_LE(driver->counts().events, 2 + 3 * 5);  // of the read, and those that are used again
  collector->Close(kLong);
  EXPECT_EQ(driver->counts().events, 2);  // its ticket is still held
}

// It is asked for what the step before computed, not for what the next batch has it do since.
TEST_F(Borders, ADeviceThatIsBehindIsNotIdle) {
  Faults faults;
  faults.streams = Streams::kManual;
  BeginRead(faults);
  EXPECT_EQ(Step({}), nullptr);
  EXPECT_NE(Step({kForward, kNoPhase}), nullptr);
  collector->BeginPhase(0, Handle(), kForward);
  collector->BeginPhase(0, Handle(), kNoPhase);
  driver->run(1 << 20);
  Read();  // in the place of the copy of a batch
  const auto behind = collector->EndStep(0, Handle());
  EXPECT_EQ(behind->arrival(), Arrival::kWaits);
  const auto idle = Step({kForward});
  const auto unknown = Step({kForward});  // no phase of the step before has ended
  driver->run(1 << 20);
  ASSERT_EQ(AwaitStep(*unknown), Arrival::kHere);
  EXPECT_FALSE(unknown->was_idle());
  ASSERT_EQ(AwaitStep(*behind), Arrival::kHere);
  ASSERT_EQ(AwaitStep(*idle), Arrival::kHere);
  EXPECT_FALSE(behind->was_idle());
  EXPECT_TRUE(idle->was_idle());
}

TEST_F(Borders, NothingIsMarkedBeforeTheFirstReadNorInACapture) {
  Begin({});
  stream = driver->stream(0);
  EXPECT_EQ(Step({kForward}), nullptr);
  EXPECT_EQ(driver->counts().calls, 0);
  Faults faults;
  faults.capturing_elsewhere = true;  // which refuses work of the default stream
  BeginRead(faults);
  EXPECT_EQ(Step({}), nullptr);
  collector->BeginPhase(0, 0, kForward);
  const auto passed = collector->EndStep(0, Handle());  // the border between is missing, the step is whole
  ASSERT_NE(passed, nullptr);
  ASSERT_EQ(AwaitStep(*passed), Arrival::kHere);
  EXPECT_TRUE(passed->stretches().empty());
  EXPECT_EQ(collector->EndStep(0, 0), nullptr);  // this end could not be marked
  EXPECT_EQ(Step({kForward}), nullptr);          // so the next step has no begin
  EXPECT_NE(Step({kForward}), nullptr);
  EXPECT_EQ(Error(), "");
}

TEST_F(Borders, TwoStreamsInOneStep) {
  BeginRead({});
  EXPECT_EQ(Step({}), nullptr);
  const Stream first = stream, other = driver->stream(0);
  stream = other;
  collector->BeginPhase(0, Handle(), kForward);
  stream = first;
  const auto passed = Step({});
  ASSERT_NE(passed, nullptr);
  ASSERT_EQ(AwaitStep(*passed), Arrival::kHere);
  EXPECT_TRUE(passed->stretches().empty());
  stream = other;
  EXPECT_EQ(Step({kForward}), nullptr);  // begins in one, ends in the other
  EXPECT_NE(Step({kForward}), nullptr);
}

TEST_F(Borders, OfMoreThan64StepsOnTheirWayTheOthersHaveNoTimes) {
  Faults faults;
  faults.streams = Streams::kManual;
  BeginRead(faults);
  std::vector<std::shared_ptr<StepPassed>> all;
  for (int i = 0; i < 100; ++i) {
    if (auto passed = Step({kForward}); passed != nullptr) all.push_back(std::move(passed));
  }
  EXPECT_GT(all.size(), 50U);
  EXPECT_LE(all.size(), 64U);
  driver->run(1 << 20);
  for (const auto& passed : all) ASSERT_EQ(AwaitStep(*passed), Arrival::kHere);
  all.clear();
  EXPECT_EQ(Step({kForward}), nullptr);
  EXPECT_NE(Step({kForward}), nullptr);
}

TEST_F(Borders, AStepOfVeryManyBordersHasItsTotal) {
  BeginRead({});
  EXPECT_EQ(Step({}), nullptr);
  const auto passed = Step(std::vector<std::uint8_t>(1000, kForward));
  ASSERT_NE(passed, nullptr);
  ASSERT_EQ(AwaitStep(*passed), Arrival::kHere);
  EXPECT_TRUE(passed->stretches().empty());
  EXPECT_GE(passed->total_ns(), 0);
}

// A driver that fails at any of the calls: the path is off and named, or a time is missing; never a wrong
// one.
TEST_F(Borders, EachCallMayFail) {
  for (const Code failure : {Code{400}, kOutOfMemory, Code{906}}) {
    for (int call = 1; call < 60; ++call) {
      Faults faults;
      faults.elapsed_ms = 2;
      faults.failing_call = call;
      faults.failure = failure;
      Begin(faults);
      stream = driver->stream(0);
      at = OnDevice(*driver, std::vector<float>(64, 1));
      std::shared_ptr<Ticket> ticket;
      const Input input{at, &layout};
      static_cast<void>(collector->Read(0, Handle(), {&input, 1}, {}, &ticket));
      for (int step = 0; step < 6; ++step) {
        const auto passed = Step({kForward, kBackward});
        if (passed == nullptr || AwaitStep(*passed) != Arrival::kHere) continue;
        EXPECT_EQ(passed->total_ns(), passed->stretches().empty()
                                          ? 2'000'000
                                          : 2'000'000 * static_cast<std::int64_t>(passed->stretches().size()))
            << "call " << call;
      }
      ticket.reset();
      collector->Close(kLong);
      EXPECT_STREQ(driver->misuse(), "");
    }
  }
}

TEST_F(Borders, StepsAndReadsOfManyThreads) {
  Faults faults;
  faults.streams = Streams::kThreads;
  BeginRead(faults);
  std::thread reader([&] {
    for (int i = 0; i < 30; ++i) {
      std::shared_ptr<Ticket> ticket;
      const Input input{at, &layout};
      static_cast<void>(collector->Read(0, Handle(), {&input, 1}, {}, &ticket));
    }
  });
  std::vector<std::shared_ptr<StepPassed>> all;
  for (int i = 0; i < 30; ++i) {
    if (auto passed = Step({kForward, kBackward}); passed != nullptr) all.push_back(std::move(passed));
  }
  reader.join();
  for (const auto& passed : all) {
    ASSERT_EQ(AwaitStep(*passed), Arrival::kHere);
    EXPECT_EQ(passed->stretches().size(), 3U);
  }
  EXPECT_EQ(all.size(), 29U);
}

}  // namespace
}  // namespace luff::device::borders_test
