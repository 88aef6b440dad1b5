// Samples of hosts, written as a sampler writes them and read as others do.
#include "luff/query/samples.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "luff/query/trial.h"
#include "luff/store/verify.h"
#include "store/test_run.h"

namespace luff::query::samples_test {
namespace {

using store::StepBatch;
using store::WorkerWriter;

class Host {
 public:
  Host(const std::string& run, std::uint32_t number, std::uint64_t max_bytes = 0) {
    store::WriterOptions options;
    options.run_path = run;
    options.worker = number;
    options.host = true;
    options.segment_bytes_meta = 32 << 10;
    options.summary_max_bytes = max_bytes;
    writer_ = WorkerWriter::Open(options, store::TestRun()).value();
    StepBatch batch;
    batch.series = {
        {0, format::SeriesUnit::kNanoseconds, format::SeriesKind::kCounter, format::kNoId, "cpu.busy"},
        {1, format::SeriesUnit::kBytes, format::SeriesKind::kGauge, format::kNoId, "mem.available"}};
    batch.documents = {{"host", "{\"name\":\"node\"}"}};
    EXPECT_TRUE(writer_->PublishLoose(batch).ok());
  }
  /// Five samples, half a second apart.
  void Write(std::int64_t first) {
    StepBatch batch;
    format::SampleBlock block;
    block.first_unix_ns = kStart + first * 500'000'000;
    block.series = {{0, format::SeriesKind::kCounter, {}, {}}, {1, format::SeriesKind::kGauge, {}, {}}};
    for (std::int64_t i = first; i < first + 5; ++i) {
      block.mono_ns.push_back(i * 500'000'000);
      block.series[0].values.push_back(i * 400'000'000);
      block.series[1].values.push_back(i % 5 == 3 ? format::kNoSample : 1'000 + i);
    }
    batch.samples = {block};
    ASSERT_TRUE(writer_->PublishLoose(batch).ok());
  }
  void Close() { ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok()); }
  static constexpr std::int64_t kStart = 1'700'000'000'000'000'000;

 private:
  std::unique_ptr<WorkerWriter> writer_;
};

class SamplesTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(store::CreateRun(run_, store::TestRun(), false, false).ok()); }
  store::TemporaryDirectory directory_;
  const std::string run_ = directory_.path() + "/run";
};

TEST_F(SamplesTest, AreColumnsByTime) {
  Host host(run_, 7);
  host.Write(0);
  const auto samples = Samples::Open(run_).value();
  ASSERT_EQ(samples->hosts().size(), 1U);
  const HostSamples& read = samples->hosts().front();
  EXPECT_EQ(read.number(), 7U);
  EXPECT_EQ(read.Document("host"), "{\"name\":\"node\"}");
  ASSERT_EQ(read.series().size(), 2U);
  EXPECT_EQ(read.series()[1].name, "mem.available");
  const SampleColumns memory = read.Read("mem.available").value();
  EXPECT_EQ(memory.value, (std::vector<double>{1000, 1001, 1002, 1004}));
  EXPECT_EQ(memory.unix_ns.back(), Host::kStart + 2'000'000'000);
  const Rate rate = RateOf(read.Read("cpu.busy").value());
  EXPECT_DOUBLE_EQ(rate.per_second(), 0.8);
  const SampleColumns part =
      read.Read("cpu.busy", {Host::kStart + 500'000'000, Host::kStart + 1'000'000'000}).value();
  EXPECT_EQ(part.value, (std::vector<double>{0.4, 0.8}));
  EXPECT_EQ(read.Read("gpu.0.power").status().code(), StatusCode::kNotFound);

  host.Write(5);
  EXPECT_TRUE(samples->Refresh().value());
  EXPECT_EQ(samples->hosts().front().Read("cpu.busy")->value.size(), 10U);
  EXPECT_EQ(samples->hosts().front().last_unix_ns(), Host::kStart + 4'500'000'000);
  EXPECT_FALSE(samples->hosts().front().ended());
  host.Close();
  EXPECT_TRUE(samples->Refresh().value());
  EXPECT_TRUE(samples->hosts().front().ended());
}

TEST_F(SamplesTest, AHostIsNoWorkerAndItsFilesAreVerified) {
  Host host(run_, 123'456'789);
  host.Write(0);
  host.Close();
  const auto trial = Trial::Open(run_).value();
  EXPECT_TRUE(trial->workers().empty());
  const auto good = store::VerifyRun(run_);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->damage_count, 0U);
  EXPECT_GT(good->frames, 2U);
  const std::string path = run_ + "/h123456789/m-000001.lfm";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(4096 + 40);
  file.put('x');
  file.close();
  const auto bad = store::VerifyRun(run_);
  ASSERT_TRUE(bad.ok());
  EXPECT_GT(bad->damage_count, 0U);
}

TEST_F(SamplesTest, ASamplerThatDiedIsFollowedByAnother) {
  {
    Host first(run_, 1);
    first.Write(0);
  }  // no end
  Host second(run_, 1);
  second.Write(20);
  second.Close();
  const auto samples = Samples::Open(run_).value();
  ASSERT_EQ(samples->hosts().size(), 1U);
  const HostSamples& read = samples->hosts().front();
  EXPECT_EQ(read.epochs(), 2U);
  EXPECT_EQ(read.Read("cpu.busy")->value.size(), 10U);
  EXPECT_TRUE(read.ended());
}

TEST_F(SamplesTest, OldOnesAreMergedInTensWhenTheirRoomIsUsedUp) {
  Host host(run_, 1, 64 << 10);
  for (std::int64_t i = 0; i < 20'000; i += 5) host.Write(i);
  host.Close();
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run_ + "/h0001")) bytes += entry.file_size();
  EXPECT_LT(bytes, 200U << 10U);
  const auto samples = Samples::Open(run_).value();
  const SampleColumns memory = samples->hosts().front().Read("mem.available").value();
  EXPECT_LT(memory.value.size(), 8'000U);
  EXPECT_GT(memory.merged.front(), 1U);
  EXPECT_EQ(memory.merged.back(), 1U);
  EXPECT_TRUE(std::ranges::is_sorted(memory.unix_ns));
  EXPECT_GT(memory.most.front(), memory.value.front());
  // Nothing of a counter's growth is lost.
  const Rate rate = RateOf(samples->hosts().front().Read("cpu.busy").value());
  EXPECT_NEAR(rate.per_second(), 0.8, 1e-9);
  EXPECT_GT(rate.seconds, 9'900);
  EXPECT_EQ(store::VerifyRun(run_)->damage_count, 0U);
}

TEST_F(SamplesTest, ARunWithoutSamplesHasNoHosts) {
  EXPECT_TRUE(Samples::Open(run_).value()->hosts().empty());
  EXPECT_EQ(Samples::Open(directory_.path() + "/none").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace luff::query::samples_test
