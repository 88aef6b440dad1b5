// Fuzzes a whole directory as smdebug writes it, of two workers, with hostile files: index, event and
// collections files replaced, truncated or patched, several at once. If the input says so, recomputes the
// checksums of records' lengths, to reach the checks of bounds behind them. Then makes every query that a
// user can make, and verifies the directory.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "luff/format/event_file.h"
#include "luff/query/trial.h"
#include "luff/query/verify.h"
#include "query/testing/ask.h"
#include "query/testing/smdebug_writer.h"

namespace {

using namespace luff;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

constexpr int kSteps = 3;
constexpr int kMaxChanges = 4;

/// The directory and its files in memory.
class Golden : query::testing::SmdebugWriter {
 public:
  struct File {
    std::string name;
    Bytes bytes;
  };

  Golden()
      : SmdebugWriter(fs::path(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp") /
                      ("luff-smdebug-fuzz-" + std::to_string(getpid()))) {
    using format::Mode;
    WriteCollections(2);
    const std::string w = "Net_fc.weight";
    for (int step = 0; step < kSteps; ++step) {
      const Mode mode = step == 1 ? Mode::kEval : Mode::kTrain;
      WriteStep(step, mode, step / 2,
                {{w, {1, -2, 3, 4}, {2, 2}},
                 {"CrossEntropyLoss_output_0", {0.5F}, {}},
                 {std::string(format::kSmdebugReductions) + "abs_mean/" + w, {2.5F}, {}}},
                "worker_0", {{w, {}, {2, 2}}});
      WriteStep(step, mode, step / 2, {{w, {1, 2, 3, 4}, {4}}}, "_job-worker_replica-0");
    }
    End();
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      const auto bytes = std::as_bytes(std::span(text));
      files_.push_back({fs::relative(entry.path(), root_).string(), Bytes(bytes.begin(), bytes.end())});
    }
    std::sort(files_.begin(), files_.end(), [](const File& a, const File& b) { return a.name < b.name; });
    std::atexit([] { fs::remove_all(Get().root_); });
  }
  static Golden& Get() {
    static Golden golden;
    return golden;
  }
  [[nodiscard]] std::string path() const { return root_.string(); }
  [[nodiscard]] const std::vector<File>& files() const { return files_; }
  void Put(const std::string& name, std::span<const std::byte> bytes) const {
    Write(name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void Remove(const std::string& name) const { fs::remove(root_ / name); }

 private:
  std::vector<File> files_;
};

/// Makes lengths of records fit the file, and writes their checksums and smdebug's footers.
void SealRecords(Bytes* file) {
  for (std::size_t at = 0; file->size() - at >= format::kRecordOverhead;) {
    const std::uint64_t room = file->size() - at - format::kRecordOverhead;
    std::uint64_t length = 0;
    std::memcpy(&length, file->data() + at, sizeof(length));
    if (length > room) length %= room + 1;
    std::memcpy(file->data() + at, &length, sizeof(length));
    const std::uint32_t crc = format::MaskedCrc32c({file->data() + at, sizeof(length)});
    std::memcpy(file->data() + at + 8, &crc, sizeof(crc));
    std::memcpy(file->data() + at + format::kRecordHead + length, &format::kSmdebugFooter,
                sizeof(format::kSmdebugFooter));
    at += static_cast<std::size_t>(length) + format::kRecordOverhead;
  }
}

}  // namespace

// Input: up to four changes of (file, kind, 2 bytes length), each followed by that many bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Golden& golden = Golden::Get();
  auto rest = std::as_bytes(std::span(data, size));
  std::vector<std::size_t> changed;
  for (int i = 0; i < kMaxChanges && rest.size() >= 4; ++i) {
    const std::size_t which = static_cast<std::size_t>(rest[0]) % golden.files().size();
    const auto kind = static_cast<unsigned>(rest[1]) % 6;
    std::uint16_t length = 0;
    std::memcpy(&length, &rest[2], sizeof(length));
    rest = rest.subspan(4);
    const auto body = rest.first(std::min<std::size_t>(length, rest.size()));
    rest = rest.subspan(body.size());
    const auto& original = golden.files()[which];
    Bytes file = original.bytes;
    switch (kind) {
      case 0: file.assign(body.begin(), body.end()); break;
      case 1: query::testing::Patch(&file, body); break;
      case 2:
        query::testing::Patch(&file, body);
        SealRecords(&file);
        break;
      case 3: file.resize(file.size() - std::min<std::size_t>(length, file.size())); break;
      case 4: file.insert(file.end(), body.begin(), body.end()); break;
      default: break;  // removed
    }
    changed.push_back(which);
    if (kind == 5)
      golden.Remove(original.name);
    else
      golden.Put(original.name, file);
  }
  query::OpenOptions options;
  options.lost_after_s = 0;  // a directory without an end marker counts as ended too
  query::testing::AskEverything(golden.path(), options);
  const auto report = query::VerifySmdebug(golden.path());
  if (changed.empty() && (!report.ok() || report->damage_count != 0)) std::abort();
  for (const std::size_t which : changed) golden.Put(golden.files()[which].name, golden.files()[which].bytes);
  return 0;
}
