#include "store/uploaded.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "base/testing/forwarding_env.h"
#include "luff/store/verify.h"
#include "store/test_run.h"

namespace luff::store::uploaded_test {
namespace {

constexpr std::size_t kElements = 4000;
constexpr std::int64_t kSecond = 1'000'000'000;

class Clock : public ForwardingEnv {
 public:
  std::int64_t NowMonotonicNs() noexcept override { return Real().NowMonotonicNs() + ahead_ns; }
  std::int64_t ahead_ns = 0;
};

/// A run whose payload files hold four values each, and what an upload says of them.
class UploadedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    options.run_path = run;
    options.segment_bytes_payload = 72 << 10;
    options.direct_io = WriterOptions::Direct::kOff;
    options.env = &clock;
    writer = OpenNewRun(options, kElements);
    ASSERT_NE(writer, nullptr);
  }
  void Step() {
    StepBatch batch;
    ASSERT_TRUE(AppendValue(writer.get(), step, kElements, &batch).ok());
    batch.mark = MarkOf(step++);
    ASSERT_TRUE(writer->PublishStep(batch).ok());
  }
  [[nodiscard]] std::map<std::uint32_t, std::uint64_t> Files() const {
    std::map<std::uint32_t, std::uint64_t> files;
    for (const auto& entry : std::filesystem::directory_iterator(run + "/w0000")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("d-"))
        files[static_cast<std::uint32_t>(std::stoul(name.substr(2)))] = entry.file_size();
    }
    return files;
  }
  void Say(const std::map<std::uint32_t, std::uint64_t>& files, std::uint64_t keep,
           std::int64_t seconds_ago = 0) {
    std::filesystem::create_directory(run + "/sync");
    std::string list;
    for (const auto& [file, bytes] : files)
      list += (list.empty() ? "[0," : ",[0,") + std::to_string(file) + "," + std::to_string(bytes) + "]";
    std::ofstream(run + "/sync/uploaded.json")
        << R"({"format":"luff-uploaded","version":1,"url":"s3://b/team/ID","unix_ns":)" +
               std::to_string(Env::Real().NowUnixNs() - seconds_ago * kSecond) + R"(,"keep_bytes":)" +
               std::to_string(keep) + R"(,"payload":[)" + list + "]}";
  }
  /// The job is resumed, so long after it began.
  void BeginAgain(std::int64_t after_ns) {
    writer.reset();
    auto next = WorkerWriter::Open(options, TestRun());
    ASSERT_TRUE(next.ok());
    writer = std::move(next).value();
    StepBatch names;
    names.tensors = {Def(0, "a")};
    names.layouts = {VectorLayout(0, kElements)};
    clock.ahead_ns += after_ns;
    ASSERT_TRUE(writer->PublishLoose(names).ok());
  }
  /// Whether the value of a step is read, and is right; else why not.
  [[nodiscard]] std::string Read(std::int64_t of) const {
    const auto reader = RunReader::Open(run);
    EXPECT_TRUE(reader.ok());
    const WorkerReader& worker = *(*reader)->workers()[0];
    for (const auto& segment : worker.segments()) {
      const auto slot = segment->FindSlot(0);
      if (!slot) continue;
      const auto rows = segment->Index(*slot);
      EXPECT_TRUE(rows.ok());
      for (std::size_t i = 0; i < rows->rows.size(); ++i) {
        if (segment->steps().global_step[rows->step[i]] != of) continue;
        const auto value = worker.ReadPayload(std::span(&rows->rows[i], 1), kElements * 4);
        if (!value.ok()) return std::string(value.status().message());
        return std::ranges::equal(value->bytes, ValueOf(0, of, kElements)) ? "right" : "wrong";
      }
    }
    return "no row";
  }

  TemporaryDirectory folder;
  const std::string run = folder.path() + "/run";
  Clock clock;
  WriterOptions options;
  std::unique_ptr<WorkerWriter> writer;
  std::int64_t step = 0;
};

TEST_F(UploadedRun, KeepsWhatItsOwnerAskedFor_AndSaysWhereTheRestIs) {
  for (int i = 0; i < 40; ++i) Step();
  const auto files = Files();
  ASSERT_EQ(files.size(), 10U);
  auto said = files;
  --said[3];  // not all of it is there
  Say(said, 150 << 10);
  clock.ahead_ns += 10 * kSecond;
  Step();
  EXPECT_EQ(Files().size(), 11U);  // rules may be about to read what was just written
  clock.ahead_ns += 60 * kSecond;
  Step();
  const auto left = Files();
  EXPECT_TRUE(left.contains(3));
  EXPECT_TRUE(left.contains(11));  // which is being written
  EXPECT_FALSE(left.contains(1) || left.contains(2) || left.contains(4));
  std::uint64_t bytes = 0;
  for (const auto& [file, size] : left) bytes += size;
  EXPECT_LE(bytes, 150U << 10);
  EXPECT_GT(bytes + (72 << 10), 150U << 10);  // and no less than that
  EXPECT_NE(Read(0).find("is in the bucket and not here any more"), std::string::npos) << Read(0);
  EXPECT_NE(Read(0).find("s3://b/team/ID"), std::string::npos);
  EXPECT_EQ(Read(8), "right");
  EXPECT_EQ(Read(41), "right");

  ASSERT_TRUE(writer->Close(format::EndReason::kCompleted).ok());
  const auto verified = VerifyRun(run, {});
  ASSERT_TRUE(verified.ok());
  EXPECT_EQ(verified->damage_count, 0U);
  EXPECT_NE(verified->notes.at(0).find("values are in the bucket"), std::string::npos);
  const auto reader = RunReader::Open(run);
  const auto gaps = (*reader)->workers()[0]->gaps();
  ASSERT_EQ(gaps.size(), 1U);
  EXPECT_EQ(gaps[0].row.reason, static_cast<std::uint16_t>(format::GapReason::kUploaded));
  EXPECT_EQ(gaps[0].row.count, 4 * (11 - left.size()));
  EXPECT_EQ(gaps[0].row.first_step, 0);

  // A job that is resumed goes on with the files of before.
  Say(files, 0);
  ASSERT_NO_FATAL_FAILURE(BeginAgain(10 * kSecond));
  Step();
  EXPECT_FALSE(Files().contains(3));
  EXPECT_EQ(Read(step - 1), "right");
}

TEST_F(UploadedRun, NumbersOfFilesThatAreGoneAreNotUsedAgain_AlsoAfterAJobThatKeptNothing) {
  for (int i = 0; i < 8; ++i) Step();
  ASSERT_TRUE(writer->Close(format::EndReason::kCompleted).ok());
  const auto files = Files();
  Say(files, 0);
  ASSERT_NO_FATAL_FAILURE(BeginAgain(100 * kSecond));  // it has no step with a value
  StepBatch batch;
  batch.mark = MarkOf(step++);
  ASSERT_TRUE(writer->PublishStep(batch).ok());
  EXPECT_TRUE(Files().empty());
  ASSERT_TRUE(writer->Close(format::EndReason::kCompleted).ok());
  std::filesystem::remove(run + "/sync/uploaded.json");

  ASSERT_NO_FATAL_FAILURE(BeginAgain(100 * kSecond));
  const std::int64_t first = step;
  for (int i = 0; i < 8; ++i) Step();
  for (const auto& [file, bytes] : Files()) EXPECT_FALSE(files.contains(file)) << file;
  EXPECT_EQ(Read(first), "right");
  ASSERT_TRUE(writer->Close(format::EndReason::kCompleted).ok());
  ASSERT_NO_FATAL_FAILURE(BeginAgain(100 * kSecond));  // which clears away what was retired
  EXPECT_EQ(Read(first), "right");
}

TEST_F(UploadedRun, NothingIsRemovedBecauseOfWhatDoesNotCount) {
  for (int i = 0; i < 12; ++i) Step();
  const auto files = Files();
  const auto stays = [&](const char* why) {
    clock.ahead_ns += 100 * kSecond;
    Step();
    for (const auto& [file, bytes] : files) EXPECT_TRUE(Files().contains(file)) << why;
  };
  Say(files, 1ULL << 40);
  stays("there is room");
  Say(files, 0, 400);
  stays("an upload that ended long ago");
  Say(files, 0, -400);
  stays("a clock that is wrong");
  Say({}, 0);
  stays("nothing is there");
  for (const char* text :
       {"", "{", "[]", R"({"format":"luff-uploaded","version":2,"keep_bytes":0,"payload":[]})",
        R"({"format":"luff-uploaded","version":1,"keep_bytes":-1,"payload":[[0,1,77]]})",
        R"({"format":"luff-uploaded","version":1,"keep_bytes":0,"payload":[[0,1]]})"}) {
    std::ofstream(run + "/sync/uploaded.json") << text;
    stays(text);
    EXPECT_FALSE(ParseUploadedUntrusted(text, 0).ok());
  }
  Say(files, 0);
  std::filesystem::permissions(run + "/sync/uploaded.json", std::filesystem::perms(0666));
  stays("others may have written it");
  std::filesystem::permissions(run + "/sync/uploaded.json", std::filesystem::perms(0600));
  std::filesystem::rename(run + "/sync", run + "/elsewhere");
  std::filesystem::create_directory_symlink(run + "/elsewhere", run + "/sync");
  stays("a link");
}

TEST_F(UploadedRun, AValueThatDidNotChangeIsWrittenAgainIfItIsNotHereAnyMore) {
  StepBatch first;
  ASSERT_TRUE(AppendValue(writer.get(), step, kElements, &first).ok());
  const Place place{first.index[0].data_file, first.index[0].offset};
  first.mark = MarkOf(step++);
  ASSERT_TRUE(writer->PublishStep(first).ok());
  for (int i = 0; i < 12; ++i) Step();
  EXPECT_TRUE(writer->ChunkIsKept(place));
  Say(Files(), 0);
  clock.ahead_ns += 100 * kSecond;
  Step();
  EXPECT_FALSE(writer->ChunkIsKept(place));
}

}  // namespace
}  // namespace luff::store::uploaded_test
