#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/rules/finding.h"

/// Findings as text for people.
namespace luff::cli {

/// A finding and what happened to it: "new", "update" or "healed".
using FindingEvent = std::pair<rules::Finding, std::string>;

/// Several lines, ending with a line break: what, which tensor, since when, why, what to do. Escaped.
[[nodiscard]] std::string FindingText(const rules::Finding& finding, bool colour, std::size_t width);
/// "1 finding", "2 findings".
[[nodiscard]] std::string Plural(std::uint64_t count, const char* one, const char* many);
/// "step 40", or "EVAL step 3": each mode counts its own steps, and --mode of the reading verbs takes its
/// name.
[[nodiscard]] std::string StepText(std::string_view mode, std::int64_t step);
/// The findings as a verdict shows them: "no findings", or their number and the gravest one with tensor and
/// step. Consequences count with their leader.
[[nodiscard]] std::string FindingsInShort(const std::vector<rules::Finding>& findings);
/// "DeadRelu (relu_output_1, since step 40)".
[[nodiscard]] std::string NameOf(const rules::Finding& finding);

/// Prints each finding once: in full if it leads, in one line if it follows from another or its rule has just
/// reported others at the same step. Prints one more line when it becomes worse, gains detail, or heals.
class Teller {
 public:
  Teller(bool colour, std::size_t width) : colour_(colour), width_(width) {}

  /// Takes a finding that an earlier part of a resumed run has already reported.
  void Know(const rules::Finding& finding) { told_[finding.id] = finding.severity; }
  /// Returns the text for events that came together; "" if they hold nothing new for people.
  [[nodiscard]] std::string Tell(const std::vector<FindingEvent>& events);

 private:
  [[nodiscard]] std::string Short(const rules::Finding& finding, const char* lead) const;
  /// How much detail a finding has (evidence "detail"); an update with more is reported.
  [[nodiscard]] static double DetailOf(const rules::Finding& finding);

  static constexpr std::size_t kMaxShort = 4;  // per rule and step; further ones are counted
  const bool colour_;
  const std::size_t width_;
  std::map<std::string, rules::Severity> told_;         // by id
  std::map<std::string, double> details_;               // by id
  std::set<std::pair<std::string, std::int64_t>> led_;  // rule and step that were reported in full
};

}  // namespace luff::cli
