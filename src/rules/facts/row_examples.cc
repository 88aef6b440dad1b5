#include "rules/facts/row_examples.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/format.h"
#include "rules/facts/line_fit.h"
#include "rules/facts/own_targets.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"

namespace luff::rules {
namespace {

constexpr std::size_t kNumberColumns = 64;  // of one input
constexpr std::size_t kIdBuckets = 16;      // of one column of ids
constexpr std::size_t kIdColumns = 4;       // columns of ids that are looked at
constexpr std::size_t kFewIds = 8;          // ids a row; of more it is counted how often each comes
constexpr std::size_t kAllColumns = 96;
static_assert(kAllColumns <= LineFit::kMostWidth);
constexpr std::size_t kMostNumbers = 4, kMostFlags = 16;  // targets of a row
constexpr std::size_t kMostPlaces = 4096;                 // of a row of tokens
constexpr std::size_t kMostRows = 4096;                   // of a call
constexpr double kMostIds = 1 << 24;
constexpr double kLargestNumber = 1e30;
constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;
constexpr std::uint64_t kExampleBits = (1ULL << 52) - 1;

using Inputs = std::vector<std::pair<const ModelInput*, std::shared_ptr<const SampleValues>>>;

std::size_t BucketOf(double id, std::size_t buckets) {
  return static_cast<std::size_t>(std::fmod(std::abs(id), static_cast<double>(buckets)));
}

std::uint64_t Spread(std::uint64_t number) { return (number * kSpread) >> 32; }

// Inputs of the models that are trained: those of which nothing is known too, if none is.
Inputs TrainedInputs(const StepView& view, std::uint32_t worker) {
  const ModelFacts& facts = view.memo.Facts(view);
  Inputs inputs;
  for (const bool optimized : {true, false}) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (input.entry->worker != worker || (optimized && !facts.IsPartlyOptimized(input.model))) continue;
      auto sample = LoadSample(view, *input.entry);
      if (sample != nullptr && !sample->whole_shape.empty() && RowsOf(*sample).width > 0)
        inputs.emplace_back(&input, std::move(sample));
    }
    if (!inputs.empty()) break;
  }
  return inputs;
}

// How an input becomes columns.
struct Layout {
  enum class How : std::uint8_t { kAsIs, kMeans, kSigns, kEachId, kCountIds };
  How how = How::kAsIs;
  std::size_t width = 0;
  std::size_t channels = 0, high = 1, wide = 1, square = 1, across = 1, down = 1;  // of kMeans
};

Layout LayoutOf(const SampleValues& sample) {
  const std::size_t width = RowsOf(sample).width;
  Layout layout;
  if (IsIds(sample.dtype) && sample.shape.size() <= 2) {
    const bool few = width <= kFewIds;
    layout.how = few ? Layout::How::kEachId : Layout::How::kCountIds;
    layout.width = few ? std::min(width, kIdColumns) * kIdBuckets : kNumberColumns;
    return layout;
  }
  layout.width = width;
  if (width <= kNumberColumns) return layout;
  const std::vector<std::int64_t>& shape = sample.shape;
  if (shape.size() == 3 || shape.size() == 4) {
    layout.channels = static_cast<std::size_t>(shape[1]);
    layout.high = shape.size() == 4 ? static_cast<std::size_t>(shape[2]) : 1;
    layout.wide = static_cast<std::size_t>(shape.back());
    const auto columns = [&] {
      layout.across = (layout.wide + layout.square - 1) / layout.square;
      layout.down = (layout.high + layout.square - 1) / layout.square;
      return layout.channels * layout.across * layout.down;
    };
    while (columns() > kNumberColumns && layout.square < std::max(layout.high, layout.wide)) ++layout.square;
    layout.width = columns();
    layout.how = Layout::How::kMeans;
  }
  if (layout.width <= kNumberColumns) return layout;
  layout.how = Layout::How::kSigns;
  layout.width = kNumberColumns;
  return layout;
}

// The columns of one row of an input. False: a value is not finite.
bool Columns(const Layout& layout, const double* row, std::size_t width, double* columns) {
  if (!std::all_of(row, row + width, [](double value) { return std::abs(value) < kLargestNumber; }))
    return false;
  switch (layout.how) {
    case Layout::How::kAsIs: std::copy(row, row + width, columns); break;
    case Layout::How::kEachId:
      for (std::size_t j = 0; j < layout.width / kIdBuckets; ++j)
        columns[j * kIdBuckets + BucketOf(row[j], kIdBuckets)] = 1;
      break;
    case Layout::How::kCountIds:
      for (std::size_t j = 0; j < width; ++j) columns[BucketOf(row[j], kNumberColumns)] += 1;
      break;
    case Layout::How::kSigns:
      for (std::size_t j = 0; j < width; ++j) {
        const std::uint64_t place = Spread(j + 1);
        columns[place % kNumberColumns] += (place & (1U << 20U)) != 0 ? row[j] : -row[j];
      }
      break;
    case Layout::How::kMeans:
      for (std::size_t c = 0; c < layout.channels; ++c)
        for (std::size_t y = 0; y < layout.high; ++y)
          for (std::size_t x = 0; x < layout.wide; ++x) {
            const std::size_t down = y / layout.square;
            const std::size_t across = x / layout.square;
            const std::size_t high = std::min(layout.square, layout.high - down * layout.square);
            const std::size_t wide = std::min(layout.square, layout.wide - across * layout.square);
            columns[(c * layout.down + down) * layout.across + across] +=
                row[(c * layout.high + y) * layout.wide + x] / static_cast<double>(high * wide);
          }
      break;
  }
  return true;
}

// Adds columns and hashes for the first rows of the inputs. False if there are none, or a value is not
// finite.
bool TakeColumns(const Inputs& inputs, RowExamples* examples) {
  std::vector<Layout> layouts;
  for (const auto& [input, sample] : inputs) {
    Layout layout = LayoutOf(*sample);
    if (examples->width + layout.width > kAllColumns) continue;
    examples->width += layout.width;
    examples->inputs += fmt::format("{}#{}:{} ", input->model, input->index, layout.width);
    layouts.push_back(layout);
    std::vector<std::uint64_t> hashes = RowHashes(*sample);
    hashes.resize(examples->rows);
    if (examples->hashes.empty()) {
      examples->hashes = std::move(hashes);
    } else {
      for (std::size_t i = 0; i < examples->rows; ++i)
        examples->hashes[i] = (examples->hashes[i] * kSpread + hashes[i]) & kExampleBits;
    }
    const std::size_t at = examples->width - layout.width;
    std::vector<double> wider(examples->rows * examples->width);
    const std::size_t width = RowsOf(*sample).width;
    for (std::size_t i = 0; i < examples->rows; ++i) {
      double* row = &wider[i * examples->width];
      std::copy_n(examples->columns.begin() + static_cast<std::ptrdiff_t>(i * at), at, row);
      if (!Columns(layout, &sample->values[i * width], width, row + at)) return false;
    }
    examples->columns = std::move(wider);
  }
  return examples->width > 0;
}

bool AllFinite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::abs(v) < kLargestNumber; });
}

// Class ids that are out of place become -1.
void TakeClasses(const ClassRows& classes, double ignored, std::size_t rows, RowExamples* examples) {
  for (std::size_t i = 0; i < rows; ++i) {
    const double* scores = &classes.scores[i * classes.classes];
    const double id = classes.ids[i];
    const bool counts = id != ignored && id >= 0 && id < static_cast<double>(classes.classes);
    examples->targets.push_back(counts ? id : -1);
    examples->answers.push_back(
        static_cast<double>(std::max_element(scores, scores + classes.classes) - scores));
  }
}

std::optional<RowExamples> OfTokens(const ClassRows& classes, const LossCall& call, const Inputs& inputs) {
  const std::vector<std::int64_t>& shape = call.target.whole_shape;
  for (const auto& [input, sample] : inputs) {
    const std::vector<std::int64_t>& own = sample->whole_shape;
    if (!IsIds(sample->dtype) || own.size() != 2 || own[1] < 2 ||
        own[1] > static_cast<std::int64_t>(kMostPlaces))
      continue;
    if (shape != own && shape != std::vector{own[0] * own[1]}) continue;
    RowExamples examples;
    examples.kind = RowExamples::Kind::kTokens;
    examples.width = examples.count = static_cast<std::size_t>(own[1]);
    examples.rows = std::min({RowsOf(*sample).count, classes.rows / examples.width, kMostRows});
    examples.inputs = fmt::format("{}#{}:ids ", input->model, input->index);
    if (examples.rows == 0) return std::nullopt;
    examples.columns.assign(
        sample->values.begin(),
        sample->values.begin() + static_cast<std::ptrdiff_t>(examples.rows * examples.width));
    if (!std::all_of(examples.columns.begin(), examples.columns.end(),
                     [](double id) { return id >= 0 && id < kMostIds; }))
      return std::nullopt;
    examples.hashes = RowHashes(*sample);
    examples.hashes.resize(examples.rows);
    TakeClasses(classes, call.settings.ignore_index, examples.rows * examples.width, &examples);
    std::size_t counted = 0;
    std::size_t copied = 0;
    for (std::size_t i = 0; i < examples.targets.size(); ++i) {
      counted += examples.targets[i] >= 0 ? 1 : 0;
      copied += examples.targets[i] == examples.columns[i] ? 1 : 0;
    }
    if (2 * copied > counted) return std::nullopt;
    return examples;
  }
  return std::nullopt;
}

}  // namespace

std::optional<RowExamples> RowExamplesOf(const StepView& view, const LossCall& call,
                                         const Recognition& known) {
  const std::vector<std::int64_t>& shape = call.target.whole_shape;
  if (known.broadcast || known.weights == Weights::kSome || known.pos_weight != 1 || shape.empty() ||
      NamesPartners(call) || !AllFinite(call.output.values) || !AllFinite(call.target.values))
    return std::nullopt;
  Inputs inputs = TrainedInputs(view, call.worker);
  RowExamples examples;
  examples.formula = known.formula;
  const auto aligned = [&] {
    std::erase_if(inputs, [&](const auto& input) { return input.second->whole_shape[0] != shape[0]; });
    examples.rows = std::min(examples.rows, kMostRows);
    for (const auto& [input, sample] : inputs) examples.rows = std::min(examples.rows, RowsOf(*sample).count);
    return !inputs.empty() && examples.rows > 0;
  };
  if (known.formula == Formula::kCrossEntropy || known.formula == Formula::kNll) {
    const auto classes = ClassRowsOf(call);
    if (!classes || static_cast<double>(classes->classes) > kMostIds) return std::nullopt;
    if (auto tokens = OfTokens(*classes, call, inputs)) return tokens;
    examples.rows = classes->rows;
    if (classes->classes > LineFit::kMostTargets || ElementsOf(shape) != static_cast<std::size_t>(shape[0]) ||
        !aligned())
      return std::nullopt;
    examples.kind = RowExamples::Kind::kClasses;
    examples.as_they_are = true;
    examples.count = 1;
    examples.classes = classes->classes;
    TakeClasses(*classes, call.settings.ignore_index, examples.rows, &examples);
  } else {
    const bool scores = known.formula == Formula::kBceWithLogits;
    const bool binary = scores || known.formula == Formula::kBce;
    if ((!binary && !IsRegression(known.formula)) || shape.size() > 2 ||
        call.output.values.size() != call.target.values.size() || call.target.values.empty() ||
        call.target.shape[0] <= 0)
      return std::nullopt;
    examples.as_they_are = binary;
    examples.delta = call.settings.delta > 0 ? call.settings.delta : 1;
    examples.rows = static_cast<std::size_t>(call.target.shape[0]);
    examples.count = call.target.values.size() / examples.rows;
    if (examples.count == 0 || examples.count > (binary ? kMostFlags : kMostNumbers)) return std::nullopt;
    for (const auto& [input, sample] : inputs)
      if (examples.count > 1 && sample->whole_shape == shape) return std::nullopt;
    if (!aligned()) return std::nullopt;
    for (std::size_t i = 0; i < examples.rows * examples.count; ++i) {
      examples.targets.push_back(call.target.values[i]);
      const double answer = call.output.values[i];
      examples.answers.push_back(scores ? 1 / (1 + std::exp(-std::clamp(answer, -500.0, 500.0))) : answer);
    }
  }
  std::erase_if(inputs, [&](const auto& input) { return HoldsTargets(*input.second, examples); });
  if (!TakeColumns(inputs, &examples)) return std::nullopt;
  return examples;
}

}  // namespace luff::rules
