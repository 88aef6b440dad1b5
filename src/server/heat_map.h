#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "luff/query/trial.h"
#include "server/statistic.h"

namespace luff::server {

/// One statistic of all tensors over all steps of a mode, in buckets of 2^k global steps: at most kMaxColumns
/// of them, and kMaxCells in all. Grows with the run; when it is full, neighbouring buckets are joined. Read
/// newest first, a part at a time. **Thread-compatible.**
class HeatMap {
 public:
  static constexpr std::size_t kMaxColumns = 2048, kMinColumns = 64, kMaxCells = std::size_t{1} << 23;
  static constexpr std::size_t kMaxRows = kMaxCells / kMinColumns;
  static constexpr std::size_t kTile = 256;

  HeatMap(NamedStatistic statistic, query::Mode mode) : statistic_(statistic), mode_(mode) {}

  /// Takes in what is new and then older steps, at least one part of `steps` steps. Returns true once it
  /// covers all complete steps. Errors: kResourceExhausted beyond kMaxRows tensors; those of reading.
  [[nodiscard]] Result<bool> Read(const query::Trial& trial, std::size_t steps);
  [[nodiscard]] bool Covers(const query::Trial& trial) const noexcept {
    return from_ == 0 && to_ == trial.step_count();
  }

  struct Level {
    std::int64_t bucket_steps;
    std::size_t columns;
  };
  /// The finest first; each next one is eight times coarser.
  [[nodiscard]] std::vector<Level> Levels() const;
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }
  [[nodiscard]] const NamedStatistic& statistic() const noexcept { return statistic_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return cells_.size() * sizeof(Cell); }

  /// 256 x 256 bytes of docs/spec/http-api.md, section 5. `level` is one of Levels().
  [[nodiscard]] std::string Tile(std::size_t level, std::size_t x, std::size_t y);

 private:
  /// Without finite values lo > hi. Neither depends on the order in which steps are read.
  struct Cell {
    float lo, hi;
    bool bad;  // some element was not finite
  };
  void Fit(const query::Trial& trial);
  void Fold();
  /// Reads the steps at positions `begin` to `end`.
  [[nodiscard]] Status Visit(const query::Trial& trial, std::size_t begin, std::size_t end);
  void Take(std::size_t begin, const query::TrialRows::SummaryStretch& stretch);
  [[nodiscard]] float MedianOf(std::size_t row);
  /// `guess`: where to look for the byte first.
  [[nodiscard]] std::uint8_t ByteOf(std::span<const Cell> cells, float median, std::uint8_t guess) const;

  const NamedStatistic statistic_;
  const query::Mode mode_;
  std::size_t rows_ = 0, stride_ = 0;  // columns a row has room for
  int bits_ = 0;                       // k
  std::size_t used_ = 0;               // columns up to the newest step
  std::vector<Cell> cells_;            // by row
  std::size_t from_ = 0, to_ = 0;      // steps that were read, by position
  std::size_t unread_ = 0;             // columns before this one may hold steps that were not read yet
  std::uint64_t version_ = 0;
  struct Median {
    std::uint64_t version = 0;
    float value = 0;
  };
  std::vector<Median> medians_;  // of rows
  std::vector<float> scratch_;
  std::vector<bool> stepped_;             // whether a column has a step of the mode
  std::vector<std::uint32_t> column_of_;  // of the steps that are being read
};

}  // namespace luff::server
