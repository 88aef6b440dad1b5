// Rules on traces of devices: each on what it names, and silent on what looks like it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/format.h"
#include "rules/testing/recorder.h"
#include "store/test_run.h"

namespace luff::rules::trace_test {
namespace {

using testing::FakeTrial;

constexpr const char* kAll =
    "HostSync,LaunchBound,PageableCopy,CopyNotOverlapped,Tf32Off,CommunicationBound,AllocatorThrash";

/// Three steps of 10 ms each, event by event.
class Trace {
 public:
  /// Launched at `launch_us`, on the device from `begin_us` on.
  Trace& Task(const char* category, const std::string& name, double launch_us, double begin_us,
              double length_us, const std::string& arguments = "") {
    ++correlation_;
    Add("cuda_runtime", "cudaLaunchKernel", 1, launch_us, 5, fmt::format("\"correlation\":{}", correlation_));
    return Add(category, name, 7, begin_us, length_us,
               fmt::format("\"correlation\":{}{}{}", correlation_, arguments.empty() ? "" : ",", arguments));
  }
  Trace& Add(const char* category, const std::string& name, int thread, double begin_us, double length_us,
             const std::string& arguments = "") {
    text_ += fmt::format(
        R"({}{{"ph":"X","cat":"{}","name":"{}","pid":1,"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
        text_.empty() ? "" : ",", category, name, thread, begin_us, length_us, arguments);
    return *this;
  }
  Trace& Capability(int major) {
    major_ = major;
    return *this;
  }
  [[nodiscard]] std::string Json() const {
    return fmt::format(R"({{"deviceProperties":[{{"id":0,"computeMajor":{}}}],"traceEvents":[{}]}})", major_,
                       text_);
  }

 private:
  std::string text_;
  int correlation_ = 0, major_ = 9;
};

/// A run whose traces are these, the first of them of step `first`.
class Traced {
 public:
  Traced& With(const Trace& trace, std::int64_t first = 40) {
    const std::string folder = directory_.path() + "/run/w0000/traces";
    std::filesystem::create_directories(folder);
    const std::string name = fmt::format("{}.json", ++count_);
    std::ofstream(folder + "/" + name) << trace.Json();
    entries_ += fmt::format(R"({}{{"file":"traces/{}","first_step":{},"steps":3}})",
                            entries_.empty() ? "" : ",", name, first);
    return *this;
  }
  [[nodiscard]] std::vector<Finding> Told(const char* rules = kAll, int steps = 200, bool evaluates = false,
                                          bool device = false) {
    FakeTrial trial;
    trial.SetPath(directory_.path() + "/run");
    trial.SetDocument("traces", R"({"traces":[)" + entries_ + "]}");
    for (int i = 0; i < steps; ++i) {
      trial.Step().Loss(1);
      if (device) trial.Phases({{format::Phase::kForward, 10}}).OnDevice(9, i % 4 != 0);
      if (evaluates) trial.Step(query::Mode::kEval).Loss(1);
    }
    return testing::FindingsOf(trial, rules, ParameterSet::kLuff);
  }

 private:
  store::TemporaryDirectory directory_;
  std::string entries_;
  int count_ = 0;
};

std::vector<Finding> Told(const Trace& trace) { return Traced().With(trace).Told(); }

/// Kernels of 900 us, each launched in time.
Trace Healthy() {
  Trace trace;
  for (int i = 0; i < 30; ++i) trace.Task("kernel", "ampere_bf16_s16816gemm", 1000 * i, 1000 * i + 100, 990);
  return trace;
}

/// A value is read in each step: the host waits for 9 ms, and needs 4 ms to launch again.
Trace Reading(const char* inside = "aten::item") {
  Trace trace;
  for (int i = 0; i < 3; ++i) {
    const double begin = 10'000 * i;
    trace.Task("kernel", "gemm", begin, begin + 10, 6'000);
    trace.Add("cpu_op", inside, 1, begin + 90, 6'000);
    trace.Add("python_function", "train.py(41): step", 1, begin + 80, 6'100);
    trace.Add("cuda_runtime", "cudaStreamSynchronize", 1, begin + 100, 5'915);
  }
  trace.Task("kernel", "gemm", 30'000, 30'010, 10);
  return trace;
}

TEST(TraceRules, AHealthyTraceIsSilent) { EXPECT_TRUE(Told(Healthy()).empty()); }

TEST(TraceRules, WithoutATrace_NothingIsSaid_AndFirstStepsAreLeftOut) {
  EXPECT_TRUE(Traced().Told().empty());
  EXPECT_TRUE(Traced().With(Reading(), 5).Told().empty());
  Trace host;
  host.Add("cpu_op", "aten::mm", 1, 0, 10'000);
  EXPECT_TRUE(Told(host).empty());
}

TEST(HostSync, TheLineAndTheOperatorAreNamed) {
  const auto findings = Told(Reading());
  ASSERT_EQ(findings.size(), 1U);
  const Finding& finding = findings[0];
  EXPECT_EQ(finding.rule, "HostSync");
  EXPECT_EQ(finding.cause, "item");
  EXPECT_NE(finding.what.find("idle 4.0 ms of 10 ms a step"), std::string::npos) << finding.what;
  EXPECT_NE(finding.what.find("after aten::item in train.py(41): step"), std::string::npos) << finding.what;
  EXPECT_EQ(finding.since_step, 40);
  ASSERT_TRUE(finding.saving);
  EXPECT_NEAR(finding.saving->seconds_a_step, 0.004, 1e-4);
  EXPECT_NEAR(finding.saving->share, 0.4, 0.01);
  EXPECT_EQ(Told(Reading("aten::nonzero")).at(0).cause, "shape");
  EXPECT_EQ(Told(Reading("aten::copy_")).at(0).cause, "copy");
  EXPECT_EQ(Told(Reading("x")).at(0).cause, "synchronize");
}

TEST(HostSync, AWaitAfterWhichTheDeviceGoesOn_IsNone) {
  Trace trace;
  for (int i = 0; i < 30; ++i) {  // all was launched before the wait
    trace.Task("kernel", "gemm", 10 * i, 1000 * i + 500, 990);
  }
  trace.Add("cuda_runtime", "cudaStreamSynchronize", 1, 400, 29'000);
  EXPECT_TRUE(Told(trace).empty());
}

TEST(HostSync, WhatTheHostDoesItselfAfterAWait_IsNotSaved) {
  Trace trace;  // 0.5 ms of the device, then the host loads a batch for 9 ms
  for (int i = 0; i < 3; ++i) {
    const double begin = 10'000 * i;
    trace.Task("kernel", "gemm", begin, begin + 10, 500);
    trace.Add("cuda_runtime", "cudaStreamSynchronize", 1, begin + 100, 415);
  }
  trace.Task("kernel", "gemm", 30'000, 30'010, 10);
  EXPECT_TRUE(Told(trace).empty());
}

TEST(TraceRules, ATraceIsJudgedWhileALoopTrainsAndEvaluatesInTurns) {
  const auto findings = Traced().With(Reading()).Told(kAll, 200, true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 63);  // not at the end
}

TEST(HostSync, ItHealsWhenALaterTraceShowsItNoMore_AndIsToldOnce) {
  auto findings = Traced().With(Reading()).With(Healthy(), 80).Told();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].healed);
  findings = Traced().With(Reading()).With(Reading(), 80).Told();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_FALSE(findings[0].healed);
}

TEST(LaunchBound, SmallKernelsThatAreLaunchedLate) {
  Trace trace;
  for (int i = 0; i < 600; ++i) trace.Task("kernel", "add", 50 * i, 50 * i + 6, 6);
  const auto findings = Told(trace);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "small_kernels");
  EXPECT_NEAR(findings[0].saving->share, 0.44, 0.01);
  EXPECT_TRUE(Told(trace.Add("python_function", "train.py(41): step", 1, 0, 30'000)).empty());
  Trace late;  // the host works for 5 ms between two kernels: it does not launch small ones
  for (int i = 0; i < 6; ++i) late.Task("kernel", "add", 5000 * i, 5000 * i + 6, 6);
  EXPECT_TRUE(Told(late).empty());
}

TEST(TraceRules, StepsAtWhichTheDeviceWasIdleAreEvidence) {
  const auto findings = Traced().With(Reading()).Told(kAll, 200, false, true);
  ASSERT_EQ(findings.size(), 1U);
  // Of the steps up to the one at which the trace was seen.
  EXPECT_NE(findings[0].why.find("; the device had nothing left to do when "), std::string::npos)
      << findings[0].why;
  const auto& evidence = findings[0].evidence;
  EXPECT_TRUE(std::ranges::any_of(
      evidence, [](const NamedNumber& one) { return one == NamedNumber("idle_share", 0.75); }));
}

TEST(PageableCopy, ItsRateIsTold) {
  Trace trace = Healthy();
  for (int i = 0; i < 3; ++i)
    trace.Task("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 10'000 * i, 10'000 * i + 95, 1'000,
               "\"bytes\":6000000");
  const auto findings = Told(trace);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "PageableCopy");
  EXPECT_NE(findings[0].what.find("6.0 GB a second"), std::string::npos) << findings[0].what;
  EXPECT_NEAR(findings[0].saving->seconds_a_step, 0.001 - 6e6 / 25e9, 1e-6);
}

TEST(CopyNotOverlapped, OnlyWhatRunsAloneCounts) {
  for (const bool beside : {false, true}) {
    Trace trace;
    for (int i = 0; i < 3; ++i) {
      const double begin = 10'000 * i;
      trace.Task("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin, begin + 10, 2'000,
                 "\"bytes\":40000000");
      trace.Task("kernel", "gemm", begin + 5, beside ? begin + 10 : begin + 2'010, 7'980);
    }
    const auto findings = Traced().With(trace).Told("CopyNotOverlapped");
    ASSERT_EQ(findings.size(), beside ? 0U : 1U);
    if (!beside) {
      EXPECT_NEAR(findings[0].saving->seconds_a_step, 0.002, 1e-5);
    }
  }
}

TEST(Tf32Off, FullFloat32_WhereTensorCoresAre) {
  Trace trace;
  for (int i = 0; i < 30; ++i)
    trace.Task("kernel", i % 2 == 0 ? "ampere_sgemm_128x64_tn" : "elementwise_kernel", 10 * i, 1000 * i + 500,
               1000);
  const auto findings = Told(trace);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "Tf32Off");
  EXPECT_NE(findings[0].what.find("50 % of the device's time"), std::string::npos) << findings[0].what;
  Trace waits = trace;
  waits.Task("kernel", "elementwise_kernel", 100'000, 100'010, 10);  // for something else, most of the time
  EXPECT_TRUE(Traced().With(waits).Told("Tf32Off").empty());
  EXPECT_TRUE(Told(trace.Capability(7)).empty());
  EXPECT_TRUE(Told(trace.Capability(-1)).empty());
  Trace cores;
  for (int i = 0; i < 30; ++i)
    cores.Task("kernel", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", 10 * i, 1000 * i + 500, 1000);
  EXPECT_TRUE(Told(cores).empty());
}

TEST(CommunicationBound, WhatKernelsHideDoesNotCount) {
  Trace trace;
  for (int i = 0; i < 3; ++i) {
    const double begin = 10'000 * i;
    trace.Task("kernel", "gemm", begin, begin + 100, 6'000);
    trace.Task("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 10, begin + 4'100, 5'900);
  }
  const auto findings = Told(trace);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "exposed");
  EXPECT_NE(findings[0].what.find("34 % of their time is hidden"), std::string::npos) << findings[0].what;
}

TEST(AllocatorThrash, MemoryThatIsGivenBackInEachStep) {
  Trace trace = Healthy();
  for (int i = 0; i < 3; ++i) {
    trace.Add("cuda_runtime", "cudaFree", 1, 10'000 * i + 50, 400);
    trace.Add("cuda_runtime", "cudaMalloc", 1, 10'000 * i + 500, 200);
  }
  const auto findings = Told(trace);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "empty_cache");
  EXPECT_NE(findings[0].what.find("6 calls"), std::string::npos);
  Trace grows = Healthy();  // batches of new shapes: the cache keeps what it has been given
  for (int i = 0; i < 3; ++i) grows.Add("cuda_runtime", "cudaMalloc", 1, 10'000 * i + 50, 800);
  EXPECT_TRUE(Told(grows).empty());
}

}  // namespace
}  // namespace luff::rules::trace_test
