#include "rules/builtin/boosting/boosted_curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;

// Losses that boosting lowers smoothly, by the names that libraries give them. `error` is a count and may
// stand still, areas under curves rise. XGBoost's names come first.
constexpr std::array<std::string_view, 30> kLossNames = {
    "rmse", "rmsle", "mae", "mape", "mphe", "logloss", "mlogloss", "quantile", "expectile", "poisson-nloglik",
    "gamma-nloglik", "gamma-deviance", "cox-nloglik", "aft-nloglik",
    // LightGBM's own names
    "l1", "l2", "huber", "fair", "poisson", "gamma", "gamma_deviance", "tweedie", "binary_logloss",
    "multi_logloss", "cross_entropy", "kullback_leibler",
    // scikit-learn's
    "log_loss", "squared_error", "absolute_error", "exponential"};
constexpr std::array<std::string_view, 3> kTrainingNames = {"train", "training", "dtrain"};

// Losses of numbers, which an objective of the user's own leaves as they are.
constexpr std::array<std::string_view, 6> kOfNumbers = {"l1", "l2", "rmse", "mae", "mape", "quantile"};

bool IsLoss(std::string_view metric) {
  return std::find(kLossNames.begin(), kLossNames.end(), metric) != kLossNames.end() ||
         metric.starts_with("tweedie-nloglik");
}

BoostedTraining TrainingFrom(const Json& json) {
  BoostedTraining training;
  training.rounds_planned = WholeMember(json, "rounds_planned", -1);
  training.rounds_before = WholeMember(json, "rounds_before", -1);
  training.rows = WholeMember(json, "rows", -1);
  training.features = WholeMember(json, "feature_count", -1);
  const auto parameters = json.find("parameters");
  if (parameters != json.end() && parameters->is_object()) {
    const auto share = parameters->find("subsample");
    if (share != parameters->end() && share->is_number()) training.subsample = share->get<double>();
  }
  return training;
}

}  // namespace

BoostedTraining BoostedTrainings::TrainingOf(const query::Trial& trial, const std::string& prefix) {
  const auto known = known_.find(prefix);
  if (known != known_.end()) return known->second;
  if (known_.size() >= BoostedTrainings::kMost) return {};
  const Json document = TryParseJson(trial.Document("boosting"));
  if (!document.is_object()) return {};  // it may still come
  BoostedTraining found;
  if (document.contains("trainings") && document["trainings"].is_array()) {
    for (const Json& training : document["trainings"]) {
      if (!training.is_object() || !training.contains("prefix") || training["prefix"] != prefix) continue;
      found = TrainingFrom(training);
      break;  // the first with this prefix; a later one continues its model
    }
  }
  known_[prefix] = found;
  return found;
}

bool OwnObjectives::Hide(const query::Trial& trial, const BoostedLoss& loss, std::int64_t step) {
  if (step != looked_) {
    looked_ = step;
    Look(trial.Document("boosting"));
  }
  Part newest;  // that has begun
  for (const Part& part : parts_)
    if (part.prefix == loss.prefix && part.first_step <= step) newest = part;
  const bool of_numbers = std::ranges::find(kOfNumbers, loss.metric) != kOfNumbers.end();
  return newest.own && (newest.chosen || !of_numbers);
}

void OwnObjectives::Look(std::string document) {
  if (document == document_) return;
  document_ = std::move(document);
  parts_.clear();
  const Json json = TryParseJson(document_);
  const auto trainings = json.is_object() ? json.find("trainings") : json.end();
  if (trainings == json.end() || !trainings->is_array()) return;
  for (const Json& training : *trainings) {
    if (!training.is_object() || parts_.size() >= BoostedTrainings::kMost) continue;
    const auto parameters = training.find("parameters");
    const bool known = parameters != training.end() && parameters->is_object();
    const bool own = known && TextMember(*parameters, "objective") == "custom";
    const bool chosen =
        own && parameters->contains("eval_metric") && TextMember(*parameters, "eval_metric").empty();
    parts_.push_back({TextMember(training, "prefix"), WholeMember(training, "first_step", 0), own, chosen});
  }
}

std::optional<BoostedLoss> BoostedLossOf(const query::TensorInfo& tensor) {
  BoostedLoss loss;
  std::string_view name = tensor.name;
  const std::size_t slash = name.rfind('/');
  if (slash != std::string_view::npos) {
    loss.prefix = name.substr(0, slash + 1);
    name = name.substr(slash + 1);
  }
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos || dash == 0 || !IsLoss(name.substr(dash + 1))) return std::nullopt;
  loss.data = name.substr(0, dash);
  loss.metric = name.substr(dash + 1);
  if (!tensor.module_type.empty()) {
    if (tensor.module_type != "training" && tensor.module_type != "evaluation") return std::nullopt;
    loss.training = tensor.module_type == "training";
  } else {
    loss.training =
        std::find(kTrainingNames.begin(), kTrainingNames.end(), loss.data) != kTrainingNames.end();
  }
  return loss;
}

void BoostedCurve::Add(std::int64_t step, double value, double partner) {
  if (!std::isfinite(value) || value < 0) {
    unfit_ = true;
    return;
  }
  if (count_ == 0) first_ = value;
  if (count_ == 0 || value < best_.second) {
    best_ = {step, value};
    partner_at_best_ = partner;
    since_best_ = 0;
  } else {
    ++since_best_;
  }
  recent_.emplace_back(step, value);
  if (recent_.size() > kRecent) recent_.pop_front();
  if (count_ % stride_ == 0) picture_.emplace_back(step, value);
  if (picture_.size() > kPicture) {
    for (std::size_t i = 0; 2 * i < picture_.size(); ++i) picture_[i] = picture_[2 * i];
    picture_.resize((picture_.size() + 1) / 2);
    stride_ *= 2;
  }
  ++count_;
}

BoostedCurves::Entry* BoostedCurves::EntryOf(const query::Trial& trial, query::TensorId tensor) {
  if (tensor >= known_.size()) known_.resize(static_cast<std::size_t>(tensor) + 1, -1);
  if (known_[tensor] == 0) return nullptr;
  for (Entry& entry : entries_) {
    if (entry.tensor == tensor) return &entry;
  }
  const query::TensorInfo& info = trial.tensor(tensor);
  std::optional<BoostedLoss> loss = BoostedLossOf(info);
  if (!loss || entries_.size() >= kMaxCurves) {
    known_[tensor] = 0;
    return nullptr;
  }
  known_[tensor] = 1;
  entries_.push_back({tensor, std::move(*loss), {}});
  const auto saved = loaded_.find(info.name);
  if (saved != loaded_.end()) entries_.back().curve = saved->second;
  return &entries_.back();
}

std::vector<const BoostedCurves::Entry*> BoostedCurves::OnStep(const query::Trial& trial,
                                                               const query::Trial::StepRows& rows) {
  std::vector<const Entry*> fresh;
  if (rows.info.superseded || rows.info.mode != query::Mode::kTrain) return fresh;
  std::vector<std::pair<query::TensorId, double>> values;
  std::optional<std::uint32_t> worker;
  for (const auto& scalar : rows.scalars) {
    if (scalar.tensor < known_.size() && known_[scalar.tensor] == 0) continue;
    const Entry* entry = EntryOf(trial, scalar.tensor);
    if (entry == nullptr || own_.Hide(trial, entry->loss, rows.info.mode_step)) continue;
    if (!worker) worker = scalar.worker;  // all ranks record the same evaluation
    if (scalar.worker == *worker) values.emplace_back(scalar.tensor, scalar.value);
  }
  if (values.empty()) return fresh;
  for (const bool training : {true, false}) {
    for (const auto& [tensor, value] : values) {
      Entry* entry = EntryOf(trial, tensor);
      if (entry == nullptr || entry->loss.training != training) continue;
      double partner = std::nan("");
      for (const auto& [other, other_value] : values) {
        const Entry* one = EntryOf(trial, other);
        if (one != nullptr && one->loss.training && one->loss.metric == entry->loss.metric &&
            one->loss.prefix == entry->loss.prefix)
          partner = other_value;
      }
      entry->curve.Add(rows.info.mode_step, value, partner);
      fresh.push_back(entry);
    }
  }
  return fresh;
}

const BoostedCurves::Entry* BoostedCurves::TrainingOf(const Entry& entry) const noexcept {
  for (const Entry& other : entries_) {
    if (other.loss.training && other.loss.metric == entry.loss.metric &&
        other.loss.prefix == entry.loss.prefix)
      return &other;
  }
  return nullptr;
}

const BoostedCurves::Entry* BoostedCurves::Judge(const std::string& prefix) const noexcept {
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.loss.prefix != prefix || entry.curve.unfit() || entry.curve.count() == 0) continue;
    if (found == nullptr || (found->loss.training && !entry.loss.training)) found = &entry;
  }
  return found;
}

void BoostedCurve::VisitFields(Fields& io) {
  io("count", count_);
  io("since_best", since_best_);
  io("stride", stride_);
  io("first", first_);
  io("unfit", unfit_);
  io("best", best_);
  io("recent", recent_, kRecent);
  io("picture", picture_, kPicture);
  io("partner_at_best", partner_at_best_);
  io.Check(stride_ >= 1 && count_ >= 0, "a curve that a run can have");
}

void BoostedCurves::VisitFields(Fields& io) {
  // Keyed by name: tensor ids are valid only while a trial is open.
  std::map<std::string, BoostedCurve> curves = loaded_;
  for (const Entry& entry : entries_)
    curves.insert_or_assign(entry.loss.prefix + entry.loss.data + "-" + entry.loss.metric, entry.curve);
  io("curves", curves, kMaxCurves);
  if (!io.loading()) return;
  entries_.clear();
  known_.clear();
  loaded_ = std::move(curves);
}

}  // namespace luff::rules
