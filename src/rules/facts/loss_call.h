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

/// Calls of losses, from their samples (docs/spec/evidence.md): what went in, what came out, and which known
/// formula explains the value.
namespace luff::rules {

/// One sample, as float64.
struct SampleValues {
  query::TensorId tensor = 0;
  DType dtype = DType::kInvalid;          // of the training's tensor
  std::vector<std::int64_t> shape;        // of what is kept
  std::vector<std::int64_t> whole_shape;  // of what it was taken from
  std::vector<double> values;
  [[nodiscard]] bool whole() const noexcept { return shape == whole_shape; }
  [[nodiscard]] bool is_float() const noexcept { return IsFloating(dtype); }
};

/// Elements of a shape.
[[nodiscard]] std::size_t ElementsOf(const std::vector<std::int64_t>& shape) noexcept;

/// The sample behind a row of the step, read once for all rules. Null if there is no value, or it has more
/// than 2^20 elements.
[[nodiscard]] std::shared_ptr<const SampleValues> LoadSample(const StepView& view,
                                                             const query::Trial::SummaryEntry& entry);

/// Settings of a loss, as far as formulas need them (document "model", losses[]).
struct LossSettings {
  bool known = false;
  double label_smoothing = 0;
  double ignore_index = -100;
  double delta = 1;  // of Huber and smooth L1 (there: beta)
  bool log_target = false;
};

enum class Formula : std::uint8_t {
  kUnknown,
  kCrossEntropy,  // of logits, with class ids or shares
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
/// What a loss of this name computes.
[[nodiscard]] Formula FormulaOfKind(std::string_view kind) noexcept;

enum class Weights : std::uint8_t { kUnknown, kNone, kSome };  // of classes or positives

struct Recognition {
  Formula formula = Formula::kUnknown;
  bool by_value = false;  // the formula gives the value; else only the name tells
  bool broadcast = false;
  Weights weights = Weights::kUnknown;
  double pos_weight = 1;  // of positives; 1 unless weights == kSome and the formula is kBceWithLogits
  std::vector<double> per_sample;  // the terms of the mean; of rows that were kept
};

/// One call of a loss. Both samples are there.
struct LossCall {
  std::string kind;      // class or function, e.g. "CrossEntropyLoss"
  query::TensorId loss;  // KIND_output_n
  std::uint32_t worker = 0;
  std::optional<double> value;
  LossSettings settings;
  SampleValues output, target;
  /// What this call alone tells of its formula, kept by the first who asks.
  mutable std::shared_ptr<const Recognition> recognition;
  [[nodiscard]] bool whole() const noexcept { return output.whole() && target.whole(); }
};

/// Scores of classes and the right class of each row, of any layout that torch knows: (N, C, ...) with
/// (N, ...), (N, C) with a target of N elements, (..., C) with (...).
struct ClassRows {
  std::size_t rows = 0, classes = 0;
  std::vector<double> scores;  // rows x classes
  std::vector<double> ids;
};
/// Nothing when the target holds no class ids for these outputs.
[[nodiscard]] std::optional<ClassRows> ClassRowsOf(const LossCall& call);

/// One score and one target for each element, where both are equally many and shapes do not broadcast.
struct ScoreRows {
  std::vector<double> scores, targets;
};
[[nodiscard]] std::optional<ScoreRows> ScoreRowsOf(const LossCall& call);
/// All targets lie in [0, 1].
[[nodiscard]] bool AreShares(const std::vector<double>& targets);

/// The shape that elementwise losses give: nothing if the two do not broadcast.
[[nodiscard]] std::optional<std::vector<std::int64_t>> BroadcastShape(const std::vector<std::int64_t>& a,
                                                                      const std::vector<std::int64_t>& b);

/// **Thread-compatible.** Reads calls and remembers what it needs of earlier ones (weights show in the second
/// call only). Bounded: kMaxKinds kinds.
class LossReader {
 public:
  static constexpr std::size_t kMaxKinds = 32;
  /// Calls of a step in order of worker and name, found once for all rules. Superseded steps have none.
  [[nodiscard]] static const std::vector<LossCall>& Read(const StepView& view);
  /// Values are float32 or narrower: equal means to about 2e-5 of the terms.
  [[nodiscard]] Recognition Recognise(const LossCall& call);
  void VisitFields(Fields& io);

 private:
  struct Kind {
    double pos_weight = 0;  // as the last call implies it; 0: none yet
    std::int64_t agreed = 0;
    void VisitFields(Fields& io) {
      io("pos_weight", pos_weight);
      io("agreed", agreed);
    }
  };
  std::map<std::string, Kind> kinds_;
};

/// log(sum(exp(row))), stable.
[[nodiscard]] double LogSumExp(const double* row, std::size_t count, std::size_t stride = 1) noexcept;

}  // namespace luff::rules
