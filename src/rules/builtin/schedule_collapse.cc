#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/select.h"

/// ScheduleCollapse: docs/rules/schedule_collapse.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Role;
constexpr const char* kName = "ScheduleCollapse";
constexpr const char* kPage = "docs/rules/schedule_collapse.md";
constexpr const char* kCause = "collapse";
constexpr std::size_t kMaxGroups = 4096;
constexpr std::size_t kPicture = 64;

struct Limits {
  double share = 1e-3;
  std::int64_t updates = 20;
  double factor = 0.9;
  std::int64_t constant = 16;
};

// Every learning rate of the run has been below `share` of its peak for as many updates as the run had
// before. Forecast: from the first update on, every rate falls by one and the same factor with every update.
class ScheduleCollapse final : public Rule {
 public:
  explicit ScheduleCollapse(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain) return;
    bool any = false;
    for (const auto& entry : view.rows.scalars) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role != Role::kOptimizerSetting || !tensor.name.ends_with(".lr") ||
          !std::isfinite(entry.value))
        continue;
      if (groups_.size() >= kMaxGroups && !groups_.contains(tensor.name)) continue;
      any = true;
      groups_[tensor.name].Add(entry.value, info.mode_step, limits_);
    }
    if (!any) return;
    Judge(view, sink);
  }

  [[nodiscard]] std::string SaveState() const override {
    Json groups = Json::object();
    for (const auto& [name, g] : groups_)
      groups[name] = {g.values, g.peak, g.last, g.low, g.since, g.ratio, g.equal, g.picture, g.stride};
    return JsonText(Json{{"groups", std::move(groups)}, {"open", open_}});
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      for (const auto& [name, saved] : json.at("groups").items()) {
        Group& group = groups_[name];
        group.values = saved.at(0);
        group.peak = saved.at(1);
        group.last = saved.at(2);
        group.low = saved.at(3);
        group.since = saved.at(4);
        group.ratio = saved.at(5);
        group.equal = saved.at(6);
        group.picture = saved.at(7).get<std::vector<std::pair<std::int64_t, double>>>();
        group.stride = saved.at(8);
      }
      open_ = json.at("open").get<std::string>();
    });
  }

 private:
  struct Group {
    std::int64_t values = 0;  // updates
    double peak = 0, last = 0;
    std::int64_t low = 0;     // updates in a row below the share
    std::int64_t since = -1;  // step of the first of them
    double ratio = 0;         // of two rates in a row, from the first on
    std::int64_t equal = 0;   // how often it was the same; -1: it was not
    std::vector<std::pair<std::int64_t, double>> picture;
    std::int64_t stride = 1;

    void Add(double rate, std::int64_t step, const Limits& limits) {
      if (values > 0 && equal >= 0) {
        const double now = last > 0 ? rate / last : 0;
        if (equal == 0) ratio = now;
        equal = now > 0 && std::abs(now - ratio) <= 1e-6 * ratio ? equal + 1 : -1;
      }
      if (values % stride == 0) picture.emplace_back(step, rate);
      if (picture.size() >= kPicture) {
        std::size_t kept = 0;
        for (std::size_t i = 0; i < picture.size(); i += 2) picture[kept++] = picture[i];
        picture.resize(kept);
        stride *= 2;
      }
      ++values;
      peak = std::max(peak, rate);
      last = rate;
      const bool is_low = rate < limits.share * peak;
      if (is_low && low == 0) since = step;
      low = is_low ? low + 1 : 0;
    }
    [[nodiscard]] bool Collapsed(const Limits& limits) const {
      return low >= limits.updates && low >= values - low;
    }
    [[nodiscard]] bool Falls(const Limits& limits) const {
      return low == 0 && equal >= limits.constant && ratio <= limits.factor && last > 0;
    }
  };

  void Judge(const StepView& view, Sink& sink) {
    const bool collapsed = std::all_of(groups_.begin(), groups_.end(),
                                       [&](const auto& g) { return g.second.Collapsed(limits_); });
    const bool falls = !collapsed && std::all_of(groups_.begin(), groups_.end(), [&](const auto& g) {
      return g.second.Falls(limits_) || g.second.low > 0;
    });
    if (!collapsed && !falls) {
      if (!open_.empty()) sink.Heal(kCause, open_, view.rows.info.mode_step);
      open_.clear();
      return;
    }
    const auto& [name, group] = *groups_.begin();
    const double left = group.peak > 0 ? group.last / group.peak : 0;
    if (falls && group.low > 0) return;  // forecast, and it has come; not long enough to be said
    Finding finding = FindingAt(kName, kPage, kCause, view.trial, format::kNoId, 0, view.rows.info);
    if (open_.empty()) open_ = name;
    finding.tensor = open_;
    for (const auto& [other, unused] : groups_) {
      if (other != open_) finding.other_tensors.push_back(other);
    }
    finding.severity = collapsed ? Severity::kStop : Severity::kWarn;
    finding.series = group.picture;
    if (collapsed) {
      finding.since_step = group.since;
      finding.what = fmt::format("the learning rate is {:.1g} of its peak, and was so for {} of {} updates",
                                 left, group.low, group.values);
      finding.why =
          "at such a rate nothing more is learnt: the schedule has run out long before the training";
    } else {
      finding.since_step = 0;
      finding.forecast = true;
      finding.lead_steps = static_cast<std::int64_t>(
          std::ceil(std::log(limits_.share * group.peak / group.last) / std::log(group.ratio)));
      finding.what = fmt::format(
          "the learning rate falls to {:.3g} of itself with every update: in {} more it is {:g} of its peak",
          group.ratio, finding.lead_steps, limits_.share);
      finding.why =
          "a decay meant for each epoch is applied to each batch: the training ends before it has begun";
    }
    finding.remedy =
        "step the scheduler once per epoch if it counts epochs; if it counts updates, give it as many as "
        "there "
        "are";
    finding.causes = {"scheduler stepped per batch instead of per epoch",
                      "schedule planned for fewer updates than are made", "decay factor too small"};
    finding.evidence = {{"learning_rate", group.last},
                        {"peak", group.peak},
                        {"updates", static_cast<double>(group.values)},
                        {"updates_below", static_cast<double>(group.low)}};
    finding.threshold = collapsed
                            ? fmt::format(
                                  "every learning rate below {:g} of its peak for {} updates, and for as "
                                  "many as came before (Luff)",
                                  limits_.share, limits_.updates)
                            : fmt::format(
                                  "the same factor of {:g} or less {} times in a row from the first update "
                                  "on (Luff)",
                                  limits_.factor, limits_.constant);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Group> groups_;
  std::string open_;
};

}  // namespace

RuleSpec ScheduleCollapseSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = kPage;
  spec.summary = "the learning rate has fallen to next to nothing, long before the training ends";
  spec.parameters = {
      {"share", "1e-3", "1e-3", "of its peak, below which a learning rate is next to nothing (Luff)"},
      {"updates", "20", "20", "updates below it, at least; and as many as the run had before (Luff)"},
      {"factor", "0.9", "0.9", "forecast: factor of two learning rates in a row, or less (Luff)"},
      {"constant", "16", "16",
       "forecast: how often in a row it is the same, from the first update on (Luff)"},
  };
  spec.needs = [](const Parameters&) -> std::vector<Need> { return {}; };  // settings are always recorded
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.share, ParseDouble(TextOf(parameters, "share")));
    LUFF_ASSIGN_OR_RETURN(limits.updates, ParseInt(TextOf(parameters, "updates")));
    LUFF_ASSIGN_OR_RETURN(limits.factor, ParseDouble(TextOf(parameters, "factor")));
    LUFF_ASSIGN_OR_RETURN(limits.constant, ParseInt(TextOf(parameters, "constant")));
    if (limits.updates < 1 || limits.constant < 2 || !(limits.factor < 1) || !(limits.share > 0))
      return InvalidArgument("'updates' must be at least 1, 'constant' 2, 'factor' below 1, 'share' above 0");
    return std::unique_ptr<Rule>(new ScheduleCollapse(limits));
  };
  return spec;
}

}  // namespace luff::rules
