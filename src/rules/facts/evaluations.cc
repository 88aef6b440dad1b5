#include "rules/facts/evaluations.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "rules/facts/loss_tracker.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/step_memo.h"

namespace luff::rules {

namespace {

constexpr std::size_t kMaxSeen = 1024;   // optimizers
constexpr std::size_t kMaxStepped = 64;  // optimizers

}  // namespace

void ValidationCurve::Train(double value) {
  if (!std::isfinite(value)) return;
  if (value < 0) unfit_ = true;
  if (first_count_ < kFirst) {
    first_sum_ += value;
    ++first_count_;
  }
  train_sum_ += value;
  ++train_count_;
}

void ValidationCurve::Validate(double value, bool own) {
  if (!std::isfinite(value)) return;
  if (value < 0) unfit_ = true;
  own_ = own_ || own;
  if (!own) {
    other_sum_ += value;
    ++other_count_;
    return;
  }
  validation_sum_ += value;
  ++validation_count_;
}

void ValidationCurve::Answered(double rows, double right) {
  rows_ += rows;
  right_ += right;
}

bool ValidationCurve::answers_hold() const noexcept {
  if (last_rows_ <= 0) return false;
  const double error = std::sqrt(best_share_ * (1 - best_share_) / last_rows_);
  return last_share_ >= best_share_ - 2 * error;
}

bool ValidationCurve::Close(const Anchor& at) {
  if (!own_) {
    validation_sum_ = other_sum_;
    validation_count_ = other_count_;
  }
  other_sum_ = other_count_ = 0;
  const bool whole = validation_count_ > 0 && train_count_ > 0;
  if (whole) {
    const EvaluationPoint point{at, validation_sum_ / validation_count_, train_sum_ / train_count_};
    ++count_;
    if (count_ == 1 || point.validation < best_.validation) {
      best_ = point;
      best_count_ = count_;
    }
    recent_.push_back(point);
    if (recent_.size() > kRecent) recent_.pop_front();
    if ((count_ - 1) % stride_ == 0) picture_.emplace_back(at.mode_step, point.validation);
    if (picture_.size() > kPicture) {
      for (std::size_t i = 0; 2 * i < picture_.size(); ++i) picture_[i] = picture_[2 * i];
      picture_.resize((picture_.size() + 1) / 2);
      stride_ *= 2;
    }
    train_sum_ = train_count_ = 0;
    last_rows_ = rows_;
    last_share_ = rows_ > 0 ? right_ / rows_ : 0;
    best_share_ = std::max(best_share_, last_share_);
  }
  validation_sum_ = validation_count_ = rows_ = right_ = 0;
  return whole;
}

std::vector<std::pair<std::int64_t, double>> ValidationCurve::Picture() const { return picture_; }

void OptimizerTurns::OnTrainStep(const StepView& view) {
  std::set<std::uint32_t> stepped;
  for (const query::EventAt& event : view.index.events(format::EventKind::kOptimizerStep)) {
    if (stepped.size() < kMaxStepped) stepped.insert(event.row.subject);
  }
  if (stepped.empty()) return;
  if (!last_.empty() && stepped != last_) taken_ = true;
  for (const std::uint32_t optimizer : stepped) {
    alternate_ = alternate_ || (seen_.contains(optimizer) && !last_.contains(optimizer));
    if (seen_.size() < kMaxSeen) seen_.insert(optimizer);
  }
  last_ = std::move(stepped);
}

bool Evaluations::Close() {
  new_.clear();
  if (!evaluating_) return false;
  evaluating_ = false;
  for (auto& [name, curve] : curves_) {
    if (curve.Close(last_train_)) new_.push_back(name);
  }
  return !new_.empty();
}

ValidationCurve* Evaluations::CurveOf(const std::string& name) {
  const auto known =
      std::find_if(curves_.begin(), curves_.end(), [&](const auto& entry) { return entry.first == name; });
  if (known != curves_.end()) return &known->second;
  if (curves_.size() >= kMaxCurves) return nullptr;
  curves_.emplace_back(name, ValidationCurve());
  return &curves_.back().second;
}

// The mean over a call's kept rows, where the formula of its name is known to yield the training's values.
void Evaluations::Calls(const StepView& view, bool train, bool own) {
  constexpr std::string_view kOutput = "_output_";
  const std::vector<LossCall>& calls = LossReader::Read(view);
  for (const LossCall& call : calls) {
    if (call.worker != calls.front().worker || FormulaOfKind(call.kind) == Formula::kUnknown) continue;
    const bool has_value = call.value && view.trial.tensor(call.loss).name.find(kOutput) != std::string::npos;
    if (!train && has_value) continue;  // it has a curve under the name of the loss
    const Recognition found = reader_.Recognise(call);
    if (!found.by_value || found.per_sample.empty() || found.formula != FormulaOfKind(call.kind)) continue;
    ValidationCurve* curve = CurveOf(call.key);
    if (curve == nullptr) continue;
    const double mean = std::accumulate(found.per_sample.begin(), found.per_sample.end(), 0.0) /
                        static_cast<double>(found.per_sample.size());
    if (train) {
      curve->Train(mean);
      continue;
    }
    curve->Validate(mean, own);
    if (!own) continue;
    double rows = 0;
    double right = 0;
    if (!call.value && CountAnswers(call, &rows, &right)) curve->Answered(rows, right);
  }
}

bool Evaluations::OnStep(const StepView& view) {
  const query::StepInfo& info = view.rows.info;
  if (info.superseded) return false;
  const bool train = info.mode == query::Mode::kTrain;
  if (!train && info.mode != query::Mode::kEval) return false;
  bool news = false;
  if (train) {
    news = Close();
    last_train_.Take(info);
    ++train_steps_;
    turns_.OnTrainStep(view);
  } else if (last_train_.mode_step >= 0) {
    evaluating_ = true;
  } else {
    return false;  // an evaluation before the first TRAIN step
  }
  const bool own = train || AsksTrained(view);
  const std::vector<LossValue>& losses = view.index.losses();
  for (const LossValue& loss : losses) {
    if (loss.worker != losses.front().worker) continue;
    const std::string& name = view.trial.tensor(loss.tensor).name;
    ValidationCurve* curve = CurveOf(name);
    if (curve == nullptr) continue;
    if (train) {
      curve->Train(loss.value);
    } else {
      curve->Validate(loss.value, own);
    }
  }
  Calls(view, train, own);
  return news;
}

// Whether a step of an evaluation asks a model that an optimizer trains; as the one before it, where it has
// no samples.
bool Evaluations::AsksTrained(const StepView& view) {
  const std::vector<ModelInput>& inputs = ModelInputsOf(view);
  if (inputs.empty()) return asks_trained_;
  bool some = false;
  for (const auto& [name, parameter] : view.memo.Facts(view).parameters()) {
    if (parameter.optimizer.empty()) continue;
    some = true;
    asks_trained_ = std::any_of(inputs.begin(), inputs.end(),
                                [&](const ModelInput& one) { return one.model == parameter.model; });
    if (asks_trained_) return true;
  }
  return asks_trained_ = !some;
}

bool Evaluations::OnEnd() { return Close(); }

bool Evaluations::IsNew(const ValidationCurve& curve) const noexcept {
  return std::any_of(curves_.begin(), curves_.end(), [&](const auto& entry) {
    return &entry.second == &curve && std::find(new_.begin(), new_.end(), entry.first) != new_.end();
  });
}

void EvaluationPoint::VisitFields(Fields& io) {
  io("at", at);
  io("validation", validation);
  io("training", training);
}

void ValidationCurve::VisitFields(Fields& io) {
  io("count", count_);
  io("best_count", best_count_);
  io("first_sum", first_sum_);
  io("first_count", first_count_);
  io("train_sum", train_sum_);
  io("train_count", train_count_);
  io("validation_sum", validation_sum_);
  io("validation_count", validation_count_);
  io("other_sum", other_sum_);
  io("other_count", other_count_);
  io("own", own_);
  io("rows", rows_);
  io("right", right_);
  io("last_rows", last_rows_);
  io("last_share", last_share_);
  io("best_share", best_share_);
  io("unfit", unfit_);
  io("best", best_);
  io("recent", recent_, kRecent);
  io("stride", stride_);
  io("picture", picture_, kPicture);
  io.Check(stride_ >= 1 && count_ >= 0 && (count_ == 0 || !recent_.empty()), "a curve that a run can have");
}

void OptimizerTurns::VisitFields(Fields& io) {
  io("taken", taken_);
  io("alternate", alternate_);
  io("last", last_, kMaxStepped);
  io("seen", seen_, kMaxSeen);
}

void Evaluations::VisitFields(Fields& io) {
  io("curves", curves_, kMaxCurves);
  io("last_train", last_train_);
  io("evaluating", evaluating_);
  io("train_steps", train_steps_);
  io("asks_trained", asks_trained_);
  io("turns", turns_);
  io("reader", reader_);
  if (io.loading()) new_.clear();
}

}  // namespace luff::rules
