#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "server/overview.h"

namespace luff::server {

/// One statistic of an overview as bytes: docs/spec/http-api.md, section 5. **Thread-compatible.**
class HeatMap {
 public:
  static constexpr std::size_t kTile = 256;

  /// `overview` outlives it.
  HeatMap(const Overview* overview, NamedStatistic statistic) : overview_(overview), statistic_(statistic) {}

  struct Level {
    std::int64_t bucket_steps;
    std::size_t columns;
  };
  /// The finest first; each next one is eight times coarser.
  [[nodiscard]] std::vector<Level> Levels() const;
  [[nodiscard]] std::size_t rows() const noexcept { return overview_->tensors(); }
  [[nodiscard]] std::uint64_t version() const noexcept { return overview_->version(); }
  [[nodiscard]] const Overview& overview() const noexcept { return *overview_; }
  [[nodiscard]] const NamedStatistic& statistic() const noexcept { return statistic_; }

  /// 256 x 256 bytes. `level` is one of Levels().
  [[nodiscard]] std::string Tile(std::size_t level, std::size_t x, std::size_t y);

  /// One tensor's cells of a level, for those who compute with them.
  struct Row {
    std::vector<float> lo, hi;        // NaN: no finite value
    std::vector<std::uint8_t> flags;  // Overview::Flag; kNotRead: not read yet
  };
  static constexpr std::uint8_t kNotRead = 0x80;
  [[nodiscard]] Row RowOf(std::size_t level, std::size_t tensor) const;

 private:
  /// What a row's bytes are relative to.
  struct Middle {
    float median = 0, reach = 0;  // reach: the largest distance from the median
  };
  /// Works out the middles of the rows of a tile.
  void FindMiddles(std::size_t y);
  void PrefetchAfter(std::size_t column, std::size_t first, std::size_t rows) const noexcept;
  /// Columns of the finest level in one of a level.
  [[nodiscard]] static std::size_t WidthOf(std::size_t level);

  const Overview* const overview_;
  const NamedStatistic statistic_;
  std::vector<Middle> middles_;           // by tensor
  std::vector<std::uint64_t> middle_of_;  // version of each tile's rows, plus one
};

}  // namespace luff::server
