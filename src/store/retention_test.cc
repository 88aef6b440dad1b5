// Retention with references: whatever is kept and deleted, a kept row reads as its value, and no row reads as
// a wrong one.
#include <filesystem>
#include <map>
#include <random>

#include "store/test_run.h"

namespace luff::store::retention_test {
namespace {

constexpr std::size_t kElements = 64;

std::uint64_t BytesOnDisk(const std::string& folder, const std::string& extension) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == extension) bytes += entry.file_size();
  }
  return bytes;
}

/// Drives a writer step by step, and remembers every published row with the value that it must read as.
class Driver {
 public:
  Driver(const std::string& run, WriterOptions options) : run_(run) {
    EXPECT_TRUE(CreateRun(run, TestRun(), false, true).ok());
    options.run_path = run;
    auto writer = WorkerWriter::Open(options, TestRun());
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    writer_ = std::move(writer).value();
    StepBatch batch;
    batch.tensors = {Def(0, "a")};
    batch.layouts = {VectorLayout(0, kElements)};
    EXPECT_TRUE(writer_->PublishLoose(batch).ok());
  }

  struct Row {
    std::uint32_t tensor;
    Retention retention;
    std::int64_t value_of;   // the step whose value it has; an earlier one if unchanged
    std::uint32_t alias_of;  // the tensor whose value it has
  };
  void Step(std::int64_t step, const std::vector<Row>& rows) {
    StepBatch batch;
    for (const Row& row : rows) {
      const auto key = std::make_pair(row.alias_of, row.value_of);
      ChunkBlock block;
      block.Add(row.alias_of, ValueOf(row.alias_of, row.value_of, kElements), false);
      format::IndexRow index = block.rows()[0];
      index.tensor = row.tensor;
      const auto stored = stored_.find(key);
      Place place;
      if (stored != stored_.end() && writer_->ChunkIsKept(writer_->Resolve(stored->second))) {
        place = writer_->Resolve(stored->second);
        index.flags = format::kIndexUnchanged;
      } else {
        std::vector<Place> places;
        const Status status = writer_->AppendChunks(block.refs(), row.retention, step, &places);
        if (!status.ok()) continue;
        place = places[0];
      }
      stored_[key] = place;
      index.data_file = place.data_file;
      index.offset = place.offset;
      batch.index.push_back(index);
      batch.index_retention.push_back(row.retention);
      expected_[{row.tensor, step}] = ValueOf(row.alias_of, row.value_of, kElements);
      auto& steps = steps_[PolicyKey(row.retention)];
      if (steps.empty() || steps.back() != step) steps.push_back(step);
      policy_of_[{row.tensor, step}] = row.retention;
    }
    batch.mark = MarkOf(step);
    const Status status = writer_->PublishStep(batch);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  /// Reads everything: no value may be wrong, and every value that must be kept must be readable.
  void Check() {
    auto reader = RunReader::Open(run_);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    (void)(*reader)->Refresh();
    std::map<std::pair<std::uint32_t, std::int64_t>, bool> readable;
    const auto& worker = *(*reader)->workers()[0];
    for (const auto& segment : worker.segments()) {
      for (std::size_t slot = 0; slot < segment->slot_count(); ++slot) {
        const auto index = segment->Index(slot);
        ASSERT_TRUE(index.ok()) << index.status().ToString();
        for (std::size_t i = 0; i < index->rows.size(); ++i) {
          const std::pair<std::uint32_t, std::int64_t> key{index->rows[i].tensor,
                                                           segment->steps().global_step[index->step[i]]};
          const auto payload = worker.ReadPayload(index->rows.subspan(i, 1), kElements * 4);
          if (!payload.ok()) {
            EXPECT_EQ(payload.status().code(), StatusCode::kOutOfRange) << payload.status().ToString();
            continue;
          }
          EXPECT_TRUE(std::ranges::equal(payload->bytes, expected_.at(key)))
              << key.first << " at " << key.second;
          readable[key] = true;
        }
      }
    }
    EXPECT_TRUE(worker.problems().empty());
    for (const auto& [key, value] : expected_) {
      if (MustBeKept(policy_of_.at(key), key.second)) {
        EXPECT_TRUE(readable.contains(key)) << key.first << " at " << key.second;
      }
    }
    readable_ = readable.size();
  }
  [[nodiscard]] std::size_t readable() const { return readable_; }
  [[nodiscard]] WorkerWriter& writer() { return *writer_; }

 private:
  static std::pair<int, std::int64_t> PolicyKey(const Retention& retention) {
    return {static_cast<int>(retention.kind), retention.last_steps};
  }
  bool MustBeKept(const Retention& retention, std::int64_t step) const {
    if (retention.kind == Retention::Kind::kAll) return true;
    const auto& steps = steps_.at(PolicyKey(retention));
    const auto at = static_cast<std::size_t>(std::ranges::lower_bound(steps, step) - steps.begin());
    const std::size_t age = steps.size() - at;  // 1 for the newest
    const auto last = static_cast<std::size_t>(retention.last_steps);
    if (retention.kind == Retention::Kind::kLast) return age <= last;
    return at % 100 == 0 || (at % 10 == 0 && age <= 10 * last) || age <= last;
  }

  std::string run_;
  std::unique_ptr<WorkerWriter> writer_;
  std::map<std::pair<std::uint32_t, std::int64_t>, Place>
      stored_;  // as capture remembers them: not updated when chunks move
  std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<std::byte>> expected_;
  std::map<std::pair<std::uint32_t, std::int64_t>, Retention> policy_of_;
  std::map<std::pair<int, std::int64_t>, std::vector<std::int64_t>> steps_;
  std::size_t readable_ = 0;
};

Retention Last(std::int64_t steps) {
  Retention retention;
  retention.kind = Retention::Kind::kLast;
  retention.last_steps = steps;
  return retention;
}
Retention Thin(std::int64_t steps) {
  Retention retention;
  retention.kind = Retention::Kind::kThin;
  retention.last_steps = steps;
  return retention;
}

TEST(RetentionTest, TheLastStepsStayAndTheDiskDoesNotFill) {
  TemporaryDirectory directory;
  Driver driver(directory.path() + "/run", {});
  for (std::int64_t step = 0; step < 300; ++step) driver.Step(step, {{0, Last(16), step, 0}});
  driver.Check();
  EXPECT_LT(driver.readable(), 40U);
  EXPECT_LT(BytesOnDisk(directory.path() + "/run/w0000", ".lfd"), 16U * 4096 + 40 * 320);
}

TEST(RetentionTest, AnUnchangedTensorIsWrittenAgainBeforeItsFileGoes) {
  TemporaryDirectory directory;
  Driver driver(directory.path() + "/run", {});
  for (std::int64_t step = 0; step < 100; ++step) {
    driver.Step(step, {{0, Last(8), step, 0}, {1, Last(8), 0, 1}});  // tensor 1 never changes
    if (step % 9 == 0) driver.Check();
  }
  driver.Check();
}

TEST(RetentionTest, ThinningKeepsTenthsAndHundredths) {
  TemporaryDirectory directory;
  Driver driver(directory.path() + "/run", {});
  for (std::int64_t step = 0; step < 320; ++step) driver.Step(step, {{0, Thin(10), step, 0}});
  driver.Check();
  EXPECT_LT(driver.readable(), 40U);  // 10 recent, 10 tenths, 4 hundredths, and others in the same files
  for (std::int64_t step = 320; step < 400; ++step) {
    driver.Step(step, {{0, Thin(10), step, 0}, {1, Thin(10), step - step % 37, 1}});
  }
  driver.Check();
}

TEST(RetentionTest, AnyMixtureOfReferencesAndRetentionReadsItsValues) {
  const Retention choices[] = {{}, Last(1), Last(3), Last(20), Thin(4), Thin(0)};
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TemporaryDirectory directory;
    WriterOptions options;
    options.segment_bytes_meta = 4096 << (random() % 3);
    options.segment_bytes_payload = 1 << (14 + random() % 3);
    Driver driver(directory.path() + "/run", options);
    std::vector<std::int64_t> changed(8, 0);
    for (std::int64_t step = 0; step < 120; ++step) {
      std::vector<Driver::Row> rows;
      for (std::uint32_t tensor = 0; tensor < 8; ++tensor) {
        if (random() % 4 == 0) continue;  // not due
        if (random() % 3 == 0) changed[tensor] = step;
        const bool alias = tensor > 0 && random() % 5 == 0;
        const std::uint32_t of = alias ? tensor - 1 : tensor;
        rows.push_back({tensor, choices[(tensor + seed) % std::size(choices)], changed[of], of});
      }
      if (!rows.empty()) driver.Step(step, rows);
      if (random() % 40 == 0) driver.Check();
    }
    driver.Check();
  }
}

TEST(RetentionTest, MaxBytesThinsWhatMayBeThinnedAndThenSaysSo) {
  TemporaryDirectory directory;
  WriterOptions options;
  options.max_bytes = 1 << 20;
  options.summary_max_bytes = 1 << 18;
  Driver driver(directory.path() + "/run", options);
  for (std::int64_t step = 0; step < 4000; ++step) driver.Step(step, {{0, Thin(0), step, 0}});
  EXPECT_FALSE(driver.writer().payload_budget_exhausted());
  EXPECT_LE(BytesOnDisk(directory.path() + "/run/w0000", ".lfd"), options.max_bytes);
  ChunkBlock block;
  const std::vector<std::byte> big(2 << 20, std::byte{1});
  block.Add(0, big, false);
  std::vector<Place> places;
  EXPECT_EQ(driver.writer().AppendChunks(block.refs(), {}, 4000, &places).code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(driver.writer().payload_budget_exhausted());
}

}  // namespace
}  // namespace luff::store::retention_test
