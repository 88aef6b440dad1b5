#include "server/job_log.h"

#include <algorithm>
#include <charconv>

#include "base/bounded_read.h"
#include "base/text_escape.h"

namespace luff::server {
namespace {

constexpr std::uint64_t kMaxTimes = 64 << 20;
constexpr std::size_t kInRun = 2;  // names of RUN/log/stdout that lie in the run
constexpr const char* kStreams[] = {"/log/stdout", "/log/stderr"};

/// Numbers between blanks; false if there are not exactly `count`.
template <std::size_t count>
bool Numbers(std::string_view text, std::array<std::uint64_t, count>* numbers) {
  for (std::uint64_t& number : *numbers) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty()) text.remove_prefix(1);
  }
  return text.empty();
}

std::string CutLine(std::string text) {
  if (text.size() <= kMaxLine) return text;
  std::size_t end = kMaxLine - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

/// When the byte was there.
std::int64_t TimeOf(const std::vector<LogMark>& marks, std::uint8_t stream, std::uint64_t offset) {
  const auto at = std::ranges::upper_bound(marks, offset, {},
                                           [stream](const LogMark& mark) { return mark.size[stream]; });
  return at == marks.end() ? 0 : at->unix_ns;
}

/// Adds the lines of the bytes from `begin` to `end`. Returns where the first line that is not whole begins.
Result<std::uint64_t> AddLines(const RegularFile& file, std::uint8_t stream, std::uint64_t begin,
                               std::uint64_t end, std::uint64_t size, bool skip_first,
                               const std::vector<LogMark>& marks, std::vector<LogLine>* lines) {
  std::string bytes(end - begin, '\0');
  LUFF_ASSIGN_OR_RETURN(const std::size_t read, file.ReadAt(std::as_writable_bytes(std::span(bytes)), begin));
  bytes.resize(read);
  std::size_t at = 0;
  if (skip_first) {
    const std::size_t feed = bytes.find('\n');
    if (feed != std::string::npos) at = feed + 1;
  }
  while (at < bytes.size()) {
    const std::size_t feed = bytes.find('\n', at);
    const bool last = feed == std::string::npos;
    if (last && at > 0 && begin + bytes.size() < size) break;  // the next page begins with it
    const std::string_view text = std::string_view(bytes).substr(at, last ? feed : feed - at);
    const bool whole = !last || begin + bytes.size() < size;
    lines->push_back(
        {stream, begin + at, TimeOf(marks, stream, begin + at), CutLine(PlainLine(text)), whole});
    if (!whole) break;
    at = last ? bytes.size() : feed + 1;
  }
  return begin + at;
}

}  // namespace

std::vector<LogMark> ParseLogTimesUntrusted(std::string_view text) {
  std::vector<LogMark> marks;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // not completely written yet
    std::array<std::uint64_t, 3> numbers{};
    if (Numbers(text.substr(0, end), &numbers) && numbers[0] < (std::uint64_t{1} << 63)) {
      LogMark mark{static_cast<std::int64_t>(numbers[0]), {numbers[1], numbers[2]}};
      const bool ascends =
          marks.empty() || (mark.unix_ns >= marks.back().unix_ns && mark.size[0] >= marks.back().size[0] &&
                            mark.size[1] >= marks.back().size[1]);
      if (ascends) marks.push_back(mark);
    }
    text.remove_prefix(end + 1);
  }
  return marks;
}

LogPlace ParseLogDroppedUntrusted(std::string_view text) {
  LogPlace dropped{};
  if (!Numbers(text.substr(0, text.find('\n')), &dropped)) return {};
  return dropped;
}

std::string PlainLine(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (const std::size_t over = line.rfind('\r'); over != std::string_view::npos) line.remove_prefix(over + 1);
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]);
    if (c == '\t') {
      text += "    ";
    } else if (c == 0x1b && i + 1 < line.size() && line[i + 1] == '[') {  // CSI: up to its final byte
      for (i += 2; i < line.size() && (static_cast<unsigned char>(line[i]) < 0x40 || line[i] == 0x7f);) ++i;
    } else if (c == 0x1b && i + 1 < line.size() && line[i + 1] == ']') {  // OSC: up to BEL or ESC backslash
      for (i += 2; i < line.size() && line[i] != 0x07 && line[i] != 0x1b;) ++i;
      if (i + 1 < line.size() && line[i] == 0x1b) ++i;
    } else {
      text += line[i];
    }
  }
  return Escaped(text);
}

Result<LogPage> ReadLog(const std::string& run, std::optional<LogPlace> from, bool before,
                        std::uint64_t bytes) {
  LogPage page;
  const auto times = ReadRegular(run + "/log/times", kMaxTimes, kInRun);
  const auto marks = ParseLogTimesUntrusted(times.ok() ? *times : "");
  const auto dropped = ReadRegular(run + "/log/dropped", 256, kInRun);
  page.dropped = ParseLogDroppedUntrusted(dropped.ok() ? *dropped : "");
  for (std::uint8_t stream = 0; stream < 2; ++stream) {
    auto file = RegularFile::Open(run + kStreams[stream], kInRun);
    if (!file.ok()) {
      if (file.status().code() != StatusCode::kNotFound) return file.status();
      return NotFound("what the job prints was not recorded; luff run --log records it");
    }
    const std::uint64_t size = page.size[stream] = (*file)->size();
    const std::uint64_t first = page.dropped[stream] = std::min(page.dropped[stream], size);
    std::uint64_t begin = from ? std::clamp((*from)[stream], first, size) : size;
    std::uint64_t end = begin;
    if (before || !from)
      begin = end - std::min(bytes, end - first);
    else
      end = begin + std::min(bytes, size - begin);
    // A page that does not begin with a line leaves the rest of that line out.
    const bool skip_first = begin > 0 && (before || !from || begin == first);
    page.from[stream] = begin;
    LUFF_ASSIGN_OR_RETURN(page.next[stream], AddLines(**file, stream, begin, end, before ? end : size,
                                                      skip_first, marks, &page.lines));
    if (const auto at = std::ranges::find(page.lines, stream, &LogLine::stream); at != page.lines.end())
      page.from[stream] = at->offset;
  }
  // By time; lines that no mark covers are the newest ones.
  std::ranges::stable_sort(page.lines, {},
                           [](const LogLine& line) { return line.unix_ns == 0 ? INT64_MAX : line.unix_ns; });
  return page;
}

}  // namespace luff::server
