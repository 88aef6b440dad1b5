// luff_crash --kills N [--seed S] [--dir D]: kills a writing process at random instants and reads the
// run that it has left.
//
// The values that the child writes depend only on (tensor, step), so every value can be checked when it is
// read back. After the kill, no value, summary or scalar may be wrong, and every step that the live page had
// published must be readable. Half of the runs are then resumed and killed again, so runs have several
// epochs.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "luff/format/live.h"
#include "store/test_run.h"

namespace luff::store {
namespace {

constexpr std::uint32_t kTensors = 6;
constexpr std::size_t kSmall = 40, kBig = 60'000;  // elements: buffered, and together enough for direct I/O

std::size_t ElementsOf(std::uint32_t tensor) { return tensor % 3 == 0 ? kBig : kSmall; }
/// Tensors 4 and 5 change only at every 16th step; their rows in between refer to earlier chunks.
std::int64_t ChangedAt(std::uint32_t tensor, std::int64_t step) {
  return tensor >= 4 ? step - step % 16 : step;
}
Retention RetentionOf(std::uint32_t tensor) {
  Retention retention;
  if (tensor % 2 == 1) {
    retention.kind = Retention::Kind::kLast;
    retention.last_steps = 12;
  }
  return retention;
}
bool MustBeKept(std::uint32_t tensor, std::int64_t step, std::int64_t last_step) {
  return tensor % 2 == 0 || step > last_step - 12;
}

[[noreturn]] void Write(const std::string& run, bool resume, std::uint64_t* progress) {
  WriterOptions options;
  options.run_path = run;
  options.segment_bytes_meta = 32 << 10;
  options.segment_bytes_payload = 2 << 20;
  auto info = CreateRun(run, TestRun(), false, resume);
  if (!info.ok()) _exit(3);
  auto opened = WorkerWriter::Open(options, *info);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    _exit(4);
  }
  WorkerWriter& writer = **opened;
  StepBatch batch;
  for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
    batch.tensors.push_back(Def(tensor, "tensor" + std::to_string(tensor)));
    batch.layouts.push_back(VectorLayout(tensor, static_cast<std::int64_t>(ElementsOf(tensor))));
  }
  if (!writer.PublishLoose(batch).ok()) _exit(5);
  std::vector<Place> last(kTensors);
  std::vector<std::int64_t> stored(kTensors, -1);
  for (auto step = static_cast<std::int64_t>(writer.next_ordinal());; ++step) {
    batch.clear();
    for (const bool keep_all : {true, false}) {
      ChunkBlock block;
      std::vector<std::uint32_t> members;
      for (std::uint32_t tensor = keep_all ? 0 : 1; tensor < kTensors; tensor += 2) {
        const std::int64_t changed = ChangedAt(tensor, step);
        if (stored[tensor] == changed && writer.ChunkIsKept(last[tensor])) continue;
        block.Add(tensor, ValueOf(tensor, changed, ElementsOf(tensor)), tensor != 3);
        members.push_back(tensor);
      }
      std::vector<Place> places;
      if (!members.empty() &&
          !writer.AppendChunks(block.refs(), RetentionOf(keep_all ? 0 : 1), step, &places).ok()) {
        _exit(6);
      }
      for (std::size_t i = 0; i < members.size(); ++i) {
        last[members[i]] = places[i];
        stored[members[i]] = ChangedAt(members[i], step);
      }
    }
    for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      ChunkBlock block;
      block.Add(tensor, ValueOf(tensor, ChangedAt(tensor, step), ElementsOf(tensor)), tensor != 3);
      format::IndexRow row = block.rows()[0];
      row.layout = tensor;
      last[tensor] = writer.Resolve(last[tensor]);
      row.data_file = last[tensor].data_file;
      row.offset = last[tensor].offset;
      if (ChangedAt(tensor, step) != step) row.flags = format::kIndexUnchanged;
      batch.index.push_back(row);
      batch.summaries.push_back(SummaryOf(tensor, step));
    }
    batch.scalars = {{0, 0, static_cast<double>(step) * 0.5}};
    batch.mark = MarkOf(step);
    if (!writer.PublishStep(batch).ok()) _exit(7);
    __atomic_store_n(progress, static_cast<std::uint64_t>(step) + 1, __ATOMIC_RELEASE);
    if (step % 8 == 0) writer.Heartbeat();
  }
}

struct Verdict {
  std::uint64_t wrong = 0, missing = 0, values = 0;
};

Verdict Check(const std::string& run, std::uint64_t published, bool use_live_page) {
  Verdict verdict;
  ReaderOptions options;
  options.use_live_page = use_live_page;
  auto reader = RunReader::Open(run, options);
  if (!reader.ok()) {
    verdict.missing = published;
    return verdict;
  }
  (void)(*reader)->Refresh();
  std::set<std::int64_t> steps;
  for (const auto& worker : (*reader)->workers()) {
    const auto last_step = static_cast<std::int64_t>(worker->next_ordinal()) - 1;
    for (const auto& segment : worker->segments()) {
      const auto& columns = segment->steps();
      for (std::size_t i = 0; i < columns.size(); ++i) {
        steps.insert(columns.global_step[i]);
        verdict.wrong += columns.ordinal[i] != static_cast<std::uint64_t>(columns.global_step[i]);
      }
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        const auto slot = segment->FindSlot(tensor);
        if (!slot) {
          verdict.missing += columns.size();
          continue;
        }
        const auto summaries = segment->Summaries(*slot);
        const auto index = segment->Index(*slot);
        const auto scalars = segment->Scalars(*slot);
        if (!summaries.ok() || !index.ok() || !scalars.ok() || summaries->size() != columns.size() ||
            index->rows.size() != columns.size()) {
          verdict.missing += columns.size();
          continue;
        }
        for (std::size_t i = 0; i < columns.size(); ++i) {
          const std::int64_t step = columns.global_step[summaries->step[i]];
          verdict.wrong += summaries->sum[i] != SummaryOf(tensor, step).sum;
          if (tensor == 0)
            verdict.wrong +=
                scalars->value[i] != static_cast<double>(columns.global_step[scalars->step[i]]) * 0.5;
          const auto payload = worker->ReadPayload(index->rows.subspan(i, 1), ElementsOf(tensor) * 4);
          const std::int64_t at = columns.global_step[index->step[i]];
          if (!payload.ok()) {
            if (MustBeKept(tensor, at, last_step)) {
              ++verdict.missing;
              std::fprintf(stderr, "missing: tensor %u step %lld: %s\n", tensor, static_cast<long long>(at),
                           payload.status().ToString().c_str());
            }
            continue;
          }
          ++verdict.values;
          const auto expected = ValueOf(tensor, ChangedAt(tensor, at), ElementsOf(tensor));
          verdict.wrong += !std::ranges::equal(payload->bytes, expected);
        }
      }
    }
  }
  for (std::uint64_t step = 0; step < published; ++step) {
    if (!steps.contains(static_cast<std::int64_t>(step))) {
      ++verdict.missing;
      std::fprintf(stderr, "missing: step %llu\n", static_cast<unsigned long long>(step));
    }
  }
  return verdict;
}

int Main(int argc, char** argv) {
  std::uint64_t kills = 200;
  std::uint64_t seed = 1;
  std::string directory = "/tmp";
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (more && std::strcmp(argv[i], "--kills") == 0)
      kills = std::strtoull(argv[++i], nullptr, 10);
    else if (more && std::strcmp(argv[i], "--seed") == 0)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else if (more && std::strcmp(argv[i], "--dir") == 0)
      directory = argv[++i];
    else {
      std::fprintf(stderr, "usage: luff_crash [--kills N] [--seed S] [--dir DIRECTORY]\n");
      return 2;
    }
  }
  auto* progress = static_cast<std::uint64_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (progress == MAP_FAILED) return 2;
  std::mt19937_64 random(seed);
  std::uint64_t done = 0, wrong = 0, missing = 0, values = 0;
  while (done < kills) {
    TemporaryDirectory scratch(directory);
    const std::string run = scratch.path() + "/run";
    const std::uint64_t epochs = 1 + random() % 2;
    for (std::uint64_t epoch = 0; epoch < epochs && done < kills; ++epoch) {
      if (epoch == 0) *progress = 0;
      const std::uint64_t before = *progress;
      const pid_t child = fork();
      if (child < 0) return 2;
      if (child == 0) Write(run, epoch > 0, progress);
      // Most kills come at a random number of steps plus a random delay, some while the run is being created.
      const auto microseconds = std::chrono::microseconds(random() % 3000);
      const std::uint64_t target = random() % 8 == 0 ? before : before + random() % 60;
      int status = 0;
      bool gone = false;
      while (__atomic_load_n(progress, __ATOMIC_ACQUIRE) < target && !gone) {
        gone = waitpid(child, &status, WNOHANG) == child;
        std::this_thread::yield();
      }
      if (!gone) {
        std::this_thread::sleep_for(microseconds);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
      }
      if (!WIFSIGNALED(status)) {
        std::fprintf(stderr, "the writer ended by itself with code %d\n", WEXITSTATUS(status));
        return 1;
      }
      ++done;
      const std::uint64_t published = *progress;
      if (published == 0 && access((run + "/run.json").c_str(), F_OK) != 0) break;
      for (const bool live : {true, false}) {
        const Verdict verdict = Check(run, published, live);
        wrong += verdict.wrong;
        missing += verdict.missing;
        values += verdict.values;
      }
    }
  }
  std::printf("%llu values read, %llu published ones missing\n", static_cast<unsigned long long>(values),
              static_cast<unsigned long long>(missing));
  std::printf("%llu kills, %llu wrong values\n", static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(wrong));
  return wrong == 0 && missing == 0 ? 0 : 1;
}

}  // namespace
}  // namespace luff::store

int main(int argc, char** argv) { return luff::store::Main(argc, argv); }
