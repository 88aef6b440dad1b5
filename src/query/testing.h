#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "luff/format/chunk.h"
#include "luff/store/writer.h"
#include "luff/tensor/hash.h"
#include "luff/tensor/summary.h"

/// Runs written by the real writer, for tests of all readers.
namespace luff::query::testing {

/// A directory that is removed with the object.
class TempRun {
 public:
  TempRun() {
    std::string pattern = (std::filesystem::temp_directory_path() / "luff-query-XXXXXX").string();
    path_ = mkdtemp(pattern.data()) + std::string("/run");
  }
  ~TempRun() {
    std::error_code ignored;
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path(), ignored);
  }
  TempRun(const TempRun&) = delete;
  TempRun& operator=(const TempRun&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// One worker's writer, with short calls for the contents of a step.
class Writing {
 public:
  Writing(const std::string& path, std::uint32_t worker, std::uint32_t world, bool resume = false,
          bool live = true, std::uint64_t segment_bytes = 8ULL << 20, std::uint64_t summary_max_bytes = 0) {
    store::RunInfo wanted;
    wanted.world_size = world;
    wanted.run_id = {7};
    auto run = store::CreateRun(path, wanted, true, resume);
    EXPECT_TRUE(run.ok()) << run.status().ToString();
    store::WriterOptions options;
    options.run_path = path;
    options.worker = worker;
    options.live_page = live;
    options.segment_bytes_meta = segment_bytes;
    options.summary_max_bytes = summary_max_bytes;
    auto writer = store::WorkerWriter::Open(options, *run);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    writer_ = std::move(writer).value();
  }

  /// Defines tensor `id`, called `name`, of float32 with `count` elements; its layout has the same id.
  void Define(std::uint32_t id, const std::string& name, std::int64_t count,
              format::Role role = format::Role::kOther) {
    store::TensorDef def;
    def.id = id;
    def.name = name;
    def.role = role;
    def.collections = {0};
    batch.tensors.push_back(def);
    store::LayoutDef layout;
    layout.id = id;
    const std::int64_t dims[] = {count};
    layout.layout = Layout::Contiguous(DType::kFloat32, dims).value();
    batch.layouts.push_back(layout);
  }
  void AddSummary(std::uint32_t tensor, std::span<const float> values) {
    Summary s;
    const std::int64_t dims[] = {static_cast<std::int64_t>(values.size())};
    Summarize({reinterpret_cast<const std::byte*>(values.data()),
               Layout::Contiguous(DType::kFloat32, dims).value()},
              &s);
    format::SummaryRow row{};
    row.tensor = tensor;
    row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
    row.steps = 1;
    row.count = s.count;
    row.sum = s.sum;
    row.sum_sq = s.sum_sq;
    row.abs_sum = s.abs_sum;
    row.min_bits = s.min_bits;
    row.max_bits = s.max_bits;
    row.zero_count = s.zero_count;
    row.nan_count = s.nan_count;
    row.inf_count = s.inf_count;
    batch.summaries.push_back(row);
  }
  void AddScalar(std::uint32_t tensor, double value) { batch.scalars.push_back({tensor, 0, value}); }
  /// Adds the raw value, in `parts` chunks.
  void AddValue(std::uint32_t tensor, std::span<const float> values, std::uint32_t parts = 1,
                bool codecs = false, store::Retention retention = {}) {
    const auto bytes = std::as_bytes(values);
    const std::size_t each = bytes.size() / parts;
    for (std::uint32_t part = 0; part < parts; ++part) {
      const auto raw = part + 1 == parts ? bytes.subspan(part * each) : bytes.subspan(part * each, each);
      std::vector<std::byte> chunk;
      const std::uint64_t hash = HashBytes(raw.data(), raw.size());
      format::ChunkInfo info{tensor, tensor, DType::kFloat32, part, parts, 0};
      const format::Codec codec = format::EncodeChunk(info, raw, codecs, hash, &chunk);
      format::ChunkHeader header;
      std::memcpy(&header, chunk.data(), sizeof(header));
      const store::ChunkRef ref{chunk.data(), chunk.size()};
      std::vector<store::Place> places;
      const Status status = writer_->AppendChunks(std::span(&ref, 1), retention, global_step, &places);
      ASSERT_TRUE(status.ok()) << status.ToString();
      format::IndexRow row{};
      row.tensor = row.layout = tensor;
      row.part = part;
      row.parts = parts;
      row.data_file = places[0].data_file;
      row.offset = places[0].offset;
      row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
      row.codec = static_cast<std::uint8_t>(codec);
      row.raw_bytes = raw.size();
      row.stored_bytes = header.stored_bytes;
      row.content_hash = hash;
      batch.index.push_back(row);
    }
  }
  /// Publishes the step and moves on to the next global step. `update`: -1 counts the steps of the mode.
  void Step(format::Mode mode = format::Mode::kTrain, std::int64_t update = -1,
            std::int64_t duration_ns = 1000) {
    std::int64_t& mode_step = mode_steps[static_cast<std::size_t>(mode)];
    batch.mark.global_step = global_step++;
    batch.mark.mode_step = mode_step++;
    batch.mark.update = update < 0 ? batch.mark.mode_step : update;
    batch.mark.mode = static_cast<std::uint8_t>(mode);
    batch.mark.wall_unix_ns = 1'000'000'000LL * global_step;
    batch.mark.duration_ns = duration_ns;
    const Status status = writer_->PublishStep(batch);
    ASSERT_TRUE(status.ok()) << status.ToString();
    batch.clear();
  }
  void Loose() {
    const Status status = writer_->PublishLoose(batch);
    ASSERT_TRUE(status.ok()) << status.ToString();
    batch.clear();
  }
  void Close(format::EndReason reason = format::EndReason::kCompleted) {
    const Status status = writer_->Close(reason);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  [[nodiscard]] store::WorkerWriter& writer() { return *writer_; }

  store::StepBatch batch;
  std::int64_t global_step = 0;
  std::int64_t mode_steps[5] = {};

 private:
  std::unique_ptr<store::WorkerWriter> writer_;
};

}  // namespace luff::query::testing
