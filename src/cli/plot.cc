#include <algorithm>
#include <cmath>
#include <map>

#include "base/format.h"
#include "catalog/card.h"
#include "cli/heat_map.h"
#include "cli/reading.h"
#include "cli/tensor_names.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct PlotOptions : ReadOptions {
  std::vector<std::string> names;
  std::string out = "terminal";
  bool force = false;
};

struct Series {
  std::string name;
  std::vector<std::int64_t> step;
  std::vector<double> value;
  std::vector<bool> bad;  // some elements are NaN or Inf
};

constexpr std::size_t kDefaultSeries = 6;
constexpr double kLogFrom = 1000;  // a larger ratio of greatest to least value makes the axis logarithmic

/// Numbers the steps of all modes by TRAIN steps: any other step is where so many TRAIN steps came before it.
class TrainAxis {
 public:
  explicit TrainAxis(const query::Trial& trial) {
    for (std::size_t n = 0; n < trial.step_count(); ++n) {
      const query::StepInfo info = trial.step_at(n);
      if (info.mode == query::Mode::kTrain && !info.superseded) trained_[info.global_step] = info.mode_step;
    }
  }
  [[nodiscard]] std::int64_t Place(std::int64_t global_step) const {
    const auto next = trained_.upper_bound(global_step);
    if (next == trained_.begin()) return trained_.empty() ? global_step : 0;
    const auto& [last, mode_step] = *std::prev(next);
    return last == global_step ? mode_step : mode_step + 1;
  }

 private:
  std::map<std::int64_t, std::int64_t> trained_;  // global step -> TRAIN step
};

/// Returns scalars as they are, one series for each mode; for tensors, the mean of a loss and the L2 norm of
/// others. Steps are numbered as `mode` counts them, or placed on `axis` if there is one: there an evaluation
/// has one place, and of a loss its mean.
std::vector<Series> SeriesOf(const query::Trial& trial, query::TensorId id, query::Mode mode,
                             std::optional<std::uint32_t> worker, const TrainAxis* axis) {
  const std::string& name = trial.tensor(id).name;
  const bool loss = trial.tensor(id).role == query::Role::kLoss;
  std::map<query::Mode, std::vector<query::ScalarAt>> modes;
  for (const auto& scalar : ValueOrExit(trial.Scalars(id, mode, worker)))
    modes[scalar.mode].push_back(scalar);
  std::vector<Series> all;
  for (const auto& [of, scalars] : modes) {
    const bool means = loss && axis != nullptr && of == query::Mode::kEval;
    Series series;
    for (const auto& scalar : means ? catalog::MeansOfEvaluations(scalars) : scalars) {
      series.step.push_back(axis != nullptr ? axis->Place(scalar.global_step) : StepAs(mode, scalar));
      series.value.push_back(scalar.value);
      series.bad.push_back(!std::isfinite(scalar.value));
    }
    series.name = modes.size() > 1 ? fmt::format("{} ({}{})", name, query::ModeName(of),
                                                 means ? ", mean of each evaluation" : "")
                                   : name;
    all.push_back(std::move(series));
  }
  if (!all.empty()) return all;
  const auto columns = ValueOrExit(trial.Summaries(id, mode, worker));
  Series series;
  series.name = loss ? name : name + " (l2 norm)";
  const auto& step = StepAs(mode, columns);
  for (const std::int64_t one : step) series.step.push_back(axis != nullptr ? axis->Place(one) : one);
  for (std::size_t i = 0; i < columns.count.size(); ++i) {
    series.value.push_back(NothingFinite(columns, i) ? NAN : (loss ? columns.mean : columns.l2)[i]);
    series.bad.push_back(columns.nan_count[i] + columns.inf_count[i] != 0);
  }
  return {std::move(series)};
}

/// Names of losses, then of gradients; at most kDefaultSeries.
std::vector<std::string> DefaultNames(const query::Trial& trial) {
  std::vector<std::string> names;
  for (const query::Role role : {query::Role::kLoss, query::Role::kGradient}) {
    for (std::size_t id = 0; id < trial.tensor_count() && names.size() < kDefaultSeries; ++id) {
      const auto& info = trial.tensor(static_cast<query::TensorId>(id));
      if (info.role == role) names.push_back(info.name);
    }
  }
  return names;
}

/// A line that lists the steps with NaN or Inf; "" if there are none.
std::string StrangeText(const Series& series) {
  const auto first = std::find(series.bad.begin(), series.bad.end(), true);
  if (first == series.bad.end()) return "";
  return fmt::format("{:>12}  NaN or Inf at {} of {} steps, the first is {}\n", "",
                     std::count(series.bad.begin(), series.bad.end(), true), series.bad.size(),
                     series.step[static_cast<std::size_t>(first - series.bad.begin())]);
}

/// Draws a series in Braille, with four rows of dots for each line of text. A row of crosses marks NaN and
/// Inf, since an empty column would look harmless.
void Draw(const Series& series, std::size_t width, std::size_t height) {
  double low = INFINITY;
  double high = -INFINITY;
  for (const double v : series.value) {
    if (!std::isfinite(v)) continue;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const bool log = low > 0 && high / low > kLogFrom;
  fmt::print("{}{}\n", Escaped(series.name), log ? ", logarithmic" : "");
  if (series.value.empty()) {
    fmt::print("  nothing recorded\n\n");
    return;
  }
  const auto first = static_cast<double>(series.step.front());
  const double span = std::max(1.0, static_cast<double>(series.step.back()) - first);
  const auto column_of = [&](std::size_t i, std::size_t columns) {
    const double x = (static_cast<double>(series.step[i]) - first) / span * static_cast<double>(columns - 1);
    return std::min(static_cast<std::size_t>(std::max(0.0, x)), columns - 1);
  };
  const auto height_of = [log](double value) { return log ? std::log(value) : value; };
  const double range = high > low ? height_of(high) - height_of(low) : 1;
  std::vector<std::uint8_t> cells(width * height, 0);
  std::string crosses(width, ' ');
  const bool strange = std::find(series.bad.begin(), series.bad.end(), true) != series.bad.end();
  static constexpr std::uint8_t kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  for (std::size_t i = 0; i < series.value.size(); ++i) {
    if (series.bad[i]) crosses[column_of(i, width)] = 'x';
    if (!std::isfinite(series.value[i])) continue;
    const std::size_t x = column_of(i, width * 2);
    const auto y = static_cast<std::size_t>((height_of(high) - height_of(series.value[i])) / range *
                                            static_cast<double>(height * 4 - 1));
    if (x / 2 >= width || y / 4 >= height) continue;
    cells[y / 4 * width + x / 2] |= kDots[y % 4][x % 2];
  }
  for (std::size_t row = 0; row < height && low <= high; ++row) {
    const std::string label = row == 0 ? NumberText(high) : row + 1 == height ? NumberText(low) : "";
    std::string line;
    for (std::size_t column = 0; column < width; ++column) {
      const std::uint8_t dots = cells[row * width + column];
      line += static_cast<char>(0xE2);  // U+2800 + dots in UTF-8
      line += static_cast<char>(0xA0 | dots >> 6);
      line += static_cast<char>(0x80 | (dots & 0x3F));
    }
    fmt::print("{:>12} |{}\n", label, line);
  }
  if (strange) fmt::print("{:>12} |{}\n", "NaN or Inf", crosses);
  fmt::print("{}\n{}\n", StepAxis(series.step.front(), series.step.back(), width), StrangeText(series));
}

/// Becomes the Python program that draws the picture.
[[noreturn]] void DrawPng(const PlotOptions& options) {
  std::vector<std::string> words = {"--out=" + options.out};
  if (!options.mode.empty()) words.push_back("--mode=" + options.mode);
  if (options.worker) words.push_back("--worker=" + std::to_string(*options.worker));
  if (options.force) words.emplace_back("--force");
  words.insert(words.end(), {"--", options.run});
  words.insert(words.end(), options.names.begin(), options.names.end());
  BecomePython("plot", words, "a picture needs matplotlib, --out terminal does not");
}

void Plot(const PlotOptions& options) {
  const query::Mode mode = ModeOrExit(options, query::Mode::kGlobal);
  if (options.out != "terminal") DrawPng(options);
  const auto trial = OpenOrExit(options);
  const TrainAxis train_axis(*trial);
  const TrainAxis* axis = options.mode.empty() ? &train_axis : nullptr;
  const auto names = options.names.empty() ? DefaultNames(*trial) : options.names;
  if (names.empty())
    fmt::print("the run has neither losses nor gradients; name a tensor (luff tensors {})\n",
               Escaped(options.run));
  const std::size_t width = std::clamp<std::size_t>(TerminalWidth(), 40, 120) - 16;
  for (const std::string& name : names) {
    const query::TensorId id = ValueOrExit(FindMeant(*trial, name));
    // Tensors given by name are drawn as whole distributions if histograms were recorded.
    if (!options.names.empty()) {
      const std::string map =
          HeatMap(*trial, id, ModeOfTensor(options, *trial, id), options.worker, width, 12);
      if (!map.empty()) {
        const auto series = SeriesOf(*trial, id, mode, options.worker, axis);
        fmt::print("{} (share of elements)\n{}{}\n", Escaped(trial->tensor(id).name), map,
                   StrangeText(series.front()));
        continue;
      }
    }
    for (const Series& series : SeriesOf(*trial, id, mode, options.worker, axis)) Draw(series, width, 8);
  }
  ExitWith(kExitOk);
}

}  // namespace

void AddPlot(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("plot", "Draw losses, gradient norms or named tensors over the steps");
  auto options = std::make_shared<PlotOptions>();
  verb->add_option("RUN", options->run, kRunHelp)->required();
  verb->add_option("NAME", options->names, "Tensors; default: losses and gradients");
  verb->add_option("--out", options->out, "A file ending in .png, .svg or .pdf, or \"terminal\"")
      ->capture_default_str();
  verb->add_flag("--force", options->force, "Replace an existing file");
  AddModeOption(verb, options.get());
  verb->callback([options] {
    FindRunOrExit(&options->run);
    Plot(*options);
  });
}

}  // namespace luff::cli
