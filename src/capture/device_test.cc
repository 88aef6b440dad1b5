#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/test_effort.h"
#include "capture/testing.h"
#include "device/testing/loaded_double.h"

// The whole path of values in the memory of an accelerator, on the double of its driver.
namespace luff::capture::device_test {
namespace {

using device::testing::BeginDouble;
using device::testing::Controls;
using device::testing::Faults;
using device::testing::OnDevice;
using device::testing::Streams;
using format::GapReason;
using testing::Disk;
using testing::MakeLayout;
using testing::StartSession;

constexpr std::chrono::seconds kLong{20};
constexpr const char* kSummaries = R"({"defaults": false, "collections": [
  {"name": "weights", "forms": ["summary"], "save": {"save_interval": 1}},
  {"name": "losses", "forms": ["summary", "raw"], "save": {"save_interval": 1}}]})";

struct Fixture : ::testing::Test {
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

TEST_F(Fixture, ValuesArriveAtTheirOwnStep) {
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

TEST_F(Fixture, LossesAreNumbersAndTensors) {
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

TEST_F(Fixture, ScalarsOfEachTypeAreConverted) {
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

TEST_F(Fixture, GradientsAreDividedByAScaleOnTheDevice) {
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

TEST_F(Fixture, AScaleOfZeroIsAGap) {
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

TEST_F(Fixture, NothingIsReadUnlessItIsAskedFor) {
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

TEST_F(Fixture, NonFiniteValuesAreCounted) {
  Begin({});
  Write(NAN);
  session->BeginStep(format::Mode::kTrain, 0);
  const TensorRef ref = Ref();
  session->CaptureOnDevice({&ref, 1}, Place(), 1);
  session->EndStep({});
  ASSERT_TRUE(session->Flush(kLong));
  EXPECT_EQ(session->nonfinite_summaries(), 1U);
}

constexpr const char* kAllForms = R"({"defaults": false, "collections": [
  {"name": "weights", "forms": ["summary", "histogram", "raw", "hash", "units", "difference", "extra", "shape"],
   "save": {"save_interval": 1}},
  {"name": "losses", "forms": ["summary", "raw"], "save": {"save_interval": 1}}]})";

std::vector<float> Values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random() % 8 == 0 ? 0 : static_cast<float>(random() % 100'000) / 1e4F - 4;
  return values;
}

// The same steps of the same tensors from both kinds of memory: the same rows and the same bytes.
TEST_F(Fixture, EveryFormEqualsThatOfTheHost) {
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

TEST_F(Fixture, RawValuesWithoutRoomAreGapsOfThePool) {
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

TEST_F(Fixture, TheSameMemoryTwiceIsOneValue) {
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

TEST_F(Fixture, ScaledValuesAreMultipliedOnTheHost) {
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

TEST_F(Fixture, HashesOfBatchesAreThoseOfTheHost) {
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

TEST_F(Fixture, HashesThatDoNotComeAreNoEvents) {
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
}

TEST_F(Fixture, AnAbandonedStepKeepsItsEventsWithTheirHashes) {
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

TEST_F(Fixture, TheEndKeepsSummariesOfValuesThatAreStillOnTheirWay) {
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
  Close(std::chrono::milliseconds(300));
  const Found found = Read();
  EXPECT_EQ(found.sums.at(0), 10'000);
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceLate), 1U);
}

TEST_F(Fixture, TwoStreamsInOneStep) {
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

// A second hook of the process has memory and last values of its own.
TEST_F(Fixture, TwoSessionsReadTheSameTensor) {
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
      if (difference != step.batch.forms.end()) EXPECT_EQ(difference->values[0], 64);
    }
  }
}

TEST_F(Fixture, TheGovernorSeesTheDevicesTime) {
  Faults faults;
  faults.streams = Streams::kThreads;
  faults.longest_delay_us = 2000;
  Begin(faults);
  for (std::int64_t step = 0; step < 20; ++step) {
    Step(step);
    driver->drain();
  }
  ASSERT_TRUE(session->Flush(kLong));
  Step(20);
  std::uint64_t device_ns = 0;
  for (const Counter& counter : session->health().counters)
    device_ns = counter.name == "device_ns" ? counter.value : device_ns;
  EXPECT_GT(device_ns, 1'000'000U);
  EXPECT_GT(session->health().overhead_ratio, 0.1);  // the host only enqueues
  Close();
}

TEST_F(Fixture, ResultsThatDoNotComeAreAGapAfter64Steps) {
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

TEST_F(Fixture, AStepWaitsUntilItsValuesAreThere) {
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

TEST_F(Fixture, TheEndWaitsForABoundedTime) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults);
  for (std::int64_t step = 0; step < 5; ++step) Step(step);
  Close(std::chrono::milliseconds(100));
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 5U);
  EXPECT_TRUE(found.sums.empty());
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceLate), 5U);
  MutexLock lock(disk->mutex);
  EXPECT_EQ(disk->closed, 1);
  EXPECT_EQ(disk->reason, format::EndReason::kCompleted);
}

TEST_F(Fixture, TheSameWithoutAWriterThread) {
  Faults faults;
  faults.streams = Streams::kManual;
  Begin(faults, kSummaries, false);
  Step(0);
  driver->run(1 << 20);
  for (std::int64_t step = 1; step < 4; ++step) Step(step);
  Close(std::chrono::milliseconds(100));
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 4U);
  EXPECT_EQ(found.gaps.at(GapReason::kDeviceLate), 3U);
}

TEST_F(Fixture, AStickyErrorIsToldAtItsStep) {
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

TEST_F(Fixture, AnErrorOfOursCostsTheValuesAndNothingElse) {
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

TEST_F(Fixture, NoMemoryIsAGapAndLaterStepsAreRead) {
  Faults faults;
  faults.failing_call = 6;
  faults.failure = device::kOutOfMemory;
  Begin(faults);
  for (std::int64_t step = 0; step < 100; ++step) Step(step);
  Close();
  const Found found = Read();
  EXPECT_EQ(found.steps.size(), 100U);
  EXPECT_GT(found.sums.size(), 20U);
  for (const auto& [step, sum] : found.sums) EXPECT_EQ(sum, 64.0 * static_cast<double>(step));
}

TEST_F(Fixture, CapturedGraphsAreLeftAlone) {
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

TEST_F(Fixture, AnAbandonedStepLeavesNothing) {
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

TEST_F(Fixture, NothingIsReadWhenNothingIsDue) {
  Begin(
      {},
      R"({"defaults": false, "collections": [{"name": "weights", "forms": ["summary"], "save": {"save_interval": 10}}]})");
  for (std::int64_t step = 1; step < 10; ++step) Step(step);
  EXPECT_EQ(driver->counts().launches, 0);
  Close();
}

TEST_F(Fixture, TensorsOfBothKindsInOneStep) {
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

// Streams with delays and faults from a seed: a step has the right value or a gap, no step is lost, and
// nothing waits without a bound.
TEST_F(Fixture, Interleavings) {
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
    Close(std::chrono::milliseconds(2000));
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
