#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ImageLayout: docs/rules/image_layout.md.
namespace luff::rules::image_layout {
namespace {

constexpr const char* kName = "ImageLayout";
constexpr std::size_t kMaxInputs = 16;
constexpr std::size_t kSmallest = 8;  // pixels along an edge

struct Limits {
  std::int64_t images;
  double closer;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::images, "images", "64", "images that are looked at (Luff)", AtLeast(1)},
    {&Limits::closer, "closer", "0.7",
     "difference of neighbours in the other order, over that in the given one (Luff)", Between(0, 1)},
};

// The axes of a batch of colour images, as its shape says.
struct Layout {
  std::size_t channels = 0, height = 0, width = 0;
  bool channels_first = false;
};

std::optional<Layout> LayoutOf(const std::vector<std::int64_t>& shape) {
  if (shape.size() != 4) return std::nullopt;
  const auto colours = [](std::int64_t size) { return size == 3 || size == 4; };
  const auto edge = [](std::int64_t size) { return size >= static_cast<std::int64_t>(kSmallest); };
  const auto at = [&](std::size_t axis) { return static_cast<std::size_t>(shape[axis]); };
  if (colours(shape[1]) && edge(shape[2]) && edge(shape[3])) return Layout{at(1), at(2), at(3), true};
  if (colours(shape[3]) && edge(shape[1]) && edge(shape[2])) return Layout{at(3), at(1), at(2), false};
  return std::nullopt;
}

// Mean absolute difference of values that lie `lag` apart in memory, of each `stride`-th of them.
double Difference(const double* image, std::size_t size, std::size_t lag, std::size_t stride = 1) {
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = lag; i < size; i += stride, ++count) sum += std::abs(image[i] - image[i - lag]);
  return sum / static_cast<double>(std::max<std::size_t>(count, 1));
}

// Pixels of a picture resemble those right below them, and these more than those two rows below. In memory
// the next row is one row of one channel away (channels first), or one row of all channels (channels last).
// If the numbers are alike as the other order asks, they were reshaped where axes should have been
// transposed.
class ImageLayout final : public KeptRule {
 public:
  explicit ImageLayout(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const std::string& name = view.trial.tensor(input.entry->tensor).name;
      if (!inputs_.contains(name) && inputs_.size() >= kMaxInputs) continue;
      Input& one = inputs_[name];
      if (one.told || one.images >= 4 * limits_.images || IsIds(input.entry->dtype)) continue;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr) continue;
      if (const auto layout = LayoutOf(sample->shape)) Look(view, *input.entry, *sample, *layout, one, sink);
    }
  }
  void VisitFields(Fields& io) override { io("inputs", inputs_, kMaxInputs); }

 private:
  struct Input {
    std::int64_t images = 0, other = 0,
                 since = -1;  // images, and those that look less rough in the other order
    // Sums of differences: one row and two rows down, by planes and by lines of all channels; neighbours in
    // memory, the same channel of the next pixel, two channels of one pixel.
    double plane = 0, planes = 0, line = 0, lines = 0, next = 0, pixel = 0, colour = 0;
    bool told = false;
    void VisitFields(Fields& io) {
      io("images", images);
      io("other", other);
      io("since", since);
      io("plane", plane);
      io("planes", planes);
      io("line", line);
      io("lines", lines);
      io("next", next);
      io("pixel", pixel);
      io("colour", colour);
      io("told", told);
    }
  };

  void Look(const StepView& view, const query::Trial::SummaryEntry& entry, const SampleValues& sample,
            const Layout& layout, Input& one, Sink& sink) const {
    const std::size_t size = layout.channels * layout.height * layout.width;
    const std::size_t row = layout.width, line = layout.width * layout.channels;
    for (std::size_t i = 0; (i + 1) * size <= sample.values.size(); ++i) {
      const double* image = &sample.values[i * size];
      const double as_plane = Difference(image, size, row), as_line = Difference(image, size, line);
      if (!std::isfinite(as_plane + as_line) || !(as_plane + as_line > 0)) continue;
      if (one.since < 0) one.since = view.rows.info.mode_step;
      ++one.images;
      one.other += layout.channels_first == (as_line < as_plane) ? 1 : 0;
      one.plane += as_plane;
      one.line += as_line;
      one.planes += Difference(image, size, 2 * row);
      one.lines += Difference(image, size, 2 * line);
      one.next += Difference(image, size, 1);
      one.pixel += Difference(image, size, layout.channels);
      one.colour += Difference(image + 1, size - 1, 1, layout.channels);
    }
    if (one.images < limits_.images || 3 * one.other < 2 * one.images) return;
    const double given = layout.channels_first ? one.plane : one.line;
    const double turned = layout.channels_first ? one.line : one.plane;
    const double farther = layout.channels_first ? one.lines : one.planes;
    // What repeats itself with the period of the other order is no nearer in it than two periods away.
    if (!(turned < limits_.closer * given && turned < 0.9 * farther)) return;
    // Along memory: colours of a pixel differ more than pixels do (channels last), or neighbours are smooth
    // (channels first). Pictures that only change from row to row tell nothing, and grey ones less.
    const bool grey = one.colour < 0.05 * one.pixel, varies = one.pixel >= 0.3 * one.line;
    const bool along = layout.channels_first ? (grey ? varies : one.next > one.pixel)
                                             : !grey && varies && one.next < limits_.closer * one.pixel;
    if (!along) return;
    one.told = true;
    const char* is = layout.channels_first ? "channels last" : "channels first";
    Finding finding =
        FindingAt(kName, layout.channels_first ? "reshaped_to_planes" : "reshaped_to_lines", view, entry);
    finding.since_step = one.since;
    finding.what = fmt::format("the images are scrambled: of shape ({}), but their numbers lie with {}",
                               fmt::join(sample.whole_shape, ", "), is);
    finding.why = fmt::format(
        "in {} of {} images numbers that would lie below each other with {} are closer: on average, pixels "
        "below "
        "each other are {:.2g} times as far apart",
        one.other, one.images, is, given / std::max(turned, 1e-300));
    finding.remedy = layout.channels_first
                         ? "transpose the axes, do not reshape them: x.permute(0, 3, 1, 2), or "
                           "np.transpose(x, (0, 3, 1, 2)), where x is (N, H, W, C)"
                         : "transpose the axes, do not reshape them: x.permute(0, 2, 3, 1), or "
                           "np.transpose(x, (0, 2, 3, 1)), where x is (N, C, H, W)";
    finding.causes = {"view() or reshape() instead of permute() or transpose()"};
    finding.evidence = {{"images", one.images}, {"scrambled", one.other}};
    finding.threshold =
        fmt::format("less than {:g} times the difference between rows, over {} or more images (Luff)",
                    limits_.closer, limits_.images);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Input> inputs_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ImageLayout>(kName, kParams);
  spec.summary = "images whose axes were reshaped instead of transposed";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::image_layout
