// Parses a segment as it is, and a footer body whose outer checksums are corrected first, so that the fuzzer
// reaches the bounds checks.
#include <cstring>
#include <vector>

#include "luff/format/footer.h"

namespace {

using namespace luff;          // NOLINT(google-build-using-namespace)
using namespace luff::format;  // NOLINT(google-build-using-namespace)

void Use(std::span<const std::byte> file, std::uint64_t sequence) {
  const auto view = FooterView::ParseUntrusted(file, sequence);
  if (!view.ok()) return;
  volatile std::uint64_t sink = 0;
  for (const TensorEntry& entry : view->tensors()) {
    for (const bool verify : {false, true}) {
      if (const auto block = view->SummariesUntrusted(entry, verify); block.ok()) {
        for (std::size_t i = 0; i < block->size(); ++i) sink = sink + block->row(i, entry.tensor).count;
      }
      if (const auto block = view->ScalarsUntrusted(entry, verify); block.ok()) {
        for (const double value : block->value) sink = sink + (value > 0);
      }
      if (const auto block = view->IndexUntrusted(entry, verify); block.ok()) {
        for (const IndexRow& row : block->rows) sink = sink + row.offset;
      }
      if (const auto block = view->FormsUntrusted(entry, verify); block.ok()) {
        for (const FormRow& row : block->rows) sink = sink + row.form;
      }
    }
  }
  for (std::size_t i = 0; i < view->steps().size(); ++i) {
    sink = sink + static_cast<std::uint64_t>(view->steps().mark(i).global_step);
  }
  if (const auto defs = view->TensorDefsUntrusted(); defs.ok()) sink = sink + defs->size();
  if (const auto defs = view->LayoutDefsUntrusted(); defs.ok()) sink = sink + defs->size();
  if (const auto frames = view->FramesUntrusted(); frames.ok()) sink = sink + frames->size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint64_t> words((size + 7) / 8 + 1);
  if (size != 0) std::memcpy(words.data(), data, size);
  const auto bytes = std::as_bytes(std::span(words)).first(size);
  Use(bytes, 1);
  if (size < sizeof(FooterHead)) return 0;

  FooterHead head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  head.head_bytes = sizeof(head);
  for (FooterSection* section : {&head.steps, &head.tensors, &head.defs, &head.layouts, &head.frames}) {
    if (section->offset <= size && section->bytes <= size - section->offset) {
      section->checksum = HashBytes(bytes.subspan(section->offset, section->bytes));
    }
  }
  head.checksum = HashBytes(std::as_bytes(std::span(&head, 1)).first(offsetof(FooterHead, checksum)));
  FrameBuffer buffer;
  buffer.Reset(1, kFileHeaderBytes);
  buffer.Begin(FrameKind::kFooter, kLooseOrdinal, kFlagHeadChecksumOnly);
  buffer.Put(&head, sizeof(head));
  buffer.Put(bytes.data() + sizeof(head), size - sizeof(head));
  buffer.End(sizeof(head));
  FileTail tail{};
  tail.magic = kTailMagic;
  tail.footer_offset = kFileHeaderBytes;
  tail.footer_bytes = buffer.next_offset() - kFileHeaderBytes;
  tail.sequence = 1;
  tail.checksum = HashBytes(std::as_bytes(std::span(&tail, 1)).first(offsetof(FileTail, checksum)));
  buffer.PutValue(tail);
  std::vector<std::uint64_t> file((kFileHeaderBytes + buffer.bytes().size() + 7) / 8);
  std::memcpy(reinterpret_cast<std::byte*>(file.data()) + kFileHeaderBytes, buffer.bytes().data(),
              buffer.bytes().size());
  Use(std::as_bytes(std::span(file)).first(kFileHeaderBytes + buffer.bytes().size()), 1);
  return 0;
}
