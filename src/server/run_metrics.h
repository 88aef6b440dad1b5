#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "luff/base/regex.h"
#include "luff/query/trial.h"
#include "server/exposition.h"
#include "server/run_list.h"

namespace luff::server {

/// What the metrics of a run need beyond its card. Keeps the run open and reads what is new since the last
/// call. **Thread-compatible.**
class RunMetrics {
 public:
  /// Tensors that may have series of their own, at most.
  static constexpr std::size_t kMaxTensors = 20;

  [[nodiscard]] static Result<std::unique_ptr<RunMetrics>> Open(const std::string& path);

  /// Puts the samples of the run. `label`: value of the label `run`; `page`: address of the run's page, or
  /// ""; `tensors`: those that get series of their own. A run that can no longer be read has the samples of
  /// its card alone.
  void Put(const ListedRun& listed, const std::string& label, const std::string& page,
           const std::optional<Regex>& tensors, std::int64_t now_unix_ns, Exposition* to);

 private:
  struct Ratios {
    double max = 0, min = 0;
  };
  struct Tensor {
    double l2 = 0;
    std::uint64_t nonfinite = 0;
  };
  using ByGroup = std::map<std::string, double>;
  struct Change {
    std::int64_t update = -1;
    double ratio = 0;
  };

  explicit RunMetrics(std::unique_ptr<query::Trial> trial) : trial_(std::move(trial)) {}
  void ReadNew(const std::optional<Regex>& tensors);
  void ReadNewest(std::size_t from, const std::optional<Regex>& tensors);
  void TakeRows(const query::Trial::StepRows& rows, const std::optional<Regex>& tensors);
  [[nodiscard]] std::string GroupOf(const std::string& parameter) const;
  void ReadModel();
  void PutWorkers(std::int64_t now_unix_ns, Exposition* to) const;
  void PutNewest(Exposition* to) const;

  std::unique_ptr<query::Trial> trial_;
  std::size_t seen_ = 0;  // complete steps
  std::uint64_t train_steps_ = 0, skipped_ = 0;
  std::int64_t updates_ = 0, last_step_ns_ = 0;
  StepHistogram durations_;
  ByGroup norms_, rates_;
  std::map<query::TensorId, Change> changes_;
  std::int64_t changed_ = -1;                       // update of the newest change
  std::map<std::string, std::uint64_t> nonfinite_;  // by role
  std::map<std::string, Tensor> tensors_;
  std::map<query::TensorId, bool> wanted_;     // whether a tensor has series of its own
  std::string model_;                          // the document that groups_ comes from
  std::map<std::string, std::string> groups_;  // by name of a parameter
};

}  // namespace luff::server
