#include <cmath>
#include <map>
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
  double share, closer;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::images, "images", "64", "images that tell (Luff)", AtLeast(1)},
    {&Limits::share, "share", "0.95", "of them that must say so (Luff)", Between(0, 1)},
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

// Mean absolute difference of values that lie `lag` apart in memory; NaN if one is not finite.
double Difference(const double* image, std::size_t size, std::size_t lag) {
  double sum = 0;
  for (std::size_t i = lag; i < size; ++i) sum += std::abs(image[i] - image[i - lag]);
  return sum / static_cast<double>(size - lag);
}

// Pixels of a picture resemble those right below them. In memory these are one row of one channel apart
// (channels first) or one row of all channels (channels last). If values that are apart as in the other order
// are far more alike, in nearly every image, the numbers lie in the other order: they were reshaped where axes
// should have been transposed.
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
    std::int64_t images = 0, other = 0, since = -1;  // images that tell, and those that lie in the other order
    double given = 0, turned = 0;                    // sums of differences of neighbours
    bool told = false;
    void VisitFields(Fields& io) {
      io("images", images);
      io("other", other);
      io("since", since);
      io("given", given);
      io("turned", turned);
      io("told", told);
    }
  };

  void Look(const StepView& view, const query::Trial::SummaryEntry& entry, const SampleValues& sample,
            const Layout& layout, Input& one, Sink& sink) const {
    const std::size_t size = layout.channels * layout.height * layout.width;
    const std::size_t plane = layout.width, line = layout.width * layout.channels;
    for (std::size_t i = 0; (i + 1) * size <= sample.values.size(); ++i) {
      const double* image = &sample.values[i * size];
      const double as_planes = Difference(image, size, plane), as_lines = Difference(image, size, line);
      const double given = layout.channels_first ? as_planes : as_lines;
      const double turned = layout.channels_first ? as_lines : as_planes;
      if (!std::isfinite(given + turned) || !(given + turned > 0)) continue;
      if (one.since < 0) one.since = view.rows.info.mode_step;
      ++one.images;
      one.other += turned < limits_.closer * given ? 1 : 0;
      one.given += given;
      one.turned += turned;
    }
    if (one.images < limits_.images ||
        static_cast<double>(one.other) < limits_.share * static_cast<double>(one.images))
      return;
    one.told = true;
    const char* is = layout.channels_first ? "channels last" : "channels first";
    Finding finding = FindingAt(kName, layout.channels_first ? "reshaped_to_planes" : "reshaped_to_lines", view,
                                entry);
    finding.since_step = one.since;
    finding.what = fmt::format("the images are scrambled: of shape ({}), but their numbers lie with {}",
                               fmt::join(sample.whole_shape, ", "), is);
    finding.why = fmt::format(
        "in {} of {} images, pixels below each other are {:.2g} times as far apart in value as numbers that "
        "would be below each other with {}",
        one.other, one.images, one.given / std::max(one.turned, 1e-300), is);
    finding.remedy = layout.channels_first
                         ? "transpose the axes, do not reshape them: x.permute(0, 3, 1, 2), or "
                           "np.transpose(x, (0, 3, 1, 2)), where x is (N, H, W, C)"
                         : "transpose the axes, do not reshape them: x.permute(0, 2, 3, 1), or "
                           "np.transpose(x, (0, 2, 3, 1)), where x is (N, C, H, W)";
    finding.causes = {"view() or reshape() instead of permute() or transpose()"};
    finding.evidence = {{"images", one.images}, {"scrambled", one.other}};
    finding.threshold =
        fmt::format("less than {:g} times the difference, in {:g} of {} or more images (Luff)", limits_.closer,
                    limits_.share, limits_.images);
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
