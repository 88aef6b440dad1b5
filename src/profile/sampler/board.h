#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "luff/format/samples.h"
#include "luff/store/writer.h"

/// What sources measure, until it is written.
namespace luff::profile {

using format::SeriesKind;
using format::SeriesUnit;

/// Names series, takes one value of each at a moment, and turns moments into a block. **Thread-compatible.**
class Board {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  /// A series; the same one for the same name. kNone if there are too many, which Set() ignores.
  [[nodiscard]] std::uint32_t Series(std::string_view name, SeriesUnit unit, SeriesKind kind,
                                     std::uint32_t device = format::kNoId);
  /// The value at the moment that is open. Absent if nobody sets it.
  void Set(std::uint32_t series, std::optional<std::int64_t> value);
  /// For sources whose names come and go.
  void Set(std::string_view name, SeriesUnit unit, SeriesKind kind, std::optional<std::int64_t> value) {
    if (value) Set(Series(name, unit, kind), value);
  }
  /// Ends the moment: its values are those that were set since the last one.
  void EndMoment(std::int64_t mono_ns, std::int64_t unix_ns);
  [[nodiscard]] std::size_t moments() const noexcept { return mono_ns_.size(); }
  /// Moves the moments, and definitions that are not written yet, into a batch. `all_definitions` repeats
  /// those that are.
  void TakeInto(store::StepBatch* batch, bool all_definitions);

 private:
  std::vector<format::SeriesDef> defs_;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  static constexpr std::size_t kUsualMoments = 10;  // of a block: memory is taken at once for so many
  std::size_t written_ = 0;                         // definitions
  /// By series: the one that was asked for after it last. Sources ask in the same order at most moments, so
  /// that a comparison finds what else would take a hash.
  std::vector<std::uint32_t> after_;
  std::uint32_t last_ = 0;
  std::vector<std::int64_t> now_;                  // by series
  std::vector<std::vector<std::int64_t>> values_;  // by series, then moment; may be shorter
  std::vector<std::int64_t> mono_ns_;
  std::int64_t first_unix_ns_ = 0;
};

}  // namespace luff::profile
