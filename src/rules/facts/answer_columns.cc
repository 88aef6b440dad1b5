#include "rules/facts/answer_columns.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace luff::rules {
namespace {

constexpr double kLargestAnswer = 1e30;  // squares of larger values would overflow sums
constexpr double kErrors = 5;
constexpr double kBetter = 0.3;
constexpr double kAsGood = 0.02;
constexpr double kAtMost = 0.999;  // Fisher's transformation stays finite

double Fisher(double r) { return std::atanh(std::clamp(r, -kAtMost, kAtMost)); }

}  // namespace

void AnswerColumns::Add(const LossCall& call, const Recognition& found) {
  if (!call.output.is_float() || call.output.shape.empty() || found.broadcast) return;
  std::vector<double> answers;
  std::vector<double> targets;
  std::size_t columns = 1;
  if (found.formula == Formula::kCrossEntropy || found.formula == Formula::kNll) {
    const auto rows = ClassRowsOf(call);
    if (!rows || rows->classes != 2) return;
    for (std::size_t i = 0; i < rows->rows; ++i) {
      if (rows->ids[i] != 0 && rows->ids[i] != 1) continue;
      answers.push_back(rows->scores[2 * i + 1] - rows->scores[2 * i]);
      targets.push_back(rows->ids[i]);
    }
  } else if (IsRegression(found.formula) || found.formula == Formula::kBce ||
             found.formula == Formula::kBceWithLogits) {
    const auto& shape = call.output.shape;
    if (call.output.values.size() != call.target.values.size()) return;
    const std::size_t width = shape.size() == 2 ? static_cast<std::size_t>(shape[1]) : 1;
    if (width > 1 && shape != call.target.shape) return;
    columns = width <= kMaxColumns ? std::max<std::size_t>(width, 1) : 1;
    answers = call.output.values;
    targets = call.target.values;
  }
  if (answers.empty() || (columns_ != 0 && columns_ != columns)) return;
  for (std::size_t i = 0; i < answers.size(); ++i)
    if (!(std::abs(answers[i]) < kLargestAnswer) || !(std::abs(targets[i]) < kLargestAnswer)) return;
  if (columns_ == 0) {
    columns_ = columns;
    reference_x_.assign(answers.begin(), answers.begin() + static_cast<std::ptrdiff_t>(columns));
    reference_y_.assign(targets.begin(), targets.begin() + static_cast<std::ptrdiff_t>(columns));
    for (std::vector<double>* sums : {&x_, &y_, &xx_, &yy_}) sums->assign(columns, 0);
    xy_.assign(columns * columns, 0);
  }
  rows_ += static_cast<double>(call.output.shape[0]);
  for (std::size_t at = 0; at + columns <= answers.size(); at += columns) AddRow(&answers[at], &targets[at]);
}

void AnswerColumns::AddRow(const double* answers, const double* targets) noexcept {
  count_ += 1;
  for (std::size_t j = 0; j < columns_; ++j) {
    const double a = answers[j] - reference_x_[j];
    const double b = targets[j] - reference_y_[j];
    x_[j] += a;
    xx_[j] += a * a;
    y_[j] += b;
    yy_[j] += b * b;
    for (std::size_t k = 0; k < columns_; ++k) xy_[j * columns_ + k] += a * (targets[k] - reference_y_[k]);
  }
}

void AnswerColumns::Clear() { *this = AnswerColumns(); }

double AnswerColumns::r(std::size_t answer, std::size_t target) const noexcept {
  if (count_ < 2) return 0;
  const double xx = xx_[answer] - x_[answer] * x_[answer] / count_;
  const double yy = yy_[target] - y_[target] * y_[target] / count_;
  const double xy = xy_[answer * columns_ + target] - x_[answer] * y_[target] / count_;
  if (!(xx > 1e-12 * xx_[answer]) || !(yy > 1e-12 * yy_[target])) return 0;
  const double r = xy / std::sqrt(xx * yy);
  return std::isfinite(r) ? std::clamp(r, -1.0, 1.0) : 0;
}

void AnswerColumns::VisitFields(Fields& io) {
  io("columns", columns_);
  io("rows", rows_);
  io("count", count_);
  io("reference_x", reference_x_, kMaxColumns);
  io("reference_y", reference_y_, kMaxColumns);
  io("x", x_, kMaxColumns);
  io("y", y_, kMaxColumns);
  io("xx", xx_, kMaxColumns);
  io("yy", yy_, kMaxColumns);
  io("xy", xy_, kMaxColumns * kMaxColumns);
  bool fits = columns_ <= kMaxColumns && xy_.size() == columns_ * columns_;
  for (const std::vector<double>* one : {&reference_x_, &reference_y_, &x_, &y_, &xx_, &yy_})
    fits = fits && one->size() == columns_;
  io.Check(fits, "sums of each column");
}

ColumnChange Compare(const AnswerColumns& training, const AnswerColumns& evaluation, double least) {
  ColumnChange change;
  const std::size_t columns = training.columns();
  if (columns == 0 || evaluation.columns() != columns || training.rows() < 8 || evaluation.rows() < 8)
    return change;
  const double error = std::sqrt(1 / (training.rows() - 3) + 1 / (evaluation.rows() - 3));
  const double alone = 1 / std::sqrt(evaluation.rows() - 3);
  std::set<std::size_t> others;
  for (std::size_t k = 0; k < columns; ++k) {
    const double trained = training.r(k, k);
    const double own = evaluation.r(k, k);
    if (trained < least) continue;
    std::size_t best = k;
    bool best_in_training = true;
    for (std::size_t j = 0; j < columns; ++j) {
      if (evaluation.r(j, k) > evaluation.r(best, k)) best = j;
      best_in_training = best_in_training && training.r(j, k) <= trained + kAsGood;
    }
    if (own <= -least && evaluation.r(best, k) < -own && -Fisher(own) >= kErrors * alone) {
      if (change.inverted.empty() && change.exchanged.empty()) change.trained = trained, change.own = own;
      change.inverted.push_back(k);
      continue;
    }
    const double other = evaluation.r(best, k);
    if (best == k || !best_in_training || other < least || other < own + kBetter ||
        Fisher(other) - Fisher(own) < kErrors * error || training.r(best, k) > trained - kBetter ||
        !others.insert(best).second)
      continue;
    if (change.inverted.empty() && change.exchanged.empty())
      change.trained = trained, change.own = own, change.other = other;
    change.exchanged.emplace_back(k, best);
  }
  // Columns that take each other's places. Those of windows that lie otherwise in time move on by some
  // places.
  std::set<std::size_t> targets;
  for (const auto& [target, answer] : change.exchanged) targets.insert(target);
  if (targets != others) change.exchanged.clear();
  return change;
}

}  // namespace luff::rules
