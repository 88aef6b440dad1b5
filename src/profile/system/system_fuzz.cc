// Parses text as each kind of kernel file; the first byte selects it.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "profile/system/cgroup_text.h"
#include "profile/system/machine_text.h"
#include "profile/system/process_text.h"

namespace {

using namespace luff::profile;  // NOLINT(google-build-using-namespace)

void Check(const Counted& value) {
  if (value && (*value < 0 || *value > std::int64_t{1} << 60U)) std::abort();
}

void Parse(unsigned kind, std::string_view text) {
  constexpr std::int64_t kTick = 10'000'000;
  switch (kind % 12) {
    case 0:
      for (const CoreTime& core : ParseStatUntrusted(text, kTick).cores) {
        Check(core.busy);
        Check(core.iowait);
        Check(core.steal);
      }
      break;
    case 1: Check(ParseMeminfoUntrusted(text).available); break;
    case 2: Check(ParseVmstatUntrusted(text).swapped_in); break;
    case 3: Check(ParsePressureUntrusted(text).some); break;
    case 4:
      for (const DiskCounts& disk : ParseDiskstatsUntrusted(text)) Check(disk.read_bytes);
      if (const auto disk = ParseDiskUntrusted("sda", text)) Check(disk->read_bytes);
      break;
    case 5:
      for (const NetCounts& net : ParseNetDevUntrusted(text)) Check(net.received);
      Check(ParseRetransmitsUntrusted(text));
      break;
    case 6: {
      const std::size_t half = text.size() / 2;
      const CgroupFolders found = FindCgroupsUntrusted(text.substr(0, half), text.substr(half));
      if (found.cpu.find("/../") != std::string::npos && text.find("..") == std::string_view::npos)
        std::abort();
      break;
    }
    case 7: Check(ParseCpuStatUntrusted(text).throttled_ns); break;
    case 8: Check(ParseCpuMaxUntrusted(text)); break;
    case 9: Check(ParseIoStatUntrusted(text).read); break;
    case 10:
      if (const auto stat = ParseProcessStatUntrusted(text, kTick)) Check(stat->cpu_ns);
      break;
    default:
      Check(ParseRunQueueUntrusted(text));
      Check(ParseAnonymousPagesUntrusted(text));
      Check(ParseProcessIoUntrusted(text).read);
      if (ParseChildrenUntrusted(text, 16).size() > 16) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  Parse(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
  return 0;
}
