#include "device/collector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/test_effort.h"
#include "device/testing/loaded_double.h"

namespace luff::device::collector_test {
namespace {

using testing::BeginDouble;
using testing::Controls;
using testing::Counts;
using testing::Faults;
using testing::OnDevice;
using testing::Streams;

constexpr std::chrono::seconds kLong{20};

Layout Dense(DType dtype, std::vector<std::int64_t> dims) { return *Layout::Contiguous(dtype, dims); }

Arrival Await(const Ticket& ticket) {
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (ticket.arrival() == Arrival::kWaits && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ticket.arrival();
}

Arrival AwaitRest(const Ticket& ticket) {
  if (Await(ticket) != Arrival::kHere) return ticket.arrival();
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (ticket.rest() == Arrival::kWaits && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ticket.rest();
}

std::vector<float> Random(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random() % 8 == 0 ? 0 : static_cast<float>(random()) / 1e9F - 2;
  return values;
}

/// The value of an input, of its parts.
std::vector<std::byte> ValueOf(const Ticket& ticket, std::size_t i, std::uint64_t bytes,
                               std::size_t headroom) {
  std::vector<std::byte> out;
  for (std::size_t part = 0; out.size() < bytes; ++part) {
    const std::byte* at = ticket.part(i, part);
    if (at == nullptr) return {};
    const std::uint64_t size = std::min<std::uint64_t>(kPartBytes, bytes - out.size());
    out.insert(out.end(), at + headroom, at + headroom + size);
  }
  return out;
}

struct Fixture : ::testing::Test {
  const Controls* driver = nullptr;
  std::shared_ptr<Collector> collector;

  void Begin(const Faults& faults, const CollectorOptions& options = {}) {
    driver = &BeginDouble(faults);
    collector = Collector::Make(options);
  }
  /// Ends the collector; nothing is left on the device if its work ended.
  void TearDown() override {
    if (collector == nullptr) return;
    collector->Close(kLong);
    EXPECT_STREQ(driver->misuse(), "");
  }
  std::string Error() const {
    DeviceError error;
    return collector->TakeError(&error) ? error.where + ": " + error.what + (error.sticky ? " sticky" : "")
                                        : "";
  }
};

TEST_F(Fixture, SummariesAndPiecesEqualThoseOfTheHost) {
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

TEST_F(Fixture, NothingIsDoneBeforeTheFirstRead) {
  Begin({});
  EXPECT_EQ(driver->counts().calls, 0);
  collector->Close(kLong);
  EXPECT_EQ(driver->counts().calls, 0);
}

TEST_F(Fixture, TablesAreUploadedOnlyWhenTheyChanged) {
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

TEST_F(Fixture, EmptyTensorsAndUnknownTypesHaveNoRow) {
  Begin({});
  const Layout empty = Dense(DType::kFloat32, {0, 3});
  std::shared_ptr<Ticket> ticket;
  const Input input{0, &empty};
  ASSERT_EQ(collector->Read(0, 0, {&input, 1}, {}, &ticket), Refusal::kNone);
  ASSERT_EQ(Await(*ticket), Arrival::kHere);
  EXPECT_EQ(ticket->summary(0).count, 0U);
  EXPECT_EQ(driver->counts().launches, 0);
}

TEST_F(Fixture, ValuesAreThoseOfTheStreamsOrder) {
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

TEST_F(Fixture, AllMemoryIsGivenBack) {
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

TEST_F(Fixture, NoContextNoDevice) {
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

TEST_F(Fixture, AThreadWithoutContextUsesThePrimaryOne) {
  Begin({});
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 3)), 4};
  std::shared_ptr<Ticket> ticket;
  Refusal refusal = Refusal::kOff;
  std::thread([&] { refusal = collector->Read(0, 0, {}, {&piece, 1}, &ticket); }).join();
  ASSERT_EQ(refusal, Refusal::kNone);
  EXPECT_EQ(Await(*ticket), Arrival::kHere);
}

TEST_F(Fixture, TwoDevices) {
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

TEST_F(Fixture, NothingIsEnqueuedIntoACapture) {
  Faults faults;
  faults.capturing = true;
  Begin(faults);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::shared_ptr<Ticket> ticket;
  EXPECT_EQ(collector->Read(0, 0, {}, {&piece, 1}, &ticket), Refusal::kCaptured);
  EXPECT_EQ(ticket, nullptr);
  EXPECT_EQ(driver->counts().downloads, 0);
}

TEST_F(Fixture, ACaptureElsewhereHoldsTheDefaultStreamOnly) {
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
TEST_F(Fixture, EachCallMayFail) {
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

TEST_F(Fixture, AnErrorTurnsThePathOffAndIsNamedOnce) {
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

TEST_F(Fixture, AStickyErrorOfTheTrainingIsItsOwn) {
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

TEST_F(Fixture, AnEventThatNeverComesHoldsNobody) {
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

TEST_F(Fixture, TooMuchOnItsWayIsRefused) {
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

TEST_F(Fixture, ADriverThatHangsHoldsTheEndForABoundedTime) {
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

TEST_F(Fixture, OldDriversAndDevicesWithoutPoolsAreNamed) {
  Faults faults;
  faults.no_pools = true;
  Begin(faults);
  const Piece piece{OnDevice(*driver, std::vector<float>(1, 1)), 4};
  std::shared_ptr<Ticket> ticket;
  EXPECT_EQ(collector->Read(0, 0, {}, {&piece, 1}, &ticket), Refusal::kOff);
  EXPECT_EQ(Error(), "finding the driver: the device has no memory pools");
}

// ---- What goes through staging memory ----

constexpr std::uint64_t kGiB = 1ULL << 30;

TEST_F(Fixture, ValuesOfAnySizeAndStrideComeInParts) {
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

TEST_F(Fixture, HistogramsAndUnitsEqualThoseOfTheHost) {
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

TEST_F(Fixture, DifferencesAreFromTheLastValueOfTheKey) {
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

TEST_F(Fixture, AKeyTwiceInOneReadOrWithAnotherLayoutIsRefused) {
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

TEST_F(Fixture, WhatFindsNoRoomIsRefusedOneByOne) {
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

TEST_F(Fixture, TheHostHasALimitToo) {
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

TEST_F(Fixture, StagingMemoryIsUsedAgainAndGivenBackWhenIdle) {
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

TEST_F(Fixture, AReadMayWaitForRoom) {
  Faults faults;
  faults.streams = Streams::kManual;
  faults.free_memory = 100ULL << 20;
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

TEST_F(Fixture, NobodyWaitsForValuesThatNobodyWants) {
  Faults faults;
  faults.streams = Streams::kThreads;
  Begin(faults);
  const Layout layout = Dense(DType::kFloat32, {250'000});
  const Input input{OnDevice(*driver, Random(250'000, 4)), &layout, kWantValue | kWantUnits};
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

TEST_F(Fixture, TheDevicesTimeIsCounted) {
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
TEST_F(Fixture, EachCallOfTheLongerWayMayFail) {
  const Layout layout = Dense(DType::kFloat32, {100, 400});
  const std::vector<float> values = Random(40'000, 5);
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
        EXPECT_EQ(ticket->summary(0).count, 40'000U);
        Difference difference;
        if (ticket->difference(0, &difference)) EXPECT_EQ(difference.changed_count, 0U);
        if (ticket->part(0, 0) != nullptr) {
          EXPECT_EQ(std::memcmp(ticket->part(0, 0), values.data(), layout.byte_count()), 0);
          ++whole;
        }
        UnitCounts units;
        if (ticket->units(0, &units)) EXPECT_EQ(units.positive.size(), 400U);
      }
      collector->Close(kLong);
      if (failure != kOutOfMemory) continue;
      EXPECT_EQ(driver->counts().device_allocations, 0) << call;
      EXPECT_EQ(driver->counts().pinned_allocations, 0) << call;
      EXPECT_EQ(driver->counts().events, 0) << call;
      EXPECT_EQ(driver->counts().streams, 0) << call;
    }
    EXPECT_GT(whole, 20);
  }
}

// Many threads, streams and devices with delays: every value is that of its place in its stream.
TEST_F(Fixture, Interleavings) {
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
