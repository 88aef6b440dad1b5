#include "rules/own/expression_state.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "base/nearest_names.h"

namespace luff::rules {
namespace {

constexpr std::size_t kMaxSeries = 100'000;  // tensors of one leaf
constexpr std::size_t kNamesShown = 20;

double ValueOf(const query::Trial::SummaryEntry& entry, Stat stat) {
  const Summary& s = entry.summary;
  switch (stat) {
    case Stat::kValue:
    case Stat::kMean: return s.finite_count() == 0 && s.count > 0 ? std::nan("") : s.mean();
    case Stat::kMin: return s.min(entry.dtype);
    case Stat::kMax: return s.max(entry.dtype);
    case Stat::kStd: return s.std();
    case Stat::kVariance: return s.variance();
    case Stat::kSum: return s.sum;
    case Stat::kL1: return s.abs_sum;
    case Stat::kL2: return s.l2();
    case Stat::kAbsMean: return s.abs_mean();
    case Stat::kAbsMax: return s.abs_max(entry.dtype);
    case Stat::kCount: return static_cast<double>(s.count);
    case Stat::kZeroCount: return static_cast<double>(s.zero_count);
    case Stat::kNanCount: return static_cast<double>(s.nan_count);
    case Stat::kInfCount: return static_cast<double>(s.inf_count);
  }
  return std::nan("");
}

/// The same for a single number.
double OfNumber(double value, Stat stat) {
  switch (stat) {
    case Stat::kStd:
    case Stat::kVariance: return 0;
    case Stat::kL1:
    case Stat::kL2:
    case Stat::kAbsMean:
    case Stat::kAbsMax: return std::abs(value);
    case Stat::kCount: return 1;
    case Stat::kZeroCount: return value == 0 ? 1 : 0;
    case Stat::kNanCount: return std::isnan(value) ? 1 : 0;
    case Stat::kInfCount: return std::isinf(value) ? 1 : 0;
    default: return value;
  }
}

/// Folds the newest n of `values`; nullopt if there are too few.
std::optional<double> FoldOf(const std::deque<double>& values, Fold fold, std::size_t n) {
  const std::size_t wanted = fold == Fold::kLast ? n + 1 : n;
  if (values.size() < wanted) return std::nullopt;
  const auto begin = values.end() - static_cast<std::ptrdiff_t>(wanted);
  if (fold == Fold::kLast) return *begin;
  double sum = 0;
  double low = HUGE_VAL;
  double high = -HUGE_VAL;
  for (auto it = begin; it != values.end(); ++it) {
    sum += *it;
    low = std::min(low, *it);
    high = std::max(high, *it);
  }
  const double mean = sum / static_cast<double>(n);
  if (std::isnan(sum) || fold == Fold::kMean) return mean;
  if (fold == Fold::kMin) return low;
  if (fold == Fold::kMax) return high;
  double squares = 0;
  for (auto it = begin; it != values.end(); ++it) squares += (*it - mean) * (*it - mean);
  return std::sqrt(squares / static_cast<double>(n));
}

}  // namespace

ExpressionState::ExpressionState(const Expression& expression)
    : expression_(expression),
      leaves_(expression.leaves().size()),
      match_(expression.groups().size()) {
  for (const Group& group : expression.groups()) {
    Result<Regex> regex = Regex::Compile(group.regex);
    if (regex.ok()) patterns_.push_back(std::move(regex).value());
  }
}

void ExpressionState::TakeValue(std::size_t index, const Key& key, double value) {
  const Leaf& leaf = expression_.leaves()[index];
  LeafState& state = leaves_[index];
  auto at = state.series.find(key);
  if (at == state.series.end()) {
    if (state.series.size() >= kMaxSeries) {
      overfull_ = true;
      return;
    }
    at = state.series.emplace(key, Series{}).first;
  }
  Series& series = at->second;
  if (!series.now) ++series.seen;
  if (series.now && !series.kept.empty()) {  // of several values in one step the last counts
    series.kept.back() = value;
  } else if (leaf.window > 0) {
    if (series.kept.size() >= leaf.window) {
      series.kept.pop_front();
      --kept_;
    }
    if (kept_ >= Expression::kMaxWindow) {
      overfull_ = true;
      return;
    }
    series.kept.push_back(value);
    ++kept_;
  }
  series.now = value;
}

void ExpressionState::Take(const query::Trial& trial, const query::Trial::StepRows& rows) {
  for (LeafState& state : leaves_) {
    for (auto& [key, series] : state.series) series.now.reset();
  }
  const auto reads = [&](std::size_t index, query::TensorId id) {
    const Leaf& leaf = expression_.leaves()[index];
    const query::TensorInfo& info = trial.tensor(id);
    if (leaf.kind == Leaf::Kind::kName) return info.name == leaf.name;
    if (leaf.kind == Leaf::Kind::kLoss) return info.role == format::Role::kLoss || info.name == "loss";
    auto& known = match_[static_cast<std::size_t>(leaf.group)];
    if (known.size() <= id) known.resize(id + std::size_t{1}, -1);
    if (known[id] < 0) known[id] = patterns_[static_cast<std::size_t>(leaf.group)].Search(info.name) ? 1 : 0;
    return known[id] == 1;
  };
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const Leaf& leaf = expression_.leaves()[i];
    const bool group = leaf.kind == Leaf::Kind::kGroup;
    bool taken = false;  // of a single tensor the first worker counts, of losses the first
    const auto wanted = [&](query::TensorId id) {
      if (!reads(i, id) || (taken && !group)) return false;
      if (leaf.kind != Leaf::Kind::kLoss) return true;
      // Reads the same loss at every step: the one that was read before, or at first the first one.
      const LeafState& state = leaves_[i];
      return state.series.empty() || state.series.begin()->first.first == trial.tensor(id).name;
    };
    const auto key_of = [&](query::TensorId id, std::uint32_t worker) {
      return Key(trial.tensor(id).name, group ? worker : 0);
    };
    for (const auto& entry : rows.scalars) {
      if (!wanted(entry.tensor)) continue;
      TakeValue(i, key_of(entry.tensor, entry.worker), OfNumber(entry.value, leaf.stat));
      taken = true;
    }
    for (const auto& entry : rows.summaries) {
      if (!wanted(entry.tensor)) continue;
      if (leaf.stat == Stat::kValue && entry.summary.count != 1) {
        leaves_[i].too_large = true;
        continue;
      }
      const Key key = key_of(entry.tensor, entry.worker);
      const auto known = leaves_[i].series.find(key);
      if (known != leaves_[i].series.end() && known->second.now) continue;  // its scalar was read
      TakeValue(i, key, ValueOf(entry, leaf.stat));
      taken = true;
    }
  }
}

const ExpressionState::Series* ExpressionState::SeriesOf(const Leaf& leaf, int index,
                                                         const Key* bound) const {
  const auto& series = leaves_[static_cast<std::size_t>(index)].series;
  if (leaf.kind == Leaf::Kind::kGroup) {
    if (bound == nullptr) return nullptr;
    const auto at = series.find(*bound);
    return at == series.end() ? nullptr : &at->second;
  }
  return series.empty() ? nullptr : &series.begin()->second;
}

std::optional<double> ExpressionState::Number(int n, const Key* bound) const {
  const Node& node = expression_.nodes()[static_cast<std::size_t>(n)];
  if (node.op == Op::kNumber) return node.number;
  if (node.op == Op::kLeaf) {
    const Series* series =
        SeriesOf(expression_.leaves()[static_cast<std::size_t>(node.leaf)], node.leaf, bound);
    if (series == nullptr) return std::nullopt;
    return node.fold == Fold::kNone ? series->now : FoldOf(series->kept, node.fold, node.n);
  }
  const std::optional<double> left = Number(node.left, bound);
  if (!left) return std::nullopt;
  if (node.op == Op::kNegate) return -*left;
  if (node.op == Op::kAbs) return std::abs(*left);
  if (node.op == Op::kLog) return std::log(*left);
  if (node.op == Op::kSqrt) return std::sqrt(*left);
  const std::optional<double> right = Number(node.right, bound);
  if (!right) return std::nullopt;
  switch (node.op) {
    case Op::kAdd: return *left + *right;
    case Op::kSubtract: return *left - *right;
    case Op::kMultiply: return *left * *right;
    default: return *left / *right;
  }
}

std::optional<bool> ExpressionState::Atom(const Node& node, const Key* bound) const {
  const std::optional<double> left = Number(node.left, bound);
  if (!left) return std::nullopt;
  if (node.op == Op::kIsFinite) return std::isfinite(*left);
  const std::optional<double> right = Number(node.right, bound);
  if (!right) return std::nullopt;
  switch (node.op) {
    case Op::kLess: return *left < *right;
    case Op::kLessEqual: return *left <= *right;
    case Op::kGreater: return *left > *right;
    case Op::kGreaterEqual: return *left >= *right;
    case Op::kEqual: return *left == *right;
    default: return *left != *right;
  }
}

std::optional<bool> ExpressionState::Truth(int n, Verdict* verdict) const {
  const Node& node = expression_.nodes()[static_cast<std::size_t>(n)];
  if (node.op == Op::kNot) {
    const std::optional<bool> inner = Truth(node.left, verdict);
    return inner ? std::optional(!*inner) : std::nullopt;
  }
  if (node.op == Op::kAnd || node.op == Op::kOr) {
    const bool decides = node.op == Op::kOr;  // a true operand makes 'or' true, a false one makes 'and' false
    const std::optional<bool> left = Truth(node.left, verdict);
    const std::optional<bool> right = Truth(node.right, verdict);
    if ((left && *left == decides) || (right && *right == decides)) return decides;
    return left && right ? std::optional(!decides) : std::nullopt;
  }
  if (node.group < 0) return Atom(node, nullptr);
  const bool all = expression_.groups()[static_cast<std::size_t>(node.group)].all;
  // All leaves of a group read the same tensors, except for tensors that are not numbers. Uses the leaf with
  // the most tensors.
  const LeafState* widest = nullptr;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    if (expression_.leaves()[i].group != node.group) continue;
    if (widest == nullptr || leaves_[i].series.size() > widest->series.size()) widest = &leaves_[i];
  }
  if (widest == nullptr) return std::nullopt;
  bool any_unknown = widest->series.empty();
  bool any_true = false;
  bool any_false = false;
  for (const auto& [key, series] : widest->series) {
    const std::optional<bool> one = Atom(node, &key);
    any_unknown = any_unknown || !one;
    if (!one) continue;
    any_true = any_true || *one;
    any_false = any_false || !*one;
    if (!*one) continue;
    if (verdict->tensor.empty()) {
      verdict->tensor = key.first;
      verdict->worker = key.second;
    } else if (key.first != verdict->tensor) {
      if (verdict->other_names.size() < kNamesShown) {
        verdict->other_names.push_back(key.first);
      } else {
        ++verdict->others;
      }
    }
  }
  // Like 'and' or 'or' over all tensors: an unknown one leaves the result open unless the others decide it.
  if (all ? any_false : any_true) return !all;
  return any_unknown ? std::nullopt : std::optional(all);
}

ExpressionState::Verdict ExpressionState::Evaluate() const {
  Verdict verdict;
  verdict.holds = Truth(expression_.root(), &verdict);
  auto& names = verdict.other_names;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const Key bound(verdict.tensor, verdict.worker);
  for (std::size_t n = 0; n < expression_.nodes().size(); ++n) {
    const Node& node = expression_.nodes()[n];
    if (node.op != Op::kLeaf) continue;
    if (const auto value = Number(static_cast<int>(n), &bound)) {
      std::string text = expression_.text().substr(node.begin, node.end - node.begin);
      const bool known = std::any_of(verdict.values.begin(), verdict.values.end(),
                                     [&](const auto& one) { return one.first == text; });
      if (!known) verdict.values.emplace_back(std::move(text), *value);
    }
  }
  if (verdict.tensor.empty() && leaves_.size() == 1 && !leaves_[0].series.empty())
    verdict.tensor = leaves_[0].series.begin()->first.first;
  return verdict;
}

std::string ExpressionState::Missing(const query::Trial& trial) const {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> all;  // each name that is wrong, not only the first
  for (const Node& node : expression_.nodes()) {
    if (node.op != Op::kLeaf) continue;
    std::string one = MissingOf(node, trial);
    if (!one.empty() && std::find(all.begin(), all.end(), one) == all.end()) all.push_back(std::move(one));
  }
  if (all.empty()) return "its values never came at the same step";
  const std::size_t more = all.size() > kMost ? all.size() - kMost : 0;
  all.resize(all.size() - more);
  std::string text = fmt::format("{}", fmt::join(all, "; "));
  return more == 0 ? text : fmt::format("{}; and {} more", text, more);
}

std::string ExpressionState::MissingOf(const Node& node, const query::Trial& trial) const {
  const Leaf& leaf = expression_.leaves()[static_cast<std::size_t>(node.leaf)];
  const LeafState& state = leaves_[static_cast<std::size_t>(node.leaf)];
  const std::string text = expression_.text().substr(node.begin, node.end - node.begin);
  if (state.series.empty()) {
    if (state.too_large) {
      return fmt::format("{} has many elements and is no number; name a statistic, e.g. {}.l2", text, text);
    }
    if (leaf.kind == Leaf::Kind::kLoss) return fmt::format("{}: no loss was recorded", text);
    if (leaf.kind == Leaf::Kind::kGroup) return fmt::format("{}: nothing was recorded of such tensors", text);
    if (trial.TensorNamed(leaf.name)) {
      return fmt::format(
          "{}: the tensor is in the run, its summary or number is not; record it with a "
          "collection whose forms hold \"summary\"",
          text);
    }
    std::vector<std::string> known;
    for (std::size_t id = 0; id < trial.tensor_count(); ++id)
      known.push_back(trial.tensor(static_cast<query::TensorId>(id)).name);
    return fmt::format("there is no tensor \"{}\"{}", leaf.name, NearestText(leaf.name, known));
  }
  if (node.fold == Fold::kNone) return {};
  std::size_t most = 0;
  std::uint64_t seen = 0;
  for (const auto& [key, series] : state.series) {
    most = std::max(most, series.kept.size());
    seen = std::max(seen, series.seen);
  }
  const std::size_t wanted = node.fold == Fold::kLast ? node.n + 1 : node.n;
  if (most < wanted) return fmt::format("{} needs {} values, {} came", text, wanted, seen);
  return {};
}

void ExpressionState::Series::VisitFields(Fields& io) {
  io("seen", seen);
  io("kept", kept, Expression::kMaxWindow);
}

void ExpressionState::LeafState::VisitFields(Fields& io) {
  io("series", series, kMaxSeries);
  io("too_large", too_large);
}

void ExpressionState::VisitFields(Fields& io) {
  const std::size_t leaves = leaves_.size();
  io("leaves", leaves_, leaves);
  io("overfull", overfull_);
  if (!io.loading()) return;
  io.Check(leaves_.size() == leaves, "the leaves of this condition");
  kept_ = 0;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    for (const auto& [key, series] : leaves_[i].series) {
      io.Check(series.kept.size() <= expression_.leaves()[i].window, "values of the leaf's window");
      kept_ += series.kept.size();
    }
  }
  io.Check(kept_ <= Expression::kMaxWindow, "as many values as are kept");
}

}  // namespace luff::rules
