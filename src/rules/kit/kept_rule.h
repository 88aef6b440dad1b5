#pragma once
#include <string>
#include <string_view>

#include "luff/rules/rule.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// A rule that names what it remembers, field by field: the base of built-in rules.
class KeptRule : public Rule {
 public:
  /// Everything that the next step depends on, but for the parameters. It serves saving and loading alike.
  virtual void VisitFields(Fields& io) { (void)io; }  // nothing

  [[nodiscard]] std::string SaveState() const final {
    // What is saved is only read.
    return Fields::Save([this](Fields& io) { const_cast<KeptRule*>(this)->VisitFields(io); });
  }
  [[nodiscard]] Status LoadState(std::string_view json) final {
    return Fields::LoadUntrusted(json, [this](Fields& io) { VisitFields(io); });
  }
};

}  // namespace luff::rules
