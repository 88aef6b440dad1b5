#include "rules/facts/plateau_metric.h"

#include <bit>
#include <cmath>

namespace luff::rules {
namespace {

// Whether `value` is a number of `rows` rows by all of them, or that in per cent, and neither none nor all.
bool IsShare(double value, double rows) {
  for (const double unit : {1.0, 100.0}) {
    const double counted = value / unit * rows;
    if (value > 0 && value < unit && std::abs(counted - std::round(counted)) <= 1e-5 * rows) return true;
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
    for (const LossCall& call : LossReader::Read(view)) {
      if (!call.target.whole_shape.empty()) rows_ += static_cast<double>(call.target.whole_shape.front());
    }
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
  // Of very many rows any number is nearly a share.
  shares_ = shares_ && losses_ == 0 && rows_ >= 8 && rows_ <= 1e4 && IsShare(metric, rows_);
  const auto is = [&](double of_training, double error) {
    return trained_ > 0 && std::abs(metric - of_training) <= error * std::abs(of_training);
  };
  itself_ = itself_ && (is(newest_, 1e-6) || is(train, 1e-3));
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
  loss_sum_ = losses_ = train_sum_ = trained_ = rows_ = 0;
}

PlateauMetric::Against PlateauMetric::Judge(const std::string& mode) const {
  const bool worse = mode == "min" ? above_ : mode == "max" && below_;
  if (count_ < kEvaluations || !worse) return Against::kNothing;
  if (better_) return Against::kLoss;
  if (mode == "max" && itself_) return Against::kItself;
  return mode == "min" && shares_ && train_better_ ? Against::kShare : Against::kNothing;
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
  io("first_loss", first_loss_);
  io("first_train", first_train_);
  io("above", above_);
  io("below", below_);
  io("better", better_);
  io("train_better", train_better_);
  io("newest", newest_);
  io("itself", itself_);
  io("shares", shares_);
}

}  // namespace luff::rules
