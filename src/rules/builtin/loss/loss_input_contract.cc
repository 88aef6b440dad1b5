#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "rules/builtin/loss/loss_breaches.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/dropped.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/loss_input.h"
#include "rules/facts/model_tail.h"
#include "rules/facts/sample.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// LossInputContract: docs/rules/loss_input_contract.md.
namespace luff::rules::loss_input_contract {
namespace {

constexpr const char* kName = "LossInputContract";
constexpr std::int64_t kLooked = 16;  // first TRAIN steps of which each is looked at; later, powers of two
constexpr std::int64_t kClean = 32;   // correct calls before a loss may be trusted and no longer checked

struct Limits {
  std::int64_t calls, squashed_calls, squashed_values;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::calls, "calls", "3", "calls in a row that break the contract", AtLeast(1)},
    {&Limits::squashed_calls, "squashed_calls", "16",
     "calls with all scores in [0, 1], when the model's last module does not tell of a sigmoid", AtLeast(1)},
    {&Limits::squashed_values, "squashed_values", "512", "scores in these calls"},
};

constexpr const char* kPooled = "pooled_relu";  // of the event `loss_input`
constexpr double kBeyondShares = 1e-3;          // of a probability, by rounding in half precision
constexpr double kSmoothing = 0.5;              // above it, what is smoothed in outweighs the label
constexpr std::int64_t kStays = 64;             // steps
constexpr std::int64_t kDeadSteps = 64;         // before a class can be dead: a head may begin with zeros
constexpr std::int64_t kDeadRows = 16;          // of the class itself, in a row
constexpr std::size_t kMaxClasses = 4096;
constexpr double kLeft = 0.85;  // of the loss of an ignorant answer that the best one leaves

// Whether scores that are at most `bound` in size leave most of the loss even where they are best: with n
// classes to choose from ln(1 + (n - 1) exp(-2 bound)) of ln(n). Scores far below are masked, and no choice.
bool LeavesMost(const ClassRows& m, double bound) {
  constexpr double kMasked = -1e3;
  if (!(bound > 0)) return false;  // not known to be cosines
  double left = 0, ignorant = 0;
  for (std::size_t row = 0; row < m.rows; ++row) {
    double choices = 0;
    for (std::size_t i = 0; i < m.classes; ++i) {
      const double score = m.scores[row * m.classes + i];
      const bool within = std::abs(score) <= 1.02 * bound;  // rounding, to bfloat16 too
      if (!within && !(score < kMasked)) return false;
      choices += within ? 1 : 0;
    }
    if (choices < 2) return false;
    left += std::log1p((choices - 1) * std::exp(-2 * bound));
    ignorant += std::log(choices);
  }
  return m.rows > 0 && left > kLeft * ignorant;
}

double Tolerance(DType dtype) {
  return dtype == DType::kBFloat16 ? 3e-2 : dtype == DType::kFloat16 ? 5e-3 : 2e-4;
}

// True if each row (`along_rows`) or each column of a (rows x classes) matrix sums to `value`. With
// `exponentials`: if the logarithm of the sum of its exponentials is `value`.
bool AllSumsAre(const ClassRows& m, bool along_rows, bool exponentials, double value, double tolerance) {
  const std::size_t lines = along_rows ? m.rows : m.classes;
  const std::size_t count = along_rows ? m.classes : m.rows;
  const std::size_t stride = along_rows ? 1 : m.classes;
  for (std::size_t line = 0; line < lines; ++line) {
    const double* first = &m.scores[along_rows ? line * m.classes : line];
    double sum = 0;
    if (exponentials) {
      sum = LogSumExp(first, count, stride);
    } else {
      for (std::size_t i = 0; i < count; ++i) sum += first[i * stride];
    }
    if (!(std::abs(sum - value) <= tolerance)) return false;
  }
  return lines > 0;
}

class LossInputContract final : public KeptRule {
 public:
  explicit LossInputContract(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    modules_.OnStep(view);
    makers_.OnStep(view);
    Signs(view, sink);
    Exchanged(view, sink);
    Ctc(view, sink);
    const std::vector<LossCall>& calls = reader_.Read(view);
    one_class_ = std::all_of(calls.begin(), calls.end(), HasOneClass);
    for (const LossCall& call : calls) {
      if (kinds_.size() >= LossReader::kMaxKinds && !kinds_.contains(call.key)) continue;
      // What stands in the place of the output says nothing of it.
      if (const auto at = exchanged_.find(call.key); at != exchanged_.end() && at->second.since >= 0)
        continue;
      Kind& kind = kinds_[call.key];
      if (kind.clean >= kClean && kind.outside) continue;
      const Recognition found = reader_.Recognise(call);
      const Breach breach = BreachOf(call, found, &kind);
      if (breach.cause == nullptr) {
        ++kind.clean;
        kind.hits = 0;
        continue;
      }
      if (kind.cause != breach.cause) kind.hits = 0;
      kind.cause = breach.cause;
      if (kind.hits++ == 0) kind.since = view.rows.info.mode_step;
      if (breach.cause == kBounded.cause && !Stays(makers_.BoundOf(call), view, &kind)) continue;
      if (breach.what == kDeadClasses.what && view.rows.info.mode_step < kDeadSteps) continue;
      if (kind.hits >= limits_.calls) Tell(view, call, found, breach, kind, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("kinds", kinds_, LossReader::kMaxKinds);
    io("reader", reader_);
    io("makers", makers_);
    io("signs", signs_, LossReader::kMaxKinds);
    io("exchanged", exchanged_, LossReader::kMaxKinds);
    io("ctc", ctc_, LossReader::kMaxKinds);
  }

 private:
  struct Sign {
    std::string kind;
    std::int64_t since = -1, steps = 0;  // since: -1 where the targets are as they should be
    bool meant = false, told = false;
    void VisitFields(Fields& io) {
      io("kind", kind);
      io("since", since);
      io("steps", steps);
      io("meant", meant);
      io("told", told);
    }
  };
  struct Broken {  // by CTC loss
    bool told = false;
    std::int64_t since = -1, looks = 0;  // in a row, the first at step `since`
    void VisitFields(Fields& io) {
      io("told", told);
      io("since", since);
      io("looks", looks);
    }
  };
  struct Kind {
    std::int64_t clean = 0, hits = 0, since = -1;
    std::string cause;
    bool outside = false;  // a value was outside of [0, 1]: no sigmoid precedes this loss
    std::int64_t squashed_calls = 0, squashed_values = 0;
    double low = 1, high = 0;
    double bound = -1;  // of scores, from step `bound_since` on
    std::int64_t bound_since = -1;
    std::vector<std::int64_t> own_rows;  // of each class, since its score was last not the least
    bool several = false;                // a call had more than one column: how many there are varies
    void VisitFields(Fields& io) {
      io("several", several);
      io("own_rows", own_rows, kMaxClasses);
      io("bound", bound);
      io("bound_since", bound_since);
      io("clean", clean);
      io("hits", hits);
      io("since", since);
      io("cause", cause);
      io("outside", outside);
      io("squashed_calls", squashed_calls);
      io("squashed_values", squashed_values);
      io("low", low);
      io("high", high);
    }
  };

  // Labels in the place of answers, and the reverse, as the event `loss_exchanged` tells. Told at once: the
  // first update may make the weights NaN.
  void Exchanged(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("loss_exchanged")) {
      const auto loss = event->find("loss");
      const double call = NumberIn(*event, "call");
      if (!(call >= 0 && call < 64) || loss == event->end() || !loss->is_string()) continue;
      const std::string kind = loss->get<std::string>();
      const std::string key = KeyOfCall(kind, static_cast<std::size_t>(call));
      if (exchanged_.size() >= LossReader::kMaxKinds && !exchanged_.contains(key)) continue;
      Sign& sign = exchanged_[key];
      const bool wrong = FlagIn(*event, "exchanged");
      if (!wrong && sign.told) sink.Heal("arguments_exchanged", kind, view.rows.info.mode_step);
      sign = {.kind = kind, .since = wrong ? view.rows.info.mode_step : -1, .told = wrong};
      if (!wrong) continue;
      Finding finding = FindingAt(kName, "arguments_exchanged", view, TensorAt{format::kNoId});
      finding.tensor = sign.kind;
      finding.since_step = sign.since;
      finding.what = fmt::format("{} gets its arguments in the other order", sign.kind);
      finding.why =
          "the first, where answers are expected, holds only zeros and ones and has no gradient; the second, "
          "the "
          "target, is what the model has computed: the loss is another function, which the right answer does "
          "not make small";
      finding.remedy = "swap them: the output of the model first, then the labels";
      finding.causes = {"arguments in the wrong order"};
      finding.threshold = "a fact of the call (Luff)";
      sink.Report(std::move(finding));
    }
  }

  // Targets of 0 and 1 for a loss that takes -1 and 1, as the event `loss_target` tells.
  void Signs(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("loss_target")) {
      const auto loss = event->find("loss");
      const auto values = event->find("values");
      const double call = NumberIn(*event, "call");
      if (!(call >= 0 && call < 64) || loss == event->end() || !loss->is_string() || values == event->end())
        continue;
      const std::string kind = loss->get<std::string>();
      const std::string key = KeyOfCall(kind, static_cast<std::size_t>(call));
      if (signs_.size() >= LossReader::kMaxKinds && !signs_.contains(key)) continue;
      Sign& sign = signs_[key];
      const bool wrong = *values == "zeros_and_ones";
      if (!wrong && sign.told) sink.Heal("targets_of_zero", kind, view.rows.info.mode_step);
      // A target that was -1 once shows that 0 is meant.
      sign = {.kind = kind, .since = wrong && !sign.meant ? view.rows.info.mode_step : -1, .meant = !wrong};
    }
    for (auto& [key, sign] : signs_) {
      if (sign.since < 0 || sign.told || ++sign.steps < limits_.calls) continue;
      sign.told = true;
      Finding finding = FindingAt(kName, "targets_of_zero", view, TensorAt{format::kNoId});
      finding.tensor = sign.kind;
      finding.since_step = sign.since;
      finding.what = fmt::format("{} gets targets of 0 and 1 where it needs -1 and 1", sign.kind);
      finding.why = sign.kind == "HingeEmbeddingLoss"
                        ? "a row with the target 0 is pulled together and pushed apart at once"
                        : "a row with the target 0 adds nothing that depends on the outputs: what it should "
                          "teach, that "
                          "two are unlike or that an answer is no, is never learnt";
      finding.remedy = "give it targets of -1 and 1: 2 * y - 1";
      finding.causes = {"labels of 0 and 1"};
      finding.evidence = {{"calls", sign.steps}};
      finding.threshold = fmt::format("{} steps in a row (Luff)", limits_.calls);
      sink.Report(std::move(finding));
    }
  }

  // What the event `loss_ctc` tells, which is written at each look that breaks something, and at the first
  // one after it that does not.
  void Ctc(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("loss_ctc")) {
      const auto breaks = event->find("breaks");
      const double call = NumberIn(*event, "call");
      if (!(call >= 0 && call < 64) || breaks == event->end() || !breaks->is_array() || breaks->size() > 4)
        continue;
      const std::string place = fmt::format("{:.0f} ", call);
      std::set<std::string> now;
      for (const auto& word : *breaks) {
        if (word.is_string() && CtcBreach(word.get<std::string>()).cause != nullptr)
          now.insert(place + word.get<std::string>());
      }
      for (auto& [key, broken] : ctc_) {
        if (key.starts_with(place) && !now.contains(key)) broken.looks = 0;
      }
      for (const std::string& key : now) {
        if (ctc_.size() >= LossReader::kMaxKinds && !ctc_.contains(key)) continue;
        Broken& broken = ctc_[key];
        if (broken.looks++ == 0) broken.since = view.rows.info.mode_step;
      }
    }
    for (auto& [key, broken] : ctc_) {
      if (broken.told || broken.looks < (broken.since < kLooked ? limits_.calls : 2)) continue;
      broken.told = true;
      const Breach breach = CtcBreach(std::string_view(key).substr(key.find(' ') + 1));
      Finding finding = FindingAt(kName, breach.cause, view, TensorAt{format::kNoId});
      finding.tensor = "CTCLoss";
      finding.severity = breach.stop ? Severity::kStop : Severity::kWarn;
      finding.since_step = broken.since;
      finding.what = fmt::format("CTCLoss {}", breach.what);
      finding.why = breach.why;
      finding.remedy = breach.remedy;
      finding.causes = {breach.what};
      finding.evidence = {{"calls", broken.looks}};
      finding.threshold = fmt::format("{} looks in a row (Luff)", broken.looks);
      sink.Report(std::move(finding));
    }
  }

  Breach BreachOf(const LossCall& call, const Recognition& found, Kind* kind) const {
    const double tolerance = Tolerance(call.output.dtype);
    std::vector<double> const& values = call.output.values;
    const bool finite = std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
    if (!finite || values.empty()) return {};
    const bool named = FormulaOfKind(call.kind) != Formula::kUnknown;
    if (const Breach twice = Twice(call, found.formula); twice.cause != nullptr) return twice;
    const bool classes = found.formula == Formula::kCrossEntropy || TakesProbabilities(call.kind);
    if (classes && call.output.shape.size() == 2 && call.output.shape[1] > 1) kind->several = true;
    if (one_class_ && !kind->several) return kOneClass;
    if (classes && (makers_.Of(call) == kPooled || makers_.BehindOf(call) == kPooled) &&
        LeavesClassesOut(call, kind))
      return kDeadClasses;
    const bool two_axes = call.whole() && call.output.shape.size() == 2;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    switch (found.formula) {
      case Formula::kCrossEntropy: {
        const ClassRows rows = RowsOf(call);
        if (rows.rows == 0) return {};
        if (*low >= 0 && AllSumsAre(rows, true, false, 1, tolerance)) return kSoftmaxFirst;
        if (call.settings.label_smoothing > kSmoothing) return kSmoothedAway;
        if (two_axes && rows.rows > 2 && rows.rows != rows.classes &&
            ((*low >= 0 && AllSumsAre(rows, false, false, 1, tolerance)) ||
             AllSumsAre(rows, false, true, 0, tolerance)))
          return kBatchAxis;
        if (NamesAnswers(call) && LeavesMost(rows, makers_.BoundOf(call))) return kBounded;
        return Limited(call, found.formula, *low, *high, values.size(), kind);
      }
      case Formula::kNll: {
        if (TakesProbabilities(call.kind)) {  // the values are logarithms unless one lay below 0
          // Positive numbers of any size are right: Keras divides them by their sum.
          if (*low < -kBeyondShares && *high > 0) return kLogitsIntoShares;
          if (makers_.Of(call) == "sigmoid" && call.output.shape.back() > 1) return kSigmoidIntoShares;
          return makers_.Of(call) == "relu" ? kReluIntoShares : Breach();
        }
        const ClassRows rows = RowsOf(call);
        if (rows.rows == 0 || AllSumsAre(rows, true, true, 0, 10 * tolerance)) return {};
        if (two_axes && rows.rows > 2 &&
            (AllSumsAre(rows, false, true, 0, 10 * tolerance) ||
             (*low >= 0 && AllSumsAre(rows, false, false, 1, tolerance))))
          return kBatchAxis;
        if (*low >= 0 && AllSumsAre(rows, true, false, 1, tolerance)) return kSharesIntoNll;
        if (named && *high > 0.01) return kLogitsIntoNll;
        return {};
      }
      case Formula::kBceWithLogits: return Limited(call, found.formula, *low, *high, values.size(), kind);
      case Formula::kBce:
        if (IsOne(call, *low, *high) && TailOf(modules_).type == "Softmax") return kSoftmaxOfOne;
        if (named && makers_.Of(call) == "relu") return kReluIntoShares;
        return *low < 0 || *high > 1 ? kLogitsIntoBce : Breach();
      case Formula::kKlDivergence:
        if (!named) return {};
        // Swapped arguments make the weights NaN with the first update.
        if (kind->cause == kSwappedKl.cause &&
            std::isnan(call.target.values.empty() ? 0 : call.target.values[0]))
          return kSwappedKl;
        return OfDivergence(call, *low, *high, tolerance);
      default:
        if (!IsRegression(found.formula)) return {};
        if (IsOne(call, *low, *high) && makers_.Of(call) == "softmax") return kSoftmaxOfOne;
        return IsDropped(call) ? kDroppedNumbers : Breach();
    }
  }

  // Whether a loss gets one score for each row, and all of them are 1.
  static bool IsOne(const LossCall& call, double low, double high) {
    return low == 1 && high == 1 && !call.output.shape.empty() && call.output.shape.back() == 1;
  }

  // Whether a loss of classes gets one column, for more than one row. Where others of the step have more, or
  // others of the call, it may be right: what is left last of a list, a list of one, one of several heads.
  static bool HasOneClass(const LossCall& call) {
    const std::vector<std::int64_t>& shape = call.output.shape;
    return (FormulaOfKind(call.kind) == Formula::kCrossEntropy || TakesProbabilities(call.kind)) &&
           shape.size() == 2 && shape[0] > 1 && shape[1] == 1;
  }

  // Takes in the rows of a call. Whether some class has the least score of each row lately, also of many that
  // are its own: what is pooled from a ReLU is 0 there.
  static bool LeavesClassesOut(const LossCall& call, Kind* kind) {
    constexpr double kSame = 1e-5;
    constexpr double kCut = -15;  // the logarithm of what Keras cuts shares off at is -16.1
    const std::optional<ClassRows> rows = ClassRowsOf(call);
    if (!rows || rows->classes < 3 || rows->classes > kMaxClasses) return false;
    if (kind->own_rows.size() != rows->classes) kind->own_rows.assign(rows->classes, 0);
    for (std::size_t row = 0; row < rows->rows; ++row) {
      const double* at = &rows->scores[row * rows->classes];
      const double low = *std::min_element(at, at + rows->classes);
      if (TakesProbabilities(call.kind) && low < kCut) continue;
      for (std::size_t c = 0; c < rows->classes; ++c) {
        std::int64_t& own = kind->own_rows[c];
        const bool least = at[c] - low <= kSame * std::max(1.0, std::abs(low));
        own = !least ? 0 : own + (rows->ids[row] == static_cast<double>(c) ? 1 : 0);
      }
    }
    return std::any_of(kind->own_rows.begin(), kind->own_rows.end(),
                       [](std::int64_t own) { return own >= kDeadRows; });
  }

  // Whether each target names an answer: a class, or a yes or no. Shares of a teacher, or of relevances, may
  // be as near to even as what is limited.
  static bool NamesAnswers(const LossCall& call) {
    const std::vector<double>& targets = call.target.values;
    return !targets.empty() &&
           (IsIds(call.target.dtype) ||
            std::all_of(targets.begin(), targets.end(), [](double v) { return v == 0 || v == 1; }));
  }

  // A softmax or sigmoid of what another one, or an activation, has limited. The graph says so. Where the
  // loss has a softmax of its own, the others are one too many already: BreachOf and Limited.
  Breach Twice(const LossCall& call, Formula formula) const {
    const std::string maker = makers_.Of(call), behind = makers_.BehindOf(call);
    const bool of_scores = formula == Formula::kCrossEntropy || formula == Formula::kBceWithLogits;
    const bool of_shares =
        formula == Formula::kNll || formula == Formula::kBce || formula == Formula::kKlDivergence;
    if (formula == Formula::kUnknown || (of_scores && maker != "log_softmax") ||
        (maker != "softmax" && maker != "sigmoid" && maker != "log_softmax") || !NamesAnswers(call))
      return {};
    if (behind == "dropout") return kDropped;
    if (behind == "softmax" || behind == "sigmoid") return kSquashedTwice;
    return IsActivation(behind) && (of_shares || of_scores) ? kLimitedFirst : Breach();
  }
  static bool IsActivation(const std::string& made_by) {
    return made_by == "relu" || made_by == "tanh" || made_by == "gelu" || made_by == "silu" ||
           made_by == "softplus" || made_by == "clamp";
  }

  static Breach OfDivergence(const LossCall& call, double low, double high, double tolerance) {
    const auto rows_of = [](const SampleValues& values) {
      ClassRows rows;
      if (values.shape.empty() || values.shape.back() < 2 || values.shape.back() > 1'000'000) return rows;
      rows.classes = static_cast<std::size_t>(values.shape.back());
      rows.rows = values.values.size() / rows.classes;
      rows.scores = values.values;
      return rows;
    };
    const auto shares = [&](const ClassRows& rows) {
      return rows.rows > 0 && AllSumsAre(rows, true, false, 1, tolerance) &&
             std::all_of(rows.scores.begin(), rows.scores.end(), [](double v) { return v >= 0; });
    };
    const auto logarithms = [&](const ClassRows& rows) {
      return rows.rows > 0 && AllSumsAre(rows, true, true, 0, 10 * tolerance);
    };
    const ClassRows first = rows_of(call.output);
    const ClassRows second = rows_of(call.target);
    if (shares(first) && logarithms(second)) return kSwappedKl;
    if (high > 0.01) return kSharesIntoKl;
    if (call.settings.log_target && shares(second)) return kKlTarget;
    const bool square = first.rows == first.classes;
    if (call.whole() && call.output.shape.size() == 2 && first.rows > 2 && !square && low < 0 &&
        !logarithms(first) && AllSumsAre(first, false, true, 0, 10 * tolerance))
      return kBatchAxis;
    return {};
  }

  // Whether the bound of scores is the same for kStays steps: a temperature may be lowered.
  static bool Stays(double bound, const StepView& view, Kind* kind) {
    if (!(std::abs(bound - kind->bound) <= 0.02 * bound)) {
      kind->bound = bound;
      kind->bound_since = view.rows.info.mode_step;
    }
    return view.rows.info.mode_step - kind->bound_since > kStays;
  }

  // Whether the module that was registered last is a dropout, and has worked on the output last.
  bool IsDropped(const LossCall& call) const {
    return makers_.Of(call).empty() && TailOf(modules_).type.starts_with("Dropout") &&
           Dropped(call.output, modules_.modules().back().Number("p").value_or(0)) &&
           !AreMasked(call.output, call.target);
  }

  // What the graph says is a fact; without it, the values must tell.
  Breach Limited(const LossCall& call, Formula formula, double low, double high, std::size_t count,
                 Kind* kind) const {
    const std::string maker = makers_.Of(call);
    if (IsDropped(call)) return kDropped;
    if (formula == Formula::kCrossEntropy && !NamesAnswers(call)) return {};
    if (maker == "sigmoid" || maker == "softmax") return kSigmoidFirst;
    if (IsActivation(maker)) return kActivationFirst;
    return Squashed(low, high, count, kind) ? kSigmoidFirst : Breach();
  }

  // Logits of a young model may lie in [0, 1] for a while. So either the model's last module must squash
  // (with some batches as well, if it was only registered last), or many batches must spread over the
  // interval and never leave it. A zero is no sigmoid's, but a ReLU's.
  bool Squashed(double low, double high, std::size_t count, Kind* kind) const {
    const ModelTail last = TailOf(modules_);
    const bool squashes = last.type == "Sigmoid" || last.type == "Softmax" || last.type == "Hardsigmoid";
    if (low < 0 || high > 1 || (low == 0 && !squashes)) kind->outside = true;
    if (kind->outside) return false;
    ++kind->squashed_calls;
    kind->squashed_values += static_cast<std::int64_t>(count);
    kind->low = std::min(kind->low, low);
    kind->high = std::max(kind->high, high);
    if (squashes) {
      if (last.certain) return true;
      if (kind->squashed_calls >= limits_.squashed_calls / 2 &&
          kind->squashed_values >= limits_.squashed_values / 4)
        return true;
    }
    return kind->squashed_calls >= limits_.squashed_calls &&
           kind->squashed_values >= limits_.squashed_values && kind->low < 0.2 && kind->high > 0.8;
  }

  static ClassRows RowsOf(const LossCall& call) {
    if (std::optional<ClassRows> rows = ClassRowsOf(call)) return std::move(*rows);
    ClassRows rows;  // the target holds shares
    if (call.output.shape.size() != 2 || call.output.shape[1] < 2) return rows;
    rows.classes = static_cast<std::size_t>(call.output.shape[1]);
    rows.rows = call.output.values.size() / rows.classes;
    rows.scores = call.output.values;
    return rows;
  }

  void Tell(const StepView& view, const LossCall& call, const Recognition& found, const Breach& breach,
            const Kind& kind, Sink& sink) const {
    Finding finding = FindingAt(kName, breach.cause, view, TensorAt{call.loss, call.worker});
    const auto [low, high] = std::minmax_element(call.output.values.begin(), call.output.values.end());
    finding.severity = breach.stop ? Severity::kStop : Severity::kWarn;
    finding.since_step = kind.since;
    finding.what = fmt::format("{} {}", call.kind, breach.what);
    const std::string maker = makers_.Of(call);
    finding.why = fmt::format(
        "the loss is the {}{}{}; {}", FormulaName(found.formula),
        found.by_value ? " (its value says so)" : "",
        maker.empty() ? std::string()
                      : fmt::format(", of what {} gives", maker == kPooled ? "a pooled ReLU" : maker),
        breach.why);
    finding.remedy = breach.remedy;
    finding.causes = {breach.what};
    finding.evidence = {{"calls", kind.hits}, {"lowest_input", *low}, {"highest_input", *high}};
    if (call.value) finding.evidence.emplace_back("loss", *call.value);
    finding.threshold = fmt::format("{} calls in a row (Luff)", limits_.calls);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  LossReader reader_;
  ModelModules modules_;  // read from the run, not saved
  LossInputMakers makers_;
  bool one_class_ = false;                         // all losses of this step get one column; not saved
  std::map<std::string, Kind> kinds_;              // by key of the call
  std::map<std::string, Sign> signs_, exchanged_;  // likewise
  std::map<std::string, Broken> ctc_;              // by place of the call and word of the event
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LossInputContract>(kName, kParams);
  // 2: each call of a step by itself, "activation_before_scores"; 3: "smoothed_away"; 4: "targets_of_zero",
  // more of divergences; 5: "dropout_before_scores"; 6: CTC, "squashed_twice"; 7: no limits of soft targets;
  // 8: Keras' losses of probabilities, "arguments_exchanged", "bounded_scores", dropped numbers;
  // 9: "relu_into_probabilities", and what Keras' graph says; 10: "sigmoid_into_categorical", "one_class",
  // classes that a pooled ReLU silences; 11: "softmax_of_one" of regressions
  spec.version = 12;
  spec.summary =
      "a loss that is given something else than it needs: probabilities for scores, or the reverse";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::loss_input_contract
