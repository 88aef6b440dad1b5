#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/regex.h"
#include "luff/query/trial.h"
#include "rules/kit/fields.h"
#include "rules/own/expression.h"

namespace luff::rules {

/// The values that a condition has read so far, in bounded memory, and its evaluation. **Thread-compatible.**
///
/// A missing value is not read as 0: without a value a comparison is neither true nor false, and 'and', 'or'
/// and 'not' follow Kleene's three-valued logic. A fold is known when its n values have come.
class ExpressionState {
 public:
  explicit ExpressionState(const Expression& expression);

  /// Reads the values of one step.
  void Take(const query::Trial& trial, const query::Trial::StepRows& rows);

  struct Verdict {
    std::optional<bool> holds;
    std::string tensor;  // the first tensor of a group for which it holds
    std::uint32_t worker = 0;
    std::uint64_t others = 0;              // more tensors for which it holds, beyond other_names
    std::vector<std::string> other_names;  // further tensors for which it holds, at most 20
    std::vector<std::pair<std::string, double>> values;  // each text that reads a value, and the value
  };
  [[nodiscard]] Verdict Evaluate() const;

  /// For a condition that was never decided: what was missing, in words.
  [[nodiscard]] std::string Missing(const query::Trial& trial) const;
  /// Whether values were dropped because a group has too many tensors for its folds.
  [[nodiscard]] bool overfull() const noexcept { return overfull_; }

  void VisitFields(Fields& io);

 private:
  [[nodiscard]] std::string MissingOf(const Node& node, const query::Trial& trial) const;  // "" if nothing
  struct Series {
    std::optional<double> now;  // of this step
    std::deque<double> kept;
    std::uint64_t seen = 0;
    void VisitFields(Fields& io);
  };
  using Key = std::pair<std::string, std::uint32_t>;  // tensor and worker
  struct LeafState {
    std::map<Key, Series> series;
    bool too_large = false;  // a tensor of many elements was read as a number
    void VisitFields(Fields& io);
  };

  void TakeValue(std::size_t leaf, const Key& key, double value);
  [[nodiscard]] std::optional<double> Number(int n, const Key* bound) const;
  [[nodiscard]] std::optional<bool> Truth(int n, Verdict* verdict) const;
  [[nodiscard]] std::optional<bool> Atom(const Node& node, const Key* bound) const;
  [[nodiscard]] const Series* SeriesOf(const Leaf& leaf, int index, const Key* bound) const;

  const Expression& expression_;
  std::vector<LeafState> leaves_;
  std::vector<Regex> patterns_;                  // of the groups
  std::vector<std::vector<signed char>> match_;  // by group and tensor id: 1 yes, 0 no, -1 not decided
  std::size_t kept_ = 0;
  bool overfull_ = false;
};

}  // namespace luff::rules
