#include "luff/profile/input.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"

namespace luff::profile {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kMaxDocument = 1U << 20;
constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kLeftOut = 25;  // one step in so many
// What the model leaves out: a worker's batch has to be handed over, and workers disturb each other.
constexpr double kSlower = 1.3;

std::int64_t Whole(const Json& object, const char* key, std::int64_t otherwise) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_integer()) return otherwise;
  const auto number = at->get<std::int64_t>();
  return number < 0 ? otherwise : number;
}

}  // namespace

std::optional<Loader> TrainingLoader(std::string_view loaders_json) {
  const Json json = TryParseJson(loaders_json, {kMaxDocument, kMaxDepth});
  if (!json.is_object() || !json.contains("loaders") || !json["loaders"].is_array()) return std::nullopt;
  const Json* chosen = nullptr;
  for (const Json& one : json["loaders"]) {
    if (!one.is_object()) continue;
    chosen = &one;
    const auto trains = one.find("trains");
    if (trains != one.end() && trains->is_boolean() && trains->get<bool>()) break;
  }
  if (chosen == nullptr) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto at = chosen->find(name);
    return at != chosen->end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  return Loader{text("type"), text("dataset"), Whole(*chosen, "num_workers", 0)};
}

std::int64_t CoresOf(std::string_view environment_json) {
  const Json json = TryParseJson(environment_json, {kMaxDocument, kMaxDepth});
  if (!json.is_object()) return 1;
  return std::max<std::int64_t>(Whole(json, "cores", Whole(json, "cpus", 1)), 1);
}

StepTime TimeOf(const query::StepPhases& phases) {
  const format::PhasesHead& head = phases.head;
  const double unit = head.steps * 1e9;
  const auto seconds = [unit](std::int64_t ns) { return ns < 0 ? -1 : static_cast<double>(ns) / unit; };
  return {seconds(head.wall_ns), seconds(phases.ns[static_cast<std::size_t>(format::Phase::kDataWait)]),
          seconds(head.run_queue_ns), seconds(head.cpu_ns)};
}

Means MeansOf(std::vector<StepTime> steps) {
  std::ranges::sort(steps, {}, &StepTime::wall_s);
  steps.resize(steps.size() - steps.size() / kLeftOut);
  Means means;
  means.steps = steps.size();
  double timed_s = 0, queue_s = 0, cpu_s = 0;
  for (const StepTime& one : steps) {
    means.step_s += one.wall_s;
    means.wait_s += one.wait_s;
    if (one.queue_s < 0 || one.cpu_s < 0) continue;
    timed_s += one.wall_s;
    queue_s += one.queue_s;
    cpu_s += one.cpu_s;
  }
  if (means.step_s <= 0) return means;
  const double kept = timed_s > 0 ? 1 - std::min(queue_s / timed_s, 1.0) : 1;
  const double scale = kept / static_cast<double>(means.steps);
  if (timed_s * 2 > means.step_s) {
    const double slept = std::max(kept - cpu_s / timed_s, 0.0);
    means.blocked_s = slept * means.step_s / static_cast<double>(means.steps);
  }
  means.step_s *= scale;
  means.wait_s *= scale;
  return means;
}

Estimate EstimateWorkers(const Means& means, std::int64_t workers, std::int64_t cores) {
  Estimate estimate;
  estimate.compute_s = std::max(means.step_s - means.wait_s, 0.0);
  // With workers, a step that waits takes as long as they need for a batch.
  estimate.work_s = workers == 0 ? means.wait_s : means.step_s * static_cast<double>(workers);
  const bool sleeps = workers == 0 && means.blocked_s && *means.blocked_s >= means.wait_s / 2;
  const std::int64_t room = std::max<std::int64_t>(sleeps ? cores : cores - 1, workers);
  const double ratio = estimate.work_s / std::max(estimate.compute_s, 1e-6);
  estimate.workers =
      std::min<std::int64_t>(room, static_cast<std::int64_t>(std::min(std::ceil(ratio - 1e-6), 1e3)) + 1);
  if (estimate.workers <= workers) {
    estimate.workers = workers;
    return estimate;
  }
  const auto saved = [&](double slower) {
    const double supply = estimate.work_s / static_cast<double>(estimate.workers) * slower;
    return std::max(means.step_s - std::max(estimate.compute_s, supply), 0.0);
  };
  estimate.saving_s = saved(1);
  estimate.low_s = saved(kSlower);
  estimate.high_s = means.wait_s;
  estimate.method =
      fmt::format("step - max(compute, work / workers) = {} - max({}, {} / {})", TimeText(means.step_s),
                  TimeText(estimate.compute_s), TimeText(estimate.work_s), estimate.workers);
  return estimate;
}

std::string WaitText(const Means& means, const std::optional<Loader>& loader) {
  std::string text = fmt::format("the step waits {:.0f} % of the time for data ({} of {})",
                                 100 * means.wait_s / std::max(means.step_s, 1e-12), TimeText(means.wait_s),
                                 TimeText(means.step_s));
  if (!loader) return text;
  return text + fmt::format(": {} has {} worker{}", loader->type.empty() ? "the loader" : loader->type,
                            loader->workers, loader->workers == 1 ? "" : "s");
}

std::string TimeText(double seconds) {
  if (seconds < 1e-4) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1e-2) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 100) return fmt::format("{:.1f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace luff::profile
