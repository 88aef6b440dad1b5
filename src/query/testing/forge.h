#pragma once
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "luff/format/footer.h"
#include "luff/format/frames.h"

/// Files of a run as an attacker who knows the format would write them: whatever is changed, all checksums
/// are right. For tests and fuzz targets.
namespace luff::query::testing {

/// A sealed metadata segment. Pointers into it stay valid: its size does not change.
class Forged {
 public:
  explicit Forged(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    Take(std::as_bytes(std::span(text)));
  }
  explicit Forged(std::span<const std::byte> bytes) { Take(bytes); }

  [[nodiscard]] std::span<std::byte> bytes() noexcept {
    return std::as_writable_bytes(std::span(words_)).first(size_);
  }
  [[nodiscard]] format::FileHeader& header() noexcept { return At<format::FileHeader>(0); }
  [[nodiscard]] format::FileTail& tail() noexcept {
    return At<format::FileTail>(size_ - sizeof(format::FileTail));
  }
  /// Valid only if the file ends with a tail whose footer is in the file. The offset is the one that was
  /// read.
  [[nodiscard]] std::uint64_t body_offset() const noexcept { return body_; }
  [[nodiscard]] std::span<std::byte> body() noexcept {
    return bytes().subspan(body_, size_ - sizeof(format::FileTail) - body_);
  }
  [[nodiscard]] format::FooterHead& head() noexcept { return At<format::FooterHead>(body_); }
  [[nodiscard]] std::span<format::TensorEntry> entries() noexcept {
    return {&At<format::TensorEntry>(body_ + head().tensors.offset), head().tensor_count};
  }
  [[nodiscard]] std::span<std::uint64_t> ordinals() noexcept {
    return {&At<std::uint64_t>(body_ + head().steps.offset), head().step_count};
  }
  [[nodiscard]] std::span<std::int64_t> global_steps() noexcept {
    return {&At<std::int64_t>(body_ + head().steps.offset + head().step_count * std::uint64_t{8}),
            head().step_count};
  }
  [[nodiscard]] std::span<format::FrameEntry> frames() noexcept {
    return {&At<format::FrameEntry>(body_ + head().frames.offset), head().frame_count};
  }
  [[nodiscard]] std::span<format::IndexRow> index(const format::TensorEntry& entry) noexcept {
    return {&At<format::IndexRow>(body_ + entry.index_offset), entry.index_rows};
  }
  /// The step of each summary of a tensor.
  [[nodiscard]] std::span<std::uint32_t> summary_steps(const format::TensorEntry& entry) noexcept {
    return {&At<std::uint32_t>(body_ + entry.summary_offset + entry.summary_rows * std::uint64_t{72}),
            entry.summary_rows};
  }

  /// Recomputes the checksums of the file header and of everything in the footer. Leaves the rest as it is.
  void Seal() {
    const auto in_body = [&](std::uint64_t offset, std::uint64_t bytes, std::uint64_t* checksum) {
      if (offset % 8 == 0 && offset <= body().size() && bytes <= body().size() - offset)
        *checksum = format::HashBytes(body().subspan(offset, bytes));
    };
    const format::FooterHead& sizes = head();
    const bool directory =
        sizes.tensors.offset % 8 == 0 && sizes.tensors.offset <= body().size() &&
        sizes.tensor_count <= (body().size() - sizes.tensors.offset) / sizeof(format::TensorEntry);
    if (directory) {
      for (format::TensorEntry& entry : entries()) {
        // Blocks may overlap the directory itself, so writes the checksums to a copy of the entry first.
        format::TensorEntry sealed = entry;
        in_body(entry.summary_offset, entry.summary_rows * std::uint64_t{80}, &sealed.summary_checksum);
        in_body(entry.scalar_offset, entry.scalar_rows * std::uint64_t{16}, &sealed.scalar_checksum);
        in_body(entry.index_offset, (entry.index_rows * std::uint64_t{68} + 7) / 8 * 8,
                &sealed.index_checksum);
        in_body(entry.form_offset, (entry.form_rows * std::uint64_t{60} + 7) / 8 * 8, &sealed.form_checksum);
        entry = sealed;
      }
    }
    for (format::FooterSection format::FooterHead::* section :
         {&format::FooterHead::steps, &format::FooterHead::tensors, &format::FooterHead::defs,
          &format::FooterHead::layouts, &format::FooterHead::frames}) {
      const format::FooterSection at = head().*section;
      std::uint64_t checksum = at.checksum;
      in_body(at.offset, at.bytes, &checksum);
      (head().*section).checksum = checksum;
    }
    head().checksum = format::HashBytes(body().first(offsetof(format::FooterHead, checksum)));
    format::FrameBuffer frame;
    frame.Reset(header().sequence, body_ - sizeof(format::FrameHeader));
    frame.Begin(format::FrameKind::kFooter, format::kLooseOrdinal, format::kFlagHeadChecksumOnly);
    frame.Put(body().data(), body().size());
    frame.End(sizeof(format::FooterHead));
    std::memcpy(bytes().data() + body_ - sizeof(format::FrameHeader), frame.bytes().data(),
                sizeof(format::FrameHeader));
    SealTail();
    format::SealFileHeader(&header(), format::kMetaMagic);
  }
  void SealTail() {
    tail().checksum =
        format::HashBytes(std::as_bytes(std::span(&tail(), 1)).first(offsetof(format::FileTail, checksum)));
  }
  void Save() { Save(path_); }
  void Save(const std::string& path) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes().data()), static_cast<std::streamsize>(size_));
  }

 private:
  void Take(std::span<const std::byte> from) {
    size_ = from.size();
    words_.resize((size_ + 7) / 8);
    if (size_ != 0) std::memcpy(words_.data(), from.data(), size_);
    if (size_ >= format::kFileHeaderBytes + sizeof(format::FileTail))
      body_ = tail().footer_offset + sizeof(format::FrameHeader);
  }
  template <typename T>
  [[nodiscard]] T& At(std::uint64_t offset) noexcept {
    return *reinterpret_cast<T*>(reinterpret_cast<std::byte*>(words_.data()) + offset);
  }

  std::string path_;
  std::vector<std::uint64_t> words_;
  std::uint64_t size_ = 0;
  std::uint64_t body_ = 0;
};

/// A metadata segment without footer, frame by frame.
class Frames {
 public:
  /// Uses the header of `model` (a segment of the same worker) with another sequence.
  Frames(const format::FileHeader& model, std::uint64_t sequence) : header_(model) {
    header_.sequence = sequence;
    buffer_.Reset(sequence, format::kFileHeaderBytes);
  }
  template <typename T>
  Frames& Add(format::FrameKind kind, std::uint64_t ordinal, const std::vector<T>& rows) {
    buffer_.Begin(kind, ordinal);
    buffer_.PutRows(std::span<const T>(rows));
    buffer_.End();
    return *this;
  }
  template <typename Put>
    requires requires(Put put, format::FrameBuffer* buffer) { put(buffer); }
  Frames& Add(format::FrameKind kind, std::uint64_t ordinal, Put put) {
    buffer_.Begin(kind, ordinal);
    put(&buffer_);
    buffer_.End();
    return *this;
  }
  /// Adds the mark of a TRAIN step whose numbers are all `step`.
  Frames& Mark(std::uint64_t ordinal, std::int64_t step, std::uint32_t frames = 0) {
    format::StepMark mark{};
    mark.global_step = mark.mode_step = mark.update = step;
    mark.mode = static_cast<std::uint8_t>(format::Mode::kTrain);
    mark.epoch = header_.epoch;
    mark.frames = frames;
    return Add(format::FrameKind::kStep, ordinal, std::vector{mark});
  }
  void Save(const std::string& path) {
    format::SealFileHeader(&header_, format::kMetaMagic);
    std::vector<std::byte> file(format::kFileHeaderBytes);
    std::memcpy(file.data(), &header_, sizeof(header_));
    file.insert(file.end(), buffer_.bytes().begin(), buffer_.bytes().end());
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  }

 private:
  format::FileHeader header_;
  format::FrameBuffer buffer_;
};

}  // namespace luff::query::testing
