// Parses event files and index files. Records are parsed as they are, then with a correct checksum of their
// length, so that the fuzzer reaches the bounds checks.
#include <cstring>
#include <vector>

#include "luff/format/event_file.h"
#include "luff/format/smdebug.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff;          // NOLINT(google-build-using-namespace)
  using namespace luff::format;  // NOLINT(google-build-using-namespace)
  SmdebugIndex index;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (ParseSmdebugIndexUntrusted(text, &index).ok()) {
    // A parsed index can be formatted and parsed again.
    const std::string again = FormatSmdebugIndex(index);
    SmdebugIndex second;
    if (!ParseSmdebugIndexUntrusted(again, &second).ok() || second.tensors.size() != index.tensors.size())
      std::abort();
  }
  std::vector<std::byte> file(size);
  if (size != 0) std::memcpy(file.data(), data, size);
  (void)ParseEventUntrusted(file).ok();
  for (const bool repaired : {false, true}) {
    std::uint64_t offset = 0;
    for (int i = 0; i < 64; ++i) {
      if (repaired && file.size() - offset >= kRecordOverhead) {
        std::uint64_t length = 0;
        std::memcpy(&length, file.data() + offset, sizeof(length));
        length %= file.size() - offset - kRecordOverhead + 1;
        std::memcpy(file.data() + offset, &length, sizeof(length));
        const std::uint32_t crc = MaskedCrc32c({file.data() + offset, 8});
        std::memcpy(file.data() + offset + 8, &crc, sizeof(crc));
        std::memcpy(file.data() + offset + 12 + length, &kSmdebugFooter, sizeof(kSmdebugFooter));
      }
      const auto record = ParseRecordUntrusted(file, offset);
      if (!record.ok()) break;
      (void)ParseEventUntrusted(record->payload).ok();
      offset += record->bytes;
    }
  }
  return 0;
}
