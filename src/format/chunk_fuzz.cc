// Walks over a payload file and parses its chunks: first as they are, then with correct checksums, so that
// the fuzzer reaches the bounds checks.
#include <cstring>
#include <vector>

#include "luff/format/chunk.h"
#include "luff/format/frames.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff;          // NOLINT(google-build-using-namespace)
  using namespace luff::format;  // NOLINT(google-build-using-namespace)
  std::vector<std::byte> file(size);
  if (size != 0) std::memcpy(file.data(), data, size);
  for (const bool repaired : {false, true}) {
    std::uint64_t offset = 0;
    for (int i = 0; i < 64; ++i) {
      const auto next = NextChunkOffsetUntrusted(file, offset);
      if (!next.ok()) break;
      offset = *next;
      if (repaired && file.size() - offset >= sizeof(ChunkHeader)) {
        ChunkHeader header;
        std::memcpy(&header, file.data() + offset, sizeof(header));
        header.magic = kChunkMagic;
        const std::uint64_t left = file.size() - offset - sizeof(header);
        const bool raw = header.codec == 0;
        std::uint64_t seed = 0;
        if (!raw && header.stored_bytes <= left) {
          seed = HashBytes(std::span(file).subspan(offset + sizeof(header), header.stored_bytes));
        }
        header.checksum =
            HashBytes(std::as_bytes(std::span(&header, 1)).first(offsetof(ChunkHeader, checksum)), seed);
        std::memcpy(file.data() + offset, &header, sizeof(header));
      }
      const auto chunk = ParseChunkUntrusted(file, offset);
      if (!chunk.ok()) break;
      if (chunk->header.raw_bytes <= (1U << 20)) {
        std::vector<std::byte> value(chunk->header.raw_bytes);
        (void)DecodeChunkUntrusted(*chunk, value).ok();
      }
      (void)VerifyChunkUntrusted(*chunk).ok();
      offset += ChunkSpace(chunk->header.stored_bytes);
    }
  }
  return 0;
}
