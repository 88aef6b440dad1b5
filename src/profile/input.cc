#include "luff/profile/input.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"

namespace luff::profile {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kMaxDocument = 1U << 20;
constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kMostSums = 4096;  // workers whose waits are told apart
// What the model leaves out: a worker's batch has to be handed over, and workers disturb each other.
constexpr double kSlower = 1.3;

std::int64_t Whole(const Json& object, const char* key, std::int64_t otherwise) {
  const std::int64_t number = WholeMember(object, key, otherwise);
  return number < 0 ? otherwise : number;
}

}  // namespace

std::vector<Loader> LoadersOf(std::string_view loaders_json) {
  std::vector<Loader> all;
  const Json json = TryParseJson(loaders_json, {kMaxDocument, kMaxDepth});
  if (!json.is_object() || !json.contains("loaders") || !json["loaders"].is_array()) return all;
  for (const Json& one : json["loaders"]) {
    if (!one.is_object()) continue;
    const std::int64_t samples = Whole(one, "samples", -1), batch = Whole(one, "batch_size", 0);
    all.push_back({TextMember(one, "type"), TextMember(one, "dataset"), Whole(one, "num_workers", 0),
                   FlagMember(one, "persistent_workers"), Whole(one, "number", -1), FlagMember(one, "trains"),
                   samples < 0 || batch == 0 ? -1 : samples / batch + (samples % batch != 0 ? 1 : 0),
                   FlagMember(one, "by_next"), Whole(one, "same_epoch", 0), samples, batch});
  }
  return all;
}

std::optional<Loader> TrainingLoader(std::string_view loaders_json) {
  const std::vector<Loader> all = LoadersOf(loaders_json);
  if (all.empty()) return std::nullopt;
  const auto trains = std::ranges::find_if(all, &Loader::trains);
  return trains != all.end() ? *trains : all.back();
}

std::int64_t CoresOf(std::string_view environment_json) {
  const Json json = TryParseJson(environment_json, {kMaxDocument, kMaxDepth});
  if (!json.is_object()) return 1;
  return std::max<std::int64_t>(Whole(json, "cores", Whole(json, "cpus", 1)), 1);
}

void Waits::Add(const query::StepPhases& phases) {
  using format::WaitSubject;
  for (const query::StepPhases::Wait& wait : phases.waits) {
    const auto number = [](std::uint32_t value, std::uint32_t none) {
      return value == none ? std::int64_t{-1} : std::int64_t{value};
    };
    const std::int64_t loader = number(wait.of.loader, WaitSubject::kNoLoader);
    const std::int64_t worker = number(wait.of.worker, WaitSubject::kNoWorker);
    auto at = std::ranges::find_if(
        waits_, [&](const Sum& one) { return one.loader == loader && one.worker == worker; });
    if (at == waits_.end()) {
      if (waits_.size() == kMostSums) continue;
      at = waits_.insert(at, {0, 0, loader, worker});
    }
    const double seconds = static_cast<double>(wait.ns) * 1e-9;
    at->seconds += seconds;
    if (wait.of.ready != WaitSubject::kNoReady) at->ready_s += seconds * wait.of.ready;
  }
}

double Waits::seconds() const {
  double sum = 0;
  for (const Sum& one : waits_) sum += one.seconds;
  return sum;
}

std::int64_t Waits::loader() const {
  std::map<std::int64_t, double> by_loader;
  for (const Sum& one : waits_) by_loader[one.loader] += one.seconds;
  const auto most = std::ranges::max_element(by_loader, {}, [](const auto& entry) { return entry.second; });
  return most == by_loader.end() ? -1 : most->first;
}

Waits::Slowest Waits::SlowestOf(std::int64_t loader) const {
  double all = 0;
  const Sum* most = nullptr;
  for (const Sum& one : waits_) {
    if (one.loader != loader) continue;
    all += one.seconds;
    if (one.worker >= 0 && (most == nullptr || one.seconds > most->seconds)) most = &one;
  }
  if (most == nullptr || all <= 0) return {};
  return {most->worker, most->seconds / all, most->ready_s / std::max(most->seconds, 1e-12)};
}

StepTime TimeOf(const query::StepPhases& phases) {
  const format::PhasesHead& head = phases.head;
  const double unit = head.steps * 1e9;
  const auto seconds = [unit](std::int64_t ns) { return ns < 0 ? -1 : static_cast<double>(ns) / unit; };
  return {seconds(head.wall_ns), seconds(phases.ns[static_cast<std::size_t>(format::Phase::kDataWait)]),
          seconds(head.run_queue_ns), seconds(head.cpu_ns)};
}

std::optional<Loader> WaitedLoader(const Waits& waits, std::string_view loaders_json) {
  const std::vector<Loader> loaders = LoadersOf(loaders_json);
  const std::int64_t waited = waits.loader();
  const auto at =
      std::ranges::find_if(loaders, [&](const Loader& one) { return waited >= 0 && one.number == waited; });
  return at != loaders.end() ? std::optional(*at) : TrainingLoader(loaders_json);
}

Means WithCoresForWorkers(const Means& means, const std::optional<Loader>& loader, double without_core) {
  if (!loader || loader->workers <= 0 || !(without_core > 0)) return means;
  const double share = std::min(without_core / static_cast<double>(loader->workers), 1.0);
  const double lost = std::min(means.wait_s, share * means.step_s);
  Means out = means;
  out.step_s -= lost;
  out.wait_s -= lost;
  if (out.blocked_s) out.blocked_s = std::max(*out.blocked_s - lost, 0.0);
  return out;
}

Estimate EstimateWorkers(const Means& means, std::int64_t workers, std::int64_t cores) {
  Estimate estimate;
  estimate.compute_s = std::max(means.step_s - means.wait_s, 0.0);
  // With workers, a step that waits takes as long as they need for a batch.
  estimate.work_s = workers == 0 ? means.wait_s : means.step_s * static_cast<double>(workers);
  const bool sleeps = workers == 0 && means.blocked_s && *means.blocked_s >= means.wait_s / 2;
  // A training that sleeps for half of a step leaves its core to a worker.
  const bool leaves = workers != 0 && means.blocked_s && *means.blocked_s >= means.step_s / 2;
  const std::int64_t room = std::max<std::int64_t>(sleeps || leaves ? cores : cores - 1, workers);
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

Estimate EstimatePrefetch(const Means& means) {
  Estimate estimate;
  estimate.work_s = means.wait_s;
  estimate.compute_s = std::max(means.step_s - means.wait_s, 0.0);
  estimate.workers = 1;
  const auto saved = [&](double slower) {
    return std::max(means.step_s - std::max(estimate.compute_s, means.wait_s * slower), 0.0);
  };
  estimate.saving_s = saved(1);
  estimate.low_s = saved(kSlower);
  estimate.high_s = means.wait_s;
  estimate.method = fmt::format("step - max(compute, wait) = {} - max({}, {})", TimeText(means.step_s),
                                TimeText(estimate.compute_s), TimeText(means.wait_s));
  return estimate;
}

namespace {

/// One worker is slow, and not all of them: its batches are waited for while those of the others lie there.
/// Where all are as fast, each wait is for one of several that are made at the same time, and nothing is
/// ready.
constexpr double kOfOneWorker = 0.7, kReadyOfOthers = 0.8;

InputCause OfOwnLoop(const Means& means, std::string_view environment_json) {
  InputCause cause;
  cause.cause = "own_loop";
  cause.estimate = EstimatePrefetch(means);
  cause.what = "a batch that is made in a thread meanwhile";
  const bool keras = environment_json.find("\"keras\"") != std::string_view::npos;
  cause.remedy =
      keras ? "a keras.utils.PyDataset with workers=4 and use_multiprocessing=True makes batches meanwhile; "
              "so does a tf.data pipeline that ends with .prefetch(tf.data.AUTOTUNE)"
            : "make the next batch in a thread or a process while the model computes; or make a sample "
              "cheaper: store it decoded, or nearer";
  cause.causes = {"batches are made in the training's own thread",
                  "samples that are dear to make, or slow to read"};
  return cause;
}

/// TensorFlow makes batches of a pipeline ahead, and maps that it may in parallel, and so may other things
/// that Keras takes batches from: what is left to gain is not known.
InputCause OfPipeline(const Loader& loader) {
  InputCause cause;
  cause.cause = "pipeline";
  cause.what = "a faster pipeline";
  cause.remedy = loader.type == "tf.data"
                     ? "a pipeline of tf.data is faster with num_parallel_calls=tf.data.AUTOTUNE in map and "
                       "interleave, with cache(), or with cheaper samples"
                     : "cheaper samples, or batches that are made meanwhile, would help";
  cause.causes = {"samples that are dear to make, or slow to read", "functions that run one at a time"};
  return cause;
}

/// What Keras' `fit` takes batches from.
bool IsOfKeras(const Loader& loader) { return loader.type == "PyDataset" || loader.type == "generator"; }

std::string WorkersRemedy(const Loader& loader, const std::string& type, std::int64_t workers) {
  constexpr const char* kCheaper =
      "if that is not enough, make a sample cheaper: store it decoded, or nearer";
  if (!IsOfKeras(loader)) return fmt::format("pass num_workers={} to {}; {}", workers, type, kCheaper);
  if (loader.type == "PyDataset")
    return fmt::format("pass workers={} and use_multiprocessing=True to super().__init__() of {}; {}",
                       workers, loader.dataset, kCheaper);
  return fmt::format("make {} a keras.utils.PyDataset with workers={} and use_multiprocessing=True; {}",
                     loader.dataset, workers, kCheaper);
}

}  // namespace

InputCause CauseOf(const Means& means, const Waits& waits, std::string_view loaders_json,
                   std::string_view environment_json) {
  InputCause cause;
  cause.loader = WaitedLoader(waits, loaders_json);
  if (!cause.loader) return OfOwnLoop(means, environment_json);
  const Loader& loader = *cause.loader;
  if (loader.type == "tf.data" || loader.type == "other") return OfPipeline(loader);
  const std::string type = loader.type.empty() ? "the DataLoader" : loader.type;
  cause.causes = {"too few workers", "samples that are dear to make, or slow to read"};
  const Waits::Slowest slowest = waits.SlowestOf(waits.loader());
  if (loader.workers >= 2 && slowest.share >= kOfOneWorker &&
      slowest.ready >= kReadyOfOthers * static_cast<double>(loader.workers - 1)) {
    cause.cause = "slow_worker";
    cause.estimate = {means.wait_s,
                      means.step_s - means.wait_s,
                      loader.workers,
                      means.wait_s,
                      means.wait_s / 2,
                      means.wait_s,
                      fmt::format("the waits of a step, {}: the other workers have batches ready meanwhile",
                                  TimeText(means.wait_s))};
    cause.what = fmt::format(
        "{:.0f} % of it for worker {}, while {:.0f} batches of the others are ready; as fast as they, it",
        100 * slowest.share, slowest.worker, slowest.ready);
    cause.remedy = fmt::format(
        "look at what worker {} of {} reads (torch.utils.data.get_worker_info().id): its shard of the data "
        "is larger "
        "or further away; deal samples out instead of shards; in_order=False where the order is free",
        slowest.worker, type);
    cause.causes = {"one worker's part of the data is larger, or slower to read",
                    "one worker does what the others do not: a lock, a download"};
    return cause;
  }
  cause.cause = loader.workers == 0 ? "no_workers" : "workers_too_few";
  if (loader.workers == 0) cause.causes[0] = "samples are made in the training's own thread";
  cause.estimate = EstimateWorkers(means, loader.workers, CoresOf(environment_json));
  cause.what = fmt::format("{}={}", IsOfKeras(loader) ? "workers" : "num_workers", cause.estimate.workers);
  cause.remedy = WorkersRemedy(loader, type, cause.estimate.workers);
  return cause;
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
