// Every captured value reads back as its source, for any mix of forms, types, strides, aliases and
// repetitions, and from several threads at once.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "capture/testing.h"

namespace luff::capture::capture_property_test {
namespace {

using format::Mode;
using format::Role;
using testing::Disk;

constexpr char kEverything[] =
    R"({"defaults":false,"max_overhead":0,"collections":[
      {"name":"full","include":["^full"],"forms":["raw","summary","histogram","hash","units","difference","extra","shape"],"save":{"save_interval":1}},
      {"name":"raw","include":["^raw"],"forms":["raw"],"save":{"save_interval":1}},
      {"name":"both","include":["^both"],"forms":["raw","summary"],"save":{"save_interval":2},"keep":{"last":5}}]})";

struct Source {
  TensorId id = 0;
  Layout layout;
  LayoutId layout_id = 0;
  std::vector<std::byte> memory;
  std::uint64_t key = 0;
};

std::vector<std::byte> Contiguous(const Source& s) {
  std::vector<std::byte> out(s.layout.byte_count());
  CopyContiguous({s.memory.data(), s.layout}, out.data());
  return out;
}

RC_GTEST_PROP(CaptureProperty, EveryValueReadsBackAsItsSource, ()) {
  auto disk = std::make_shared<Disk>();
  std::unique_ptr<Session> session = testing::StartSession(disk, kEverything, *rc::gen::arbitrary<bool>());
  RC_ASSERT(session != nullptr);
  const DType types[] = {DType::kFloat32, DType::kFloat64,   DType::kBFloat16,
                         DType::kFloat16, DType::kInt64,     DType::kUInt8,
                         DType::kBool,    DType::kComplex64, DType::kFloat8E4M3FN};
  const char* groups[] = {"full", "raw", "both"};
  std::vector<Source> sources(*rc::gen::inRange<std::size_t>(1, 8));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Source& s = sources[i];
    const auto rows = *rc::gen::inRange<std::int64_t>(0, 40);
    const auto columns = *rc::gen::inRange<std::int64_t>(1, 60);
    const DType type = types[*rc::gen::inRange<std::size_t>(0, std::size(types))];
    const bool transposed = *rc::gen::arbitrary<bool>();
    s.layout = *Layout::Strided(type, std::vector<std::int64_t>{rows, columns},
                                transposed ? std::vector<std::int64_t>{1, std::max<std::int64_t>(rows, 1)}
                                           : std::vector<std::int64_t>{columns, 1});
    s.layout_id = session->DefineLayout(s.layout);
    s.memory.resize(s.layout.byte_count() + 8);
    s.id = session->DefineTensor(std::string(groups[*rc::gen::inRange(0, 3)]) + std::to_string(i),
                                 Role::kCustom, "", "");
    s.key = *rc::gen::arbitrary<bool>() ? i + 1 : 0;
  }
  std::vector<std::map<TensorId, std::vector<std::byte>>> expected;
  const int steps = *rc::gen::inRange(1, 6);
  for (int step = 0; step < steps; ++step) {
    session->BeginStep(Mode::kTrain, step);
    auto& values = expected.emplace_back();
    for (Source& s : sources) {
      const int change = *rc::gen::inRange(0, 4);
      if (change == 0) std::fill(s.memory.begin(), s.memory.end(), std::byte{0});
      if (change == 1) {  // mostly zeros
        std::fill(s.memory.begin(), s.memory.end(), std::byte{0});
        for (std::size_t k = 0; k < s.memory.size(); k += 16) s.memory[k] = std::byte{1};
      }
      if (change == 2) {
        const bool is_bool = s.layout.dtype == DType::kBool;
        std::uint32_t state = *rc::gen::arbitrary<std::uint32_t>();
        for (std::byte& b : s.memory) {
          state = state * 1664525U + 1013904223U;
          b = static_cast<std::byte>(is_bool ? state >> 31U : state >> 24U);
        }
      }
      if (change == 3 && !s.memory.empty()) s.memory[0] = std::byte{1};
      if (session->DueForms(s.id) == 0) continue;
      const TensorRef ref{s.id, s.layout_id, s.memory.data(), s.key, 0};
      session->Capture({&ref, 1});
      values[s.id] = Contiguous(s);
      // A second name for the same memory.
      if (s.key != 0 && *rc::gen::arbitrary<bool>()) {
        const TensorId alias =
            session->DefineTensor("raw_alias" + std::to_string(s.id), Role::kCustom, "", "");
        const TensorRef second{alias, s.layout_id, s.memory.data(), s.key, 0};
        session->Capture({&second, 1});
        values[alias] = values[s.id];
      }
    }
    session->EndStep({Mode::kTrain, step, step, step});
  }
  RC_ASSERT(session->Flush(std::chrono::seconds(20)));
  session->Close(format::EndReason::kCompleted, std::chrono::seconds(20));
  const auto written = disk->Steps();
  RC_ASSERT(written.size() == expected.size());
  for (std::size_t step = 0; step < expected.size(); ++step) {
    std::map<TensorId, std::vector<std::byte>> found;
    for (const format::IndexRow& row : written[step].batch.index) {
      Result<std::vector<std::byte>> value = disk->Value(row);
      RC_ASSERT(value.ok());
      RC_ASSERT(found.emplace(row.tensor, *value).second);
    }
    RC_ASSERT(found == expected[step]);
    RC_ASSERT(written[step].batch.gaps.empty());
  }
}

TEST(CaptureStress, ManyThreadsLoseNothing) {
  auto disk = std::make_shared<Disk>();
  std::unique_ptr<Session> session = testing::StartSession(disk, kEverything);
  ASSERT_NE(session, nullptr);
  constexpr int kThreads = 4, kSteps = 20, kTensors = 6;
  const LayoutId layout = session->DefineLayout(testing::MakeLayout(DType::kFloat32, {300, 100}));
  for (int step = 0; step < kSteps; ++step) {
    session->BeginStep(Mode::kTrain, step);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<float> values(30'000);
        for (int k = 0; k < kTensors; ++k) {
          const TensorId id =
              session->DefineTensor("raw" + std::to_string(t * 100 + k), Role::kCustom, "", "");
          std::fill(values.begin(), values.end(), static_cast<float>(step * 1000 + t * 100 + k));
          values[7] = -1;
          const TensorRef ref{id, layout, testing::Bytes(values), 0, 0};
          session->Capture({&ref, 1});
          session->Scalar(id, static_cast<double>(k));
          session->Event(format::EventKind::kForward, 0, static_cast<std::uint64_t>(t));
        }
      });
    }
    for (std::thread& t : threads) t.join();
    session->EndStep({Mode::kTrain, step, step, step});
    static_cast<void>(session->health());
  }
  ASSERT_TRUE(session->Flush(std::chrono::seconds(60)));
  const auto steps = disk->Steps();
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps));
  std::map<TensorId, std::string> names;
  for (const auto& step : steps) {
    for (const auto& def : step.batch.tensors) names[def.id] = def.name;
    ASSERT_EQ(step.batch.index.size(), static_cast<std::size_t>(kThreads * kTensors));
    EXPECT_EQ(step.batch.scalars.size(), static_cast<std::size_t>(kThreads * kTensors));
    for (const format::IndexRow& row : step.batch.index) {
      Result<std::vector<std::byte>> value = disk->Value(row);
      ASSERT_TRUE(value.ok());
      float first = 0;
      std::memcpy(&first, value->data(), sizeof first);
      EXPECT_EQ(first, static_cast<float>(step.batch.mark.global_step * 1000 +
                                          std::stoi(names[row.tensor].substr(3))));
    }
  }
}

}  // namespace
}  // namespace luff::capture::capture_property_test
