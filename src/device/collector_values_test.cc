// What a collector reads besides summaries: values, histograms, units, differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device/collector.h"
#include "device/testing/collector_fixture.h"
#include "luff/tensor/summary.h"

namespace luff::device::collector_values_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the fixture and the double

struct Values : CollectorFixture {};

constexpr std::uint64_t kGiB = 1ULL << 30;

TEST_F(Values, ValuesOfAnySizeAndStrideComeInParts) {
  Faults faults;
  faults.free_memory = 4 * kGiB;
  Begin(faults, {.headroom = 64});
  const std::vector<float> values = Random(4'500'001, 1);  // 17 MiB: three parts
  const DevicePointer at = OnDevice(*driver, values);
  const Layout large = Dense(DType::kFloat32, {4'500'000}), small = Dense(DType::kFloat32, {5});
  Layout turned = Dense(DType::kFloat32, {700, 300});
  turned.strides = {1, 700};
  const std::vector<Input> inputs = {{at + 4, &large, kWantValue}, {at, &turned, kWantValue}, {at, &small}};
  std::shared_ptr<Ticket> ticket;
  ASSERT_EQ(collector->Read(0, 0, inputs, {}, &ticket), Refusal::kNone) << Error();
  ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
  const auto first = ValueOf(*ticket, 0, large.byte_count(), 64);
  ASSERT_EQ(first.size(), large.byte_count());
  EXPECT_EQ(std::memcmp(first.data(), values.data() + 1, first.size()), 0);
  std::vector<std::byte> expected(turned.byte_count());
  CopyContiguous({reinterpret_cast<const std::byte*>(values.data()), turned}, expected.data());
  EXPECT_EQ(ValueOf(*ticket, 1, turned.byte_count(), 64), expected);
  EXPECT_EQ(ticket->part(2, 0), nullptr);
  Summary summary;
  Summarize({reinterpret_cast<const std::byte*>(values.data() + 1), large}, &summary);
  EXPECT_NEAR(ticket->summary(0).sum, summary.sum, 1e-6 * summary.abs_sum);
  EXPECT_EQ(ticket->summary(0).zero_count, summary.zero_count);
}

TEST_F(Values, HistogramsAndUnitsEqualThoseOfTheHost) {
  Begin({});
  const std::vector<float> values = Random(60'000, 2);
  const DevicePointer at = OnDevice(*driver, values);
  const Layout matrix = Dense(DType::kFloat32, {200, 300}), image = Dense(DType::kFloat32, {10, 3, 40, 50}),
               tall = Dense(DType::kFloat32, {6000, 2});
  Layout turned = matrix;
  turned.strides = {1, 200};
  std::vector<Input> inputs;
  for (const Layout* layout : {&matrix, &image, &tall, static_cast<const Layout*>(&turned)}) {
    for (const UnitAxis axis : {UnitAxis::kChannel, UnitAxis::kLast, UnitAxis::kAllButFirst})
      inputs.push_back({at, layout, kWantHistogram | kWantUnits, axis});
  }
  std::shared_ptr<Ticket> ticket;
  ASSERT_EQ(collector->Read(0, 0, inputs, {}, &ticket), Refusal::kNone) << Error();
  ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorView view{reinterpret_cast<const std::byte*>(values.data()), *inputs[i].layout};
    std::vector<std::uint64_t> dense(kHistogramBins);
    AddHistogram(view, dense);
    const auto histogram = ticket->histogram(i);
    EXPECT_TRUE(std::equal(dense.begin(), dense.end(), histogram.begin(), histogram.end())) << i;
    UnitCounts expected, found;
    ComputeUnits(view, inputs[i].axis, &expected);
    ASSERT_TRUE(ticket->units(i, &found));
    EXPECT_EQ(found.axis, expected.axis);
    EXPECT_EQ(found.values_per_unit, expected.values_per_unit);
    EXPECT_EQ(found.positive, expected.positive) << i;
    EXPECT_EQ(found.zero, expected.zero) << i;
    ASSERT_EQ(found.sum.size(), expected.sum.size());
    for (std::size_t u = 0; u < found.sum.size(); ++u)
      EXPECT_NEAR(found.sum[u], expected.sum[u], 1e-6 * static_cast<double>(expected.values_per_unit) * 3);
  }
}

TEST_F(Values, DifferencesAreFromTheLastValueOfTheKey) {
  Begin({});
  const Layout layout = Dense(DType::kFloat32, {200, 301});
  std::vector<float> before = Random(60'200, 3);
  const DevicePointer at = OnDevice(*driver, before);
  std::vector<std::byte> previous(layout.byte_count());
  for (int step = 0; step < 4; ++step) {
    const std::vector<Input> inputs = {{at, &layout, kWantDifference, UnitAxis::kChannel, 7},
                                       {at, &layout, kWantDifference, UnitAxis::kChannel, 8}};
    std::shared_ptr<Ticket> ticket;
    ASSERT_EQ(collector->Read(0, 0, inputs, {}, &ticket), Refusal::kNone) << Error();
    ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
    Difference expected, found;
    const TensorView view{reinterpret_cast<const std::byte*>(before.data()), layout};
    ComputeDifference(view, previous.data(), true, &expected);
    ASSERT_EQ(ticket->difference(0, &found), step != 0);
    EXPECT_EQ(ticket->refused(0), 0);
    if (step != 0) {
      EXPECT_NEAR(found.l1, expected.l1, 1e-6 * expected.l1);
      EXPECT_NEAR(found.sum_sq, expected.sum_sq, 1e-6 * expected.sum_sq);
      EXPECT_EQ(found.max, expected.max);
      EXPECT_EQ(found.changed_count, expected.changed_count);
      EXPECT_NEAR(found.previous_l1, expected.previous_l1, 1e-6 * expected.previous_l1);
      Difference of_other;
      ASSERT_TRUE(ticket->difference(1, &of_other));
      EXPECT_EQ(of_other.l1, found.l1);
    }
    for (std::size_t i = static_cast<std::size_t>(step); i < before.size(); i += 3) before[i] += 0.25F;
    driver->write(at, before.data(), layout.byte_count());
  }
  collector->Close(kLong);
  EXPECT_EQ(driver->counts().device_allocations, 0);
}

// The last value lies in the order of the stream, which is the same whether the value is copied too or not.
TEST_F(Values, DifferencesOfTurnedTensorsAreTheSameWithAndWithoutTheirValue) {
  Begin({});
  Layout turned = Dense(DType::kFloat32, {300, 200});
  turned.strides = {1, 300};
  const DevicePointer at = OnDevice(*driver, Random(60'000, 6));
  for (int step = 0; step < 4; ++step) {
    const Input input{at, &turned,
                      static_cast<std::uint8_t>(kWantDifference | (step % 2 == 0 ? 0 : kWantValue)),
                      UnitAxis::kChannel, 7};
    std::shared_ptr<Ticket> ticket;
    ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kNone) << Error();
    ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
    Difference found;
    ASSERT_EQ(ticket->difference(0, &found), step != 0);
    EXPECT_EQ(found.changed_count, 0U) << step;
    EXPECT_EQ(found.l1, 0) << step;
  }
}

// A read that fails halfway does not hide that earlier work of another stream still uses the last value.
TEST_F(Values, ALastValueThatIsUsedIsRefusedToOtherStreamsAfterARefusedRead) {
  const Layout layout = Dense(DType::kFloat32, {200, 301});
  int refused = 0;
  for (int call = 1; call < 40; ++call) {
    Faults faults;
    faults.streams = Streams::kManual;
    faults.failing_call = call;
    Begin(faults);
    const Input input{OnDevice(*driver, Random(60'200, 3)), &layout, kWantDifference, UnitAxis::kChannel, 7};
    const auto one = reinterpret_cast<std::uint64_t>(driver->stream(0)),
               other = reinterpret_cast<std::uint64_t>(driver->stream(0));
    std::shared_ptr<Ticket> first, second, third;
    const bool begun = collector->Read(0, one, {&input, 1}, {}, &first) == Refusal::kNone;
    const bool fails = begun && collector->Read(0, one, {&input, 1}, {}, &second) != Refusal::kNone;
    if (fails && collector->Read(0, other, {&input, 1}, {}, &third) == Refusal::kNone) {
      ++refused;
      EXPECT_EQ(third->refused(0), kWantDifference) << call;
    }
    driver->run(1 << 20);
    if (begun) {
      EXPECT_EQ(Await(*first), Arrival::kHere);
    }
    if (third != nullptr) {
      EXPECT_EQ(Await(*third), Arrival::kHere);
    }
    collector->Close(kLong);
  }
  EXPECT_GT(refused, 3);
}

TEST_F(Values, AKeyTwiceInOneReadOrWithAnotherLayoutIsRefused) {
  Begin({});
  const Layout one = Dense(DType::kFloat32, {100}), other = Dense(DType::kFloat32, {50, 2});
  const DevicePointer at = OnDevice(*driver, Random(100, 3));
  const std::vector<Input> twice = {{at, &one, kWantDifference, UnitAxis::kChannel, 7},
                                    {at, &one, kWantDifference, UnitAxis::kChannel, 7}};
  std::shared_ptr<Ticket> ticket;
  ASSERT_EQ(collector->Read(0, 0, twice, {}, &ticket), Refusal::kNone);
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
  EXPECT_EQ(ticket->refused(0), 0);
  EXPECT_EQ(ticket->refused(1), kWantDifference);
  const Input changed{at, &other, kWantDifference, UnitAxis::kChannel, 7};
  ASSERT_EQ(collector->Read(0, 0, {&changed, 1}, {}, &ticket), Refusal::kNone);
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
  EXPECT_EQ(ticket->refused(0), kWantDifference);
}

TEST_F(Values, WhatFindsNoRoomIsRefusedOneByOne) {
  Faults faults;
  faults.free_memory = 100ULL << 20;  // 2 MiB of it
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {250'000});  // a million bytes
  const DevicePointer at = OnDevice(*driver, Random(250'000, 4));
  const std::vector<Input> inputs(4, {at, &layout, kWantValue | kWantHistogram});
  std::shared_ptr<Ticket> ticket;
  ASSERT_EQ(collector->Read(0, 0, inputs, {}, &ticket), Refusal::kNone) << Error();
  ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
  EXPECT_LE(collector->counts().staging_bytes, faults.free_memory / 50);
  int values = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(ticket->summary(i).count, 250'000U);
    EXPECT_FALSE(ticket->histogram(i).empty());
    const bool here = ticket->part(i, 0) != nullptr;
    EXPECT_EQ(ticket->refused(i), here ? 0 : kWantValue);
    values += here ? 1 : 0;
  }
  EXPECT_EQ(values, 1);
  ticket.reset();
  EXPECT_EQ(collector->counts().host_bytes, 0U);
}

TEST_F(Values, TheHostHasALimitToo) {
  Begin({}, {.host_bytes = 3 << 20});
  const Layout layout = Dense(DType::kFloat32, {250'000});
  const Input input{OnDevice(*driver, Random(250'000, 4)), &layout, kWantValue};
  std::vector<std::shared_ptr<Ticket>> tickets(5);
  int values = 0;
  for (auto& ticket : tickets) {
    ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kNone);
    ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
    values += ticket->part(0, 0) != nullptr ? 1 : 0;
  }
  EXPECT_EQ(values, 3);
  EXPECT_LE(collector->counts().host_bytes, 3U << 20);
  tickets.clear();
  EXPECT_EQ(collector->counts().host_bytes, 0U);
}

TEST_F(Values, StagingMemoryIsUsedAgainAndGivenBackWhenIdle) {
  Begin({}, {.idle = std::chrono::milliseconds(30)});
  const Layout layout = Dense(DType::kFloat32, {250'000});
  const Input input{OnDevice(*driver, Random(250'000, 4)), &layout, kWantValue};
  for (int step = 0; step < 20; ++step) {
    std::shared_ptr<Ticket> ticket;
    ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kNone);
    ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
    ASSERT_NE(ticket->part(0, 0), nullptr);
  }
  EXPECT_LE(collector->counts().staging_bytes, 2U << 20);
  const auto until = std::chrono::steady_clock::now() + kLong;
  while ((collector->counts().staging_bytes != 0 || driver->counts().trims == 0) &&
         std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(collector->counts().staging_bytes, 0U);
  EXPECT_GT(driver->counts().trims, 0);
  std::shared_ptr<Ticket> again;
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &again), Refusal::kNone);
  EXPECT_EQ(AwaitRest(*again), Arrival::kHere);
}

TEST_F(Values, AReadMayWaitForRoom) {
  Faults faults;
  faults.streams = Streams::kManual;
  faults.free_memory = 90ULL << 20;  // not enough for two
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {250'000});
  const Input input{OnDevice(*driver, Random(250'000, 4)), &layout, kWantValue};
  std::shared_ptr<Ticket> first, second, third;
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &first), Refusal::kNone);
  std::chrono::nanoseconds patience{20'000'000};
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &second, &patience), Refusal::kNone);
  EXPECT_LE(patience.count(), 0);  // nothing made room
  EXPECT_EQ(collector->counts().waits, 1U);
  std::atomic<bool> done{false};
  std::thread device([&] {
    while (!done.load()) {
      driver->run(1 << 20);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  patience = kLong;
  EXPECT_EQ(collector->Read(0, 0, {&input, 1}, {}, &third, &patience), Refusal::kNone);
  EXPECT_EQ(AwaitRest(*third), Arrival::kHere);
  EXPECT_EQ(AwaitRest(*second), Arrival::kHere);
  done.store(true);
  device.join();
  EXPECT_NE(third->part(0, 0), nullptr);
  EXPECT_EQ(second->part(0, 0), nullptr);
  EXPECT_EQ(second->refused(0), kWantValue);
}

// What lasts until the end never makes room: nobody waits for that part of the budget.
TEST_F(Values, IdleStagingMemoryIsGivenBackBesideWorkThatNeverEnds) {
  Faults faults;
  faults.lost_event = 5;  // begin and end of the first read, its copy, begin and end of the second read
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {250'000});
  const DevicePointer at = OnDevice(*driver, Random(250'000, 4));
  const Input value{at, &layout, kWantValue}, summary{at, &layout};
  std::shared_ptr<Ticket> first, lost;
  ASSERT_EQ(collector->Read(0, 0, {&value, 1}, {}, &first), Refusal::kNone);
  ASSERT_EQ(AwaitRest(*first), Arrival::kHere);
  ASSERT_EQ(collector->Read(0, 0, {&summary, 1}, {}, &lost), Refusal::kNone);
  first.reset();
  lost.reset();
  collector->Close(kLong);
  EXPECT_EQ(collector->counts().staging_bytes, 0U);
  EXPECT_EQ(driver->counts().device_allocations, 1);  // of the second read
}

TEST_F(Values, NobodyWaitsForRoomThatNeverComes) {
  Faults faults;
  faults.free_memory = 100ULL << 20;  // 2 MiB of it
  Begin(faults);
  const Layout large = Dense(DType::kFloat32, {300'000}), small = Dense(DType::kFloat32, {110'000});
  const DevicePointer at = OnDevice(*driver, std::vector<float>(300'000, 1));
  const Input value{at, &large, kWantValue};
  const Input difference{at, &small, kWantDifference, UnitAxis::kChannel, 7};
  for (int step = 0; step < 3; ++step) {
    std::shared_ptr<Ticket> ticket;
    std::chrono::nanoseconds patience{20'000'000};
    ASSERT_EQ(collector->Read(0, 0, {&value, 1}, {}, &ticket, &patience), Refusal::kNone);
    ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
    EXPECT_NE(ticket->part(0, 0), nullptr) << step;
    ASSERT_EQ(collector->Read(0, 0, {&difference, 1}, {}, &ticket), Refusal::kNone);
    ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
    EXPECT_EQ(ticket->refused(0), 0);
  }
  EXPECT_EQ(collector->counts().waits, 0U);
}

TEST_F(Values, NobodyWaitsForValuesThatNobodyWants) {
  Faults faults;
  faults.streams = Streams::kThreads;
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {200, 100});
  const Input input{OnDevice(*driver, Random(20'000, 4)), &layout, kWantValue | kWantUnits};
  const auto stream = reinterpret_cast<std::uint64_t>(driver->stream(0));
  for (int step = 0; step < 30; ++step) {
    std::shared_ptr<Ticket> ticket;  // dropped at once
    ASSERT_EQ(collector->Read(0, stream, {&input, 1}, {}, &ticket), Refusal::kNone);
  }
  std::shared_ptr<Ticket> last;
  std::chrono::nanoseconds patience = kLong;
  ASSERT_EQ(collector->Read(0, stream, {&input, 1}, {}, &last, &patience), Refusal::kNone);
  ASSERT_EQ(AwaitRest(*last), Arrival::kHere);
  EXPECT_NE(last->part(0, 0), nullptr);
  last.reset();
  collector->Close(kLong);
  EXPECT_EQ(driver->counts().device_allocations, 0);
  EXPECT_EQ(driver->counts().pinned_allocations, 0);
}

TEST_F(Values, TheDevicesTimeIsCounted) {
  Faults faults;
  faults.streams = Streams::kThreads;
  Begin(faults);
  EXPECT_EQ(collector->device_ns(), 0U);
  const Layout layout = Dense(DType::kFloat32, {64});
  const Input input{OnDevice(*driver, std::vector<float>(64, 1)), &layout};
  const auto stream = reinterpret_cast<std::uint64_t>(driver->stream(0));
  std::shared_ptr<Ticket> ticket;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(collector->Read(0, stream, {&input, 1}, {}, &ticket), Refusal::kNone);
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
  const std::chrono::nanoseconds most = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(collector->device_ns(), 0U);
  EXPECT_LE(collector->device_ns(), static_cast<std::uint64_t>(most.count()) + 1000);
}

// As EachCallMayFail, for the calls of the longer way: what comes is right.
TEST_F(Values, EachCallOfTheLongerWayMayFail) {
  const Layout layout = Dense(DType::kFloat32, {100, 40});
  const std::vector<float> values = Random(4'000, 5);
  for (const Code failure : {kOutOfMemory, Code{400}}) {
    int whole = 0;
    for (int call = 1; call < 40; ++call) {
      Faults faults;
      faults.failing_call = call;
      faults.failure = failure;
      Begin(faults);
      const DevicePointer at = OnDevice(*driver, values);
      const Input input{at, &layout, kWantValue | kWantHistogram | kWantUnits | kWantDifference,
                        UnitAxis::kLast, 1};
      for (int read = 0; read < 3; ++read) {
        std::shared_ptr<Ticket> ticket;
        if (collector->Read(0, 0, {&input, 1}, {}, &ticket) != Refusal::kNone) continue;
        if (AwaitRest(*ticket) != Arrival::kHere) continue;
        EXPECT_EQ(ticket->summary(0).count, 4'000U);
        Difference difference;
        if (ticket->difference(0, &difference)) {
          EXPECT_EQ(difference.changed_count, 0U);
        }
        if (ticket->part(0, 0) != nullptr) {
          EXPECT_EQ(std::memcmp(ticket->part(0, 0), values.data(), layout.byte_count()), 0);
          ++whole;
        }
        UnitCounts units;
        if (ticket->units(0, &units)) {
          EXPECT_EQ(units.positive.size(), 40U);
        }
      }
      collector->Close(kLong);
      if (collector->counts().errors != 0) continue;  // the path is off, and what it held stays
      EXPECT_EQ(driver->counts().device_allocations, 0) << call;
      EXPECT_EQ(driver->counts().pinned_allocations, 0) << call;
      EXPECT_EQ(driver->counts().events, 0) << call;
      EXPECT_EQ(driver->counts().streams, 0) << call;
    }
    EXPECT_GT(whole, 5);
  }
}

}  // namespace
}  // namespace luff::device::collector_values_test
