#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "luff/query/trial.h"
#include "luff/query/verify.h"
#include "query/testing/smdebug_writer.h"

namespace luff::query::smdebug_verify_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Two workers, six steps of two values each, ended.
class SmdebugVerifyTest : public ::testing::Test, protected testing::SmdebugWriter {
 protected:
  SmdebugVerifyTest()
      : SmdebugWriter(fs::temp_directory_path() /
                      (std::string("luff-verify-") +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                       std::to_string(getpid()))) {
    WriteCollections(2);
    for (int step = 0; step < 6; ++step) {
      for (const char* worker : {"worker_0", "worker_1"})
        WriteStep(step, Mode::kTrain, step, {{"a", {1, 2}, {2}}, {"b", {3}, {1}}, {"c", {4}, {}}}, worker);
    }
    End();
  }
  ~SmdebugVerifyTest() override { fs::remove_all(root_); }

  SmdebugReport Verify() {
    auto report = VerifySmdebug(root_.string());
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? std::move(report).value() : SmdebugReport();
  }
  [[nodiscard]] std::string Read(const std::string& name) const {
    std::ifstream file(root_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void Flip(const std::string& name, std::size_t at) {
    std::string text = Read(name);
    ASSERT_LT(at, text.size());
    text[at] = static_cast<char>(text[at] ^ 0x10);
    Write(name, text);
  }
  /// Returns how many of the 36 values can be read, and checks each of them.
  int Readable() {
    const auto opened = Trial::Open(root_.string());
    EXPECT_TRUE(opened.ok());
    int good = 0;
    const std::map<std::string, float> first = {{"a", 1}, {"b", 3}, {"c", 4}};
    const Trial& trial = **opened;
    for (TensorId id = 0; id < trial.tensor_count(); ++id) {
      for (const std::int64_t step : *trial.TensorSteps(id, Mode::kGlobal)) {
        for (std::uint32_t worker : {0U, 1U}) {
          const auto value = trial.ReadValue(id, step, Mode::kGlobal, worker);
          if (!value.ok()) continue;
          float number = 0;
          std::memcpy(&number, value->bytes.data(), sizeof(number));
          EXPECT_EQ(number, first.at(trial.tensor(id).name));
          ++good;
        }
      }
    }
    return good;
  }

  const std::string events_ = format::SmdebugEventPath(2, "worker_1");
  const std::string index_ = format::SmdebugIndexPath(2, "worker_1");
};

TEST_F(SmdebugVerifyTest, CleanIsClean) {
  const SmdebugReport report = Verify();
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.damage_count, 0U);
  EXPECT_EQ(report.files, 2U + 12U + 12U);
  EXPECT_EQ(report.records, 36U);
  EXPECT_EQ(report.unchecked, 36U);
  EXPECT_EQ(report.values, 36U);
  EXPECT_EQ(report.workers, 2U);
  EXPECT_EQ(report.steps, 6U);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("no checksum of their payload")));
  EXPECT_EQ(Readable(), 36);
}

TEST_F(SmdebugVerifyTest, EachFlippedByteOfAnEventFileIsSeenUnlessItIsOneThatNothingChecks) {
  // Changes that neither a checksum nor the structure reveals: in the wall time, a number of the tensor, the
  // mode.
  const std::string good = Read(events_);
  std::size_t seen = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    Write(events_, bad);
    const SmdebugReport report = Verify();
    if (report.damage_count == 0) {
      EXPECT_GE(report.unchecked, 36U);
      continue;
    }
    ++seen;
    EXPECT_TRUE(report.damage[0].file == events_ || report.damage[0].file == index_) << report.damage[0].file;
  }
  EXPECT_GT(seen, good.size() / 3);
  // Every byte of the length, its checksum and the footer of a record is checked.
  for (const std::size_t at : {0U, 7U, 8U, 11U}) {
    Write(events_, good);
    Flip(events_, at);
    const SmdebugReport report = Verify();
    ASSERT_THAT(report.damage, SizeIs(1)) << at;
    EXPECT_EQ(report.damage[0].file, events_);
    EXPECT_EQ(report.damage[0].offset, 0U);
    EXPECT_THAT(report.damage[0].what, HasSubstr("of a record's length"));
    EXPECT_THAT(report.damage[0].what, HasSubstr("lost: value of \"a\""));
    EXPECT_THAT(report.damage[0].what, HasSubstr("copy the file again"));
    EXPECT_EQ(report.records, 35U);  // the index file says where the next one begins
    EXPECT_EQ(Readable(), 35);
  }
  Write(events_, good);
  Flip(events_, good.size() - 1);
  const SmdebugReport footer = Verify();
  ASSERT_THAT(footer.damage, SizeIs(1));
  EXPECT_THAT(footer.damage[0].what, HasSubstr("found checksum 0x162dc0b3 of a record"));
  EXPECT_THAT(footer.damage[0].what, HasSubstr("lost: value of \"c\""));
  EXPECT_EQ(Readable(), 35);
}

TEST_F(SmdebugVerifyTest, APayloadWithAChecksumIsChecked) {
  // TensorBoard's framing, which Luff reads too, reveals each changed byte of the payload.
  std::string file;
  for (const char* name : {"a", "b"}) {
    const float number = 1;
    format::TensorToWrite to;
    to.name = name;
    to.dtype = DType::kFloat32;
    to.content = std::as_bytes(std::span(&number, 1));
    to.mode = 1;
    format::AppendRecord(format::EncodeSmdebugTensor(1.0, 6, to), format::RecordFooter::kPayloadCrc, &file);
  }
  const std::size_t half = file.size() / 2;
  format::SmdebugIndex index;
  index.mode = Mode::kTrain;
  index.mode_step = 6;
  const std::string events = format::SmdebugEventPath(6, "worker_0");
  index.event_file = events;
  index.tensors = {{"a", 0, half}, {"b", half, half}};
  Write(events, file);
  Write(format::SmdebugIndexPath(6, "worker_0"), format::FormatSmdebugIndex(index));
  SmdebugReport report = Verify();
  EXPECT_EQ(report.damage_count, 0U);
  EXPECT_EQ(report.records, 38U);
  EXPECT_EQ(report.unchecked, 36U);
  for (std::size_t at = 0; at < half; ++at) {
    Write(events, file);
    Flip(events, at);
    report = Verify();
    ASSERT_THAT(report.damage, SizeIs(1)) << at;
    EXPECT_EQ(report.records, 37U) << at;
  }
}

TEST_F(SmdebugVerifyTest, ACutEventFileSaysWhatIsLost) {
  const std::string good = Read(events_);
  const std::size_t record = good.size() / 3;
  Write(events_, good.substr(0, record + 40));
  const SmdebugReport report = Verify();
  ASSERT_THAT(report.damage, SizeIs(2));
  EXPECT_EQ(report.damage[0].file, events_);
  EXPECT_GT(report.damage[0].offset, 0U);
  EXPECT_THAT(report.damage[0].what, HasSubstr("the file is cut off; lost: value of \"b\""));
  EXPECT_EQ(report.damage[1].offset, record + 40);
  EXPECT_THAT(report.damage[1].what, HasSubstr("the file ends"));
  EXPECT_THAT(report.damage[1].what, HasSubstr("lost are 1, the first \"c\""));
  EXPECT_EQ(report.records, 34U);
  EXPECT_EQ(Readable(), 34);
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    Write(events_, good.substr(0, bytes));
    EXPECT_GT(Verify().damage_count, 0U) << bytes;
  }
}

TEST_F(SmdebugVerifyTest, AnIndexFileIsChecked) {
  const std::string good = Read(index_);
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    Write(index_, good.substr(0, bytes));
    const SmdebugReport report = Verify();
    ASSERT_GT(report.damage_count, 0U) << bytes;
    EXPECT_EQ(report.damage[0].file, index_);
    EXPECT_EQ(report.damage[0].offset, bytes);  // where the text was cut off
    EXPECT_THAT(report.damage[0].what, HasSubstr("its step is missing for this worker"));
  }
  EXPECT_EQ(Readable(), 33);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    Write(index_, text);
    return Verify();
  };
  SmdebugReport report = changed("\"tensorname\": \"a\"", "\"tensorname\": \"z\"");
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_THAT(report.damage[0].what, HasSubstr("found there \"a\""));
  report = changed("\"start_idx\": 0", "\"start_idx\": 7");
  ASSERT_THAT(report.damage, SizeIs(2));
  EXPECT_THAT(report.damage[0].what, HasSubstr("nobody finds it"));
  EXPECT_THAT(report.damage[1].what, HasSubstr("where no record begins"));
  report = changed("events/", "../event");
  ASSERT_EQ(report.damage_count, 2U);  // and no index file names its event file
  EXPECT_THAT(report.damage[0].what, HasSubstr("outside the trial"));
  report = changed("TRAIN", "TRAIM");
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_THAT(report.damage[0].what, HasSubstr("one of the modes"));
  Write(index_, good.substr(0, 30) + good);
  report = Verify();
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_THAT(report.damage[0].what, HasSubstr("30 bytes that an interrupted job left behind"));
  EXPECT_EQ(report.values, 36U);
  EXPECT_EQ(Readable(), 36);
}

TEST_F(SmdebugVerifyTest, MissingFilesAreTold) {
  fs::remove(root_ / events_);
  SmdebugReport report = Verify();
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_EQ(report.damage[0].file, events_);
  EXPECT_THAT(report.damage[0].what, HasSubstr("its 3 values are lost; copy the folder events too"));
  EXPECT_EQ(Readable(), 33);
  fs::remove(root_ / format::SmdebugIndexPath(4, "worker_0"));
  report = Verify();
  ASSERT_THAT(report.damage, SizeIs(2));
  EXPECT_EQ(report.damage[1].file, format::SmdebugIndexPath(4, "worker_0"));
  EXPECT_THAT(report.damage[1].what, HasSubstr("nobody finds its values"));
  fs::remove(root_ / format::SmdebugCollectionsPath("worker_1"));
  report = Verify();
  ASSERT_THAT(report.damage, SizeIs(3));
  EXPECT_THAT(report.damage[0].what, HasSubstr("of 1 workers, expected 2"));
  fs::remove_all(root_ / "collections");
  report = Verify();
  EXPECT_THAT(report.damage[0].what, HasSubstr("found no collections file"));
  EXPECT_THAT(report.damage, SizeIs(3));
}

TEST_F(SmdebugVerifyTest, ACollectionsFileIsChecked) {
  const std::string name = format::SmdebugCollectionsPath("worker_0");
  const std::string good = Read(name);
  Write(name, good.substr(0, good.size() / 2));
  SmdebugReport report = Verify();
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_EQ(report.damage[0].file, name);
  EXPECT_EQ(report.damage[0].offset, good.size() / 2);
  EXPECT_THAT(report.damage[0].what, HasSubstr("tensors lose collections"));
  std::string bad = good;
  bad.replace(bad.find("^(?!g"), 5, "^(?!(");
  Write(name, bad);
  report = Verify();
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_THAT(report.damage[0].what, HasSubstr("does not compile"));
  EXPECT_EQ(Readable(), 36);
}

TEST_F(SmdebugVerifyTest, WhatAKilledJobLeftBehindIsNoDamage) {
  fs::remove(root_ / format::kSmdebugEndFile);
  fs::remove(root_ / format::SmdebugIndexPath(5, "worker_0"));  // its event file was already complete
  Write("index/000000000/000000000006_worker_0.json.tmp", "{");
  const SmdebugReport report = Verify();
  EXPECT_EQ(report.damage_count, 0U) << report.damage[0].what;
  ASSERT_THAT(report.notes, SizeIs(4));
  EXPECT_THAT(report.notes[0], HasSubstr("has no index file yet"));
  EXPECT_THAT(report.notes[1], HasSubstr("1 files *.tmp"));
  EXPECT_THAT(report.notes[2], HasSubstr("training_job_end.ts is not there"));
}

TEST_F(SmdebugVerifyTest, WhatStandsInTheWayIsNoFile) {
  fs::remove(root_ / events_);
  fs::create_directory(root_ / events_);
  Write("index/000000000/notes.json", "{}");
  const SmdebugReport report = Verify();
  ASSERT_THAT(report.damage, SizeIs(2));
  EXPECT_THAT(report.damage[0].what, HasSubstr("something that is no regular file"));
  EXPECT_THAT(report.damage[1].what, HasSubstr("expected STEP_WORKER.json"));
  EXPECT_EQ(VerifySmdebug((root_ / "index").string()).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace luff::query::smdebug_verify_test
