#include "rules/evaluations.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "rules/loss_tracker.h"

namespace luff::rules {

using Json = nlohmann::json;

namespace {

constexpr std::size_t kMaxOptimizers = 64;

Json ToJson(const EvaluationPoint& point) {
  Json at;
  point.at.Save(&at);
  return {at, point.validation, point.training};
}

EvaluationPoint ToPoint(const Json& json) {
  EvaluationPoint point;
  point.at.Load(json.at(0));
  point.validation = json.at(1);
  point.training = json.at(2);
  return point;
}

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

void ValidationCurve::Validate(double value) {
  if (!std::isfinite(value)) return;
  if (value < 0) unfit_ = true;
  validation_sum_ += value;
  ++validation_count_;
}

bool ValidationCurve::Close(const Anchor& at) {
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
  }
  validation_sum_ = validation_count_ = 0;
  return whole;
}

std::vector<std::pair<std::int64_t, double>> ValidationCurve::Picture() const { return picture_; }

void ValidationCurve::Save(Json* to) const {
  Json recent = Json::array();
  for (const EvaluationPoint& point : recent_) recent.push_back(ToJson(point));
  *to = {{"count", count_},
         {"best_count", best_count_},
         {"first", {first_sum_, first_count_}},
         {"train", {train_sum_, train_count_}},
         {"validation", {validation_sum_, validation_count_}},
         {"unfit", unfit_},
         {"best", ToJson(best_)},
         {"recent", std::move(recent)},
         {"stride", stride_},
         {"picture", picture_}};
}

void ValidationCurve::Load(const Json& from) {
  count_ = from.at("count");
  best_count_ = from.at("best_count");
  first_sum_ = from.at("first").at(0);
  first_count_ = from.at("first").at(1);
  train_sum_ = from.at("train").at(0);
  train_count_ = from.at("train").at(1);
  validation_sum_ = from.at("validation").at(0);
  validation_count_ = from.at("validation").at(1);
  unfit_ = from.at("unfit");
  best_ = ToPoint(from.at("best"));
  recent_.clear();
  for (const Json& point : from.at("recent")) recent_.push_back(ToPoint(point));
  stride_ = from.at("stride");
  picture_ = from.at("picture").get<std::vector<std::pair<std::int64_t, double>>>();
  if (recent_.size() > kRecent || picture_.size() > kPicture || stride_ < 1 || count_ < 0 ||
      (count_ > 0 && recent_.empty()))
    throw std::out_of_range("a curve that no run has");
}

void OptimizerTurns::OnTrainStep(const query::Trial::StepRows& rows) {
  std::set<std::uint32_t> stepped;
  for (const query::EventAt& event : rows.events) {
    if (event.row.kind == static_cast<std::uint16_t>(format::EventKind::kOptimizerStep) &&
        stepped.size() < kMaxOptimizers)
      stepped.insert(event.row.subject);
  }
  if (stepped.empty()) return;
  if (!last_.empty() && stepped != last_) taken_ = true;
  last_ = std::move(stepped);
}

void OptimizerTurns::Save(Json* to) const { *to = {taken_, last_}; }

void OptimizerTurns::Load(const Json& from) {
  taken_ = from.at(0);
  last_ = from.at(1).get<std::set<std::uint32_t>>();
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

bool Evaluations::OnStep(const query::Trial& trial, const query::Trial::StepRows& rows) {
  if (rows.info.superseded) return false;
  const bool train = rows.info.mode == query::Mode::kTrain;
  if (!train && rows.info.mode != query::Mode::kEval) return false;
  bool news = false;
  if (train) {
    news = Close();
    last_train_.Take(rows.info);
    ++train_steps_;
    turns_.OnTrainStep(rows);
  } else if (last_train_.mode_step >= 0) {
    evaluating_ = true;
  } else {
    return false;  // an evaluation before the first step
  }
  const std::vector<LossValue> losses = LossesOf(trial, rows);
  for (const LossValue& loss : losses) {
    if (loss.worker != losses.front().worker) continue;
    const std::string& name = trial.tensor(loss.tensor).name;
    auto known =
        std::find_if(curves_.begin(), curves_.end(), [&](const auto& entry) { return entry.first == name; });
    if (known == curves_.end()) {
      if (curves_.size() >= kMaxCurves) continue;
      curves_.emplace_back(name, ValidationCurve());
      known = curves_.end() - 1;
    }
    if (train) {
      known->second.Train(loss.value);
    } else {
      known->second.Validate(loss.value);
    }
  }
  return news;
}

bool Evaluations::OnEnd() { return Close(); }

bool Evaluations::IsNew(const ValidationCurve& curve) const noexcept {
  return std::any_of(curves_.begin(), curves_.end(), [&](const auto& entry) {
    return &entry.second == &curve && std::find(new_.begin(), new_.end(), entry.first) != new_.end();
  });
}

void Evaluations::Save(Json* to) const {
  Json curves = Json::array();
  for (const auto& [name, curve] : curves_) {
    Json saved;
    curve.Save(&saved);
    curves.push_back({name, std::move(saved)});
  }
  Json last;
  Json turns;
  last_train_.Save(&last);
  turns_.Save(&turns);
  *to = {{"curves", std::move(curves)},
         {"last", std::move(last)},
         {"evaluating", evaluating_},
         {"train_steps", train_steps_},
         {"turns", std::move(turns)}};
}

void Evaluations::Load(const Json& from) {
  curves_.clear();
  new_.clear();
  if (from.at("curves").size() > kMaxCurves) throw std::out_of_range("more losses than are ever followed");
  for (const Json& entry : from.at("curves")) {
    curves_.emplace_back(entry.at(0).get<std::string>(), ValidationCurve());
    curves_.back().second.Load(entry.at(1));
  }
  last_train_.Load(from.at("last"));
  evaluating_ = from.at("evaluating");
  train_steps_ = from.at("train_steps");
  turns_.Load(from.at("turns"));
}

}  // namespace luff::rules
