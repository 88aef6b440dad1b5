#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/loss_call.h"
#include "rules/select.h"

/// CheckInputImages: docs/rules/check_input_images.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Form;
constexpr const char* kName = "CheckInputImages";
constexpr const char* kPage = "docs/rules/check_input_images.md";
constexpr std::size_t kMaxTensors = 16;
constexpr std::size_t kMaxChannels = 4096;

struct Limits {
  double mean = 0.2;
  double variance = 0;  // tolerance of the variance around 1; 0: not checked
  std::int64_t samples = 500, channel = 1;
};

struct Channel {
  double count = 0, sum = 0, sum_sq = 0;
};

class CheckInputImages final : public Rule {
 public:
  CheckInputImages(TensorSelector selector, const Limits& limits)
      : selector_(std::move(selector)),
        limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (selector_.empty() || view.rows.info.superseded) return;
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const std::string& name = view.trial.tensor(entry.tensor).name;
      if (told_.contains(name) || (!images_.contains(name) && images_.size() >= kMaxTensors)) continue;
      const auto values = LoadSample(view, entry);
      if (values == nullptr) continue;
      Images& images = images_[name];
      if (!Take(*values, images) || images.count < limits_.samples) continue;
      Judge(view, entry, images, sink);
    }
  }
  [[nodiscard]] std::string SaveState() const override {
    Json json = {{"told", told_}, {"images", Json::object()}};
    for (const auto& [name, images] : images_) {
      Json channels = Json::array();
      for (const Channel& channel : images.channels)
        channels.push_back({channel.count, channel.sum, channel.sum_sq});
      json["images"][name] = {images.count, std::move(channels)};
    }
    return JsonText(json);
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) -> Status {
      told_ = json.at("told").get<std::set<std::string>>();
      images_.clear();
      for (const auto& [name, saved] : json.at("images").items()) {
        Images& images = images_[name];
        images.count = saved.at(0);
        if (saved.at(1).size() > kMaxChannels) return Corruption("more channels than are ever followed");
        for (const Json& channel : saved.at(1))
          images.channels.push_back({channel.at(0), channel.at(1), channel.at(2)});
      }
      return Status::Ok();
    });
  }

 private:
  struct Images {
    std::int64_t count = 0;
    std::vector<Channel> channels;
  };

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
    const bool scaled = limits_.variance > 0 && !(std::abs(worst_variance - 1) <= limits_.variance);
    if (!shifted && !scaled) return;
    told_.insert(view.trial.tensor(entry.tensor).name);
    Finding finding = FindingAt(kName, kPage, shifted ? "mean" : "variance", view.trial, entry.tensor,
                                entry.worker, view.rows.info);
    finding.what =
        shifted ? fmt::format("the mean of a channel of {} is {:.3g}", finding.tensor, worst_mean)
                : fmt::format("the variance of a channel of {} is {:.3g}", finding.tensor, worst_variance);
    finding.why = fmt::format(
        "{} images were looked at; networks train best on inputs of mean 0 and variance 1", images.count);
    finding.remedy = "subtract the mean and divide by the deviation of the training data, channel by channel";
    finding.evidence = {
        {"mean", worst_mean}, {"variance", worst_variance}, {"images", static_cast<double>(images.count)}};
    finding.threshold = shifted
                            ? fmt::format("a mean beyond {:g} (original)", limits_.mean)
                            : fmt::format("a variance more than {:g} away from 1 (paper)", limits_.variance);
    sink.Report(std::move(finding));
  }

  TensorSelector selector_;
  const Limits limits_;
  std::set<std::string> told_;
  std::map<std::string, Images> images_;
};

Parameters WithSelector(const Parameters& parameters) {
  Parameters chosen = parameters;
  chosen["tensor_regex"] = TextOf(parameters, "regex");
  return chosen;
}

}  // namespace

RuleSpec CheckInputImagesSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = kPage;
  spec.summary = "input images whose mean (or variance) was not normalised";
  spec.parameters = {
      {"regex", "None", ".*hybridsequential0_input_0",
       "tensors of images (original: the name that MXNet gives); without it the rule is silent"},
      {"threshold_mean", "0.2", "0.2", "largest absolute mean of a channel (original)"},
      {"threshold_variance", "None", "None", "largest distance of a channel's variance from 1 (paper)"},
      {"threshold_samples", "500", "500", "images before it is judged (original)"},
      {"channel", "1", "1", "axis of the colour channel (original)"},
      {"interval", "1", "500", "steps between two captures (original: 500)"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    Result<TensorSelector> selector = TensorSelector::Make(WithSelector(parameters), false);
    std::vector<Need> needs;
    if (!selector.ok()) return needs;
    needs = selector.value().NeedsOf("input_image", Bit(Form::kSummary) | Bit(Form::kRaw));
    const Result<std::int64_t> interval = ParseInt(TextOf(parameters, "interval"));
    for (Need& need : needs)
      need.save_interval = interval.ok() ? std::max<std::int64_t>(interval.value(), 1) : 1;
    return needs;
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(WithSelector(parameters), false));
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.mean, ParseDouble(TextOf(parameters, "threshold_mean")));
    if (HasParameter(parameters, "threshold_variance")) {
      LUFF_ASSIGN_OR_RETURN(limits.variance, ParseDouble(TextOf(parameters, "threshold_variance")));
    }
    LUFF_ASSIGN_OR_RETURN(limits.samples, ParseInt(TextOf(parameters, "threshold_samples")));
    LUFF_ASSIGN_OR_RETURN(limits.channel, ParseInt(TextOf(parameters, "channel")));
    LUFF_ASSIGN_OR_RETURN(const std::int64_t interval, ParseInt(TextOf(parameters, "interval")));
    if (interval < 1 || limits.channel < 0)
      return InvalidArgument("'interval' must be at least 1 and 'channel' 0");
    return std::unique_ptr<Rule>(new CheckInputImages(std::move(selector), limits));
  };
  return spec;
}

}  // namespace luff::rules
