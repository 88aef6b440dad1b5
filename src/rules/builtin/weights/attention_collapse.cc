#include <algorithm>
#include <array>
#include <cmath>
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

/// AttentionCollapse: docs/rules/attention_collapse.md.
namespace luff::rules::attention_collapse {
namespace {

using Json = nlohmann::json;
using format::Role;
constexpr const char* kName = "AttentionCollapse";
constexpr std::size_t kMaxMaps = 16;
constexpr std::int64_t kFirst = 4;         // TRAIN step up to which nothing is learned
constexpr std::int64_t kLooksAtFirst = 3;  // of the looks at steps 0, 1, 2, 4
constexpr double kAlive = 0.3;             // share of the greatest entropy from which attention looks around

struct Limits {
  double start, collapsed;
  std::int64_t looks;
  double learned;
};
constexpr Bound kShare = {.least = 0, .most = 1, .above = true};
constexpr Param<Limits> kParams[] = {
    {&Limits::start, "start", "0.8",
     "weight of one key in each head of each layer, in the first steps (Luff)", kShare},
    {&Limits::collapsed, "collapsed", "0.95", "weight of one key in each head of a layer, later (Luff)",
     kShare},
    {&Limits::looks, "looks", "3", "looks in a row (Luff)", AtLeast(1)},
    {&Limits::learned, "learned", "0.3",
     "share by which the loss has fallen where that is the solution (Luff)", Between(0, 1)},
};

class AttentionCollapse final : public KeptRule {
 public:
  explicit AttentionCollapse(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded) return;
    for (const auto& [entry, tensor] : view.index.scalars(Role::kLoss)) {
      if (!std::isfinite(entry.value)) continue;
      if (losses_ < 4) first_loss_ += entry.value / 4;
      loss_ = losses_ == 0 ? entry.value : loss_ + 0.1 * (entry.value - loss_);
      ++losses_;
      break;
    }
    for (const auto& padded : view.index.json_events("padded_attention")) Padded(view, *padded, sink);
    for (const auto& inside : view.index.json_events("inside")) {
      Crossed(view, NumberIn(*inside, "crossed"), sink);
      Judge(view, ListIn(*inside, "attention"), sink);
    }
  }
  void VisitFields(Fields& io) override {
    io("maps", maps_, kMaxMaps);
    io("sharp", sharp_);
    io("losses", losses_);
    io("first_loss", first_loss_);
    io("loss", loss_);
    io("told", told_);
    io("crossed", crossed_);
  }

 private:
  struct Map {
    bool alive = false;         // it has looked around before
    std::int64_t in_a_row = 0;  // looks at which it was collapsed
    std::int64_t since = 0;
    double loss = 0;  // at `since`
    void VisitFields(Fields& io) {
      io("alive", alive);
      io("in_a_row", in_a_row);
      io("since", since);
      io("loss", loss);
    }
  };

  // Weights that sum to 1 along another axis than that of the keys; a look without any takes it back.
  void Crossed(const StepView& view, double count, Sink& sink) {
    if (told_ || crossed_ < 0) return;
    crossed_ = count >= 1 ? crossed_ + 1 : -1;
    if (crossed_ < kLooksAtFirst) return;
    told_ = true;
    Finding finding = FindingAt(kName, "other_axis", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = "the softmax of attention runs over another axis than that of the keys";
    finding.why =
        "the graph shows weights that sum to 1 along one axis, over queries, heads or samples, and that "
        "weigh the "
        "values along another: queries compete for a key, and what a query gets is no mean of values";
    finding.remedy = "give the softmax the axis of the keys, the last one: dim=-1";
    finding.causes = {"softmax(dim=1), or none, on scores of three or four dimensions"};
    finding.evidence = {{"layers", count}};
    finding.threshold =
        fmt::format("a fact of the graph, in each of the first {} looks (Luff)", kLooksAtFirst);
    sink.Report(std::move(finding));
  }

  // Weights that are 0 on all words of padded rows: a fact of the graph, of all layers that look at these
  // rows.
  void Padded(const StepView& view, const Json& event, Sink& sink) {
    const double layers = NumberIn(event, "layers");
    const double rows = NumberIn(event, "rows");
    if (told_ || !(layers >= 1) || !(rows >= 2)) return;
    told_ = true;
    Finding finding = FindingAt(kName, "padding_only", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = "attention looks at padding only: its mask is the wrong way round";
    finding.why = fmt::format(
        "in {:g} rows of the batch that end in padding, all weights on the words before it are 0, in all "
        "heads and "
        "layers ({:g}) whose keys are these places: each row is told nothing but how long it is",
        rows, layers);
    finding.remedy =
        "turn the mask: key_padding_mask and masked_fill take True for what is left out (ids == PAD); "
        "scaled_dot_product_attention takes True for what is kept (ids != PAD)";
    finding.causes = {"a mask of what is kept where one of what is left out is due, or the other way",
                      "a mask that is inverted twice"};
    finding.evidence = {{"rows", rows}, {"layers", layers}};
    finding.threshold = "a fact of the graph (Luff)";
    sink.Report(std::move(finding));
  }

  void Judge(const StepView& view, const Json& maps, Sink& sink) {
    if (told_ || maps.empty()) return;
    std::vector<std::array<double, 2>> seen;  // smallest weight of one key among the heads, entropy
    for (const Json& map : maps) {
      const double least = NumberIn(map, "least");
      const double entropy = NumberIn(map, "entropy");
      if (!(least > 0) || !(entropy >= 0) || !(NumberIn(map, "rows") >= 4)) return;
      if (seen.size() < kMaxMaps) seen.push_back({least, entropy});
    }
    const query::StepInfo& info = view.rows.info;
    if (info.mode_step <= kFirst) {
      const bool all =
          std::all_of(seen.begin(), seen.end(), [&](const auto& one) { return one[0] >= limits_.start; });
      sharp_ = all ? sharp_ + 1 : -kLooksAtFirst - 2;
      if (sharp_ == kLooksAtFirst) Tell(view, maps, "sharp_start", seen.size(), seen[0][0], sink);
    }
    if (told_) return;
    maps_.resize(seen.size());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      Map& map = maps_[i];
      map.alive = map.alive || seen[i][1] >= kAlive;
      if (seen[i][0] < limits_.collapsed) {
        map.in_a_row = 0;
        continue;
      }
      if (map.in_a_row++ == 0) {
        map.since = info.mode_step;
        map.loss = loss_;
      }
    }
    std::size_t collapsed = 0;
    double sharpest = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const Map& map = maps_[i];
      // A model that has learned by looking at one place is right to do so.
      const bool useless = losses_ > 8 && first_loss_ > 0 && loss_ > (1 - limits_.learned) * first_loss_ &&
                           loss_ > 0.95 * map.loss;
      if (map.alive && map.in_a_row >= limits_.looks && info.mode_step >= map.since + 64 && useless) {
        ++collapsed;
        sharpest = std::max(sharpest, seen[i][0]);
      }
    }
    if (collapsed > 0) Tell(view, maps, "collapsed", collapsed, sharpest, sink);
  }

  void Tell(const StepView& view, const Json& maps, const char* cause, std::size_t count, double least,
            Sink& sink) {
    told_ = true;
    const query::StepInfo& info = view.rows.info;
    const bool start = cause == std::string_view("sharp_start");
    Finding finding = FindingAt(kName, cause, view, TensorAt{format::kNoId});
    finding.since_step = 0;
    if (!start) {
      finding.since_step = info.mode_step;
      for (const Map& map : maps_) {
        if (map.alive && map.in_a_row >= limits_.looks)
          finding.since_step = std::min(finding.since_step, map.since);
      }
    }
    finding.what = start ? "attention looks at one place only from the first step on"
                         : fmt::format("attention of {} of {} layers has come to look at one place only",
                                       count, maps.size());
    finding.why =
        start
            ? fmt::format(
                  "in every layer each head gives {:.0f} % of its weight or more to one key, before anything "
                  "was learned: the softmax is at its limit, and nearly no gradient passes it",
                  std::floor(100 * least))
            : fmt::format(
                  "each of their heads gives more than {:.0f} % of its weight to one key, and the loss has "
                  "not fallen since ({:.4g}, at first {:.4g})",
                  100 * limits_.collapsed, loss_, first_loss_);
    finding.remedy =
        start ? "divide scores by the square root of the head's width; initialise query and key smaller"
              : "lower the learning rate or warm it up longer; normalise queries and keys";
    finding.causes = start ? std::vector<std::string>{"scores are not scaled by 1/sqrt(width)",
                                                      "query and key are initialised too large",
                                                      "a temperature far too low"}
                           : std::vector<std::string>{"scores have grown: learning rate too high",
                                                      "no warm-up", "queries and keys are not normalised"};
    finding.evidence = {{"layers", count}, {"least", least}, {"loss", loss_}, {"first", first_loss_}};
    finding.threshold = start ? fmt::format("{:g} of the weight at {} looks in the first {} steps (Luff)",
                                            limits_.start, kLooksAtFirst, kFirst + 1)
                              : fmt::format("{:g} of the weight at {} looks in a row (Luff)",
                                            limits_.collapsed, limits_.looks);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::vector<Map> maps_;
  std::int64_t sharp_ = 0, losses_ = 0;
  double first_loss_ = 0, loss_ = 0;
  bool told_ = false;
  std::int64_t crossed_ = 0;  // looks that showed it; -1: one did not
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<AttentionCollapse>(kName, kParams);
  spec.version = 3;  // 2: cause "other_axis"; 3: "padding_only"
  spec.summary =
      "attention over a wrong axis, of padding alone, or of one place only that has taught it nothing";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::attention_collapse
