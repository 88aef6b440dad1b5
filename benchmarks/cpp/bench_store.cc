// Writes runs for benchmarks/read.py and benchmarks/store.py through the real writer.
//   luff_bench_store RUN TENSORS STEPS FLOATS [--raw-every N] [--pace-us N]
// prints one JSON object: records, seconds, ns_per_record. FLOATS 0: summaries only.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "luff/format/chunk.h"
#include "luff/store/writer.h"
#include "luff/tensor/hash.h"
#include "luff/tensor/summary.h"

namespace {

using namespace luff;  // NOLINT: a program of one file

int Fail(const Status& status) {
  std::fprintf(stderr, "luff_bench_store: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: luff_bench_store RUN TENSORS STEPS FLOATS [--raw-every N] [--pace-us N]\n");
    return 2;
  }
  const std::string path = argv[1];
  const auto tensors = static_cast<std::uint32_t>(std::atoi(argv[2]));
  const std::int64_t steps = std::atoll(argv[3]);
  const auto floats = static_cast<std::size_t>(std::atoll(argv[4]));
  std::int64_t raw_every = 1;
  std::int64_t pace_us = 0;
  for (int i = 5; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--raw-every") == 0) raw_every = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--pace-us") == 0) pace_us = std::atoll(argv[i + 1]);
  }
  store::RunInfo wanted;
  wanted.run_id = {1};
  auto run = store::CreateRun(path, wanted, false, false);
  if (!run.ok()) return Fail(run.status());
  store::WriterOptions options;
  options.run_path = path;
  auto writer = store::WorkerWriter::Open(options, *run);
  if (!writer.ok()) return Fail(writer.status());

  store::StepBatch batch;
  for (std::uint32_t t = 0; t < tensors; ++t) {
    store::TensorDef def;
    def.id = t;
    def.name = "layer" + std::to_string(t) + ".weight";
    def.role = format::Role::kWeight;
    batch.tensors.push_back(def);
  }
  const std::int64_t dims[] = {static_cast<std::int64_t>(floats)};
  store::LayoutDef layout;
  layout.layout = Layout::Contiguous(DType::kFloat32, dims).value();
  batch.layouts.push_back(layout);

  const std::uint64_t space = format::ChunkSpace(floats * sizeof(float));
  std::vector<std::byte> block(space * tensors);
  std::vector<store::ChunkRef> chunks(tensors);
  std::vector<store::Place> places;
  const auto begun = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < steps; ++step) {
    const bool raw = floats > 0 && step % raw_every == 0;
    for (std::uint32_t t = 0; t < tensors; ++t) {
      format::SummaryRow row{};
      row.tensor = t;
      row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
      row.steps = 1;
      row.count = 1000;
      row.sum = std::sin(static_cast<double>(step)) + t;
      row.sum_sq = row.sum * row.sum + 1;
      row.abs_sum = std::abs(row.sum);
      batch.summaries.push_back(row);
      if (!raw) continue;
      std::byte* chunk = block.data() + t * space;
      const std::byte* bytes = chunk + sizeof(format::ChunkHeader);
      const float value = static_cast<float>(step) + static_cast<float>(t);
      std::memcpy(chunk + sizeof(format::ChunkHeader), &value, sizeof(value));
      const std::uint64_t hash = HashBytes(bytes, floats * sizeof(float));
      const format::ChunkInfo info{t, 0, DType::kFloat32, 0, 1, static_cast<std::uint64_t>(step)};
      format::FinishChunk(chunk, info, format::Codec::kRaw, floats * sizeof(float), floats * sizeof(float),
                          hash);
      chunks[t] = {chunk, space};
      format::IndexRow index{};
      index.tensor = t;
      index.parts = 1;
      index.dtype = row.dtype;
      index.raw_bytes = index.stored_bytes = floats * sizeof(float);
      index.content_hash = hash;
      batch.index.push_back(index);
    }
    if (raw) {
      const Status status = (*writer)->AppendChunks(chunks, {}, step, &places);
      if (!status.ok()) return Fail(status);
      for (std::uint32_t t = 0; t < tensors; ++t) {
        batch.index[t].data_file = places[t].data_file;
        batch.index[t].offset = places[t].offset;
      }
    }
    batch.mark.global_step = batch.mark.mode_step = batch.mark.update = step;
    batch.mark.mode = static_cast<std::uint8_t>(format::Mode::kTrain);
    batch.mark.wall_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count();
    const Status status = (*writer)->PublishStep(batch);
    if (!status.ok()) return Fail(status);
    batch.clear();
    if (pace_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pace_us));
  }
  const Status status = (*writer)->Close(format::EndReason::kCompleted);
  if (!status.ok()) return Fail(status);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  const double records = static_cast<double>(tensors) * static_cast<double>(steps);
  std::printf("{\"records\": %.0f, \"seconds\": %.6f, \"ns_per_record\": %.3f}\n", records, seconds,
              seconds / records * 1e9);
  return 0;
}
