#include "device/collector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_effort.h"
#include "device/testing/collector_fixture.h"

namespace luff::device::collector_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the fixture and the double

struct Collectors : CollectorFixture {};

TEST_F(Collectors, SummariesAndPiecesEqualThoseOfTheHost) {
  Begin({});
  std::vector<float> values(300'000);
  std::mt19937 random(1);
  for (float& v : values) v = static_cast<float>(random()) / 1e9F - 2;
  values[7] = 0;
  values[11] = NAN;
  values[13] = INFINITY;
  const Layout large = Dense(DType::kFloat32, {300, 1000}), small = Dense(DType::kFloat32, {3});
  Layout transposed = large;
  transposed.dims = {1000, 300};
  transposed.strides = {1, 1000};
  const DevicePointer at = OnDevice(*driver, values);
  std::shared_ptr<Ticket> ticket;
  const std::vector<Input> inputs = {{at, &large}, {at + 4, &small}, {at, &transposed}};
  const std::vector<Piece> pieces = {{at + 8, 12}, {at, 4}};
  ASSERT_EQ(collector->Read(0, 0, inputs, pieces, &ticket), Refusal::kNone) << Error();
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
  Summary expected;
  Summarize({reinterpret_cast<const std::byte*>(values.data()), large}, &expected);
  for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
    const Summary summary = ticket->summary(i);
    EXPECT_EQ(summary.count, 300'000U);
    EXPECT_NEAR(summary.sum, expected.sum, 1e-6 * expected.abs_sum);
    EXPECT_EQ(summary.min_bits, expected.min_bits);
    EXPECT_EQ(summary.max_bits, expected.max_bits);
    EXPECT_EQ(summary.zero_count, expected.zero_count);
    EXPECT_EQ(summary.nan_count, 1U);
    EXPECT_EQ(summary.inf_count, 1U);
  }
  EXPECT_EQ(ticket->summary(1).count, 3U);
  EXPECT_EQ(std::memcmp(ticket->piece(0).data(), values.data() + 2, 12), 0);
  EXPECT_EQ(std::memcmp(ticket->piece(1).data(), values.data(), 4), 0);
}

TEST_F(Collectors, NothingIsDoneBeforeTheFirstRead) {
  Begin({});
  EXPECT_EQ(driver->counts().calls, 0);
  collector->Close(kLong);
  EXPECT_EQ(driver->counts().calls, 0);
}

TEST_F(Collectors, TablesAreUploadedOnlyWhenTheyChanged) {
  Begin({});
  const Layout layout = Dense(DType::kFloat32, {64});
  const DevicePointer one = OnDevice(*driver, std::vector<float>(64, 1)),
                      two = OnDevice(*driver, std::vector<float>(64, 2));
  for (int step = 0; step < 5; ++step) {
    for (const DevicePointer at : {one, two}) {
      std::shared_ptr<Ticket> ticket;
      const Input input{at, &layout};
      ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kNone);
      ASSERT_EQ(Await(*ticket), Arrival::kHere);
      EXPECT_EQ(ticket->summary(0).sum, at == one ? 64 : 128);
    }
  }
  EXPECT_EQ(driver->counts().uploads, 2);
  EXPECT_EQ(driver->counts().launches, 10);  // one chunk needs no second launch
  EXPECT_EQ(collector->counts().tables_built, 2U);
}

TEST_F(Collectors, EmptyTensorsAndUnknownTypesHaveNoRow) {
  Begin({});
  const Layout empty = Dense(DType::kFloat32, {0, 3});
  std::shared_ptr<Ticket> ticket;
  const Input input{0, &empty};
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kNone);
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
  EXPECT_EQ(ticket->summary(0).count, 0U);
  EXPECT_EQ(driver->counts().launches, 0);
}

TEST_F(Collectors, ValuesAreThoseOfTheStreamsOrder) {
  Faults faults;
  faults.streams = Streams::kThreads;
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {64});
  const DevicePointer at = OnDevice(*driver, std::vector<float>(64, 0));
  const Stream stream = driver->stream(0);
  std::vector<std::shared_ptr<Ticket>> tickets(40);
  for (std::size_t step = 0; step < tickets.size(); ++step) {
    const std::vector<float> now(64, static_cast<float>(step));
    driver->write_later(stream, at, now.data(), 256);
    const Input input{at, &layout};
    const Piece piece{at, 4};
    ASSERT_EQ(
        collector->Read(0, reinterpret_cast<std::uint64_t>(stream), {&input, 1}, {&piece, 1}, &tickets[step]),
        Refusal::kNone);
  }
  for (std::size_t step = 0; step < tickets.size(); ++step) {
    ASSERT_EQ(Await(*tickets[step]), Arrival::kHere);
    EXPECT_EQ(tickets[step]->summary(0).sum, 64.0 * static_cast<double>(step));
    float piece = -1;
    std::memcpy(&piece, tickets[step]->piece(0).data(), 4);
    EXPECT_EQ(piece, static_cast<float>(step));
  }
}

TEST_F(Collectors, AllMemoryIsGivenBack) {
  Begin({});
  const Layout layout = Dense(DType::kFloat32, {200'000});
  const DevicePointer at = OnDevice(*driver, std::vector<float>(200'000, 1));
  std::shared_ptr<Ticket> ticket;
  const Input input{at, &layout};
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kNone);
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
  const CollectorCounts held = collector->counts();
  EXPECT_EQ(held.slots, 1U);
  EXPECT_GT(held.device_bytes, 0U);
  ticket.reset();
  collector->Close(kLong);
  const Counts counts = driver->counts();
  EXPECT_EQ(counts.device_allocations, 0);
  EXPECT_EQ(counts.pinned_allocations, 0);
  EXPECT_EQ(counts.events, 0);
  EXPECT_EQ(counts.pools, 0);
  EXPECT_EQ(counts.modules, 0);
  EXPECT_EQ(counts.streams, 0);
  EXPECT_EQ(collector->counts().device_bytes, 0U);
  EXPECT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kOff);
}

TEST_F(Collectors, NoContextNoDevice) {
  Begin({});
  driver->use_device(-1);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::shared_ptr<Ticket> ticket;
  EXPECT_EQ(collector->Read(1, 0, {}, {&piece, 1}, &ticket), Refusal::kNoDevice);  // there is one device
  EXPECT_EQ(collector->Read(-1, 0, {}, {&piece, 1}, &ticket), Refusal::kNoDevice);
  EXPECT_EQ(collector->Read(1000, 0, {}, {&piece, 1}, &ticket), Refusal::kNoDevice);
  EXPECT_EQ(Error(), "");
  EXPECT_EQ(driver->counts().launches, 0);
}

TEST_F(Collectors, AThreadWithoutContextUsesThePrimaryOne) {
  Begin({});
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 3)), 4};
  std::shared_ptr<Ticket> ticket;
  Refusal refusal = Refusal::kOff;
  std::thread([&] { refusal = collector->Read(0, 0, {}, {&piece, 1}, &ticket); }).join();
  ASSERT_EQ(refusal, Refusal::kNone);
  EXPECT_EQ(Await(*ticket), Arrival::kHere);
}

TEST_F(Collectors, TwoDevices) {
  Faults faults;
  faults.devices = 2;
  faults.streams = Streams::kThreads;
  Begin(faults);
  driver->use_device(1);
  driver->use_device(0);
  const Stream streams[] = {driver->stream(0), driver->stream(1)};
  const Layout layout = Dense(DType::kFloat32, {64});
  std::shared_ptr<Ticket> tickets[2];
  for (int device = 0; device < 2; ++device) {
    const Input input{OnDevice(*driver, std::vector<float>(64, static_cast<float>(device + 1))), &layout};
    ASSERT_EQ(collector->Read(device, reinterpret_cast<std::uint64_t>(streams[device]), {&input, 1}, {},
                              &tickets[device]),
              Refusal::kNone)
        << Error();
  }
  for (int device = 0; device < 2; ++device) {
    ASSERT_EQ(Await(*tickets[device]), Arrival::kHere);
    EXPECT_EQ(tickets[device]->summary(0).sum, 64.0 * (device + 1));
  }
}

TEST_F(Collectors, NothingIsEnqueuedIntoACapture) {
  Faults faults;
  faults.capturing = true;
  Begin(faults);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::shared_ptr<Ticket> ticket;
  EXPECT_EQ(collector->Read(0, 0, {}, {&piece, 1}, &ticket), Refusal::kCaptured);
  EXPECT_EQ(ticket, nullptr);
  EXPECT_EQ(driver->counts().downloads, 0);
}

TEST_F(Collectors, ACaptureElsewhereHoldsTheDefaultStreamOnly) {
  Faults faults;
  faults.capturing_elsewhere = true;
  Begin(faults);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::shared_ptr<Ticket> ticket;
  EXPECT_EQ(collector->Read(0, 0, {}, {&piece, 1}, &ticket), Refusal::kCaptured);
  EXPECT_EQ(Error(), "");
  const auto stream = reinterpret_cast<std::uint64_t>(driver->stream(0));
  EXPECT_EQ(collector->Read(0, stream, {}, {&piece, 1}, &ticket), Refusal::kNone);
}

// Each call that may fail fails once: the path turns off with a name, or, for memory, refuses; and no later
// read crashes, hangs or gives a wrong value.
TEST_F(Collectors, EachCallMayFail) {
  const Layout layout = Dense(DType::kFloat32, {40'000});
  for (const Code failure : {kOutOfMemory, Code{400}}) {
    int failed = 0;
    for (int call = 1; call < 20; ++call) {
      Faults faults;
      faults.failing_call = call;
      faults.failure = failure;
      Begin(faults);
      const DevicePointer at = OnDevice(*driver, std::vector<float>(40'000, 1));
      const Input input{at, &layout};
      const Piece piece{at, 4};
      for (int read = 0; read < 3; ++read) {
        std::shared_ptr<Ticket> ticket;
        const Refusal refusal = collector->Read(0, 0, {&input, 1}, {&piece, 1}, &ticket);
        EXPECT_EQ(ticket != nullptr, refusal == Refusal::kNone);
        failed += refusal != Refusal::kNone ? 1 : 0;
        if (ticket == nullptr) continue;
        ASSERT_EQ(Await(*ticket), Arrival::kHere);
        EXPECT_EQ(ticket->summary(0).sum, 40'000);
      }
      collector->Close(kLong);
      if (failure != kOutOfMemory) continue;
      EXPECT_EQ(driver->counts().pinned_allocations, 0) << call;  // nor is anything taken for good
      EXPECT_EQ(driver->counts().events, 0) << call;
      EXPECT_EQ(driver->counts().pools, 0) << call;
    }
    EXPECT_GT(failed, 10);
  }
}

// The tables of a read that failed are not launched again by a read that has none: what they name may be
// freed.
TEST_F(Collectors, ARefusedReadLeavesNoTables) {
  const Layout layout = Dense(DType::kFloat32, {40'000});
  int refused = 0;
  for (int call = 1; call < 27; ++call) {
    Faults faults;
    faults.failing_call = call;
    Begin(faults);
    const DevicePointer at = OnDevice(*driver, std::vector<float>(40'000, 1));
    const Input input{at, &layout, kWantValue};
    const Piece piece{at, 4};
    std::shared_ptr<Ticket> ticket;
    if (collector->Read(0, 0, {&input, 1}, {}, &ticket) != Refusal::kNone) ++refused;
    ticket.reset();
    std::vector<std::shared_ptr<Ticket>> held(3);
    const int launches = driver->counts().launches;
    for (auto& one :
         held) {  // each uses another slot; when the first is here, that of the refused read is free
      static_cast<void>(collector->Read(0, 0, {}, {&piece, 1}, &one));
      if (one == nullptr) continue;
      ASSERT_EQ(Await(*one), Arrival::kHere);
      EXPECT_EQ(driver->counts().launches, launches) << call;
    }
    held.clear();
    collector->Close(kLong);
  }
  EXPECT_GT(refused, 5);
}

// A capture that begins in another thread between two calls of a read costs that read, and no memory for
// good.
TEST_F(Collectors, AReadThatACaptureCutsOffIsUsedAgain) {
  const Layout layout = Dense(DType::kFloat32, {40'000});
  int cut = 0;
  for (int call = 9 * 2; call < 24 * 2; ++call) {
    Faults faults;
    faults.failing_call = call / 2;
    faults.failing_calls = call % 2 + 1;  // two: nor can the end of what was enqueued be marked
    faults.failure = 906;
    Begin(faults);
    const DevicePointer at = OnDevice(*driver, std::vector<float>(40'000, 1));
    const Input input{at, &layout};
    for (int read = 0; read < 3; ++read) {
      std::shared_ptr<Ticket> ticket;
      const Refusal refusal = collector->Read(0, 0, {&input, 1}, {}, &ticket);
      cut += refusal == Refusal::kCaptured ? 1 : 0;
      if (ticket == nullptr) continue;
      ASSERT_EQ(Await(*ticket), Arrival::kHere) << call;
      EXPECT_EQ(ticket->summary(0).sum, 40'000) << call;
    }
    EXPECT_EQ(Error(), "") << call;
    collector->Close(kLong);
    EXPECT_EQ(driver->counts().device_allocations, 0) << call;
    EXPECT_EQ(driver->counts().events, 0) << call;
    EXPECT_EQ(driver->counts().pools, 0) << call;
  }
  EXPECT_GT(cut, 5);
}

TEST_F(Collectors, AnErrorTurnsThePathOffAndIsNamedOnce) {
  Faults faults;
  faults.failing_call = 8;
  faults.failure = 400;
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {4});
  const Input input{OnDevice(*driver, std::vector<float>(4, 1)), &layout};
  std::shared_ptr<Ticket> ticket;
  for (int i = 0; i < 5; ++i) static_cast<void>(collector->Read(0, 0, {&input, 1}, {}, &ticket));
  EXPECT_NE(Error(), "");
  EXPECT_EQ(Error(), "");
  EXPECT_EQ(collector->counts().errors, 1U);
  const int calls = driver->counts().calls;
  EXPECT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kOff);
  EXPECT_EQ(driver->counts().calls, calls);  // it is not retried
}

TEST_F(Collectors, AStickyErrorOfTheTrainingIsItsOwn) {
  Faults faults;
  faults.streams = Streams::kThreads;
  faults.breaking_launch = 3;
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {4});
  const Input input{OnDevice(*driver, std::vector<float>(4, 1)), &layout};
  const Stream stream = driver->stream(0);
  std::vector<std::shared_ptr<Ticket>> tickets(6);
  std::vector<Arrival> arrivals;
  for (auto& ticket : tickets) {
    static_cast<void>(collector->Read(0, reinterpret_cast<std::uint64_t>(stream), {&input, 1}, {}, &ticket));
    if (ticket != nullptr) arrivals.push_back(Await(*ticket));
  }
  ASSERT_GE(arrivals.size(), 3U);
  EXPECT_EQ(arrivals[1], Arrival::kHere);
  EXPECT_EQ(arrivals[2], Arrival::kLost);
  EXPECT_EQ(Error(), ": CUDA_ERROR_ILLEGAL_ADDRESS (700) sticky");
}

// A reset takes all handles and all memory, pinned memory included, and the next context has the same
// address. What has arrived can still be read; the rest is lost, and no memory that is gone is touched.
TEST_F(Collectors, ADeviceThatIsResetIsNamed) {
  for (const bool numbered : {true, false}) {
    Faults faults;
    if (!numbered) std::strncpy(faults.missing, "cuCtxGetId", sizeof faults.missing - 1);
    Begin(faults);
    const Layout layout = Dense(DType::kFloat32, {300});
    const Input input{OnDevice(*driver, std::vector<float>(300, 2)), &layout};
    const Piece piece{input.data, 8};
    std::shared_ptr<Ticket> before, after;
    ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {&piece, 1}, &before), Refusal::kNone);
    ASSERT_EQ(Await(*before), Arrival::kHere);
    collector->BeginPhase(0, 0, 3);
    static_cast<void>(collector->EndStep(0, 0));
    driver->reset_device(0);
    EXPECT_EQ(before->summary(0).sum, 600);
    float value = 0;
    std::memcpy(&value, before->piece(0).data() + 4, 4);
    EXPECT_EQ(value, 2);
    before.reset();
    if (numbered) collector->BeginPhase(0, 0, 3);
    EXPECT_EQ(collector->Read(0, 0, {&input, 1}, {&piece, 1}, &after), Refusal::kOff);
    EXPECT_EQ(Error(), numbered ? "asking for the state of a stream: CUDA_ERROR_CONTEXT_IS_DESTROYED (709)"
                                : "recording an event: CUDA_ERROR_UNKNOWN (400)");
    EXPECT_EQ(collector->Read(0, 0, {&input, 1}, {}, &after), Refusal::kOff);
    collector->Close(kLong);
    EXPECT_STREQ(driver->misuse(), "");
  }
}

TEST_F(Collectors, AContextThatIsDestroyedIsNamed) {
  Begin({});
  const Layout layout = Dense(DType::kFloat32, {4});
  const Input input{OnDevice(*driver, std::vector<float>(4, 1)), &layout, kWantValue};
  std::shared_ptr<Ticket> before, after;
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &before), Refusal::kNone);
  ASSERT_EQ(AwaitRest(*before), Arrival::kHere);
  driver->destroy_context(0);
  EXPECT_EQ(collector->Read(0, 0, {&input, 1}, {}, &after), Refusal::kOff);
  EXPECT_NE(Error().find("CUDA_ERROR_CONTEXT_IS_DESTROYED (709)"), std::string::npos);
  EXPECT_EQ(before->summary(0).sum, 4);
}

// Managed memory, which the host has as well, and memory that another process has made are addresses as any
// others: nobody is asked whose they are.
TEST_F(Collectors, MemoryThatTheDeviceSharesIsReadWhereItIs) {
  Begin({});
  std::vector<float> shared(50'000, 3);
  driver->adopt(shared.data(), shared.size() * 4);
  const Layout layout = Dense(DType::kFloat32, {50'000});
  const Input input{reinterpret_cast<std::uintptr_t>(shared.data()), &layout, kWantValue};
  const Piece piece{input.data, 4};
  for (const float expected : {3.0F, 5.0F}) {
    std::fill(shared.begin(), shared.end(), expected);
    std::shared_ptr<Ticket> ticket;
    ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {&piece, 1}, &ticket), Refusal::kNone);
    ASSERT_EQ(AwaitRest(*ticket), Arrival::kHere);
    EXPECT_EQ(ticket->summary(0).sum, 50'000.0 * static_cast<double>(expected));
    float value = 0;
    std::memcpy(&value, ticket->piece(0).data(), 4);
    EXPECT_EQ(value, expected);
    std::memcpy(&value, ticket->part(0, 0), 4);
    EXPECT_EQ(value, expected);
  }
}

TEST_F(Collectors, AnEventThatNeverComesHoldsNobody) {
  Faults faults;
  faults.lost_event = 2;  // the first tells when the work begins
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {4});
  const Input input{OnDevice(*driver, std::vector<float>(4, 1)), &layout};
  std::shared_ptr<Ticket> lost, next;
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &lost), Refusal::kNone);
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &next), Refusal::kNone);
  EXPECT_EQ(Await(*next), Arrival::kHere);
  EXPECT_EQ(lost->arrival(), Arrival::kWaits);
  lost.reset();
  next.reset();
  collector->Close(kLong);
  EXPECT_EQ(driver->counts().device_allocations, 1);  // the device may still write to it
}

TEST_F(Collectors, TooMuchOnItsWayIsRefused) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::vector<std::shared_ptr<Ticket>> tickets(1000);
  std::size_t taken = 0;
  for (auto& ticket : tickets)
    taken += collector->Read(0, 0, {}, {&piece, 1}, &ticket) == Refusal::kNone ? 1 : 0;
  EXPECT_EQ(taken, 256U);
  EXPECT_LE(collector->counts().device_bytes + collector->counts().pinned_bytes, 256ULL << 20);
  driver->run(1 << 20);
  for (const auto& ticket : tickets) {
    if (ticket == nullptr) continue;
    EXPECT_EQ(Await(*ticket), Arrival::kHere);
  }
  tickets.clear();
  std::shared_ptr<Ticket> again;
  EXPECT_EQ(collector->Read(0, 0, {}, {&piece, 1}, &again), Refusal::kNone);
  driver->run(1 << 20);
}

TEST_F(Collectors, ADriverThatHangsHoldsTheEndForABoundedTime) {
  Faults faults;
  faults.hanging_queries = true;
  Begin(faults);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::shared_ptr<Ticket> ticket;
  ASSERT_EQ(collector->Read(0, 0, {}, {&piece, 1}, &ticket), Refusal::kNone);
  collector->Close(std::chrono::milliseconds(20));
  EXPECT_EQ(ticket->arrival(), Arrival::kWaits);
  collector = nullptr;
  // The thread goes on when the driver does, and ends.
  driver->release_queries();
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
}

TEST_F(Collectors, OldDriversAndDevicesWithoutPoolsAreNamed) {
  Faults faults;
  faults.no_pools = true;
  Begin(faults);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::shared_ptr<Ticket> ticket;
  EXPECT_EQ(collector->Read(0, 0, {}, {&piece, 1}, &ticket), Refusal::kOff);
  EXPECT_EQ(Error(), "finding the driver: the device has no memory pools");
}

// Many threads, streams and devices with delays: every value is that of its place in its stream.
TEST_F(Collectors, Interleavings) {
  const int seeds = FewerCases() ? 2 : 5;
  for (int seed = 1; seed <= seeds; ++seed) {
    Faults faults;
    faults.streams = Streams::kThreads;
    faults.seed = static_cast<std::uint64_t>(seed);
    faults.longest_delay_us = 60;
    faults.devices = 2;
    Begin(faults);
    driver->use_device(1);
    driver->use_device(0);
    const Layout layout = Dense(DType::kFloat32, {64});
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0}, right{0};
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const int device = t % 2;
        driver->use_device(device);
        const DevicePointer at = OnDevice(*driver, std::vector<float>(64, 0));
        const Stream stream = driver->stream(device);
        std::vector<std::pair<std::shared_ptr<Ticket>, int>> waiting;
        for (int step = 0; step < 30; ++step) {
          const std::vector<float> now(64, static_cast<float>(step * 10 + t));
          driver->write_later(stream, at, now.data(), 256);
          std::shared_ptr<Ticket> ticket;
          const Input input{at, &layout, step % 3 == 0 ? kWantValue : std::uint8_t{0}};
          if (collector->Read(device, reinterpret_cast<std::uint64_t>(stream), {&input, 1}, {}, &ticket) ==
              Refusal::kNone)
            waiting.emplace_back(std::move(ticket), step);
          if (step % 7 == 3 && !waiting.empty()) waiting.erase(waiting.begin());  // abandoned
        }
        for (const auto& [ticket, step] : waiting) {
          const auto value = static_cast<float>(step * 10 + t);
          bool ok = AwaitRest(*ticket) == Arrival::kHere && ticket->summary(0).sum == 64.0 * value;
          if (ok && step % 3 == 0) {
            const std::vector<float> expected(64, value);
            ok = ticket->part(0, 0) != nullptr && std::memcmp(ticket->part(0, 0), expected.data(), 256) == 0;
          }
          (ok ? right : wrong).fetch_add(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_GT(right.load(), 60);
    collector->Close(kLong);
    EXPECT_EQ(driver->counts().device_allocations, 0);
  }
}

}  // namespace
}  // namespace luff::device::collector_test
