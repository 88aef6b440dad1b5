// The sampler over trees of files in the place of /proc and /sys, and a library in the place of the driver's.
#include "luff/profile/sampler.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "luff/profile/machine.h"
#include "luff/query/samples.h"
#include "luff/store/verify.h"
#include "profile/devices/gpu_source.h"
#include "profile/sampler/board.h"
#include "profile/sampler/cgroup_source.h"
#include "profile/sampler/machine_source.h"
#include "profile/sampler/process_source.h"
#include "store/test_run.h"

namespace luff::profile::sampler_test {
namespace {

namespace fs = std::filesystem;

class Tree {
 public:
  void Put(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root() + path).parent_path());
    std::ofstream(root() + path, std::ios::trunc) << text;
  }
  [[nodiscard]] const std::string& root() const { return directory_.path(); }

 private:
  store::TemporaryDirectory directory_;
};

/// The newest values of a board, by name.
class Newest {
 public:
  explicit Newest(Board* board) {
    board->EndMoment(1, 1);
    store::StepBatch batch;
    board->TakeInto(&batch, true);
    for (const format::SampleBlock& block : batch.samples) {
      for (const format::SampledSeries& series : block.series)
        values_[batch.series[series.id].name] = series.values.back();
    }
  }
  [[nodiscard]] std::optional<std::int64_t> operator[](const std::string& name) const {
    const auto at = values_.find(name);
    return at == values_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  std::map<std::string, std::int64_t> values_;
};

std::string StatOf(int pid, char state, int ticks, std::int64_t start, int rss) {
  return std::to_string(pid) + " (python) " + state + " 1 1 1 0 -1 4194304 9 0 4 0 " + std::to_string(ticks) +
         " 0 0 0 20 0 3 0 " + std::to_string(start) + " 1000 " + std::to_string(rss) + " 1 1 1\n";
}

SourceState StateOf(const Source& source, const std::string& name) {
  std::vector<SourceReport> reports;
  source.Report(&reports);
  for (const SourceReport& report : reports) {
    if (report.name == name) return report.state;
  }
  return SourceState::kUnread;
}

TEST(BoardTest, WhatNobodySetsIsAbsent) {
  Board board;
  const std::uint32_t a = board.Series("a", SeriesUnit::kNumber, SeriesKind::kGauge);
  EXPECT_EQ(board.Series("a", SeriesUnit::kNumber, SeriesKind::kGauge), a);
  board.Set(a, 5);
  board.EndMoment(10, 100);
  board.EndMoment(20, 110);
  board.Set("b", SeriesUnit::kNumber, SeriesKind::kCounter, 7);
  board.Set("c", SeriesUnit::kNumber, SeriesKind::kCounter, std::nullopt);
  board.Set(a, std::nullopt);
  board.EndMoment(15, 120);  // the clock never runs back
  store::StepBatch batch;
  board.TakeInto(&batch, false);
  ASSERT_EQ(batch.series.size(), 2U);
  ASSERT_EQ(batch.samples.size(), 1U);
  const format::SampleBlock& block = batch.samples[0];
  EXPECT_EQ(block.mono_ns, (std::vector<std::int64_t>{10, 20, 20}));
  constexpr auto kNone = format::kNoSample;
  EXPECT_EQ(block.series[0].values, (std::vector<std::int64_t>{5, kNone, kNone}));
  EXPECT_EQ(block.series[1].values, (std::vector<std::int64_t>{kNone, kNone, 7}));
  batch.clear();
  board.TakeInto(&batch, false);
  EXPECT_TRUE(batch.series.empty() && batch.samples.empty());
  board.TakeInto(&batch, true);
  EXPECT_EQ(batch.series.size(), 2U);
}

TEST(BoardTest, ANameIsTheSameSeriesInAnyOrder) {
  Board board;
  const auto id = [&](const char* name) {
    return board.Series(name, SeriesUnit::kNumber, SeriesKind::kGauge);
  };
  const std::uint32_t a = id("a"), b = id("b"), c = id("c");
  EXPECT_EQ((std::set{a, b, c}.size()), 3U);
  for (const char* order : {"abc", "cba", "aab", "bcb", "ccc", "acb"}) {
    for (const char* at = order; *at != '\0'; ++at) {
      const std::string name(1, *at);
      EXPECT_EQ(id(name.c_str()), *at == 'a' ? a : *at == 'b' ? b : c) << order;
    }
  }
  const std::uint32_t d = id("d");
  EXPECT_EQ(id("a"), a);
  EXPECT_EQ(id("d"), d);
}

TEST(MachineSourceTest, ReadsWhatIsThereAndSaysWhatIsNot) {
  const Tree tree;
  tree.Put("/proc/stat", "cpu  100 0 50 1000 0 0 0 0\ncpu0 100 0 50 1000 0 0 0 0\nctxt 5\n");
  tree.Put("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n");
  Board board;
  MachineSource source(tree.root());
  source.Sample(0, &board);
  const Newest newest(&board);
  EXPECT_EQ(newest["memory.available"], 400 * 1024);
  EXPECT_GT(newest["cpu.0.busy"], 0);
  EXPECT_EQ(newest["cpu.busy"], newest["cpu.0.busy"]);
  EXPECT_FALSE(newest["vm.swapped_in"]);
  EXPECT_EQ(StateOf(source, "memory"), SourceState::kRead);
  EXPECT_EQ(StateOf(source, "paging"), SourceState::kAbsent);
}

TEST(MachineSourceTest, AFewDisksAreReadOneByOneBetweenTwoLooksAtAll) {
  Tree tree;
  const auto line = [](int sectors) { return "1 0 " + std::to_string(sectors) + " 4 5 6 7 8 0 9\n"; };
  tree.Put("/proc/diskstats", "7 0 loop0 " + line(1) + "254 0 vda " + line(2));
  tree.Put("/sys/class/block/vda/stat", " " + line(2));
  MachineSource source(tree.root());
  const auto read_at = [&](std::uint64_t tick, const char* name = "disk.vda.read") {
    Board board;
    source.Sample(tick, &board);
    return Newest(&board)[name];
  };
  EXPECT_EQ(read_at(0), 2 * 512);
  tree.Put("/sys/class/block/vda/stat", " " + line(3));
  EXPECT_EQ(read_at(2), 3 * 512);
  tree.Put("/proc/diskstats", "254 0 vda " + line(5) + "254 16 vdb " + line(6));
  tree.Put("/sys/class/block/vda/stat", " " + line(5));
  EXPECT_EQ(read_at(4, "disk.vdb.read"), std::nullopt);
  EXPECT_EQ(read_at(10, "disk.vdb.read"), 6 * 512) << "which disks there are is asked again";
  tree.Put("/proc/diskstats", "254 0 vda " + line(7) + "254 16 vdb " + line(8));
  EXPECT_EQ(read_at(12), 7 * 512) << "the new one has no file: all are read together";
  tree.Put("/proc/diskstats", "254 0 vda " + line(7));
  tree.Put("/sys/class/block/vda/stat", " " + line(7));
  EXPECT_EQ(read_at(20), 7 * 512);
  tree.Put("/sys/class/block/vda/stat", " " + line(9));
  EXPECT_EQ(read_at(22), 9 * 512) << "it is gone: one by one again";
}

TEST(MachineSourceTest, CountsOfAContainerAndOfItsHostAreNotMixed) {
  Tree tree;
  const auto line = [](int sectors) { return "1 0 " + std::to_string(sectors) + " 4 5 6 7 8 0 9\n"; };
  tree.Put("/proc/diskstats", "254 0 vda " + line(2));
  tree.Put("/sys/class/block/vda/stat", " " + line(900'000));
  MachineSource source(tree.root());
  for (std::uint64_t tick = 0; tick < 30; tick += 2) {
    Board board;
    source.Sample(tick, &board);
    EXPECT_EQ(Newest(&board)["disk.vda.read"], 2 * 512) << tick;
  }
  tree.Put("/sys/class/block/vda/stat", " " + line(1));
  Board board;
  source.Sample(30, &board);
  EXPECT_EQ(Newest(&board)["disk.vda.read"], 2 * 512);
}

TEST(MachineSourceTest, APipeInThePlaceOfAFileHoldsNobodyUp) {
  const Tree tree;
  fs::create_directories(tree.root() + "/proc");
  ASSERT_EQ(mkfifo((tree.root() + "/proc/stat").c_str(), 0600), 0);
  fs::create_directories(tree.root() + "/proc/meminfo");
  Board board;
  MachineSource source(tree.root());
  source.Sample(0, &board);
  EXPECT_NE(StateOf(source, "cores"), SourceState::kRead);
  EXPECT_EQ(StateOf(source, "memory"), SourceState::kFailed);  // a folder
}

TEST(SlowSourceTest, EnergyGoesOnWhereItsCounterBeginsAgain) {
  const Tree tree;
  const std::string package = "/sys/class/powercap/intel-rapl:0/";
  tree.Put(package + "energy_uj", "900\n");
  tree.Put(package + "max_energy_range_uj", "1000\n");
  tree.Put("/sys/class/powercap/intel-rapl:0:0/energy_uj", "5\n");
  tree.Put("/sys/class/thermal/thermal_zone0/temp", "41000\n");
  tree.Put("/sys/class/thermal/thermal_zone1/temp", "62000\n");
  Board board;
  SlowSource source(tree.root());
  source.Sample(0, &board);
  EXPECT_EQ(Newest(&board)["temperature"], 62'000);
  tree.Put(package + "energy_uj", "50\n");
  source.Sample(1, &board);
  const Newest newest(&board);
  EXPECT_EQ(newest["energy.package0"], 150);
  EXPECT_FALSE(newest["temperature"]);  // once in ten
}

TEST(SlowSourceTest, TrafficOfRdmaPortsIsInBytes) {
  const Tree tree;
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1/counters/";
  tree.Put(port + "port_rcv_data", "100\n");
  tree.Put(port + "port_xmit_data", "7\n");
  tree.Put("/sys/class/infiniband/mlx5_0/ports/2/counters/port_rcv_data", "rubbish\n");
  tree.Put("/sys/class/infiniband/hfi1_0/ports/1/counters/port_xmit_data", "9223372036854775807\n");
  Board board;
  SlowSource source(tree.root());
  source.Sample(0, &board);
  const Newest newest(&board);
  EXPECT_EQ(newest["rdma.mlx5_0_1.received"], 400);  // counted in words of four bytes
  EXPECT_EQ(newest["rdma.mlx5_0_1.sent"], 28);
  EXPECT_FALSE(newest["rdma.mlx5_0_2.received"]);
  EXPECT_FALSE(newest["rdma.mlx5_0_2.sent"]);
  EXPECT_FALSE(newest["rdma.hfi1_0_1.sent"]);  // more than fits
  source.Sample(1, &board);
  EXPECT_FALSE(Newest(&board)["rdma.mlx5_0_1.received"]);  // once in ten
}

TEST(CgroupSourceTest, ALimitAboveTheGroupCounts) {
  const Tree tree;
  tree.Put("/proc/self/cgroup", "0::/pod/box\n");
  tree.Put("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  const std::string pod = "/sys/fs/cgroup/pod/";
  tree.Put(pod + "cpu.max", "150000 100000\n");
  tree.Put(pod + "cpu.stat", "usage_usec 10\nnr_periods 50\nnr_throttled 32\nthrottled_usec 9\n");
  tree.Put(pod + "box/cpu.max", "max 100000\n");
  tree.Put(pod + "box/cpu.stat", "usage_usec 10\nnr_periods 0\nnr_throttled 0\n");
  tree.Put(pod + "box/memory.max", "1000000\n");
  tree.Put(pod + "box/memory.current", "400000\n");
  tree.Put(pod + "box/cpu.pressure", "some avg10=0 total=5\n");
  tree.Put(pod + "box/io.pressure", "some avg10=0 total=8\nfull avg10=0 total=3\n");
  Board board;
  CgroupSource source(tree.root(), "self");
  source.Sample(0, &board);
  const Newest newest(&board);
  EXPECT_EQ(source.cores(), 1'500'000);
  EXPECT_EQ(newest["cgroup.cpu.throttled_periods"], 32);
  EXPECT_EQ(newest["cgroup.memory.limit"], 1'000'000);
  EXPECT_EQ(newest["cgroup.memory.used"], 400'000);
  EXPECT_EQ(newest["pressure.cpu.some"], 5'000);
  EXPECT_EQ(newest["pressure.io.full"], 3'000);
  EXPECT_EQ(StateOf(source, "pressure.memory"), SourceState::kAbsent);
}

TEST(CgroupSourceTest, VersionOneAndThePressureOfTheMachine) {
  const Tree tree;
  tree.Put("/proc/self/cgroup", "2:cpuacct:/\n1:cpu:/\n4:memory:/box\n0::/\n");
  tree.Put("/proc/self/mountinfo",
           "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
           "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
           "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  tree.Put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  tree.Put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  tree.Put("/sys/fs/cgroup/cpu/cpu.stat", "nr_periods 10\nnr_throttled 1\nthrottled_time 77\n");
  tree.Put("/sys/fs/cgroup/cpuacct/cpuacct.usage", "12345\n");
  tree.Put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
  tree.Put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "77\n");
  tree.Put("/proc/pressure/memory", "some avg10=0 total=1\nfull avg10=0 total=1\n");
  Board board;
  CgroupSource source(tree.root(), "self");
  source.Sample(0, &board);
  const Newest newest(&board);
  EXPECT_EQ(source.cores(), 2'000'000);
  EXPECT_EQ(newest["cgroup.cpu.used"], 12'345);
  EXPECT_EQ(newest["cgroup.cpu.throttled"], 77);
  EXPECT_EQ(newest["cgroup.memory.used"], 77);
  EXPECT_FALSE(newest["cgroup.memory.limit"]);
  EXPECT_EQ(newest["pressure.memory.full"], 1'000);
}

class ProcessSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tree_.Put("/proc/100/stat", StatOf(100, 'R', 50, 777, 10));
    tree_.Put("/proc/100/statm", "900 10 4 1 0 5 0\n");
    tree_.Put("/proc/100/io", "read_bytes: 4096\nwrite_bytes: 1\n");
    tree_.Put("/proc/100/task/100/schedstat", "1 1000 1\n");
    tree_.Put("/proc/100/task/101/schedstat", "1 500 1\n");
    tree_.Put("/proc/100/task/100/children", "200 201 ");
    tree_.Put("/proc/200/stat", StatOf(200, 'S', 30, 800, 5));
    tree_.Put("/proc/200/schedstat", "1 40 1\n");
    tree_.Put("/proc/201/stat", StatOf(201, 'D', 10, 801, 5));
    tree_.Put("/proc/201/task/201/children", "300 ");
    tree_.Put("/proc/300/stat", StatOf(300, 'S', 1, 900, 1));
    source_.Follow({{3, 100, 777}});
  }
  const Tree tree_;
  ProcessSource source_{tree_.root()};
  Board board_;
};

TEST_F(ProcessSourceTest, FollowsARankAndWhatLiesBelowIt) {
  source_.Sample(0, &board_);
  const Newest newest(&board_);
  EXPECT_EQ(newest["rank.3.disk_wait"], 0);
  EXPECT_EQ(newest["rank.3.read"], 4096);
  EXPECT_EQ(newest["rank.3.threads"], 3);
  EXPECT_EQ(*newest["rank.3.anonymous"] * 10, *newest["rank.3.rss"] * 6);
  EXPECT_EQ(newest["rank.3.children.count"], 3);
  EXPECT_EQ(newest["rank.3.children.disk_wait"], 1);
  EXPECT_EQ(newest["rank.3.children.run_queue"], 40);
  EXPECT_EQ(newest["rank.3.child.1.disk_wait"], 1);
  EXPECT_EQ(*newest["rank.3.children.cpu"] * 50, *newest["rank.3.cpu"] * 41);
}

TEST_F(ProcessSourceTest, WhatEndedChildrenUsedStaysCounted) {
  source_.Sample(0, &board_);
  const std::int64_t before = *Newest(&board_)["rank.3.children.cpu"];
  fs::remove_all(tree_.root() + "/proc/200");
  tree_.Put("/proc/100/task/100/children", "201 ");
  source_.Sample(1, &board_);
  const Newest newest(&board_);
  EXPECT_EQ(newest["rank.3.children.cpu"], before);
}

TEST_F(ProcessSourceTest, APidOfAnotherProcessIsNotFollowed) {
  source_.Sample(0, &board_);
  (void)Newest(&board_);
  tree_.Put("/proc/100/stat", StatOf(100, 'R', 1, 999, 10));
  source_.Sample(1, &board_);
  EXPECT_FALSE(Newest(&board_)["rank.3.cpu"]);
}

TEST_F(ProcessSourceTest, ChildrenAreLookedForWhenSomethingHasStarted) {
  tree_.Put("/proc/200/task/200/children", "");
  const auto count = [&](std::uint64_t tick, Counted started) {
    source_.SetStarted(started);
    source_.Sample(tick, &board_);
    return Newest(&board_)["rank.3.children.count"];
  };
  EXPECT_EQ(count(0, 5), 3);
  tree_.Put("/proc/202/stat", StatOf(202, 'S', 1, 900, 1));
  tree_.Put("/proc/100/task/100/children", "200 201 202 ");
  EXPECT_EQ(count(2, 5), 3);  // nobody can have started it
  EXPECT_EQ(count(4, 6), 4);
  // Below a child that had none it is looked less often, but also when nothing has started since.
  tree_.Put("/proc/301/stat", StatOf(301, 'S', 1, 900, 1));
  tree_.Put("/proc/200/task/200/children", "301 ");
  EXPECT_EQ(count(6, 7), 4);
  EXPECT_EQ(count(8, 7), 5);
  tree_.Put("/proc/302/stat", StatOf(302, 'S', 1, 900, 1));
  tree_.Put("/proc/200/task/200/children", "301 302 ");
  EXPECT_EQ(count(10, std::nullopt), 6);  // a system that does not count
  EXPECT_EQ(count(20, std::nullopt), 6);
}

TEST_F(ProcessSourceTest, RunQueuesOfThreadsThatComeAndGoAddUp) {
  const auto waited = [&](std::uint64_t tick) {
    source_.Sample(tick, &board_);
    return Newest(&board_)["rank.3.run_queue"];
  };
  EXPECT_EQ(waited(0), 1500);
  tree_.Put("/proc/100/task/101/schedstat", "1 700 1\n");
  tree_.Put("/proc/100/task/102/schedstat", "1 50 1\n");
  EXPECT_EQ(waited(10), 1750);
  fs::remove_all(tree_.root() + "/proc/100/task/101");
  EXPECT_EQ(waited(20), 1750);
  tree_.Put("/proc/100/task/101/schedstat", "1 30 1\n");  // another thread with its number
  EXPECT_EQ(waited(30), 1780);
}

TEST_F(ProcessSourceTest, FilesOfManyThreadsAreNotAllKeptOpen) {
  const auto descriptors = [] { return NamesIn("/proc/self/fd", 100'000).size(); };
  for (int id = 1000; id < 1300; ++id)
    tree_.Put("/proc/100/task/" + std::to_string(id) + "/schedstat", "1 10 1\n");
  const std::size_t before = descriptors();
  for (const std::uint64_t tick : {0U, 10U}) {
    source_.Sample(tick, &board_);
    EXPECT_EQ(Newest(&board_)["rank.3.run_queue"], 1500 + 300 * 10);
    EXPECT_LT(descriptors(), before + 100);
  }
}

// ---- GPUs ----

/// Samples until there is a reading, or for two seconds.
Newest Readings(GpuSource* source, Board* board, const char* awaited, int from = 0) {
  for (int tick = from; tick < from + 400; ++tick) {
    source->Sample(static_cast<std::uint64_t>(tick), board);
    Board* const seen = board;
    Newest newest(seen);
    if (newest[awaited]) return newest;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return Newest(board);
}

class NvmlTest : public ::testing::Test {
 protected:
  void Plan(const std::string& text) const {
    tree_.Put("/plan", text);
    setenv("LUFF_NVML_PLAN", (tree_.root() + "/plan").c_str(), 1);
  }
  /// The library keeps its plan, so each test loads a copy of its own.
  [[nodiscard]] std::string Library() const {
    const std::string copy = tree_.root() + "/libnvidia-ml.so";
    fs::copy_file(LUFF_NVML_DOUBLE, copy);
    return copy;
  }
  const Tree tree_;
  Board board_;
};

TEST_F(NvmlTest, TwoGpusAreRead) {
  Plan("gpm 1\nreasons 32\n");
  GpuSource source(true, Library(), tree_.root());
  (void)Readings(&source, &board_, "gpu.0.utilisation");
  const Newest newest = Readings(&source, &board_, "gpu.1.sm_active", 10);  // counters take two
  EXPECT_EQ(newest["gpu.0.utilisation"], 630'000);
  EXPECT_EQ(newest["gpu.1.memory.used"], 14LL << 30U);
  EXPECT_EQ(newest["gpu.0.power"], 310'000);
  EXPECT_EQ(newest["gpu.0.clock"], 1'980'000);
  EXPECT_EQ(newest["gpu.0.clock.reasons"], 32);
  EXPECT_EQ(newest["gpu.0.sm_active"], 410'000);
  EXPECT_EQ(newest["gpu.0.tensor_active"], 120'000);
  EXPECT_FALSE(newest["gpu.0.memory.active"]);  // failed
  EXPECT_FALSE(newest["gpu.0.sm_occupancy"]);   // no number
  EXPECT_EQ(source.Described().size(), 2U);
  EXPECT_EQ(StateOf(source, "gpu"), SourceState::kRead);
}

TEST_F(NvmlTest, ProcessesAreCountedAgainAfterTenSeconds) {
  Plan("processes 3\n");
  GpuSource source(true, Library(), tree_.root());
  (void)Readings(&source, &board_, "gpu.0.utilisation");
  for (const int tick : {60, 80, 100})
    EXPECT_EQ(Readings(&source, &board_, "gpu.0.processes", tick)["gpu.0.processes"], 3) << tick;
}

TEST_F(NvmlTest, WhatFailsIsAbsentAndTheRestIsRead) {
  Plan("fail utilisation\nfail energy\nmig 1\n");
  GpuSource source(true, Library(), tree_.root());
  const Newest newest = Readings(&source, &board_, "gpu.0.memory.used");
  EXPECT_TRUE(newest["gpu.0.memory.used"]);
  EXPECT_FALSE(newest["gpu.1.utilisation"]);
  EXPECT_FALSE(newest["gpu.0.energy"]);
}

TEST_F(NvmlTest, ADeviceThatIsLostIsAbsentAndTheOtherIsReadOn) {
  Plan("lose 40\n");
  GpuSource source(true, Library(), tree_.root());
  EXPECT_TRUE(Readings(&source, &board_, "gpu.1.utilisation")["gpu.1.utilisation"]);
  bool lost = false;
  for (int tick = 10; tick < 2000 && !lost; tick += 10) {
    const Newest newest = Readings(&source, &board_, "gpu.0.utilisation", tick);
    ASSERT_TRUE(newest["gpu.0.utilisation"]) << tick;
    lost = !newest["gpu.1.utilisation"];
  }
  EXPECT_TRUE(lost);
}

TEST_F(NvmlTest, ALibraryWithoutItsFunctionsIsNone) {
  GpuSource source(true, "libm.so.6", tree_.root());
  for (int i = 0; i < 12'000 && StateOf(source, "gpu") == SourceState::kUnread; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::vector<SourceReport> reports;
  source.Report(&reports);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports.back().state, SourceState::kAbsent);
  EXPECT_NE(reports.back().why.find("lacks functions"), std::string::npos) << reports.back().why;
}

TEST_F(NvmlTest, ADriverThatNeverAnswersHoldsNobodyUp) {
  Plan("hang 1\n");
  {
    GpuSource source(true, Library(), tree_.root());
    for (std::uint64_t tick = 0; tick < 50; ++tick) source.Sample(tick, &board_);
    EXPECT_FALSE(Newest(&board_)["gpu.0.utilisation"]);
  }  // and its end waits for nobody
}

TEST_F(NvmlTest, ASlowDriverIsAskedLessOften) {
  Plan("slow 10\n");
  GpuSource source(true, Library(), tree_.root());
  (void)Readings(&source, &board_, "gpu.0.utilisation");
  source.Sample(500, &board_);
  std::vector<SourceReport> reports;
  source.Report(&reports);
  ASSERT_FALSE(reports.empty());
  EXPECT_NE(reports.back().why.find("slow"), std::string::npos) << reports.back().why;
}

TEST_F(NvmlTest, NoDriverIsAbsent) {
  for (const auto& [library, plan] :
       {std::pair<std::string, std::string>{tree_.root() + "/none.so", ""}, {Library(), "fail init\n"}}) {
    Plan(plan);
    GpuSource source(true, library, tree_.root());
    for (int i = 0; i < 400 && StateOf(source, "gpu") == SourceState::kUnread; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(StateOf(source, "gpu"), SourceState::kAbsent);
    source.Sample(0, &board_);
    EXPECT_FALSE(Newest(&board_)["gpu.0.utilisation"]);
  }
}

TEST(AmdTest, CardsAreFiles) {
  const Tree tree;
  const std::string card = "/sys/class/drm/card0/device/";
  tree.Put(card + "vendor", "0x1002\n");
  tree.Put(card + "gpu_busy_percent", "87\n");
  tree.Put(card + "mem_info_vram_used", "1000\n");
  tree.Put(card + "hwmon/hwmon3/power1_average", "250000000\n");
  tree.Put("/sys/class/drm/card1/device/vendor", "0x8086\n");
  Board board;
  GpuSource source(true, "", tree.root());
  source.Sample(0, &board);
  const Newest newest(&board);
  EXPECT_EQ(newest["gpu.0.utilisation"], 870'000);
  EXPECT_EQ(newest["gpu.0.memory.used"], 1'000);
  EXPECT_EQ(newest["gpu.0.power"], 250'000);
  EXPECT_FALSE(newest["gpu.1.utilisation"]);
}

// ---- The whole ----

TEST(SamplerTest, MeasuresThisMachineIntoTheRun) {
  const store::TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
  const auto info = store::CreateRun(run, store::TestRun(), false, false);
  ASSERT_TRUE(info.ok());
  store::WriterOptions options;
  options.run_path = run;
  const auto worker = store::WorkerWriter::Open(options, *info).value();
  SamplerOptions sampler;
  sampler.run_path = run;
  sampler.hz = 10;
  sampler.ticks = 12;
  sampler.gpus = false;
  ASSERT_TRUE(RunSampler(sampler).ok());
  const auto samples = query::Samples::Open(run).value();
  ASSERT_EQ(samples->hosts().size(), 1U);
  const query::HostSamples& host = samples->hosts().front();
  EXPECT_TRUE(host.ended());
  const MachineUse use = UseOf(host).value();
  EXPECT_GT(use.seconds, 0.5);
  EXPECT_GT(use.cores, 0);
  EXPECT_FALSE(use.name.empty());
  ASSERT_TRUE(use.busy);
  ASSERT_EQ(use.ranks.size(), 1U);
  EXPECT_EQ(use.ranks[0].worker, 0U);
  EXPECT_GT(use.ranks[0].most_rss.value_or(0), 1e6);
  EXPECT_GT(use.memory_total.value_or(0), 1e8);
  EXPECT_EQ(store::VerifyRun(run)->damage_count, 0U);
}

TEST(SamplerTest, TwoRunsOfAMachineHaveOneEach) {
  const store::TemporaryDirectory directory;
  std::vector<std::unique_ptr<store::WorkerWriter>> trainings;
  std::vector<std::thread> samplers;
  for (const char* name : {"/one", "/other"}) {
    SamplerOptions sampler;
    sampler.run_path = directory.path() + name;
    sampler.hz = 10;
    sampler.ticks = 12;
    sampler.gpus = false;
    const auto info = store::CreateRun(sampler.run_path, store::TestRun(), false, false);
    ASSERT_TRUE(info.ok());
    store::WriterOptions options;
    options.run_path = sampler.run_path;
    trainings.push_back(store::WorkerWriter::Open(options, *info).value());
    samplers.emplace_back([sampler] { EXPECT_TRUE(RunSampler(sampler).ok()); });
  }
  for (std::thread& sampler : samplers) sampler.join();
  for (const char* name : {"/one", "/other"}) {
    const auto samples = query::Samples::Open(directory.path() + name).value();
    ASSERT_EQ(samples->hosts().size(), 1U) << name;
    EXPECT_TRUE(samples->hosts().front().ended());
    EXPECT_EQ(UseOf(samples->hosts().front())->ranks.size(), 1U);
  }
}

TEST(SamplerTest, EndsWhenNobodyHoldsItsPipe) {
  const store::TemporaryDirectory directory;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  SamplerOptions options;
  options.run_path = directory.path() + "/never";
  options.until_closed_fd = ends[0];
  std::thread sampler([&] { EXPECT_TRUE(RunSampler(options).ok()); });
  close(ends[1]);
  sampler.join();
  close(ends[0]);
}

TEST(SamplerTest, ASecondOneLeaves) {
  const store::TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
  ASSERT_TRUE(store::CreateRun(run, store::TestRun(), false, false).ok());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  SamplerOptions options;
  options.run_path = run;
  options.gpus = false;
  options.until_closed_fd = ends[0];
  std::thread first([&] { EXPECT_TRUE(RunSampler(options).ok()); });
  while (query::Samples::Open(run).value()->hosts().empty()) std::this_thread::yield();
  SamplerOptions second = options;
  second.until_closed_fd = -1;
  const Status status = RunSampler(second);  // the folder is locked: returns although nobody writes
  EXPECT_TRUE(status.ok()) << status.ToString();
  close(ends[1]);
  first.join();
  close(ends[0]);
}

}  // namespace
}  // namespace luff::profile::sampler_test
