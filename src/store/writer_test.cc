#include "luff/store/writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "base/testing/forwarding_env.h"
#include "luff/format/live.h"
#include "luff/store/control.h"
#include "luff/store/owner.h"
#include "store/paths.h"
#include "store/read_cache.h"
#include "store/reader_tail.h"
#include "store/test_run.h"

namespace luff::store::writer_test {
namespace {

constexpr std::size_t kElements = 100;

class WriterTest : public testing::Test {
 protected:
  void Open(bool resume = false) {
    auto info = CreateRun(run(), TestRun(), false, resume);
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    options_.run_path = run();
    auto writer = WorkerWriter::Open(options_, *info);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    writer_ = std::move(writer).value();
    StepBatch batch;
    batch.tensors = {Def(0, "a"), Def(1, "b")};
    batch.layouts = {VectorLayout(0, kElements)};
    batch.documents = {{"model", "{\"x\":1}"}};
    ASSERT_TRUE(writer_->PublishLoose(batch).ok());
  }
  Status Step(std::int64_t step, std::size_t elements = kElements) {
    ChunkBlock block;
    for (const std::uint32_t tensor : {0U, 1U}) block.Add(tensor, ValueOf(tensor, step, elements));
    StepBatch batch;
    batch.index = block.rows();
    std::vector<Place> places;
    LUFF_RETURN_IF_ERROR(writer_->AppendChunks(block.refs(), {}, step, &places));
    for (std::size_t i = 0; i < places.size(); ++i) {
      batch.index[i].data_file = places[i].data_file;
      batch.index[i].offset = places[i].offset;
    }
    batch.summaries = {SummaryOf(0, step), SummaryOf(1, step)};
    batch.scalars = {{1, 0, static_cast<double>(step)}};
    batch.mark = MarkOf(step);
    if (!document_.empty()) batch.documents = {{"model", std::exchange(document_, {})}};
    return writer_->PublishStep(batch);
  }
  std::string document_;  // goes with the next step
  std::unique_ptr<RunReader> Read() {
    auto reader = RunReader::Open(run());
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    (void)(*reader)->Refresh();
    return std::move(reader).value();
  }
  /// Steps whose two values are right.
  std::vector<std::int64_t> GoodSteps(const RunReader& reader, std::size_t elements = kElements) {
    std::vector<std::int64_t> steps;
    for (const auto& worker : reader.workers()) {
      for (const auto& segment : worker->segments()) {
        for (std::size_t i = 0; i < segment->steps().size(); ++i) {
          bool good = true;
          const std::int64_t step = segment->steps().global_step[i];
          for (const std::uint32_t tensor : {0U, 1U}) {
            const auto slot = segment->FindSlot(tensor);
            if (!slot) {
              good = false;
              continue;
            }
            const auto index = segment->Index(*slot);
            const auto summaries = segment->Summaries(*slot);
            good = good && index.ok() && summaries.ok() && index->rows.size() == segment->steps().size();
            if (!good) continue;
            const auto payload = worker->ReadPayload(index->rows.subspan(i, 1), elements * 4);
            const auto expected = ValueOf(tensor, step, elements);
            good = payload.ok() && std::ranges::equal(payload->bytes, expected) &&
                   summaries->sum[i] == tensor * 1000.0 + static_cast<double>(step);
          }
          if (good) steps.push_back(step);
        }
      }
    }
    return steps;
  }
  /// Edits the worker's live page and corrects its checksum.
  void EditPage(const std::function<void(format::LivePage&)>& edit) const {
    std::fstream file(folder() + "/live", std::ios::in | std::ios::out | std::ios::binary);
    format::LivePage page{};
    file.read(reinterpret_cast<char*>(&page), sizeof(page));
    edit(page);
    const auto head = std::as_bytes(std::span(&page, 1));
    page.checksum = format::HashBytes(head.first(offsetof(format::LivePage, checksum)));
    file.seekp(0);
    file.write(reinterpret_cast<const char*>(&page), sizeof(page));
    ASSERT_TRUE(file.good());
  }
  /// The status that a second writer gets while the folder's lock is held elsewhere.
  StatusCode OpenedWhileLocked() {
    const int other = open((folder() + "/live").c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(flock(other, LOCK_EX | LOCK_NB), 0);
    const StatusCode code = WorkerWriter::Open(options_, TestRun()).status().code();
    close(other);
    return code;
  }
  [[nodiscard]] std::string run() const { return directory_.path() + "/run"; }
  [[nodiscard]] std::string folder() const { return run() + "/w0000"; }

  TemporaryDirectory directory_;
  WriterOptions options_;
  std::unique_ptr<WorkerWriter> writer_;
};

std::vector<std::int64_t> UpTo(std::int64_t n) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) steps[static_cast<std::size_t>(i)] = i;
  return steps;
}

TEST_F(WriterTest, AStepIsReadableAsSoonAsItIsPublished) {
  Open();
  for (std::int64_t step = 0; step < 5; ++step) {
    ASSERT_TRUE(Step(step).ok());
    EXPECT_EQ(GoodSteps(*Read()), UpTo(step + 1));
  }
}

TEST_F(WriterTest, SegmentsAreSealedAndReadTheSame) {
  options_.segment_bytes_meta = 4096;
  options_.segment_bytes_payload = 1 << 14;
  Open();
  for (std::int64_t step = 0; step < 60; ++step) ASSERT_TRUE(Step(step).ok());
  ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  const auto reader = Read();
  EXPECT_EQ(GoodSteps(*reader), UpTo(60));
  ASSERT_EQ(reader->workers().size(), 1U);
  const auto& worker = *reader->workers()[0];
  EXPECT_GT(worker.segments().size(), 3U);
  for (const auto& segment : worker.segments()) EXPECT_TRUE(segment->sealed()) << segment->path();
  ASSERT_TRUE(worker.end().has_value());
  EXPECT_EQ(worker.end()->last_global_step, 59);
  EXPECT_EQ(worker.definitions().size(), 2U);
  EXPECT_EQ(worker.documents().at("model"), "{\"x\":1}");
  EXPECT_TRUE(worker.problems().empty());
}

TEST_F(WriterTest, AFooterIsKnownByItsBegin) {
  Open();
  for (std::int64_t step = 0; step < 40; ++step) ASSERT_TRUE(Step(step).ok());
  ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  const auto reader = Read();
  const SegmentReader& segment = *reader->workers()[0]->segments()[0];
  std::ifstream file(segment.path(), std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const auto bytes = std::as_bytes(std::span(text)).subspan(format::kFileHeaderBytes);
  const auto end_of = [&](std::size_t size, std::uint64_t* reached) {
    TailColumns tail;
    TailEnd end = TailEnd::kNoFrame;
    *reached = tail.TakeInUntrusted(bytes.first(size), format::kFileHeaderBytes, segment.sequence(), &end);
    EXPECT_LE(tail.steps().size(), 40U);
    return end;
  };
  std::uint64_t last = 0;
  ASSERT_EQ(end_of(bytes.size(), &last), TailEnd::kFooter);
  // No step ends later, and far less than the footer tells that it begins.
  std::size_t needed = static_cast<std::size_t>(last - format::kFileHeaderBytes);
  std::uint64_t reached = 0;
  while (needed < bytes.size() && end_of(needed, &reached) == TailEnd::kWindow) needed += 8;
  EXPECT_EQ(reached, last);
  EXPECT_LT(needed + 200, bytes.size());
  for (std::size_t size = needed; size <= bytes.size(); size += 64)
    EXPECT_EQ(end_of(size, &reached), TailEnd::kFooter) << size;
}

StepBatch StepOfMany(std::uint32_t tensors, std::int64_t step) {
  StepBatch batch;
  for (std::uint32_t tensor = 0; tensor < tensors; ++tensor)
    batch.summaries.push_back(SummaryOf(tensor, step));
  batch.scalars = {{0, 0, static_cast<double>(step)}};
  batch.mark = MarkOf(step);
  return batch;
}

TEST_F(WriterTest, RowsThatFillWhatWasReadStayInIt) {
  Open();
  for (std::int64_t step = 0; step < 3; ++step) {
    StepBatch batch = StepOfMany(500, step);
    ASSERT_TRUE(writer_->PublishStep(batch).ok());
  }
  const auto reader = Read();
  const SegmentReader& segment = *reader->workers()[0]->segments()[0];
  std::ifstream file(segment.path(), std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const auto all = std::as_bytes(std::span(text)).subspan(format::kFileHeaderBytes);
  const auto step_bytes = std::size_t{500} * sizeof(format::SummaryRow);
  TailColumns tail;
  std::uint64_t offset = format::kFileHeaderBytes;
  // The first window has two steps, so that none fills half of it; the next one has one.
  for (const std::size_t steps : {std::size_t{2}, std::size_t{1}}) {
    const std::size_t rest = all.size() - static_cast<std::size_t>(offset - format::kFileHeaderBytes);
    const std::size_t bytes = std::min(rest, steps * step_bytes + step_bytes / 2);
    auto window = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(window->data(), all.data() + (offset - format::kFileHeaderBytes), bytes);
    TailEnd end = TailEnd::kNoFrame;
    offset = tail.TakeInUntrusted(*window, offset, segment.sequence(), &end, window);
    EXPECT_EQ(window.use_count(), steps == 1 ? 2 : 1);
  }
  ASSERT_EQ(tail.steps().size(), 3U);
  for (std::uint32_t step = 0; step < 3; ++step) {
    const auto rows = tail.RowsAt(step).summaries;
    ASSERT_EQ(rows.rows.size(), 500U);
    for (std::uint32_t tensor = 0; tensor < 500; ++tensor)
      EXPECT_EQ(rows.rows[tensor].sum, tensor * 1000.0 + step);
    EXPECT_EQ(tail.RowsAt(step).scalars.rows[0].value, static_cast<double>(step));
  }
}

TEST(ReadCache, LastingMemoryIsUsedAgainOnceNobodyHoldsIt) {
  ReadCache cache;
  auto one = cache.Lasting(100 << 10);
  const auto two = cache.Lasting(100 << 10);
  ASSERT_NE(one, nullptr);
  EXPECT_NE(one, two);
  const std::byte* place = one.get();
  one = nullptr;
  EXPECT_NE(cache.Lasting(50 << 10).get(), place);  // it would hold twice what it is used for
  EXPECT_EQ(cache.Lasting(99 << 10).get(), place);
  EXPECT_EQ(cache.Lasting(101 << 10).get(), place);
  cache.TrimLasting();
  EXPECT_EQ(two.use_count(), 2);  // still held
  std::vector<std::shared_ptr<std::byte>> many;
  for (int i = 0; i < 20; ++i) many.push_back(cache.Lasting(1 << 20));
  EXPECT_LE(std::ranges::count_if(many, [](const auto& memory) { return memory.use_count() > 1; }), 8);
}

TEST_F(WriterTest, LargeStepsAreReadTheSameWhenTheyComeAndLater) {
  options_.segment_bytes_meta = 1 << 20;
  Open();
  auto reader = Read();
  constexpr std::uint32_t kMany = 2000;  // 160 KB a step: some segments are filled
  for (std::int64_t step = 0; step < 20; ++step) {
    const std::uint32_t tensors = step % 5 == 0 ? 3 : kMany;  // small ones between them
    StepBatch batch = StepOfMany(tensors, step);
    ASSERT_TRUE(writer_->PublishStep(batch).ok());
    ASSERT_TRUE(reader->Refresh().ok());
    const WorkerReader& worker = *reader->workers()[0];
    const auto place = worker.FindStep(worker.next_ordinal() - 1);
    ASSERT_TRUE(place);
    const auto published = place->segment->PublishedAt(place->index);
    ASSERT_TRUE(published) << step;
    ASSERT_EQ(published->summaries.rows.size(), tensors);
    EXPECT_EQ(published->summaries.rows.back().sum, (tensors - 1) * 1000.0 + static_cast<double>(step));
    for (const auto& segment : worker.segments()) {
      const auto slot = segment->FindSlot(2);
      ASSERT_TRUE(slot || segment->steps().size() == 0);
      if (!slot) continue;
      const auto rows = segment->Summaries(*slot);
      ASSERT_TRUE(rows.ok());
      ASSERT_EQ(rows->sum.size(), segment->steps().size());
      for (std::size_t i = 0; i < rows->sum.size(); ++i)
        EXPECT_EQ(rows->sum[i], 2000.0 + static_cast<double>(segment->steps().global_step[i]));
    }
  }
  EXPECT_GT(reader->workers()[0]->segments().size(), 1U);
}

TEST_F(WriterTest, ADocumentIsReadAsItWasAtAStep) {
  Open();
  for (std::int64_t step = 0; step < 30; ++step) {
    if (step % 10 == 5) document_ = "{\"x\":" + std::to_string(step) + "}";
    ASSERT_TRUE(Step(step).ok());
  }
  ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  const auto reader = Read();
  const auto at = [&](std::uint64_t ordinal) { return *reader->workers()[0]->DocumentAt("model", ordinal); };
  EXPECT_EQ(at(0), "{\"x\":1}");
  EXPECT_EQ(at(3), "{\"x\":1}");
  EXPECT_EQ(at(4), "{\"x\":5}");  // what a step does may be described in the next one
  EXPECT_EQ(at(13), "{\"x\":5}");
  EXPECT_EQ(at(14), "{\"x\":15}");
  EXPECT_EQ(at(29), "{\"x\":25}");
  EXPECT_EQ(reader->workers()[0]->DocumentAt("other", 0), nullptr);
}

TEST_F(WriterTest, BigBlocksGoRoundThePageCacheAndReadTheSame) {
  Open();
  constexpr std::size_t kBig = 300'000;  // 1.2 MB each: direct, with a rest of less than a page
  for (std::int64_t step = 0; step < 4; ++step)
    ASSERT_TRUE(Step(step, step % 2 == 0 ? kBig : kElements).ok());
  ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  EXPECT_EQ(GoodSteps(*Read(), kBig), (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(GoodSteps(*Read(), kElements), (std::vector<std::int64_t>{1, 3}));
}

TEST_F(WriterTest, AFolderOfALiveWriterIsRefused) {
  Open();
  auto second = WorkerWriter::Open(options_, TestRun());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists) << second.status().ToString();
}

TEST_F(WriterTest, ALockCountsWhereItsWriterCannotBeSeen) {
  const std::pair<const char*, std::function<void(format::LivePage&)>> writers[] = {
      {"of another machine", [](auto& page) { page.host ^= 1; }},
      {"of another boot", [](auto& page) { page.boot[0] ^= 1; }},
      {"of another container", [](auto& page) { page.pid_namespace ^= 1; }},
      {"without /proc", [](auto& page) { page.pid_start_ticks = 0; }},
      {"that has only begun", [](auto& page) { page = {}; }},
  };
  Open();
  writer_.reset();  // no Close: its page still shows a running writer
  for (const auto& [which, edit] : writers) {
    EditPage(edit);
    EXPECT_EQ(OpenedWhileLocked(), StatusCode::kAlreadyExists) << which;
    EXPECT_TRUE(WorkerWriter::Open(options_, TestRun()).ok()) << which;
  }
}

TEST_F(WriterTest, ALockThatADeadWriterLeftToItsChildrenIsNoObstacle) {
  Open();
  writer_.reset();
  EditPage([](auto& page) { ++page.pid_start_ticks; });
  EXPECT_EQ(OpenedWhileLocked(), StatusCode::kOk);
}

TEST_F(WriterTest, OtherMachinesSeeThatAnOldPageIsGone) {
  class CountedSyncs final : public ForwardingEnv {
   public:
    Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
      auto file = Real().Open(path, mode);
      if (!file.ok() || !path.ends_with("/live")) return file;
      return std::unique_ptr<File>(new Page(std::move(file).value(), &synced));
    }
    int synced = 0;

   private:
    class Page final : public ForwardingFile {
     public:
      Page(std::unique_ptr<File> file, int* synced) : ForwardingFile(std::move(file)), synced_(synced) {}
      Status Sync() override {
        ++*synced_;
        return ForwardingFile::Sync();
      }

     private:
      int* synced_;
    };
  } files;
  options_.env = &files;
  Open();
  EXPECT_EQ(files.synced, 0);
  writer_.reset();
  Open(true);
  EXPECT_EQ(files.synced, 1);
}

TEST_F(WriterTest, AWriterInAnotherContainerIsNotTakenForDead) {
  Open();
  ASSERT_TRUE(Step(0).ok());
  EXPECT_EQ(Read()->workers()[0]->liveness().process_exists, true);
  EditPage([](auto& page) {
    page.pid_namespace ^= 1;
    ++page.pid_start_ticks;  // here another process, or none, has that pid
  });
  const auto reader = Read();
  EXPECT_TRUE(reader->workers()[0]->uses_live_page());
  EXPECT_EQ(reader->workers()[0]->liveness().process_exists, std::nullopt);
}

TEST_F(WriterTest, AFolderIsAbandonedIfItsLockIsFreeAndCannotBeElsewhere) {
  Open();
  EXPECT_FALSE(IsAbandoned(run(), 0));
  writer_.reset();  // no Close: its page still shows a running writer
  EXPECT_TRUE(IsAbandoned(run(), 0));
  EditPage([](auto& page) {
    page.pid_namespace ^= 1;  // a restarted container
    page.host ^= 1;
  });
  EXPECT_TRUE(IsAbandoned(run(), 0));
  EditPage([](auto& page) { page.boot[0] ^= 1; });
  EXPECT_FALSE(IsAbandoned(run(), 0));
  EXPECT_FALSE(IsAbandoned(run(), 1));
  Open(true);  // no lock is left behind
}

TEST_F(WriterTest, AFolderInWhichSomebodyHasWrittenIsNotFresh) {
  options_.fresh = true;
  Open();
  writer_.reset();
  EXPECT_EQ(WorkerWriter::Open(options_, TestRun()).status().code(), StatusCode::kAlreadyExists);
}

TEST_F(WriterTest, ResumingOpensANewEpochAndCountsOn) {
  Open();
  for (std::int64_t step = 0; step < 3; ++step) ASSERT_TRUE(Step(step).ok());
  EXPECT_EQ(writer_->epoch(), 1U);
  writer_.reset();  // no Close: as if it had died
  Open(true);
  EXPECT_EQ(writer_->epoch(), 2U);
  EXPECT_EQ(writer_->next_ordinal(), 3U);
  for (std::int64_t step = 3; step < 6; ++step) ASSERT_TRUE(Step(step).ok());
  ASSERT_TRUE(writer_->Close(format::EndReason::kStopped).ok());
  EXPECT_EQ(GoodSteps(*Read()), UpTo(6));
}

TEST_F(WriterTest, ARunIsNotOverwritten) {
  Open();
  EXPECT_EQ(CreateRun(run(), TestRun(), false, false).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(CreateRun(run(), TestRun(), true, false).ok());
  std::filesystem::create_directory(directory_.path() + "/other");
  std::ofstream(directory_.path() + "/other/notes.txt") << "mine";
  const Status status = CreateRun(directory_.path() + "/other", TestRun(), false, false).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("notes.txt"), std::string_view::npos);
}

TEST_F(WriterTest, TheRunDirectoryIsPrivate) {
  Open();
  const auto mode = std::filesystem::status(run()).permissions();
  EXPECT_EQ(mode & std::filesystem::perms::all, std::filesystem::perms::owner_all);
}

TEST_F(WriterTest, ClosingTwiceIsFineAndWritingAfterwardsIsRefused) {
  Open();
  ASSERT_TRUE(Step(0).ok());
  EXPECT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  EXPECT_TRUE(writer_->Close(format::EndReason::kFailed).ok());
  EXPECT_EQ(Step(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Read()->workers()[0]->end()->reason, static_cast<std::uint32_t>(format::EndReason::kCompleted));
}

TEST_F(WriterTest, AForkedChildThatDestroysTheWriterTakesNothingAway) {
  Open();
  constexpr std::size_t kBig = 100'000;
  ASSERT_TRUE(Step(0, kBig).ok());
  int wake[2];
  ASSERT_EQ(pipe(wake), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    (void)!read(wake[0], &byte, 1);  // until the parent has written more
    (void)writer_->Close(format::EndReason::kCompleted);
    writer_.reset();
    _exit(0);
  }
  for (std::int64_t step = 1; step < 4; ++step) ASSERT_TRUE(Step(step, kBig).ok());
  ASSERT_EQ(write(wake[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(GoodSteps(*Read(), kBig), UpTo(4));
  EXPECT_FALSE(Read()->workers()[0]->end().has_value());
  close(wake[0]);
  close(wake[1]);
}

TEST_F(WriterTest, OldSummariesAreMergedInTensAndAGapSaysSo) {
  options_.segment_bytes_meta = 64 << 10;
  options_.summary_max_bytes = 100 << 10;
  Open();
  constexpr std::int64_t kSteps = 2000;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    StepBatch batch;
    for (std::uint32_t tensor = 0; tensor < 20; ++tensor) batch.summaries.push_back(SummaryOf(tensor, step));
    batch.scalars = {{0, 0, static_cast<double>(step)}};
    batch.mark = MarkOf(step);
    ASSERT_TRUE(writer_->PublishStep(batch).ok());
  }
  ASSERT_TRUE(writer_->Close(format::EndReason::kCompleted).ok());
  std::uint64_t on_disk = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) on_disk += entry.file_size();
  EXPECT_LT(on_disk, 1500U << 10);  // 7 MB without merging; header pages and step columns stay
  const auto reader = Read();
  const auto& worker = *reader->workers()[0];
  std::uint64_t steps = 0, scalars = 0, covered = 0;
  double sum = 0;
  bool merged = false;
  for (const auto& segment : worker.segments()) {
    steps += segment->steps().size();
    if (segment->steps().size() == 0) continue;  // the last one holds only the end mark
    const auto slot = segment->FindSlot(7);
    ASSERT_TRUE(slot.has_value());
    const auto block = segment->Summaries(*slot);
    ASSERT_TRUE(block.ok()) << block.status().ToString();
    for (std::size_t i = 0; i < block->size(); ++i) {
      covered += block->steps[i];
      sum += block->sum[i];
      merged = merged || block->steps[i] > 1;
    }
    scalars += segment->Scalars(*segment->FindSlot(0))->size();
  }
  EXPECT_TRUE(merged);
  EXPECT_EQ(steps, static_cast<std::uint64_t>(kSteps));
  EXPECT_EQ(scalars, static_cast<std::uint64_t>(kSteps));
  EXPECT_EQ(covered, static_cast<std::uint64_t>(kSteps));
  EXPECT_DOUBLE_EQ(sum, 7000.0 * kSteps + kSteps * (kSteps - 1) / 2.0);
  EXPECT_EQ(worker.definitions().size(), 2U);
  bool said = false;
  for (const auto& gap : worker.gaps()) {
    said = said || gap.row.reason == static_cast<std::uint16_t>(format::GapReason::kMerged);
  }
  EXPECT_TRUE(said);
}

TEST(ControlTest, NumbersGrowAndRecordsReadBack) {
  TemporaryDirectory directory;
  const std::string run = directory.path() + "/run";
  ASSERT_TRUE(CreateRun(run, TestRun(), false, false).ok());
  ControlRecord record;
  record.kind = "stop";
  record.phase = "propose";
  record.train_step = 41;
  record.reason = "loss is \"NaN\"";
  record.body = "{\"a\":[1,2]}";
  EXPECT_EQ(WriteControl(run, record).value(), 1U);
  EXPECT_EQ(WriteControl(run, record).value(), 2U);
  std::ofstream(run + "/control/000003.json") << "{\"number\": 3, \"kind\"";
  std::ofstream(run + "/control/notes.txt") << "x";
  std::vector<std::string> problems;
  const auto records = ReadControl(run, 1, &problems);
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 1U);
  EXPECT_EQ((*records)[0].number, 2U);
  EXPECT_EQ((*records)[0].train_step, 41);
  EXPECT_EQ((*records)[0].reason, record.reason);
  EXPECT_EQ((*records)[0].body, record.body);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].find("000003.json"), std::string::npos);
  EXPECT_EQ(WriteControl(directory.path(), record).status().code(), StatusCode::kNotFound);
}

TEST(ControlTest, HostileTextIsRefused) {
  const std::string deep(100'000, '[');
  EXPECT_EQ(ParseControlUntrusted(deep).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(ParseControlUntrusted("{\"number\":-1,\"kind\":\"stop\"}").status().code(),
            StatusCode::kCorruption);
  EXPECT_EQ(ParseControlUntrusted("{\"number\":1}").status().code(), StatusCode::kCorruption);
  EXPECT_EQ(ParseControlUntrusted("{\"number\":1,\"kind\":\"stop\",\"deadline_s\":1e300}").status().code(),
            StatusCode::kCorruption);
  EXPECT_EQ(ParseControlUntrusted(std::string(2 << 20, ' ')).status().code(), StatusCode::kCorruption);
}

}  // namespace
}  // namespace luff::store::writer_test
