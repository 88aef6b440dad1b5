#pragma once
#include <string>
#include <string_view>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Base class of built-in rules. Saves and loads its state with VisitFields.
class KeptRule : public Rule {
 public:
  /// Visits all state that later steps depend on, except the parameters. Used for both saving and loading.
  virtual void VisitFields(Fields& io) { (void)io; }

  [[nodiscard]] std::string SaveState() const final {
    // Saving only reads the fields.
    return Fields::Save([this](Fields& io) { const_cast<KeptRule*>(this)->VisitFields(io); });
  }
  [[nodiscard]] Status LoadState(std::string_view json) final {
    return Fields::LoadUntrusted(json, [this](Fields& io) { VisitFields(io); });
  }
};

}  // namespace luff::rules
