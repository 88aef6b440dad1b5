#include "rules/facts/window_overlap.h"

#include <set>

#include "luff/tensor/hash.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr std::size_t kWindowPlaces = 8, kWindowMostPlaces = 1024, kWindowValues = 4096;
constexpr std::size_t kWindowLevels = 8;  // different values in a stretch that cannot repeat by chance
constexpr std::size_t kWindowRows = 64;   // of a batch
constexpr std::size_t kMostShifts = 64;   // places at which a window is compared
constexpr std::uint64_t kWindowBits = (1ULL << 52) - 1;

// Windows, place by place.
struct Windows {
  std::size_t count = 0, places = 0, width = 0;
  std::vector<double> values;

  [[nodiscard]] std::uint64_t Hash(std::size_t row, std::size_t from, std::size_t size) const {
    return HashBytes(&values[(row * places + from) * width], size * width * sizeof(double)) & kWindowBits;
  }
  [[nodiscard]] bool Tells(std::size_t row, std::size_t from, std::size_t size) const {
    std::set<double> levels;
    const double* begin = &values[(row * places + from) * width];
    for (std::size_t i = 0; i < size * width && levels.size() < kWindowLevels; ++i) {
      if (!(begin[i] == begin[i])) return false;
      levels.insert(begin[i]);
    }
    return levels.size() >= kWindowLevels;
  }
};

Windows WindowsOf(const SampleValues& sample) {
  Windows windows;
  const Rows rows = RowsOf(sample);
  const std::size_t axes = sample.shape.size();
  if (rows.count == 0 || axes < 2 || axes > 3 || rows.width > kWindowValues) return windows;
  const auto second = static_cast<std::size_t>(sample.shape[1]);
  const auto third = axes == 3 ? static_cast<std::size_t>(sample.shape[2]) : 1;
  const bool last = second < third;  // channels first
  const std::size_t places = last ? third : second;
  if (places < kWindowPlaces || places > kWindowMostPlaces) return windows;
  windows.count = std::min(rows.count, kWindowRows);
  windows.places = places;
  windows.width = last ? second : third;
  windows.values.resize(windows.count * rows.width);
  for (std::size_t row = 0; row < windows.count; ++row) {
    const double* from = &sample.values[row * rows.width];
    double* to = &windows.values[row * rows.width];
    for (std::size_t i = 0; i < places; ++i)
      for (std::size_t k = 0; k < windows.width; ++k)
        to[i * windows.width + k] = from[last ? k * places + i : i * windows.width + k] + 0.0;  // -0 + 0 is 0
  }
  return windows;
}

}  // namespace

void WindowOverlap::Train(const SampleValues& sample) {
  if (first_.size() >= kMost) return;
  const Windows windows = WindowsOf(sample);
  if (windows.count == 0) return;
  if (length_ == 0) {
    length_ = static_cast<std::int64_t>(windows.places);
    width_ = static_cast<std::int64_t>(windows.width);
  }
  if (length_ != static_cast<std::int64_t>(windows.places) ||
      width_ != static_cast<std::int64_t>(windows.width))
    return;
  const std::size_t half = windows.places / 2;
  for (std::size_t row = 0; row < windows.count && first_.size() < kMost; ++row) {
    if (!windows.Tells(row, 0, half) || !windows.Tells(row, windows.places - half, half)) continue;
    const std::uint64_t whole = windows.Hash(row, 0, windows.places);
    const auto [known, fresh] = first_.emplace(windows.Hash(row, 0, half), whole);
    if (fresh) {
      trained_ += 1;
      last_.insert(windows.Hash(row, windows.places - half, half));
    } else if (known->second != whole) {
      again_ += 1;
    }
  }
}

WindowOverlap::Told WindowOverlap::Evaluate(const SampleValues& sample) const {
  Told told;
  if (first_.empty()) return told;
  const Windows windows = WindowsOf(sample);
  if (windows.count == 0 || length_ != static_cast<std::int64_t>(windows.places) ||
      width_ != static_cast<std::int64_t>(windows.width))
    return told;
  const std::size_t half = windows.places / 2;
  const std::size_t shifts = windows.places - half;
  const std::size_t every = (shifts + kMostShifts - 1) / kMostShifts;
  for (std::size_t row = 0; row < windows.count; ++row) {
    if (!windows.Tells(row, 0, windows.places)) continue;
    told.rows += 1;
    bool earlier = false;
    bool later = false;
    // A stretch that begins `shift` places behind the window's own begin is the first half of a window that
    // begins there, or the second half of one that begins `shifts` - `shift` places before this one.
    for (std::size_t shift = 0; shift <= shifts && !(earlier && later); shift += every) {
      const std::uint64_t hash = windows.Hash(row, shift, half);
      later = later || (shift > 0 && first_.contains(hash));
      earlier = earlier || (shift < shifts && last_.contains(hash));
    }
    told.between += earlier && later ? 1 : 0;
  }
  return told;
}

void WindowOverlap::VisitFields(Fields& io) {
  io("first", first_, kMost);
  io("last", last_, kMost);
  io("length", length_);
  io("width", width_);
  io("trained", trained_);
  io("again", again_);
  io.Check(length_ >= 0 && width_ >= 0, "the size of windows");
}

}  // namespace luff::rules
