#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "luff/query/trial.h"
#include "rules/kit/fields.h"

/// Facts about boosting runs (docs/xgboost.md) that several rules need. One TRAIN step is one round, which
/// records the losses of all evaluation sets.
namespace luff::rules {

/// One training as the document "boosting" describes it; -1: not given.
struct BoostedTraining {
  std::int64_t rounds_planned = -1, rounds_before = -1, rows = -1, features = -1;
  double subsample = 1;
};

/// The trainings of a run, by the prefix of their tensors. A description does not change, so it is read once.
class BoostedTrainings {
 public:
  static constexpr std::size_t kMost = 256;

  [[nodiscard]] BoostedTraining TrainingOf(const query::Trial& trial, const std::string& prefix);

 private:
  std::map<std::string, BoostedTraining> known_;
};

/// A metric of an evaluation set, named "PREFIXset-metric". Only built-in losses of the libraries that fall
/// smoothly.
struct BoostedLoss {
  std::string prefix;  // of the training, "" or "fit2/"
  std::string data;    // name of the evaluation set
  std::string metric;
  bool training = false;  // the set is the training data
};

/// The rounds of trainings with an objective of the user's own. Metrics of probabilities and rates then get
/// raw scores, and the metric that XGBoost adds by itself is that of an objective that nobody uses: their
/// values mean nothing, and are no part of the curve of earlier rounds.
class OwnObjectives {
 public:
  [[nodiscard]] bool Hide(const query::Trial& trial, const BoostedLoss& loss, std::int64_t step);

 private:
  struct Part {
    std::string prefix;
    std::int64_t first_step = 0;
    bool own = false;
    bool chosen = false;  // by the library: the user has named no metric
  };
  void Look(std::string document);

  std::int64_t looked_ = -1;  // the step in which the document "boosting" was looked at
  std::string document_;
  std::vector<Part> parts_;
};

/// Returns nothing for a tensor that is not such a loss. If the hook did not record the kind of a set, its
/// name decides.
[[nodiscard]] std::optional<BoostedLoss> BoostedLossOf(const query::TensorInfo& tensor);

/// One loss over the rounds, in constant memory.
class BoostedCurve {
 public:
  static constexpr std::size_t kRecent = 16;      // newest values that are kept
  static constexpr std::size_t kPicture = 64;     // points of a picture
  using Point = std::pair<std::int64_t, double>;  // TRAIN step, value

  void Add(std::int64_t step, double value, double partner);
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] double first() const noexcept { return first_; }
  [[nodiscard]] double last() const noexcept { return recent_.empty() ? 0 : recent_.back().second; }
  [[nodiscard]] const Point& best() const noexcept { return best_; }
  /// The training loss of the round with the best value, NaN if it was not recorded.
  [[nodiscard]] double partner_at_best() const noexcept { return partner_at_best_; }
  [[nodiscard]] std::int64_t since_best() const noexcept { return since_best_; }
  [[nodiscard]] const std::deque<Point>& recent() const noexcept { return recent_; }
  /// Some value was not finite or was negative: ratios of such losses mean nothing.
  [[nodiscard]] bool unfit() const noexcept { return unfit_; }
  [[nodiscard]] const std::vector<Point>& Picture() const noexcept { return picture_; }

  void VisitFields(Fields& io);

 private:
  std::int64_t count_ = 0, since_best_ = 0, stride_ = 1;
  double first_ = 0, partner_at_best_ = 0;
  bool unfit_ = false;
  Point best_;
  std::deque<Point> recent_;
  std::vector<Point> picture_;
};

/// **Thread-compatible.** All curves of a run, as recorded by the first worker that has a loss.
class BoostedCurves {
 public:
  static constexpr std::size_t kMaxCurves = 256;

  struct Entry {
    query::TensorId tensor = 0;
    BoostedLoss loss;
    BoostedCurve curve;
  };
  /// Adds a step. Returns the entries with a new point, training sets before evaluation sets.
  std::vector<const Entry*> OnStep(const query::Trial& trial, const query::Trial::StepRows& rows);
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// The curve of the same metric on the training data; null if it was not evaluated.
  [[nodiscard]] const Entry* TrainingOf(const Entry& entry) const noexcept;
  /// The curve by which to judge a training: of an evaluation set if there is one, else of the training data.
  /// Null if there is neither.
  [[nodiscard]] const Entry* Judge(const std::string& prefix) const noexcept;

  void VisitFields(Fields& io);

 private:
  Entry* EntryOf(const query::Trial& trial, query::TensorId tensor);
  std::vector<Entry> entries_;
  std::map<std::string, BoostedCurve> loaded_;  // from a checkpoint, by name, until their tensors appear
  std::vector<signed char> known_;              // by tensor id: 1 a loss, 0 none, -1 not looked at
  OwnObjectives own_;
};

}  // namespace luff::rules
