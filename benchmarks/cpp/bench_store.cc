// Writes runs for benchmarks/read.py and benchmarks/store.py through the real writer.
//   luff_bench_store RUN TENSORS STEPS FLOATS [--raw-every N] [--pace-us N]
//     writes one run; prints one JSON object: records, seconds, ns_per_record. FLOATS 0: summaries only.
//   luff_bench_store FOLDER --compare SHORT LONG ROUNDS
//     alternates between one run of LONG records and runs of SHORT records: writes ROUNDS pieces of the long
//     run, and after each piece as many records in short runs. Prints one JSON object for each round: wall
//     and CPU time (all threads) in ns per record, for the piece and for the short runs. A run is timed from
//     its first step to its end, including the sealing of segments but not the creation of its files and
//     names. Nothing is deleted, so both sides fill the same amount of page cache.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "luff/format/chunk.h"
#include "luff/store/writer.h"
#include "luff/tensor/hash.h"
#include "luff/tensor/summary.h"

namespace {

using namespace luff;  // NOLINT: a program of one file

constexpr std::uint32_t kCompareTensors = 100;

/// A run that is being written.
class Producer {
 public:
  static Result<std::unique_ptr<Producer>> Open(const std::string& path, std::uint32_t tensors,
                                                std::size_t floats) {
    store::RunInfo wanted;
    wanted.run_id = {1};
    LUFF_ASSIGN_OR_RETURN(const store::RunInfo run, store::CreateRun(path, wanted, false, false));
    store::WriterOptions options;
    options.run_path = path;
    std::unique_ptr<Producer> producer(new Producer(tensors, floats));
    LUFF_ASSIGN_OR_RETURN(producer->writer_, store::WorkerWriter::Open(options, run));
    auto& batch = producer->batch_;
    for (std::uint32_t t = 0; t < tensors; ++t) {
      store::TensorDef def;
      def.id = t;
      def.name = "layer" + std::to_string(t) + ".weight";
      def.role = format::Role::kWeight;
      batch.tensors.push_back(def);
    }
    const std::int64_t dims[] = {static_cast<std::int64_t>(floats)};
    store::LayoutDef layout;
    LUFF_ASSIGN_OR_RETURN(layout.layout, Layout::Contiguous(DType::kFloat32, dims));
    batch.layouts.push_back(layout);
    return producer;
  }

  /// Writes one step of all tensors: summaries, and values if `raw`.
  Status Step(bool raw) {
    raw = raw && floats_ > 0;
    for (std::uint32_t t = 0; t < tensors_; ++t) {
      format::SummaryRow row{};
      row.tensor = t;
      row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
      row.steps = 1;
      row.count = 1000;
      row.sum = std::sin(static_cast<double>(step_)) + t;
      row.sum_sq = row.sum * row.sum + 1;
      row.abs_sum = std::abs(row.sum);
      batch_.summaries.push_back(row);
      if (raw) AddValue(t);
    }
    if (raw) {
      LUFF_RETURN_IF_ERROR(writer_->AppendChunks(chunks_, {}, step_, &places_));
      for (std::uint32_t t = 0; t < tensors_; ++t) {
        batch_.index[t].data_file = places_[t].data_file;
        batch_.index[t].offset = places_[t].offset;
      }
    }
    batch_.mark.global_step = batch_.mark.mode_step = batch_.mark.update = step_;
    batch_.mark.mode = static_cast<std::uint8_t>(format::Mode::kTrain);
    batch_.mark.wall_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count();
    LUFF_RETURN_IF_ERROR(writer_->PublishStep(batch_));
    batch_.clear();
    ++step_;
    return Status::Ok();
  }

  Status Close() { return writer_->Close(format::EndReason::kCompleted); }

 private:
  Producer(std::uint32_t tensors, std::size_t floats)
      : tensors_(tensors),
        floats_(floats),
        space_(format::ChunkSpace(floats * sizeof(float))),
        block_(space_ * tensors),
        chunks_(tensors) {}

  void AddValue(std::uint32_t t) {
    const std::uint64_t size = floats_ * sizeof(float);
    std::byte* chunk = block_.data() + t * space_;
    const float value = static_cast<float>(step_) + static_cast<float>(t);
    std::memcpy(chunk + sizeof(format::ChunkHeader), &value, sizeof(value));
    const std::uint64_t hash = HashBytes(chunk + sizeof(format::ChunkHeader), size);
    const format::ChunkInfo info{t, 0, DType::kFloat32, 0, 1, static_cast<std::uint64_t>(step_)};
    format::FinishChunk(chunk, info, format::Codec::kRaw, size, size, hash);
    chunks_[t] = {chunk, space_};
    format::IndexRow index{};
    index.tensor = t;
    index.parts = 1;
    index.dtype = static_cast<std::uint8_t>(DType::kFloat32);
    index.raw_bytes = index.stored_bytes = size;
    index.content_hash = hash;
    batch_.index.push_back(index);
  }

  const std::uint32_t tensors_;
  const std::size_t floats_;
  const std::uint64_t space_;
  std::int64_t step_ = 0;
  std::unique_ptr<store::WorkerWriter> writer_;
  store::StepBatch batch_;
  std::vector<std::byte> block_;
  std::vector<store::ChunkRef> chunks_;
  std::vector<store::Place> places_;
};

/// Sums wall and CPU time (ns) between Start and Stop.
class Stopwatch {
 public:
  void Start() {
    wall_begun_ = Now(CLOCK_MONOTONIC);
    cpu_begun_ = Now(CLOCK_PROCESS_CPUTIME_ID);
  }
  void Stop() {
    cpu_ += Now(CLOCK_PROCESS_CPUTIME_ID) - cpu_begun_;
    wall_ += Now(CLOCK_MONOTONIC) - wall_begun_;
  }
  [[nodiscard]] double wall() const { return wall_; }
  [[nodiscard]] double cpu() const { return cpu_; }

 private:
  static double Now(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
  }
  double wall_begun_ = 0, cpu_begun_ = 0, wall_ = 0, cpu_ = 0;
};

Status WriteOne(const std::string& path, std::uint32_t tensors, std::int64_t steps, std::size_t floats,
                std::int64_t raw_every, std::int64_t pace_us) {
  LUFF_ASSIGN_OR_RETURN(auto run, Producer::Open(path, tensors, floats));
  Stopwatch watch;
  watch.Start();
  for (std::int64_t step = 0; step < steps; ++step) {
    LUFF_RETURN_IF_ERROR(run->Step(step % raw_every == 0));
    if (pace_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pace_us));
  }
  LUFF_RETURN_IF_ERROR(run->Close());
  watch.Stop();
  const double records = static_cast<double>(tensors) * static_cast<double>(steps);
  std::printf("{\"records\": %.0f, \"seconds\": %.6f, \"ns_per_record\": %.3f}\n", records,
              watch.wall() * 1e-9, watch.wall() / records);
  return Status::Ok();
}

Status Steps(Producer& run, std::int64_t records) {
  for (std::int64_t done = 0; done < records; done += kCompareTensors) LUFF_RETURN_IF_ERROR(run.Step(false));
  return Status::Ok();
}

Status Compare(const std::string& folder, std::int64_t short_records, std::int64_t long_records,
               std::int64_t rounds) {
  LUFF_ASSIGN_OR_RETURN(auto long_run, Producer::Open(folder + "/long", kCompareTensors, 0));
  const std::int64_t piece = long_records / rounds;
  std::int64_t runs = 0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    Stopwatch of_long, of_short;
    of_long.Start();
    LUFF_RETURN_IF_ERROR(Steps(*long_run, piece));
    if (round + 1 == rounds) LUFF_RETURN_IF_ERROR(long_run->Close());
    of_long.Stop();
    for (std::int64_t done = 0; done < piece; done += short_records) {
      LUFF_ASSIGN_OR_RETURN(auto run,
                            Producer::Open(folder + "/short" + std::to_string(runs++), kCompareTensors, 0));
      of_short.Start();
      LUFF_RETURN_IF_ERROR(Steps(*run, short_records));
      LUFF_RETURN_IF_ERROR(run->Close());
      of_short.Stop();
    }
    const auto records = static_cast<double>(piece);
    std::printf("{\"long_wall\": %.3f, \"long_cpu\": %.3f, \"short_wall\": %.3f, \"short_cpu\": %.3f}\n",
                of_long.wall() / records, of_long.cpu() / records, of_short.wall() / records,
                of_short.cpu() / records);
    std::fflush(stdout);
  }
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  const bool compare = argc == 6 && std::strcmp(argv[2], "--compare") == 0;
  if (argc < 5) {
    std::fprintf(stderr,
                 "usage: luff_bench_store RUN TENSORS STEPS FLOATS [--raw-every N] [--pace-us N]\n"
                 "       luff_bench_store FOLDER --compare SHORT LONG ROUNDS\n");
    return 2;
  }
  Status status;
  if (compare) {
    status = Compare(argv[1], std::atoll(argv[3]), std::atoll(argv[4]), std::atoll(argv[5]));
  } else {
    std::int64_t raw_every = 1;
    std::int64_t pace_us = 0;
    for (int i = 5; i + 1 < argc; i += 2) {
      if (std::strcmp(argv[i], "--raw-every") == 0) raw_every = std::atoll(argv[i + 1]);
      if (std::strcmp(argv[i], "--pace-us") == 0) pace_us = std::atoll(argv[i + 1]);
    }
    status = WriteOne(argv[1], static_cast<std::uint32_t>(std::atoi(argv[2])), std::atoll(argv[3]),
                      static_cast<std::size_t>(std::atoll(argv[4])), raw_every, pace_us);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "luff_bench_store: %s\n", status.ToString().c_str());
  return 1;
}
