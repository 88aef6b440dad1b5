#pragma once
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/query/trial.h"
#include "query/step_table.h"

namespace luff::query {

/// "TRAIN step 3", "global step 7", for messages.
[[nodiscard]] std::string StepText(std::int64_t step, Mode mode);
/// "nearest saved: 2 and 5".
[[nodiscard]] std::string NearestText(const StepTable::Neighbours& around,
                                      std::string_view lead = "nearest saved: ");

/// The base of trials over any kind of directory: tensors by number, complete steps in a table, waiting,
/// errors that name the nearest steps and names, and a small cache of summary columns. A derived class fills
/// in `tensors_`, `steps_` and `loaded_all_`, and increments `version_` whenever something is new.
class StepTrial : public Trial {
 public:
  Result<bool> WaitForNews(std::chrono::milliseconds timeout) override;
  Status WaitForStep(std::int64_t step, Mode mode, std::chrono::milliseconds timeout) override;
  bool loaded_all_steps() const noexcept override { return loaded_all_; }
  std::size_t tensor_count() const noexcept override { return tensors_.size(); }
  const TensorInfo& tensor(TensorId id) const override { return tensors_[id]; }
  std::vector<std::int64_t> Steps(Mode mode) const override { return steps_.Steps(mode); }
  std::size_t step_count() const noexcept override { return steps_.size(); }
  StepInfo step_at(std::size_t n) const override { return steps_.at(n); }
  Result<StepInfo> FindStep(std::int64_t step, Mode mode) const override;
  StepState StateOfStep(std::int64_t step, Mode mode) const override;
  Result<std::vector<std::string>> TensorNames(const NameFilter& filter) const override;

 protected:
  /// `what`: the word for the trial in errors.
  StepTrial(const char* what, const OpenOptions& options) : options_(options), what_(what) {}

  [[nodiscard]] Status CheckId(TensorId id) const;
  /// Checks that the n-th step exists.
  [[nodiscard]] Status CheckPlace(std::size_t n) const;
  /// Position in the step table.
  [[nodiscard]] Result<std::uint32_t> StepOrError(std::int64_t step, Mode mode) const;
  [[nodiscard]] Status NoTensor(std::string_view name) const;
  /// kNotFound for a collection that is not among CollectionNames().
  [[nodiscard]] Status CheckCollection(const std::string& name) const;
  /// True if anything of the tensor was recorded at the n-th step.
  [[nodiscard]] virtual bool HasRows(TensorId id, std::uint32_t n) const = 0;
  /// Fills in the numbers of the n-th step and clears the rows.
  [[nodiscard]] Status BeginRows(std::size_t n, StepRows* out) const;

  /// Returns the cached columns if they are still current, else null.
  [[nodiscard]] std::shared_ptr<const SummaryColumns> KeptColumns(TensorId id, Mode mode,
                                                                  std::optional<std::uint32_t> worker) const;
  /// Caches columns whose rows take `row_bytes` each.
  void KeepColumns(TensorId id, Mode mode, std::optional<std::uint32_t> worker, std::size_t row_bytes,
                   std::shared_ptr<const SummaryColumns> columns) const;

  OpenOptions options_;
  std::vector<TensorInfo> tensors_;
  StepTable steps_;
  bool loaded_all_ = false;
  bool held_back_ = false;     // there are steps beyond options_.show_at_most
  std::uint64_t version_ = 0;  // increases whenever something is new

 private:
  struct Cached {
    TensorId id;
    Mode mode;
    std::optional<std::uint32_t> worker;
    std::uint64_t version;
    std::size_t bytes;
    std::shared_ptr<const SummaryColumns> columns;
  };
  const char* what_;
  mutable std::list<Cached> cache_;  // newest first
};

}  // namespace luff::query
