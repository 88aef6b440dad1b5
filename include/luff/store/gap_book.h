#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "luff/format/layout.h"

namespace luff::store {

/// Joins gaps of the same kind over steps, so that a lasting shortage takes a few rows instead of one for
/// each step. Reports the first at once and later ones at most once a second. Adding never fails: without
/// memory the book loses which tensors a gap concerns, but not how much was lost. **Thread-compatible.**
class GapBook {
 public:
  /// Rows with first_step < 0 get `step`.
  void Add(const format::GapRow& row, std::int64_t step) noexcept;
  /// Appends the gaps to be written now; with `all`, every open one.
  void Collect(std::int64_t now_ns, bool all, std::vector<format::GapRow>* out);
  /// True if nothing is left to be written.
  [[nodiscard]] bool empty() const noexcept { return !any_pending_; }

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t, std::uint16_t>;
  struct Entry {
    format::GapRow row{};
    std::int64_t last_told_ns = 0;
    bool pending = false;
  };
  static constexpr std::size_t kMaxKeys = 10'000;
  static constexpr std::size_t kReasons = 32;
  static void Join(const format::GapRow& gap, Entry* entry) noexcept;
  static bool IsDue(const Entry& entry, std::int64_t now_ns, bool all) noexcept;

  std::map<Key, Entry> open_;
  /// Totals over all tensors, by reason: whole steps (no forms), and values.
  std::array<std::array<Entry, 2>, kReasons> rest_{};
  bool any_pending_ = false;
};

}  // namespace luff::store
