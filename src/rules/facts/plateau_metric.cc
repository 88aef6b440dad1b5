#include "rules/facts/plateau_metric.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace luff::rules {
namespace {

constexpr double kNear = 5e-3;        // of shares: a mean of batches that are not equally large
constexpr double kProportion = 0.05;  // error of a mean of batches that are not equally large

// Whether `value` is the share of right answers, or that in per cent, and, where `apart`, not that of wrong
// ones, too.
bool IsAccuracy(double value, double accuracy, bool apart) {
  for (const double unit : {1.0, 100.0}) {
    const double share = value / unit;
    if (std::abs(share - accuracy) <= kNear && (!apart || std::abs(share - (1 - accuracy)) > kNear))
      return true;
  }
  return false;
}

}  // namespace

void PlateauMetric::OnStep(const StepView& view) {
  if (view.rows.info.mode == query::Mode::kEval) {
    for (const LossValue& loss : view.index.losses()) {
      if (!std::isfinite(loss.value)) continue;
      loss_sum_ += loss.value;
      ++losses_;
    }
    if (!shares_) return;  // nothing else needs the samples
    for (const LossCall& call : LossReader::Read(view)) told_ = CountAnswers(call, &rows_, &right_) && told_;
    return;
  }
  if (view.rows.info.mode != query::Mode::kTrain) return;
  // A step of a scheduler belongs to the TRAIN step that follows it.
  for (const query::EventAt& event : view.index.events(format::EventKind::kSchedulerStep)) {
    if (event.worker != view.index.first_worker() || event.row.argument == 0) continue;
    const auto metric = std::bit_cast<double>(event.row.argument);
    if (std::isfinite(metric)) Take(metric);
  }
  for (const LossValue& loss : view.index.losses()) {
    if (!std::isfinite(loss.value)) continue;
    train_sum_ += loss.value;
    ++trained_;
    newest_ = loss.value;
  }
}

void PlateauMetric::Take(double metric) {
  const double loss = losses_ > 0 ? loss_sum_ / losses_ : std::nan("");
  const double train = trained_ > 0 ? train_sum_ / trained_ : std::nan("");
  shares_ = shares_ && told_ && rows_ >= 8 &&
            IsAccuracy(metric, right_ / rows_, count_ > 0);  // guessing begins at a half
  silent_ = silent_ && losses_ == 0;
  const auto is = [&](double of_training, double error) {
    return trained_ > 0 && std::abs(metric - of_training) <= error * std::abs(of_training);
  };
  if (count_ > 0)
    follows_ = follows_ && std::abs(metric * first_loss_ - first_ * loss) <=
                               kProportion * std::abs(first_ * loss);  // false where one is missing
  itself_ = itself_ && (is(newest_, 1e-6) || is(train, 1e-3));
  counts_ = counts_ && std::floor(metric) == metric && (count_ == 0 || metric == last_ + 1);
  if (count_++ == 0) {
    first_ = metric;
    first_loss_ = loss;
    first_train_ = train;
  } else {
    above_ = above_ && metric > first_;
    below_ = below_ && metric < first_;
    better_ = better_ && loss < first_loss_;  // false where one is missing
    train_better_ = train_better_ && train < first_train_;
  }
  last_ = metric;
  loss_sum_ = losses_ = train_sum_ = trained_ = rows_ = right_ = 0;
  told_ = true;
}

PlateauMetric::Against PlateauMetric::Judge(const std::string& mode) const {
  const bool worse = mode == "min" ? above_ : mode == "max" && below_;
  if (count_ < kEvaluations || !worse) return Against::kNothing;
  if (better_ && (mode == "min" ? shares_ : follows_)) return Against::kLoss;
  if (mode == "max" && itself_) return Against::kItself;
  return mode == "min" && silent_ && shares_ && train_better_ ? Against::kShare : Against::kNothing;
}

void PlateauMetric::VisitFields(Fields& io) {
  io("count", count_);
  io("first", first_);
  io("last", last_);
  io("loss_sum", loss_sum_);
  io("losses", losses_);
  io("train_sum", train_sum_);
  io("trained", trained_);
  io("rows", rows_);
  io("right", right_);
  io("told", told_);
  io("first_loss", first_loss_);
  io("first_train", first_train_);
  io("above", above_);
  io("below", below_);
  io("better", better_);
  io("train_better", train_better_);
  io("newest", newest_);
  io("itself", itself_);
  io("shares", shares_);
  io("silent", silent_);
  io("follows", follows_);
  io("counts", counts_);
}

}  // namespace luff::rules
