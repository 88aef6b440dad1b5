#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "base/bounded_read.h"
#include "luff/base/env.h"
#include "luff/format/live.h"
#include "luff/store/reader.h"
#include "luff/store/verify.h"
#include "store/paths.h"
#include "store/reader_tail.h"

namespace luff::store {
namespace {

using format::FrameKind;

constexpr std::size_t kMaxDamage = 1000;
constexpr std::uint64_t kMaxZeros = 64ULL << 20;  // looked through at a time

class Verifier {
 public:
  Verifier(std::string run_path, const RunInfo& run, const VerifyOptions& options, VerifyReport* report)
      : root_(std::move(run_path)),
        run_(run),
        options_(options),
        report_(report) {}

  Status Worker(const WorkerReader& worker) {
    worker_ = &worker;
    checked_.clear();
    defined_.clear();
    for (const EpochTensorDef& def : worker.definitions())
      defined_.try_emplace({def.epoch, def.def.id}, &def.def.name);
    const std::uint64_t published = PublishedPosition(worker.folder());  // before the files: they only grow
    LUFF_ASSIGN_OR_RETURN(const auto names, Env::Real().List(worker.folder()));
    std::uint64_t newest = 0;
    for (const std::string& name : names) {
      if (const auto parsed = ParseStreamFileName(name); parsed && parsed->meta)
        newest = std::max(newest, parsed->sequence);
    }
    bool published_found = format::PositionSequence(published) == 0;
    for (const std::string& name : names) {
      const auto parsed = ParseStreamFileName(name);
      if (!parsed) continue;
      if (parsed->meta && parsed->sequence == format::PositionSequence(published)) published_found = true;
      const std::string path = worker.folder() + "/" + name;
      const auto file = MappedFile::Open(path);
      if (!file.ok()) {
        Tell(path, 0, std::string(file.status().message()));
        continue;
      }
      ++report_->files;
      report_->bytes += (*file)->bytes().size();
      if (parsed->meta) {
        Segment(path, (*file)->bytes(), parsed->sequence, parsed->sequence == newest);
        const std::uint64_t length = format::PositionLength(published);
        if (parsed->sequence == format::PositionSequence(published) && parsed->generation == 0 &&
            (*file)->bytes().size() < length) {
          Tell(path, (*file)->bytes().size(),
               "the file ends here, its writer had published " + std::to_string(length) +
                   " bytes; the steps behind it are lost");
        }
      } else if (worker.IsRetired(static_cast<std::uint32_t>(parsed->sequence))) {
        Note(path + ": retired by retention and not yet removed");
      } else {
        Payload(path, (*file)->bytes(), parsed->sequence);
      }
    }
    if (!published_found) {
      Tell(worker.folder() + "/" + MetaFileName(format::PositionSequence(published)), 0,
           "the file is missing, its writer had published " +
               std::to_string(format::PositionLength(published)) + " bytes; its steps are lost");
    }
    for (const auto& segment : worker.segments()) References(worker, *segment);
    if (not_decoded_ > 0) {
      Note(worker.folder() + ": " + std::to_string(not_decoded_) +
           " values of one repeated number were checked as they are stored, not decoded: all of them stand "
           "for "
           "more than " +
           std::to_string(options_.max_bytes) + " bytes; --max-bytes raises this");
      not_decoded_ = 0;
    }
    return Status::Ok();
  }

 private:
  /// What the live page says was published; 0 without a page that is whole (a copy of a run may have none).
  static std::uint64_t PublishedPosition(const std::string& folder) {
    const auto text = ReadRegular(folder + "/live", 1 << 16, kNamesInRun);
    if (!text.ok()) return 0;
    const std::span<const std::byte> bytes = std::as_bytes(std::span(*text));
    if (!format::IsLivePageUntrusted(bytes)) return 0;
    const auto news = format::ParseLiveNewsUntrusted(bytes.subspan(format::kLiveNewsOffset));
    return news ? news->meta_position : 0;
  }

  /// A tensor as its user knows it.
  [[nodiscard]] std::string NameOf(std::uint32_t epoch, std::uint32_t tensor) const {
    const auto at = defined_.find({epoch, tensor});
    return at == defined_.end() ? "tensor " + std::to_string(tensor) : "\"" + *at->second + "\"";
  }

  void Tell(const std::string& path, std::uint64_t offset, std::string what) {
    ++report_->damage_count;
    const bool below = path.size() > root_.size() && path.starts_with(root_);
    if (report_->damage.size() < kMaxDamage) {
      report_->damage.push_back({below ? path.substr(root_.size() + 1) : path, offset, std::move(what)});
    }
  }
  void Note(std::string text) {
    if (report_->notes.size() < kMaxDamage) report_->notes.push_back(std::move(text));
  }

  /// Every frame and, when there is one, all of the footer.
  void Segment(const std::string& path, std::span<const std::byte> file, std::uint64_t sequence,
               bool newest) {
    if (const auto header = format::ParseFileHeaderUntrusted(file, format::kMetaMagic); !header.ok()) {
      if (newest && file.size() < format::kFileHeaderBytes) return Note(path + ": begun, nothing in it yet");
      return Tell(path, 0, std::string(header.status().message()) + "; the steps of this segment are lost");
    } else if (const Status status = CheckOwner(*header, run_, worker_->worker()); !status.ok()) {
      return Tell(path, 0, std::string(status.message()) + "; its steps are not shown");
    }
    const auto footer = format::FooterView::ParseUntrusted(file, sequence);
    if (!footer.ok() && footer.status().code() != StatusCode::kNotFound) {
      Tell(path, file.size() - sizeof(format::FileTail),
           std::string(footer.status().message()) + "; nothing is lost as long as its frames are good");
    }
    const std::uint64_t end = footer.ok() ? footer->offset() : file.size();
    const auto rows = file.first(static_cast<std::size_t>(end));
    std::uint64_t at = format::kFileHeaderBytes;
    std::uint32_t in_step = 0;
    std::uint64_t ordinal = 0;
    format::FrameView frame;
    while (at < end) {
      const auto outcome = format::ParseFrameUntrusted(rows, at, sequence, &frame);
      if (outcome != format::FrameOutcome::kFrame) {
        const std::uint64_t left = end - at;
        const auto rest = rows.subspan(static_cast<std::size_t>(at));
        const auto near =
            rest.first(static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), kMaxZeros)));
        const bool zeros =
            std::all_of(near.begin(), near.end(), [](std::byte b) { return b == std::byte{0}; });
        if (!footer.ok() && (zeros || outcome == format::FrameOutcome::kIncomplete)) {
          Note(path + ": ends in the middle of a step at byte " + std::to_string(at) +
               ", which was never published");
        } else {
          Tell(path, at,
               "damaged frame; " +
                   (footer.ok() ? std::string("histograms, events and documents of up to ")
                                : std::string("all steps in the last ")) +
                   std::to_string(left) + " bytes are lost");
        }
        break;
      }
      ++report_->frames;
      Body(path, frame);
      if (frame.kind == FrameKind::kStep) {
        const auto mark = format::ParseStepMarkUntrusted(frame.body);
        if (!mark.ok())
          Tell(path, at, "step mark: " + std::string(mark.status().message()) + "; the step is lost");
        else if (frame.ordinal != ordinal || mark->frames != in_step) {
          if (in_step != 0 || mark->frames != 0)
            Tell(path, at,
                 "found " + std::to_string(in_step) + " frames, expected the " +
                     std::to_string(mark->frames) + " that the step mark counts; rows of global step " +
                     std::to_string(mark->global_step) + " are lost");
        }
        in_step = 0;
      } else if (frame.ordinal != format::kLooseOrdinal && frame.kind != FrameKind::kFooter) {
        in_step = frame.ordinal == ordinal || in_step == 0 ? in_step + 1 : 1;
        ordinal = frame.ordinal;
      }
      at = frame.next_offset;
    }
    if (footer.ok()) Footer(path, *footer);
  }

  void Body(const std::string& path, const format::FrameView& frame) {
    Status status;
    switch (frame.kind) {
      case FrameKind::kTensorDefs: status = format::ParseTensorDefsUntrusted(frame.body).status(); break;
      case FrameKind::kLayoutDefs: status = format::ParseLayoutDefsUntrusted(frame.body).status(); break;
      case FrameKind::kDocument: status = format::ParseDocumentUntrusted(frame.body).status(); break;
      case FrameKind::kSummaryRows: status = format::ParseSummaryRowsUntrusted(frame.body).status(); break;
      case FrameKind::kIndexRows: status = format::ParseIndexRowsUntrusted(frame.body).status(); break;
      case FrameKind::kFormRows: status = format::ParseFormRowsUntrusted(frame.body).status(); break;
      case FrameKind::kScalarRows: status = format::ParseScalarRowsUntrusted(frame.body).status(); break;
      case FrameKind::kEventRows: status = format::ParseEventRowsUntrusted(frame.body).status(); break;
      case FrameKind::kGapRows: status = format::ParseGapRowsUntrusted(frame.body).status(); break;
      case FrameKind::kAck: status = format::ParseAckRowsUntrusted(frame.body).status(); break;
      case FrameKind::kRelocate: status = format::ParseRelocateRowsUntrusted(frame.body).status(); break;
      case FrameKind::kRetire: status = format::ParseRetireRowsUntrusted(frame.body).status(); break;
      case FrameKind::kEnd: status = format::ParseEndMarkUntrusted(frame.body).status(); break;
      case FrameKind::kHistogramRows: {
        const auto entries = format::ParseHistogramsUntrusted(frame.body);
        status = entries.status();
        SparseHistogram histogram;
        for (std::size_t i = 0; entries.ok() && status.ok() && i < entries->size(); ++i) {
          status = format::DecodeHistogramUntrusted((*entries)[i], &histogram);
        }
        break;
      }
      case FrameKind::kUnitRows: {
        const auto entries = format::ParseUnitsUntrusted(frame.body);
        status = entries.status();
        UnitCounts units;
        for (std::size_t i = 0; entries.ok() && status.ok() && i < entries->size(); ++i) {
          status = format::DecodeUnitsUntrusted((*entries)[i], &units);
        }
        break;
      }
      default: break;
    }
    if (!status.ok())
      Tell(path, frame.offset, std::string(status.message()) + "; the rows of this frame are lost");
  }

  void Footer(const std::string& path, const format::FooterView& footer) {
    ++report_->footers;
    const auto check = [&](const auto& result, const char* lost) {
      if (!result.ok())
        Tell(path, footer.offset(), std::string(result.status().message()) + "; lost: " + lost);
    };
    check(footer.TensorDefsUntrusted(), "names of tensors");
    check(footer.LayoutDefsUntrusted(), "shapes");
    check(footer.FramesUntrusted(), "histograms, events, gaps and documents");
    for (const format::TensorEntry& entry : footer.tensors()) {
      const std::string tensor = " of tensor " + std::to_string(entry.tensor);
      check(footer.SummariesUntrusted(entry, true), ("summaries" + tensor).c_str());
      check(footer.ScalarsUntrusted(entry, true), ("scalars" + tensor).c_str());
      check(footer.IndexUntrusted(entry, true), ("values" + tensor).c_str());
      check(footer.FormsUntrusted(entry, true), ("forms" + tensor).c_str());
    }
  }

  /// Every chunk.
  void Payload(const std::string& path, std::span<const std::byte> file, std::uint64_t sequence) {
    const auto header = format::ParseFileHeaderUntrusted(file, format::kDataMagic);
    if (!header.ok()) {
      if (file.size() < format::kFileHeaderBytes) return Note(path + ": begun, nothing in it yet");
      Tell(path, 0, std::string(header.status().message()) + "; its values may still be readable");
    } else if (header->sequence != sequence) {
      Tell(path, 0, "found a payload file under another number");
    } else if (const Status status = CheckOwner(*header, run_, worker_->worker()); !status.ok()) {
      Tell(path, 0, std::string(status.message()) + "; its values are shown where a row has their hash");
    }
    std::uint64_t at = format::kFileHeaderBytes;
    for (;;) {
      // The writer leaves less than a page of zeros; a file may claim any number of them.
      const auto near =
          file.first(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), at + kMaxZeros)));
      const auto next = format::NextChunkOffsetUntrusted(near, at);
      if (!next.ok()) {
        if (near.size() < file.size())
          Note(path + ": nothing but zeros from byte " + std::to_string(at) +
               " on; chunks behind them are checked by their rows only");
        return;
      }
      at = *next;
      const auto chunk = format::ParseChunkUntrusted(file, at);
      if (!chunk.ok()) {
        if (chunk.status().code() == StatusCode::kOutOfRange)
          return;  // torn; rows that point here are told of below
        Tell(path, at,
             std::string(chunk.status().message()) + "; chunks behind it are checked by their rows only");
        return;
      }
      ++report_->chunks;
      if (const Status status = format::VerifyChunkUntrusted(*chunk); !status.ok()) {
        Tell(path, at,
             std::string(status.message()) + "; lost: a value of " +
                 NameOf(header.ok() ? header->epoch : 1, chunk->header.tensor));
      }
      at += format::ChunkSpace(chunk->header.stored_bytes);
    }
  }

  /// Each chunk once, however many rows name it: any number of them may name one that stands for 64 MiB.
  Status Chunk(const WorkerReader& worker, const format::IndexRow& row, const Place& place) {
    const auto key = std::tuple(place.data_file, place.offset, row.content_hash, row.raw_bytes,
                                row.stored_bytes, row.codec);
    const auto [at, fresh] = checked_.try_emplace(key);
    if (!fresh) return at->second;
    bool decode = true;
    if (row.codec == static_cast<std::uint8_t>(format::Codec::kConstant)) {
      decode = row.raw_bytes <= options_.max_bytes - std::min(decoded_, options_.max_bytes);
      (decode ? decoded_ : not_decoded_) += decode ? row.raw_bytes : 1;
    }
    at->second = worker.CheckChunk(row, decode);
    return at->second;
  }

  /// Every row that names a tensor, a layout or a place in a payload file.
  void References(const WorkerReader& worker, const SegmentReader& segment) {
    const std::uint32_t epoch = segment.header().epoch;
    std::uint64_t retired = 0;
    for (std::size_t slot = 0; slot < segment.slot_count(); ++slot) {
      const std::uint32_t tensor = segment.slot_tensor(slot);
      if (!defined_.contains({epoch, tensor})) {
        Tell(segment.path(), 0,
             "rows of tensor " + std::to_string(tensor) + ", which is not defined; they are lost");
      }
      const auto index = segment.Index(slot);
      if (!index.ok()) continue;  // told of by Footer
      for (std::size_t i = 0; i < index->rows.size(); ++i) {
        const format::IndexRow& row = index->rows[i];
        ++report_->rows;
        const auto value = [&] {
          return "value of " + NameOf(epoch, tensor) + " at global step " +
                 std::to_string(segment.steps().global_step[index->step[i]]);
        };
        if (worker.FindLayout(epoch, row.layout) == nullptr) {
          Tell(segment.path(), 0,
               value() + " has layout " + std::to_string(row.layout) + ", which is not defined; it is lost");
          continue;
        }
        const auto place = worker.Locate(row);
        if (!place.ok()) {
          if (place.status().code() == StatusCode::kOutOfRange)
            ++retired;
          else
            Tell(segment.path(), 0, value() + ": " + std::string(place.status().message()));
          continue;
        }
        if (const Status read = Chunk(worker, row, *place); !read.ok()) {
          Tell(worker.DataPath(place->data_file), place->offset,
               "lost: " + value() + ": " + std::string(read.message()));
        }
      }
    }
    if (retired > 0)
      Note(segment.path() + ": " + std::to_string(retired) + " values were deleted by retention");
  }

  std::string root_;
  const RunInfo& run_;
  const VerifyOptions options_;
  VerifyReport* report_;
  const WorkerReader* worker_ = nullptr;
  std::map<std::pair<std::uint32_t, std::uint32_t>, const std::string*> defined_;  // epoch and id: name
  // Of the chunks of a worker: file, offset, and what its row says.
  std::map<
      std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint8_t>,
      Status>
      checked_;
  std::uint64_t decoded_ = 0, not_decoded_ = 0;  // bytes; values
};

}  // namespace

Result<VerifyReport> VerifyRun(const std::string& run_path, const VerifyOptions& verify) {
  ReaderOptions options;
  options.use_live_page = false;
  LUFF_ASSIGN_OR_RETURN(const auto run, RunReader::Open(run_path, options));
  VerifyReport report;
  Verifier verifier(run_path, run->info(), verify, &report);
  for (const auto& worker : run->workers()) LUFF_RETURN_IF_ERROR(verifier.Worker(*worker));
  return report;
}

}  // namespace luff::store
