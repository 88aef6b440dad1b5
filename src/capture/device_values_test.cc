// Raw values, forms and hashes of batches in the memory of an accelerator.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "capture/device_testing.h"

namespace luff::capture::device_values_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the fixture and its store

struct DeviceValues : DeviceFixture {};

// The same steps of the same tensors from both kinds of memory: the same rows and the same bytes.
TEST_F(DeviceValues, EveryFormEqualsThatOfTheHost) {
  struct Shape {
    std::vector<std::int64_t> dims, strides;
  };
  const std::vector<Shape> shapes = {{{16, 8}, {8, 1}},      {{200, 300}, {300, 1}},
                                     {{300, 200}, {1, 300}}, {{4, 3, 50, 60}, {9000, 3000, 60, 1}},
                                     {{0, 4}, {4, 1}},       {{1'300'000, 2}, {2, 1}}};
  struct Result {
    store::StepBatch batch;
    std::vector<std::vector<std::byte>> values;
  };
  std::vector<std::vector<Result>> results;  // host, device; by step
  for (const bool on_device : {false, true}) {
    Faults faults;
    faults.free_memory = 4ULL << 30;
    disk = std::make_shared<Disk>();
    Begin(faults, kAllForms);
    std::vector<TensorRef> refs;
    std::vector<std::vector<float>> hosts;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Layout strided = *Layout::Strided(DType::kFloat32, shapes[i].dims, shapes[i].strides);
      const TensorId id = session->DefineTensor("w" + std::to_string(i), format::Role::kWeight, "", "");
      hosts.push_back(Values(std::max<std::size_t>(strided.element_count(), 1), i));
      refs.push_back({id, session->DefineLayout(strided), testing::Bytes(hosts.back()), 0, 0});
      if (on_device) refs.back().data = reinterpret_cast<const std::byte*>(OnDevice(*driver, hosts.back()));
    }
    for (std::int64_t step = 0; step < 3; ++step) {
      session->BeginStep(format::Mode::kTrain, step);
      if (on_device) {
        session->CaptureOnDevice(refs, Place(), 1);
      } else {
        session->Capture(refs);
      }
      session->EndStep({format::Mode::kTrain, step, step, step});
      ASSERT_TRUE(session->Flush(kLong));
      for (std::size_t i = 0; i < refs.size(); ++i) {
        for (std::size_t k = 0; k < hosts[i].size(); k += 3) hosts[i][k] += 0.5F;
        if (on_device)
          driver->write(reinterpret_cast<std::uintptr_t>(refs[i].data), hosts[i].data(), hosts[i].size() * 4);
      }
    }
    Close();
    results.emplace_back();
    for (const Disk::Step& step : disk->Steps()) {
      Result& result = results.back().emplace_back();
      result.batch = step.batch;
      for (const format::IndexRow& row : step.batch.index) {
        const auto value = disk->Value(row);
        ASSERT_TRUE(value.ok()) << value.status().ToString();
        result.values.push_back(*value);
      }
    }
    session.reset();
  }
  const auto by_tensor = [](auto* rows) {
    std::stable_sort(rows->begin(), rows->end(),
                     [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  };
  ASSERT_EQ(results[0].size(), results[1].size());
  for (std::size_t step = 0; step < results[0].size(); ++step) {
    store::StepBatch &host = results[0][step].batch, &device = results[1][step].batch;
    by_tensor(&host.summaries);
    by_tensor(&device.summaries);
    ASSERT_EQ(device.summaries.size(), host.summaries.size());
    for (std::size_t i = 0; i < host.summaries.size(); ++i) {
      EXPECT_EQ(device.summaries[i].count, host.summaries[i].count);
      EXPECT_NEAR(device.summaries[i].sum, host.summaries[i].sum, 1e-6 * host.summaries[i].abs_sum);
      EXPECT_EQ(device.summaries[i].min_bits, host.summaries[i].min_bits);
      EXPECT_EQ(device.summaries[i].zero_count, host.summaries[i].zero_count);
    }
    std::map<std::uint32_t, SparseHistogram> histograms[2];
    std::map<std::uint32_t, UnitCounts> units[2];
    std::map<std::pair<std::uint32_t, std::uint16_t>, format::FormRow> forms[2];
    for (std::size_t side = 0; side < 2; ++side) {
      for (const auto& [id, bins] : results[side][step].batch.histograms) histograms[side][id] = bins;
      for (const auto& [id, counts] : results[side][step].batch.units) units[side][id] = counts;
      for (const format::FormRow& row : results[side][step].batch.forms)
        forms[side][{row.tensor, row.form}] = row;
    }
    ASSERT_EQ(histograms[1].size(), histograms[0].size());
    for (const auto& [id, bins] : histograms[0]) {
      ASSERT_EQ(histograms[1][id].size(), bins.size()) << id;
      for (std::size_t b = 0; b < bins.size(); ++b) {
        EXPECT_EQ(histograms[1][id][b].bin, bins[b].bin);
        EXPECT_EQ(histograms[1][id][b].count, bins[b].count);
      }
    }
    ASSERT_EQ(units[1].size(), units[0].size());
    for (const auto& [id, counts] : units[0]) {
      EXPECT_EQ(units[1][id].positive, counts.positive) << id;
      EXPECT_EQ(units[1][id].zero, counts.zero) << id;
    }
    for (const auto& [key, row] : forms[0]) {
      // On a device an empty tensor has no last value.
      const bool difference = key.second == static_cast<std::uint16_t>(format::Form::kDifference);
      if (difference && units[0].at(key.first).positive.empty()) continue;
      ASSERT_EQ(forms[1].count(key), 1U) << key.first << ", form " << key.second << ", step " << step;
      for (std::size_t v = 0; v < std::size(row.values); ++v) {
        const double expected = row.values[v], found = forms[1][key].values[v];
        if (difference) {
          EXPECT_NEAR(found, expected, 1e-6 * std::abs(expected)) << key.first << " " << v;
        } else {
          EXPECT_EQ(std::bit_cast<std::uint64_t>(found), std::bit_cast<std::uint64_t>(expected))
              << key.second;
        }
      }
    }
    const auto bytes_of = [](const Result& result) {
      std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::byte>> out;
      for (std::size_t i = 0; i < result.values.size(); ++i)
        out[{result.batch.index[i].tensor, result.batch.index[i].part}] = result.values[i];
      return out;
    };
    EXPECT_EQ(bytes_of(results[1][step]), bytes_of(results[0][step])) << step;
  }
  EXPECT_EQ(results[1][0].batch.gaps.size(), 1U);  // the empty tensor's difference
}

TEST_F(DeviceValues, RawValuesWithoutRoomAreGapsOfThePool) {
  Faults faults;
  faults.free_memory = 100ULL << 20;  // 2 MiB
  Begin(faults, kAllForms);
  const LayoutId large = session->DefineLayout(MakeLayout(DType::kFloat32, {1'000'000}));
  const TensorRef ref{weight, large,
                      reinterpret_cast<const std::byte*>(OnDevice(*driver, std::vector<float>(1'000'000, 1))),
                      0, 0};
  session->BeginStep(format::Mode::kTrain, 0);
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->EndStep({});
  Close();
  const Found found = Read();
  EXPECT_EQ(found.sums.at(0), 1'000'000);
  EXPECT_EQ(found.gaps.at(GapReason::kPoolFull), 1U);    // raw, hash, extra
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceLate), 1U);  // the units of a vector: 24 MB
  EXPECT_EQ(found.gaps.at(GapReason::kTooMany), 1U);     // the last value
}

TEST_F(DeviceValues, TheSameMemoryTwiceIsOneValue) {
  Begin({}, R"({"defaults": false, "collections": [
    {"name": "weights", "forms": ["raw"], "save": {"save_interval": 1}}]})");
  const LayoutId layout_2000 = session->DefineLayout(MakeLayout(DType::kFloat32, {2000}));
  const TensorId other = session->DefineTensor("tied.weight", format::Role::kWeight, "", "");
  const auto* data = reinterpret_cast<const std::byte*>(OnDevice(*driver, Values(2000, 1)));
  const std::vector<TensorRef> refs = {{weight, layout_2000, data, 0, 0}, {other, layout_2000, data, 0, 0}};
  for (std::int64_t step = 0; step < 2; ++step) {
    session->BeginStep(format::Mode::kTrain, step);
    session->CaptureOnDevice(refs, Place(), 1);
    session->EndStep({format::Mode::kTrain, step, step, step});
  }
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 2U);
  for (const Disk::Step& step : steps) {
    ASSERT_EQ(step.batch.index.size(), 2U);
    EXPECT_EQ(step.batch.index[0].offset, step.batch.index[1].offset);
  }
  EXPECT_EQ(steps[0].batch.index[0].offset, steps[1].batch.index[0].offset);  // unchanged
}

TEST_F(DeviceValues, ScaledValuesAreMultipliedOnTheHost) {
  Begin({}, kAllForms);
  const LayoutId large = session->DefineLayout(MakeLayout(DType::kFloat32, {2000}));
  const TensorId other = session->DefineTensor("small.weight", format::Role::kWeight, "", "");
  const std::vector<float> values = Values(2000, 1);
  const auto* data = reinterpret_cast<const std::byte*>(OnDevice(*driver, values));
  const std::vector<TensorRef> refs = {{weight, large, data, 0, 0}, {other, layout, data, 0, 0}};
  session->BeginStep(format::Mode::kTrain, 0);
  session->CaptureOnDevice(refs, Place(), 0.5);
  session->EndStep({});
  Close();
  const auto steps = disk->Steps();
  const store::StepBatch& batch = steps[0].batch;
  ASSERT_EQ(batch.index.size(), 2U);
  for (const format::IndexRow& row : batch.index) {
    const auto bytes = disk->Value(row);
    ASSERT_TRUE(bytes.ok());
    for (std::size_t i = 0; i < bytes->size() / 4; ++i) {
      float value = 0;
      std::memcpy(&value, bytes->data() + i * 4, 4);
      ASSERT_EQ(value, values[i] * 0.5F);
    }
  }
  double sum = 0;
  for (const auto& [id, units] : batch.units) {
    if (id == weight) sum = std::accumulate(units.sum.begin(), units.sum.end(), 0.0);
  }
  EXPECT_NEAR(sum, 0.5 * std::accumulate(values.begin(), values.end(), 0.0), 1e-3);
  EXPECT_EQ(batch.histograms.size(), 1U);                  // of the small one
  EXPECT_EQ(Read().gaps.at(GapReason::kUnsupported), 3U);  // two differences, a histogram
}

TEST_F(DeviceValues, HashesOfBatchesAreThoseOfTheHost) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  const std::vector<float> values = Values(3000, 9);
  const device::DevicePointer data = OnDevice(*driver, values);
  const auto host = [&](std::size_t from, std::size_t bytes) {
    return session->Hash(testing::Bytes(values) + from, bytes);
  };
  const std::vector<DeviceRange> one = {{data, 12'000}},
                                 three = {{data, 400}, {data + 800, 400}, {data + 1600, 400}};
  session->BeginStep(format::Mode::kTrain, 0);
  const std::uint64_t a = session->HashOnDevice(5, one, Place()),
                      b = session->HashOnDevice(5, three, Place());
  EXPECT_NE(a, 0U);
  EXPECT_NE(a, b);
  session->Event(format::EventKind::kForward, 1, a);
  session->Event(format::EventKind::kBatch, 1, a);
  session->Event(format::EventKind::kBatch, 2, 77);
  session->Event(format::EventKind::kBatch, 3, b);
  session->EndStep({});
  session->BeginStep(format::Mode::kTrain, 1);
  session->Event(format::EventKind::kBatch, 4, a);  // of another step: it tells nothing
  session->EndStep({format::Mode::kTrain, 1, 1, 1});
  driver->run(1 << 20);
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 2U);
  const auto& events = steps[0].batch.events;
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].argument, a);  // no batch
  EXPECT_EQ(events[1].argument, 5 ^ host(0, 12'000));
  EXPECT_EQ(events[2].argument, 77U);
  EXPECT_EQ(events[3].argument, ((5 * 31 + host(0, 400)) * 31 + host(800, 400)) * 31 + host(1600, 400));
  EXPECT_TRUE(steps[1].batch.events.empty());
}

TEST_F(DeviceValues, HashesThatDoNotComeAreNoEvents) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  const std::vector<DeviceRange> range = {{at, 256}};
  session->BeginStep(format::Mode::kTrain, 0);
  session->Event(format::EventKind::kBatch, 1, session->HashOnDevice(5, range, Place()));
  session->EndStep({});
  EXPECT_EQ(session->HashOnDevice(5, {}, Place()), 0U);
  const std::vector<DeviceRange> too_large = {{at, 1 << 20}};
  EXPECT_EQ(session->HashOnDevice(5, too_large, Place()), 0U);
  Close(std::chrono::milliseconds(50));
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_TRUE(steps[0].batch.events.empty());
  EXPECT_EQ(Read().gaps.at(GapReason::kDeviceLate), 1U);
}

TEST_F(DeviceValues, HashesThatAreRefusedAreGaps) {
  Faults faults;
  faults.capturing = true;
  Begin(faults);
  const std::vector<DeviceRange> range = {{at, 256}};
  session->BeginStep(format::Mode::kTrain, 0);
  EXPECT_EQ(session->HashOnDevice(5, range, Place()), 0U);
  EXPECT_EQ(session->HashOnDevice(5, range, Place()), 0U);
  session->EndStep({});
  Close();
  EXPECT_EQ(Read().gaps.at(GapReason::kCapturedGraph), 2U);
}

TEST_F(DeviceValues, AnAbandonedStepKeepsItsEventsWithTheirHashes) {
  Begin({});
  const std::vector<DeviceRange> range = {{at, 256}};
  session->BeginStep(format::Mode::kTrain, 0);
  session->Event(format::EventKind::kBatch, 1, session->HashOnDevice(5, range, Place()));
  session->AbandonStep();
  Step(0);
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps[0].batch.events.size(), 1U);
  const std::vector<float> zeros(64, 0);
  EXPECT_EQ(steps[0].batch.events[0].argument, 5 ^ session->Hash(testing::Bytes(zeros), 256));
}

TEST_F(DeviceValues, TheEndKeepsSummariesOfValuesThatAreStillOnTheirWay) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults, R"({"defaults": false, "collections": [
    {"name": "weights", "forms": ["summary", "raw"], "save": {"save_interval": 1}}]})");
  const LayoutId large = session->DefineLayout(MakeLayout(DType::kFloat32, {5000}));
  at = OnDevice(*driver, std::vector<float>(5000, 2));
  const TensorRef ref{weight, large, reinterpret_cast<const std::byte*>(at), 0, 0};
  session->BeginStep(format::Mode::kTrain, 0);
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->EndStep({});
  driver->run(1 << 20);  // the kernels; the copy to the host begins afterwards, and nobody does it
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (driver->counts().downloads < 2 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Close(std::chrono::milliseconds(300));
  const Found found = Read();
  EXPECT_EQ(found.sums.at(0), 10'000);
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceLate), 1U);
}

TEST_F(DeviceValues, TwoStreamsInOneStep) {
  Faults faults;
  faults.streams = Streams::kThreads;
  Begin(faults, kAllForms);
  const TensorId other = session->DefineTensor("other.weight", format::Role::kWeight, "", "");
  const device::Stream side = driver->stream(0);
  const device::DevicePointer there = OnDevice(*driver, std::vector<float>(64, 0));
  for (std::int64_t step = 0; step < 20; ++step) {
    const std::vector<float> now(64, static_cast<float>(step) + 0.5F);
    driver->write_later(side, there, now.data(), 256);
    Write(static_cast<float>(step));
    session->BeginStep(format::Mode::kTrain, step);
    const TensorRef ref = Ref(), of_side{other, layout, reinterpret_cast<const std::byte*>(there), 0, 0};
    session->CaptureOnDevice({&ref, 1}, Place(), 1);
    session->CaptureOnDevice({&of_side, 1}, {0, reinterpret_cast<std::uint64_t>(side), 0}, 1);
    session->EndStep({format::Mode::kTrain, step, step, step});
  }
  Close();
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), 20U);
  for (const Disk::Step& step : steps) {
    ASSERT_EQ(step.batch.index.size(), 2U);
    for (const format::IndexRow& row : step.batch.index) {
      float first = -1;
      std::memcpy(&first, disk->Value(row)->data(), 4);
      EXPECT_EQ(first, static_cast<float>(step.batch.mark.global_step) + (row.tensor == other ? 0.5F : 0));
    }
  }
}

// What evidence compares: memory as it is in the order of the stream, for the caller and not for the run.
TEST_F(DeviceValues, TheCallerReadsALittle) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  Write(1);
  const std::vector<DeviceRange> ranges = {{at, 8}, {at + 12, 4}};
  const std::uint64_t first = session->ReadOnDevice(ranges, Place());
  Write(2);
  const std::uint64_t second = session->ReadOnDevice(ranges, Place());
  ASSERT_NE(first, 0U);
  ASSERT_NE(second, first);
  std::string bytes = "before";
  EXPECT_EQ(session->TakeRead(first, &bytes), LateRead::kWaits);
  EXPECT_EQ(bytes, "");
  driver->run(1 << 20);
  const auto until = std::chrono::steady_clock::now() + kLong;
  LateRead state = LateRead::kWaits;
  while (state == LateRead::kWaits && std::chrono::steady_clock::now() < until)
    state = session->TakeRead(second, &bytes);
  ASSERT_EQ(state, LateRead::kHere);
  ASSERT_EQ(bytes.size(), 12U);
  float values[3] = {};
  std::memcpy(values, bytes.data(), 12);
  for (const float value : values) EXPECT_EQ(value, 2);
  EXPECT_EQ(session->TakeRead(second, &bytes), LateRead::kLost);  // it was taken
  EXPECT_EQ(session->TakeRead(77, &bytes), LateRead::kLost);
  for (int i = 0; i < 15; ++i) EXPECT_NE(session->ReadOnDevice(ranges, Place()), 0U);
  EXPECT_EQ(session->ReadOnDevice(ranges, Place()), 0U);  // 16 that nobody has taken
  const std::vector<DeviceRange> much = {{at, 65'536}, {at, 1}}, many(257, DeviceRange{at, 1});
  EXPECT_EQ(session->ReadOnDevice(much, Place()), 0U);
  EXPECT_EQ(session->ReadOnDevice(many, Place()), 0U);
  EXPECT_EQ(session->ReadOnDevice({}, Place()), 0U);
  driver->run(1 << 20);
  Close();
  EXPECT_TRUE(Read().gaps.empty());
  EXPECT_EQ(session->ReadOnDevice(ranges, Place()), 0U);
}

TEST_F(DeviceValues, WithoutAcceleratorsNobodyReads) {
  Begin({}, kSummaries, true, false);
  const std::vector<DeviceRange> ranges = {{at, 8}};
  EXPECT_EQ(session->ReadOnDevice(ranges, Place()), 0U);
  session->BeginPhaseOnDevice(format::Phase::kForward, Place());
  session->EndStepOnDevice(Place());
  EXPECT_EQ(driver->counts().launches, 0);
  EXPECT_EQ(driver->counts().events, 0);
}

// A second hook of the process has memory and last values of its own.
TEST_F(DeviceValues, TwoSessionsReadTheSameTensor) {
  Begin({}, kAllForms);
  const auto second_disk = std::make_shared<Disk>();
  auto second = StartSession(second_disk, kAllForms);
  const TensorId id = second->DefineTensor("fc.weight", format::Role::kWeight, "fc", "Linear");
  const LayoutId same = second->DefineLayout(MakeLayout(DType::kFloat32, {64}));
  for (std::int64_t step = 0; step < 4; ++step) {
    Step(step);
    second->BeginStep(format::Mode::kTrain, step);
    const TensorRef ref{id, same, reinterpret_cast<const std::byte*>(at), 0, 0};
    second->CaptureOnDevice({&ref, 1}, Place(), 1);
    second->EndStep({format::Mode::kTrain, step, step, step});
  }
  second->Close(format::EndReason::kCompleted, kLong);
  Step(4);  // the other one's end takes nothing away
  Close();
  EXPECT_EQ(Read().sums.size(), 5U);
  for (const auto& steps : {disk->Steps(), second_disk->Steps()}) {
    for (const Disk::Step& step : steps) {
      const auto difference =
          std::find_if(step.batch.forms.begin(), step.batch.forms.end(), [](const format::FormRow& row) {
            return row.form == static_cast<std::uint16_t>(format::Form::kDifference);
          });
      ASSERT_EQ(difference != step.batch.forms.end(), step.batch.mark.global_step != 0);
      if (difference != step.batch.forms.end()) {
        EXPECT_EQ(difference->values[0], 64);
      }
    }
  }
}

TEST_F(DeviceValues, TheGovernorSeesTheDevicesTime) {
  Faults faults;
  faults.elapsed_ms = 1000;
  Begin(faults);
  for (std::int64_t step = 0; step < 20; ++step) Step(step);
  ASSERT_TRUE(session->Flush(kLong));
  Step(20);
  std::uint64_t device_ns = 0;
  for (const Counter& counter : session->health().counters)
    device_ns = counter.name == "device_ns" ? counter.value : device_ns;
  EXPECT_GE(device_ns, 20'000'000'000U);
  EXPECT_GT(session->health().overhead_ratio, 1);  // the host only enqueues
  Close();
}

}  // namespace
}  // namespace luff::capture::device_values_test
