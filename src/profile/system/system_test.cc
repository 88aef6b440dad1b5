// Files of /proc, /sys and of control groups, as kernels write them and as nobody should.
#include <gtest/gtest.h>

#include <string>

#include "profile/system/cgroup_text.h"
#include "profile/system/machine_text.h"
#include "profile/system/process_text.h"

namespace luff::profile::system_test {
namespace {

constexpr std::int64_t kTick = 10'000'000;

TEST(MachineText, CoresHaveBusyWaitingAndStolenTime) {
  const MachineTimes times = ParseStatUntrusted(
      "cpu  100 10 50 1000 7 3 2 5 0 0\ncpu0 60 0 20 500 7 1 1 5 0 0\ncpu1 40 10 30 500 0 2 1 0\nintr 5 1\n"
      "ctxt 4711\nbtime 1\nprocesses 812\n",
      kTick);
  ASSERT_EQ(times.cores.size(), 3U);
  EXPECT_EQ(times.cores[0].core, -1);
  EXPECT_EQ(times.cores[0].busy, (100 + 10 + 50 + 3 + 2) * kTick);
  EXPECT_EQ(times.cores[0].iowait, 7 * kTick);
  EXPECT_EQ(times.cores[0].steal, 5 * kTick);
  EXPECT_EQ(times.cores[2].core, 1);
  EXPECT_EQ(times.context_switches, 4711);
  EXPECT_EQ(times.started, 812);
  for (const char* none : {"processes -1\n", "processes 0\n", "processes\n", "btime 5\n"})
    EXPECT_FALSE(ParseStatUntrusted(none, kTick).started) << none;
}

TEST(MachineText, MemoryPagesAndPressure) {
  const MemoryInfo memory = ParseMeminfoUntrusted(
      "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   12000000 kB\nCached: 5 kB\nSwapTotal: 0 "
      "kB\n");
  EXPECT_EQ(memory.total, 24'000'000LL * 1024);
  EXPECT_EQ(memory.available, 12'000'000LL * 1024);
  EXPECT_EQ(memory.swap_total, 0);
  EXPECT_FALSE(memory.swap_free);
  const PageCounts pages =
      ParseVmstatUntrusted("nr_free_pages 4\npswpin 12\npswpout 3\npgmajfault 99\noom_kill 1\n");
  EXPECT_EQ(pages.swapped_in, 12);
  EXPECT_EQ(pages.oom_kills, 1);
  const Pressure pressure = ParsePressureUntrusted(
      "some avg10=56.86 avg60=83.69 avg300=73.55 total=444778842\nfull avg10=0.00 avg60=0.00 avg300=0.00 "
      "total=7\n");
  EXPECT_EQ(pressure.some, 444'778'842'000);
  EXPECT_EQ(pressure.full, 7'000);
}

TEST(MachineText, OnlyWholeDisksAndRealInterfacesCount) {
  const auto disks = ParseDiskstatsUntrusted(
      "   7       0 loop0 1 0 8 0 0 0 0 0 0 4 0\n 254       0 vda 100 5 2000 30 40 6 800 20 0 50 50 0 0 0 0\n"
      " 254       1 vda1 90 5 1800 30 40 6 800 20 0 50 50\n 259 0 nvme0n1 1 0 8 1 2 0 16 1 0 3 3\n"
      " 259 1 nvme0n1p1 1 0 8 1 2 0 16 1 0 3 3\n 253 0 dm-0 1 0 8 1 2 0 16 1 0 3 3\n");
  ASSERT_EQ(disks.size(), 2U);
  EXPECT_EQ(disks[0].name, "vda");
  EXPECT_EQ(disks[0].reads, 100);
  EXPECT_EQ(disks[0].read_bytes, 2000 * 512);
  EXPECT_EQ(disks[0].write_bytes, 800 * 512);
  EXPECT_EQ(disks[0].busy_ns, 50'000'000);
  EXPECT_EQ(disks[1].name, "nvme0n1");
  const auto interfaces = ParseNetDevUntrusted(
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n"
      "    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n  eth0:1234 10 0 0 0 0 0 0 777 9 0 0 0 0 0 0\n");
  ASSERT_EQ(interfaces.size(), 1U);
  EXPECT_EQ(interfaces[0].name, "eth0");
  EXPECT_EQ(interfaces[0].received, 1234);
  EXPECT_EQ(interfaces[0].sent, 777);
  EXPECT_EQ(ParseRetransmitsUntrusted("Ip: a b\nIp: 1 2\nTcp: X RetransSegs Y\nTcp: 1 42 3\n"), 42);
  EXPECT_FALSE(ParseRetransmitsUntrusted("Tcp: X RetransSegs Y\n"));
}

TEST(MachineText, NumbersThatAreNoneAreAbsent) {
  EXPECT_FALSE(ParseOneNumberUntrusted("max\n"));
  EXPECT_FALSE(ParseOneNumberUntrusted("-5"));
  EXPECT_FALSE(ParseOneNumberUntrusted("99999999999999999999999"));
  EXPECT_FALSE(ParseOneNumberUntrusted("9223372036854771712"));  // version 1's "no limit"
  EXPECT_EQ(ParseOneNumberUntrusted("12\n"), 12);
  EXPECT_TRUE(ParseStatUntrusted("cpu 1 2\ncpux 1 2 3 4\ncpu99999999 1 2 3 4\n", kTick).cores.empty());
  EXPECT_TRUE(ParseStatUntrusted("cpu0 99999999999999999999 2 3 4\n", kTick).cores.empty());
  EXPECT_FALSE(ParsePressureUntrusted("some total=\nfull total=-1\n").some);
  EXPECT_TRUE(ParseNetDevUntrusted("a b: 1 2 3 4 5 6 7 8 9\n").front().name == "a");
  EXPECT_TRUE(ParseNetDevUntrusted("../x: 1 2 3 4 5 6 7 8 9\n").empty());
}

constexpr const char* kV2Mounts =
    "25 30 0:22 / /proc rw - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(Cgroup, VersionTwo) {
  const CgroupFolders found = FindCgroupsUntrusted("0::/user.slice/job.scope\n", kV2Mounts);
  EXPECT_TRUE(found.v2_cpu && found.v2_memory && found.v2_io);
  EXPECT_EQ(found.cpu, "/sys/fs/cgroup/user.slice/job.scope");
  EXPECT_EQ(found.unified, found.memory);
}

TEST(Cgroup, VersionOneAndBothAtOnce) {
  const CgroupFolders found =
      FindCgroupsUntrusted("4:memory:/docker/ab\n2:cpuacct:/docker/ab\n1:cpu:/docker/ab\n0::/docker/ab\n",
                           "32 31 0:29 /docker/ab /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                           "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
                           "35 31 0:32 /docker/ab /sys/fs/cgroup/memory\\040x rw - cgroup cgroup rw,memory\n"
                           "41 31 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  EXPECT_EQ(found.cpu, "/sys/fs/cgroup/cpu");  // the mount shows the group itself
  EXPECT_EQ(found.cpuacct, "/sys/fs/cgroup/cpuacct/docker/ab");
  EXPECT_EQ(found.memory, "/sys/fs/cgroup/memory x");
  EXPECT_FALSE(found.v2_cpu);
  EXPECT_TRUE(found.v2_io);
  EXPECT_EQ(found.io, "/sys/fs/cgroup/unified/docker/ab");
}

TEST(Cgroup, AGroupOutsideOfTheMountIsTheMount) {
  EXPECT_EQ(FindCgroupsUntrusted("0::/../other\n", kV2Mounts).cpu, "/sys/fs/cgroup");
  EXPECT_EQ(FindCgroupsUntrusted("0::/a/../../etc\n", kV2Mounts).cpu, "/sys/fs/cgroup");
  EXPECT_EQ(FindCgroupsUntrusted("0::/\n", "").cpu, "");
  EXPECT_EQ(FindCgroupsUntrusted("", kV2Mounts).cpu, "");
}

TEST(Cgroup, LimitsAndThrottling) {
  EXPECT_EQ(ParseCpuMaxUntrusted("150000 100000\n"), 1'500'000);
  EXPECT_FALSE(ParseCpuMaxUntrusted("max 100000\n"));
  EXPECT_FALSE(ParseCpuMaxUntrusted("100000 0\n"));
  EXPECT_EQ(CoresOfQuotaUntrusted("200000\n", "100000\n"), 2'000'000);
  EXPECT_FALSE(CoresOfQuotaUntrusted("-1\n", "100000\n"));
  const CpuUse use = ParseCpuStatUntrusted(
      "usage_usec 1000\nuser_usec 600\nnr_periods 100\nnr_throttled 64\nthrottled_usec 5\nnr_bursts 0\n");
  EXPECT_EQ(use.usage_ns, 1'000'000);
  EXPECT_EQ(use.periods, 100);
  EXPECT_EQ(use.throttled_periods, 64);
  EXPECT_EQ(use.throttled_ns, 5'000);
  EXPECT_EQ(ParseCpuStatUntrusted("nr_periods 1\nthrottled_time 77\n").throttled_ns, 77);
  EXPECT_EQ(ParseOomKillsUntrusted("low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n"), 1);
  const IoUse io = ParseIoStatUntrusted("8:0 rbytes=100 wbytes=5 rios=1\n8:16 rbytes=11 wbytes=x\n");
  EXPECT_EQ(io.read, 111);
  EXPECT_EQ(io.written, 5);
}

TEST(ProcessText, NamesMayHoldAnything) {
  const auto stat = ParseProcessStatUntrusted(
      "42 (a ) R 1 (b) D 7 42 42 0 -1 4194304 98 0 12 0 30 20 0 0 20 0 5 0 97296 3133440 379 184467 1 1\n",
      kTick);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->state, 'D');
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->major_faults, 12);
  EXPECT_EQ(stat->cpu_ns, 50 * kTick);
  EXPECT_EQ(stat->threads, 5);
  EXPECT_EQ(stat->start_ticks, 97296);
  EXPECT_EQ(stat->rss_pages, 379);
  EXPECT_FALSE(ParseProcessStatUntrusted("42 (python) S 7 42\n", kTick));
  EXPECT_FALSE(ParseProcessStatUntrusted("", kTick));
  EXPECT_EQ(ParseRunQueueUntrusted("100 23456 7\n"), 23456);
  EXPECT_FALSE(ParseRunQueueUntrusted("100\n"));
  EXPECT_EQ(ParseAnonymousPagesUntrusted("900 100 30 1 0 5 0\n"), 70);
  EXPECT_EQ(ParseAnonymousPagesUntrusted("900 10 30 1 0 5 0\n"), 0);
  EXPECT_FALSE(ParseAnonymousPagesUntrusted("900 10\n"));
  EXPECT_EQ(ParseProcessIoUntrusted("rchar: 5\nread_bytes: 4096\nwrite_bytes: 7\n").read, 4096);
  EXPECT_EQ(ParseChildrenUntrusted("11 12 -3 0 x 13 ", 8), (std::vector<int>{11, 12, 13}));
  EXPECT_EQ(ParseChildrenUntrusted("11 12 13", 2).size(), 2U);
}

}  // namespace
}  // namespace luff::profile::system_test
