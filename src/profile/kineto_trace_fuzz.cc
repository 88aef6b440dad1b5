// Traces are written by another program, into a run that others may have made: any bytes give a summary or an
// error, and times that are sound.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "luff/profile/device_trace.h"
#include "luff/profile/kineto_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff::profile;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto summary = SummariseTraceUntrusted(text); summary.ok()) {
    for (const OperatorTime& one : summary->operators) {
      if (!(one.self_s >= 0) || !(one.total_s >= 0)) std::abort();
    }
    if (!(summary->idle_host_s >= 0) || !(summary->device_busy_s >= 0)) std::abort();
  }
  if (const auto devices = DevicesOfTraceUntrusted(text); devices.ok()) {
    for (const double one :
         {devices->span_s, devices->idle_sync_s, devices->idle_launch_s, devices->exposed_s,
          devices->pinned.alone_s, devices->float32_s, devices->allocation_s}) {
      if (!(one >= 0)) std::abort();
    }
  }
  std::uint32_t track = 0;
  std::int64_t begin = 0;
  static_cast<void>(VisitTraceUntrusted(text, [&](const TraceEvent& event) {
    if (event.end_ns < event.begin_ns || event.begin_ns <= 0 || event.track < track) std::abort();
    if (event.track == track && event.begin_ns < begin) std::abort();
    track = event.track;
    begin = event.begin_ns;
  }));
  for (const TraceFile& file : ParseTracesUntrusted(text)) {
    if (file.file.find("..") == 0) std::abort();
  }
  return 0;
}
