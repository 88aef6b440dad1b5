#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "luff/rules/rule.h"

namespace luff::rules {

/// **Thread-compatible.** Which needs of rules the collections of a run were to record. A rule without its
/// data says nothing about a training that was recorded without them.
class Recorded {
 public:
  /// Takes the document "collections" of a run. Of one that is absent or no list of collections (smdebug's),
  /// nothing is known.
  void ReadUntrusted(std::string_view document);
  /// False only if it is known that one of the needs was not to be recorded.
  [[nodiscard]] bool Holds(std::span<const Need> needs) const;

 private:
  struct Saved {
    std::string mode;
    std::int64_t interval;
  };
  struct Collection {
    std::string name;
    std::vector<std::string> roles, include, module_types;
    std::uint32_t forms = 0;
    std::vector<Saved> saved;
  };
  [[nodiscard]] static bool Saves(const Collection& one, const Need& need);
  [[nodiscard]] bool HoldsOne(const Need& need) const;

  std::vector<Collection> collections_;
  bool known_ = false;
};

}  // namespace luff::rules
