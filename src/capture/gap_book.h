#pragma once
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "luff/format/layout.h"

namespace luff::capture {

/// Joins gaps of the same kind over steps, so that a lasting shortage is a few rows instead of one for each
/// step. The first is told at once, later ones at most once a second. **Owned by the writer thread.**
class GapBook {
 public:
  /// Rows with first_step < 0 get `step`.
  void Add(const format::GapRow& row, std::int64_t step);
  /// Appends what is to be written now; with `all` everything that is still open.
  void Collect(std::int64_t now_ns, bool all, std::vector<format::GapRow>* out);
  [[nodiscard]] bool empty() const noexcept { return open_.empty(); }

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t, std::uint16_t>;
  struct Entry {
    format::GapRow row{};
    std::int64_t last_told_ns = 0;
    bool pending = false;
  };
  static constexpr std::size_t kMaxKeys = 10'000;
  std::map<Key, Entry> open_;
  bool any_pending_ = false;
};

}  // namespace luff::capture
