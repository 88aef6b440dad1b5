#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// CausalLeak: docs/rules/causal_leak.md.
namespace luff::rules::causal_leak {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "CausalLeak";

struct Limits {
  double change;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::change, "change", "1e-3", "smallest change of outputs that counts, beside their spread (Luff)",
     Above(0)},
};

class CausalLeak final : public KeptRule {
 public:
  explicit CausalLeak(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain || told_) return;
    for (const auto& answer : view.index.json_events("causal")) {
      if (FlagIn(*answer, "copied")) {
        if (!FlagIn(*answer, "sees") && NumberIn(*answer, "itself") > limits_.change)
          TellCopied(view, *answer, sink);
        continue;  // a model that sees all tokens may be an autoencoder
      }
      if (!FlagIn(*answer, "sees")) continue;
      const double change = NumberIn(*answer, "change");
      const double length = NumberIn(*answer, "length");
      const double place = NumberIn(*answer, "place");
      const double places = NumberIn(*answer, "places");
      if (!(change > limits_.change) || !(length >= 2) || !(place >= 0) || !(places >= 1)) continue;
      Tell(view, *answer, change, sink);
      return;
    }
  }
  void VisitFields(Fields& io) override { io("told", told_); }

 private:
  void TellCopied(const StepView& view, const Json& answer, Sink& sink) {
    if (std::exchange(told_, true)) return;
    Finding finding = FindingAt(kName, "not_shifted", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = "the targets of a model that sees no later tokens are its own input";
    finding.why =
        "each place has its own token for a target, and sees it: it learns to repeat it, and nothing of the "
        "next "
        "one";
    finding.remedy =
        "shift the targets by one place: inputs tokens[:, :-1], targets tokens[:, 1:] (a model that shifts "
        "by "
        "itself wants labels=tokens)";
    finding.causes = {"targets taken without the shift to the next token"};
    finding.evidence = {{"itself", NumberIn(answer, "itself")}, {"length", NumberIn(answer, "length")}};
    finding.threshold = "a fact, asked of the model itself (Luff)";
    sink.Report(std::move(finding));
  }

  void Tell(const StepView& view, const Json& answer, double change, Sink& sink) {
    told_ = true;
    Finding finding = FindingAt(kName, "next_token", view, TensorAt{format::kNoId});
    finding.severity = Severity::kStop;
    finding.since_step = 0;
    const double place = NumberIn(answer, "place");
    const double places = NumberIn(answer, "places");
    finding.what = "the model sees the tokens that it is to predict";
    finding.why = fmt::format(
        "the loss's targets are the model's input one place further on; with other tokens behind place {:g} "
        "of "
        "{:g}, "
        "outputs up to that place change by {:.2g} of their spread{}",
        place, NumberIn(answer, "length"), change,
        places < place + 1 ? fmt::format(", at the last {:g} of {:g} places", places, place + 1)
                           : std::string());
    finding.remedy =
        places <= 1
            ? "let each place see itself and what is before it: diagonal of the mask (triu(1)), padding of "
              "convolutions on the left only"
            : "mask attention (is_causal=True, or a mask of triu(1)), leave out bidirectional layers and "
              "means "
              "over time";
    finding.causes = places <= 1
                         ? std::vector<std::string>{"a mask that is off by one", "padding on both sides"}
                         : std::vector<std::string>{"the causal mask is missing or not passed on",
                                                    "a mask of the wrong sign or dtype",
                                                    "a bidirectional layer, or a mean over all places"};
    finding.evidence = {
        {"change", change}, {"place", place}, {"places", places}, {"itself", NumberIn(answer, "itself")}};
    finding.threshold = fmt::format("more than {:g} of the outputs' spread, asked of the model itself (Luff)",
                                    limits_.change);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  bool told_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<CausalLeak>(kName, kParams);
  spec.version = 2;  // 2: cause "not_shifted"
  spec.summary = "a model of next tokens that sees them";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::causal_leak
