#include "cli/progress.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "cli/report.h"

namespace luff::cli {
namespace {

constexpr std::size_t kLookBack = 32;                 // steps in which a TRAIN step is looked for
constexpr std::int64_t kSpeedNs = 10'000'000'000;     // that a speed is measured over
constexpr std::int64_t kLeftAfterNs = 3'000'000'000;  // of the training, before a time is said
constexpr double kStallSeconds = 15, kStallSteps = 20;
constexpr std::size_t kMaxName = 32;

// A number of a line; NaN if there is none.
double NumberAt(const nlohmann::json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number() ? at->get<double>() : NAN;
}

}  // namespace

// ---- In the rule worker ----

std::string ProgressLine(const Progress& progress) {
  nlohmann::json line{{"step", progress.step}, {"wall", progress.wall_unix_ns}};
  const auto put = [&line](const char* name, double value) {
    if (std::isfinite(value)) line[name] = value;
  };
  if (progress.planned >= 0) {
    line["planned"] = progress.planned;
    line["done"] = progress.done;
    line["updates"] = progress.updates;
  }
  if (progress.has_loss) {
    line["loss"] = std::isfinite(progress.loss) ? nlohmann::json(progress.loss)
                                                : nlohmann::json(fmt::format("{}", progress.loss));
    line["loss_name"] = progress.loss_name;
  }
  put("lr_low", progress.lr_low);
  put("lr_high", progress.lr_high);
  put("per_second", progress.per_second);
  put("left_s", progress.left_s);
  return "status " + JsonText(line);
}

void TakeProgressLine(const std::string& line, Progress* progress) {
  if (!line.starts_with("status ")) return;
  const nlohmann::json told = TryParseJson(line.substr(7));
  if (!told.is_object()) return;
  Progress now;
  now.step = WholeMember(told, "step", -1);
  now.wall_unix_ns = WholeMember(told, "wall", 0);
  now.planned = WholeMember(told, "planned", -1);
  now.done = WholeMember(told, "done", 0);
  now.updates = told.contains("updates") && told["updates"] == true;
  now.has_loss = told.contains("loss");
  now.loss = NumberAt(told, "loss");
  if (now.has_loss && told["loss"] == "inf") now.loss = HUGE_VAL;
  if (now.has_loss && told["loss"] == "-inf") now.loss = -HUGE_VAL;
  if (const auto name = told.find("loss_name"); name != told.end() && name->is_string())
    now.loss_name = name->get<std::string>().substr(0, kMaxName);
  now.lr_low = NumberAt(told, "lr_low");
  now.lr_high = NumberAt(told, "lr_high");
  now.per_second = NumberAt(told, "per_second");
  now.left_s = NumberAt(told, "left_s");
  *progress = std::move(now);
}

void ProgressReader::Look(const query::Trial& trial) {
  const std::size_t count = trial.step_count();
  if (count == looked_) return;
  looked_ = count;
  now_.wall_unix_ns = trial.step_at(count - 1).wall_unix_ns;
  for (std::size_t n = count; n > 0 && count - n < kLookBack; --n) {
    const query::StepInfo info = trial.step_at(n - 1);
    if (info.mode != query::Mode::kTrain || info.superseded) continue;
    if (info.mode_step <= now_.step) return;
    now_.step = info.mode_step;
    ReadPlan(trial);
    ReadNumbers(trial, n - 1);
    Measure(info);
    return;
  }
}

void ProgressReader::ReadNumbers(const query::Trial& trial, std::size_t n) {
  if (!trial.ReadStepRows(n, &rows_).ok()) return;
  std::vector<std::pair<std::string, double>> losses;
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const auto& scalar : rows_.scalars) {
    const auto& info = trial.tensor(scalar.tensor);
    if (info.role == query::Role::kLoss) losses.emplace_back(info.name, scalar.value);
    if (info.role != query::Role::kOptimizerSetting || !info.name.ends_with(".lr")) continue;
    low = std::min(low, scalar.value);
    high = std::max(high, scalar.value);
  }
  // What is unknown of this step was said of an earlier one: e.g. a rate that is recorded at updates.
  if (low <= high) now_.lr_low = low, now_.lr_high = high;
  if (losses.empty()) return;
  // Replicas record one loss each under one name; the first speaks for them.
  const bool one =
      std::all_of(losses.begin(), losses.end(), [&](const auto& it) { return it.first == losses[0].first; });
  now_.has_loss = true;
  now_.loss = losses[0].second;
  now_.loss_name = one ? "" : losses[0].first.substr(0, kMaxName);
}

// What a framework said of the length of its training: boosting rounds, or the document `plan`.
void ProgressReader::ReadPlan(const query::Trial& trial) {
  const std::string boosting = trial.Document("boosting"), plan = trial.Document("plan");
  if (boosting == boosting_ && plan == plan_) return;
  boosting_ = boosting;
  plan_ = plan;
  now_.planned = -1;
  now_.left_s = NAN;
  first_ = {};
  if (const nlohmann::json said = TryParseJson(plan); said.is_object()) {
    now_.planned = WholeMember(said, "updates", -1);
    begin_ = WholeMember(said, "first_update", 0);
    now_.updates = true;
  } else if (const nlohmann::json told = TryParseJson(boosting);
             told.is_object() && told.contains("trainings") && told["trainings"].is_array() &&
             !told["trainings"].empty() && told["trainings"].back().is_object()) {
    now_.planned = WholeMember(told["trainings"].back(), "rounds_planned", -1);
    begin_ = WholeMember(told["trainings"].back(), "first_step", 0);
    now_.updates = false;
  }
}

void ProgressReader::Measure(const query::StepInfo& info) {
  const Sample now{info.mode_step, info.update, info.wall_unix_ns};
  samples_.push_back(now);
  while (samples_.size() > 2 && now.wall_ns - samples_[1].wall_ns > kSpeedNs) samples_.pop_front();
  const Sample& then = samples_.front();
  if (now.wall_ns > then.wall_ns)
    now_.per_second =
        static_cast<double>(now.step - then.step) * 1e9 / static_cast<double>(now.wall_ns - then.wall_ns);
  if (now_.planned < 0) return;
  // The step of an update is recorded with the number of updates before it.
  now_.done = (now_.updates ? info.update : info.mode_step) + 1 - begin_;
  if (first_.wall_ns == 0) first_ = now;
  const std::int64_t passed = now.wall_ns - first_.wall_ns;
  const std::int64_t made = now_.updates ? now.update - first_.update : now.step - first_.step;
  now_.left_s = NAN;
  if (passed < kLeftAfterNs || made <= 0 || now_.done > now_.planned) return;
  // Over the whole training, since evaluations and checkpoints between its steps take time as well.
  now_.left_s = static_cast<double>(now_.planned - now_.done) * static_cast<double>(passed) * 1e-9 /
                static_cast<double>(made);
}

// ---- In the supervisor ----

namespace {

std::string SpanText(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 6000) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

std::string SpeedText(double per_second) {
  if (per_second >= 1)
    return fmt::format("{:.3g} steps/s", per_second >= 100 ? std::round(per_second) : per_second);
  return fmt::format("{} a step", SpanText(1 / per_second));
}

// The first `width` columns. Escaped text is UTF-8; a character counts as one column.
std::string Cut(const std::string& text, std::size_t width) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80) continue;
    if (columns == width) return text.substr(0, i);
    ++columns;
  }
  return text;
}

}  // namespace

std::string StatusLine(const Progress& progress, const StatusParts& parts, std::int64_t now_unix_ns,
                       std::size_t width) {
  struct Part {
    int rank;  // the higher, the sooner it is left out
    std::string text;
  };
  std::vector<Part> all;
  if (progress.step < 0 && parts.before.empty())
    return Cut("luff: waiting for the first training step", width);
  const std::int64_t step = std::max<std::int64_t>(progress.step, 0);
  std::string where = fmt::format("step {}", step);
  if (progress.planned > 0 && progress.done <= progress.planned && !progress.updates)
    where += fmt::format(" of {}", progress.planned + (step + 1 - progress.done));
  all.push_back({0, where});
  if (progress.planned > 0 && progress.done <= progress.planned && progress.updates)
    all.push_back({5, fmt::format("update {} of {}", progress.done, progress.planned)});
  if (progress.has_loss) {
    const std::string value = std::isnan(progress.loss) ? "NaN" : fmt::format("{:.4g}", progress.loss);
    all.push_back({2, (progress.loss_name.empty() ? "loss" : Escaped(progress.loss_name)) + " " + value});
  }
  if (std::isfinite(progress.lr_low)) {
    std::string rate = fmt::format("lr {:.3g}", progress.lr_low);
    if (progress.lr_high != progress.lr_low) rate += fmt::format(" to {:.3g}", progress.lr_high);
    all.push_back({6, rate});
  }
  const double silent_s = static_cast<double>(now_unix_ns - progress.wall_unix_ns) * 1e-9;
  const bool moves = progress.per_second > 0 && std::isfinite(progress.per_second);
  if (progress.wall_unix_ns > 0 && silent_s > kStallSeconds &&
      (!moves || silent_s > kStallSteps / progress.per_second)) {
    all.push_back({3, fmt::format("no step for {}", SpanText(silent_s))});
  } else {
    if (moves) all.push_back({4, SpeedText(progress.per_second)});
    if (std::isfinite(progress.left_s)) all.push_back({3, SpanText(progress.left_s) + " left"});
  }
  all.push_back({1, !parts.rules          ? "no rules"
                    : parts.findings == 0 ? "no findings"
                                          : Plural(parts.findings, "finding", "findings")});
  if (parts.stopping) all.push_back({0, "stopping"});
  const auto joined = [&] {
    std::string text = "luff: " + parts.before;
    for (std::size_t i = 0; i < all.size(); ++i) text += (i == 0 ? "" : ", ") + all[i].text;
    return text;
  };
  std::string text = joined();
  while (text.size() > width) {
    const auto last = std::max_element(all.begin(), all.end(),
                                       [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (last->rank == 0) return Cut(text, width);
    all.erase(last);
    text = joined();
  }
  return text;
}

}  // namespace luff::cli
