// Files and descriptors of a run that are taken away while it is written and read: no process crashes, no
// file of the user is touched, and gaps record what is lost.
#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "luff/store/verify.h"
#include "store/test_run.h"

namespace luff::store::lost_files_test {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kElements = 50'000;  // large enough for direct I/O

/// Descriptors of this process for files in a folder.
std::vector<int> NumbersBelow(const std::string& folder) {
  std::vector<int> numbers;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (fs::read_symlink(entry.path(), ignored).string().starts_with(folder)) {
      numbers.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  return numbers;
}

class LostFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.run_path = run();
    writer_ = OpenNewRun(options_, kElements);
    ASSERT_NE(writer_, nullptr);
  }
  /// Writes a step with a value, as capture does: if the value can't be appended, the summary is written
  /// alone.
  Status Step(std::int64_t step) {
    StepBatch batch;
    const Status appended = AppendValue(writer_.get(), step, kElements, &batch);
    batch.summaries = {SummaryOf(0, step)};
    batch.mark = MarkOf(step);
    const Status published = writer_->PublishStep(batch);
    return appended.ok() ? published : appended;
  }
  void Steps(std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      const Status status = Step(step);
      EXPECT_TRUE(status.ok()) << step << ": " << status.ToString();
    }
  }
  struct Seen {
    std::set<std::int64_t> steps, values;
    std::uint64_t lost = 0;  // counted by gaps of reason kFileLost
    std::size_t names = 0;
    bool ended = false;
  };
  Seen Read(const std::string& path) {
    Seen seen;
    auto reader = RunReader::Open(path);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    (void)(*reader)->Refresh();
    const auto& worker = *(*reader)->workers()[0];
    for (const auto& segment : worker.segments()) {
      for (const auto step : segment->steps().global_step) seen.steps.insert(step);
      const auto slot = segment->FindSlot(0);
      using Index = Result<Held<format::IndexBlock>>;
      const auto index = slot ? segment->Index(*slot) : Index(NotFound(""));
      for (std::size_t i = 0; index.ok() && i < index->rows.size(); ++i) {
        const auto payload = worker.ReadPayload(index->rows.subspan(i, 1), kElements * 4);
        const std::int64_t step = segment->steps().global_step[index->step[i]];
        if (payload.ok() && std::ranges::equal(payload->bytes, ValueOf(0, step, kElements)))
          seen.values.insert(step);
      }
    }
    for (const auto& gap : worker.gaps()) {
      if (gap.row.reason == static_cast<std::uint16_t>(format::GapReason::kFileLost))
        seen.lost += gap.row.count;
    }
    seen.names = worker.definitions().size();
    seen.ended = worker.end().has_value();
    return seen;
  }
  void Close() { EXPECT_TRUE(writer_->Close(format::EndReason::kCompleted).ok()); }
  [[nodiscard]] std::string run() const { return directory_.path() + "/run"; }
  [[nodiscard]] std::string folder() const { return run() + "/w0000"; }

  TemporaryDirectory directory_;
  WriterOptions options_;
  std::unique_ptr<WorkerWriter> writer_;
};

std::set<std::int64_t> Between(std::int64_t from, std::int64_t to) {
  std::set<std::int64_t> steps;
  for (std::int64_t step = from; step < to; ++step) steps.insert(step);
  return steps;
}

TEST_F(LostFilesTest, ClosedDescriptorsCostNoStepAndNoFileOfTheUser) {
  Steps(0, 5);
  const std::string theirs = directory_.path() + "/theirs";
  std::ofstream(theirs) << "theirs";
  std::vector<int> taken;
  for (int round = 0; round < 2; ++round) {
    const auto numbers = NumbersBelow(fs::canonical(run()).string());
    ASSERT_GE(numbers.size(), 3U);  // directory, live page, metadata, payload
    const int file = open(theirs.c_str(), O_RDWR | O_CLOEXEC);
    for (const int number : numbers) ASSERT_EQ(dup2(file, number), number);
    taken.insert(taken.end(), numbers.begin(), numbers.end());
    close(file);
    Steps(5 + round * 5, 10 + round * 5);
  }
  Close();
  writer_.reset();
  for (const int number : taken) EXPECT_NE(fcntl(number, F_GETFD), -1);
  EXPECT_EQ(ReadWholeFile(Env::Real(), theirs, 1 << 20).value(), "theirs");
  const Seen seen = Read(run());
  EXPECT_EQ(seen.steps, Between(0, 15));
  EXPECT_EQ(seen.values, Between(0, 15));
  EXPECT_TRUE(seen.ended);
  EXPECT_EQ(seen.names, 1U);
  for (const int number : taken) close(number);
}

TEST_F(LostFilesTest, WhoClosesThemAgainAndAgainEndsTheRecording) {
  int rounds = 0;
  for (; rounds < 200 && writer_->gone().ok(); ++rounds) {
    for (const int number : NumbersBelow(fs::canonical(run()).string())) close(number);
    (void)Step(rounds);
  }
  EXPECT_LT(rounds, 200);
  EXPECT_NE(writer_->gone().message().find("taken away"), std::string::npos) << writer_->gone().ToString();
  (void)writer_->Close(format::EndReason::kCompleted);
}

class LostSegmentTest : public LostFilesTest, public testing::WithParamInterface<bool> {
 protected:
  void TakeAway(const std::string& name) {
    const std::string path = folder() + "/" + name;
    if (GetParam())
      fs::resize_file(path, 100);
    else
      ASSERT_TRUE(fs::remove(path));
  }
};

TEST_P(LostSegmentTest, TheStepsOfASegmentAreAGapAndTheNextBeginsAtOnce) {
  Steps(0, 5);
  TakeAway("m-000001.lfm");
  Steps(5, 10);
  const Seen before = Read(run());
  EXPECT_EQ(before.names, 1U) << "defined again, although nothing is sealed";
  Close();
  const Seen seen = Read(run());
  EXPECT_EQ(seen.steps, Between(5, 10));
  EXPECT_EQ(seen.values, Between(5, 10));
  EXPECT_EQ(seen.lost, 5U);
  EXPECT_TRUE(seen.ended);
}

TEST_P(LostSegmentTest, TheValuesOfAPayloadFileAreAGap) {
  Steps(0, 5);
  TakeAway("d-000001.lfd");
  Steps(5, 10);
  Close();
  const Seen seen = Read(run());
  EXPECT_EQ(seen.steps, Between(0, 10));
  EXPECT_EQ(seen.values, Between(5, 10));
  EXPECT_EQ(seen.lost, 5U);
}

TEST_P(LostSegmentTest, WithoutItsLivePageARunIsWrittenAndFollowedAllTheSame) {
  Steps(0, 5);
  auto reader = RunReader::Open(run());
  ASSERT_TRUE(reader.ok());
  const WorkerReader& worker = *(*reader)->workers()[0];
  ASSERT_TRUE(worker.uses_live_page());
  if (GetParam())
    fs::resize_file(folder() + "/live", 0);
  else
    ASSERT_TRUE(fs::remove(folder() + "/live"));
  Steps(5, 10);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE((*reader)->Refresh().ok());
    (void)worker.liveness();
  }
  EXPECT_EQ(worker.next_ordinal(), 10U);
  Close();
  EXPECT_EQ(Read(run()).values, Between(0, 10));
}

INSTANTIATE_TEST_SUITE_P(Ways, LostSegmentTest, testing::Bool(),
                         [](const auto& which) { return which.param ? "CutOff" : "Removed"; });

/// Truncates files of a run after a reader has read from each of them.
class CutOffTest : public LostFilesTest, public testing::WithParamInterface<std::uint64_t> {
 protected:
  /// Two sealed segments with values and a payload file each, and a reader that has read both.
  void SetUp() override {
    LostFilesTest::SetUp();
    Steps(0, 5);
    Close();
    writer_.reset();
    auto writer = WorkerWriter::Open(options_, TestRun());
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    writer_ = std::move(writer).value();
    StepBatch batch;
    batch.tensors = {Def(0, "a")};
    batch.layouts = {VectorLayout(0, kElements)};
    ASSERT_TRUE(writer_->PublishLoose(batch).ok());
    Steps(5, 10);
    Close();
    auto reader = RunReader::Open(run());
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    reader_ = std::move(reader).value();
    ASSERT_EQ(worker().segments().size(), 2U);
    ASSERT_EQ(Values(), Between(0, 10));
  }
  [[nodiscard]] const WorkerReader& worker() const { return *reader_->workers()[0]; }
  void CutOff(const std::string& name) {
    const auto path = folder() + "/" + name;
    fs::resize_file(path, std::min<std::uintmax_t>(GetParam(), fs::file_size(path)));
  }
  /// Steps whose value `reader_` reads as it was written; checks the errors of the others.
  std::set<std::int64_t> Values() {
    std::set<std::int64_t> steps;
    for (const auto& segment : worker().segments()) {
      const auto slot = segment->FindSlot(0);
      const auto summaries = segment->Summaries(*slot, Again::kNo);
      const auto index = segment->Index(*slot, Again::kNo);
      for (const auto& status : {summaries.status(), index.status()}) Expect(status, segment->path());
      for (std::size_t i = 0; index.ok() && i < index->rows.size(); ++i) {
        const auto row = index->rows.subspan(i, 1);
        const auto payload = worker().ReadPayload(row, kElements * 4);
        std::vector<std::byte> into(kElements * 4);
        const Status status = worker().ReadPayloadInto(row, into);
        EXPECT_EQ(status.ok(), worker().CheckChunk(row[0], true).ok());
        Expect(status, worker().DataPath(row[0].data_file));
        if (!payload.ok() || !status.ok()) continue;
        const std::int64_t step = segment->steps().global_step[index->step[i]];
        EXPECT_TRUE(std::ranges::equal(payload->bytes, ValueOf(0, step, kElements)));
        EXPECT_TRUE(std::ranges::equal(into, ValueOf(0, step, kElements)));
        steps.insert(step);
      }
    }
    return steps;
  }
  static void Expect(const Status& status, const std::string& path) {
    if (status.ok()) return;
    EXPECT_EQ(status.code(), StatusCode::kCorruption);
    const std::string text = status.ToString();
    for (const std::string& part : {std::string("cut off"), std::string("at byte"), path})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }

  std::unique_ptr<RunReader> reader_;
};

TEST_P(CutOffTest, ASegmentTakesNoReaderWithIt) {
  CutOff("m-000001.lfm");
  EXPECT_EQ(Values(), Between(5, 10));
  EXPECT_TRUE(reader_->Refresh().ok());
  EXPECT_EQ(Values(), Between(5, 10));
}

TEST_P(CutOffTest, APayloadFileTakesNoReaderWithIt) {
  CutOff("d-000001.lfd");
  EXPECT_EQ(Values(), Between(5, 10));
}

TEST_P(CutOffTest, WhatIsPutBackIsReadAgain) {
  for (const std::string name : {"m-000001.lfm", "d-000001.lfd"}) {
    const std::string path = folder() + "/" + name;
    fs::copy_file(path, directory_.path() + "/copy", fs::copy_options::overwrite_existing);
    CutOff(name);
    EXPECT_EQ(Values(), Between(5, 10));
    fs::rename(directory_.path() + "/copy", path);
    EXPECT_EQ(Values(), Between(0, 10));
  }
}

TEST_P(CutOffTest, VerifyTellsOfIt) {
  CutOff("m-000001.lfm");
  CutOff("d-000002.lfd");
  const auto report = VerifyRun(run());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GT(report->damage_count, 0U);
}

INSTANTIATE_TEST_SUITE_P(Lengths, CutOffTest, testing::Values(0, 100, 5000));

TEST_F(LostFilesTest, AMovedRunIsWrittenWhereItIs) {
  Steps(0, 5);
  const std::string moved = directory_.path() + "/moved";
  fs::rename(run(), moved);
  fs::create_directories(folder());  // another run of the same name
  for (const int number : NumbersBelow(fs::canonical(moved).string() + "/w0000/m-")) close(number);
  Steps(5, 10);  // needs a new segment
  Close();
  EXPECT_TRUE(fs::is_empty(folder()));
  const Seen seen = Read(moved);
  EXPECT_EQ(seen.values, Between(0, 10));
  EXPECT_TRUE(seen.ended);
}

TEST_F(LostFilesTest, ARemovedRunEndsTheRecordingAndSaysWhy) {
  Steps(0, 5);
  EXPECT_TRUE(writer_->gone().ok());
  fs::remove_all(run());
  EXPECT_FALSE(Step(5).ok());
  EXPECT_NE(writer_->gone().message().find("removed"), std::string::npos) << writer_->gone().ToString();
  writer_->Heartbeat();
  EXPECT_FALSE(Step(6).ok());
  EXPECT_FALSE(writer_->Close(format::EndReason::kCompleted).ok());
  EXPECT_FALSE(fs::exists(run()));
}

}  // namespace
}  // namespace luff::store::lost_files_test
