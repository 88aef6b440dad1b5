#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "base/bounded_read.h"
#include "luff/base/bytes.h"
#include "luff/base/env.h"
#include "luff/format/live.h"
#include "luff/store/reader.h"
#include "luff/store/verify.h"
#include "store/file_window.h"
#include "store/paths.h"
#include "store/reader_tail.h"

namespace luff::store {
namespace {

using format::FrameKind;

constexpr std::size_t kMaxDamage = 1000;
constexpr std::uint64_t kMaxZeros = 64ULL << 20;  // how far a scan looks for the end of zeros

/// Reads sections of a footer.
class SectionReader {
 public:
  explicit SectionReader(ReaderFile* file) : file_(file) {}
  /// The bytes live as long as this reader.
  [[nodiscard]] Result<std::span<const std::byte>> ReadToKeep(std::uint64_t offset, std::uint64_t bytes) {
    kept_.push_back(AllocateForReading(bytes));
    return Read(kept_.back(), offset, bytes);
  }
  /// The bytes live until the next call.
  [[nodiscard]] Result<std::span<const std::byte>> ReadInPassing(std::uint64_t offset, std::uint64_t bytes) {
    if (passing_ == nullptr || bytes > passing_bytes_) passing_ = AllocateForReading(passing_bytes_ = bytes);
    return Read(passing_, offset, bytes);
  }

 private:
  [[nodiscard]] Result<std::span<const std::byte>> Read(const std::shared_ptr<std::byte>& memory,
                                                        std::uint64_t offset, std::uint64_t bytes) {
    if (memory == nullptr)
      return ResourceExhausted("no memory for " + std::to_string(bytes) + " bytes of a footer");
    const std::span<std::byte> to(memory.get(), static_cast<std::size_t>(bytes));
    LUFF_RETURN_IF_ERROR(file_->ReadAllAt(to, offset));
    return std::span<const std::byte>(to);
  }
  ReaderFile* file_;
  std::vector<std::shared_ptr<std::byte>> kept_;
  std::shared_ptr<std::byte> passing_;
  std::uint64_t passing_bytes_ = 0;
};

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
    // Read before the files, which only grow.
    const std::uint64_t published = PublishedPosition(worker.folder());
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
      ReaderFile file(parsed->meta ? ReaderFile::Kind::kSegment : ReaderFile::Kind::kPayload, path);
      const auto bytes = file.Reopen();
      if (!bytes.ok()) {
        Tell(path, 0, std::string(bytes.status().message()));
        continue;
      }
      ++report_->files;
      report_->bytes += *bytes;
      FileWindow window(&file, *bytes);
      if (parsed->meta) {
        Segment(path, window, parsed->sequence, parsed->sequence == newest);
        const std::uint64_t length = format::PositionLength(published);
        if (parsed->sequence == format::PositionSequence(published) && parsed->generation == 0 &&
            *bytes < length) {
          Tell(path, *bytes,
               "the file ends here, its writer had published " + std::to_string(length) +
                   " bytes; the steps behind it are lost");
        }
      } else if (worker.IsRetired(static_cast<std::uint32_t>(parsed->sequence))) {
        Note(path + ": retired by retention and not yet removed");
      } else if (options_.values) {
        const Status there = worker.Fetch(static_cast<std::uint32_t>(parsed->sequence), 0, *bytes);
        if (there.ok()) {
          Payload(path, window, parsed->sequence);
        } else {
          Note(path + ": " + std::string(there.message()));
        }
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
  /// The published position according to the live page; 0 if there is no intact page (a copy of a run may
  /// have none).
  static std::uint64_t PublishedPosition(const std::string& folder) {
    const auto text = ReadRegular(folder + "/live", 1 << 16, kNamesInRun);
    if (!text.ok()) return 0;
    const std::span<const std::byte> bytes = std::as_bytes(std::span(*text));
    if (!format::IsLivePageUntrusted(bytes)) return 0;
    const auto news = format::ParseLiveNewsUntrusted(bytes.subspan(format::kLiveNewsOffset));
    return news ? news->meta_position : 0;
  }

  /// The tensor's quoted name, or "tensor ID" if it is not defined.
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

  /// Returns true if the file has a header of this worker; otherwise reports what is wrong.
  bool Header(const std::string& path, FileWindow& window, bool newest) {
    const auto begin = window.At(0, sizeof(format::FileHeader));
    if (!begin.ok()) return Tell(path, 0, std::string(begin.status().message())), false;
    const auto header = format::ParseFileHeaderUntrusted(*begin, format::kMetaMagic);
    if (!header.ok() && newest && window.file_bytes() < format::kFileHeaderBytes)
      return Note(path + ": begun, nothing in it yet"), false;
    if (!header.ok())
      return Tell(path, 0, std::string(header.status().message()) + "; the steps of this segment are lost"),
             false;
    if (const Status status = CheckOwner(*header, run_, worker_->worker()); !status.ok())
      return Tell(path, 0, std::string(status.message()) + "; its steps are not shown"), false;
    return true;
  }

  /// Parses the frame at `at`, without looking at bytes from `end` on.
  static Result<format::FrameOutcome> FrameAt(FileWindow& window, std::uint64_t at, std::uint64_t end,
                                              std::uint64_t sequence, format::FrameView* frame) {
    std::uint64_t wanted = sizeof(format::FrameHeader);
    for (;;) {
      LUFF_ASSIGN_OR_RETURN(auto bytes, window.At(at, wanted));
      bytes = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), end - at)));
      const auto outcome = format::ParseFrameInWindowUntrusted(bytes, at, at, sequence, frame);
      if (outcome != format::FrameOutcome::kIncomplete || bytes.size() < wanted) return outcome;
      format::FrameHeader header;
      // Its size is valid, since the frame is only incomplete.
      std::memcpy(&header, bytes.data(), sizeof(header));
      wanted = sizeof(header) + AlignUp(header.body_bytes, format::kFrameAlign);
    }
  }

  /// Returns true if there are only zeros from `at` to `end`, looking at most kMaxZeros bytes ahead.
  static bool IsZeros(FileWindow& window, std::uint64_t at, std::uint64_t end) {
    for (const std::uint64_t until = std::min(end, at + kMaxZeros); at < until;) {
      const auto bytes = window.At(at, 1);
      if (!bytes.ok() || bytes->empty()) return false;
      const auto part =
          bytes->first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes->size(), until - at)));
      if (!std::all_of(part.begin(), part.end(), [](std::byte b) { return b == std::byte{0}; })) return false;
      at += part.size();
    }
    return true;
  }

  /// Checks every frame, and the whole footer if there is one.
  void Segment(const std::string& path, FileWindow& window, std::uint64_t sequence, bool newest) {
    if (!Header(path, window, newest)) return;
    SectionReader sections(&window.file());
    const auto keep = [&](std::uint64_t offset, std::uint64_t bytes) {
      return sections.ReadToKeep(offset, bytes);
    };
    auto footer = format::FooterDirectory::ReadUntrusted(window.file_bytes(), sequence, keep);
    std::span<const format::TensorEntry> tensors;
    if (footer.ok()) {
      const auto read = footer->ReadTensorsUntrusted(keep);
      if (read.ok())
        tensors = *read;
      else
        footer = read.status();
    }
    if (!footer.ok() && footer.status().code() != StatusCode::kNotFound) {
      Tell(path, window.file_bytes() - sizeof(format::FileTail),
           std::string(footer.status().message()) + "; nothing is lost as long as its frames are good");
    }
    const std::uint64_t end = footer.ok() ? footer->offset() : window.file_bytes();
    std::uint64_t at = format::kFileHeaderBytes;
    std::uint32_t in_step = 0;
    std::uint64_t ordinal = 0;
    format::FrameView frame;
    while (at < end) {
      const auto outcome = FrameAt(window, at, end, sequence, &frame);
      if (!outcome.ok()) return Tell(path, at, std::string(outcome.status().message()));
      if (*outcome != format::FrameOutcome::kFrame) {
        const std::uint64_t left = end - at;
        if (!footer.ok() && (*outcome == format::FrameOutcome::kIncomplete || IsZeros(window, at, end))) {
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
    if (footer.ok()) Footer(path, *footer, tensors, sections);
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
      case FrameKind::kModuleTimes: status = format::ParseModuleTimesUntrusted(frame.body).status(); break;
      case FrameKind::kPhases: status = format::ParsePhasesUntrusted(frame.body).status(); break;
      case FrameKind::kSeriesDefs: status = format::ParseSeriesDefsUntrusted(frame.body).status(); break;
      case FrameKind::kSamples: status = format::ParseSamplesUntrusted(frame.body).status(); break;
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

  void Footer(const std::string& path, const format::FooterDirectory& footer,
              std::span<const format::TensorEntry> tensors, SectionReader& sections) {
    ++report_->footers;
    const auto check = [&](const format::FooterSection& section, const auto& parse, const std::string& lost) {
      const auto place = footer.PlaceOf(section);
      const auto bytes = place.ok() ? sections.ReadInPassing(*place, section.bytes) : place.status();
      const Status status = bytes.ok() ? parse(*bytes).status() : bytes.status();
      if (!status.ok()) Tell(path, footer.offset(), std::string(status.message()) + "; lost: " + lost);
    };
    using Bytes = std::span<const std::byte>;
    using format::FooterDirectory;
    check(footer.head().defs, [&](Bytes b) { return footer.TensorDefsUntrusted(b); }, "names of tensors");
    check(footer.head().layouts, [&](Bytes b) { return footer.LayoutDefsUntrusted(b); }, "shapes");
    check(
        footer.head().frames, [&](Bytes b) { return footer.FramesUntrusted(b, true); },
        "histograms, events, gaps and documents");
    for (const format::TensorEntry& entry : tensors) {
      const std::string tensor = " of tensor " + std::to_string(entry.tensor);
      check(
          FooterDirectory::SummarySection(entry),
          [&](Bytes b) { return footer.SummariesUntrusted(entry, b, true); }, "summaries" + tensor);
      check(
          FooterDirectory::ScalarSection(entry),
          [&](Bytes b) { return footer.ScalarsUntrusted(entry, b, true); }, "scalars" + tensor);
      check(
          FooterDirectory::IndexSection(entry),
          [&](Bytes b) { return footer.IndexUntrusted(entry, b, true); }, "values" + tensor);
      check(
          FooterDirectory::FormSection(entry), [&](Bytes b) { return footer.FormsUntrusted(entry, b, true); },
          "forms" + tensor);
    }
  }

  /// Returns the offset of the next chunk at or after `at`. kOutOfRange if there is none, or only zeros for
  /// kMaxZeros bytes.
  static Result<std::uint64_t> NextChunk(FileWindow& window, std::uint64_t at) {
    // The writer leaves less than a page of zeros; a hostile file may hold any number of them.
    for (const std::uint64_t until = at + kMaxZeros; at < window.file_bytes() && at < until;) {
      const std::uint64_t page = at / format::kPageBytes * format::kPageBytes;
      LUFF_ASSIGN_OR_RETURN(const auto bytes,
                            window.At(page, std::max<std::uint64_t>(at - page + sizeof(format::ChunkHeader),
                                                                    format::kPageBytes)));
      // Searches whole pages, so that the next search begins at a page boundary.
      const std::uint64_t whole =
          bytes.size() < format::kPageBytes || page + bytes.size() == window.file_bytes()
              ? bytes.size()
              : bytes.size() / format::kPageBytes * format::kPageBytes;
      const auto next =
          format::NextChunkOffsetUntrusted(bytes.first(static_cast<std::size_t>(whole)), at - page);
      if (next.ok()) return page + *next;
      at = page + whole;
    }
    return OutOfRange("no more chunks, from byte " + std::to_string(at));
  }

  /// Verifies that a chunk is as it was written.
  static Status WholeChunk(FileWindow& window, std::uint64_t at, const format::ChunkHeader& header) {
    const std::uint64_t space = sizeof(header) + header.stored_bytes;
    if (space <= FileWindow::kBytes) {
      LUFF_ASSIGN_OR_RETURN(const auto bytes, window.At(at, space));
      LUFF_ASSIGN_OR_RETURN(const auto chunk, format::ParseChunkUntrusted(bytes, 0));
      return format::VerifyChunkUntrusted(chunk);
    }
    const auto memory = AllocateForReading(FileWindow::kBytes);
    if (memory == nullptr) return ResourceExhausted("no memory for a piece of a value");
    return format::VerifyChunkInPiecesUntrusted(
        header, {memory.get(), FileWindow::kBytes}, [&](std::uint64_t from, std::span<std::byte> to) {
          return window.file().ReadAllAt(to, at + sizeof(header) + from);
        });
  }

  /// Checks every chunk of a payload file.
  void Payload(const std::string& path, FileWindow& window, std::uint64_t sequence) {
    const std::uint64_t file_bytes = window.file_bytes();
    const auto begin = window.At(0, sizeof(format::FileHeader));
    if (!begin.ok()) return Tell(path, 0, std::string(begin.status().message()));
    const auto header = format::ParseFileHeaderUntrusted(*begin, format::kDataMagic);
    if (!header.ok()) {
      if (file_bytes < format::kFileHeaderBytes) return Note(path + ": begun, nothing in it yet");
      Tell(path, 0, std::string(header.status().message()) + "; its values may still be readable");
    } else if (header->sequence != sequence) {
      Tell(path, 0, "found a payload file under another number");
    } else if (const Status status = CheckOwner(*header, run_, worker_->worker()); !status.ok()) {
      Tell(path, 0, std::string(status.message()) + "; its values are shown where a row has their hash");
    }
    std::uint64_t at = format::kFileHeaderBytes;
    for (;;) {
      const auto next = NextChunk(window, at);
      if (!next.ok() && next.status().code() != StatusCode::kOutOfRange)
        return Tell(path, at, std::string(next.status().message()));
      if (!next.ok()) {
        if (at < file_bytes && file_bytes - at > kMaxZeros)
          Note(path + ": nothing but zeros from byte " + std::to_string(at) +
               " on; chunks behind them are checked by their rows only");
        return;
      }
      at = *next;
      const auto bytes = window.At(at, sizeof(format::ChunkHeader));
      if (!bytes.ok()) return Tell(path, at, std::string(bytes.status().message()));
      const auto chunk = format::ParseChunkHeaderUntrusted(*bytes);
      if (!chunk.ok()) {
        if (chunk.status().code() == StatusCode::kOutOfRange)
          return;  // torn; References() reports the rows that point here
        Tell(path, at,
             std::string(chunk.status().message()) + "; chunks behind it are checked by their rows only");
        return;
      }
      if (chunk->stored_bytes > file_bytes - at - sizeof(format::ChunkHeader)) return;  // torn as well
      ++report_->chunks;
      if (const Status status = WholeChunk(window, at, *chunk); !status.ok()) {
        Tell(path, at,
             std::string(status.message()) + "; lost: a value of " +
                 NameOf(header.ok() ? header->epoch : 1, chunk->tensor));
      }
      at += format::ChunkSpace(chunk->stored_bytes);
    }
  }

  /// Checks each chunk once, however many rows refer to it: any number of them may refer to one that expands
  /// to 64 MiB.
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

  /// Checks what rows refer to: tensors, layouts and places in payload files.
  void References(const WorkerReader& worker, const SegmentReader& segment) {
    const std::uint32_t epoch = segment.header().epoch;
    std::uint64_t retired = 0, uploaded = 0;
    std::uint64_t not_here = 0;
    for (std::size_t slot = 0; slot < segment.slot_count(); ++slot) {
      const std::uint32_t tensor = segment.slot_tensor(slot);
      if (!defined_.contains({epoch, tensor})) {
        Tell(segment.path(), 0,
             "rows of tensor " + std::to_string(tensor) + ", which is not defined; they are lost");
      }
      const auto index = segment.Index(slot);
      if (!index.ok()) continue;  // reported by Footer()
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
          if (worker.IsUploaded(row.data_file))
            ++uploaded;
          else if (place.status().code() == StatusCode::kOutOfRange)
            ++retired;
          else
            Tell(segment.path(), 0, value() + ": " + std::string(place.status().message()));
          continue;
        }
        if (!options_.values) continue;
        const Status read = Chunk(worker, row, *place);
        if (read.code() == StatusCode::kUnavailable || read.code() == StatusCode::kOutOfRange) {
          ++not_here;  // of a run in a bucket
        } else if (!read.ok()) {
          Tell(worker.DataPath(place->data_file), place->offset,
               "lost: " + value() + ": " + std::string(read.message()));
        }
      }
    }
    report_->absent += not_here + uploaded + retired;
    if (not_here > 0)
      Note(segment.path() + ": " + std::to_string(not_here) + " values are not in the bucket, or not yet");
    if (uploaded > 0)
      Note(segment.path() + ": " + std::to_string(uploaded) +
           " values are in the bucket and not here any more");
    if (retired > 0)
      Note(segment.path() + ": " + std::to_string(retired) + " values were deleted by retention");
  }

  std::string root_;
  const RunInfo& run_;
  const VerifyOptions options_;
  VerifyReport* report_;
  const WorkerReader* worker_ = nullptr;
  std::map<std::pair<std::uint32_t, std::uint32_t>, const std::string*> defined_;  // epoch and id: name
  // Results for the chunks of a worker, by file, offset, and the row's hash, sizes and codec.
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
  LUFF_ASSIGN_OR_RETURN(const auto hosts, HostNumbers(run_path));
  for (const std::uint32_t host : hosts) {
    const std::string folder = HostDirectory(run_path, host);
    const auto reader = WorkerReader::Open(folder, host, run->info(), options);
    if (reader.ok()) {
      LUFF_RETURN_IF_ERROR(verifier.Worker(**reader));
    } else {
      ++report.damage_count;
      report.damage.push_back({folder.substr(run_path.size() + 1), 0,
                               std::string(reader.status().message()) + "; its samples are not shown"});
    }
  }
  return report;
}

}  // namespace luff::store
