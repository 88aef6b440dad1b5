// Fuzzes a whole directory: the golden run, with files replaced, patched, truncated, enlarged, or turned into
// links, pipes and folders, and files of other names added. Then makes every query that a user can make.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/testdata.h"
#include "luff/query/capture_cost.h"
#include "luff/query/run_stream.h"
#include "luff/store/control.h"
#include "luff/store/verify.h"
#include "query/testing/ask.h"

namespace {

using namespace luff;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

// The last ones aren't in the golden run.
constexpr const char* kNames[] = {"run.json",
                                  "w0000/m-000001.lfm",
                                  "w0000/m-000002.lfm",
                                  "w0000/m-000003.lfm",
                                  "w0000/m-000004.lfm",
                                  "w0000/d-000001.lfd",
                                  "w0000/d-000008.lfd",
                                  "w0000/d-000011.lfd",
                                  "w0000",
                                  "w0000/live",
                                  "w0000/m-000005.lfm",
                                  "w0000/m-000001-1.lfm",
                                  "w0001",
                                  "w0001/m-000001.lfm",
                                  "control",
                                  "control/000001.json",
                                  "control/000002.json"};
constexpr std::uintmax_t kLarge = 3ULL << 30;

struct World {
  fs::path golden, run;
  World() {
    const char* shared = fs::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    golden = fs::path(kTestdata) / "format/v1/run";
    run = fs::path(shared) / ("luff-run-fuzz-" + std::to_string(getpid()));
    std::atexit([] { fs::remove_all(Get().run); });
  }
  static World& Get() {
    static World world;
    return world;
  }
  void Begin() const {
    fs::remove_all(run);
    fs::copy(golden, run, fs::copy_options::recursive);
    fs::create_directory(run / "control");
  }
};

/// Applies one change. The input has its kind, the file, then arguments of the kind.
void Change(const World& world, std::string_view* input) {
  const auto take = [&](std::size_t count) {
    const std::string_view taken = input->substr(0, count);
    input->remove_prefix(taken.size());
    return taken;
  };
  const std::string_view head = take(3);
  if (head.size() < 3) return;
  const auto what = static_cast<std::uint8_t>(head[0]);
  const auto number = [&](std::size_t at) { return static_cast<std::uint8_t>(head[at]) % std::size(kNames); };
  const fs::path path = world.run / kNames[number(1)];
  const fs::path other = world.run / kNames[number(2)];
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  if (what % 8 == 0) {  // patched
    const std::string_view patches = take(static_cast<std::uint8_t>(head[2]));
    if (!fs::is_regular_file(fs::symlink_status(path, ignored))) return;
    // In place, because the file may be large.
    const std::uintmax_t size = fs::file_size(path, ignored);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (std::size_t at = 0; at + 3 <= patches.size() && size > 0; at += 3) {
      std::uint16_t place = 0;
      std::memcpy(&place, patches.data() + at, sizeof(place));
      file.seekp(static_cast<std::streamoff>(place % size)).put(patches[at + 2]);
    }
    return;
  }
  if (what % 8 == 1) {
    if (fs::is_regular_file(fs::symlink_status(path, ignored)))
      fs::resize_file(path, head[2] < 0 ? kLarge : static_cast<std::uintmax_t>(head[2]) * 16, ignored);
    return;
  }
  fs::remove_all(path, ignored);
  switch (what % 8) {
    case 2: break;  // gone
    case 3: {
      const std::string_view text = take(static_cast<std::uint8_t>(head[2]) * std::size_t{16});
      std::ofstream(path, std::ios::binary) << text;
      break;
    }
    case 4: fs::create_symlink(head[2] % 3 == 0 ? fs::path("/dev/zero") : other, path, ignored); break;
    case 5: (void)mkfifo(path.c_str(), 0600); break;
    case 6: fs::create_directory(path, ignored); break;
    default:
      if (!fs::is_regular_file(fs::symlink_status(other, ignored)) || fs::file_size(other, ignored) < kLarge)
        fs::copy(other, path, fs::copy_options::recursive | fs::copy_options::copy_symlinks, ignored);
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const World& world = World::Get();
  world.Begin();
  std::string_view input(reinterpret_cast<const char*>(data), size);
  (void)query::ParseCaptureCostUntrusted(input);
  for (int i = 0; i < 8 && !input.empty(); ++i) Change(world, &input);
  query::OpenOptions options;
  options.use_live_page = size % 2 == 0;
  query::testing::AskEverything(world.run.string(), options);
  if (const auto stream = query::RunStream::Open(world.run.string()); stream.ok()) {
    (void)(*stream)->Visit([](const auto&, const auto&) {}, [](const auto&, auto) {}).ok();
    (void)(*stream)->Document(0, "traces");
  }
  (void)store::VerifyRun(world.run.string(), {1 << 20}).ok();
  std::vector<std::string> problems;
  (void)store::ReadControl(world.run.string(), 0, &problems).ok();
  return 0;
}
