#include "rules/facts/loss_call.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/format.h"
#include "rules/facts/step_memo.h"

namespace luff::rules {
namespace {

using format::Role;
constexpr std::size_t kMaxTerms = 1 << 20;

double Softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

// Relative error that arithmetic in this type leaves in a mean.
double ToleranceOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 2e-6;  // the loss may still be a float32
    case DType::kFloat16: return 3e-3;
    case DType::kBFloat16: return 2e-2;
    default: return 2e-5;
  }
}

// The terms of a loss, with the sums that its reductions need.
struct Terms {
  std::vector<double> each;
  double sum = 0, magnitude = 0;
  void Add(double term) {
    each.push_back(term);
    sum += term;
    magnitude += std::abs(term);
  }
};

bool Fits(const Terms& terms, const LossCall& call, double absolute, bool halves = false) {
  if (!call.value || !std::isfinite(*call.value) || terms.each.empty() || !std::isfinite(terms.sum))
    return false;
  const double count = static_cast<double>(terms.each.size());
  const double rows = call.output.shape.empty() ? 1 : static_cast<double>(call.output.shape[0]);
  for (const double divisor : {count, 1.0, rows, 2 * count, 2 * rows}) {
    if (divisor > count && !halves) continue;
    const double tolerance =
        ToleranceOf(call.output.dtype) * (terms.magnitude / divisor + std::abs(*call.value)) + absolute;
    if (std::abs(terms.sum / divisor - *call.value) <= tolerance) return true;
  }
  return false;
}

// Terms of regression losses, elementwise or over all pairs of two broadcast vectors.
Terms DistanceTerms(const LossCall& call, Formula formula, bool broadcast) {
  const double delta = call.settings.delta > 0 ? call.settings.delta : 1;
  const auto distance = [&](double a, double b) {
    const double d = std::abs(a - b);
    switch (formula) {
      case Formula::kL1: return d;
      case Formula::kSmoothL1: return d < delta ? 0.5 * d * d / delta : d - 0.5 * delta;
      case Formula::kHuber: return d < delta ? 0.5 * d * d : delta * (d - 0.5 * delta);
      default: return d * d;
    }
  };
  Terms terms;
  const std::vector<double>& a = call.output.values;
  const std::vector<double>& b = call.target.values;
  if (!broadcast) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) terms.Add(distance(a[i], b[i]));
    return terms;
  }
  if (a.size() * b.size() > kMaxTerms) return terms;
  for (const double left : a) {
    for (const double right : b) terms.Add(distance(left, right));
  }
  return terms;
}

Terms ClassTerms(const ClassRows& rows, const LossCall& call, bool logits) {
  Terms terms;
  const double smoothing = logits ? call.settings.label_smoothing : 0;
  for (std::size_t i = 0; i < rows.rows; ++i) {
    if (rows.ids[i] == call.settings.ignore_index) continue;
    const auto id = static_cast<std::size_t>(std::max(rows.ids[i], 0.0));
    if (rows.ids[i] < 0 || id >= rows.classes) return {};
    const double* row = &rows.scores[i * rows.classes];
    const double norm = logits ? LogSumExp(row, rows.classes) : 0;
    double term = (1 - smoothing) * (norm - row[id]);
    if (smoothing > 0) {
      double all = 0;
      for (std::size_t c = 0; c < rows.classes; ++c) all += norm - row[c];
      term += smoothing * all / static_cast<double>(rows.classes);
    }
    terms.Add(term);
  }
  return terms;
}

// Cross entropy with class probabilities as the target; both are (N, C).
Terms ShareTerms(const LossCall& call) {
  Terms terms;
  if (call.output.shape.size() != 2 || call.output.shape != call.target.shape) return terms;
  const auto classes = static_cast<std::size_t>(call.output.shape[1]);
  if (classes < 2) return terms;
  const double smoothing = call.settings.label_smoothing;
  for (std::size_t at = 0; at + classes <= call.output.values.size(); at += classes) {
    const double norm = LogSumExp(&call.output.values[at], classes);
    double term = 0;
    double total = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      const double share =
          (1 - smoothing) * call.target.values[at + c] + smoothing / static_cast<double>(classes);
      total += call.target.values[at + c];
      term += share * (norm - call.output.values[at + c]);
    }
    if (std::abs(total - 1) > 1e-3) return {};
    terms.Add(term);
  }
  return terms;
}

Terms BinaryTerms(const ScoreRows& rows, bool logits, double pos_weight) {
  Terms terms;
  for (std::size_t i = 0; i < rows.scores.size(); ++i) {
    const double s = rows.scores[i];
    const double y = rows.targets[i];
    if (!logits && (s < 0 || s > 1)) return {};
    const double positive = logits ? Softplus(-s) : -std::max(std::log(s), -100.0);
    const double negative = logits ? Softplus(s) : -std::max(std::log1p(-s), -100.0);
    terms.Add(pos_weight * y * positive + (1 - y) * negative);
  }
  return terms;
}

Terms KlTerms(const LossCall& call) {
  Terms terms;
  if (call.output.shape != call.target.shape) return terms;
  for (std::size_t i = 0; i < call.output.values.size(); ++i) {
    const double t = call.target.values[i];
    const double x = call.output.values[i];
    terms.Add(call.settings.log_target ? std::exp(t) * (t - x) : t > 0 ? t * (std::log(t) - x) : 0);
  }
  return terms;
}

bool HasTwoClasses(const ClassRows& rows) {
  return std::any_of(rows.ids.begin(), rows.ids.end(), [&](double id) { return id != rows.ids.front(); });
}

Terms TermsOf(const LossCall& call, Formula formula, const std::optional<ClassRows>& classes,
              const std::optional<ScoreRows>& scores) {
  switch (formula) {
    case Formula::kCrossEntropy: return classes ? ClassTerms(*classes, call, true) : ShareTerms(call);
    case Formula::kNll: return classes ? ClassTerms(*classes, call, false) : Terms();
    case Formula::kBceWithLogits: return scores ? BinaryTerms(*scores, true, 1) : Terms();
    case Formula::kBce: return scores ? BinaryTerms(*scores, false, 1) : Terms();
    case Formula::kKlDivergence: return KlTerms(call);
    case Formula::kUnknown: return {};
    default: return DistanceTerms(call, formula, !scores.has_value());
  }
}

// Makes ids of rows that are 1 at one class and 0 at all others, and of whole numbers that are stored as
// floats.
void TargetsToIds(std::size_t classes, std::size_t rank, SampleValues* target) {
  if (!target->is_float() || target->values.empty() || target->shape.empty()) return;
  std::vector<double> ids;
  if (target->shape.size() == rank && target->shape.back() == static_cast<std::int64_t>(classes)) {
    if (target->whole_shape.size() != rank) return;
    for (std::size_t row = 0; row + classes <= target->values.size(); row += classes) {
      double id = -1;
      for (std::size_t c = 0; c < classes; ++c) {
        const double share = target->values[row + c];
        if (share == 0) continue;
        if (share != 1 || id >= 0) return;  // shares, or several classes
        id = static_cast<double>(c);
      }
      if (id < 0) return;
      ids.push_back(id);
    }
    target->shape.pop_back();
    target->whole_shape.pop_back();
  } else {
    for (const double id : target->values) {
      if (!(id >= 0 && id < static_cast<double>(classes)) || id != std::floor(id)) return;
    }
    ids = target->values;
  }
  target->values = std::move(ids);
  target->dtype = DType::kInt64;
}

}  // namespace

std::size_t ElementsOf(const std::vector<std::int64_t>& shape) noexcept {
  std::size_t elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<std::size_t>(std::max<std::int64_t>(size, 0));
  return elements;
}

std::string KeyOfCall(const std::string& kind, std::size_t n) {
  return n == 0 ? kind : fmt::format("{} {}", kind, n);
}

double LogSumExp(const double* row, std::size_t count, std::size_t stride) noexcept {
  double top = -HUGE_VAL;
  for (std::size_t i = 0; i < count; ++i) top = std::max(top, row[i * stride]);
  if (!std::isfinite(top)) return top;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(row[i * stride] - top);
  return top + std::log(sum);
}

std::optional<std::vector<std::int64_t>> BroadcastShape(const std::vector<std::int64_t>& a,
                                                        const std::vector<std::int64_t>& b) {
  std::vector<std::int64_t> shape(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::int64_t left = i < a.size() ? a[a.size() - 1 - i] : 1;
    const std::int64_t right = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (left != right && left != 1 && right != 1) return std::nullopt;
    shape[shape.size() - 1 - i] = left == 1 ? right : left;
  }
  return shape;
}

bool AreShares(const std::vector<double>& targets) {
  return std::all_of(targets.begin(), targets.end(), [](double y) { return y >= 0 && y <= 1; });
}

std::optional<ScoreRows> ScoreRowsOf(const LossCall& call) {
  const std::size_t count = call.output.values.size();
  if (count == 0 || count != call.target.values.size()) return std::nullopt;
  // A user's own loss may squeeze. A loss of torch broadcasts, which LossShapeMismatch reports.
  if (call.output.shape != call.target.shape && FormulaOfKind(call.kind) != Formula::kUnknown)
    return std::nullopt;
  return ScoreRows{call.output.values, call.target.values};
}

bool CountAnswers(const LossCall& call, double* rows, double* right) {
  if (!call.whole()) return false;
  if (const auto classes = ClassRowsOf(call)) {
    for (std::size_t i = 0; i < classes->rows; ++i) {
      if (classes->ids[i] < 0) continue;
      const auto begin = classes->scores.begin() + static_cast<std::ptrdiff_t>(i * classes->classes);
      const auto best = std::max_element(begin, begin + static_cast<std::ptrdiff_t>(classes->classes));
      *rows += 1;
      *right += static_cast<double>(best - begin) == classes->ids[i] ? 1 : 0;
    }
    return true;
  }
  const Formula formula = FormulaOfKind(call.kind);
  const auto scores = ScoreRowsOf(call);
  if (!scores || (formula != Formula::kBce && formula != Formula::kBceWithLogits)) return false;
  const double border = formula == Formula::kBce ? 0.5 : 0;
  for (std::size_t i = 0; i < scores->scores.size(); ++i) {
    *rows += 1;
    *right += (scores->scores[i] > border) == (scores->targets[i] > 0.5) ? 1 : 0;
  }
  return true;
}

std::optional<ClassRows> ClassRowsOf(const LossCall& call) {
  const SampleValues& output = call.output;
  const SampleValues& target = call.target;
  if (target.is_float() || IsComplex(target.dtype) || !output.is_float() || target.values.empty())
    return std::nullopt;
  ClassRows rows;
  const std::vector<std::int64_t>& shape = output.shape;
  const std::size_t count = target.values.size();
  if (shape.empty() || output.values.size() <= count) return std::nullopt;
  // (N, C, d...) with (N, d...)
  std::vector<std::int64_t> without = shape;
  if (shape.size() >= 2) without.erase(without.begin() + 1);
  if (shape.size() >= 3 && without == target.shape) {
    rows.classes = static_cast<std::size_t>(shape[1]);
    rows.rows = count;
    if (rows.classes < 2) return std::nullopt;
    rows.ids = target.values;
    rows.scores.resize(output.values.size());
    const std::size_t inner = count / static_cast<std::size_t>(shape[0]);
    for (std::size_t n = 0; n < static_cast<std::size_t>(shape[0]); ++n) {
      for (std::size_t c = 0; c < rows.classes; ++c) {
        for (std::size_t d = 0; d < inner; ++d) {
          rows.scores[(n * inner + d) * rows.classes + c] = output.values[(n * rows.classes + c) * inner + d];
        }
      }
    }
    return rows;
  }
  rows.classes = static_cast<std::size_t>(shape.back());
  if (rows.classes < 2) return std::nullopt;
  rows.rows = output.values.size() / rows.classes;
  // Expects one target for each row of scores. If samples were cut, takes as many rows as both have.
  if (rows.rows != count) {
    if (call.whole() || ElementsOf(output.whole_shape) / rows.classes != ElementsOf(target.whole_shape))
      return std::nullopt;
    rows.rows = std::min(rows.rows, count);
  }
  rows.ids.assign(target.values.begin(), target.values.begin() + static_cast<std::ptrdiff_t>(rows.rows));
  rows.scores.assign(output.values.begin(),
                     output.values.begin() + static_cast<std::ptrdiff_t>(rows.rows * rows.classes));
  return rows;
}

bool NamesPartners(const LossCall& call) {
  constexpr std::size_t kLeast = 3;  // fewer rows say nothing
  const auto& scores = call.output.whole_shape;
  const std::vector<double>& ids = call.target.values;
  if (call.target.is_float() || scores.size() != 2 || call.target.whole_shape != std::vector{scores[0]} ||
      ids.size() < kLeast)
    return false;
  bool counts_up = true;
  for (std::size_t i = 1; i < ids.size(); ++i) counts_up = counts_up && ids[i] == ids[i - 1] + 1;
  if (scores[0] != scores[1]) return counts_up;
  return std::set<double>(ids.begin(), ids.end()).size() == ids.size();
}

std::string_view FormulaName(Formula formula) noexcept {
  switch (formula) {
    case Formula::kCrossEntropy: return "cross entropy of logits";
    case Formula::kNll: return "negative log-likelihood of log-probabilities";
    case Formula::kBceWithLogits: return "binary cross entropy of logits";
    case Formula::kBce: return "binary cross entropy of probabilities";
    case Formula::kMse: return "squared error";
    case Formula::kL1: return "absolute error";
    case Formula::kSmoothL1: return "smooth absolute error";
    case Formula::kHuber: return "Huber's error";
    case Formula::kKlDivergence: return "Kullback-Leibler divergence";
    default: return "unknown";
  }
}

bool IsRegression(Formula formula) noexcept {
  return formula == Formula::kMse || formula == Formula::kL1 || formula == Formula::kSmoothL1 ||
         formula == Formula::kHuber;
}

bool TakesProbabilities(std::string_view kind) noexcept {
  return kind == "SparseCategoricalCrossentropy" || kind == "CategoricalCrossentropy";
}

void TakeLogarithms(LossCall* call) {
  constexpr double kLeast = 1e-7;  // Keras' epsilon
  if (!TakesProbabilities(call->kind) || !call->output.is_float() || call->output.shape.size() < 2) return;
  const auto classes = static_cast<std::size_t>(std::max<std::int64_t>(call->output.shape.back(), 0));
  std::vector<double>& scores = call->output.values;
  if (classes < 2 || scores.size() % classes != 0) return;
  TargetsToIds(classes, call->output.shape.size(), &call->target);
  if (!std::all_of(scores.begin(), scores.end(), [](double v) { return v >= 0; })) return;
  for (std::size_t row = 0; row < scores.size(); row += classes) {
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += scores[row + c];
    for (std::size_t c = 0; c < classes; ++c)
      scores[row + c] = std::log(std::max(scores[row + c] / std::max(sum, kLeast), kLeast));
  }
}

void AlignRanks(LossCall* call) {
  if (FormulaOfKind(call->kind) == Formula::kUnknown) return;  // a class of the user's own does as it likes
  const auto align = [](SampleValues* longer, SampleValues* shorter) {
    if (longer->shape.size() != shorter->shape.size() + 1 || longer->shape.back() != 1) return;
    if (longer->whole_shape.size() != longer->shape.size() ||
        shorter->whole_shape.size() != shorter->shape.size())
      return;
    if (shorter->shape.size() == 1) {
      shorter->shape = {shorter->shape.front(), 1};
      shorter->whole_shape = {shorter->whole_shape.front(), 1};
    } else {
      longer->shape.pop_back();
      longer->whole_shape.pop_back();
    }
  };
  align(&call->output, &call->target);
  align(&call->target, &call->output);
}

Formula FormulaOfKind(std::string_view kind) noexcept {
  if (kind == "CrossEntropyLoss") return Formula::kCrossEntropy;
  if (kind == "NLLLoss" || TakesProbabilities(kind)) return Formula::kNll;
  if (kind == "BCEWithLogitsLoss") return Formula::kBceWithLogits;
  if (kind == "BCELoss") return Formula::kBce;
  if (kind == "MSELoss") return Formula::kMse;
  if (kind == "L1Loss") return Formula::kL1;
  if (kind == "SmoothL1Loss") return Formula::kSmoothL1;
  if (kind == "HuberLoss") return Formula::kHuber;
  if (kind == "KLDivLoss") return Formula::kKlDivergence;
  return Formula::kUnknown;
}

namespace {

// What the call alone reveals: everything but weights of positives, which show only over several calls.
Recognition OfCallAlone(const LossCall& call) {
  Recognition found;
  const Formula named = FormulaOfKind(call.kind);
  const std::optional<ClassRows> classes = ClassRowsOf(call);
  std::optional<ScoreRows> scores = ScoreRowsOf(call);
  const bool shares = scores && AreShares(scores->targets);
  constexpr double kAbsolute = 1e-6;  // error of logarithms near 0 in float32
  const auto fits = [&](Formula formula) {
    Terms terms = TermsOf(call, formula, classes, scores);
    if (!call.whole() || !Fits(terms, call, IsRegression(formula) ? 0 : kAbsolute, formula == Formula::kMse))
      return false;
    found.formula = formula;
    found.by_value = true;
    found.per_sample = std::move(terms.each);
    return true;
  };
  if (named != Formula::kUnknown) {
    if (!fits(named)) {
      found.formula = named;
      found.per_sample = TermsOf(call, named, classes, scores).each;
    }
  } else if (call.whole() && call.output.is_float()) {
    // If shapes differ, a user's own elementwise loss may broadcast or squeeze: the value decides.
    if (classes) {
      (void)(fits(Formula::kCrossEntropy) || fits(Formula::kNll));
    } else if (scores) {
      if (shares && !(call.output.shape.size() == 2 && fits(Formula::kCrossEntropy)))
        (void)(fits(Formula::kBceWithLogits) || fits(Formula::kBce));
      if (found.formula == Formula::kUnknown)
        (void)(fits(Formula::kMse) || fits(Formula::kL1) || fits(Formula::kSmoothL1) ||
               fits(Formula::kHuber) || fits(Formula::kKlDivergence));
    }
    if (found.formula == Formula::kUnknown && call.output.shape != call.target.shape &&
        call.output.shape.size() <= 2 && call.target.is_float()) {
      scores.reset();  // makes DistanceTerms broadcast
      found.broadcast = fits(Formula::kMse) || fits(Formula::kL1) || fits(Formula::kSmoothL1);
    }
  }
  // Weights of classes show only if the call holds more than one class.
  if (classes && (found.formula == Formula::kCrossEntropy || found.formula == Formula::kNll) &&
      call.whole() && call.value && std::isfinite(*call.value) && HasTwoClasses(*classes)) {
    found.weights = found.by_value ? Weights::kNone : Weights::kSome;
  }
  return found;
}

}  // namespace

const std::vector<LossCall>& LossReader::Read(const StepView& view) { return view.memo.LossCalls(view); }

std::shared_ptr<const SampleValues> LoadSample(const StepView& view,
                                               const query::Trial::SummaryEntry& entry) {
  return view.memo.Sample(view, entry);
}

Recognition LossReader::Recognise(const LossCall& call) {
  Recognition found = OfValue(call);
  if (!call.value) {
    Recall(call, &found);
  } else if (kinds_.size() < kMaxKinds || kinds_.contains(call.key)) {
    Kind& kind = kinds_[call.key];
    kind.by_value = found.by_value && found.formula == FormulaOfKind(call.kind);
    kind.weighted = found.weights == Weights::kSome;
  }
  return found;
}

void LossReader::Recall(const LossCall& call, Recognition* found) const {
  const auto known = kinds_.find(call.key);
  if (known == kinds_.end() || !known->second.by_value || found->formula == Formula::kUnknown) return;
  const Kind& kind = known->second;
  found->by_value = true;
  found->weights = kind.weighted ? Weights::kSome : Weights::kNone;
  if (!kind.weighted || found->formula != Formula::kBceWithLogits) return;
  const std::optional<ScoreRows> scores = ScoreRowsOf(call);
  if (!scores) return;
  found->pos_weight = kind.pos_weight;
  found->per_sample = BinaryTerms(*scores, true, kind.pos_weight).each;
}

Recognition LossReader::OfValue(const LossCall& call) {
  if (call.recognition == nullptr) call.recognition = std::make_shared<const Recognition>(OfCallAlone(call));
  Recognition found = *call.recognition;
  if (found.formula != Formula::kUnknown && found.formula != Formula::kBceWithLogits) return found;
  if (!call.whole() || !call.value || !std::isfinite(*call.value)) return found;
  const std::optional<ScoreRows> scores = ScoreRowsOf(call);
  if (!scores || !AreShares(scores->targets)) return found;
  double positive = 0;
  double negative = 0;
  for (std::size_t i = 0; i < scores->scores.size(); ++i) {
    positive += scores->targets[i] * Softplus(-scores->scores[i]);
    negative += (1 - scores->targets[i]) * Softplus(scores->scores[i]);
  }
  const double tolerance = ToleranceOf(call.output.dtype);
  if (positive <= 200 * tolerance * (positive + negative)) {
    if (const auto it = kinds_.find(call.key); it == kinds_.end() || it->second.agreed == 0) return found;
  } else if (found.by_value) {
    found.weights = Weights::kNone;
    return found;
  }
  if (kinds_.size() >= kMaxKinds && !kinds_.contains(call.key)) return found;
  Kind& kind = kinds_[call.key];
  const double count = static_cast<double>(scores->scores.size());
  if (positive > 200 * tolerance * (positive + negative)) {
    const double implied = (*call.value * count - negative) / positive;
    if (!(implied > 0)) return found;
    const double error = 20 * tolerance * (positive + negative) / positive + 1e-3;
    if (kind.pos_weight > 0 && std::abs(implied - kind.pos_weight) <= error * kind.pos_weight) {
      kind.agreed = std::min<std::int64_t>(kind.agreed + 1, 1 << 20);
    } else {
      kind.agreed = 0;
      kind.pos_weight = implied;
    }
  }
  if (kind.agreed == 0) return found;
  found.formula = Formula::kBceWithLogits;
  found.by_value = true;
  found.weights = Weights::kSome;
  found.pos_weight = kind.pos_weight;
  found.per_sample = BinaryTerms(*scores, true, kind.pos_weight).each;
  return found;
}

void LossReader::VisitFields(Fields& io) { io("kinds", kinds_, kMaxKinds); }

}  // namespace luff::rules
