// Files that claim far more than they hold, and many small files: work and memory stay in proportion to the
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/bounded_read.h"
#include "luff/query/trial.h"
#include "luff/store/reader.h"
#include "luff/store/verify.h"
#include "query/testing.h"
#include "query/testing/forge.h"
#include "query/testing/work.h"

namespace luff::query::budget_test {
namespace {

namespace fs = std::filesystem;
using format::FrameKind;
using testing::CpuSeconds;
using testing::Forged;
using testing::Frames;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempRun;
using testing::Writing;

constexpr std::uint64_t kLoose = format::kLooseOrdinal;

/// A run with one step, the model for forged files.
class BudgetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Writing w(run.path(), 0, 1, false, false);
    w.Define(0, "x", 8);
    w.AddSummary(0, std::vector<float>(8, 1.0F));
    w.Step();
    w.Close();
  }
  [[nodiscard]] format::FileHeader Model() const {
    return Forged(run.path() + "/w0000/m-000001.lfm").header();
  }

  /// Forges `chunks` chunks of 64 MiB of one number (128 bytes in the file each), and `rows` rows that refer
  /// to them in turn.
  void ClaimValues(std::size_t chunks, std::size_t rows) const {
    constexpr std::uint64_t kBytes = format::kMaxConstantBytes;
    std::vector<std::byte> file(format::kFileHeaderBytes);
    format::FileHeader header = Model();
    header.sequence = 9;
    format::SealFileHeader(&header, format::kDataMagic);
    std::memcpy(file.data(), &header, sizeof(header));
    std::vector<format::IndexRow> kinds;
    std::vector<float> value(kBytes / 4);
    for (std::size_t i = 0; i < chunks; ++i) {
      std::fill(value.begin(), value.end(), static_cast<float>(i + 1));
      format::ChunkInfo info;
      info.dtype = DType::kFloat32;
      info.parts = 1;
      std::vector<std::byte> chunk(format::ChunkSpace(4));
      std::memcpy(chunk.data() + sizeof(format::ChunkHeader), value.data(), 4);
      const std::uint64_t hash = format::HashBytes(std::as_bytes(std::span(value)));
      format::FinishChunk(chunk.data(), info, format::Codec::kConstant, kBytes, 4, hash);
      format::IndexRow row{};
      row.layout = 7;
      row.parts = 1;
      row.data_file = 9;
      row.offset = file.size();
      row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
      row.codec = static_cast<std::uint8_t>(format::Codec::kConstant);
      row.raw_bytes = kBytes;
      row.stored_bytes = 4;
      row.content_hash = hash;
      kinds.push_back(row);
      file.insert(file.end(), chunk.begin(), chunk.end());
    }
    std::ofstream(run.path() + "/w0000/d-000009.lfd", std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
    Frames frames(Model(), 2);
    frames.Add(FrameKind::kLayoutDefs, kLoose, [&](format::FrameBuffer* to) {
      format::LayoutDefView def;
      def.id = 7;
      const std::int64_t dims[] = {static_cast<std::int64_t>(kBytes / 4)};
      def.layout = Layout::Contiguous(DType::kFloat32, dims).value();
      format::PutLayoutDef(def, to);
    });
    for (std::size_t i = 0; i < rows; ++i)
      frames.Add(FrameKind::kIndexRows, i + 1, std::vector{kinds[i % chunks]})
          .Mark(i + 1, static_cast<std::int64_t>(i + 1), 1);
    frames.Save(run.path() + "/w0000/m-000002.lfm");
  }

  /// Adds a worker's folder with the beginning of a segment.
  void AddWorker(std::uint32_t worker) const {
    std::array<char, 16> name{};
    std::snprintf(name.data(), name.size(), "/w%04u", worker);
    fs::create_directory(run.path() + name.data());
    format::FileHeader header = Model();
    header.worker = worker;
    Frames(header, 1).Mark(0, 0).Save(run.path() + name.data() + "/m-000001.lfm");
  }

  static std::uint64_t ResidentBytes() {
    unsigned long long size = 0;
    unsigned long long resident = 0;
    std::sscanf(ReadKernelFile("/proc/self/statm").c_str(), "%llu %llu", &size, &resident);
    return resident * 4096;
  }

  TempRun run;
};

TEST_F(BudgetTest, AChunkIsDecodedOnceHoweverManyRowsNameIt) {
  ClaimValues(1, 200);  // 13 GB
  const auto report = store::VerifyRun(run.path(), {format::kMaxConstantBytes});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->damage, IsEmpty());
  EXPECT_THAT(report->notes, IsEmpty());  // had it been decoded twice, it would be beyond the budget
  EXPECT_EQ(report->rows, 200U);
}

TEST_F(BudgetTest, WhatFewBytesStandForIsDecodedWithinABudgetAndTheRestIsSaid) {
  ClaimValues(4, 8);
  const auto within = store::VerifyRun(run.path(), {4 * format::kMaxConstantBytes});
  ASSERT_TRUE(within.ok());
  EXPECT_THAT(within->notes, IsEmpty());
  const auto beyond = store::VerifyRun(run.path(), {3 * format::kMaxConstantBytes});
  ASSERT_TRUE(beyond.ok());
  EXPECT_THAT(beyond->damage, IsEmpty());
  ASSERT_EQ(beyond->notes.size(), 1U);
  EXPECT_THAT(beyond->notes[0], HasSubstr("1 values of one repeated number"));
  EXPECT_THAT(beyond->notes[0], HasSubstr("--max-bytes"));
}

TEST_F(BudgetTest, ThousandsOfWorkersTakeLittleMemory) {
  constexpr std::uint32_t kWorkers = 1500;  // more than a process may have files open
  for (std::uint32_t worker = 1; worker < kWorkers; ++worker) AddWorker(worker);
  const std::uint64_t before = ResidentBytes();
  const auto reader = store::RunReader::Open(run.path(), {});
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ASSERT_EQ((*reader)->workers().size(), kWorkers);
  EXPECT_EQ((*reader)->workers().back()->next_ordinal(), 1U);
  EXPECT_LT(ResidentBytes(), before + (60ULL << 20));  // 400 MB if each had its own window
}

/// CPU time to open a directory with index files of one step by `count` workers.
double SecondsToOpenSmdebug(std::size_t count) {
  TempRun directory;
  const std::string root = directory.path() + "-smdebug";
  fs::create_directories(root + "/index/000000000");
  fs::create_directories(root + "/events/000000000");
  for (std::size_t i = 0; i < count; ++i)
    std::ofstream(root + "/index/000000000/000000000000_host" + std::to_string(i) + ".json")
        << R"({"meta": {"mode": "TRAIN", "mode_step": 0, "event_file_name": "events/000000000/000000000000_host)"
        << i << R"(.tfevents"}, "tensor_payload": [{"tensorname": "x", "start_idx": 0, "length": 8}]})";
  const double seconds = CpuSeconds([&] {
    const auto trial = Trial::Open(root, {});
    EXPECT_TRUE(trial.ok()) << trial.status().ToString();
    EXPECT_EQ((*trial)->workers().size(), count);
  });
  fs::remove_all(root);
  return seconds;
}

TEST(SmdebugBudgetTest, WorkersOfManyNamesTakeLinearTime) {
  EXPECT_TRUE(testing::IsLinear(SecondsToOpenSmdebug, 600));
}

}  // namespace
}  // namespace luff::query::budget_test
