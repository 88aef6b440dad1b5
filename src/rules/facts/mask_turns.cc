#include "rules/facts/mask_turns.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr std::size_t kMaxRows = 64, kMaxChannels = 4, kLeastSide = 8, kMaxSide = 512;
constexpr std::size_t kLooked = 64;                // pixels of a side, about: a correlation needs no more
constexpr std::size_t kLevels = 32;                // masks of more numbers are no classes
constexpr double kEnough = 4096;                   // rows that tell; more add nothing
constexpr double kTogether = 0.4, kClearly = 0.2;  // correlations
constexpr double kTellingRows = 64, kHardlyAny = 0.02;

// Where a mask and the channels of its image lie in their rows.
struct MaskLayout {
  std::size_t height = 0, width = 0, channels = 1;
  std::size_t pixel = 1, channel = 1;  // steps from one to the next
};

bool LiesOn(const SampleValues& image, const SampleValues& mask, MaskLayout* layout) {
  std::vector<std::int64_t> shape = mask.shape;
  if (shape.size() == 4 && shape[1] == 1) shape.erase(shape.begin() + 1);
  if (shape.size() == 4 && shape[3] == 1) shape.pop_back();
  if (shape.size() != 3) return false;
  const auto height = shape[1];
  const auto width = shape[2];
  const auto side = [](std::int64_t n) {
    return n >= static_cast<std::int64_t>(kLeastSide) && n <= static_cast<std::int64_t>(kMaxSide);
  };
  if (!side(height) || !side(width)) return false;
  const auto pixels = static_cast<std::size_t>(height * width);
  *layout = {static_cast<std::size_t>(height), static_cast<std::size_t>(width), 1, 1, pixels};
  const std::vector<std::int64_t>& of = image.shape;
  if (of.size() == 3) return of[1] == height && of[2] == width;
  if (of.size() != 4) return false;
  if (of[2] == height && of[3] == width) {
    layout->channels = static_cast<std::size_t>(of[1]);
    return true;
  }
  layout->channels = layout->pixel = static_cast<std::size_t>(of[3]);
  layout->channel = 1;
  return of[1] == height && of[2] == width;
}

// The mask as numbers. Of classes only whether a pixel has another one than most: their order means nothing.
std::vector<double> Marked(const double* mask, std::size_t pixels) {
  std::map<double, std::size_t> counts;
  for (std::size_t i = 0; i < pixels && counts.size() <= kLevels; ++i) ++counts[mask[i]];
  std::vector<double> marked(mask, mask + pixels);
  if (counts.size() > kLevels) return marked;
  const double most = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                        return a.second < b.second;
                      })->first;
  for (double& value : marked) value = value == most ? 0 : 1;
  return marked;
}

// The pixel of the image that lies where pixel (i, j) of a mask is, if the image is turned.
std::size_t PixelAt(const MaskLayout& of, std::size_t turn, std::size_t i, std::size_t j) {
  if ((turn & 4U) != 0) std::swap(i, j);
  if ((turn & 1U) != 0) j = of.width - 1 - j;
  if ((turn & 2U) != 0) i = of.height - 1 - i;
  return i * of.width + j;
}

double Correlation(const MaskLayout& of, const double* channel, const std::vector<double>& mask,
                   std::size_t turn) {
  double x = 0;
  double y = 0;
  double xx = 0;
  double yy = 0;
  double xy = 0;
  double n = 0;
  const std::size_t stride = std::max<std::size_t>(std::max(of.height, of.width) / kLooked, 1);
  for (std::size_t i = 0; i < of.height; i += stride) {
    for (std::size_t j = 0; j < of.width; j += stride) {
      const double a = channel[PixelAt(of, turn, i, j) * of.pixel];
      const double b = mask[i * of.width + j];
      x += a;
      y += b;
      xx += a * a;
      yy += b * b;
      xy += a * b;
      ++n;
    }
  }
  const double spread = (n * xx - x * x) * (n * yy - y * y);
  return spread > 0 ? (n * xy - x * y) / std::sqrt(spread) : 0;
}

}  // namespace

void MaskTurns::Add(const SampleValues& image, const SampleValues& mask) {
  MaskLayout of;
  if (rows() >= kEnough || !LiesOn(image, mask, &of)) return;
  const Rows images = RowsOf(image);
  const Rows masks = RowsOf(mask);
  const std::size_t turns = of.height == of.width ? kTurns : kTurns / 2;
  for (std::size_t row = 0; row < std::min({images.count, masks.count, kMaxRows}); ++row) {
    const std::vector<double> marked = Marked(&mask.values[row * masks.width], masks.width);
    std::array<double, kTurns> together{};
    for (std::size_t c = 0; c < std::min(of.channels, kMaxChannels); ++c) {
      const double* channel = &image.values[row * images.width + c * of.channel];
      for (std::size_t turn = 0; turn < turns; ++turn)
        together[turn] = std::max(together[turn], std::abs(Correlation(of, channel, marked, turn)));
    }
    const auto best =
        static_cast<std::size_t>(std::max_element(together.begin(), together.end()) - together.begin());
    const double other = best != 0 ? together[0] : *std::max_element(together.begin() + 1, together.end());
    if (together[best] >= kTogether && together[best] - other >= kClearly) ++told_[best];
  }
}

double MaskTurns::rows() const noexcept { return std::accumulate(told_.begin(), told_.end(), 0.0); }

std::string_view MaskTurns::NameOf(std::size_t turn) {
  constexpr std::array<std::string_view, kTurns> kNames = {
      "as it is",   "mirrored left to right", "turned upside down",  "turned by half",
      "transposed", "turned by a quarter",    "turned by a quarter", "transposed the other way"};
  return kNames.at(turn);
}

std::size_t TurnOfOneSide(const MaskTurns& training, const MaskTurns& evaluation, double least, double z) {
  const double n = training.rows();
  const double m = evaluation.rows();
  if (n < kTellingRows || m < kTellingRows) return 0;
  for (std::size_t turn = 1; turn < MaskTurns::kTurns; ++turn) {
    const double a = training.share(turn);
    const double b = evaluation.share(turn);
    const double pooled = (a * n + b * m) / (n + m);
    const double error = std::sqrt(std::max(pooled * (1 - pooled), 1e-6) * (1 / n + 1 / m));
    if (std::max(a, b) >= least && std::min(a, b) <= kHardlyAny && std::abs(a - b) >= z * error) return turn;
  }
  return 0;
}

}  // namespace luff::rules
