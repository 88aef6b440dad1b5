#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "luff/rules/rule.h"
#include "rules/facts/model_facts.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// **Thread-compatible.** Finds parameters of losses and heads that no optimizer holds and whose values stay
/// as they were drawn: class centres, proxies, weights of an angular margin, weights of several losses.
///
/// A teacher, a critic or a network that measures a distance is not one of them: those get no labels beside
/// features, and are networks. A criterion gets labels, a row each, and its parameters are its own, or one
/// layer; or it gets nothing but several losses. What was trained before, in the same
/// process, is a teacher.
class UntrainedCriteria {
 public:
  /// Call at each TRAIN step.
  void OnStep(const StepView& view);
  /// Names of models that are such criteria now.
  [[nodiscard]] std::set<std::string> Models(const ModelFacts& facts) const;

  void VisitFields(Fields& io) {
    io("takes", takes_, kMaxModels);
    io("values", values_, kMaxParameters);
  }

 private:
  static constexpr std::size_t kMaxModels = 64, kMaxParameters = 1024;

  // What a model was called with, in all captured steps so far.
  struct Takes {
    std::int64_t calls = 0, with_labels = 0, numbers_only = 0;
    void VisitFields(Fields& io) {
      io("calls", calls);
      io("with_labels", with_labels);
      io("numbers_only", numbers_only);
    }
  };
  // The values of a parameter, as far as their summary tells.
  struct Values {
    double low = 0, high = 0, sum = 0, sum_sq = 0;
    std::int64_t seen = 0;
    bool moved = false;
    void VisitFields(Fields& io) {
      io("low", low);
      io("high", high);
      io("sum", sum);
      io("sum_sq", sum_sq);
      io("seen", seen);
      io("moved", moved);
    }
  };

  void FollowCalls(const StepView& view);
  void FollowValues(const StepView& view);

  std::map<std::string, Takes> takes_;    // by what samples are called by: a model, or a class of losses
  std::map<std::string, Values> values_;  // by parameter that no optimizer holds
};

}  // namespace luff::rules
