#include "rules/facts/id_effects.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kLargestTarget = 1e30;
constexpr double kTrainingRows = 8, kEvaluationRows = 4;
constexpr std::size_t kLeastIds = 6;
constexpr std::size_t kLeastCounted = 8;
constexpr double kLeastCountedRows = 64, kUnlikeIds = 8, kLikeIds = 4;
constexpr double kTells = 8;        // standard errors of F
constexpr double kMeansErrors = 5;  // of the transformed correlation
constexpr double kUnrelated = 0.3, kMeansAtMost = 0.99;
constexpr double kSmooth = 0.4;    // correlation of the means of ids that follow each other
constexpr double kDepend = 0.2;    // correlation of what ids leave of the targets of neighbouring rows
constexpr double kRunsErrors = 4;  // standard errors of the share of neighbours with the same id
constexpr std::size_t kLeastKept = 64;
constexpr double kOtherTarget = 0.6;  // correlation with the means of another target, or the opposite ones

// How far the ids' means differ: between ids over within ids.
struct Means {
  std::vector<double> of_id;
  double f = 0;
};

Means MeansOf(const std::vector<const IdEffects::Sums*>& ids, std::size_t k) {
  Means means;
  double rows = 0;
  double sum = 0;
  double within = 0;
  for (const IdEffects::Sums* one : ids) {
    means.of_id.push_back(one->y[k] / one->rows);
    rows += one->rows;
    sum += one->y[k];
    within += std::max(one->yy[k] - one->y[k] * one->y[k] / one->rows, 0.0);
  }
  const auto count = static_cast<double>(ids.size());
  if (rows <= count + 1) return means;
  double between = 0;
  for (std::size_t i = 0; i < ids.size(); ++i)
    between += ids[i]->rows * std::pow(means.of_id[i] - sum / rows, 2);
  // Targets without an error of their own: any difference counts.
  const double error = within / (rows - count);
  const double least = 1e-9 * between / rows;
  if (between > 0) means.f = between / (count - 1) / std::max(error, least);
  return means;
}

double CorrelationOfMeans(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  double x = 0;
  double y = 0;
  for (std::size_t i = 0; i < a.size(); ++i) x += a[i] / n, y += b[i] / n;
  double xx = 0;
  double yy = 0;
  double xy = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    xx += (a[i] - x) * (a[i] - x);
    yy += (b[i] - y) * (b[i] - y);
    xy += (a[i] - x) * (b[i] - y);
  }
  return xx > 0 && yy > 0 ? std::clamp(xy / std::sqrt(xx) / std::sqrt(yy), -1.0, 1.0) : 1;
}

double Neighbours(const std::vector<double>& means) {
  return CorrelationOfMeans({means.begin(), means.end() - 1}, {means.begin() + 1, means.end()});
}

// Whether ids come in blocks of rows, or neighbouring rows are alike beyond what their ids say: months,
// recipes and campaigns tell a target that drifts, and not the same one later.
bool RowsDepend(const IdEffects& rows, std::size_t column, std::size_t target) {
  const std::size_t count = rows.kept();
  if (count < kLeastKept) return true;
  std::map<double, std::array<double, 2>> ids;  // rows and sum of the targets
  for (std::size_t i = 0; i < count; ++i) {
    std::array<double, 2>& one = ids[rows.kept_id(i, column)];
    one[0] += 1;
    one[1] += rows.kept_y(i, target);
  }
  double expected = 0;  // share of neighbours with the same id
  for (const auto& [id, sums] : ids) expected += std::pow(sums[0] / static_cast<double>(count), 2);
  double same = 0;
  std::vector<double> left;
  for (std::size_t i = 0; i < count; ++i) {
    const double id = rows.kept_id(i, column);
    same += i > 0 && id == rows.kept_id(i - 1, column) ? 1 : 0;
    left.push_back(rows.kept_y(i, target) - ids[id][1] / ids[id][0]);
  }
  const double pairs = static_cast<double>(count - 1);
  const double error = std::sqrt(expected * (1 - expected) / pairs);
  return same / pairs > expected + kRunsErrors * error || Neighbours(left) >= kDepend;
}

// How unlike two distributions of ids are: a chi-square test of their counts, in standard errors. Nothing if
// there are too few.
std::optional<double> UnlikeCounts(const IdEffects::Column& one, const IdEffects::Column& other) {
  if (one.size() < kLeastCounted || other.size() < kLeastCounted) return std::nullopt;
  std::map<std::int64_t, std::array<double, 2>> counts;
  std::array<double, 2> rows{};
  for (const auto& [id, sums] : one) counts[id][0] = sums.all, rows[0] += sums.all;
  for (const auto& [id, sums] : other) counts[id][1] = sums.all, rows[1] += sums.all;
  if (std::min(rows[0], rows[1]) < kLeastCountedRows) return std::nullopt;
  double sum = 0;
  for (const auto& [id, count] : counts) {
    for (std::size_t side = 0; side < 2; ++side) {
      const double expected = (count[0] + count[1]) * rows[side] / (rows[0] + rows[1]);
      sum += (count[side] - expected) * (count[side] - expected) / expected;
    }
  }
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (sum - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

void IdEffects::Add(const SampleValues& input, const SampleValues* target, bool in_order) {
  const Rows rows = RowsOf(input);
  if (rows.count == 0 || input.shape.size() > 2 || rows.width > kMaxColumns) return;
  if (columns_.size() != rows.width) {
    if (rows_ > 0) return;  // another input of this name
    columns_.resize(rows.width);
    unfit_.assign(rows.width, 0);
  }
  const Rows wanted = target != nullptr ? RowsOf(*target) : Rows();
  const bool classes = target != nullptr && IsIds(target->dtype);
  const bool targets = wanted.count == rows.count && (!classes || wanted.width == 1);
  batches_ += in_order ? 1 : 0;
  for (std::size_t row = 0; row < rows.count; ++row) {
    std::array<double, kMaxTargets> y{};
    bool finite = targets;
    for (std::size_t k = 0; targets && k < kMaxTargets; ++k) {
      if (classes) {
        y[k] = target->values[row] == static_cast<double>(k) ? 1 : 0;
      } else if (k < wanted.width) {
        y[k] = target->values[row * wanted.width + k];
      }
      finite = finite && std::abs(y[k]) < kLargestTarget;
    }
    if (finite && !any_) reference_ = y;
    any_ = any_ || finite;
    rows_ += 1;
    if (in_order && finite && kept() < kKeptRows) {
      for (std::size_t f = 0; f < rows.width; ++f) kept_ids_.push_back(input.values[row * rows.width + f]);
      for (std::size_t k = 0; k < kMaxTargets; ++k) kept_y_.push_back(y[k] - reference_[k]);
    }
    for (std::size_t f = 0; f < rows.width; ++f) {
      if (unfit_[f] != 0) continue;
      const double value = input.values[row * rows.width + f];
      const bool whole = value >= 0 && value < kLargestId && value == std::floor(value);
      const auto id = whole ? static_cast<std::int64_t>(value) : 0;
      const bool fresh = !columns_[f].contains(id);
      if (!whole || (fresh && ids_ >= kMaxIds)) {
        unfit_[f] = 1;
        ids_ -= columns_[f].size();
        columns_[f].clear();
        continue;
      }
      ids_ += fresh ? 1 : 0;
      Sums& sums = columns_[f][id];
      sums.all += 1;
      if (!finite) continue;
      sums.rows += 1;
      for (std::size_t k = 0; k < kMaxTargets; ++k) {
        const double d = y[k] - reference_[k];
        sums.y[k] += d;
        sums.yy[k] += d * d;
      }
    }
  }
}

std::uint64_t IdEffects::Order() const {
  std::uint64_t order = kept_y_.size();
  for (const std::vector<double>* values : {&kept_ids_, &kept_y_})
    for (const double value : *values)
      order = (std::rotl(order, 5) ^ std::bit_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15U;
  return order;
}

void IdEffects::VisitFields(Fields& io) {
  io("columns", columns_, kMaxIds);
  io("unfit", unfit_, kMaxColumns);
  io("reference", reference_);
  io("ids", ids_);
  io("rows", rows_);
  io("any", any_);
  io("kept_ids", kept_ids_, kKeptRows * kMaxColumns);
  io("kept_y", kept_y_, kKeptRows * kMaxTargets);
  io("batches", batches_);
  io.Check(kept_y_.size() % kMaxTargets == 0 && kept_ids_.size() == kept() * columns_.size(),
           "the rows that are kept");
  std::size_t ids = 0;
  for (const Column& column : columns_) ids += column.size();
  io.Check(
      columns_.size() <= kMaxColumns && unfit_.size() == columns_.size() && ids == ids_ && ids <= kMaxIds,
      "ids of its columns");
}

std::optional<Recoded> FindRecoded(const IdEffects& training, const IdEffects& evaluation) {
  const std::size_t columns = std::min(training.columns().size(), evaluation.columns().size());
  for (std::size_t f = 0; f < columns; ++f) {
    std::vector<const IdEffects::Sums*> trained;
    std::vector<const IdEffects::Sums*> evaluated;
    for (const auto& [id, sums] : training.columns()[f]) {
      const auto there = evaluation.columns()[f].find(id);
      if (sums.rows < kTrainingRows || there == evaluation.columns()[f].end() ||
          there->second.rows < kEvaluationRows)
        continue;
      trained.push_back(&sums);
      evaluated.push_back(&there->second);
    }
    if (trained.size() < kLeastIds) continue;
    const auto count = static_cast<double>(trained.size());
    const double least = 1 + kTells * std::sqrt(2 / (count - 1));
    std::array<Means, IdEffects::kMaxTargets> all;
    for (std::size_t k = 0; k < all.size(); ++k) all[k] = MeansOf(evaluated, k);
    for (std::size_t k = 0; k < all.size(); ++k) {
      const Means t = MeansOf(trained, k);
      const Means& e = all[k];
      if (t.f < least || e.f < least) continue;
      bool other = false;
      for (std::size_t j = 0; j < all.size(); ++j) {
        if (all[j].f < least) continue;
        const double same = CorrelationOfMeans(t.of_id, all[j].of_id);
        other = other || same <= -kOtherTarget || (j != k && same >= kOtherTarget);
      }
      // Months, weeks and hours: what drifts makes neighbours alike, and rows are no independent ones.
      if (other || Neighbours(t.of_id) >= kSmooth || Neighbours(e.of_id) >= kSmooth ||
          RowsDepend(evaluation, f, k))
        continue;
      const double r = CorrelationOfMeans(t.of_id, e.of_id);
      const double expected = std::min(std::sqrt((1 - 1 / t.f) * (1 - 1 / e.f)), kMeansAtMost);
      if (r <= kUnrelated && std::atanh(expected) - std::atanh(std::max(r, -kMeansAtMost)) >=
                                 kMeansErrors / std::sqrt(count - 3))
        return Recoded{f, trained.size(), r, expected};
    }
  }
  return std::nullopt;
}

std::optional<ExchangedIds> FindExchanged(const std::vector<IdColumn>& columns) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    for (std::size_t j = i + 1; j < columns.size(); ++j) {
      const IdColumn& a = columns[i];
      const IdColumn& b = columns[j];
      const std::optional<double> own = UnlikeCounts(*a.training, *a.evaluation);
      if (!own || *own < kUnlikeIds) break;
      const std::optional<double> other_own = UnlikeCounts(*b.training, *b.evaluation);
      const std::optional<double> cross = UnlikeCounts(*a.training, *b.evaluation);
      const std::optional<double> other_cross = UnlikeCounts(*b.training, *a.evaluation);
      if (!other_own || !cross || !other_cross) continue;
      const double least = std::min(*own, *other_own);
      const double most = std::max(*cross, *other_cross);
      if (least >= kUnlikeIds && most <= kLikeIds) return ExchangedIds{a.name, b.name, least, most};
    }
  }
  return std::nullopt;
}

}  // namespace luff::rules
