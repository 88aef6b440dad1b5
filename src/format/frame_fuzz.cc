// Parses bodies of every kind (the first byte selects it, the rest is the body), and frames.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "luff/format/frames.h"
#include "luff/format/samples.h"

namespace {

using namespace luff;          // NOLINT(google-build-using-namespace)
using namespace luff::format;  // NOLINT(google-build-using-namespace)

/// Reads every byte of what was parsed, so that the sanitizers check it.
template <typename T>
std::uint64_t Sum(std::span<const T> rows) {
  return HashBytes(std::as_bytes(rows));
}

std::uint64_t ParseBody(unsigned kind, std::span<const std::byte> body) {
  std::uint64_t sum = 0;
  const auto rows = [&](const auto& result) {
    if (result.ok()) sum += Sum(*result);
  };
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kTensorDefs:
      if (const auto defs = ParseTensorDefsUntrusted(body); defs.ok()) {
        for (const auto& def : *defs) sum += def.name.size() + def.collections.size() + Sum(def.collections);
      }
      break;
    case FrameKind::kLayoutDefs:
      if (const auto defs = ParseLayoutDefsUntrusted(body); defs.ok()) {
        for (const auto& def : *defs)
          sum += def.layout.byte_count() + Sum(def.global_shape) + Sum(def.global_offset);
      }
      break;
    case FrameKind::kDocument:
      if (const auto document = ParseDocumentUntrusted(body); document.ok()) sum += document->json.size();
      break;
    case FrameKind::kHistogramRows:
      if (const auto views = ParseHistogramsUntrusted(body); views.ok()) {
        SparseHistogram bins;
        for (const auto& view : *views) {
          if (DecodeHistogramUntrusted(view, &bins).ok()) sum += bins.size();
        }
      }
      break;
    case FrameKind::kUnitRows:
      if (const auto views = ParseUnitsUntrusted(body); views.ok()) {
        UnitCounts units;
        for (const auto& view : *views) {
          if (DecodeUnitsUntrusted(view, &units).ok()) sum += units.positive.size();
        }
      }
      break;
    case FrameKind::kSummaryRows: rows(ParseSummaryRowsUntrusted(body)); break;
    case FrameKind::kIndexRows: rows(ParseIndexRowsUntrusted(body)); break;
    case FrameKind::kFormRows: rows(ParseFormRowsUntrusted(body)); break;
    case FrameKind::kScalarRows: rows(ParseScalarRowsUntrusted(body)); break;
    case FrameKind::kEventRows: rows(ParseEventRowsUntrusted(body)); break;
    case FrameKind::kPhases:
      if (const auto phases = ParsePhasesUntrusted(body); phases.ok()) {
        std::int64_t left = phases->head.wall_ns;
        for (const PhaseRow& row : phases->rows) left -= row.clock == 0 ? row.duration_ns : 0;
        if (left != 0) std::abort();
        sum += phases->rows.size();
      }
      break;
    case FrameKind::kModuleTimes:
      if (const auto times = ParseModuleTimesUntrusted(body); times.ok()) {
        for (const ModuleTimeRow& row : times->rows) {
          if (row.forward_self_ns < 0 || row.backward_self_ns < -1) std::abort();
          sum += row.module;
        }
      }
      break;
    case FrameKind::kSeriesDefs:
      if (const auto defs = ParseSeriesDefsUntrusted(body); defs.ok()) {
        for (const auto& def : *defs) sum += HashBytes(std::as_bytes(std::span(def.name)));
      }
      break;
    case FrameKind::kSamples:
      if (const auto block = ParseSamplesUntrusted(body); block.ok()) {
        for (const SampledSeries& series : block->series) {
          if (series.values.size() != block->mono_ns.size()) std::abort();
          sum += series.values.size() + series.maxima.size();
        }
      }
      break;
    case FrameKind::kGapRows: rows(ParseGapRowsUntrusted(body)); break;
    case FrameKind::kAck: rows(ParseAckRowsUntrusted(body)); break;
    case FrameKind::kRelocate: rows(ParseRelocateRowsUntrusted(body)); break;
    case FrameKind::kRetire: rows(ParseRetireRowsUntrusted(body)); break;
    case FrameKind::kStep: sum += ParseStepMarkUntrusted(body).ok(); break;
    case FrameKind::kEnd: sum += ParseEndMarkUntrusted(body).ok(); break;
    case FrameKind::kHeartbeat: sum += ParseHeartbeatUntrusted(body).ok(); break;
    default: break;
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::uint64_t> words((size + 6) / 8 + 1);
  std::memcpy(words.data(), data + 1, size - 1);
  const auto bytes = std::as_bytes(std::span(words)).first(size - 1);
  volatile std::uint64_t sink = ParseBody(data[0], bytes);
  // Parses the same bytes as frames of a file: from its beginning, and from where a real file's frames begin.
  for (std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{kFileHeaderBytes}}) {
    FrameView view;
    while (ParseFrameUntrusted(bytes, offset, 1, &view) == FrameOutcome::kFrame) {
      sink = sink + ParseBody(static_cast<unsigned>(view.kind), view.body);
      offset = view.next_offset;
    }
  }
  (void)ParseFileHeaderUntrusted(bytes, kMetaMagic).ok();
  return 0;
}
