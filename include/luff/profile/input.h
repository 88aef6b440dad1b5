#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/trial.h"

/// How much of the time a training waits for its data, and what more workers would save.
namespace luff::profile {

/// A DataLoader, or what Keras takes batches from, as the document "loaders" describes it.
struct Loader {
  std::string type, dataset;  // classes
  std::int64_t workers = 0;
  bool persistent = false;   // its workers live on between epochs
  std::int64_t number = -1;  // as in the waits of a step; -1: not known
  bool trains = false;
  std::int64_t batches = -1;  // of an epoch of one process that has all of the dataset; -1: not known
  bool by_next = false;  // each first batch was asked for by a call in the script, as next(iter(loader)) is
  std::int64_t same_epoch = 0;  // starts in a row at which its shuffling sampler had the same epoch
  std::int64_t samples = -1;    // of the dataset; -1: not known
  std::int64_t batch_size = 0;  // 0: not known
};
/// All loaders of the document "loaders", in its order.
[[nodiscard]] std::vector<Loader> LoadersOf(std::string_view loaders_json);
/// The loader that trains: the first that TRAIN steps followed, or else the last that was started. None if
/// the document says nothing of the sort.
[[nodiscard]] std::optional<Loader> TrainingLoader(std::string_view loaders_json);
/// Cores that the training process may use, by the document "environment"; 1 if it does not say.
[[nodiscard]] std::int64_t CoresOf(std::string_view environment_json);

/// How a training waited for the batches of its loaders over some steps.
class Waits {
 public:
  void Add(const query::StepPhases& phases);
  void Clear() { waits_.clear(); }
  [[nodiscard]] double seconds() const;
  /// The number of the loader that was waited for most; -1 where most of the waiting was for none that has
  /// one.
  [[nodiscard]] std::int64_t loader() const;

  /// The worker for whose batches the training waited longest.
  struct Slowest {
    std::int64_t worker = -1;  // none is known
    double share = 0;          // of the waiting for this loader
    double ready = -1;         // batches of others that were there meanwhile, in the mean of its waits
  };
  [[nodiscard]] Slowest SlowestOf(std::int64_t loader) const;

  struct Sum {
    double seconds = 0, ready_s = 0;  // and the latter, times batches that were ready
    std::int64_t loader = -1, worker = -1;
    template <typename Fields>
    void VisitFields(Fields& io) {
      io("seconds", seconds);
      io("ready_s", ready_s);
      io("loader", loader);
      io("worker", worker);
    }
  };
  [[nodiscard]] std::vector<Sum>& sums() noexcept { return waits_; }

 private:
  std::vector<Sum> waits_;  // few: one for each worker
};

/// The time of one step.
struct StepTime {
  double wall_s = 0;
  double wait_s = 0;                // for data
  double queue_s = -1, cpu_s = -1;  // without a core, and on one; -1: not known
};
[[nodiscard]] StepTime TimeOf(const query::StepPhases& phases);

/// Means over some steps, without what was lost to others: the time for which the thread waited for a core is
/// taken off waits and the rest alike.
struct Means {
  std::size_t steps = 0;
  double step_s = 0, wait_s = 0;
  std::optional<double> blocked_s;  // for which the thread slept; none if its CPU time is not known
};
/// The longest steps, one in 25, are left out: a checkpoint, or a pause of the machine. Medians would not do:
/// a loader with workers makes some steps wait for all. CPU times are divided only roughly among steps, so
/// all of them count together.
[[nodiscard]] Means MeansOf(std::vector<StepTime> steps);

/// The loader that was waited for most; where its number is not known, the one that trains.
[[nodiscard]] std::optional<Loader> WaitedLoader(const Waits& waits, std::string_view loaders_json);
/// As if the loader's workers had never lacked a core: a step that waits for them takes as long as a batch,
/// and that is shorter by the share of their time in which they could have run. `without_core`: processes
/// below the training that had none, in the mean (profile::RankUse::children_run_queue). Unchanged for a
/// loader without workers.
[[nodiscard]] Means WithCoresForWorkers(const Means& means, const std::optional<Loader>& loader,
                                        double without_core);

/// What more workers would save, by a model: a batch takes `work`, k workers make one each work / k, and the
/// rest of the step goes on meanwhile: step = max(compute, work / k).
struct Estimate {
  double work_s = 0, compute_s = 0;  // a batch and the rest of a step
  std::int64_t workers = 0;          // to use
  double saving_s = 0;               // of a step; 0 if more workers do not help
  double low_s = 0, high_s = 0;
  std::string method;
};
/// `workers`: those that it has now.
[[nodiscard]] Estimate EstimateWorkers(const Means& means, std::int64_t workers, std::int64_t cores);
/// What a thread that makes the next batch meanwhile would save: step = max(compute, wait). `workers` is 1.
[[nodiscard]] Estimate EstimatePrefetch(const Means& means);

/// Why a training waits for its data, and what to do.
struct InputCause {
  std::string cause;  // "no_workers", "workers_too_few", "slow_worker", "own_loop", "pipeline"
  std::string what;   // what would help: "num_workers=4"
  std::string remedy;
  std::vector<std::string> causes;  // likeliest first
  std::optional<Loader> loader;
  Estimate estimate;  // saving_s is 0 where nothing helps
};
/// Documents as they are: "loaders" and "environment". Takes `waits` of the same steps as `means`.
[[nodiscard]] InputCause CauseOf(const Means& means, const Waits& waits, std::string_view loaders_json,
                                 std::string_view environment_json);

/// "the step waits 63 % of the time for data (46 of 73 ms): DataLoader has 0 workers".
[[nodiscard]] std::string WaitText(const Means& means, const std::optional<Loader>& loader);
/// "46 ms", "1.2 s", "43 min".
[[nodiscard]] std::string TimeText(double seconds);

}  // namespace luff::profile
