// Fuzzes a whole run with one hostile file: the golden run, with one file replaced or patched. Recomputes the
// checksums of patched parts, so that the input reaches the code behind the checksums. Then makes every query
// that a user can make.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <xxhash.h>

#include "base/testdata.h"
#include "luff/base/env.h"
#include "luff/format/chunk.h"
#include "luff/format/frames.h"
#include "luff/format/live.h"
#include "luff/store/verify.h"
#include "luff/tensor/hash.h"
#include "query/testing/ask.h"
#include "query/testing/forge.h"

namespace {

using namespace luff;  // NOLINT(google-build-using-namespace)
using query::testing::AskEverything;
using query::testing::Patch;
namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

constexpr std::size_t kMetaFiles = 4;

Bytes Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void Write(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// The golden run in memory, and a copy of it that inputs are written into.
struct Golden {
  fs::path run;
  Bytes meta[kMetaFiles], data, live;

  Golden() {
    const char* shared = fs::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    run = fs::path(shared) / ("luff-trial-fuzz-" + std::to_string(getpid()));
    fs::remove_all(run);
    fs::copy(fs::path(kTestdata) / "format/v1/run", run, fs::copy_options::recursive);
    for (std::size_t i = 0; i < kMetaFiles; ++i) meta[i] = Read(MetaPath(i));
    data = Read(DataPath());
    live.resize(format::kPageBytes);
    std::atexit([] { fs::remove_all(Get().run); });
  }
  static Golden& Get() {
    static Golden golden;
    return golden;
  }
  [[nodiscard]] fs::path MetaPath(std::size_t i) const {
    return run / "w0000" / ("m-00000" + std::to_string(i + 1) + ".lfm");
  }
  [[nodiscard]] fs::path DataPath() const { return run / "w0000" / "d-000001.lfd"; }
};

/// Recomputes the checksums of the frames up to the footer, and cuts the file off there or at an invalid
/// length.
void SealFrames(Bytes* file, std::uint64_t sequence) {
  std::uint64_t at = format::kFileHeaderBytes;
  while (at + sizeof(format::FrameHeader) <= file->size()) {
    format::FrameHeader header;
    std::memcpy(&header, file->data() + at, sizeof(header));
    if (header.magic != format::kFrameMagic ||
        header.kind == static_cast<std::uint16_t>(format::FrameKind::kFooter))
      break;
    const std::uint64_t space = (std::uint64_t{header.body_bytes} + 7) / 8 * 8;
    if (space > file->size() - at - sizeof(header)) break;
    format::FrameBuffer buffer;
    buffer.Reset(sequence, at);
    buffer.Begin(static_cast<format::FrameKind>(header.kind), header.ordinal, header.flags);
    buffer.Put(file->data() + at + sizeof(header), header.body_bytes);
    buffer.End();
    std::memcpy(file->data() + at, buffer.bytes().data(), sizeof(header));
    at += sizeof(header) + space;
  }
  file->resize(static_cast<std::size_t>(at));
}

/// Patches the file header and the footer, then recomputes all their checksums.
void PatchFooter(Bytes* file, std::span<const std::byte> patches) {
  query::testing::Forged forged(*file);
  if (forged.bytes().size() < format::kFileHeaderBytes + sizeof(format::FileTail) ||
      forged.tail().magic != format::kTailMagic)
    return;
  const std::size_t head = sizeof(format::FileHeader);
  for (std::size_t at = 0; at + 3 <= patches.size(); at += 3) {
    std::uint16_t place = 0;
    std::memcpy(&place, &patches[at], sizeof(place));
    const std::size_t to = place % (head + forged.body().size());
    (to < head ? forged.bytes()[to] : forged.body()[to - head]) = patches[at + 2];
  }
  forged.Seal();
  file->assign(forged.bytes().begin(), forged.bytes().end());
}

/// Makes a live page that readers of this run on this machine accept: only the writer's process and its
/// positions come from the input.
void SealLivePage(const Bytes& segment, Bytes* file) {
  using format::LivePage;
  const auto put = [&](std::size_t offset, const auto& value) {
    std::memcpy(file->data() + offset, &value, sizeof(value));
  };
  const HostIdentity here = ThisHost();
  put(offsetof(LivePage, magic), format::kLiveMagic);
  put(offsetof(LivePage, layout), format::kLiveLayout);
  put(offsetof(LivePage, worker), std::uint32_t{0});
  put(offsetof(LivePage, host), here.host);
  put(offsetof(LivePage, boot), here.boot);
  std::memcpy(file->data() + offsetof(LivePage, run_id),
              segment.data() + offsetof(format::FileHeader, run_id), sizeof(LivePage::run_id));
  put(offsetof(LivePage, checksum), HashBytes(file->data(), offsetof(LivePage, checksum)));
  put(format::kLiveNewsOffset + offsetof(format::LiveNews, checksum),
      HashBytes(file->data() + format::kLiveNewsOffset, offsetof(format::LiveNews, checksum)));
}

void SealChunks(Bytes* file) {
  for (std::size_t at = format::kFileHeaderBytes; at + sizeof(format::ChunkHeader) <= file->size();
       at += format::kChunkAlign) {
    format::ChunkHeader header;
    std::memcpy(&header, file->data() + at, sizeof(header));
    if (header.magic != format::kChunkMagic || header.stored_bytes > file->size() - at - sizeof(header))
      continue;
    const auto stored = std::span(*file).subspan(at + sizeof(header), header.stored_bytes);
    const bool raw = header.codec == static_cast<std::uint8_t>(format::Codec::kRaw);
    if (raw) header.content_hash = HashBytes(stored.data(), stored.size());
    const std::uint64_t seed = raw ? 0 : HashBytes(stored.data(), stored.size());
    header.checksum = XXH3_64bits_withSeed(&header, offsetof(format::ChunkHeader, checksum), seed);
    std::memcpy(file->data() + at, &header, sizeof(header));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const Golden& golden = Golden::Get();
  const auto rest = std::as_bytes(std::span(data, size)).subspan(2);
  const std::size_t which = data[1] % kMetaFiles;
  fs::path path = golden.MetaPath(which);
  const Bytes* original = &golden.meta[which];
  Bytes file = *original;
  bool live = false;
  switch (data[0] % 6) {
    case 0: file.assign(rest.begin(), rest.end()); break;
    case 1:  // patched anywhere, the footer included
      Patch(&file, rest);
      break;
    case 2:  // a segment without footer
      Patch(&file, rest);
      std::memcpy(file.data(), original->data(), format::kFileHeaderBytes);
      SealFrames(&file, which + 1);
      break;
    case 3:
      path = golden.DataPath();
      original = &golden.data;
      file = *original;
      Patch(&file, rest);
      SealChunks(&file);
      break;
    case 4: PatchFooter(&file, rest); break;
    default: {
      path = golden.run / "w0000" / "live";
      original = nullptr;
      file = golden.live;
      std::memcpy(file.data(), rest.data(), std::min(rest.size(), file.size()));
      SealLivePage(golden.meta[0], &file);
      live = true;
      break;
    }
  }
  Write(path, file);
  query::OpenOptions options;
  options.use_live_page = live;
  AskEverything(golden.run.string(), options);
  (void)store::VerifyRun(golden.run.string()).ok();
  if (original != nullptr)
    Write(path, *original);
  else
    fs::remove(path);
  return 0;
}
