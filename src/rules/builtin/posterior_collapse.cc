#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_event.h"
#include "rules/json_state.h"
#include "rules/sample_needs.h"
#include "rules/select.h"

/// PosteriorCollapse: docs/rules/posterior_collapse.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "PosteriorCollapse";
constexpr const char* kPage = "docs/rules/posterior_collapse.md";
constexpr std::size_t kMaxSeries = 64;

struct Limits {
  double nats = 0.1;
  std::int64_t looks = 3;
  std::int64_t steps = 32;
};

class PosteriorCollapse final : public Rule {
 public:
  explicit PosteriorCollapse(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded) return;
    for (const std::string& text : view.rows.event_json) {
      const std::optional<Json> inside = EventOfKindUntrusted(text, "inside");
      if (inside) Judge(view, ListIn(*inside, "codes"), sink);
    }
  }
  [[nodiscard]] std::string SaveState() const override {
    return JsonText(Json{
        {"most", most_}, {"in_a_row", in_a_row_}, {"since", since_}, {"told", told_}, {"series", series_}});
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      most_ = json.at("most");
      in_a_row_ = json.at("in_a_row");
      since_ = json.at("since");
      told_ = json.at("told");
      series_ = json.at("series").get<std::vector<std::pair<std::int64_t, double>>>();
    });
  }

 private:
  // All codes of the step together: one of several levels may be left unused.
  void Judge(const StepView& view, const Json& codes, Sink& sink) {
    double nats = 0;
    double used = 0;
    double width = 0;
    for (const Json& code : codes) {
      const double one = NumberIn(code, "nats");
      const double dimensions = NumberIn(code, "used");
      const double all = NumberIn(code, "width");
      if (!(one >= -1e-3) || !(dimensions >= 0) || !(all >= 1) || !(NumberIn(code, "rows") >= 2)) return;
      nats += std::max(one, 0.0);
      used += dimensions;
      width += all;
    }
    if (width == 0) return;
    const query::StepInfo& info = view.rows.info;
    if (series_.size() >= kMaxSeries) series_.erase(series_.begin() + 1);
    series_.emplace_back(info.mode_step, nats);
    most_ = std::max(most_, nats);
    const bool gone = used == 0 && nats <= limits_.nats && nats <= 0.5 * most_ && most_ >= 0.02;
    if (!gone) {
      if (told_) sink.Heal("unused_code", "", info.mode_step);
      told_ = false;
      in_a_row_ = 0;
      return;
    }
    if (info.mode_step < limits_.steps) return;
    if (in_a_row_++ == 0) since_ = info.mode_step;
    if (in_a_row_ < limits_.looks || told_) return;
    told_ = true;
    Finding finding = FindingAt(kName, kPage, "unused_code", view.trial, format::kNoId, 0, info);
    finding.since_step = since_;
    finding.what = fmt::format(
        "the code that the model draws tells nothing of the input: {:.2g} nats in {:g} dimensions", nats,
        width);
    finding.why = fmt::format(
        "mean and standard deviation are those of N(0, 1) for every sample (divergence {:.2g}, once {:.2g}; "
        "no "
        "dimension "
        "above 0.01): the decoder answers without it",
        nats, most_);
    finding.remedy =
        "a smaller weight of the divergence, raised slowly from 0 (annealing), a few free nats, or a weaker "
        "decoder; "
        "check "
        "that reconstruction and divergence are both sums, or both means, over the same axes";
    finding.causes = {"the divergence outweighs the reconstruction",
                      "reconstruction is a mean over elements, the divergence a sum",
                      "a decoder that does without the code"};
    finding.evidence = {{"nats", nats}, {"most", most_}, {"dimensions", width}};
    finding.series = series_;
    finding.threshold =
        fmt::format("at most {:g} nats, half of what it was, no dimension used, {} looks in a row (Luff)",
                    limits_.nats, limits_.looks);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  double most_ = 0;
  std::int64_t in_a_row_ = 0, since_ = 0;
  bool told_ = false;
  std::vector<std::pair<std::int64_t, double>> series_;
};

}  // namespace

RuleSpec PosteriorCollapseSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = kPage;
  spec.summary = "a variational model whose code tells nothing of the input";
  spec.parameters = {{"nats", "0.1", "0.1", "most that the code may tell, in nats (Luff)"},
                     {"looks", "3", "3", "looks in a row that say so (Luff)"},
                     {"steps", "32", "32", "TRAIN steps before they count (Luff)"}};
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.nats, ParseDouble(TextOf(parameters, "nats")));
    LUFF_ASSIGN_OR_RETURN(limits.looks, ParseInt(TextOf(parameters, "looks")));
    LUFF_ASSIGN_OR_RETURN(limits.steps, ParseInt(TextOf(parameters, "steps")));
    if (!(limits.nats > 0) || limits.looks < 1 || limits.steps < 0)
      return InvalidArgument("'nats' must be above 0, 'looks' at least 1, 'steps' not below 0");
    return std::unique_ptr<Rule>(new PosteriorCollapse(limits));
  };
  return spec;
}

}  // namespace luff::rules
