// Times of modules: what belongs to whom, on a clock that the test moves.
#include "luff/capture/module_timer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace luff::capture::module_timer_test {
namespace {

std::int64_t g_now = 0;
std::int64_t Now() noexcept { return g_now; }
void Pass(std::int64_t ns) { g_now += ns; }

std::map<std::uint32_t, format::ModuleTimeRow> Rows(const ModuleTimer& timer) {
  std::map<std::uint32_t, format::ModuleTimeRow> rows;
  for (const format::ModuleTimeRow& row : timer.Times().rows) rows[row.module] = row;
  return rows;
}

/// A call whose own work takes `ns`, before what `inside` does.
template <typename Inside>
std::uint32_t Called(ModuleTimer* timer, std::uint32_t module, std::int64_t ns, Inside inside) {
  const std::uint32_t call = timer->Enter(module);
  Pass(1000);  // what looks at the graph counts for nobody
  timer->Resume();
  Pass(ns);
  inside();
  timer->Leave(call);
  Pass(1000);
  timer->Resume();
  return call;
}
std::uint32_t Called(ModuleTimer* timer, std::uint32_t module, std::int64_t ns) {
  return Called(timer, module, ns, [] {});
}

TEST(ModuleTimer, ACallHasItsOwnTimeAndThatOfTheCallsInside) {
  ModuleTimer timer(Now);
  timer.Begin();
  Called(&timer, 0, 5, [&] {
    Called(&timer, 1, 20);
    Pass(3);
    Called(&timer, 1, 30);
    timer.Pause();
    Pass(500);
    timer.Resume();
    Pass(4);
  });
  auto rows = Rows(timer);
  EXPECT_EQ(rows[0].forward_ns, 62);
  EXPECT_EQ(rows[0].forward_self_ns, 12);
  EXPECT_EQ(rows[0].calls, 1U);
  EXPECT_EQ(rows[1].forward_ns, 50);
  EXPECT_EQ(rows[1].forward_self_ns, 50);
  EXPECT_EQ(rows[1].calls, 2U);
  EXPECT_EQ(rows[0].backward_ns, -1);
  EXPECT_EQ(timer.Times().rows[0].module, 1U);  // the dearest first
}

TEST(ModuleTimer, AModuleThatCallsItselfCountsOnce) {
  ModuleTimer timer(Now);
  timer.Begin();
  Called(&timer, 7, 5, [&] { Called(&timer, 8, 1, [&] { Called(&timer, 7, 20); }); });
  auto rows = Rows(timer);
  EXPECT_EQ(rows[7].forward_ns, 26);
  EXPECT_EQ(rows[7].forward_self_ns, 25);
  EXPECT_EQ(rows[8].forward_ns, 21);
}

// Model 0 calls 1, then works itself, then calls 2; the pass comes back the other way.
TEST(ModuleTimer, TheBackwardPassIsDividedAmongTheCallsWhoseNodesItPasses) {
  ModuleTimer timer(Now);
  timer.Begin();
  std::uint32_t one = 0, two = 0;
  const std::uint32_t model = Called(&timer, 0, 1, [&] {
    one = Called(&timer, 1, 1);
    two = Called(&timer, 2, 1);
  });
  timer.BackwardBegins();
  Pass(100);  // the loss
  timer.At(timer.StampOf(two, false));
  timer.At(timer.StampOf(model, false));  // its last node is that of the inner call
  Pass(30);
  timer.At(timer.StampOf(two, true));
  Pass(7);  // of the model itself
  timer.At(timer.StampOf(one, false));
  timer.At(timer.StampOf(two, true));  // has been left before
  Pass(40);
  timer.BackwardEnds();
  Pass(1000);
  auto rows = Rows(timer);
  EXPECT_EQ(rows[0].backward_ns, 77);
  EXPECT_EQ(rows[0].backward_self_ns, 7);
  EXPECT_EQ(rows[1].backward_ns, 40);
  EXPECT_EQ(rows[2].backward_self_ns, 30);
}

TEST(ModuleTimer, OtherPassesAndStampsOfOtherStepsMeanNothing) {
  ModuleTimer timer(Now);
  timer.Begin();
  const std::uint64_t old = timer.StampOf(Called(&timer, 1, 1), false);
  timer.At(old);  // torch.autograd.grad
  Pass(50);
  timer.Begin();
  Called(&timer, 2, 1);
  timer.BackwardBegins();
  timer.At(old);
  timer.At(0xFFFF'FFFF'FFFF'FFFFULL);
  Pass(50);
  timer.BackwardEnds();
  timer.BackwardEnds();
  auto rows = Rows(timer);
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[2].backward_ns, -1);
}

TEST(ModuleTimer, ActivationsThatAreComputedAgainHideTheBackwardPass) {
  ModuleTimer timer(Now);
  timer.Begin();
  const std::uint32_t call = Called(&timer, 1, 1);
  timer.BackwardBegins();
  timer.At(timer.StampOf(call, false));
  Pass(50);
  timer.Tell(format::kModulesRecomputed);
  timer.BackwardEnds();
  EXPECT_EQ(Rows(timer)[1].backward_ns, -1);
  EXPECT_EQ(timer.Times().head.flags, format::kModulesRecomputed);
}

TEST(ModuleTimer, CallsThatRaiseAreLeftWithTheCallAround) {
  ModuleTimer timer(Now);
  timer.Begin();
  const std::uint32_t outer = timer.Enter(0);
  timer.Resume();
  (void)timer.Enter(1);
  timer.Resume();
  Pass(5);
  timer.Leave(outer);  // nothing has told of the inner one
  timer.Resume();
  Pass(50);
  timer.Leave(outer);
  timer.Leave(12345);
  auto rows = Rows(timer);
  EXPECT_EQ(rows[0].forward_ns, 5);
  EXPECT_EQ(rows[1].forward_self_ns, 5);
}

TEST(ModuleTimer, ModulesAndCallsAreBounded) {
  ModuleTimer timer(Now);
  timer.Begin();
  for (std::uint32_t i = 0; i < 10'000; ++i) Called(&timer, i, i == 77 ? 1'000'000 : 10);
  auto times = timer.Times();
  ASSERT_EQ(times.rows.size(), format::kMaxModuleRows);
  EXPECT_EQ(times.head.modules, 10'000U);
  EXPECT_EQ(times.rows[0].module, 77U);
  EXPECT_EQ(times.rows.back().module, format::kNoId);
  std::int64_t sum = 0;
  std::uint64_t calls = 0;
  for (const format::ModuleTimeRow& row : times.rows) sum += row.forward_self_ns, calls += row.calls;
  EXPECT_EQ(sum, 9'999 * 10 + 1'000'000);
  EXPECT_EQ(calls, 10'000U);
  for (std::uint32_t i = 0; i < 30'000; ++i) Called(&timer, i % 8, 1);
  EXPECT_EQ(timer.Times().head.flags, format::kModulesTooMany);
}

// Whatever is entered, left and passed, no time is negative, counted twice or lost.
TEST(ModuleTimer, AnyOrderOfCallsAddsUp) {
  std::mt19937 engine(7);
  const auto random = [&](std::size_t below) { return static_cast<std::uint32_t>(engine() % below); };
  for (int round = 0; round < 200; ++round) {
    ModuleTimer timer(Now);
    timer.Begin();
    std::vector<std::uint32_t> calls;
    const std::int64_t begin = g_now;
    for (int i = 0; i < 100; ++i) {
      Pass(random(10));
      switch (random(4)) {
        case 0:
          calls.push_back(timer.Enter(random(5)));
          timer.Resume();
          break;
        case 1:
          if (!calls.empty()) timer.Leave(calls[random(calls.size())]);
          timer.Resume();
          break;
        case 2: timer.BackwardBegins(); break;
        default:
          if (!calls.empty()) timer.At(timer.StampOf(calls[random(calls.size())], random(2) == 0));
      }
    }
    std::int64_t forward = 0, backward = 0;
    for (const format::ModuleTimeRow& row : timer.Times().rows) {
      EXPECT_GE(row.forward_ns, row.forward_self_ns == 0 ? 0 : 1);
      EXPECT_GE(row.backward_ns, row.backward_self_ns < 0 ? -1 : 0);
      forward += row.forward_self_ns;
      backward += std::max<std::int64_t>(row.backward_self_ns, 0);
    }
    EXPECT_LE(forward, g_now - begin);
    EXPECT_LE(backward, g_now - begin);
  }
}

}  // namespace
}  // namespace luff::capture::module_timer_test
