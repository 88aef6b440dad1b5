// What a run says of its log: times ascend, lines hold nothing that controls who shows them.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/job_log.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  luff::server::LogMark last;
  for (const luff::server::LogMark& mark : luff::server::ParseLogTimesUntrusted(text)) {
    if (mark.unix_ns < last.unix_ns || mark.size[0] < last.size[0] || mark.size[1] < last.size[1]) abort();
    last = mark;
  }
  (void)luff::server::ParseLogDroppedUntrusted(text);
  for (const char c : luff::server::PlainLine(text)) {
    if ((static_cast<unsigned char>(c) < 0x20) || c == 0x7f) abort();
  }
  return 0;
}
