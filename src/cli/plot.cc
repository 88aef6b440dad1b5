#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/format.h"
#include "cli/heat_map.h"
#include "cli/overview.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/series.h"
#include "cli/tensor_names.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/rules/kept_findings.h"

namespace luff::cli {
namespace {

struct PlotOptions : ReadOptions {
  std::string given;  // the run, as it was typed
  std::vector<std::string> names;
  std::string out = "terminal";
  bool force = false;
};

constexpr std::size_t kCharts = 6, kPictureCharts = 10;  // if nothing is named
constexpr std::size_t kRows = 8, kOverviewRows = 5;      // of text in a chart
constexpr double kLogFrom = 1000;  // a larger ratio of greatest to least value makes the axis logarithmic

/// A line that lists the steps with NaN or Inf; "" if there are none.
std::string StrangeText(const Series& series) {
  const auto first = std::find(series.bad.begin(), series.bad.end(), true);
  if (first == series.bad.end()) return "";
  return fmt::format("{:>12}  NaN or Inf at {} of {} steps, the first is {}\n", "",
                     std::count(series.bad.begin(), series.bad.end(), true), series.bad.size(),
                     series.step[static_cast<std::size_t>(first - series.bad.begin())]);
}

/// Where a finding began in a chart.
struct Mark {
  std::int64_t step = 0;
  std::string text;
};

/// Draws a series in Braille, with four rows of dots for each line of text. A row of crosses marks NaN and
/// Inf, since an empty column would look harmless.
/// `axis`: the first and the last step of the axis. Values that are rarer than columns are joined by a line.
void Draw(const Series& series, std::pair<std::int64_t, std::int64_t> axis, std::size_t width,
          std::size_t height, const std::vector<Mark>& marks) {
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
  const auto first = static_cast<double>(axis.first);
  const double span = std::max(1.0, static_cast<double>(axis.second) - first);
  const auto place_of = [&](std::int64_t step, std::size_t columns) {
    const double x = (static_cast<double>(step) - first) / span * static_cast<double>(columns - 1);
    return std::min(static_cast<std::size_t>(std::max(0.0, x)), columns - 1);
  };
  const auto column_of = [&](std::size_t i, std::size_t columns) {
    return place_of(series.step[i], columns);
  };
  const auto height_of = [log](double value) { return log ? std::log(value) : value; };
  const double range = high > low ? height_of(high) - height_of(low) : 1;
  std::vector<std::uint8_t> cells(width * height, 0);
  std::string crosses(width, ' ');
  const bool strange = std::find(series.bad.begin(), series.bad.end(), true) != series.bad.end();
  static constexpr std::uint8_t kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  const auto dot = [&](std::size_t x, double value) {
    const auto y =
        static_cast<std::size_t>((height_of(high) - value) / range * static_cast<double>(height * 4 - 1));
    if (x / 2 < width && y / 4 < height) cells[y / 4 * width + x / 2] |= kDots[y % 4][x % 2];
  };
  for (std::size_t i = 0; i < series.value.size(); ++i) {
    if (series.bad[i]) crosses[column_of(i, width)] = 'x';
    if (!std::isfinite(series.value[i])) continue;
    const std::size_t x = column_of(i, width * 2);
    const double value = height_of(series.value[i]);
    dot(x, value);
    if (i == 0 || !std::isfinite(series.value[i - 1])) continue;
    const std::size_t before = column_of(i - 1, width * 2);
    const double from = height_of(series.value[i - 1]);
    for (std::size_t between = before + 1; between < x; ++between)
      dot(between,
          from + (value - from) * static_cast<double>(between - before) / static_cast<double>(x - before));
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
  fmt::print("{}\n{}", StepAxis(axis.first, axis.second, width), StrangeText(series));
  for (const Mark& mark : marks) {
    // The text stands on the side of the arrow that has more room.
    const std::size_t at = place_of(mark.step, width);
    const bool right = at < width / 2;
    const std::size_t room = right ? width - at : at + 1;
    std::string text = mark.text.size() + 2 > room ? "" : mark.text;
    if (!text.empty()) text = right ? " " + text : text + " ";
    fmt::print("{:>12}  {}{}{}{}\n", "", std::string(right ? at : at - text.size(), ' '), right ? "" : text,
               "▲", right ? text : "");
  }
  fmt::print("\n");
}

/// From the first to the last step of a run.
std::pair<std::int64_t, std::int64_t> WholeAxis(const query::Trial& trial, query::Mode mode,
                                                const TrainAxis* axis) {
  const auto steps = trial.Steps(mode);
  if (steps.empty()) return {0, 0};
  if (axis == nullptr) return {steps.front(), steps.back()};
  return {axis->Place(steps.front()), axis->Place(steps.back())};
}

/// Where the findings about a tensor began, at most three.
std::vector<Mark> MarksOf(const std::vector<rules::Finding>& findings, const std::string& tensor,
                          const query::Trial& trial, query::Mode mode, const TrainAxis* axis) {
  std::vector<Mark> marks;
  for (const rules::Finding& finding : findings) {
    if (finding.tensor != tensor || marks.size() >= 3) continue;
    const auto of = query::ParseMode(finding.mode);
    if (!of.ok() || (axis == nullptr && *of != mode)) continue;
    std::int64_t step = finding.since_step;
    if (axis != nullptr && *of != query::Mode::kTrain) {
      const auto info = trial.FindStep(step, *of);
      if (!info.ok()) continue;
      step = axis->Place(info->global_step);
    }
    marks.push_back({step, Escaped(finding.rule) + ", " + StepText(finding.mode, finding.since_step)});
  }
  return marks;
}

/// Becomes the Python program that draws the picture. `overview`: the names were chosen here.
[[noreturn]] void DrawPng(const PlotOptions& options, const std::vector<std::string>& names, bool overview) {
  std::vector<std::string> words = {"--out=" + options.out};
  if (!options.mode.empty()) words.push_back("--mode=" + options.mode);
  if (options.worker) words.push_back("--worker=" + std::to_string(*options.worker));
  if (options.force) words.emplace_back("--force");
  if (overview) words.emplace_back("--overview");
  words.insert(words.end(), {"--", options.run});
  words.insert(words.end(), names.begin(), names.end());
  BecomePython("plot", words, "a picture needs matplotlib, --out terminal does not");
}

/// Chooses what to draw if nothing is named; says what is left out.
std::string ChooseNames(const query::Trial& trial, const std::vector<rules::Finding>& findings,
                        const PlotOptions& options, std::vector<std::string>* names) {
  const Overview overview = OverviewOf(trial, findings, options.out == "terminal" ? kCharts : kPictureCharts);
  *names = overview.names;
  const std::string run = Escaped(options.given);
  if (names->empty())
    return fmt::format("the run has neither losses nor gradients; name a tensor (luff tensors {})\n", run);
  const std::string left = LeftText(overview);
  if (left.empty()) return "";
  return fmt::format("not drawn: {}\n  luff plot {} NAME draws one, luff tensors {} lists them\n",
                     Wrapped(left, 2, TerminalWidth(), 11), run, run);
}

void Plot(const PlotOptions& options) {
  const query::Mode mode = ModeOrExit(options, query::Mode::kGlobal);
  const bool terminal = options.out == "terminal", named = !options.names.empty();
  if (!terminal && named) DrawPng(options, options.names, false);
  const auto trial = OpenOrExit(options);
  const auto findings = rules::FindingsOfRun(trial->path()).findings;
  std::vector<std::string> names = options.names;
  std::string left;
  if (!named) left = ChooseNames(*trial, findings, options, &names);
  if (!terminal && !names.empty()) {
    fmt::print(stderr, "{}", left);
    DrawPng(options, names, true);
  }
  if (!terminal) ExitWithError(NotFound("the run has neither losses nor gradients; name a tensor"));
  const TrainAxis train_axis(*trial);
  const TrainAxis* axis = options.mode.empty() ? &train_axis : nullptr;
  const std::size_t width = std::clamp<std::size_t>(TerminalWidth(), 40, 120) - 16;
  // All charts of an overview have one axis, so that they can be compared.
  std::optional<std::pair<std::int64_t, std::int64_t>> common;
  if (!named) common = WholeAxis(*trial, mode, axis);
  for (const std::string& name : names) {
    const query::TensorId id = ValueOrExit(FindMeant(*trial, name));
    const auto all = ValueOrExit(SeriesOf(*trial, id, mode, options.worker, axis));
    if (named) {
      const std::string map =
          HeatMap(*trial, id, ModeOfTensor(options, *trial, id), options.worker, width, 12);
      if (!map.empty()) {
        fmt::print("{} (share of elements)\n{}{}\n", Escaped(trial->tensor(id).name), map,
                   StrangeText(all.front()));
        continue;
      }
    }
    // A finding is about one mode; a chart of another one does not show it.
    const auto marks = MarksOf(findings, trial->tensor(id).name, *trial, mode, axis);
    for (const Series& series : all) {
      std::pair<std::int64_t, std::int64_t> range{0, 0};
      if (!series.step.empty()) range = {series.step.front(), series.step.back()};
      if (common) range = {std::min(common->first, range.first), std::max(common->second, range.second)};
      Draw(series, range, width, named ? kRows : kOverviewRows, marks);
    }
  }
  fmt::print("{}", left);
  ExitWith(kExitOk);
}

}  // namespace

void AddPlot(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("plot", "Draw what matters in a run, or named tensors, over the steps");
  auto options = std::make_shared<PlotOptions>();
  verb->add_option("RUN", options->run, kRunHelp)->required();
  verb->add_option("NAME", options->names,
                   "Tensors; default: losses, what findings name, learning rate, gradients");
  verb->add_option("--out", options->out, "A file ending in .png, .svg or .pdf, or \"terminal\"")
      ->capture_default_str();
  verb->add_flag("--force", options->force, "Replace an existing file");
  AddModeOption(verb, options.get());
  verb->callback([options] {
    options->given = options->run;
    FindRunOrExit(&options->run);
    Plot(*options);
  });
}

}  // namespace luff::cli
