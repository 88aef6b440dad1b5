// Many live runs at once, for benchmarks/scale.py, through the real writer with live pages.
//   luff_bench_live FOLDER RUNS PARAMETERS STEPS_PER_S SECONDS NAN_AT [FIRST]
// Runs are numbered from FIRST (0) on.
// Each run has a loss, and for each parameter a weight and a gradient, whose statistics are recorded in each
// step. The loss of every tenth run is NaN from its step NAN_AT on. Steps of all runs are spread evenly over
// time. Prints "ready" when all runs have begun, and at the end one JSON object: steps and CPU seconds.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "luff/store/writer.h"

namespace {

using namespace luff;  // NOLINT: a program of one file
using Clock = std::chrono::steady_clock;

class Run {
 public:
  static Result<std::unique_ptr<Run>> Open(const std::string& path, std::uint32_t number,
                                           std::uint32_t parameters) {
    store::RunInfo wanted;
    wanted.run_id = {static_cast<std::uint8_t>(number), static_cast<std::uint8_t>(number >> 8U), 1};
    LUFF_ASSIGN_OR_RETURN(const store::RunInfo info, store::CreateRun(path, wanted, false, false));
    store::WriterOptions options;
    options.run_path = path;
    options.live_page = true;
    std::unique_ptr<Run> run(new Run(number, parameters));
    LUFF_ASSIGN_OR_RETURN(run->writer_, store::WorkerWriter::Open(options, info));
    const auto define = [&](const std::string& name, format::Role role) {
      store::TensorDef def;
      def.id = static_cast<std::uint32_t>(run->batch_.tensors.size());
      def.name = name;
      def.role = role;
      run->batch_.tensors.push_back(def);
    };
    define("loss", format::Role::kLoss);
    for (std::uint32_t p = 0; p < parameters; ++p) {
      const std::string name = "layer" + std::to_string(p) + ".weight";
      define(name, format::Role::kWeight);
      define("gradient/" + name, format::Role::kGradient);
    }
    return run;
  }

  Status Step(std::int64_t nan_at) {
    const bool broken = number_ % 10 == 3 && step_ >= nan_at;
    const double noise = std::sin(static_cast<double>(step_ * 7 + number_));
    const double loss = 1 + 1 / (1 + 0.05 * static_cast<double>(step_)) + 0.02 * noise;
    batch_.scalars.push_back({0, 0, broken ? std::nan("") : loss});
    for (std::uint32_t t = 0; t < 2 * parameters_; ++t) {
      const double size = t % 2 == 0 ? 1 + 1e-4 * static_cast<double>(step_) : 0.01 * loss;
      format::SummaryRow row{};
      row.tensor = 1 + t;
      row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
      row.steps = 1;
      row.count = 1000;
      row.sum = size * noise;
      row.sum_sq = 1000 * size * size;
      row.abs_sum = 800 * size;
      const auto least = static_cast<float>(-3 * size), most = static_cast<float>(3 * size);
      std::memcpy(&row.min_bits, &least, sizeof(least));
      std::memcpy(&row.max_bits, &most, sizeof(most));
      batch_.summaries.push_back(row);
    }
    batch_.mark.global_step = batch_.mark.mode_step = batch_.mark.update = step_++;
    batch_.mark.mode = static_cast<std::uint8_t>(format::Mode::kTrain);
    batch_.mark.wall_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count();
    const Status published = writer_->PublishStep(batch_);
    batch_.clear();
    return published;
  }
  Status Close() { return writer_->Close(format::EndReason::kCompleted); }

 private:
  Run(std::uint32_t number, std::uint32_t parameters) : number_(number), parameters_(parameters) {}
  const std::uint32_t number_, parameters_;
  std::int64_t step_ = 0;
  std::unique_ptr<store::WorkerWriter> writer_;
  store::StepBatch batch_;
};

Status Write(const std::string& folder, std::uint32_t count, std::uint32_t parameters, double rate,
             double seconds, std::int64_t nan_at, std::uint32_t first) {
  std::vector<std::unique_ptr<Run>> runs;
  for (std::uint32_t i = first; i < first + count; ++i) {
    LUFF_ASSIGN_OR_RETURN(auto run, Run::Open(folder + "/run" + std::to_string(i), i, parameters));
    LUFF_RETURN_IF_ERROR(run->Step(nan_at));
    runs.push_back(std::move(run));
  }
  std::puts("ready");
  std::fflush(stdout);
  const auto begun = Clock::now();
  std::uint64_t steps = 0;
  const auto all = static_cast<std::uint64_t>(rate * seconds * count);
  for (; steps < all; ++steps) {
    LUFF_RETURN_IF_ERROR(runs[steps % count]->Step(nan_at));
    std::this_thread::sleep_until(
        begun + std::chrono::duration<double>(static_cast<double>(steps + 1) / (rate * count)));
  }
  for (auto& run : runs) LUFF_RETURN_IF_ERROR(run->Close());
  timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  std::printf("{\"steps\": %llu, \"cpu_s\": %.3f}\n", static_cast<unsigned long long>(steps + count),
              static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9);
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) {
    std::fprintf(stderr,
                 "usage: luff_bench_live FOLDER RUNS PARAMETERS STEPS_PER_S SECONDS NAN_AT [FIRST]\n");
    return 2;
  }
  const Status status =
      Write(argv[1], static_cast<std::uint32_t>(std::atoi(argv[2])),
            static_cast<std::uint32_t>(std::atoi(argv[3])), std::atof(argv[4]), std::atof(argv[5]),
            std::atoll(argv[6]), argc == 8 ? static_cast<std::uint32_t>(std::atoi(argv[7])) : 0);
  if (status.ok()) return 0;
  std::fprintf(stderr, "luff_bench_live: %s\n", status.ToString().c_str());
  return 1;
}
