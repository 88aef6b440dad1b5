// What a trace says: self times, time outside of operators, copies, and why a device was idle.
#include "luff/profile/kineto_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "luff/profile/device_trace.h"

namespace luff::profile {
namespace {

using ::testing::HasSubstr;

std::string Event(const std::string& cat, const std::string& name, int thread, double begin, double length,
                  const std::string& arguments = "") {
  return R"({"ph":"X","cat":")" + cat + R"(","name":")" + name + R"(","pid":1,"tid":)" +
         std::to_string(thread) + ",\"ts\":" + std::to_string(begin) + ",\"dur\":" + std::to_string(length) +
         (arguments.empty() ? "" : ",\"args\":{" + arguments + "}") + "}";
}

std::string Trace(std::initializer_list<std::string> events) {
  std::string text;
  for (const std::string& event : events) text += (text.empty() ? "" : ",") + event;
  return R"({"schemaVersion":1,"traceEvents":[)" + text + R"(],"traceName":"x"})";
}

TEST(KinetoTrace, EventsAreVisitedTrackByTrackOnTheClockOfTheSystem) {
  std::string text = Trace({
      Event("kernel", "gemm", 7, 120, 10),
      Event("cpu_op", "mm", 5, 110.5, 20),
      Event("cpu_op", "linear", 5, 100, 25),
      Event("cpu_op", "mm", 6, 90, 5),
  });
  std::vector<std::string> seen;
  const auto visit = [&](std::string_view json) {
    return VisitTraceUntrusted(json, [&](const TraceEvent& event) {
      seen.push_back(std::to_string(event.device ? 1 : 0) + " " + std::string(event.name) + " " +
                     std::to_string(event.begin_ns - 1'700'000'000'000'000'001) + " " +
                     std::to_string(event.end_ns - event.begin_ns) + " " + std::string(event.category));
    });
  };
  EXPECT_THAT(visit(text).ToString(), HasSubstr("baseTimeNanoseconds"));
  EXPECT_TRUE(seen.empty());
  text.insert(1, R"("baseTimeNanoseconds":1700000000000000001,)");
  ASSERT_TRUE(visit(text).ok());
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_EQ(seen[3], "1 gemm 120000 10000 kernel");
  std::ranges::sort(seen.begin(), seen.begin() + 3);
  EXPECT_EQ(seen[0], "0 linear 100000 25000 cpu_op");
  EXPECT_EQ(seen[1], "0 mm 110500 14500 cpu_op");  // cut off where the one around it ends
  EXPECT_EQ(seen[2], "0 mm 90000 5000 cpu_op");
}

TEST(KinetoTrace, TimesThatNoIntegerHoldsAreAnError) {
  for (const char* base : {"-9200000000000000000", "-1", "9223372036854775807"}) {
    std::string text = Trace({Event("cpu_op", "mm", 5, 1.2e16, 1)});
    text.insert(1, std::string(R"("baseTimeNanoseconds":)") + base + ",");
    EXPECT_FALSE(
        VisitTraceUntrusted(text, [](const TraceEvent& event) { ADD_FAILURE() << event.begin_ns; }).ok())
        << base;
  }
}

TEST(KinetoTrace, SelfTimesAreWithoutWhatIsCalled) {
  const auto summary = SummariseTraceUntrusted(Trace({
      Event("cpu_op", "linear", 5, 100, 50),
      Event("cpu_op", "mm", 5, 110, 20),
      Event("cpu_op", "empty", 5, 112, 5),
      Event("cpu_op", "mm", 5, 200, 20),
      Event("cpu_op", "mm", 6, 0, 7),
      R"({"ph":"i","name":"mark","ts":3})",
      R"({"ph":"X","cat":"other","name":"x","ts":"text","dur":{}})",
  }));
  ASSERT_TRUE(summary.ok()) << summary.status().ToString();
  EXPECT_EQ(summary->events, 7U);
  ASSERT_EQ(summary->operators.size(), 3U);
  EXPECT_EQ(summary->operators[0].name, "mm");
  EXPECT_EQ(summary->operators[0].calls, 3U);
  EXPECT_NEAR(summary->operators[0].self_s, 42e-6, 1e-12);
  EXPECT_NEAR(summary->operators[0].total_s, 47e-6, 1e-12);
  EXPECT_NEAR(summary->operators[1].self_s, 30e-6, 1e-12);  // linear
  EXPECT_NEAR(summary->span_s, 120e-6, 1e-12);              // of the thread with most operators
  EXPECT_NEAR(summary->operators_s, 70e-6, 1e-12);
}

TEST(KinetoTrace, DevicesAreIdleForAReason) {
  const auto summary = SummariseTraceUntrusted(Trace({
      Event("cuda_runtime", "cudaLaunchKernel", 1, 10, 2, "\"correlation\":1"),
      Event("kernel", "gemm", 7, 20, 10, "\"correlation\":1,\"stream\":7"),
      Event("cuda_runtime", "cudaLaunchKernel", 1, 35, 2, "\"correlation\":2"),  // after the device was idle
      Event("kernel", "gemm", 7, 40, 10, "\"correlation\":2"),
      Event("cuda_runtime", "cudaMemcpyAsync", 1, 45, 2, "\"correlation\":3"),  // before
      Event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 7, 53, 4, "\"correlation\":3,\"bytes\":4096"),
      Event("kernel", "add", 7, 60, 1),
      Event("cuda_runtime", "cudaStreamSynchronize", 1, 50, 8),
  }));
  ASSERT_TRUE(summary.ok());
  EXPECT_NEAR(summary->device_span_s, 41e-6, 1e-12);
  EXPECT_NEAR(summary->device_busy_s, 25e-6, 1e-12);
  EXPECT_NEAR(summary->idle_host_s, 10e-6, 1e-12);
  EXPECT_NEAR(summary->idle_kernel_s, 3e-6, 1e-12);
  EXPECT_NEAR(summary->idle_unknown_s, 3e-6, 1e-12);
  ASSERT_EQ(summary->copies.size(), 1U);
  EXPECT_EQ(summary->copies[0].bytes, 4096U);
  EXPECT_EQ(summary->syncs.at(0).name, "cudaStreamSynchronize");
  EXPECT_EQ(summary->kernels.at(0).calls, 2U);
}

/// Messages of Protocol Buffers, as JAX and TensorFlow write them.
std::string Varint(std::uint64_t number) {
  std::string out;
  for (; number > 127; number >>= 7U) out.push_back(static_cast<char>((number & 127U) | 128U));
  out.push_back(static_cast<char>(number));
  return out;
}
std::string Number(int field, std::uint64_t value) { return Varint(field * 8U) + Varint(value); }
std::string Text(int field, const std::string& text) {
  return Varint(field * 8U + 2) + Varint(text.size()) + text;
}
std::string Named(int field, std::uint64_t key, const std::string& name) {
  return Text(field, Number(1, key) + Text(2, Number(1, key) + Text(2, name)));
}
std::string Xevent(std::uint64_t key, std::uint64_t offset_ns, std::uint64_t length_ns,
                   const std::string& more = "") {
  return Text(4, Number(1, key) + Number(2, offset_ns * 1000) + Number(3, length_ns * 1000) + more);
}
std::string Xline(std::uint64_t id, const std::string& name, std::uint64_t begin_ns,
                  const std::string& events) {
  return Text(3, Number(1, id) + Text(2, name) + Number(3, begin_ns) + events);
}

/// A host that runs two operators inside a function of Python and launches one kernel, 1 us before it begins.
std::string Space() {
  constexpr std::uint64_t kBegin = 1'700'000'000'000'000'000;
  const auto correlation = [](std::uint64_t number) { return Text(4, Number(1, 5) + Number(3, number)); };
  return Text(1, Text(2, "/host:metadata")) +
         Text(1, Text(2, "/host:CPU") + Named(4, 1, "dot") + Named(4, 2, "add") +
                     Named(4, 3, "$train.py:7 step") +
                     Xline(11, "python", kBegin,
                           Xevent(3, 0, 9000) + Xevent(1, 1000, 5000) + Xevent(2, 2000, 1000)) +
                     Xline(12, "pool", kBegin + 500, Xevent(1, 0, 100))) +
         Text(1, Text(2, "/host:CUPTI") + Named(4, 1, "cuLaunchKernel") + Named(5, 5, "correlation_id") +
                     Xline(11, "python", kBegin, Xevent(1, 1000, 500, correlation(77)))) +
         Text(1, Text(2, "/device:GPU:0") + Named(4, 1, "gemm") + Named(4, 2, "MemcpyH2D") +
                     Named(4, 9, "module") + Named(5, 5, "correlation_id") +
                     Xline(1, "XLA Modules", kBegin, Xevent(9, 0, 100'000)) +
                     Xline(2, "Stream #13(Compute)", kBegin + 1000,
                           Xevent(2, 0, 500) + Xevent(1, 1000, 3000, correlation(77))));
}

TEST(XplaneTrace, HostsAndStreamsAreReadOnOneClock) {
  const auto summary = SummariseTraceUntrusted(Space());
  ASSERT_TRUE(summary.ok()) << summary.status().ToString();
  ASSERT_EQ(summary->operators.size(), 2U);
  EXPECT_EQ(summary->operators[0].name, "dot");
  EXPECT_EQ(summary->operators[0].calls, 2U);
  EXPECT_NEAR(summary->operators[0].self_s, 4.1e-6, 1e-12);
  ASSERT_EQ(summary->functions.size(), 1U);
  EXPECT_EQ(summary->functions[0].name, "train.py:7 step");
  ASSERT_EQ(summary->kernels.size(), 1U);  // what is derived from streams is left out
  EXPECT_EQ(summary->copies.at(0).kind, "MemcpyH2D");
  EXPECT_NEAR(summary->device_busy_s, 3.5e-6, 1e-12);
  EXPECT_NEAR(summary->idle_kernel_s, 0.5e-6, 1e-12);  // launched before the copy had ended
  std::size_t visited = 0;
  ASSERT_TRUE(VisitTraceUntrusted(Space(), [&](const TraceEvent& event) {
                ++visited;
                if (event.name == "gemm") {
                  EXPECT_EQ(event.begin_ns, 1'700'000'000'000'002'000);
                }
              }).ok());
  EXPECT_EQ(visited, 7U);
}

TEST(XplaneTrace, TimesMayCountFromTheBeginOfTheTrace) {
  const std::string lines =
      Text(1, Text(2, "/host:CPU") + Named(4, 1, "dot") + Xline(11, "python", 5000, Xevent(1, 1000, 50)));
  const std::string start = Text(1, Text(2, "Task Environment") + Named(5, 7, "profile_start_time") +
                                        Text(6, Number(1, 7) + Number(3, 1'700'000'000'000'000'000)));
  std::vector<std::int64_t> begins;
  const auto visit = [&](const TraceEvent& event) { begins.push_back(event.begin_ns); };
  ASSERT_TRUE(VisitTraceUntrusted(lines + start, visit).ok());
  EXPECT_EQ(begins, (std::vector<std::int64_t>{1'700'000'000'000'006'000}));
  EXPECT_FALSE(VisitTraceUntrusted(lines, visit).ok());
}

TEST(XplaneTrace, FactsOfLuffAtTheEndChangeNothing) {
  const std::string facts = Text(1, Text(2, R"(luff {"rank": 0})"));
  const auto summary = SummariseTraceUntrusted(Space() + facts);
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->events, 8U);
}

TEST(XplaneTrace, WhatBreaksOffIsAnError) {
  const std::string whole = Space();
  std::size_t bad = 0;
  for (std::size_t size = 1; size < whole.size(); ++size) {
    const auto summary = SummariseTraceUntrusted(std::string_view(whole).substr(0, size));
    bad += summary.ok() ? 0 : 1;
  }
  EXPECT_GE(bad, whole.size() - 5);  // planes that are whole are a trace
  EXPECT_THAT(SummariseTraceUntrusted("\x01\x02").status().ToString(), HasSubstr("no trace"));
}

TEST(XplaneTrace, BytesThatOthersHaveChangedGiveSoundTimesOrAnError) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = Space();
    for (int change = 0; change < 1 + i % 4; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    if (const auto summary = SummariseTraceUntrusted(bytes); summary.ok()) {
      EXPECT_GE(summary->device_busy_s, 0);
    }
    if (const auto devices = DevicesOfTraceUntrusted(bytes); devices.ok()) {
      EXPECT_GE(devices->span_s, 0);
    }
    (void)VisitTraceUntrusted(bytes,
                              [](const TraceEvent& event) { EXPECT_GE(event.end_ns, event.begin_ns); });
  }
}

TEST(XplaneTrace, ManyPlanesAndKeysThatMeetCostWhatTheirBytesCost) {
  const auto seconds = [](const std::string& bytes) {
    const std::clock_t begin = std::clock();
    EXPECT_TRUE(SummariseTraceUntrusted(bytes).ok());
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  // Numbers of buckets that hash tables of usual libraries have when they hold so many.
  constexpr std::uint64_t kBuckets[] = {1, 126'271, 107'897, 172'933, 131'072};
  std::vector<double> spent;
  for (const std::uint64_t apart : kBuckets) {
    std::string names;
    for (std::uint64_t i = 1; i <= 100'000; ++i) names += Named(4, i * apart, "a");
    spent.push_back(seconds(Text(1, Text(2, "/host:CPU") + names)));
    if (apart != 1) continue;
    std::string planes;
    for (int i = 0; i < 100'000; ++i) planes += Text(1, "");
    spent.push_back(seconds(Text(1, Text(2, "/host:CPU") + names) + planes));
  }
  for (const double one : spent) EXPECT_LT(one, 30 * spent[0] + 0.1);
}

TEST(KinetoTrace, WhatIsNoTraceIsAnError) {
  for (const char* text : {"", "{}", "[]", R"({"traceEvents":{}})", R"({"traceEvents":[7]})",
                           R"({"traceEvents":[{"ph":"X","cat":"cpu_op","ts":1,"dur":2})"}) {
    EXPECT_FALSE(SummariseTraceUntrusted(text).ok()) << text;
  }
  const auto odd = SummariseTraceUntrusted(
      Trace({Event("cpu_op", "x", 1, -5, 1), R"({"ph":"X","cat":"cpu_op","name":"y","ts":1e300,"dur":1})"}));
  ASSERT_TRUE(odd.ok());
  EXPECT_TRUE(odd->operators.empty());
}

TEST(KinetoTrace, FilesLieInTheFolderOfTraces) {
  const auto files = ParseTracesUntrusted(
      R"({"traces":[{"file":"traces/a.json","first_step":3,"steps":2,"bytes":7,"cost_s":0.5},)"
      R"({"file":"../x"},{"file":"traces/../x"},{"refused":"nsys is attached"},{"file":"traces/b","steps":-4}]})");
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].first_step, 3);
  EXPECT_EQ(files[1].refused, "nsys is attached");
  EXPECT_EQ(files[2].steps, 0);
  EXPECT_TRUE(ParseTracesUntrusted("7").empty());
  const auto last = ParseTracesUntrusted(
      R"({"traces":[{"file":"traces/a","first_step":9223372036854775807,"steps":9223372036854775807}]})");
  ASSERT_EQ(last.size(), 1U);
  EXPECT_GT(last[0].first_step + last[0].steps, last[0].first_step);
}

}  // namespace
}  // namespace luff::profile
