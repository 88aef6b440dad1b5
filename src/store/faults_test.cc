// A disk that refuses writes: training continues, what was published stays, and gaps record what is missing.
#include <filesystem>

#include "base/testing/forwarding_env.h"
#include "luff/store/writer.h"
#include "store/test_run.h"

namespace luff::store::faults_test {
namespace {

constexpr std::size_t kElements = 100;

/// The real files until `fault` is set, and a clock that the test sets.
class FaultyEnv final : public ForwardingEnv {
 public:
  enum class Fault { kNone, kFull, kReadOnly, kGone };
  Fault fault = Fault::kNone;
  bool only_payload = false;
  std::int64_t now_ns = 1'000'000'000;
  std::uint64_t room_bytes = ~std::uint64_t{0};  // kFull: what still fits; the last write is torn

  [[nodiscard]] Status Refusal(const std::string& path) const {
    if (only_payload && !path.ends_with(".lfd")) return Status::Ok();
    switch (fault) {
      case Fault::kNone: return Status::Ok();
      case Fault::kFull: return ResourceExhausted("write: No space left on device");
      case Fault::kReadOnly: return IoError("write: Read-only file system");
      case Fault::kGone: return NotFound("write: No such file or directory");
    }
    return Status::Ok();
  }

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    if (mode != OpenMode::kRead) LUFF_RETURN_IF_ERROR(Refusal(path));
    if (mode == OpenMode::kWriteDirect) return InvalidArgument("open: no direct I/O here");
    auto file = Real().Open(path, mode);
    if (!file.ok()) return file;
    return std::unique_ptr<File>(new FaultyFile(*this, path, std::move(file).value()));
  }
  Status Rename(const std::string& from, const std::string& to) override {
    LUFF_RETURN_IF_ERROR(Refusal(to));
    return Real().Rename(from, to);
  }
  std::int64_t NowUnixNs() noexcept override { return now_ns; }
  std::int64_t NowMonotonicNs() noexcept override { return now_ns; }

 private:
  class FaultyFile final : public ForwardingFile {
   public:
    FaultyFile(FaultyEnv& env, std::string path, std::unique_ptr<File> file)
        : ForwardingFile(std::move(file)),
          env_(env),
          path_(std::move(path)) {}
    Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) override {
      Status refusal = env_.Refusal(path_);
      if (!refusal.ok()) {
        const auto room = std::min<std::uint64_t>(env_.room_bytes, bytes.size());
        if (env_.fault == Fault::kFull && env_.room_bytes != ~std::uint64_t{0}) {
          env_.room_bytes -= room;
          if (room == bytes.size()) return ForwardingFile::WriteAt(bytes, offset);
          (void)ForwardingFile::WriteAt(bytes.first(static_cast<std::size_t>(room)), offset);
        }
        return refusal;
      }
      return ForwardingFile::WriteAt(bytes, offset);
    }
    Status Truncate(std::uint64_t size) override {
      // On a full or read-only disk torn bytes stay where they are.
      LUFF_RETURN_IF_ERROR(env_.Refusal(path_));
      return ForwardingFile::Truncate(size);
    }
    Status Reserve(std::uint64_t offset, std::uint64_t bytes) override {
      LUFF_RETURN_IF_ERROR(env_.Refusal(path_));
      return ForwardingFile::Reserve(offset, bytes);
    }

   private:
    FaultyEnv& env_;
    const std::string path_;
  };
};

class FaultTest : public testing::TestWithParam<FaultyEnv::Fault> {
 protected:
  void SetUp() override {
    options_.run_path = run();
    options_.env = &env_;
    writer_ = OpenNewRun(options_, kElements);
    ASSERT_NE(writer_, nullptr);
  }
  Status Step(std::int64_t step, std::size_t rows = 1) {
    env_.now_ns += 50'000'000;
    StepBatch batch;
    if (!AppendValue(writer_.get(), step, kElements, &batch).ok()) {
      format::GapRow gap{};
      gap.tensor = 0;
      gap.collection = format::kNoId;
      gap.reason = static_cast<std::uint16_t>(format::GapReason::kIoError);
      gap.forms = static_cast<std::uint16_t>(format::Form::kRaw);
      gap.count = 1;
      gap.first_step = gap.last_step = step;
      batch.gaps = {gap};
    }
    batch.summaries.assign(rows, SummaryOf(0, step));
    batch.mark = MarkOf(step);
    return writer_->PublishStep(batch);
  }
  struct Seen {
    std::vector<std::int64_t> steps;
    std::uint64_t values = 0, gap_count = 0, whole_steps = 0;
  };
  Seen Read() {
    Seen seen;
    auto reader = RunReader::Open(run());
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    (void)(*reader)->Refresh();
    const auto& worker = *(*reader)->workers()[0];
    for (const auto& segment : worker.segments()) {
      for (const auto step : segment->steps().global_step) seen.steps.push_back(step);
      const auto slot = segment->FindSlot(0);
      if (!slot) continue;
      const auto index = segment->Index(*slot);
      if (!index.ok()) continue;
      for (std::size_t i = 0; i < index->rows.size(); ++i) {
        const auto payload = worker.ReadPayload(index->rows.subspan(i, 1), kElements * 4);
        if (!payload.ok()) continue;
        ++seen.values;
        EXPECT_TRUE(std::ranges::equal(payload->bytes,
                                       ValueOf(0, segment->steps().global_step[index->step[i]], kElements)));
      }
    }
    for (const auto& gap : worker.gaps()) {
      seen.gap_count += gap.row.count;
      if (gap.row.forms == 0) seen.whole_steps += gap.row.count;
    }
    return seen;
  }
  [[nodiscard]] std::string run() const { return directory_.path() + "/run"; }

  TemporaryDirectory directory_;
  FaultyEnv env_;
  WriterOptions options_;
  std::unique_ptr<WorkerWriter> writer_;
};

std::vector<std::int64_t> UpTo(std::int64_t n) {
  std::vector<std::int64_t> steps;
  for (std::int64_t i = 0; i < n; ++i) steps.push_back(i);
  return steps;
}

TEST_P(FaultTest, PublishedRowsStayAndRowsOfAShortOutageComeLater) {
  for (std::int64_t step = 0; step < 10; ++step) ASSERT_TRUE(Step(step).ok());
  env_.fault = GetParam();
  env_.room_bytes = 100;  // a torn write first
  for (std::int64_t step = 10; step < 20; ++step) EXPECT_FALSE(Step(step).ok());
  EXPECT_EQ(Read().steps, UpTo(10));
  EXPECT_EQ(Read().values, 10U);
  env_.fault = FaultyEnv::Fault::kNone;
  env_.now_ns += 60'000'000'000;
  for (std::int64_t step = 20; step < 30; ++step) EXPECT_TRUE(Step(step).ok()) << step;
  ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  const Seen seen = Read();
  EXPECT_EQ(seen.steps, UpTo(30));
  EXPECT_EQ(seen.values, 20U);
  EXPECT_EQ(seen.gap_count, 10U);  // the raw values of the outage, reported by Step()
}

TEST_P(FaultTest, WhatFindsNoRoomInMemoryIsAGap) {
  ASSERT_TRUE(Step(0).ok());
  env_.fault = GetParam();
  constexpr std::size_t kRows = 20'000;  // 1.6 MB a step: five of them fit
  for (std::int64_t step = 1; step <= 12; ++step) EXPECT_FALSE(Step(step, kRows).ok());
  env_.fault = FaultyEnv::Fault::kNone;
  env_.now_ns += 60'000'000'000;
  EXPECT_TRUE(Step(13).ok());
  ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  const Seen seen = Read();
  ASSERT_GE(seen.steps.size(), 3U);
  EXPECT_LT(seen.steps.size(), 9U);
  EXPECT_EQ(seen.steps.back(), 13);
  const std::uint64_t dropped_steps = 14 - seen.steps.size();
  EXPECT_EQ(seen.whole_steps, dropped_steps);
}

TEST_P(FaultTest, AFullPayloadDiskLeavesTheSummaries) {
  env_.only_payload = true;
  env_.fault = GetParam();
  for (std::int64_t step = 0; step < 10; ++step) EXPECT_TRUE(Step(step).ok());
  const Seen seen = Read();
  EXPECT_EQ(seen.steps, UpTo(10));
  EXPECT_EQ(seen.values, 0U);
  EXPECT_EQ(seen.gap_count, 10U);
}

TEST_P(FaultTest, ClosingIntoARefusingDiskEnds) {
  ASSERT_TRUE(Step(0).ok());
  env_.fault = GetParam();
  EXPECT_FALSE(Step(1).ok());
  EXPECT_FALSE(writer_->Close(format::EndReason::kException).ok());
  EXPECT_EQ(Read().steps, UpTo(1));
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultTest,
                         testing::Values(FaultyEnv::Fault::kFull, FaultyEnv::Fault::kReadOnly,
                                         FaultyEnv::Fault::kGone));

TEST(VanishedDirectoryTest, TheWriterGoesOnWithoutIt) {
  TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
  ASSERT_TRUE(CreateRun(run, TestRun(), false, false).ok());
  WriterOptions options;
  options.run_path = run;
  options.segment_bytes_meta = 4096;
  auto writer = WorkerWriter::Open(options, TestRun());
  ASSERT_TRUE(writer.ok());
  std::filesystem::remove_all(run);
  for (std::int64_t step = 0; step < 100; ++step) {
    StepBatch batch;
    batch.summaries = {SummaryOf(0, step)};
    batch.mark = MarkOf(step);
    (void)(*writer)->PublishStep(batch);  // no crash, no exception
  }
  (void)(*writer)->Close(format::EndReason::kCompleted);
}

TEST(UnwritableTest, OpeningSaysWhatIsWrong) {
  FaultyEnv env;
  TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
  ASSERT_TRUE(CreateRun(run, TestRun(), false, false).ok());
  env.fault = FaultyEnv::Fault::kReadOnly;
  WriterOptions options;
  options.run_path = run;
  options.env = &env;
  EXPECT_EQ(WorkerWriter::Open(options, TestRun()).status().code(), StatusCode::kIo);
}

}  // namespace
}  // namespace luff::store::faults_test
