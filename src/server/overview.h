#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "luff/query/row_visit.h"
#include "server/statistic.h"

/// The overview of a run: docs/spec/overview.md.
namespace luff::server {

/// All tensors over all steps of a mode, in columns of 2^k global steps: for each statistic the smallest and
/// the largest value, and whether anything was recorded, not finite, or merged. Grows with the run; when it
/// is full, neighbouring columns are joined. Read newest first, a part at a time; nothing in it depends on
/// the order or the parts. **Thread-compatible.**
class Overview {
 public:
  static constexpr std::size_t kMaxColumns = 2048, kMinColumns = 20;
  static constexpr std::size_t kMaxCells = std::size_t{5} << 19;  // 170 MB
  static constexpr std::size_t kMaxTensors = kMaxCells / kMinColumns;
  static constexpr std::size_t kRowUnit = 64;  // columns have room for a multiple of so many tensors
  enum Flag : std::uint8_t { kRecorded = 1, kNotFinite = 2, kMerged = 4 };

  explicit Overview(query::Mode mode) : mode_(mode) {}

  /// Takes in what is new and then older steps, at least one part of `steps` steps. Returns true once it
  /// covers all complete steps. Starts again if the run records steps again that it has read. Errors:
  /// kResourceExhausted beyond kMaxTensors tensors; those of reading.
  [[nodiscard]] Result<bool> Read(const query::Trial& trial, std::size_t steps);
  [[nodiscard]] bool Covers(const query::Trial& trial) const noexcept {
    return (from_ == 0 && to_ == trial.step_count()) || trial.tensor_count() == 0;
  }

  [[nodiscard]] query::Mode mode() const noexcept { return mode_; }
  [[nodiscard]] std::size_t tensors() const noexcept { return tensors_; }
  /// Columns up to the newest step, and the logarithm of their steps.
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] int bits() const noexcept { return bits_; }
  /// Columns before this one may hold steps that were not read yet.
  [[nodiscard]] std::size_t unread() const noexcept { return unread_; }
  /// Increases whenever a cell may have changed.
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }
  /// Whether the run has a step of the mode in a column, as far as it was read.
  [[nodiscard]] bool stepped(std::size_t column) const noexcept { return columns_[column].stepped; }

  /// One statistic of a column by tensor; lo > hi where no value is finite. Empty if the column has no rows.
  struct Cells {
    std::span<const float> lo, hi;
    std::span<const std::uint8_t> flags;
  };
  [[nodiscard]] Cells At(std::size_t column, std::size_t place) const noexcept;

  /// Memory that no file backs.
  [[nodiscard]] std::size_t anonymous_bytes() const noexcept;

  // What a file of it holds.
  struct State {
    std::uint32_t bits = 0, tensors = 0, stride = 0, columns = 0;
    std::uint64_t from = 0, to = 0;  // positions of steps that were read
    std::int64_t newest_step = -1;   // greatest global step of the run when it was read
    std::uint64_t superseded = 0;    // of the steps that were read
  };
  [[nodiscard]] State state() const noexcept;
  /// Floats of a column: lo and hi of each statistic, then a byte of flags for each tensor.
  [[nodiscard]] static constexpr std::size_t WordsOf(std::size_t stride) noexcept {
    return stride * 2 * kOverviewStatistics + stride / sizeof(float);
  }
  struct Kept {
    const float* words = nullptr;  // null: no rows
    bool stepped = false;
  };
  [[nodiscard]] Kept kept(std::size_t column) const noexcept {
    return {columns_[column].words, columns_[column].stepped};
  }
  /// Takes over what a file held. `memory` holds the words of the columns.
  void Adopt(const State& state, std::span<const Kept> columns, std::shared_ptr<const void> memory);

 private:
  struct Column {
    const float* words = nullptr;
    std::unique_ptr<float[]> owned;  // null: in memory_
    bool stepped = false;
  };
  struct Block;
  void Clear();
  /// Whether steps that were read have been recorded again since.
  [[nodiscard]] bool TakenBack(const query::Trial& trial) const;
  void Fit(const query::Trial& trial);
  void Widen(std::size_t tensors);
  void Fold();
  /// Reads the steps at positions `begin` to `end`.
  [[nodiscard]] Status Visit(const query::Trial& trial, std::size_t begin, std::size_t end);
  void Take(std::size_t begin, const query::SummaryStretch& stretch, Block* block);
  /// Takes a whole step, whose rows lie tensor by tensor as cells of a column do.
  void TakeStep(std::size_t begin, const query::PublishedSummaries& step);
  /// Puts the cells of a block into their columns.
  void Put(Block* block);
  void TakeDifference(std::size_t begin, query::TensorId tensor, std::size_t n, const format::FormRow& row);
  /// The words of a column, to be changed.
  [[nodiscard]] float* Words(std::size_t column);
  [[nodiscard]] std::unique_ptr<float[]> NewWords() const;

  const query::Mode mode_;
  std::size_t tensors_ = 0, stride_ = 0;  // stride_: tensors that columns have room for
  int bits_ = 0;
  std::size_t used_ = 0;
  std::vector<Column> columns_;
  std::shared_ptr<const void> memory_;
  std::size_t from_ = 0, to_ = 0;
  std::int64_t newest_step_ = -1;
  std::size_t superseded_ = 0;
  std::size_t unread_ = 0;
  std::uint64_t version_ = 0;
  std::vector<std::uint32_t> column_of_;  // of the steps that are being read
};

}  // namespace luff::server
