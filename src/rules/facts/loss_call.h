#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/trial.h"
#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

/// Calls of losses, read from their samples (docs/spec/evidence.md): the inputs, the value, and the known
/// formula that explains the value.
namespace luff::rules {

/// One sample, as float64.
struct SampleValues {
  query::TensorId tensor = 0;
  DType dtype = DType::kInvalid;          // of the tensor in the training
  std::vector<std::int64_t> shape;        // of the kept part
  std::vector<std::int64_t> whole_shape;  // of the full tensor
  std::vector<double> values;
  [[nodiscard]] bool whole() const noexcept { return shape == whole_shape; }
  [[nodiscard]] bool is_float() const noexcept { return IsFloating(dtype); }
};

/// Number of elements of a shape.
[[nodiscard]] std::size_t ElementsOf(const std::vector<std::int64_t>& shape) noexcept;

/// The sample of a row of the step, read once for all rules. Null if it cannot be read or has more than 2^20
/// elements.
[[nodiscard]] std::shared_ptr<const SampleValues> LoadSample(const StepView& view,
                                                             const query::Trial::SummaryEntry& entry);

/// Settings of a loss that the formulas need (document "model", losses[]).
struct LossSettings {
  bool known = false;
  double label_smoothing = 0;
  double ignore_index = -100;
  double delta = 1;  // delta of Huber, beta of smooth L1
  bool log_target = false;
};

enum class Formula : std::uint8_t {
  kUnknown,
  kCrossEntropy,  // of logits; the target holds class ids or probabilities
  kNll,           // of log-probabilities
  kBceWithLogits,
  kBce,  // of probabilities
  kMse,
  kL1,
  kSmoothL1,
  kHuber,
  kKlDivergence,
};
[[nodiscard]] std::string_view FormulaName(Formula formula) noexcept;  // "cross entropy of logits"
/// The formula of torch's loss of this name; kUnknown for other names.
[[nodiscard]] Formula FormulaOfKind(std::string_view kind) noexcept;

/// Of numbers that are to be met, elementwise: squared, absolute, smooth absolute and Huber's errors.
[[nodiscard]] bool IsRegression(Formula formula) noexcept;

enum class Weights : std::uint8_t { kUnknown, kNone, kSome };  // of classes or positives

struct Recognition {
  Formula formula = Formula::kUnknown;
  bool by_value = false;  // the formula yields the value; otherwise only the name suggests it
  bool broadcast = false;
  Weights weights = Weights::kUnknown;
  double pos_weight = 1;  // weight of positives; 1 unless weights == kSome and the formula is kBceWithLogits
  std::vector<double> per_sample;  // the terms of the sum or mean, for the kept rows
};

struct LossCall;
/// Keras' cross entropies of probabilities ("SparseCategoricalCrossentropy", "CategoricalCrossentropy"). Of
/// such a call, makes the output logarithms of the shares that Keras makes of each row, and targets that name
/// a class ids, so that it reads as a negative log-likelihood. Leaves the output alone if a value lies
/// below 0: it holds no shares, of whatever sum.
[[nodiscard]] bool TakesProbabilities(std::string_view kind) noexcept;
void TakeLogarithms(LossCall* call);
/// Gives output and target the same rank where one has a last axis of length 1 more, as Keras does before
/// its own losses: (N, 1) against (N,) is no broadcast there.
void AlignRanks(LossCall* call);

/// Names a call across steps, in training and evaluation: the n-th of its kind in a step.
[[nodiscard]] std::string KeyOfCall(const std::string& kind, std::size_t n);

/// One call of a loss, with both samples.
struct LossCall {
  std::string kind;      // class or function, e.g. "CrossEntropyLoss"
  std::string key;       // KeyOfCall
  query::TensorId loss;  // KIND_output_n, or KIND_part_n where it is a part of the loss
  std::uint32_t worker = 0;
  std::optional<double> value;
  LossSettings settings;
  SampleValues output, target;
  /// Whether each target counts, where the training multiplies the loss's values by zeros and ones or chooses
  /// among them; empty: all do. Ids that do not are settings.ignore_index in `target`.
  std::vector<bool> counted;
  /// What this call alone reveals about its formula; LossReader::Recognise sets it.
  mutable std::shared_ptr<const Recognition> recognition;
  [[nodiscard]] bool whole() const noexcept { return output.whole() && target.whole(); }
};

/// The scores of all classes and the right class for each row, from any layout that torch accepts: (N, C,
/// ...) with (N, ...), (N, C) with a target of N elements, (..., C) with (...).
struct ClassRows {
  std::size_t rows = 0, classes = 0;
  std::vector<double> scores;  // rows x classes
  std::vector<double> ids;
};
/// Returns nullopt if the target does not hold class ids for these outputs.
[[nodiscard]] std::optional<ClassRows> ClassRowsOf(const LossCall& call);

/// Whether the targets only say which of the batch's rows belong together, as in InfoNCE and CLIP: scores of
/// (N, N) with another target for each row, or targets that count up. They are no labels of the inputs.
[[nodiscard]] bool NamesPartners(const LossCall& call);

/// One score and one target for each element.
struct ScoreRows {
  std::vector<double> scores, targets;
};
/// Returns nullopt unless output and target have equally many elements and, for torch's losses, the same
/// shape.
[[nodiscard]] std::optional<ScoreRows> ScoreRowsOf(const LossCall& call);
/// Adds the rows of a call that were answered, and those that were answered rightly. False if it does not
/// tell: a part of it is not kept, or its targets are no classes.
[[nodiscard]] bool CountAnswers(const LossCall& call, double* rows, double* right);
/// Whether all targets lie in [0, 1].
[[nodiscard]] bool AreShares(const std::vector<double>& targets);

/// The shape to which elementwise losses broadcast the two; nullopt if they do not broadcast.
[[nodiscard]] std::optional<std::vector<std::int64_t>> BroadcastShape(const std::vector<std::int64_t>& a,
                                                                      const std::vector<std::int64_t>& b);

/// **Thread-compatible.** Reads calls and remembers what it needs of earlier ones: a weight of positives
/// shows only from the second call on. Remembers at most kMaxKinds kinds.
class LossReader {
 public:
  static constexpr std::size_t kMaxKinds = 32;
  /// Calls of a step in order of worker and name, found once for all rules. Superseded steps have none.
  [[nodiscard]] static const std::vector<LossCall>& Read(const StepView& view);
  /// A formula fits if it yields the value up to the error of the output's type (float32: 2e-5 of the terms).
  /// A call without a value, as of an evaluation that only counts right answers, is as the last one with a
  /// value.
  [[nodiscard]] Recognition Recognise(const LossCall& call);
  void VisitFields(Fields& io);

 private:
  struct Kind {
    double pos_weight = 0;    // the weight that calls imply; 0: none yet
    std::int64_t agreed = 0;  // calls in a row that implied the same weight
    bool by_value = false;    // the last call with a value had the formula that its name says
    bool weighted = false;    // and weights of classes
    void VisitFields(Fields& io) {
      io("pos_weight", pos_weight);
      io("agreed", agreed);
      io("by_value", by_value);
      io("weighted", weighted);
    }
  };
  [[nodiscard]] Recognition OfValue(const LossCall& call);
  void Recall(const LossCall& call, Recognition* found) const;
  std::map<std::string, Kind> kinds_;
};

/// log(sum(exp(row))), stable.
[[nodiscard]] double LogSumExp(const double* row, std::size_t count, std::size_t stride = 1) noexcept;

}  // namespace luff::rules
