#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// PosteriorCollapse: docs/rules/posterior_collapse.md.
namespace luff::rules::posterior_collapse {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "PosteriorCollapse";
constexpr std::size_t kMaxSeries = 64;

struct Limits {
  double nats;
  std::int64_t looks, steps;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::nats, "nats", "0.1", "most that the code may tell, in nats (Luff)", Above(0)},
    {&Limits::looks, "looks", "3", "looks in a row that say so (Luff)", AtLeast(1)},
    {&Limits::steps, "steps", "32", "TRAIN steps before they count (Luff)", AtLeast(0)},
};

class PosteriorCollapse final : public KeptRule {
 public:
  explicit PosteriorCollapse(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded) return;
    for (const auto& inside : view.index.json_events("inside")) Judge(view, ListIn(*inside, "codes"), sink);
  }
  void VisitFields(Fields& io) override {
    io("most", most_);
    io("in_a_row", in_a_row_);
    io("since", since_);
    io("told", told_);
    io("series", series_, kMaxSeries);
  }

 private:
  // Judges all codes of the step together: one level of several may be left unused.
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
    Finding finding = FindingAt(kName, "unused_code", view, TensorAt{format::kNoId});
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

RuleSpec Spec() {
  RuleSpec spec = SpecOf<PosteriorCollapse>(kName, kParams);
  spec.summary = "a variational model whose code tells nothing of the input";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::posterior_collapse
