// Runs made by an attacker who knows the format: every checksum is right, but the contents are not. Each
// gives an error that names the file, or is skipped and counted by verify; memory stays in proportion to the
// files.
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "luff/query/trial.h"
#include "luff/store/reader.h"
#include "luff/store/verify.h"
#include "query/testing.h"
#include "query/testing/forge.h"

namespace luff::query::hostile_test {
namespace {

using format::FrameKind;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using testing::Forged;
using testing::Frames;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TempRun;
using testing::Writing;

constexpr std::uint64_t kLoose = format::kLooseOrdinal;
constexpr std::int64_t kSteps = 5;

class HostileTest : public ::testing::Test {
 protected:
  /// Two tensors, "x" with summaries and values, "y" with summaries only, at five steps; sealed.
  void SetUp() override {
    Writing w(run.path(), 0, 1, false, false);
    w.Define(0, "x", 8);
    w.Define(1, "y", 8);
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> values(8, static_cast<float>(step));
      w.AddSummary(0, values);
      w.AddSummary(1, values);
      w.AddValue(0, values);
      w.Step();
    }
    w.Close();
  }
  [[nodiscard]] std::string Segment(int number = 1) const {
    return run.path() + "/w0000/m-00000" + std::to_string(number) + ".lfm";
  }
  [[nodiscard]] std::string Data() const { return run.path() + "/w0000/d-000001.lfd"; }
  /// Frames of a segment that follows the run's only one.
  [[nodiscard]] Frames Next() const { return {Forged(Segment()).header(), 2}; }
  std::unique_ptr<Trial> Open() {
    OpenOptions options;
    options.lost_after_s = 0;
    auto trial = Trial::Open(run.path(), options);
    EXPECT_TRUE(trial.ok()) << trial.status().ToString();
    return trial.ok() ? std::move(trial).value() : nullptr;
  }
  /// The damage that VerifyRun reports, as texts "file: what".
  std::vector<std::string> Damage() {
    const auto report = store::VerifyRun(run.path());
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    std::vector<std::string> texts;
    if (!report.ok()) return texts;
    for (const auto& damage : report->damage) texts.push_back(damage.file + ": " + damage.what);
    return texts;
  }
  /// A row of a float32 value of layout 7 that refers to the first chunk of a payload file; the caller sets
  /// its sizes.
  static format::IndexRow FirstChunkOf(std::uint32_t data_file) {
    format::IndexRow row{};
    row.layout = 7;
    row.parts = 1;
    row.data_file = data_file;
    row.offset = format::kFileHeaderBytes;
    row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
    return row;
  }
  static std::string Message(const auto& result) {
    return result.ok() ? "no error" : std::string(result.status().message());
  }
  TempRun run;
};

TEST_F(HostileTest, TheRunItselfIsGood) {
  EXPECT_THAT(Damage(), IsEmpty());
  Forged file(Segment());
  file.Seal();  // sealing an unchanged file changes nothing
  file.Save();
  EXPECT_THAT(Damage(), IsEmpty());
  EXPECT_EQ(Open()->step_count(), 5U);
}

// Counts and places in the footer

TEST_F(HostileTest, HugeCountsOfRowsAreRefusedBeforeThereIsRoomForThem) {
  Forged file(Segment());
  file.entries()[0].summary_rows = 0xFFFFFFFFU;
  file.entries()[0].scalar_rows = 0xFFFFFFFFU;
  file.entries()[0].index_rows = 0xFFFFFFFFU;
  file.entries()[0].form_rows = 0xFFFFFFFFU;
  file.Seal();
  file.Save();
  auto trial = Open();
  EXPECT_EQ(trial->step_count(), 5U);
  const auto columns = trial->Summaries(0, Mode::kTrain);
  EXPECT_EQ(columns.status().code(), StatusCode::kCorruption);
  EXPECT_THAT(Message(columns), HasSubstr(Segment()));
  EXPECT_THAT(Message(trial->Scalars(0, Mode::kTrain)), HasSubstr(Segment()));
  EXPECT_THAT(Message(trial->ReadValue(0, 0, Mode::kTrain)), HasSubstr(Segment()));
  EXPECT_THAT(Message(trial->ReadStack(0, Mode::kTrain, {}, 1 << 20)), HasSubstr(Segment()));
  EXPECT_THAT(Message(trial->ReadForm(0, format::Form::kHash, 0, Mode::kTrain)), HasSubstr(Segment()));
  EXPECT_EQ(trial->Summaries(1, Mode::kTrain)->mean.size(), 5U) << "the other tensor is whole";
  EXPECT_THAT(Damage(), Contains(HasSubstr("summaries of tensor 0")));
}

TEST_F(HostileTest, OffsetsBeyondTheEndAreRefused) {
  for (const std::uint64_t offset : {std::uint64_t{1} << 60, ~std::uint64_t{0} - 7, std::uint64_t{4}}) {
    SCOPED_TRACE(offset);
    Forged file(Segment());
    file.entries()[0].summary_offset = offset;
    file.entries()[0].index_offset = offset;
    file.Seal();
    file.Save();
    auto trial = Open();
    EXPECT_THAT(Message(trial->Summaries(0, Mode::kTrain)), HasSubstr(Segment()));
    EXPECT_THAT(Message(trial->ReadSummary(0, 1, Mode::kTrain)), HasSubstr(Segment()));
    EXPECT_THAT(Message(trial->ReadValue(0, 1, Mode::kTrain)), HasSubstr(Segment()));
    EXPECT_THAT(Damage(), Contains(HasSubstr("m-000001.lfm: footer points outside of itself")));
    EXPECT_EQ(trial->Summaries(1, Mode::kTrain)->mean.size(), 5U);
  }
}

TEST_F(HostileTest, BlocksThatOverlapAreReadWithoutHarm) {
  Forged file(Segment());
  // The rows of one tensor overlap those of the other, the directory and the head.
  file.entries()[1].summary_offset = file.entries()[0].summary_offset + 8;
  file.entries()[1].index_offset = file.head().tensors.offset;
  file.entries()[1].index_rows = 1;
  file.entries()[1].form_offset = 0;
  file.entries()[1].form_rows = 3;
  file.Seal();
  file.Save();
  auto trial = Open();
  (void)trial->Summaries(1, Mode::kTrain);
  EXPECT_EQ(trial->Summaries(0, Mode::kTrain)->mean.size(), 5U);
  EXPECT_FALSE(trial->ReadValue(1, 0, Mode::kTrain).ok());
  EXPECT_THAT(Damage(), Not(IsEmpty()));
}

TEST_F(HostileTest, RowsThatGoBackwardsOrBelongToNoStepAreRefused) {
  // Beyond the last step; before the previous row's step.
  for (const std::uint32_t step : {std::uint32_t{7}, std::uint32_t{0}}) {
    Forged file(Segment());
    file.summary_steps(file.entries()[0])[4] = step;
    file.Seal();
    file.Save();
    const auto columns = Open()->Summaries(0, Mode::kTrain);
    EXPECT_EQ(columns.status().code(), StatusCode::kCorruption);
    EXPECT_THAT(Message(columns), HasSubstr(Segment()));
    EXPECT_THAT(Damage(), Contains(HasSubstr("not in the segment")));
  }
}

TEST_F(HostileTest, StepsThatGoBackwardsAreNotBelieved) {
  // The largest ordinal means "of no step"; adding one to it gives zero.
  const std::vector<std::vector<std::uint64_t>> hostile = {
      {0, 1, 2, 3, kLoose}, {4, 3, 2, 1, 0}, {0, 0, 0, 0, 0}, {0, 1, 9, 3, 4}};
  for (const auto& ordinals : hostile) {
    SCOPED_TRACE(::testing::PrintToString(ordinals));
    Forged file(Segment());
    std::copy(ordinals.begin(), ordinals.end(), file.ordinals().begin());
    file.Seal();
    file.Save();
    auto trial = Open();
    EXPECT_EQ(trial->step_count(), 5U) << "the frames are good";
    EXPECT_EQ(trial->Summaries(0, Mode::kTrain)->mean.size(), 5U);
    EXPECT_THAT(trial->Problems(), Contains(HasSubstr(Segment())));
    EXPECT_THAT(Damage(), Contains(HasSubstr("m-000001.lfm")));
  }
}

TEST_F(HostileTest, OrdinalsThatJumpTakeNoMemory) {
  Forged file(Segment());
  for (std::size_t i = 0; i < 5; ++i) file.ordinals()[i] = i << 58;
  file.Seal();
  file.Save();
  auto trial = Open();
  EXPECT_GE(trial->step_count(), 1U);
  EXPECT_GE(trial->Summaries(0, Mode::kTrain)->mean.size(), 1U);
  EXPECT_THAT(trial->Problems(), Contains(HasSubstr(run.path())));
}

TEST_F(HostileTest, AFooterThatPointsIntoItselfIsNotUsed) {
  const Forged original(Segment());
  for (const std::uint64_t offset :
       {original.body_offset(), original.body_offset() + 184, std::uint64_t{0}, std::uint64_t{1} << 62}) {
    Forged file(Segment());
    file.tail().footer_offset = offset;
    file.tail().footer_bytes = file.bytes().size() - sizeof(format::FileTail) - offset;
    file.SealTail();
    file.Save();
    auto trial = Open();
    EXPECT_EQ(trial->step_count(), 5U) << "its frames are used";
    EXPECT_THAT(trial->Problems(), Contains(HasSubstr(Segment())));
    EXPECT_THAT(Damage(), Contains(HasSubstr("m-000001.lfm")));
    Forged(std::as_const(original)).Save(Segment());
  }
}

TEST_F(HostileTest, AFrameDirectoryThatPointsIntoTheFooterIsRefused) {
  Forged file(Segment());
  ASSERT_GE(file.frames().size(), 1U);
  file.frames()[0].offset = file.body_offset();
  file.Seal();
  file.Save();
  auto trial = Open();
  EXPECT_THAT(trial->Problems(), Contains(HasSubstr(Segment())));
  EXPECT_EQ(trial->Summaries(0, Mode::kTrain)->mean.size(), 5U);
  EXPECT_THAT(Damage(), Contains(HasSubstr("frame directory points outside of the segment")));
}

TEST_F(HostileTest, GlobalStepsAtTheEndsOfTheNumbersAreJustNumbers) {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  Forged file(Segment());
  file.global_steps()[0] = kMin;
  file.global_steps()[4] = kMax;
  file.Seal();
  file.Save();
  auto trial = Open();
  EXPECT_EQ(trial->StateOfStep(kMax, Mode::kGlobal), StepState::kAvailable);
  EXPECT_EQ(trial->StateOfStep(kMax - 1, Mode::kGlobal), StepState::kUnavailable);
  EXPECT_TRUE(trial->ReadSummary(0, kMin, Mode::kGlobal).ok());
  EXPECT_THAT(trial->Gaps(), IsEmpty());
  // The same for a lost worker: the gap after its last step has no step number.
  std::filesystem::remove(Segment());
  Frames frames(file.header(), 1);
  frames.Mark(0, kMax).Save(Segment());
  EXPECT_THAT(Open()->Gaps(), Contains(Field(&GapInfo::reason, "worker lost")));
}

// Segments of another owner

TEST_F(HostileTest, ASegmentOfAnotherRunOrWorkerIsNotShown) {
  const auto other_run = [](format::FileHeader& header) { header.run_id[3] ^= 0x40; };
  const auto other_worker = [](format::FileHeader& header) { header.worker = 9; };
  for (const auto& change : {std::function<void(format::FileHeader&)>(other_run), {other_worker}}) {
    Forged file(Segment());
    format::FileHeader header = file.header();
    change(header);
    Frames frames(header, 2);
    frames.Mark(5, 5).Save(Segment(2));
    auto trial = Open();
    EXPECT_EQ(trial->step_count(), 5U) << "only its own";
    EXPECT_THAT(trial->Problems(), Contains(HasSubstr(Segment(2))));
    EXPECT_THAT(Damage(), Contains(HasSubstr("m-000002.lfm")));
  }
}

TEST_F(HostileTest, WhatIsNoFileIsNotWaitedFor) {
  ASSERT_EQ(mkfifo(Segment(2).c_str(), 0600), 0);  // opening it for reading would wait for a writer
  std::filesystem::remove(run.path() + "/w0000/live");
  ASSERT_EQ(mkfifo((run.path() + "/w0000/live").c_str(), 0600), 0);
  std::filesystem::remove(Data());
  ASSERT_EQ(mkfifo(Data().c_str(), 0600), 0);
  auto trial = Open();
  EXPECT_EQ(trial->step_count(), 5U);
  EXPECT_FALSE(trial->ReadValue(0, 0, Mode::kTrain).ok());
  EXPECT_THAT(Damage(), Contains(HasSubstr("m-000002.lfm")));
}

// Frames

TEST_F(HostileTest, LayoutsWhoseProductOverflowsAreNoLayouts) {
  Frames frames = Next();
  format::IndexRow row = FirstChunkOf(1);
  row.raw_bytes = row.stored_bytes = 32;
  frames
      .Add(FrameKind::kLayoutDefs, kLoose,
           [](format::FrameBuffer* to) {
             to->PutValue(std::uint32_t{7});
             const std::uint8_t head[] = {static_cast<std::uint8_t>(DType::kFloat32), 3, 0, 0};
             to->Put(head, sizeof(head));
             for (int i = 0; i < 3; ++i) to->PutValue(std::int64_t{1} << 31);
           })
      .Add(FrameKind::kIndexRows, 5, std::vector{row})
      .Mark(5, 5, 1)
      .Save(Segment(2));
  auto trial = Open();
  ASSERT_EQ(trial->step_count(), 6U);
  const auto value = trial->ReadValue(0, 5, Mode::kTrain);
  EXPECT_EQ(value.status().code(), StatusCode::kCorruption);
  EXPECT_THAT(Message(value), HasSubstr(Segment(2)));
  EXPECT_THAT(Message(trial->Shape(0, 5, Mode::kTrain)), HasSubstr(Segment(2)));
  EXPECT_THAT(Damage(), Contains(HasSubstr("2^62 bytes")));
}

TEST_F(HostileTest, AFewBytesThatStandForTerabytesAreRefused) {
  // A constant of four bytes, of a layout of up to 2^62 bytes; chunk, row and layout agree.
  for (const unsigned shift : {33U, 36U, 50U, 61U}) {
    SCOPED_TRACE(shift);
    const std::uint64_t bytes = std::uint64_t{1} << shift;
    std::vector<std::byte> chunk(128);
    format::ChunkInfo info;
    info.dtype = DType::kFloat32;
    info.parts = 1;
    format::FinishChunk(chunk.data(), info, format::Codec::kConstant, bytes, 4, 77);
    std::vector<std::byte> file(format::kFileHeaderBytes);
    format::FileHeader header = Forged(Segment()).header();
    header.sequence = 9;
    format::SealFileHeader(&header, format::kDataMagic);
    std::memcpy(file.data(), &header, sizeof(header));
    file.insert(file.end(), chunk.begin(), chunk.end());
    std::ofstream(run.path() + "/w0000/d-000009.lfd", std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
    format::IndexRow row = FirstChunkOf(9);
    row.codec = static_cast<std::uint8_t>(format::Codec::kConstant);
    row.raw_bytes = bytes;
    row.stored_bytes = 4;
    row.content_hash = 77;
    Frames frames = Next();
    frames
        .Add(FrameKind::kLayoutDefs, kLoose,
             [&](format::FrameBuffer* to) {
               format::LayoutDefView def;
               def.id = 7;
               const std::int64_t dims[] = {static_cast<std::int64_t>(bytes / 4)};
               def.layout = Layout::Contiguous(DType::kFloat32, dims).value();
               format::PutLayoutDef(def, to);
             })
        .Add(FrameKind::kIndexRows, 5, std::vector{row})
        .Mark(5, 5, 1)
        .Save(Segment(2));
    auto trial = Open();
    const auto value = trial->ReadValue(0, 5, Mode::kTrain);
    ASSERT_FALSE(value.ok());
    EXPECT_THAT(Message(value), HasSubstr(run.path()));
    EXPECT_FALSE(trial->ReadStack(0, Mode::kTrain, {}, std::uint64_t{1} << 63).ok());
    EXPECT_THAT(Damage(), Contains(HasSubstr("d-000009.lfd")));
  }
}

TEST_F(HostileTest, NamesWithoutEndAreNoNames) {
  const auto definition = [](std::uint16_t said, std::size_t there) {
    return [=](format::FrameBuffer* to) {
      to->PutValue(std::uint32_t{7});
      const std::uint16_t head[] = {0, 0, said, 0, 0, 0};  // role, collections, name, path, type
      to->Put(head, sizeof(head));
      to->Put(std::string(there, 'n').data(), there);
    };
  };
  Frames frames = Next();
  frames
      .Add(FrameKind::kTensorDefs, kLoose, definition(60000, 64))  // longer than its frame
      .Add(FrameKind::kTensorDefs, kLoose, definition(60000, 60000))
      .Add(FrameKind::kTensorDefs, kLoose, definition(4096, 4096))
      .Add(FrameKind::kDocument, kLoose, [](format::FrameBuffer* to) { to->PutValue(std::uint16_t{0xFFFF}); })
      .Save(Segment(2));
  auto trial = Open();
  ASSERT_EQ(trial->tensor_count(), 3U);
  EXPECT_TRUE(trial->FindTensor(std::string(4096, 'n')).ok());
  EXPECT_THAT(Damage(), Contains(HasSubstr("at most 4096")));
  EXPECT_THAT(Damage(), Contains(HasSubstr("definition of a tensor is longer than its frame")));
  EXPECT_THAT(Damage(), Contains(HasSubstr("name of a document is longer than its frame")));
}

TEST_F(HostileTest, CountsInFramesAreBoundedByTheirBytes) {
  format::IndexRow row{};
  row.parts = 0xFFFFFFFFU;  // a value of four billion parts, of which one exists
  row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  Frames frames = Next();
  frames.Add(FrameKind::kIndexRows, 5, std::vector{row})
      .Add(FrameKind::kHistogramRows, 5, std::vector<std::uint32_t>{0, 0xFFFFFFFFU})
      .Add(FrameKind::kUnitRows, 5, std::vector<std::uint32_t>{0, 0xFFFFFFFFU, 0, 0, 0xFFFFFFFFU, 0})
      .Mark(5, 5, 3)
      .Mark(kLoose, 6)  // a mark that belongs to no step
      .Save(Segment(2));
  auto trial = Open();
  ASSERT_EQ(trial->step_count(), 6U);
  EXPECT_THAT(Message(trial->ReadValue(0, 5, Mode::kTrain)), HasSubstr(Segment(2)));
  EXPECT_THAT(Message(trial->ReadStack(0, Mode::kTrain, {}, 1 << 20)), HasSubstr(run.path() + "/w0000"));
  EXPECT_EQ(trial->Histogram(0, 5, Mode::kTrain).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(trial->Units(0, 5, Mode::kTrain).status().code(), StatusCode::kCorruption);
  Trial::StepRows rows;
  EXPECT_EQ(trial->ReadStepRows(5, &rows).code(), StatusCode::kCorruption);
  EXPECT_THAT(Damage(), Contains(HasSubstr("histogram with more bins")));
  EXPECT_THAT(Damage(), Contains(HasSubstr("unit counts are longer")));
}

TEST_F(HostileTest, ABodyLongerThanAFrameMayBeEndsTheReading) {
  Frames frames = Next();
  frames.Mark(5, 5).Mark(6, 6).Save(Segment(2));
  std::fstream file(Segment(2), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(format::kFileHeaderBytes + 32 + 56 + offsetof(format::FrameHeader, body_bytes));
  const std::uint32_t huge = 0xFFFFFFFFU;
  file.write(reinterpret_cast<const char*>(&huge), sizeof(huge));
  file.close();
  EXPECT_EQ(Open()->step_count(), 6U);
  EXPECT_THAT(Damage(), Contains(HasSubstr("m-000002.lfm: damaged frame")));
}

TEST_F(HostileTest, RelocationsThatGoRoundEnd) {
  const format::IndexRow row = [&] {
    Forged file(Segment());
    return file.index(file.entries()[0])[2];
  }();
  Frames frames = Next();
  frames.Add(FrameKind::kRelocate, kLoose, std::vector<format::RelocateRow>{{1, 1, row.offset, row.offset}})
      .Add(FrameKind::kRetire, kLoose, std::vector<format::RetireRow>{{1, 10}})
      .Save(Segment(2));
  auto trial = Open();
  const auto round = trial->ReadValue(0, 2, Mode::kTrain);
  EXPECT_EQ(round.status().code(), StatusCode::kCorruption);
  EXPECT_THAT(Message(round), HasSubstr("circle"));
  EXPECT_EQ(trial->ReadValue(0, 1, Mode::kTrain).status().code(), StatusCode::kOutOfRange);
  EXPECT_THAT(Damage(), Contains(HasSubstr("circle")));
}

TEST_F(HostileTest, PlacesThatNoFileHasAreRefused) {
  Forged file(Segment());
  file.index(file.entries()[0])[1].offset = std::uint64_t{1} << 41;
  file.index(file.entries()[0])[2].data_file = 0xFFFFFFFFU;
  file.index(file.entries()[0])[3].stored_bytes = ~std::uint64_t{0};
  file.index(file.entries()[0])[4].raw_bytes = ~std::uint64_t{0};
  file.Seal();
  file.Save();
  auto trial = Open();
  EXPECT_TRUE(trial->ReadValue(0, 0, Mode::kTrain).ok());
  for (int step = 1; step < 5; ++step) {
    const auto value = trial->ReadValue(0, step, Mode::kTrain);
    EXPECT_FALSE(value.ok()) << step;
    EXPECT_THAT(Message(value), HasSubstr(run.path() + "/w0000")) << step;
  }
  EXPECT_EQ(Damage().size(), 4U);
}

// Readers that follow

TEST_F(HostileTest, AFooterThatKnowsLessThanItsFramesIsNoHarmToAReaderThatFollows) {
  Forged sealed(Segment());
  const std::uint64_t frames_end = sealed.body_offset() - sizeof(format::FrameHeader);
  std::filesystem::resize_file(Segment(), frames_end);
  OpenOptions options;
  auto opened = Trial::Open(run.path(), options);
  ASSERT_TRUE(opened.ok());
  Trial& trial = **opened;
  ASSERT_EQ(trial.step_count(), 5U);
  sealed.head().tensor_count = 0;
  sealed.head().tensors.bytes = 0;
  for (std::size_t i = 0; i < 5; ++i) sealed.ordinals()[i] = 100 + i;
  sealed.Seal();
  sealed.Save();
  ASSERT_TRUE(trial.Refresh().ok());
  Trial::StepRows rows;
  for (std::size_t n = 0; n < trial.step_count(); ++n) (void)trial.ReadStepRows(n, &rows);
  for (int step = 0; step < 5; ++step) {
    EXPECT_FALSE(trial.ReadValue(0, step, Mode::kTrain).ok());
    EXPECT_FALSE(trial.ReadSummary(0, step, Mode::kTrain).ok());
  }
  EXPECT_TRUE(trial.Summaries(0, Mode::kTrain).ok());
}

TEST_F(HostileTest, AFooterWithoutItsTailIsNewsOnlyOnce) {
  const std::uint64_t size = std::filesystem::file_size(Segment());
  std::filesystem::resize_file(Segment(), size - sizeof(format::FileTail));
  auto reader = store::SegmentReader::Open(Segment(), 1, 0);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_FALSE((*reader)->sealed());
  for (int i = 0; i < 3; ++i) {
    const auto news = (*reader)->Poll();
    ASSERT_TRUE(news.ok());
    EXPECT_FALSE(*news);
  }
}

// run.json

TEST_F(HostileTest, NumbersOfTheRunFileAreJustNumbers) {
  for (const char* created : {"-9223372036854775808", "9223372036854775807"}) {
    for (const char* world : {"4294967295", "0"}) {
      Forged file(Segment());
      std::string id;
      for (const std::uint8_t byte : file.header().run_id) {
        char hex[3];
        std::snprintf(hex, sizeof(hex), "%02x", byte);
        id += hex;
      }
      std::filesystem::remove(run.path() + "/run.json");
      std::ofstream(run.path() + "/run.json")
          << R"({"format":"luff-run","format_major":0,"format_minor":1,"run_id":")" << id
          << R"(","created_unix_ns":)" << created << R"(,"world_size":)" << world << "}";
      Frames frames = Next();
      frames.Mark(5, 5).Save(Segment(2));
      std::filesystem::create_directory(run.path() + "/w0001");
      auto trial = Open();
      ASSERT_NE(trial, nullptr);
      (void)trial->Refresh().ok();
      (void)trial->outcome();
      EXPECT_LE(trial->step_count(), 6U);
    }
  }
}

}  // namespace
}  // namespace luff::query::hostile_test
