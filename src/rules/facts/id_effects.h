#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Mean targets of the rows of each id, for columns of small whole numbers of (N) and
/// (N, F), whatever their type: cities, users, categories. Bounded memory.
class IdEffects {
 public:
  static constexpr std::size_t kMaxColumns = 32, kMaxTargets = 8;
  static constexpr std::size_t kMaxIds = 2048;  // of all columns
  static constexpr double kLargestId = 4096;
  static constexpr std::size_t kKeptRows = 512;

  struct Sums {
    double all = 0;                             // rows
    double rows = 0;                            // of them with targets
    std::array<double, kMaxTargets> y{}, yy{};  // less the first target of all
    void VisitFields(Fields& io) {
      io("all", all);
      io("rows", rows);
      io("y", y);
      io("yy", yy);
    }
  };
  using Column = std::map<std::int64_t, Sums>;

  /// Adds a batch. `target` may be null; it counts if it has a row for each of the input, and is finite. Of
  /// class ids, whether it is one of the first kMaxTargets classes is looked at. A column with other numbers,
  /// or beyond the bounds, is no longer looked at. `in_order` keeps the first kKeptRows rows as they come.
  void Add(const SampleValues& input, const SampleValues* target, bool in_order = false);
  void Clear() { *this = {}; }
  [[nodiscard]] double rows() const noexcept { return rows_; }
  [[nodiscard]] const std::vector<Column>& columns() const noexcept { return columns_; }
  /// The rows that were kept: their number, the number in a column, and a target (less the first of all).
  [[nodiscard]] std::size_t kept() const noexcept { return kept_y_.size() / kMaxTargets; }
  [[nodiscard]] double kept_id(std::size_t row, std::size_t column) const noexcept {
    return kept_ids_[row * columns_.size() + column];
  }
  [[nodiscard]] double kept_y(std::size_t row, std::size_t target) const noexcept {
    return kept_y_[row * kMaxTargets + target];
  }
  [[nodiscard]] std::int64_t batches() const noexcept { return batches_; }  // of them
  /// A number that tells other rows, or another order of them. 0 of none.
  [[nodiscard]] std::uint64_t Order() const;
  void VisitFields(Fields& io);

 private:
  std::vector<Column> columns_;
  std::vector<double> kept_ids_, kept_y_;
  std::int64_t batches_ = 0;
  std::vector<std::uint8_t> unfit_;
  std::array<double, kMaxTargets> reference_{};
  std::size_t ids_ = 0;
  double rows_ = 0;
  bool any_ = false;  // some row had targets
};

/// A column whose ids tell the target on both sides, but not the same ids.
struct Recoded {
  std::size_t column = 0, ids = 0;
  double r = 0, expected = 0;  // correlation of the ids' mean targets: as it is, and if ids meant the same
};

/// Compares ids that both sides have, six at least, of eight training rows and four of the evaluation. Their
/// mean targets differ, on either side, by far more than rows of one id do (an F test, by eight standard
/// errors); then means that belong together would correlate by what these tests say of their errors. Recoded:
/// the correlation is 0.3 at most, and five standard errors below that, of Fisher's transformed correlation.
/// Not if another of the targets belongs to these means, or the same one with the opposite sign: then targets
/// changed, not ids. Nor if rows depend on each other, which makes any ids tell a target that drifts: 64 rows
/// at least of the evaluation were kept in order, and neighbours among them have the same id as often as
/// chance gives, and what their ids leave of the target correlates by less than 0.2.
[[nodiscard]] std::optional<Recoded> FindRecoded(const IdEffects& training, const IdEffects& evaluation);

/// A column of ids on both sides.
struct IdColumn {
  std::string name;
  const IdEffects::Column* training = nullptr;
  const IdEffects::Column* evaluation = nullptr;
};
/// Two columns that hold each other's ids in evaluations.
struct ExchangedIds {
  std::string first, second;
  double as_they_are = 0,
         exchanged = 0;  // standard errors of frequencies: the smaller one, and the larger one
};

/// Looks for two columns whose frequencies of ids are unlike in training and evaluation (a chi-square test,
/// eight standard errors above what chance gives), each of which is like the other one of the training (four
/// at most). Eight ids and 64 rows on either side.
[[nodiscard]] std::optional<ExchangedIds> FindExchanged(const std::vector<IdColumn>& columns);

}  // namespace luff::rules
