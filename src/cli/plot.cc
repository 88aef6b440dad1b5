#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "cli/heat_map.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct PlotOptions : ReadOptions {
  std::vector<std::string> names;
  std::string out = "terminal";
};

struct Series {
  std::string name;
  std::vector<std::int64_t> step;
  std::vector<double> value;
};

constexpr std::size_t kDefaultSeries = 6;

/// Scalars as they are, other tensors by their L2 norm.
Series SeriesOf(const query::Trial& trial, query::TensorId id, query::Mode mode,
                std::optional<std::uint32_t> worker) {
  Series series;
  series.name = trial.tensor(id).name;
  for (const auto& scalar : ValueOrExit(trial.Scalars(id, mode, worker))) {
    series.step.push_back(scalar.global_step);
    series.value.push_back(scalar.value);
  }
  if (!series.step.empty()) return series;
  const auto columns = ValueOrExit(trial.Summaries(id, mode, worker));
  series.step.assign(columns.global_step.begin(), columns.global_step.end());
  const bool loss = trial.tensor(id).role == query::Role::kLoss;
  if (!loss) series.name += " (l2 norm)";
  const auto& value = loss ? columns.mean : columns.l2;
  series.value.assign(value.begin(), value.end());
  return series;
}

/// Losses, then gradients.
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

/// Two rows of dots for each line of text, in Braille.
void Draw(const Series& series, std::size_t width, std::size_t height) {
  double low = INFINITY;
  double high = -INFINITY;
  std::size_t strange = 0;
  for (const double v : series.value) {
    if (!std::isfinite(v)) {
      ++strange;
      continue;
    }
    low = std::min(low, v);
    high = std::max(high, v);
  }
  fmt::print("{}\n", Escaped(series.name));
  if (!(low <= high)) {
    fmt::print("  {}\n\n", series.value.empty() ? "nothing recorded" : "no finite value");
    return;
  }
  const double first = static_cast<double>(series.step.front());
  const double span = std::max(1.0, static_cast<double>(series.step.back()) - first);
  const double range = high > low ? high - low : 1;
  std::vector<std::uint8_t> cells(width * height, 0);
  static constexpr std::uint8_t kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  for (std::size_t i = 0; i < series.value.size(); ++i) {
    if (!std::isfinite(series.value[i])) continue;
    const auto x = static_cast<std::size_t>((static_cast<double>(series.step[i]) - first) / span *
                                            static_cast<double>(width * 2 - 1));
    const auto y =
        static_cast<std::size_t>((high - series.value[i]) / range * static_cast<double>(height * 4 - 1));
    if (x / 2 >= width || y / 4 >= height) continue;
    cells[y / 4 * width + x / 2] |= kDots[y % 4][x % 2];
  }
  for (std::size_t row = 0; row < height; ++row) {
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
  fmt::print("{:>12}  {:<{}}{}{}\n\n", "step", series.step.front(), width - std::min<std::size_t>(width, 12),
             series.step.back(), strange == 0 ? "" : fmt::format("  ({} values are NaN or Inf)", strange));
}

/// The picture is drawn in Python: this process becomes the interpreter beside the executable.
[[noreturn]] void DrawPng(const PlotOptions& options) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string python = (self.parent_path() / "python").string();
  std::vector<std::string> words = {python,      "-m",     "luff._verbs.plot", "--out",
                                    options.out, "--mode", options.mode};
  if (options.worker) words.insert(words.end(), {"--worker", std::to_string(*options.worker)});
  words.insert(words.end(), {"--", options.run});
  words.insert(words.end(), options.names.begin(), options.names.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(python.c_str(), argv.data());
  fmt::print(stderr,
             "luff: no Python beside the luff command, a picture needs one with luff and matplotlib; use "
             "--out terminal: {}\n",
             Escaped(python));
  ExitWith(kExitUsage);
}

void Plot(const PlotOptions& options) {
  (void)ModeOrExit(options);
  if (options.out != "terminal") DrawPng(options);
  const auto trial = OpenOrExit(options);
  const query::Mode mode = ModeOrExit(options);
  const auto names = options.names.empty() ? DefaultNames(*trial) : options.names;
  if (names.empty())
    fmt::print("the run has neither losses nor gradients; name a tensor (luff tensors {})\n",
               Escaped(options.run));
  const std::size_t width = std::clamp<std::size_t>(TerminalWidth(), 40, 120) - 16;
  for (const std::string& name : names) {
    const query::TensorId id = ValueOrExit(trial->FindTensor(name));
    // Of what is asked for by name the whole distribution, where it was recorded.
    if (!options.names.empty()) {
      const std::string map = HeatMap(*trial, id, mode, options.worker, width, 12);
      if (!map.empty()) {
        fmt::print("{} (share of elements)\n{}\n", Escaped(trial->tensor(id).name), map);
        continue;
      }
    }
    Draw(SeriesOf(*trial, id, mode, options.worker), width, 8);
  }
  ExitWith(kExitOk);
}

}  // namespace

void AddPlot(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("plot", "Draw losses, gradient norms or named tensors over the steps");
  auto options = std::make_shared<PlotOptions>();
  verb->add_option("RUN", options->run, "The run directory")->required();
  verb->add_option("NAME", options->names, "Tensors; default: losses and gradients");
  verb->add_option("--out", options->out, "A file ending in .png, .svg or .pdf, or \"terminal\"")
      ->capture_default_str();
  AddModeOption(verb, options.get());
  verb->callback([options] { Plot(*options); });
}

}  // namespace luff::cli
