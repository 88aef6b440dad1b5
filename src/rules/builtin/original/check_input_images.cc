#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// CheckInputImages: docs/rules/check_input_images.md.
namespace luff::rules::check_input_images {
namespace {

using format::Form;
constexpr const char* kName = "CheckInputImages";
constexpr const char* kNameInMxnet = ".*hybridsequential0_input_0";
constexpr std::size_t kMaxTensors = 16;
constexpr std::size_t kMaxChannels = 4096;

struct Limits {
  double mean;
  std::optional<double> variance;
  std::int64_t samples, channel, interval;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "regex", "None",
     "tensors of images (original: the name that MXNet gives, or inputs of models); without it the rule is "
     "silent",
     Bound(), kNameInMxnet},
    {&Limits::mean, "threshold_mean", "0.2", "largest absolute mean of a channel (original)"},
    {&Limits::variance, "threshold_variance", "None",
     "largest distance of a channel's variance from 1 (paper)"},
    {&Limits::samples, "threshold_samples", "500", "images before it is judged (original)"},
    {&Limits::channel, "channel", "1", "axis of the colour channel (original)", AtLeast(0)},
    {&Limits::interval, "interval", "1", "steps between two captures (original: 500)", AtLeast(1), "500"},
};

struct Channel {
  double count = 0, sum = 0, sum_sq = 0;
  void VisitFields(Fields& io) {
    io("count", count);
    io("sum", sum);
    io("sum_sq", sum_sq);
  }
};

class CheckInputImages final : public KeptRule {
 public:
  CheckInputImages(TensorSelector selector, const Limits& limits, bool inputs)
      : selector_(std::move(selector)),
        limits_(limits),
        variance_(limits.variance.value_or(0)),
        inputs_(inputs) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (selector_.empty() || view.rows.info.superseded) return;
    for (const auto& entry : view.rows.summaries)
      if (selector_.Selects(view.trial, entry.tensor)) Look(view, entry, sink);
    if (!inputs_ || view.rows.info.mode != query::Mode::kTrain) return;
    for (const ModelInput& input : ModelInputsOf(view))
      if (IsFloating(input.entry->dtype)) Look(view, *input.entry, sink);
  }
  void VisitFields(Fields& io) override {
    io("told", told_);
    io("images", images_, kMaxTensors);
  }

 private:
  struct Images {
    std::int64_t count = 0;
    std::vector<Channel> channels;
    void VisitFields(Fields& io) {
      io("count", count);
      io("channels", channels, kMaxChannels);
    }
  };

  void Look(const StepView& view, const query::Trial::SummaryEntry& entry, Sink& sink) {
    const std::string& name = view.trial.tensor(entry.tensor).name;
    if (told_.contains(name) || (!images_.contains(name) && images_.size() >= kMaxTensors)) return;
    const auto values = LoadSample(view, entry);
    if (values == nullptr) return;
    Images& images = images_[name];
    if (Take(*values, images) && images.count >= limits_.samples) Judge(view, entry, images, sink);
  }

  [[nodiscard]] bool Take(const SampleValues& values, Images& images) const {
    const auto axis = static_cast<std::size_t>(limits_.channel);
    if (values.shape.size() <= axis || values.shape[0] < 1) return false;
    const std::size_t channels = axis == 0 ? 1 : static_cast<std::size_t>(values.shape[axis]);
    std::size_t stride = 1;
    for (std::size_t i = axis + 1; i < values.shape.size(); ++i)
      stride *= static_cast<std::size_t>(values.shape[i]);
    if (channels == 0 || channels > kMaxChannels || stride == 0) return false;
    if (images.channels.size() != channels) images = {0, std::vector<Channel>(channels)};
    images.count += values.shape[0];
    for (std::size_t i = 0; i < values.values.size(); ++i) {
      Channel& channel = images.channels[(i / stride) % channels];
      channel.count += 1;
      channel.sum += values.values[i];
      channel.sum_sq += values.values[i] * values.values[i];
    }
    return true;
  }

  void Judge(const StepView& view, const query::Trial::SummaryEntry& entry, const Images& images,
             Sink& sink) {
    double worst_mean = 0;
    double worst_variance = 1;
    for (const Channel& channel : images.channels) {
      if (channel.count <= 0) continue;
      const double mean = channel.sum / channel.count;
      const double variance = std::max(channel.sum_sq / channel.count - mean * mean, 0.0);
      if (!(std::abs(mean) <= std::abs(worst_mean))) worst_mean = mean;
      if (!(std::abs(variance - 1) <= std::abs(worst_variance - 1))) worst_variance = variance;
    }
    const bool shifted = !(std::abs(worst_mean) <= limits_.mean);
    const bool scaled = variance_ > 0 && !(std::abs(worst_variance - 1) <= variance_);
    if (!shifted && !scaled) return;
    told_.insert(view.trial.tensor(entry.tensor).name);
    Finding finding = FindingAt(kName, shifted ? "mean" : "variance", view, entry);
    finding.what =
        shifted ? fmt::format("the mean of a channel of {} is {:.3g}", finding.tensor, worst_mean)
                : fmt::format("the variance of a channel of {} is {:.3g}", finding.tensor, worst_variance);
    finding.why = fmt::format(
        "{} images were looked at; networks train best on inputs of mean 0 and variance 1", images.count);
    finding.remedy = "subtract the mean and divide by the deviation of the training data, channel by channel";
    finding.evidence = {{"mean", worst_mean}, {"variance", worst_variance}, {"images", images.count}};
    finding.threshold = shifted ? fmt::format("a mean beyond {:g} (original)", limits_.mean)
                                : fmt::format("a variance more than {:g} away from 1 (paper)", variance_);
    sink.Report(std::move(finding));
  }

  TensorSelector selector_;
  const Limits limits_;
  const double variance_;  // tolerance of the variance around 1; 0: not checked
  const bool inputs_;      // samples of models' inputs are images, too
  std::set<std::string> told_;
  std::map<std::string, Images> images_;
};

// MXNet's name means the input of the model, which has another name in other frameworks.
bool MeansInputs(const Parameters& parameters) { return TextOf(parameters, "regex") == kNameInMxnet; }

Parameters WithSelector(const Parameters& parameters) {
  Parameters chosen = parameters;
  chosen["tensor_regex"] = TextOf(parameters, "regex");
  return chosen;
}

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(WithSelector(all), false));
    return std::unique_ptr<Rule>(new CheckInputImages(std::move(selector), limits, MeansInputs(all)));
  });
  spec.summary = "input images whose mean (or variance) was not normalised";
  spec.needs = [](const Parameters& all) {
    auto needs = SelectedNeeds(WithSelector(all), "input_image", Bit(Form::kSummary) | Bit(Form::kRaw));
    for (Need& need : needs) need.save_interval = IntervalOf(all);
    if (MeansInputs(all)) needs.push_back(SampleNeeds().front());
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::check_input_images
