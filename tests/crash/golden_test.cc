// The golden runs of version 1: their bytes do not change, readers find what its JSON twin lists, and they
// read nothing wrong when it is cut off at any byte.
#include "golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/test_effort.h"
#include "base/testdata.h"
#include "luff/format/frames.h"
#include "luff/format/names.h"
#include "luff/format/samples.h"
#include "luff/store/reader.h"
#include "store/test_run.h"

namespace luff::store {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(kTestdata) / "format";
constexpr const char* kVersions[] = {"v1", "v1.1", "v1.2"};
constexpr const char* kNewest = "v1.2";  // which the writer makes

std::string Bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15U];
  }
  return text;
}

struct Seen {
  std::size_t steps = 0, values = 0, summaries = 0, scalars = 0, phases = 0, modules = 0, wrong = 0;
};

/// Compares the times of modules in one step.
void CompareModules(const SegmentReader& segment, const format::FrameEntry& entry, const nlohmann::json& twin,
                    Seen* seen) {
  const auto index = segment.FindOrdinal(entry.ordinal);
  std::vector<std::byte> scratch;
  const auto body = segment.ReadFrame(entry, &scratch);
  if (!index || !body.ok()) return;
  const auto times = format::ParseModuleTimesUntrusted(*body);
  if (!times.ok()) return;
  ++seen->modules;
  const auto& all = twin["steps"][static_cast<std::size_t>(segment.steps().global_step[*index])]["modules"];
  seen->wrong += times->rows.size() != all.size() || times->head.modules != 9 ||
                 times->head.flags != format::kModulesHidden;
  for (std::size_t i = 0; i < std::min(all.size(), times->rows.size()); ++i) {
    const format::ModuleTimeRow& row = times->rows[i];
    seen->wrong += all[i] != nlohmann::json({row.module, row.calls, row.forward_ns, row.forward_self_ns,
                                             row.backward_ns, row.backward_self_ns});
  }
}

/// Compares everything that the reader shows with the twin.
Seen Compare(const std::string& run, const nlohmann::json& twin) {
  Seen seen;
  ReaderOptions options;
  options.use_live_page = false;
  auto reader = RunReader::Open(run, options);
  if (!reader.ok()) {
    ADD_FAILURE() << reader.status().ToString();
    return seen;
  }
  (void)(*reader)->Refresh();
  for (const auto& worker : (*reader)->workers()) {
    for (const auto& segment : worker->segments()) {
      const auto& steps = segment->steps();
      const auto expected = [&](std::uint32_t index) -> const nlohmann::json& {
        return twin["steps"][static_cast<std::size_t>(steps.global_step[index])];
      };
      for (std::uint32_t i = 0; i < steps.size(); ++i) {
        ++seen.steps;
        const int mode = expected(i)["mode"] == "EVAL" ? 2 : 1;
        seen.wrong +=
            steps.mode[i] != mode || steps.ordinal[i] != static_cast<std::uint64_t>(steps.global_step[i]);
      }
      const auto frames = segment->Frames();
      for (std::size_t i = 0; frames.ok() && i < (*frames).size(); ++i) {
        const format::FrameEntry& entry = (*frames)[i];
        if (entry.kind == static_cast<std::uint16_t>(format::FrameKind::kModuleTimes)) {
          CompareModules(*segment, entry, twin, &seen);
          continue;
        }
        if (entry.kind != static_cast<std::uint16_t>(format::FrameKind::kPhases)) continue;
        const auto index = segment->FindOrdinal(entry.ordinal);
        std::vector<std::byte> scratch;
        const auto body = segment->ReadFrame(entry, &scratch);
        if (!index || !body.ok()) continue;
        const auto phases = format::ParsePhasesUntrusted(*body);
        if (!phases.ok()) continue;
        ++seen.phases;
        const nlohmann::json& all = expected(*index)["phases"];
        seen.wrong += phases->head.wall_ns != all["wall_ns"].get<std::int64_t>() ||
                      phases->head.run_queue_ns != all["run_queue_ns"].get<std::int64_t>();
        for (const format::PhaseRow& row : phases->rows)
          seen.wrong += row.duration_ns != all[format::PhaseName(row.phase)].get<std::int64_t>();
      }
      for (std::size_t slot = 0; slot < segment->slot_count(); ++slot) {
        const std::uint32_t tensor = segment->slot_tensor(slot);
        if (tensor >= twin["tensors"].size()) {
          ++seen.wrong;
          continue;
        }
        const std::string name = twin["tensors"][tensor]["name"];
        if (const auto block = segment->Summaries(slot); block.ok()) {
          for (std::size_t i = 0; i < block->size(); ++i) {
            ++seen.summaries;
            seen.wrong += block->sum[i] != expected(block->step[i])["sums"][name].get<double>();
          }
        }
        if (const auto block = segment->Scalars(slot); block.ok()) {
          for (std::size_t i = 0; i < block->size(); ++i) {
            ++seen.scalars;
            seen.wrong += block->value[i] != expected(block->step[i])["loss"].get<double>();
          }
        }
        if (const auto block = segment->Index(slot); block.ok()) {
          for (std::size_t i = 0; i < block->rows.size(); ++i) {
            const auto payload = worker->ReadPayload(block->rows.subspan(i, 1), block->rows[i].raw_bytes);
            if (!payload.ok()) continue;
            ++seen.values;
            seen.wrong += Hex(payload->bytes) != expected(block->step[i])["values"][name].get<std::string>();
          }
        }
      }
    }
  }
  return seen;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(golden_ / "run" / "run.json")) << golden_ << " is missing";
    twin_ = nlohmann::json::parse(Bytes(golden_ / "run.expected.json"));
  }
  const fs::path golden_ = kGolden / GetParam();
  nlohmann::json twin_;
};
INSTANTIATE_TEST_SUITE_P(Versions, GoldenTest, testing::ValuesIn(kVersions), [](const auto& version) {
  std::string name = version.param;
  std::ranges::replace(name, '.', '_');
  name[0] = 'V';
  return name;
});

TEST_P(GoldenTest, ReadsAsItsTwinSays) {
  const Seen seen = Compare((golden_ / "run").string(), twin_);
  EXPECT_EQ(seen.wrong, 0U);
  EXPECT_EQ(seen.steps, static_cast<std::size_t>(kGoldenSteps));
  EXPECT_EQ(seen.summaries, twin_["tensors"].size() * kGoldenSteps);
  EXPECT_EQ(seen.scalars, static_cast<std::size_t>(kGoldenSteps));
  EXPECT_GE(seen.values, twin_["tensors"].size() * kGoldenSteps - 6);  // one tensor keeps its last 4 steps
  EXPECT_EQ(seen.phases, twin_["steps"][0].contains("phases") ? static_cast<std::size_t>(kGoldenSteps) : 0U);
  std::size_t timed = 0;
  for (const auto& step : twin_["steps"]) timed += step.contains("modules") ? 1 : 0;
  EXPECT_EQ(seen.modules, timed);
  EXPECT_EQ(timed != 0, GetParam() == std::string(kNewest));
}

/// Samples that are read, and how many of them are wrong.
std::pair<std::size_t, std::size_t> CompareSamples(const std::string& run, const nlohmann::json& twin) {
  std::size_t count = 0, wrong = 0;
  ReaderOptions options;
  options.use_live_page = false;
  const auto info = ReadRunInfo(run);
  if (!info.ok()) return {0, 0};
  const auto reader = WorkerReader::Open(HostFolder(run, kGoldenHost), kGoldenHost, *info, options);
  if (!reader.ok()) return {0, 0};
  std::map<std::uint32_t, std::string> names;
  std::vector<std::byte> scratch;
  for (const auto& segment : (*reader)->segments()) {
    const auto frames = segment->Frames();
    for (std::size_t f = 0; frames.ok() && f < frames->size(); ++f) {
      const auto body = segment->ReadFrame((*frames)[f], &scratch);
      if (!body.ok()) continue;
      if ((*frames)[f].kind == static_cast<std::uint16_t>(format::FrameKind::kSeriesDefs)) {
        for (const auto& def : format::ParseSeriesDefsUntrusted(*body).value()) names[def.id] = def.name;
      }
      if ((*frames)[f].kind != static_cast<std::uint16_t>(format::FrameKind::kSamples)) continue;
      const auto block = format::ParseSamplesUntrusted(*body);
      if (!block.ok()) continue;
      for (std::size_t i = 0; i < block->mono_ns.size(); ++i) {
        const nlohmann::json& row = twin["samples"][i];
        wrong += row["unix_ns"] != block->unix_ns(i);
        for (const auto& series : block->series) {
          const bool there = series.values[i] != format::kNoSample;
          const std::string& name = names[series.id];
          wrong += there != row.contains(name) || (there && row[name] != series.values[i]);
          ++count;
        }
      }
    }
  }
  return {count, wrong};
}

TEST(Golden, SamplesReadAsTheTwinSaysAndNothingWrongWhenCutOff) {
  const fs::path golden = kGolden / kNewest;
  const auto twin = nlohmann::json::parse(Bytes(golden / "run.expected.json"));
  EXPECT_EQ(CompareSamples((golden / "run").string(), twin),
            std::pair(twin["samples"].size() * 2, std::size_t{0}));
  TemporaryDirectory directory;
  const fs::path run = fs::path(directory.path()) / "run";
  fs::copy(golden / "run", run, fs::copy_options::recursive);
  const fs::path file = fs::path(HostFolder(run.string(), kGoldenHost)) / "m-000001.lfm";
  for (auto size = static_cast<std::int64_t>(fs::file_size(file)); size >= 4000; --size) {
    fs::resize_file(file, static_cast<std::uint64_t>(size));
    ASSERT_EQ(CompareSamples(run.string(), twin).second, 0U) << "cut off at byte " << size;
  }
}

TEST(Golden, TheWriterStillMakesTheSameBytes) {
  const fs::path golden = kGolden / kNewest;
  TemporaryDirectory directory;
  const fs::path run = fs::path(directory.path()) / "run";
  ASSERT_TRUE(WriteGoldenRun(run.string()));
  for (const auto& entry : fs::directory_iterator(golden / "run" / "w0000")) {
    EXPECT_EQ(Bytes(entry.path()), Bytes(run / "w0000" / entry.path().filename())) << entry.path().filename();
  }
  const std::string host = fs::path(HostFolder("", kGoldenHost)).filename();
  for (const auto& entry : fs::directory_iterator(golden / "run" / host)) {
    EXPECT_EQ(Bytes(entry.path()), Bytes(run / host / entry.path().filename())) << entry.path().filename();
  }
  EXPECT_EQ(GoldenTwin(), Bytes(golden / "run.expected.json"));
}

TEST_P(GoldenTest, CutOffAtAnyByteItShowsNothingWrong) {
  // In memory if possible, since tens of thousands of truncations are slow on a journaling file system.
  const std::string base = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string();
  for (const auto& entry : fs::directory_iterator(golden_ / "run" / "w0000")) {
    TemporaryDirectory directory(base);
    const fs::path run = fs::path(directory.path()) / "run";
    fs::copy(golden_ / "run", run, fs::copy_options::recursive);
    const fs::path file = run / "w0000" / entry.path().filename();
    for (auto size = static_cast<std::int64_t>(entry.file_size()); size >= 0; --size) {
      fs::resize_file(file, static_cast<std::uint64_t>(size));
      // The header page holds zeros after its first 80 bytes: one cut in 64 of those is enough.
      if (size < 4096 && size > 100 && size % 64 != 0) continue;
      if (FewerCases() && size % 13 != 0) continue;
      const Seen seen = Compare(run.string(), twin_);
      ASSERT_EQ(seen.wrong, 0U) << entry.path().filename() << " cut off at byte " << size;
    }
  }
}

}  // namespace
}  // namespace luff::store
