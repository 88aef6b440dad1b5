// What is kept of overviews is used again, and never in the way: damaged, foreign, newer and half-written
// files, folders of others, and full disks.
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "luff/base/env.h"
#include "query/testing.h"
#include "server/overview_cache.h"
#include "server/overview_file.h"

namespace luff::server::overview_cache_test {
namespace {

namespace fs = std::filesystem;
using query::Mode;
using query::Trial;
using query::testing::TempRun;
using query::testing::Writing;

/// A run of 40 steps, its trial and a cache.
class House {
 public:
  explicit House(std::uint64_t bytes = std::uint64_t{1} << 20, float value = 1)
      : folder(run_.path() + "-cache"),
        cache(folder, bytes) {
    Writing w(run_.path(), 0, 1);
    for (query::TensorId id = 0; id < 3; ++id) w.Define(id, "t" + std::to_string(id), 1);
    for (int step = 0; step < 40; ++step) {
      const float values[] = {value + static_cast<float>(step)};
      for (query::TensorId id = 0; id < 3; ++id) w.AddSummary(id, values);
      w.Step();
    }
    w.Close();
    trial = Trial::Open(run_.path()).value();
  }
  /// Reads all, or the newest steps.
  [[nodiscard]] Overview Built(std::size_t steps = 1000) const {
    Overview overview(Mode::kTrain);
    EXPECT_TRUE(overview.Read(*trial, steps).ok());
    return overview;
  }
  void Keep(const std::string& id = "id") const {
    Overview overview = Built();
    cache.Save(id, *trial, &overview);
  }
  [[nodiscard]] std::uint64_t Loaded(const std::string& id = "id") const {
    Overview overview(Mode::kTrain);
    cache.Load(id, *trial, &overview);
    return overview.state().to - overview.state().from;
  }
  [[nodiscard]] std::string File(const std::string& id = "id") const {
    return folder + "/" + id + "-TRAIN.overview";
  }
  [[nodiscard]] std::string Bytes() const { return *ReadWholeFile(Env::Real(), File(), 1 << 20); }
  void Put(std::string_view bytes) const { std::ofstream(File(), std::ios::binary) << bytes; }

 private:
  TempRun run_;

 public:
  const std::string folder;
  const OverviewCache cache;
  std::unique_ptr<Trial> trial;
};

TEST(OverviewCache, KeepsAndTakesUp) {
  const House house;
  EXPECT_EQ(house.Loaded(), 0U);
  Overview overview = house.Built(10);  // the newest
  EXPECT_GT(overview.anonymous_bytes(), 0U);
  house.cache.Save("id", *house.trial, &overview);
  EXPECT_EQ(overview.anonymous_bytes(), 0U);  // it lives in the file now
  EXPECT_EQ(house.Loaded(), 10U);
  EXPECT_EQ(overview.At(39, 0).lo[0], 40.0F);

  Overview more(Mode::kTrain);
  house.cache.Load("id", *house.trial, &more);
  ASSERT_TRUE(*more.Read(*house.trial, 1000));
  house.cache.Save("id", *house.trial, &more);
  EXPECT_EQ(house.Loaded(), 40U);
  house.cache.Save("id", *house.trial, &overview);  // of a process that is behind
  EXPECT_EQ(house.Loaded(), 40U);
  struct stat info{};
  ASSERT_EQ(stat(house.folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  ASSERT_EQ(stat(house.File().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(OverviewCache, IsBoundToItsRun) {
  const House house;
  house.Keep();
  const House other(std::uint64_t{1} << 20, 7);  // the same names and steps
  fs::create_directories(other.folder);
  fs::permissions(other.folder, fs::perms::owner_all);
  fs::copy_file(house.File(), other.File());
  EXPECT_EQ(other.Loaded(), 0U);
  fs::copy_file(house.File(), house.File("another"));
  EXPECT_EQ(house.Loaded("another"), 0U);
}

TEST(OverviewCache, DamageMeansBuildingAgain) {
  const House house;
  house.Keep();
  const std::string whole = house.Bytes();
  for (std::size_t at = 0; at < whole.size(); at += at < 256 ? 1 : 977) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    house.Put(damaged);
    const std::uint64_t loaded = house.Loaded();  // bytes between columns belong to nobody
    EXPECT_TRUE(loaded == 0 || (loaded == 40 && at > 256)) << at;
  }
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{103}, std::size_t{5000}, whole.size() / 2}) {
    house.Put(whole.substr(0, size));
    EXPECT_EQ(house.Loaded(), 0U) << size;
  }
  std::string newer = whole;
  newer[8] = 2;
  house.Put(newer);
  EXPECT_EQ(house.Loaded(), 0U);
  house.Keep();
  EXPECT_EQ(house.Loaded(), 40U);
  fs::remove(house.File());
  fs::create_symlink("/etc/passwd", house.File());
  EXPECT_EQ(house.Loaded(), 0U);
  fs::remove(house.File());
  fs::create_directory(house.File());
  EXPECT_EQ(house.Loaded(), 0U);
  house.Keep();  // cannot be kept; nothing happens
}

TEST(OverviewCache, RemovesWhatWasNotUsedForLongest) {
  const House house;
  house.Keep("one");
  const std::uint64_t bytes = fs::file_size(house.File("one"));
  const OverviewCache small(house.folder, 5 * bytes / 2);
  Overview second = house.Built();
  small.Save("two", *house.trial, &second);
  const auto now = fs::last_write_time(house.File("two"));
  fs::last_write_time(house.File("one"), now - std::chrono::hours(2));
  fs::last_write_time(house.File("two"), now - std::chrono::hours(1));
  EXPECT_EQ(house.Loaded("one"), 40U);  // used
  Overview third = house.Built();
  small.Save("three", *house.trial, &third);
  EXPECT_TRUE(fs::exists(house.File("one")));
  EXPECT_FALSE(fs::exists(house.File("two")));
  EXPECT_TRUE(fs::exists(house.File("three")));
  const OverviewCache none(house.folder, 0);
  Overview overview = house.Built();
  none.Save("four", *house.trial, &overview);
  EXPECT_FALSE(fs::exists(house.File("four")));
}

TEST(OverviewCache, FoldersOfOthersAreNotUsed) {
  const House house;
  fs::create_directories(house.folder);
  fs::permissions(house.folder, fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
  house.Keep();
  EXPECT_TRUE(fs::is_empty(house.folder));
  fs::remove(house.folder);
  ASSERT_TRUE(WriteWholeFile(Env::Real(), house.folder, "a file").ok());
  house.Keep();
  EXPECT_EQ(house.Loaded(), 0U);
  const OverviewCache nowhere("", 1 << 20);
  Overview overview = house.Built();
  nowhere.Save("id", *house.trial, &overview);
  EXPECT_GT(overview.anonymous_bytes(), 0U);
}

TEST(OverviewCache, AFullDiskIsNoError) {
  const House house;
  // A limit on the size of files stands for a full disk: writing fails in the same way.
  struct Limited {
    Limited() {
      getrlimit(RLIMIT_FSIZE, &before);
      rlimit less = before;
      less.rlim_cur = 8192;
      setrlimit(RLIMIT_FSIZE, &less);
      handler = std::signal(SIGXFSZ, SIG_IGN);
    }
    ~Limited() {
      setrlimit(RLIMIT_FSIZE, &before);
      std::signal(SIGXFSZ, handler);
    }
    rlimit before{};
    void (*handler)(int) = nullptr;
  };
  Overview overview = house.Built();
  {
    const Limited limited;
    house.cache.Save("id", *house.trial, &overview);
  }
  EXPECT_GT(overview.anonymous_bytes(), 0U);  // it stays in memory
  EXPECT_EQ(overview.At(39, 0).lo[0], 40.0F);
  EXPECT_TRUE(fs::is_empty(house.folder));
  house.Keep();
  EXPECT_EQ(house.Loaded(), 40U);
}

}  // namespace
}  // namespace luff::server::overview_cache_test
