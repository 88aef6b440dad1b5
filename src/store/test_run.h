#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "luff/base/env.h"
#include "luff/format/chunk.h"
#include "luff/format/frames.h"
#include "luff/store/reader.h"
#include "luff/store/writer.h"

/// Helpers for the tests of store: a run in a temporary directory, and steps with values computed from tensor
/// and step.
namespace luff::store {

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& base = std::filesystem::temp_directory_path().string()) {
    std::string name = base + "/luff-test-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

/// The only value that (tensor, step) may ever read as.
inline std::vector<std::byte> ValueOf(std::uint32_t tensor, std::int64_t step, std::size_t elements) {
  std::vector<std::byte> value(elements * 4);
  std::uint64_t state =
      (std::uint64_t{tensor} << 32 ^ static_cast<std::uint64_t>(step)) * 0x9E3779B97F4A7C15ULL + 1;
  for (std::size_t i = 0; i < elements; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto word = static_cast<std::uint32_t>(state >> 33);
    std::memcpy(value.data() + i * 4, &word, 4);
  }
  return value;
}

/// Memory for the chunks of one step, one after another, beginning at a page.
class ChunkBlock {
 public:
  void clear() {
    used_ = 0;
    refs_.clear();
    infos_.clear();
  }
  void Add(std::uint32_t tensor, std::span<const std::byte> raw, bool codecs = true) {
    format::ChunkInfo info;
    info.tensor = tensor;
    info.dtype = DType::kFloat32;
    std::vector<std::byte> chunk;
    const std::uint64_t hash = format::HashBytes(raw);
    const format::Codec codec = format::EncodeChunk(info, raw, codecs, hash, &chunk);
    format::IndexRow row{};
    row.tensor = tensor;
    row.parts = 1;
    row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
    row.codec = static_cast<std::uint8_t>(codec);
    row.raw_bytes = raw.size();
    row.stored_bytes = format::ParseChunkUntrusted(chunk, 0)->header.stored_bytes;
    row.content_hash = hash;
    infos_.push_back(row);
    if (pages_.size() * kPage < used_ + chunk.size()) pages_.resize((used_ + chunk.size()) / kPage + 64);
    std::memcpy(data() + used_, chunk.data(), chunk.size());
    refs_.push_back({nullptr, chunk.size()});
    used_ += chunk.size();
  }
  /// Sets the addresses here, because the block may have moved while it grew.
  [[nodiscard]] std::span<const ChunkRef> refs() {
    std::uint64_t at = 0;
    for (ChunkRef& ref : refs_) {
      ref.data = data() + at;
      at += ref.bytes;
    }
    return refs_;
  }
  [[nodiscard]] const std::vector<format::IndexRow>& rows() const noexcept { return infos_; }

 private:
  static constexpr std::size_t kPage = 4096;
  struct alignas(kPage) Page {
    std::byte bytes[kPage];
  };
  [[nodiscard]] std::byte* data() noexcept { return pages_.data()->bytes; }
  std::vector<Page> pages_;
  std::uint64_t used_ = 0;
  std::vector<ChunkRef> refs_;
  std::vector<format::IndexRow> infos_;
};

inline RunInfo TestRun() {
  RunInfo info;
  for (std::size_t i = 0; i < 16; ++i) info.run_id[i] = static_cast<std::uint8_t>(i * 7 + 1);
  info.created_unix_ns = 1'700'000'000'000'000'000;
  return info;
}

inline TensorDef Def(std::uint32_t id, const std::string& name) {
  TensorDef def;
  def.id = id;
  def.role = format::Role::kWeight;
  def.name = name;
  return def;
}

inline LayoutDef VectorLayout(std::uint32_t id, std::int64_t elements) {
  LayoutDef def;
  def.id = id;
  const std::int64_t dims[] = {elements};
  def.layout = Layout::Contiguous(DType::kFloat32, dims).value();
  return def;
}

inline format::SummaryRow SummaryOf(std::uint32_t tensor, std::int64_t step) {
  format::SummaryRow row{};
  row.tensor = tensor;
  row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  row.steps = 1;
  row.count = 100;
  row.sum = static_cast<double>(tensor) * 1000.0 + static_cast<double>(step);
  row.sum_sq = 1;
  return row;
}

inline format::StepMark MarkOf(std::int64_t step) {
  format::StepMark mark{};
  mark.global_step = step;
  mark.mode_step = step;
  mark.update = step;
  mark.wall_unix_ns = 1'700'000'000'000'000'000 + step;
  mark.mode = static_cast<std::uint8_t>(format::Mode::kTrain);
  return mark;
}

/// Opens a writer of a new run whose tensor 0 is a vector of `elements` elements; null after a failed
/// expectation.
inline std::unique_ptr<WorkerWriter> OpenNewRun(const WriterOptions& options, std::size_t elements) {
  EXPECT_TRUE(CreateRun(options.run_path, TestRun(), false, false).ok());
  auto writer = WorkerWriter::Open(options, TestRun());
  EXPECT_TRUE(writer.ok()) << writer.status().ToString();
  if (!writer.ok()) return nullptr;
  StepBatch batch;
  batch.tensors = {Def(0, "a")};
  batch.layouts = {VectorLayout(0, static_cast<std::int64_t>(elements))};
  EXPECT_TRUE((*writer)->PublishLoose(batch).ok());
  return std::move(writer).value();
}

/// Appends the value of tensor 0 at a step, and puts its row into the step's batch.
inline Status AppendValue(WorkerWriter* writer, std::int64_t step, std::size_t elements, StepBatch* batch) {
  ChunkBlock block;
  block.Add(0, ValueOf(0, step, elements), false);
  std::vector<Place> places;
  Status appended = writer->AppendChunks(block.refs(), {}, step, &places);
  EXPECT_EQ(places.empty(), !appended.ok());
  if (!appended.ok()) return appended;
  batch->index = block.rows();
  batch->index[0].data_file = places[0].data_file;
  batch->index[0].offset = places[0].offset;
  return Status::Ok();
}

}  // namespace luff::store
