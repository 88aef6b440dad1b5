#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/phases.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ModeCollapse: docs/rules/mode_collapse.md.
namespace luff::rules::mode_collapse {
namespace {

constexpr const char* kName = "ModeCollapse";
constexpr std::size_t kRows = 128;   // of each batch that are compared
constexpr std::size_t kFewest = 32;  // rows of a batch that is judged
constexpr std::size_t kWidth = 256;  // values per row that are compared; longer rows are sampled evenly
constexpr std::size_t kNearest = 5;  // as in the definition of coverage and density
constexpr std::size_t kMaxModels = 16;

struct Limits {
  double coverage, density, spread;
  std::int64_t batches, steps;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::coverage, "coverage", "0.25", "share of the data near which something is made (Luff)",
     Above(0)},
    {&Limits::density, "density", "0.4", "how often what is made lies among data; 1 for a perfect one (Luff)",
     Above(0)},
    {&Limits::spread, "spread", "0.1", "of what is made, beside the data's (Luff)", Above(0)},
    {&Limits::batches, "batches", "16", "sampled batches in a row (Luff)", AtLeast(1)},
    {&Limits::steps, "steps", "128", "TRAIN steps before they count (Luff)", AtLeast(0)},
};

// The rows of a batch. Distances and radii (to the kNearest-th neighbour in the batch) are squared.
struct Batch {
  std::size_t rows = 0, width = 0;
  const double* values = nullptr;
  std::size_t used = std::min(width, kWidth), step = width / used;
  [[nodiscard]] double At(std::size_t row, std::size_t f) const noexcept {
    return values[row * width + f * step];
  }
  [[nodiscard]] double Distance(std::size_t i, const Batch& other, std::size_t j) const noexcept {
    double sum = 0;
    for (std::size_t f = 0; f < used; ++f) {
      const double difference = At(i, f) - other.At(j, f);
      sum += difference * difference;
    }
    return sum;
  }
  [[nodiscard]] std::vector<double> Radii() const {
    std::vector<double> radii(rows);
    std::vector<double> distances(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < rows; ++j) distances[j] = Distance(i, *this, j);
      const auto at = distances.begin() + std::min(kNearest, rows - 1);  // 0 is the row itself
      std::nth_element(distances.begin(), at, distances.end());
      radii[i] = *at;
    }
    return radii;
  }
  // Square root of the summed variances.
  [[nodiscard]] double Spread() const {
    double total = 0;
    const double n = static_cast<double>(rows);
    for (std::size_t f = 0; f < used; ++f) {
      double mean = 0;
      for (std::size_t i = 0; i < rows; ++i) mean += At(i, f) / n;
      for (std::size_t i = 0; i < rows; ++i) total += (At(i, f) - mean) * (At(i, f) - mean) / n;
    }
    return std::sqrt(total);
  }
};

// Coverage: the share of real rows that have a generated row within their radius. Density: how often
// generated rows lie within these radii. Naeem et al., Reliable Fidelity and Diversity Metrics for Generative
// Models, 2020.
struct Cover {
  double coverage = 0, density = 0, spread = 1;
};
Cover CoverOf(const Batch& real, const Batch& made) {
  const std::vector<double> radii = real.Radii();
  double covered = 0;
  double inside = 0;
  for (std::size_t i = 0; i < real.rows; ++i) {
    bool any = false;
    for (std::size_t j = 0; j < made.rows; ++j) {
      if (real.Distance(i, made, j) >= radii[i]) continue;
      any = true;
      inside += 1;
    }
    covered += any ? 1 : 0;
  }
  const double spread = real.Spread();
  return {covered / static_cast<double>(real.rows), inside / static_cast<double>(kNearest * made.rows),
          spread > 0 ? made.Spread() / spread : 1};
}

class ModeCollapse final : public KeptRule {
 public:
  explicit ModeCollapse(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.superseded) return;
    phases_.OnStep(view);
    if (!phases_.several()) return;
    std::map<std::string, std::vector<const ModelInput*>> of_model;
    const auto& inputs = ModelInputsOf(view);
    for (const ModelInput& input : inputs) of_model[input.model].push_back(&input);
    // Looks for a model that judges two batches while another model was called in the same step: that one
    // made one of the two.
    if (of_model.size() < 2) return;
    for (const auto& [model, given] : of_model) {
      if (given.size() != 2) continue;
      const auto first = LoadSample(view, *given[0]->entry);
      const auto second = LoadSample(view, *given[1]->entry);
      if (!first || !second || !first->is_float() || !second->is_float()) continue;
      const Rows rows = RowsOf(*first);
      const Rows others = RowsOf(*second);
      if (rows.width != others.width || rows.width == 0 || std::min(rows.count, others.count) < kFewest)
        continue;
      const std::size_t n = std::min({rows.count, others.count, kRows});
      Look(view, model, Batch{.rows = n, .width = rows.width, .values = first->values.data()},
           Batch{.rows = n, .width = rows.width, .values = second->values.data()}, sink);
    }
  }
  void VisitFields(Fields& io) override {
    io("phases", phases_);
    io("models", models_, kMaxModels);
  }

 private:
  struct Model {
    std::int64_t batches = 0;                      // in a row with a coverage of at most 0.5
    double coverage = 0, density = 0, spread = 0;  // sums over them
    std::int64_t since = 0;
    bool told = false;
    void VisitFields(Fields& io) {
      io("batches", batches);
      io("coverage", coverage);
      io("density", density);
      io("spread", spread);
      io("since", since);
      io("told", told);
    }
  };

  void Look(const StepView& view, const std::string& name, const Batch& first, const Batch& second,
            Sink& sink) {
    if (!models_.contains(name) && models_.size() >= kMaxModels) return;
    const query::StepInfo& info = view.rows.info;
    if (info.mode_step < limits_.steps) return;
    Model& model = models_[name];
    // The narrower batch counts as the generated one; coverage is the lower one of both directions.
    const bool swapped = first.Spread() < second.Spread();
    const Cover one = swapped ? CoverOf(second, first) : CoverOf(first, second);
    const Cover other = swapped ? CoverOf(first, second) : CoverOf(second, first);
    const Cover& cover = one.coverage <= other.coverage ? one : other;
    if (!(std::isfinite(cover.spread)) || cover.coverage > 0.5) {
      if (model.told) sink.Heal("few_modes", name, info.mode_step);
      model = {};
      return;
    }
    if (model.batches++ == 0) model.since = info.mode_step;
    model.coverage += cover.coverage;
    model.density += cover.density;
    model.spread += one.spread;
    if (model.batches < limits_.batches || model.told) return;
    const double n = static_cast<double>(model.batches);
    const double coverage = model.coverage / n;
    const double density = model.density / n;
    const double spread = model.spread / n;
    const bool narrow = spread <= limits_.spread;
    if (coverage > limits_.coverage || (density < limits_.density && !narrow)) {
      // Coverage is too high, or the batch is far from the data because nothing is learned yet. Starts again.
      model = {};
      return;
    }
    model.told = true;
    Finding finding = FindingAt(kName, "few_modes", view, TensorAt{format::kNoId});
    finding.tensor = name;
    finding.since_step = model.since;
    finding.what = narrow ? "the generator makes nearly the same for every noise"
                          : fmt::format("the generator makes {:.2g} % of what the data hold", 100 * coverage);
    finding.why = fmt::format(
        "of two batches that {} judges in a step, {:.2g} % of one have a row of the other among their "
        "nearest "
        "neighbours "
        "(density {:.2g}, spread {:.2g} of the other's), over {} batches: what is made is {}",
        name, 100 * coverage, density, spread, model.batches,
        density >= limits_.density ? "like data, but like few of them" : "in one place");
    finding.remedy =
        "balance the two: lower the generator's learning rate, update the discriminator more often, add "
        "noise to its "
        "inputs, or let it see whole batches (minibatch statistics)";
    finding.causes = {"the generator learns faster than the discriminator",
                      "noise that the generator does not use"};
    finding.evidence = {{"coverage", coverage}, {"density", density}, {"spread", spread}};
    finding.threshold = fmt::format("coverage {:g}, and density {:g} or spread {:g}, over {} batches (Luff)",
                                    limits_.coverage, limits_.density, limits_.spread, limits_.batches);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  Phases phases_;
  std::map<std::string, Model> models_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ModeCollapse>(kName, kParams);
  spec.summary = "a generator that makes a few of what the data hold";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::mode_collapse
