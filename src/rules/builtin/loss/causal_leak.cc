#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
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
        // What an encoder gives to another model is no score, and what sees one token only may be an
        // autoencoder.
        const bool speaks = !FlagIn(*answer, "elsewhere") && !FlagIn(*answer, "alone");
        if (speaks && !FlagIn(*answer, "sees") && NumberIn(*answer, "itself") > limits_.change)
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
    for (const auto& cut : view.index.json_events("places_cut")) NoteCut(*cut);
    if (view.rows.info.superseded) return;
    if (const std::optional<bool> ahead = AreAhead(view)) ahead_ = *ahead ? ahead_ + 1 : 0;
    if (ahead_ >= kAhead && MeetFirst()) TellAhead(view, sink);
  }
  void VisitFields(Fields& io) override {
    io("told", told_);
    io("ahead", ahead_);
    io("cut_to", cut_to_);
    io("later", later_);
    io("ends", ends_);
  }

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

  // Which places of the outputs meet the targets: those up to the last ones, or those after the first ones.
  void NoteCut(const Json& cut) {
    const double start = NumberIn(cut, "start");
    const double places = NumberIn(cut, "places");
    if (start > 0) later_ = true;
    if (start != 0 || !(places >= 1) || ends_.size() >= kCuts) return;
    const auto left = static_cast<std::int64_t>(places);
    if (std::find(ends_.begin(), ends_.end(), left) == ends_.end()) ends_.push_back(left);
  }

  // Whether the targets meet the outputs from the first place on. Fewer targets than ids in a row do so only
  // if outputs of the last places are left out: those of the first ones may be, or a model gives fewer than
  // ids.
  [[nodiscard]] bool MeetFirst() const {
    return !later_ && (cut_to_ == 0 || std::find(ends_.begin(), ends_.end(), cut_to_) != ends_.end());
  }

  // Whether the targets of the step's only loss are a model's ids two places further on; nullopt if there are
  // no such targets at all.
  std::optional<bool> AreAhead(const StepView& view) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    if (calls.size() != 1 || !IsIds(calls.front().target.dtype)) return std::nullopt;
    const LossCall& call = calls.front();
    std::vector<std::shared_ptr<const SampleValues>> given;
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (!IsIds(input.entry->dtype)) continue;
      auto ids = LoadSample(view, *input.entry);
      if (ids == nullptr || ids->shape.size() != 2 || !ids->whole() || RowsOf(*ids).width < kLength) continue;
      if (ElementsOf(call.target.whole_shape) % RowsOf(*ids).count == 0) given.push_back(std::move(ids));
    }
    std::optional<bool> ahead;
    for (const auto& ids : given) {
      const Rows rows = RowsOf(*ids);
      const std::size_t width = ElementsOf(call.target.whole_shape) / rows.count;
      if (width > rows.width || width + 2 < rows.width) continue;
      const auto fits = [&](std::size_t shift) {
        return Agreement(*ids, call.target.values, width, shift, call.settings.ignore_index);
      };
      const bool fitting = fits(0) >= kFits || fits(1) >= kFits;
      // Labels that are passed along are the next tokens of another argument.
      const bool labels = fitting && std::any_of(given.begin(), given.end(), [&](const auto& other) {
                            return other != ids && other->shape == ids->shape &&
                                   Agreement(*other, ids->values, rows.width, 1, NAN) >= kFits;
                          });
      if (fitting && !labels) return false;
      if (fitting) continue;
      const bool here = fits(2) >= kFits && fits(0) <= kOther && fits(1) <= kOther;
      if (here) cut_to_ = width == rows.width ? 0 : static_cast<std::int64_t>(width);
      ahead = ahead.value_or(false) || here;
    }
    return ahead;
  }

  // The share of targets, `width` for each row of ids, that are the id of their row `shift` places further
  // on; 0 if too few can be compared.
  static double Agreement(const SampleValues& ids, const std::vector<double>& targets, std::size_t width,
                          std::size_t shift, double ignored) {
    const Rows rows = RowsOf(ids);
    std::size_t compared = 0;
    std::size_t equal = 0;
    for (std::size_t row = 0; row < targets.size() / width && row < rows.count; ++row) {
      for (std::size_t i = 0; i < width && i + shift < rows.width; ++i) {
        const double target = targets[row * width + i];
        if (target < 0 || target == ignored) continue;
        ++compared;
        equal += target == ids.values[row * rows.width + i + shift] ? 1 : 0;
      }
    }
    return compared < kPlaces ? 0 : static_cast<double>(equal) / static_cast<double>(compared);
  }

  void TellAhead(const StepView& view, Sink& sink) {
    if (std::exchange(told_, true)) return;
    const LossCall& call = LossReader::Read(view).front();
    Finding finding = FindingAt(kName, "shifted_twice", view, TensorAt{call.loss, call.worker});
    finding.since_step = 0;
    finding.what = "the targets are the model's tokens two places further on, not the next ones";
    finding.why =
        "id by id the target of each place is the one after the next: what the model says is taken for the "
        "next "
        "token where it is used, and is never right";
    finding.remedy =
        "shift once: give labels=tokens to a model that shifts by itself, or inputs tokens[:, :-1] and "
        "targets "
        "tokens[:, 1:]";
    finding.causes = {"targets that are shifted by the script and by the model",
                      "windows whose targets begin one place too late"};
    finding.evidence = {{"captured_steps", static_cast<double>(ahead_)}};
    finding.threshold =
        fmt::format("{:g} % of the targets of {} captured steps in a row (Luff)", 100 * kFits, kAhead);
    sink.Report(std::move(finding));
  }

  static constexpr std::size_t kLength = 8, kPlaces = 64;  // of a row; that are compared
  static constexpr std::size_t kCuts = 4;
  static constexpr double kFits = 0.99, kOther = 0.5;
  static constexpr std::int64_t kAhead = 3;  // captured steps in a row
  const Limits limits_;
  bool told_ = false;
  std::int64_t ahead_ = 0;
  std::int64_t cut_to_ = 0;         // targets of a row, if they are fewer than its ids
  bool later_ = false;              // outputs of the first places meet no targets
  std::vector<std::int64_t> ends_;  // places that are left of outputs whose last ones meet none
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<CausalLeak>(kName, kParams);
  // 2: cause "not_shifted"; 3: "shifted_twice"; 4: not of parts; 5: "shifted_twice" knows the outputs' places
  spec.version = 5;
  spec.summary = "a model of next tokens that sees them, or is trained on others";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::causal_leak
