#include "store/earlier_epochs.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "luff/format/footer.h"
#include "luff/format/frames.h"
#include "store/paths.h"

namespace luff::store {
namespace {

constexpr std::uint64_t kMaxMetaBytes = 1ULL << 30;

/// A whole file in 8-byte aligned memory.
struct Bytes {
  std::vector<std::uint64_t> words;
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> view() const noexcept {
    return std::as_bytes(std::span(words)).first(size);
  }
};

Result<Bytes> Load(Env& env, const std::string& path) {
  LUFF_ASSIGN_OR_RETURN(auto file, env.Open(path, Env::OpenMode::kRead));
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t size, file->Size());
  if (size > kMaxMetaBytes) return OutOfRange("metadata file of more than 1 GiB: " + path);
  Bytes bytes;
  bytes.words.resize(static_cast<std::size_t>((size + 7) / 8));
  LUFF_ASSIGN_OR_RETURN(
      bytes.size,
      file->ReadAt(std::as_writable_bytes(std::span(bytes.words)).first(static_cast<std::size_t>(size)), 0));
  return bytes;
}

void NoteRetired(std::span<const std::byte> body, std::set<std::uint32_t>* retired) {
  const auto rows = format::ParseRetireRowsUntrusted(body);
  if (!rows.ok()) return;
  for (const format::RetireRow& row : *rows) retired->insert(row.data_file);
}

}  // namespace

Result<EarlierEpochs> ReadEarlierEpochs(Env& env, const std::string& directory) {
  EarlierEpochs earlier;
  LUFF_ASSIGN_OR_RETURN(const auto names, env.List(directory));
  std::map<std::uint64_t, std::uint32_t> meta;  // sequence, highest generation
  for (const std::string& name : names) {
    const auto parsed = ParseStreamFileName(name);
    if (!parsed) {
      if (name.ends_with(".tmp")) (void)env.Remove(directory + "/" + name);
      continue;
    }
    if (parsed->meta) {
      auto& generation = meta[parsed->sequence];
      generation = std::max(generation, parsed->generation);
      earlier.next_meta_sequence = std::max(earlier.next_meta_sequence, parsed->sequence + 1);
      continue;
    }
    earlier.next_data_sequence = std::max(earlier.next_data_sequence, parsed->sequence + 1);
    auto file = env.Open(directory + "/" + name, Env::OpenMode::kReadWrite);
    if (!file.ok()) continue;
    std::byte head[sizeof(format::FileHeader)];
    const auto read = (*file)->ReadAt(head, 0);
    const auto size = (*file)->Size();
    if (!read.ok() || !size.ok()) continue;
    EarlierEpochs::DataFile data;
    data.sequence = static_cast<std::uint32_t>(parsed->sequence);
    data.bytes = *size;
    (void)(*file)->Truncate(*size);  // releases space reserved beyond the end
    const auto header = format::ParseFileHeaderUntrusted(std::span(head).first(*read), format::kDataMagic);
    if (header.ok()) {
      data.retention_class = header->retention_class;
      earlier.next_epoch = std::max(earlier.next_epoch, header->epoch + 1);
    }
    earlier.data.push_back(data);
  }

  std::set<std::uint32_t> retired;
  bool counted = false;  // the TRAIN steps of all earlier segments are known, from a footer
  for (auto at = meta.rbegin(); at != meta.rend(); ++at) {
    const auto bytes = Load(env, directory + "/" + MetaFileName(at->first, at->second));
    if (!bytes.ok()) continue;
    EarlierEpochs::MetaFile file;
    file.sequence = at->first;
    file.generation = at->second;
    file.bytes = bytes->size;
    const auto header = format::ParseFileHeaderUntrusted(bytes->view(), format::kMetaMagic);
    if (header.ok()) {
      file.epoch = header->epoch;
      earlier.next_epoch = std::max(earlier.next_epoch, header->epoch + 1);
      earlier.next_ordinal = std::max(earlier.next_ordinal, header->first_ordinal);
      const auto footer = format::FooterView::ParseUntrusted(bytes->view(), at->first);
      file.sealed = footer.ok();
      if (footer.ok()) {
        if (!counted) earlier.train_steps += footer->head().last_train_steps;
        earlier.next_ordinal = std::max(earlier.next_ordinal, footer->head().next_ordinal);
        counted = true;
        if ((footer->head().kinds >> static_cast<unsigned>(format::FrameKind::kRetire) & 1U) != 0) {
          if (const auto frames = footer->FramesUntrusted(); frames.ok()) {
            for (const format::FrameEntry& entry : *frames) {
              format::FrameView frame;
              if (entry.kind == static_cast<std::uint16_t>(format::FrameKind::kRetire) &&
                  format::ParseFrameUntrusted(bytes->view(), entry.offset, at->first, &frame) ==
                      format::FrameOutcome::kFrame) {
                NoteRetired(frame.body, &retired);
              }
            }
          }
        }
      } else {
        format::FrameView frame;
        for (std::uint64_t offset = format::kFileHeaderBytes;
             format::ParseFrameUntrusted(bytes->view(), offset, at->first, &frame) ==
             format::FrameOutcome::kFrame;
             offset = frame.next_offset) {
          if (frame.kind == format::FrameKind::kRetire) NoteRetired(frame.body, &retired);
          if (frame.kind != format::FrameKind::kStep) continue;
          const auto mark = format::ParseStepMarkUntrusted(frame.body);
          if (!mark.ok()) continue;
          earlier.next_ordinal = std::max(earlier.next_ordinal, frame.ordinal + 1);
          if (!counted && mark->mode == static_cast<std::uint8_t>(format::Mode::kTrain))
            ++earlier.train_steps;
        }
      }
    }
    earlier.meta.push_back(file);
  }
  std::reverse(earlier.meta.begin(), earlier.meta.end());
  // A retired number is not used again, also where no file has it any more: readers take it for gone.
  if (!retired.empty())
    earlier.next_data_sequence =
        std::max<std::uint64_t>(earlier.next_data_sequence, std::uint64_t{*retired.rbegin()} + 1);
  std::erase_if(earlier.data, [&](const EarlierEpochs::DataFile& file) {
    if (!retired.contains(file.sequence)) return false;
    (void)env.Remove(directory + "/" + DataFileName(file.sequence));
    return true;
  });
  return earlier;
}

}  // namespace luff::store
