// Rules on traces of devices: each on what it names, and silent on what looks like it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "luff/rules/choice.h"
#include "luff/rules/evaluator.h"
#include "rules/testing/recorder.h"
#include "store/test_run.h"

namespace luff::rules::trace_test {
namespace {

using testing::FakeTrial;

constexpr const char* kAll =
    "HostSync,LaunchBound,PageableCopy,CopyNotOverlapped,Tf32Off,HalfPrecisionOff,CommunicationBound,"
    "AllocatorThrash";

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
  /// A process that goes on with the run begins its document anew.
  Traced& Resumed() {
    entries_.clear();
    return *this;
  }
  void Goes(FakeTrial* trial, int steps, bool evaluates = false, bool device = false) const {
    trial->SetPath(directory_.path() + "/run");
    trial->SetDocument("traces", R"({"traces":[)" + entries_ + "]}");
    for (int i = 0; i < steps; ++i) {
      trial->Step().Loss(1);
      if (device) trial->Phases({{format::Phase::kForward, 10}}).OnDevice(9, i % 4 != 0);
      if (evaluates) trial->Step(query::Mode::kEval).Loss(1);
    }
  }
  [[nodiscard]] std::vector<Finding> Told(const char* rules = kAll, int steps = 200,
                                          bool device = false) const {
    FakeTrial trial;
    Goes(&trial, steps, false, device);
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

std::unique_ptr<Evaluator> Opened() {
  EvaluatorOptions options;
  auto choices = ParseChoices(kAll, ParameterSet::kLuff);
  if (!choices.ok()) return nullptr;
  options.choices = std::move(choices).value();
  auto evaluator = Evaluator::Open(options, nullptr);
  return evaluator.ok() ? std::move(evaluator).value() : nullptr;
}

TEST(TraceRules, ATraceIsJudgedWhileALoopTrainsAndEvaluatesInTurns) {
  Traced traced;
  FakeTrial trial;
  traced.With(Reading()).Goes(&trial, 100, true);
  const auto evaluator = Opened();
  ASSERT_NE(evaluator, nullptr);
  ASSERT_TRUE(evaluator->Advance(trial, 1'000'000).ok());
  EXPECT_EQ(evaluator->findings().size(), 1U);  // not at the end
}

TEST(TraceRules, AFindingIsOfTheTracedSteps_WheneverTheTraceWasSeen) {
  const auto findings = Traced().With(Healthy()).With(Reading(), 150).Told();  // both files are there at once
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].since_step, 150);
  EXPECT_EQ(findings[0].step, 152);
  EXPECT_FALSE(findings[0].healed);
}

TEST(TraceRules, TracesOfAResumedRunAreJudged_ThoughTheirListBeginsAnew) {
  Traced traced;
  FakeTrial trial;
  traced.With(Healthy()).Goes(&trial, 100);
  const auto evaluator = Opened();
  ASSERT_NE(evaluator, nullptr);
  ASSERT_TRUE(evaluator->Advance(trial, 1'000'000).ok());
  EXPECT_TRUE(evaluator->findings().empty());
  traced.Resumed().With(Reading(), 120).Goes(&trial, 100);
  ASSERT_TRUE(evaluator->Advance(trial, 1'000'000).ok());
  ASSERT_EQ(evaluator->findings().size(), 1U);
  EXPECT_EQ(evaluator->findings()[0].since_step, 120);
}

TEST(TraceRules, AShareOfZero_IsNoClaimOfNothing) {
  std::string rules;
  for (const char* rule : {"HostSync", "LaunchBound", "PageableCopy", "CopyNotOverlapped", "Tf32Off",
                           "HalfPrecisionOff", "CommunicationBound", "AllocatorThrash"})
    rules += fmt::format("{}{}:share=0", rules.empty() ? "" : ",", rule);
  Trace trace;  // with a wait after which nothing was idle
  trace.Task("kernel", "elementwise", 0, 10, 9'000).Task("kernel", "elementwise", 5, 9'010, 9'000);
  trace.Add("cuda_runtime", "cudaStreamSynchronize", 1, 20, 8'000);
  EXPECT_TRUE(Traced().With(trace).Told(rules.c_str()).empty());
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

TEST(LaunchBound, IsSilentWhereTheStepWaitsForData) {
  // 20 ms without a launch, in which the host waits for a batch; then small kernels, one after the other.
  Trace trace;
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 10; ++i) {
      const double begin = 60'000 * step + 20'000 + 50 * i;
      trace.Task("kernel", "add", begin, begin + 6, 6);
    }
  }
  FakeTrial trial;
  Traced traced;
  traced.With(trace).Goes(&trial, 0);
  trial.SetDocument("environment", R"({"cores":16})");
  for (int i = 0; i < 300; ++i) {
    trial.Step().Phases({{format::Phase::kDataWait, 20}, {format::Phase::kForward, 40}}, 60, 0).Wait({}, 20);
  }
  const auto findings = testing::FindingsOf(trial, "InputBound,LaunchBound", ParameterSet::kLuff);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "InputBound");
}

TEST(TraceRules, StepsAtWhichTheDeviceWasIdleAreEvidence) {
  const auto findings = Traced().With(Reading()).Told(kAll, 200, true);
  ASSERT_EQ(findings.size(), 1U);
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
  EXPECT_TRUE(Traced().With(cores).Told("Tf32Off").empty());
}

/// Thirty kernels of 1 ms, of these names in turns, each launched in time.
Trace Kernels(std::vector<std::string> names) {
  Trace trace;
  for (std::size_t i = 0; i < 30; ++i)
    trace.Task("kernel", names[i % names.size()], 10.0 * static_cast<double>(i),
               1000.0 * static_cast<double>(i) + 500, 1000);
  return trace;
}

TEST(HalfPrecisionOff, ProductsInTf32_AndNothingIn16Bits) {
  const std::string tf32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4";
  const auto findings = Told(Kernels({tf32, tf32, "vectorized_elementwise_kernel<4, FillFunctor<float>>"}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "HalfPrecisionOff");
  EXPECT_EQ(findings[0].cause, "tf32");
  EXPECT_NE(findings[0].what.find("67 % of the device's time"), std::string::npos) << findings[0].what;
  EXPECT_NEAR(findings[0].saving->share, 1.0 / 3, 0.01);
  EXPECT_EQ(Told(Kernels({"cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4"})).size(), 1U);
  // Other devices, and one that waits for most of the time.
  EXPECT_TRUE(Told(Kernels({tf32}).Capability(7)).empty());
  EXPECT_TRUE(Told(Kernels({tf32}).Capability(-1)).empty());
  EXPECT_TRUE(Told(Kernels({tf32}).Task("kernel", "elementwise_kernel", 90'000, 90'010, 10)).empty());
  // Few products.
  EXPECT_TRUE(Told(Kernels({tf32, "elementwise_kernel", "reduce_kernel"})).empty());
}

TEST(HalfPrecisionOff, WhatComputesIn16BitsSomewhere_OrMayDoSo_IsSilent) {
  const std::string tf32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4";
  for (const char* beside :
       {"ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n",
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<c10::BFloat16>>",
        "void at::native::unrolled_elementwise_kernel<c10::Half>", "sm90_xmma_gemm_e4m3e4m3_f32f32_f32_tn_n"})
    EXPECT_TRUE(Told(Kernels({tf32, tf32, tf32, beside})).empty()) << beside;
}

TEST(HalfPrecisionOff, WhereMostProductsAreFullFloat32_OnlyTf32OffSpeaks) {
  const auto findings = Told(
      Kernels({"ampere_sgemm_128x64_tn", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "ampere_sgemm_64x64"}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "Tf32Off");
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

/// Findings of a run with these looks at the allocator, each of 64 steps.
std::vector<Finding> Looked(const std::vector<int>& retries, int device = 0) {
  FakeTrial trial;
  std::string looks;
  for (std::size_t i = 0; i < retries.size(); ++i)
    looks += fmt::format(
        R"({}{{"step":{},"device":{},"retries":{},"ooms":0,"reserved":8000000000,"active":7000000000}})",
        looks.empty() ? "" : ",", 64 * (i + 1), i + 1 == retries.size() ? device : 0, retries[i]);
  trial.SetDocument("allocator", R"({"looks":[)" + looks + "]}");
  for (int i = 0; i < 300; ++i) trial.Step().Loss(1);
  return testing::FindingsOf(trial, "AllocatorThrash", ParameterSet::kLuff);
}

TEST(AllocatorThrash, MemoryThatRunsOutAgainAndAgain_WithoutATrace) {
  const auto findings = Looked({0, 20, 40});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cause, "retries");
  EXPECT_NE(findings[0].what.find("ran out 40 times in 128 steps"), std::string::npos) << findings[0].what;
  EXPECT_NE(findings[0].what.find("8.0 GB reserved, 7.0 GB of it in use"), std::string::npos)
      << findings[0].what;
  EXPECT_FALSE(findings[0].saving);
}

TEST(AllocatorThrash, MemoryThatRanOutOnce_OrAtTheStart_IsSilent) {
  EXPECT_TRUE(Looked({0, 1, 1}).empty());
  EXPECT_TRUE(Looked({0, 30, 30}).empty());   // until the cache fitted
  EXPECT_TRUE(Looked({30, 30, 30}).empty());  // before the first look
  EXPECT_TRUE(Looked({0, 0, 30}).empty());    // so far between two looks only
  EXPECT_TRUE(Looked({20, 40}).empty());
  EXPECT_TRUE(Looked({40, 20, 0}).empty());     // counters that began anew
  EXPECT_TRUE(Looked({0, 20, 40}, 1).empty());  // another device
  EXPECT_TRUE(Looked({0, 20, -40}).empty());
}

}  // namespace
}  // namespace luff::rules::trace_test
