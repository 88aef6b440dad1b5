#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/builtin/builtin.h"
#include "rules/json_state.h"
#include "rules/select.h"
#include "rules/step_memo.h"

/// SymmetricUnits: docs/rules/symmetric_units.md.
namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Form;
using format::Role;
constexpr const char* kName = "SymmetricUnits";
constexpr const char* kPage = "docs/rules/symmetric_units.md";
constexpr std::size_t kMaxWeights = 1 << 16;

// The rows of a weight matrix are copies of each other when, and only when, the sum of squares of all its
// elements equals n * sum over positions of (mean over rows)^2 (Cauchy-Schwarz with equality). Both sides are
// known without the values: the summary, and sums per position along axis 0.
double SpreadOfRows(const Summary& summary, const UnitCounts& units) {
  const double rows = static_cast<double>(units.values_per_unit);
  double shared = 0;
  for (const double sum : units.sum) shared += sum * sum / rows;
  return 1 - shared / summary.sum_sq;
}

struct Limits {
  double spread = 1e-6;
  std::int64_t captures = 2;
};

class SymmetricUnits final : public Rule {
 public:
  explicit SymmetricUnits(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || view.rows.units.empty()) return;
    query::TensorId lead = format::kNoId;
    std::uint32_t worker = 0;
    double units = 0;
    double spread = 0;
    std::int64_t since = 0;
    std::vector<std::string> others;
    bool looked = false;
    for (const auto& entry : view.rows.units) {
      const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
      if (tensor.role != Role::kWeight || entry.counts.axis == UnitAxis::kLast ||
          entry.counts.values_per_unit < 2 || entry.counts.sum.size() < 2)
        continue;
      const Summary* summary = view.memo.SummaryOf(view, entry.tensor, entry.worker);
      if (summary == nullptr || summary->finite_count() != summary->count || !(summary->sum_sq > 0) ||
          summary->count != entry.counts.values_per_unit * entry.counts.sum.size())
        continue;
      looked = true;
      const std::string key = fmt::format("{}\n{}", entry.worker, tensor.name);
      if (weights_.size() >= kMaxWeights && !weights_.contains(key)) continue;
      Weight& weight = weights_[key];
      const double now = SpreadOfRows(*summary, entry.counts);
      const bool equal = std::abs(now) <= limits_.spread;
      const bool moved =
          weight.seen && (summary->sum_sq != weight.last_sum_sq || summary->sum != weight.last_sum);
      weight.moved = equal ? weight.moved + (moved ? 1 : 0) : 0;
      if (!weight.seen) weight.since = info.mode_step;
      weight.seen = true;
      weight.last_sum_sq = summary->sum_sq;
      weight.last_sum = summary->sum;
      if (!equal || weight.moved < limits_.captures) continue;
      if (lead == format::kNoId) {
        lead = entry.tensor;
        worker = entry.worker;
        units = static_cast<double>(entry.counts.values_per_unit);
        spread = now;
        since = weight.since;
      } else {
        others.push_back(tensor.name);
      }
    }
    if (!looked) return;
    if (lead == format::kNoId) {
      if (!open_.empty()) sink.Heal("copies", open_, info.mode_step);
      open_.clear();
      return;
    }
    Finding finding = FindingAt(kName, kPage, "copies", view.trial, lead, worker, info);
    if (open_.empty()) open_ = finding.tensor;
    if (open_ != finding.tensor) others.push_back(finding.tensor);
    finding.tensor = open_;
    std::erase(others, open_);
    finding.severity = Severity::kStop;
    finding.since_step = since;
    finding.other_tensors = std::move(others);
    finding.what = fmt::format("the {:g} units of {} are copies of each other", units, finding.tensor);
    finding.why =
        "units with equal weights get equal gradients and stay equal for ever: the layer can express no more "
        "than one unit";
    finding.remedy =
        "initialise the weights at random (the framework's default does); constants are for biases, gains "
        "and "
        "last layers only";
    finding.causes = {"weights initialised with a constant", "rows copied from one row",
                      "weights of zero in front of a layer that is zero too"};
    finding.evidence = {{"spread_of_rows", std::max(0.0, spread)}, {"units", units}};
    finding.threshold = fmt::format(
        "no difference between the rows (below {:g} of the weights' squares), after updates that "
        "moved them (exact; Luff)",
        limits_.spread);
    sink.Report(std::move(finding));
  }

  [[nodiscard]] std::string SaveState() const override {
    Json weights = Json::object();
    for (const auto& [name, w] : weights_)
      weights[name] = {w.seen, w.moved, w.since, w.last_sum_sq, w.last_sum};
    return JsonText(Json{{"weights", std::move(weights)}, {"open", open_}});
  }
  [[nodiscard]] Status LoadState(std::string_view text) override {
    return LoadJson(text, [&](const Json& json) {
      for (const auto& [name, w] : json.at("weights").items()) {
        Weight& weight = weights_[name];
        weight.seen = w.at(0);
        weight.moved = w.at(1);
        weight.since = w.at(2);
        weight.last_sum_sq = w.at(3);
        weight.last_sum = w.at(4);
      }
      open_ = json.at("open").get<std::string>();
    });
  }

 private:
  struct Weight {
    bool seen = false;
    std::int64_t moved = 0;  // captures at which it had moved, its rows still equal
    std::int64_t since = 0;
    double last_sum_sq = 0, last_sum = 0;
  };
  const Limits limits_;
  std::map<std::string, Weight> weights_;  // worker and name
  std::string open_;
};

}  // namespace

RuleSpec SymmetricUnitsSpec() {
  RuleSpec spec;
  spec.name = kName;
  spec.page = kPage;
  spec.summary = "all units of a layer are copies of each other, and stay so";
  spec.parameters = {
      {"spread", "1e-6", "1e-6",
       "share of the weights' squares that differs between rows; sums are kept to 1e-7 (Luff)"},
      {"captures", "2", "2", "captures at which the weights have moved and the rows are still equal (Luff)"},
      {"interval", "64", "64", "TRAIN steps between two captures after the first four (Luff)"},
  };
  spec.needs = [](const Parameters& parameters) -> std::vector<Need> {
    const Result<std::int64_t> interval = ParseInt(TextOf(parameters, "interval"));
    Need need;
    need.collection = "weight_rows";
    need.roles = {Role::kWeight};
    need.module_types = {"Linear", "Conv1d", "Conv2d", "Conv3d", "RNN"};
    need.forms = Bit(Form::kUnits);
    need.unit_axis = UnitAxis::kAllButFirst;
    need.save_interval = interval.ok() ? std::max<std::int64_t>(1, interval.value()) : 64;
    need.first_steps = 4;
    return {need};
  };
  spec.make = [](const Parameters& parameters) -> Result<std::unique_ptr<Rule>> {
    Limits limits;
    LUFF_ASSIGN_OR_RETURN(limits.spread, ParseDouble(TextOf(parameters, "spread")));
    LUFF_ASSIGN_OR_RETURN(limits.captures, ParseInt(TextOf(parameters, "captures")));
    LUFF_ASSIGN_OR_RETURN(const std::int64_t interval, ParseInt(TextOf(parameters, "interval")));
    if (interval < 1 || limits.captures < 1)
      return InvalidArgument("'interval' and 'captures' must be at least 1");
    return std::unique_ptr<Rule>(new SymmetricUnits(limits));
  };
  return spec;
}

}  // namespace luff::rules
