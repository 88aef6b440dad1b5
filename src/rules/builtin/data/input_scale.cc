#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/cut_columns.h"
#include "rules/facts/features.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/missing_code.h"
#include "rules/facts/model_modules.h"
#include "rules/facts/row_scale.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// InputScale: docs/rules/input_scale.md.
namespace luff::rules::input_scale {
namespace {

using format::Role;
constexpr const char* kName = "InputScale";
constexpr std::size_t kMaxInputs = 16;
constexpr std::int64_t kLastStep = 16;    // last TRAIN step that is looked at
constexpr std::int64_t kOffsetRows = 32;  // rows whose means and deviations are believed
// Rows that are standardised one by one lose two of their numbers: of a table of so many columns a third at
// least.
constexpr std::int64_t kFewColumns = 6;
constexpr double kRowsApart = 64, kNoSeries = 0.75;
constexpr std::int64_t kZeroRows = 64, kZeroSteps = 8;
// A weight that moves by a thousandth of its size a step cannot make up for more.
constexpr double kDrowns = 1000;

// Modules that multiply their input by a weight matrix.
const std::vector<std::string>& Layers() {
  static const std::vector<std::string> kLayers = {
      "Linear", "Bilinear", "Conv1d", "Conv2d",  "Conv3d",   "ConvTranspose1d", "ConvTranspose2d",
      "RNN",    "LSTM",     "GRU",    "RNNCell", "LSTMCell", "GRUCell",         "MultiheadAttention"};
  return kLayers;
}

struct Limits {
  double large, small, offset, level;
  std::int64_t rows;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::large, "large", "50", "root mean square of a feature from which it is too large (Luff)"},
    {&Limits::small, "small", "0.001",
     "root mean square of all features below which they are too small (Luff)"},
    {&Limits::offset, "offset", "5", "means in units of the deviations from which they are too far (Luff)"},
    {&Limits::level, "level", "10", "mean of a feature below which it is not far from 0 (Luff)"},
    {&Limits::rows, "rows", "8", "rows that are looked at, at least (Luff)"},
};

// Means of the features that vary, beside their deviations.
struct Offset {
  double means = 0, variances = 0;  // sums of their squares
  double mean = 0, deviation = 0;   // of the feature that is furthest from 0, of those that are far
  std::size_t far = 0, varying = 0;

  // What the units of a layer have in common for all rows, in units of what they tell rows apart by.
  [[nodiscard]] double ratio() const noexcept { return std::sqrt(means / variances); }
};

Offset OffsetOf(const Features& features, const Limits& limits) {
  Offset offset;
  for (std::size_t i = 0; i < features.size(); ++i) {
    if (!features.varies(i)) continue;
    const double mean = features.mean(i);
    const double deviation = std::sqrt(features.variance(i));
    ++offset.varying;
    offset.means += mean * mean;
    offset.variances += deviation * deviation;
    if (std::abs(mean) < limits.level || std::abs(mean) < limits.offset * deviation) continue;
    ++offset.far;
    if (std::abs(mean) <= std::abs(offset.mean)) continue;
    offset.mean = mean;
    offset.deviation = deviation;
  }
  return offset;
}

// How many times as large the deviation of one feature is as that of all others together, which is what they
// add to a unit whose weights are drawn alike. 0 with fewer than three features that vary.
double LargestOverOthers(const Features& features) {
  double largest = 0;
  double all = 0;
  std::size_t varying = 0;
  for (std::size_t i = 0; i < features.size(); ++i) {
    if (!features.varies(i)) continue;
    ++varying;
    largest = std::max(largest, features.variance(i));
    all += features.variance(i);
  }
  double others = 0;  // added up without the largest: beside it, they would be lost
  bool skipped = false;
  for (std::size_t i = 0; i < features.size(); ++i) {
    if (!features.varies(i)) continue;
    const bool first = !skipped && features.variance(i) == largest;
    skipped = skipped || first;
    others += first ? 0 : features.variance(i);
  }
  return varying < 3 || !(others > 0) || !std::isfinite(all) ? 0 : std::sqrt(largest / others);
}

// Whether some loss of the step has targets that differ between rows.
bool TargetsVary(const StepView& view) {
  for (const LossCall& call : LossReader::Read(view)) {
    const std::vector<double>& targets = call.target.values;
    if (std::adjacent_find(targets.begin(), targets.end(), std::not_equal_to<>()) != targets.end())
      return true;
  }
  return false;
}

class InputScale final : public KeptRule {
 public:
  explicit InputScale(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (info.mode != query::Mode::kTrain || info.mode_step > kLastStep) return;
    modules_.OnStep(view);
    JudgeZero(view, sink);
    for (const ModelInput& input : ModelInputsOf(view)) {
      const bool whole_numbers = IsIds(input.entry->dtype);
      if (!IsFloating(input.entry->dtype) && !whole_numbers) continue;
      const std::string& name = view.trial.tensor(input.entry->tensor).name;
      if (told_.contains(name) || (!inputs_.contains(name) && inputs_.size() >= kMaxInputs)) continue;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->shape.size() < 2) continue;
      // Whole numbers are ids, unless a layer multiplies these very ones: bytes of images, say, which a
      // framework makes numbers of. Of a part of them, only images tell.
      if (whole_numbers && !sample->whole() && !IsOfBytes(*sample)) continue;
      if (!whole_numbers && (codes_.contains(name) || codes_.size() < kMaxInputs)) {
        if (!read_.contains(name) && !LayerThatGets(view, *input.entry, *sample).name.empty())
          read_.insert(name);
        rows_[name].Add(*sample);
        cuts_[name].Add(*sample, TargetOf(view));
        if (JudgeRows(view, input, sink) || JudgeCut(view, input, sink)) continue;
        codes_[name].Add(*sample);
        if (JudgeCodes(view, input, sink)) {
          codes_.erase(name);
          continue;
        }
      }
      Features& features = inputs_[name];
      features.Add(*sample);
      if (features.rows() < limits_.rows) continue;
      if ((whole_numbers || !JudgeTwice(view, input, *sample, sink)) &&
          !JudgeScale(view, input, *sample, features, sink) && !whole_numbers)
        JudgeOffset(view, input, *sample, features, sink);
    }
  }
  void VisitFields(Fields& io) override {
    io("told", told_);
    io("reader", reader_);
    io("inputs", inputs_, kMaxInputs);
    io("codes", codes_, kMaxInputs);
    io("cuts", cuts_, kMaxInputs);
    io("rows", rows_, kMaxInputs);
    io("read", read_, kMaxInputs);
    io("only_zeros", only_zeros_);
    io("zero_rows", zero_rows_);
    io("zero_steps", zero_steps_);
  }

 private:
  static bool IsOfBytes(const SampleValues& sample) noexcept {
    return sample.dtype == DType::kUInt8 && sample.shape.size() > 2;
  }

  bool JudgeScale(const StepView& view, const ModelInput& input, const SampleValues& sample,
                  const Features& features, Sink& sink) {
    double largest = 0;
    double smallest = HUGE_VAL;
    std::size_t large = 0;
    std::size_t varying = 0;
    for (std::size_t i = 0; i < features.size(); ++i) {
      if (!features.varies(i)) continue;
      ++varying;
      const double rms = features.rms(i);
      largest = std::max(largest, rms);
      smallest = std::min(smallest, rms);
      large += rms >= limits_.large ? 1 : 0;
    }
    if (varying == 0 || (large == 0 && largest >= limits_.small)) return false;
    const auto [layer, normed] = LayerThatGets(view, *input.entry, sample);
    if (layer.empty()) return false;
    if (normed) return JudgeDrowned(view, input, layer, features, largest, sink);
    const bool mixed = large > 0 && largest >= 1000 * smallest;
    Finding finding = Named("scale", view, input, layer);
    finding.what =
        mixed ? fmt::format(
                    "the features of the input of {} differ in scale by {:.1g} times: from {:.2g} to {:.3g}",
                    input.model, largest / smallest, smallest, largest)
              : fmt::format("the input of {} has values of the order of {:.3g}", input.model, largest);
    finding.why = fmt::format(
        "{} gets them as they are; initialisations and learning rates are made for values near 1, so {}",
        layer,
        large > 0 ? "large ones drown the others and make the gradients explode or the units die"
                  : "outputs and gradients nearly vanish");
    finding.remedy =
        "standardise each feature with the mean and the deviation of the training data, or begin "
        "the model with a normalisation layer";
    if (const double size = large > 0 ? TargetSize(view) : 0; size >= limits_.large / 5)
      finding.remedy += fmt::format(
          "; the targets, too (of the order of {:.3g}): with such inputs a model begins near 0, far from "
          "them",
          size);
    finding.causes = {"inputs were not standardised", "a unit or a missing value code in a column",
                      "images of 0 to 255 that were not divided by 255"};
    finding.evidence = {{"largest_rms", largest},
                        {"smallest_rms", smallest},
                        {"large_features", large},
                        {"features", varying}};
    finding.threshold = fmt::format("root mean square of a feature {:g} or more, or of all below {:g} (Luff)",
                                    limits_.large, limits_.small);
    sink.Report(std::move(finding));
    return true;
  }

  // Bytes that were divided by 255 twice: all values are whole multiples of 1 / 255 / 255, up to 1 / 255.
  bool JudgeTwice(const StepView& view, const ModelInput& input, const SampleValues& sample, Sink& sink) {
    constexpr double kLevels = 255, kRounding = 0.01;
    constexpr std::size_t kDistinct = 16;
    std::set<double> levels;
    for (const double value : sample.values) {
      const double level = value * kLevels * kLevels;
      if (!(level > -kRounding && level < kLevels + kRounding)) return false;
      if (std::abs(level - std::round(level)) > kRounding) return false;
      levels.insert(std::round(level));
    }
    if (levels.size() < kDistinct) return false;
    const auto [layer, normed] = LayerThatGets(view, *input.entry, sample);
    if (layer.empty() || normed) return false;
    Finding finding = Named("scaled_twice", view, input, layer);
    finding.what = fmt::format("the input of {} was divided by 255 twice", input.model);
    finding.why = fmt::format(
        "its values are whole multiples of 1 / 255 / 255, up to {:.3g}; {} gets them as they are, so outputs "
        "and "
        "gradients nearly vanish",
        *levels.rbegin() / kLevels / kLevels, layer);
    finding.remedy = "divide by 255 once: ToTensor makes values of 0 to 1 of bytes";
    finding.causes = {"a division by 255 after ToTensor or rescaling"};
    finding.evidence = {{"levels", levels.size()}, {"largest", *levels.rbegin() / kLevels / kLevels}};
    finding.threshold = fmt::format("all values of a step, {} different ones (Luff)", kDistinct);
    sink.Report(std::move(finding));
    return true;
  }

  // The target of the step's only loss, if that is a regression.
  const SampleValues* TargetOf(const StepView& view) {
    const std::vector<LossCall>& calls = LossReader::Read(view);
    if (calls.size() != 1 || !IsRegression(reader_.Recognise(calls.front()).formula)) return nullptr;
    return &calls.front().target;
  }

  // Root mean square of that target; 0 without one. Where inputs and targets have one unit, such as a
  // maximum, a copy or the next value of a series, inputs alone that are brought near 1 leave the model
  // farther from its targets than before.
  double TargetSize(const StepView& view) {
    const SampleValues* target = TargetOf(view);
    if (target == nullptr || target->values.empty()) return 0;
    double squares = 0;
    for (const double value : target->values) squares += value * value;
    return std::sqrt(squares / static_cast<double>(target->values.size()));
  }

  // Rows of a narrow table that are standardised one by one.
  bool JudgeRows(const StepView& view, const ModelInput& input, Sink& sink) {
    const std::string& name = view.trial.tensor(input.entry->tensor).name;
    const RowScale& rows = rows_[name];
    if (rows.axes() != 2 || rows.width() > kFewColumns || rows.rows() < kRowsApart ||
        rows.by() != RowScale::By::kDeviation || rows.neighbours() < kNoSeries || !read_.contains(name))
      return false;
    Finding finding = Named("by_row", view, input, "");
    finding.what =
        fmt::format("each row of the input of {} has mean 0 and deviation 1 by itself", input.model);
    finding.why = fmt::format(
        "its {} numbers were standardised among each other, along the wrong axis: two of them follow from "
        "the "
        "others, and what is large for its own column is not to be told from what is large in its row",
        rows.width());
    finding.remedy =
        "standardise columns, not rows: take mean and deviation along axis 0, from the training data, and "
        "use "
        "them for all sets";
    finding.causes = {"a mean and a deviation along axis 1",
                      "a table that was transposed before it was scaled"};
    finding.evidence = {{"columns", rows.width()}, {"rows", rows.rows()}, {"neighbours", rows.neighbours()}};
    finding.threshold = fmt::format(
        "all of {:g} rows with mean 0 and one deviation, of {} columns at most, which are no series "
        "(Luff)",
        kRowsApart, kFewColumns);
    sink.Report(std::move(finding));
    return true;
  }

  // Whole numbers that a cast has left of others.
  bool JudgeCut(const StepView& view, const ModelInput& input, Sink& sink) {
    const std::optional<CutColumns::Found> cut = cuts_[view.trial.tensor(input.entry->tensor).name].Find();
    if (!cut) return false;
    Finding finding = Named("cut_to_integers", view, input, "");
    finding.what = fmt::format("the input of {} is cut to integers", input.model);
    finding.why =
        cut->by_target
            ? fmt::format(
                  "all of its values are whole numbers, {:.0f} % of them 0, and the target has in full what "
                  "they "
                  "are without what stands behind the point: {:.0f} % agree with it if it is cut off, too",
                  100 * cut->zeros, 100 * cut->agreement)
            : fmt::format(
                  "all of its values are whole numbers, and {} of its {} columns are distributed as "
                  "standardised "
                  "numbers without what stands behind the point: {:.0f} % of their values are 0, where they "
                  "say "
                  "nothing any more",
                  cut->normal, cut->columns, 100 * cut->zeros);
    finding.remedy =
        "take the cast to integers out (float, not int or long); if it is meant, scale the columns up before "
        "it";
    finding.causes = {".long(), .int() or astype(int) on numbers that were scaled before",
                      "an array that was made with an integer type, into which numbers were written",
                      "// in place of /"};
    finding.evidence = {{"columns", cut->columns},
                        {"normal", cut->normal},
                        {"zeros", cut->zeros},
                        {"agreement", cut->agreement}};
    finding.threshold =
        "half of the columns within 0.06 of a normal number that is cut, or the target cut off (Luff)";
    sink.Report(std::move(finding));
    return true;
  }

  // Columns in which a code for what is missing leaves hardly anything of the numbers.
  bool JudgeCodes(const StepView& view, const ModelInput& input, Sink& sink) {
    const std::string& name = view.trial.tensor(input.entry->tensor).name;
    const std::optional<MissingCodes::Code> code = codes_[name].Find(read_.contains(name));
    if (!code) return false;
    told_.insert(name);
    Finding finding = FindingAt(kName, "missing_code", view, *input.entry);
    finding.since_step = 0;
    finding.what = fmt::format(
        "column {} of the input of {} is {:.4g} in {:.2g} % of the rows, and from {:.6g} to {:.6g} in all "
        "others",
        code->column, input.model, code->value, 100 * code->share, code->low, code->high);
    finding.why = fmt::format(
        "one value that comes again {:.2g} times as far away as all others differ is a code, such as -999 "
        "for what is missing{}: beside it the numbers are hardly to be told apart, and a mean and a "
        "deviation that "
        "include it squeeze them{}",
        code->ratio, code->well_known ? "" : ", or a state, such as a machine that is off",
        code->columns > 1 ? fmt::format("; {:.0f} columns have one", code->columns) : "");
    finding.remedy =
        "fill what is missing with the column's median or mean before it is standardised, and add a column "
        "that "
        "says so; leave codes out of the mean and the deviation";
    finding.causes = {"a code for missing values (-9999, 99999) taken as a number",
                      "NaN that was filled with a number far away"};
    finding.evidence = {{"column", code->column},
                        {"value", code->value},
                        {"share", code->share},
                        {"ratio", code->ratio},
                        {"columns", code->columns}};
    finding.threshold = fmt::format("{:g} times as far away as all others differ (Luff)", MissingCodes::kFar);
    sink.Report(std::move(finding));
    return true;
  }

  // A normalisation behind the layer undoes the scale of its units, but not of the features in them.
  bool JudgeDrowned(const StepView& view, const ModelInput& input, const std::string& layer,
                    const Features& features, double largest, Sink& sink) {
    const double ratio = LargestOverOthers(features);
    if (features.rows() < kOffsetRows || largest < limits_.large || ratio < kDrowns) return false;
    Finding finding = Named("drowned", view, input, layer);
    finding.what = fmt::format(
        "one feature of the input of {} is {:.1g} times as large as all others together", input.model, ratio);
    finding.why = fmt::format(
        "{} adds the features up before a normalisation follows: it undoes the scale of the sum, in which "
        "the "
        "others are a share of {:.1g}",
        layer, 1 / ratio);
    finding.remedy = "standardise each feature with the mean and the deviation of the training data";
    finding.causes = {"inputs were not standardised", "a unit, an id or a date in a column",
                      "a missing value code"};
    finding.evidence = {{"ratio", ratio}, {"largest_rms", largest}, {"features", features.size()}};
    finding.threshold = fmt::format("{:g} times the deviation of all others (Luff)", kDrowns);
    sink.Report(std::move(finding));
    return true;
  }

  // Inputs of which nothing but zeros arrives, while the targets of the rows differ.
  void JudgeZero(const StepView& view, Sink& sink) {
    if (!only_zeros_) return;
    const std::vector<ModelInput>& inputs = ModelInputsOf(view);
    const ModelInput* widest = nullptr;
    std::size_t rows = 0;
    for (const ModelInput& input : inputs) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr) return;
      only_zeros_ = only_zeros_ && std::all_of(sample->values.begin(), sample->values.end(),
                                               [](double value) { return value == 0; });
      if (RowsOf(*sample).count <= rows || sample->shape.size() < 2 || !IsFloating(input.entry->dtype))
        continue;
      rows = RowsOf(*sample).count;
      widest = &input;
    }
    if (!only_zeros_ || widest == nullptr || !TargetsVary(view)) return;
    zero_rows_ += static_cast<std::int64_t>(rows);
    if (++zero_steps_ < kZeroSteps || zero_rows_ < kZeroRows) return;
    only_zeros_ = false;  // told once
    const std::string& name = view.trial.tensor(widest->entry->tensor).name;
    told_.insert(name);
    Finding finding = FindingAt(kName, "zero", view, *widest->entry);
    finding.since_step = 0;
    finding.what = fmt::format("all inputs of {} are 0, in each of {} rows", widest->model, zero_rows_);
    finding.why =
        "the targets of these rows differ, and nothing that the model gets tells them apart: it can learn "
        "their mean only";
    finding.remedy = "look at a batch right before the model: where do its values become 0?";
    finding.causes = {"values below 1 that were cast to integers, or divided by //",
                      "a mask or a selection that is the wrong way round", "a buffer that was never filled"};
    finding.evidence = {{"rows", zero_rows_}, {"steps", zero_steps_}};
    finding.threshold = fmt::format("{} rows in {} steps (Luff)", kZeroRows, kZeroSteps);
    sink.Report(std::move(finding));
  }

  void JudgeOffset(const StepView& view, const ModelInput& input, const SampleValues& sample,
                   const Features& features, Sink& sink) {
    if (features.rows() < kOffsetRows) return;
    const Offset offset = OffsetOf(features, limits_);
    if (offset.far == 0 || 2 * offset.far < offset.varying || !(offset.ratio() >= limits_.offset)) return;
    const auto [layer, normed] = LayerThatGets(view, *input.entry, sample);
    if (layer.empty() || normed) return;
    Finding finding = Named("offset", view, input, layer);
    finding.what = fmt::format(
        "the input of {} is not normalised: features have means such as {:.3g}, with a deviation of {:.2g}",
        input.model, offset.mean, offset.deviation);
    finding.why = fmt::format(
        "{} gets them as they are: what all rows have in common is {:.3g} times what tells them apart, so "
        "units are "
        "on or off for all rows alike, and a learning rate that the common part bears is small for the rest",
        layer, offset.ratio());
    finding.remedy =
        "subtract the mean of the training data from each feature and divide by its deviation, or begin "
        "the model with a normalisation layer";
    finding.causes = {"inputs were not standardised", "the mean was not subtracted, or with the wrong sign"};
    finding.evidence = {{"ratio", offset.ratio()},
                        {"mean", offset.mean},
                        {"deviation", offset.deviation},
                        {"far_features", offset.far},
                        {"features", offset.varying}};
    finding.threshold = fmt::format("means {:g} times the deviations or more, of {:g} or more (Luff)",
                                    limits_.offset, limits_.level);
    sink.Report(std::move(finding));
  }

  // A finding about an input that `layer` gets, if that is known. An input has one.
  Finding Named(const char* cause, const StepView& view, const ModelInput& input, const std::string& layer) {
    told_.insert(view.trial.tensor(input.entry->tensor).name);
    Finding finding = FindingAt(kName, cause, view, *input.entry);
    finding.since_step = 0;
    if (layer.empty()) return finding;
    finding.other_tensors = {layer};
    finding.other_count = 1;
    return finding;
  }

  // The input of a layer with weights.
  struct Layer {
    std::string name;     // "" if there is none
    bool normed = false;  // a normalisation follows the layer
  };

  // The layer with weights that gets the model's input unchanged: with the same statistics, or, if the sample
  // is only a part of the input, with values of about the same size. One that no normalisation follows, if
  // there is one.
  [[nodiscard]] Layer LayerThatGets(const StepView& view, const query::Trial::SummaryEntry& given,
                                    const SampleValues& sample) const {
    Layer normed;
    if (given.summary.count == 0) return normed;
    const double mean = given.summary.abs_sum / static_cast<double>(given.summary.count);
    for (const auto& [entry, tensor] : view.index.summaries(Role::kInput)) {
      if (entry.worker != given.worker || entry.summary.count == 0 ||
          std::find(Layers().begin(), Layers().end(), tensor.module_type) == Layers().end())
        continue;
      const double got = entry.summary.abs_sum / static_cast<double>(entry.summary.count);
      const bool same =
          sample.whole() ? entry.summary.count == given.summary.count && std::abs(got - mean) <= 1e-4 * mean
                         : got < 1.5 * mean && got > mean / 1.5;
      if (!same) continue;
      if (!NormFollows(tensor)) return {tensor.name, false};
      if (normed.name.empty()) normed = {tensor.name, true};
    }
    return normed;
  }

  [[nodiscard]] bool NormFollows(const query::TensorInfo& tensor) const {
    const std::string layer = tensor.name.substr(0, tensor.name.rfind("_input_"));
    const auto& modules = modules_.modules();
    for (std::size_t i = 0; i < modules.size(); ++i) {
      if (modules[i].name != layer) continue;
      for (std::size_t j = i + 1; j < modules.size() && modules[j].model == modules[i].model; ++j) {
        if (modules[j].kind == ModuleKind::kNorm) return true;
        if (modules[j].has_parameters) return false;
      }
    }
    return false;
  }

  const Limits limits_;
  ModelModules modules_;
  LossReader reader_;
  std::set<std::string> told_;
  std::map<std::string, Features> inputs_;
  std::map<std::string, MissingCodes> codes_;
  std::map<std::string, CutColumns> cuts_;
  std::map<std::string, RowScale> rows_;
  std::set<std::string> read_;  // inputs that a layer with weights gets as they are
  bool only_zeros_ = true;      // all inputs so far
  std::int64_t zero_rows_ = 0, zero_steps_ = 0;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<InputScale>(kName, kParams);
  spec.version = 6;  // 2: only zeros; 3: codes of what is missing; 4: "scaled_twice"; 5: whole numbers; 6:
  // "by_row", "cut_to_integers", codes of nines nearer by
  spec.summary = "inputs of a model that are far from unit scale, or far from 0";
  spec.needs = [](const Parameters&) -> std::vector<Need> {
    std::vector<Need> needs = SampleNeeds();
    needs.push_back({.collection = "first_layer_inputs",
                     .roles = {Role::kInput},
                     .module_types = Layers(),
                     .forms = Bit(format::Form::kSummary),
                     .save_interval = 1000000,  // step 0 and the first steps only
                     .first_steps = 4});
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::input_scale
