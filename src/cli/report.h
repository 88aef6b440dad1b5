#pragma once
#include <map>
#include <set>
#include <string>
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
/// The findings in a verdict: "no findings", or their number and the gravest with tensor and step; what
/// follows from another counts with it.
[[nodiscard]] std::string FindingsInShort(const std::vector<rules::Finding>& findings);
/// "DeadRelu (relu_output_1, since step 40)".
[[nodiscard]] std::string NameOf(const rules::Finding& finding);

/// Says each finding once: in full when it leads, in one line when it follows from another or its rule has
/// just told of others at the same step, and in one line when it becomes worse, knows more, or heals.
class Teller {
 public:
  Teller(bool colour, std::size_t width) : colour_(colour), width_(width) {}

  /// A finding that was told before, by an earlier part of a resumed run.
  void Know(const rules::Finding& finding) { told_[finding.id] = finding.severity; }
  /// The text for events that came together; "" when there is nothing new in them for a person.
  [[nodiscard]] std::string Tell(const std::vector<FindingEvent>& events);

 private:
  [[nodiscard]] std::string Short(const rules::Finding& finding, const char* lead) const;
  /// How much a finding knows (evidence "detail"): an update that knows more is told.
  [[nodiscard]] static double DetailOf(const rules::Finding& finding);

  static constexpr std::size_t kMaxShort = 4;  // of one rule at one step; the others are counted
  const bool colour_;
  const std::size_t width_;
  std::map<std::string, rules::Severity> told_;         // by id
  std::map<std::string, double> details_;               // by id
  std::set<std::pair<std::string, std::int64_t>> led_;  // rule and step that were told in full
};

}  // namespace luff::cli
