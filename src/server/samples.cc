#include "server/samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/step_index.h"
#include "server/payload.h"

namespace luff::server {
namespace {

using Ordered = nlohmann::ordered_json;
using query::Mode;
using query::Trial;
using rules::Formula;

constexpr std::size_t kMaxSampledSteps = 100'000, kMaxConfusedSteps = 2000, kMaxConfusedRows = 2'000'000;
constexpr std::size_t kMaxConfusedClasses = 1000, kMaxCells = 4000, kMaxBehindCell = 24;
constexpr double kUnknownNumber = std::numeric_limits<double>::quiet_NaN();

/// A step with its samples, as rules see them.
class SampledStep {
 public:
  [[nodiscard]] static Result<std::unique_ptr<SampledStep>> Read(const Trial& trial, std::size_t n) {
    auto step = std::make_unique<SampledStep>();
    LUFF_RETURN_IF_ERROR(trial.ReadStepRows(n, &step->rows_));
    step->index_.Build(trial, step->rows_);
    step->view_.emplace(rules::StepView{trial, step->rows_, n, step->memo_, step->index_});
    return step;
  }
  [[nodiscard]] const rules::StepView& view() const { return *view_; }

 private:
  Trial::StepRows rows_;
  rules::StepMemo memo_;
  rules::StepIndex index_;
  std::optional<rules::StepView> view_;
};

/// The entries of a loss: one for each sample, or several (of tokens, pixels) for each.
struct Entries {
  std::size_t classes = 0;  // 0: no classes
  std::vector<double> loss, truth, guess,
      sure;              // NaN: not known. sure: the probability that the model gave its guess
  std::size_t each = 1;  // entries of a sample
};

std::size_t RowsIn(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? 1 : static_cast<std::size_t>(std::max<std::int64_t>(shape.front(), 0));
}

Entries OfClasses(const rules::LossCall& call, const rules::Recognition& found,
                  const rules::ClassRows& rows) {
  Entries entries;
  entries.classes = rows.classes;
  std::size_t term = 0;  // the formula leaves out what is to be ignored
  for (std::size_t i = 0; i < rows.rows; ++i) {
    const double* scores = &rows.scores[i * rows.classes];
    const auto best = std::max_element(scores, scores + rows.classes);
    const bool ignored = rows.ids[i] == call.settings.ignore_index;
    const double norm = found.formula == Formula::kNll ? 0 : rules::LogSumExp(scores, rows.classes);
    entries.truth.push_back(ignored ? kUnknownNumber : rows.ids[i]);
    entries.guess.push_back(static_cast<double>(best - scores));
    entries.sure.push_back(std::exp(*best - norm));
    entries.loss.push_back(ignored || term >= found.per_sample.size() ? kUnknownNumber
                                                                      : found.per_sample[term]);
    if (!ignored) ++term;
  }
  return entries;
}

Entries EntriesOf(const rules::LossCall& call, const rules::Recognition& found) {
  Entries entries;
  const bool named = found.formula == Formula::kCrossEntropy || found.formula == Formula::kNll;
  const auto classes = named ? rules::ClassRowsOf(call) : std::nullopt;
  const std::size_t rows = RowsIn(call.output.shape);
  if (classes && classes->classes > 1) {
    entries = OfClasses(call, found, *classes);
  } else {
    entries.loss = found.per_sample;
    const bool pairs = call.output.values.size() == call.target.values.size() &&
                       entries.loss.size() == call.output.values.size();
    const bool logits = found.formula == Formula::kBceWithLogits;
    const bool binary = pairs && (logits || found.formula == Formula::kBce);
    if (binary) entries.classes = 2;
    for (std::size_t i = 0; pairs && i < entries.loss.size(); ++i) {
      const double score = call.output.values[i];
      if (!binary) {
        entries.truth.push_back(call.target.values[i]);
        entries.guess.push_back(score);
        continue;
      }
      const double positive = logits ? 1 / (1 + std::exp(-score)) : score;
      entries.truth.push_back(call.target.values[i]);
      entries.guess.push_back(positive > 0.5 ? 1 : 0);
      entries.sure.push_back(std::max(positive, 1 - positive));
    }
  }
  const std::size_t count = std::max(entries.loss.size(), entries.truth.size());
  entries.each = rows > 0 && count >= rows && count % rows == 0 ? count / rows : 1;
  return entries;
}

Result<std::optional<Mode>> WantedMode(const Request& request) {
  const std::string_view text = request.Parameter("mode");
  if (text.empty()) return std::optional<Mode>();
  LUFF_ASSIGN_OR_RETURN(const Mode mode, query::ParseMode(text));
  return mode == Mode::kGlobal ? std::optional<Mode>() : std::optional<Mode>(mode);
}

Ordered Shape(const rules::SampleValues& sample) {
  return {{"shape", sample.shape}, {"whole", sample.whole_shape}, {"dtype", DTypeName(sample.dtype)}};
}

void PutInputs(const rules::StepView& view, Payload* payload, Ordered* about) {
  std::size_t number = 0;
  for (const rules::ModelInput& input : rules::ModelInputsOf(view)) {
    const auto sample = rules::LoadSample(view, *input.entry);
    if (sample == nullptr) continue;
    Ordered told = Shape(*sample);
    told["model"] = input.model;
    told["index"] = input.index;
    told["worker"] = input.entry->worker;
    told["ids"] = rules::IsIds(sample->dtype);
    (*about)["inputs"].push_back(std::move(told));
    payload->Add(fmt::format("input.{}", number++),
                 std::vector<float>(sample->values.begin(), sample->values.end()));
  }
}

void PutLosses(const rules::StepView& view, Payload* payload, Ordered* about) {
  rules::LossReader reader;
  std::size_t number = 0;
  for (const rules::LossCall& call : rules::LossReader::Read(view)) {
    const rules::Recognition found = reader.Recognise(call);
    const Entries entries = EntriesOf(call, found);
    Ordered told{{"key", call.key},
                 {"kind", call.kind},
                 {"worker", call.worker},
                 {"classes", entries.classes},
                 {"each", entries.each},
                 {"formula", found.formula == Formula::kUnknown ? "" : rules::FormulaName(found.formula)},
                 {"by_value", found.by_value},
                 {"weighted", found.weights == rules::Weights::kSome},
                 {"output", Shape(call.output)},
                 {"target", Shape(call.target)}};
    told["value"] = call.value && std::isfinite(*call.value) ? Ordered(*call.value) : Ordered();
    (*about)["losses"].push_back(std::move(told));
    payload->Add(fmt::format("loss.{}.value", number), entries.loss);
    payload->Add(fmt::format("loss.{}.truth", number), entries.truth);
    payload->Add(fmt::format("loss.{}.guess", number), entries.guess);
    payload->Add(fmt::format("loss.{}.sure", number), entries.sure);
    ++number;
  }
}

/// Pairs of classes, and where they were met.
class Pairs {
 public:
  void Add(std::int64_t step, std::uint32_t worker, const Entries& entries) {
    for (std::size_t i = 0; i < entries.truth.size(); ++i) {
      const double truth = entries.truth[i];
      if (!(truth >= 0 && truth < static_cast<double>(entries.classes)) || truth != std::floor(truth))
        continue;
      Cell& cell = cells_[{static_cast<std::int64_t>(truth), static_cast<std::int64_t>(entries.guess[i])}];
      ++cell.count;
      ++rows_;
      right_ += truth == entries.guess[i] ? 1 : 0;
      const double loss = i < entries.loss.size() ? entries.loss[i] : kUnknownNumber;
      // The worst are kept: those are the ones to look at.
      const Behind one{step, worker, i / entries.each, i, std::isfinite(loss) ? loss : -1};
      const auto at = std::ranges::upper_bound(cell.behind, one.loss, std::greater<>(), &Behind::loss);
      if (cell.behind.size() == kMaxBehindCell && at == cell.behind.end()) continue;
      cell.behind.insert(at, one);
      if (cell.behind.size() > kMaxBehindCell) cell.behind.pop_back();
    }
    classes_ = std::max(classes_, entries.classes);
  }
  [[nodiscard]] std::uint64_t rows() const { return rows_; }

  void Put(Ordered* json) const {
    (*json)["classes"] = classes_;
    (*json)["rows"] = rows_;
    (*json)["right"] = right_;
    (*json)["cells"] = Ordered::array();
    std::vector<std::pair<std::uint64_t, std::pair<std::int64_t, std::int64_t>>> largest;
    for (const auto& [pair, cell] : cells_) largest.emplace_back(cell.count, pair);
    std::ranges::stable_sort(largest, std::greater<>(), &decltype(largest)::value_type::first);
    for (std::size_t i = 0; i < std::min(largest.size(), kMaxCells); ++i) {
      const Cell& cell = cells_.at(largest[i].second);
      Ordered samples = Ordered::array();
      for (const Behind& one : cell.behind)
        samples.push_back({{"step", one.step},
                           {"worker", one.worker},
                           {"row", one.row},
                           {"entry", one.entry},
                           {"loss", one.loss < 0 ? Ordered() : Ordered(one.loss)}});
      (*json)["cells"].push_back({{"truth", largest[i].second.first},
                                  {"guess", largest[i].second.second},
                                  {"count", cell.count},
                                  {"samples", std::move(samples)}});
    }
    (*json)["cells_left_out"] = largest.size() - std::min(largest.size(), kMaxCells);
  }

 private:
  struct Behind {
    std::int64_t step;
    std::uint32_t worker;
    std::size_t row, entry;
    double loss;  // -1: not known
  };
  struct Cell {
    std::uint64_t count = 0;
    std::vector<Behind> behind;  // the largest loss first
  };
  std::map<std::pair<std::int64_t, std::int64_t>, Cell> cells_;
  std::uint64_t rows_ = 0, right_ = 0;
  std::size_t classes_ = 0;
};

}  // namespace

std::vector<std::size_t> SampledSteps(const Trial& trial, std::optional<Mode> mode) {
  std::vector<std::int64_t> steps;
  for (query::TensorId id = 0; id < trial.tensor_count(); ++id) {
    if (trial.tensor(id).role != query::Role::kSample) continue;
    const auto found = trial.ValueSteps(id, Mode::kGlobal);
    if (found.ok()) steps.insert(steps.end(), found->begin(), found->end());
  }
  std::ranges::sort(steps);
  steps.erase(std::ranges::unique(steps).begin(), steps.end());
  std::vector<std::size_t> places;
  if (steps.empty()) return places;
  for (std::size_t n = 0; n < trial.step_count() && places.size() < kMaxSampledSteps; ++n) {
    const query::StepInfo info = trial.step_at(n);
    if (!info.superseded && (!mode || info.mode == *mode) &&
        std::ranges::binary_search(steps, info.global_step))
      places.push_back(n);
  }
  return places;
}

Result<Response> SamplesOf(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  const Trial& trial = run.trial();
  LUFF_ASSIGN_OR_RETURN(const auto mode, WantedMode(request));
  LUFF_ASSIGN_OR_RETURN(const auto wanted, NumberIn<std::int64_t>(request, "step", INT64_MAX));
  const std::vector<std::size_t> places = SampledSteps(trial, mode);
  Payload payload;
  Ordered about{{"step", nullptr}, {"inputs", Ordered::array()}, {"losses", Ordered::array()}};
  std::vector<std::int64_t> steps;
  std::vector<std::uint8_t> modes;
  for (const std::size_t n : places) {
    const query::StepInfo info = trial.step_at(n);
    steps.push_back(info.global_step);
    modes.push_back(static_cast<std::uint8_t>(info.mode));
  }
  payload.Add("steps", steps);
  payload.Add("modes", modes);
  if (!places.empty()) {
    // The one before, or else the first.
    auto at = std::ranges::upper_bound(steps, wanted);
    if (at != steps.begin()) --at;
    LUFF_ASSIGN_OR_RETURN(const auto step,
                          SampledStep::Read(trial, places[static_cast<std::size_t>(at - steps.begin())]));
    const query::StepInfo& info = step->view().rows.info;
    about["step"] = {{"global_step", info.global_step},
                     {"mode", query::ModeName(info.mode)},
                     {"mode_step", info.mode_step},
                     {"update", info.update}};
    PutInputs(step->view(), &payload, &about);
    PutLosses(step->view(), &payload, &about);
  }
  payload.Tell("about", JsonText(about));
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

Result<Response> ConfusionOf(const ListedRun& listed, OpenRun& run, const Request& request) {
  (void)listed;
  const Trial& trial = run.trial();
  LUFF_ASSIGN_OR_RETURN(auto mode, WantedMode(request));
  LUFF_ASSIGN_OR_RETURN(const auto from, NumberIn<std::int64_t>(request, "from", 0));
  LUFF_ASSIGN_OR_RETURN(const auto to, NumberIn<std::int64_t>(request, "to", INT64_MAX));
  if (from > to) return InvalidArgument("from must be at most to");
  std::vector<std::size_t> places = SampledSteps(trial, mode.value_or(Mode::kTrain));
  if (places.empty() && !mode) {
    mode = Mode::kEval;
    places = SampledSteps(trial, mode);
  }
  std::erase_if(places, [&](std::size_t n) {
    const std::int64_t step = trial.step_at(n).global_step;
    return step < from || step > to;
  });
  const std::size_t most = std::clamp<std::size_t>(
      kMaxConfusedRows / std::max<std::size_t>(trial.tensor_count(), 1), 16, kMaxConfusedSteps);
  const std::size_t used = std::min(places.size(), most);
  std::string key(request.Parameter("loss"));
  std::map<std::string, std::size_t> keys;  // losses with classes
  std::map<std::string, Pairs> pairs;
  rules::LossReader reader;
  for (std::size_t i = 0; i < used; ++i) {
    const std::size_t n = places[i * places.size() / used];
    LUFF_ASSIGN_OR_RETURN(const auto step, SampledStep::Read(trial, n));
    for (const rules::LossCall& call : rules::LossReader::Read(step->view())) {
      if (!key.empty() && key != call.key && keys.contains(call.key)) continue;
      const Entries entries = EntriesOf(call, reader.Recognise(call));
      if (entries.classes < 2 || entries.classes > kMaxConfusedClasses) continue;
      keys.emplace(call.key, entries.classes);
      if (key.empty() || key == call.key)
        pairs[call.key].Add(step->view().rows.info.global_step, call.worker, entries);
    }
  }
  if (key.empty() && !pairs.empty())
    key = std::ranges::max_element(pairs, {}, [](const auto& one) { return one.second.rows(); })->first;
  Ordered json{{"loss", key},
               {"mode", query::ModeName(mode.value_or(Mode::kTrain))},
               {"losses", Ordered::array()},
               {"steps", used},
               {"steps_all", places.size()}};
  for (const auto& [name, classes] : keys) json["losses"].push_back({{"key", name}, {"classes", classes}});
  (pairs.contains(key) ? pairs.at(key) : Pairs()).Put(&json);
  return Response{.body = JsonText(json)};
}

}  // namespace luff::server
