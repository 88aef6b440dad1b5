#include "golden.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/testing/forwarding_env.h"
#include "luff/format/names.h"
#include "store/test_run.h"

namespace luff::store {
namespace {

/// Real files and a fixed clock, so that the bytes are the same each time.
class StillEnv final : public ForwardingEnv {
 public:
  std::int64_t NowUnixNs() noexcept override { return 1'700'000'000'000'000'000; }
  std::int64_t NowMonotonicNs() noexcept override { return 1'000'000'000; }
};

struct Tensor {
  const char* name;
  DType dtype;
  std::int64_t elements;
  format::Role role;
};
constexpr Tensor kTensors[] = {
    {"fc.weight", DType::kFloat32, 12, format::Role::kWeight},
    {"relu_output_0", DType::kFloat32, 32, format::Role::kOutput},     // mostly zeros: a bitmap
    {"embedding.weight", DType::kBFloat16, 6, format::Role::kWeight},  // frozen: one chunk for all steps
    {"labels", DType::kInt64, 4, format::Role::kLabel},                // constant
    {"mask", DType::kBool, 0, format::Role::kBuffer},                  // empty
};

/// Two phases that depend on the step, and the rest.
StepPhases GoldenPhases(std::int64_t step) {
  StepPhases phases;
  phases.head = {40'000'000 + step, 9'000'000, step == 0 ? -1 : 1'000 * step, -1, 1, 3, format::kNoId, 0};
  phases.rows[0] = {0, 0, 0, format::kNoId, -1, 10'000'000};
  phases.rows[1] = {1, 0, 1, format::kNoId, 500 + step, 25'000'000 + step};
  phases.rows[2] = {3, 0, 2, format::kNoId, 26'000'000, 5'000'000};
  return phases;
}

/// Times of two modules and of the rest, in every third step.
StepModules GoldenModules(std::int64_t step) {
  StepModules modules;
  if (step % 3 != 1) return modules;
  modules.head = {1, 3, 9, format::kModulesHidden};
  modules.rows = {{4, 2, 9'000'000 + step, 3'000'000, 8'000'000, 2'000'000 + step},
                  {7, 1, 2'000'000, 2'000'000, -1, -1},
                  {format::kNoId, 6, -1, 500'000 + step, -1, 400'000}};
  return modules;
}

/// Returns the bytes of a tensor at a step.
std::vector<std::byte> GoldenValue(std::uint32_t tensor, std::int64_t step) {
  const Tensor& t = kTensors[tensor];
  std::vector<std::byte> value(static_cast<std::size_t>(t.elements) * DTypeSize(t.dtype));
  const std::int64_t at = tensor == 2 ? 0 : step;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (tensor == 1 && i % 16 > 3) continue;
    const std::size_t position = tensor == 3 ? i % 8 : i;
    value[i] = static_cast<std::byte>(static_cast<std::size_t>(at) * 31 + position * 7 + tensor + 1);
  }
  return value;
}

/// Samples of a host: a counter, and a gauge that is not always there.
constexpr std::int64_t kGoldenSamples = 6;
format::SampleBlock GoldenSamples() {
  format::SampleBlock block;
  block.first_unix_ns = 1'700'000'000'000'000'000;
  block.series = {{0, format::SeriesKind::kCounter, {}, {}}, {1, format::SeriesKind::kGauge, {}, {}}};
  for (std::int64_t i = 0; i < kGoldenSamples; ++i) {
    block.mono_ns.push_back(1'000'000'000 + i * 500'000'000);
    block.series[0].values.push_back(7 + i * 450'000'000);
    block.series[1].values.push_back(i == 2 ? format::kNoSample : 4'096 - i * 1'000'000);
  }
  return block;
}

bool WriteGoldenHost(const std::string& path, Env* env) {
  WriterOptions options;
  options.run_path = path;
  options.worker = kGoldenHost;
  options.host = true;
  options.live_page = false;
  options.env = env;
  const auto writer = WorkerWriter::Open(options, TestRun());
  if (!writer.ok()) return false;
  StepBatch batch;
  batch.series = {
      {0, format::SeriesUnit::kNanoseconds, format::SeriesKind::kCounter, format::kNoId, "cpu.busy"},
      {1, format::SeriesUnit::kBytes, format::SeriesKind::kGauge, 0, "gpu.0.memory.used"}};
  batch.documents = {{"host", "{\"name\":\"golden\"}"}};
  batch.samples = {GoldenSamples()};
  if (!(*writer)->PublishLoose(batch).ok() || !(*writer)->Close(format::EndReason::kCompleted).ok())
    return false;
  std::error_code ignored;
  std::filesystem::remove(HostFolder(path, kGoldenHost) + "/live", ignored);
  return true;
}

}  // namespace

std::string GoldenTwin() {
  nlohmann::json twin;
  for (std::int64_t step = 0; step < kGoldenSteps; ++step) {
    nlohmann::json row;
    row["global_step"] = step;
    row["mode"] = step % 5 == 4 ? "EVAL" : "TRAIN";
    row["loss"] = 1.0 / static_cast<double>(step + 1);
    const StepPhases phases = GoldenPhases(step);
    row["phases"]["wall_ns"] = phases.head.wall_ns;
    row["phases"]["run_queue_ns"] = phases.head.run_queue_ns;
    for (std::uint32_t i = 0; i < phases.head.rows; ++i)
      row["phases"][format::PhaseName(phases.rows[i].phase)] = phases.rows[i].duration_ns;
    for (const format::ModuleTimeRow& module : GoldenModules(step).rows)
      row["modules"].push_back({module.module, module.calls, module.forward_ns, module.forward_self_ns,
                                module.backward_ns, module.backward_self_ns});
    for (std::uint32_t tensor = 0; tensor < std::size(kTensors); ++tensor) {
      std::string hex;
      for (const std::byte byte : GoldenValue(tensor, step)) {
        char text[3];
        std::snprintf(text, sizeof(text), "%02x", static_cast<unsigned>(byte));
        hex += text;
      }
      row["values"][kTensors[tensor].name] = hex;
      row["sums"][kTensors[tensor].name] = SummaryOf(tensor, step).sum;
    }
    twin["steps"].push_back(row);
  }
  for (const Tensor& tensor : kTensors) {
    twin["tensors"].push_back({{"name", tensor.name},
                               {"dtype", std::string(DTypeName(tensor.dtype))},
                               {"shape", {tensor.elements}},
                               {"role", static_cast<int>(tensor.role)}});
  }
  twin["documents"]["collections"] = nlohmann::json::array({"weights", "outputs"});
  const format::SampleBlock samples = GoldenSamples();
  for (std::size_t i = 0; i < samples.mono_ns.size(); ++i) {
    nlohmann::json row{{"unix_ns", samples.unix_ns(i)}, {"cpu.busy", samples.series[0].values[i]}};
    if (samples.series[1].values[i] != format::kNoSample)
      row["gpu.0.memory.used"] = samples.series[1].values[i];
    twin["samples"].push_back(row);
  }
  twin["end_reason"] = static_cast<int>(format::EndReason::kCompleted);
  return twin.dump(1) + "\n";
}

bool WriteGoldenRun(const std::string& path) {
  const auto failed = [](const Status& status) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return !status.ok();
  };
  static StillEnv env;
  auto info = CreateRun(path, TestRun(), false, false);
  if (!info.ok()) return !failed(info.status());
  WriterOptions options;
  options.run_path = path;
  options.segment_bytes_meta = 4096;
  options.live_page = false;
  options.env = &env;
  auto opened = WorkerWriter::Open(options, *info);
  if (!opened.ok()) return !failed(opened.status());
  WorkerWriter& writer = **opened;

  StepBatch batch;
  for (std::uint32_t tensor = 0; tensor < std::size(kTensors); ++tensor) {
    const Tensor& t = kTensors[tensor];
    TensorDef def = Def(tensor, t.name);
    def.role = t.role;
    def.module_path = "fc";
    def.module_type = "Linear";
    def.collections = {tensor % 2};
    batch.tensors.push_back(def);
    LayoutDef layout;
    layout.id = tensor;
    layout.layout = Layout::Contiguous(t.dtype, {&t.elements, 1}).value();
    batch.layouts.push_back(layout);
  }
  batch.documents = {{"collections", "[\"weights\",\"outputs\"]"}};
  if (failed(writer.PublishLoose(batch))) return false;

  Place frozen;
  for (std::int64_t step = 0; step < kGoldenSteps; ++step) {
    batch.clear();
    std::vector<std::byte> chunks;
    std::vector<std::uint64_t> sizes;
    for (std::uint32_t tensor = 0; tensor < std::size(kTensors); ++tensor) {
      const auto raw = GoldenValue(tensor, step);
      format::ChunkInfo info_of;
      info_of.tensor = info_of.layout = tensor;
      info_of.dtype = kTensors[tensor].dtype;
      info_of.ordinal = static_cast<std::uint64_t>(step);
      std::vector<std::byte> chunk;
      const std::uint64_t hash = format::HashBytes(raw);
      const format::Codec codec = format::EncodeChunk(info_of, raw, true, hash, &chunk);
      format::IndexRow row{};
      row.tensor = row.layout = tensor;
      row.parts = 1;
      row.dtype = static_cast<std::uint8_t>(kTensors[tensor].dtype);
      row.codec = static_cast<std::uint8_t>(codec);
      row.raw_bytes = raw.size();
      row.stored_bytes = format::ParseChunkUntrusted(chunk, 0)->header.stored_bytes;
      row.content_hash = hash;
      if (tensor == 2 && step > 0) {
        row.flags = format::kIndexUnchanged;
        row.data_file = frozen.data_file;
        row.offset = frozen.offset;
      } else {
        Retention retention;
        if (tensor == 1) {
          retention.kind = Retention::Kind::kLast;
          retention.last_steps = 4;
        }
        const ChunkRef ref{chunk.data(), chunk.size()};
        std::vector<Place> places;
        if (failed(writer.AppendChunks({&ref, 1}, retention, step, &places))) return false;
        row.data_file = places[0].data_file;
        row.offset = places[0].offset;
        if (tensor == 2) frozen = places[0];
      }
      batch.index.push_back(row);
      format::SummaryRow summary = SummaryOf(tensor, step);
      summary.dtype = static_cast<std::uint8_t>(kTensors[tensor].dtype);
      batch.summaries.push_back(summary);
    }
    batch.histograms = {{0, {{100, 3}, {2060, 9}}}};
    UnitCounts units;
    units.values_per_unit = 8;
    units.positive = {1, 200, 3};
    units.zero = {7, 0, 5};
    units.sum = {0.5, 2.0, -1.0};
    batch.units = {{1, units}};
    format::FormRow form{};
    form.tensor = 0;
    form.form = static_cast<std::uint16_t>(format::Form::kDifference);
    form.values[0] = static_cast<double>(step);
    batch.forms = {form};
    batch.scalars = {{0, 0, 1.0 / static_cast<double>(step + 1)}};
    batch.events = {{static_cast<std::uint16_t>(format::EventKind::kForward), 0, 0, 1, 2000}};
    batch.event_json = {"{\"kind\":\"note\",\"text\":\"golden\"}"};
    format::GapRow gap{};
    gap.tensor = 1;
    gap.collection = format::kNoId;
    gap.reason = static_cast<std::uint16_t>(format::GapReason::kPoolFull);
    gap.forms = static_cast<std::uint16_t>(format::Form::kHistogram);
    gap.count = 1;
    gap.first_step = gap.last_step = step;
    batch.gaps = {gap};
    batch.phases = GoldenPhases(step);
    batch.modules = GoldenModules(step);
    if (!batch.modules.rows.empty()) batch.phases.head.flags = format::kStepTimed;
    if (step == 3) batch.acks = {{1, 1, 0, 3, 1'700'000'000'000'000'000}};
    batch.mark = MarkOf(step);
    if (step % 5 == 4) batch.mark.mode = static_cast<std::uint8_t>(format::Mode::kEval);
    if (failed(writer.PublishStep(batch))) return false;
  }
  if (failed(writer.Close(format::EndReason::kCompleted))) return false;
  std::error_code ignored;
  std::filesystem::remove(path + "/w0000/live", ignored);  // names this host and this process
  return WriteGoldenHost(path, &env);
}

}  // namespace luff::store
