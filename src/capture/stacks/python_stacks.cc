#include "capture/stacks/python_stacks.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/text_escape.h"
#include "capture/stacks/code_lines.h"

namespace luff::capture {
namespace {

constexpr std::size_t kLongestName = 512;            // characters of a name
constexpr std::uint64_t kMostCharacters = 1U << 20;  // a longer one is none
constexpr std::size_t kMaxTable = 256UL << 10;       // bytes of a table of lines
constexpr int kTries = 3;

class Reader {
 public:
  Reader(ProcessMemory* memory, const LuffPythonLayout& layout) : memory_(*memory), layout_(layout) {}

  /// Addresses of the structures of Python's threads.
  [[nodiscard]] std::vector<std::uint64_t> Threads() {
    std::vector<std::uint64_t> found;
    std::uint64_t at = Pointer(layout_.interpreter, layout_.first_thread);
    while (at != 0 && found.size() < kMaxPythonThreads && std::ranges::find(found, at) == found.end()) {
      found.push_back(at);
      at = Pointer(at, layout_.next_thread);
    }
    return found;
  }

  [[nodiscard]] PythonThread Head(std::uint64_t thread) {
    PythonThread out;
    if (layout_.native_id >= 0) out.native = static_cast<std::int64_t>(Pointer(thread, layout_.native_id));
    out.pthread_id = Pointer(thread, layout_.pthread_id);
    if (layout_.gil != 0) {
      const auto locked = memory_.Get<std::int32_t>(layout_.gil + Offset(layout_.gil_locked));
      out.has_gil = locked && *locked == 1 && Pointer(layout_.gil, layout_.gil_holder) == thread;
    }
    return out;
  }

  /// Fills in the frames. False if they changed at each try.
  [[nodiscard]] bool Frames(std::uint64_t thread, std::size_t most, PythonThread* out) {
    for (int i = 0; i < kTries; ++i) {
      out->frames.clear();
      out->cut = false;
      const std::uint64_t top = Top(thread);
      const std::uint64_t instruction = top == 0 ? 0 : Instruction(top);
      const bool whole = Walk(top, most, out);
      if (whole && Top(thread) == top && (top == 0 || Instruction(top) == instruction)) return true;
    }
    out->frames.clear();
    return false;
  }

 private:
  static std::uint64_t Offset(std::int32_t offset) noexcept { return static_cast<std::uint64_t>(offset); }
  [[nodiscard]] std::uint64_t Pointer(std::uint64_t base, std::int32_t offset) {
    if (base == 0 || offset < 0) return 0;
    return memory_.Get<std::uint64_t>(base + Offset(offset)).value_or(0);
  }
  [[nodiscard]] std::uint64_t Top(std::uint64_t thread) {
    const std::uint64_t at = Pointer(thread, layout_.frame);
    return layout_.current < 0 ? at : Pointer(at, layout_.current);
  }
  [[nodiscard]] std::uint64_t Instruction(std::uint64_t frame) {
    if (layout_.instruction_size == 8) return Pointer(frame, layout_.instruction);
    const auto number = memory_.Get<std::int32_t>(frame + Offset(layout_.instruction));
    return number ? static_cast<std::uint64_t>(std::int64_t{*number}) : 0;
  }

  [[nodiscard]] bool Walk(std::uint64_t frame, std::size_t most, PythonThread* out) {
    // Frames that are none of Python's count, too: the chain ends in any case.
    for (std::size_t i = 0; frame != 0 && i < 4 * most; ++i) {
      if (out->frames.size() == most) {
        out->cut = true;
        return true;
      }
      const bool of_c = layout_.owner >= 0 && memory_.Get<std::uint8_t>(frame + Offset(layout_.owner)) ==
                                                  static_cast<std::uint8_t>(layout_.c_owner);
      if (!of_c) {
        auto read = Frame(frame);
        if (!read) return false;
        out->frames.push_back(std::move(*read));
      }
      frame = Pointer(frame, layout_.previous);
    }
    return true;
  }

  [[nodiscard]] std::optional<PythonFrame> Frame(std::uint64_t frame) {
    const std::uint64_t code = Pointer(frame, layout_.code);
    if (Pointer(code, layout_.type) != layout_.code_type) return std::nullopt;
    PythonFrame out;
    auto function = Text(Pointer(code, layout_.name));
    auto file = Text(Pointer(code, layout_.file_name));
    if (!function || !file) return std::nullopt;
    out.function = std::move(*function);
    out.file = std::move(*file);
    out.line = Line(frame, code);
    return out;
  }

  [[nodiscard]] int Line(std::uint64_t frame, std::uint64_t code) {
    const auto first = memory_.Get<std::int32_t>(code + Offset(layout_.first_line));
    const std::uint64_t table = Pointer(code, layout_.lines);
    if (!first || Pointer(table, layout_.type) != layout_.bytes_type) return -1;
    const std::uint64_t size = Pointer(table, layout_.size);
    auto instruction = static_cast<std::int64_t>(Instruction(frame));
    if (layout_.instructions >= 0)
      instruction = (instruction - static_cast<std::int64_t>(code + Offset(layout_.instructions))) / 2;
    if (size > kMaxTable) return -1;
    table_.resize(static_cast<std::size_t>(size));
    const std::size_t read = memory_.Read(table + Offset(layout_.bytes_data), table_);
    return LineOfUntrusted(std::span(table_).first(read), layout_.version, *first, instruction);
  }

  [[nodiscard]] std::optional<std::string> Text(std::uint64_t text) {
    if (Pointer(text, layout_.type) != layout_.text_type) return std::nullopt;
    const std::uint64_t length = Pointer(text, layout_.text_length);
    const auto state = memory_.Get<std::uint32_t>(text + Offset(layout_.text_state));
    if (!state || (*state & layout_.compact_mask) == 0) return std::nullopt;
    const bool ascii = (*state & layout_.ascii_mask) != 0;
    const std::uint32_t width = (*state & layout_.kind_mask) >> layout_.kind_shift;
    if ((width != 1 && width != 2 && width != 4) || length > kMostCharacters) return std::nullopt;
    // Of a long path the end says more.
    const std::uint64_t count = std::min<std::uint64_t>(length, kLongestName);
    const std::uint64_t skipped = length - count;
    std::array<std::byte, 4 * kLongestName> bytes;
    const std::span<std::byte> wanted = std::span(bytes).first(static_cast<std::size_t>(count * width));
    const std::uint64_t data = text + Offset(ascii ? layout_.ascii_data : layout_.compact_data);
    if (memory_.Read(data + skipped * width, wanted) != wanted.size()) return std::nullopt;
    std::string out = skipped == 0 ? "" : "...";
    for (std::size_t i = 0; i < wanted.size(); i += width) {
      std::uint32_t code = 0;
      std::memcpy(&code, &wanted[i], width);
      AppendUtf8(code, &out);
    }
    return out;
  }

  ProcessMemory& memory_;
  const LuffPythonLayout& layout_;
  std::vector<std::byte> table_;
};

}  // namespace

std::vector<PythonThread> ReadStacksUntrusted(ProcessMemory* memory, const LuffPythonLayout& layout,
                                              std::size_t most_frames) {
  std::vector<PythonThread> out;
  if (layout.version == 0) return out;
  Reader reader(memory, layout);
  for (const std::uint64_t thread : reader.Threads()) {
    PythonThread one = reader.Head(thread);
    static_cast<void>(reader.Frames(thread, most_frames, &one));
    out.push_back(std::move(one));
  }
  return out;
}

PythonThread ReadStackUntrusted(ProcessMemory* memory, const LuffPythonLayout& layout, std::int64_t native,
                                std::uint64_t pthread_id, std::size_t most_frames) {
  if (layout.version == 0) return {};
  Reader reader(memory, layout);
  for (const std::uint64_t thread : reader.Threads()) {
    PythonThread one = reader.Head(thread);
    if (layout.native_id >= 0 ? one.native != native : one.pthread_id != pthread_id) continue;
    static_cast<void>(reader.Frames(thread, most_frames, &one));
    return one;
  }
  return {};
}

}  // namespace luff::capture
