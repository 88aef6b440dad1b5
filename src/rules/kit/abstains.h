#pragma once
#include <string>

namespace luff::rules {

/// A rule of the user's, which alone knows whether it judged anything. What a built-in one needs is known to
/// the evaluator.
class Abstains {
 public:
  virtual ~Abstains() = default;
  /// Why it has judged no step, or judges no more: that it failed, or what it lacked. Both empty: it judged.
  struct Abstention {
    bool failed = false;
    std::string lacks = {};  // "what its condition names"
  };
  [[nodiscard]] virtual Abstention Abstained() const = 0;
};

}  // namespace luff::rules
