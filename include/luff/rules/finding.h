#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/result.h"

namespace luff::rules {

enum class Severity : std::uint8_t { kWarn = 1, kStop = 2 };  // stop: further training is wasted

/// One number of the evidence, e.g. {"steps", 12}.
struct NamedNumber {
  std::string name;
  double value;
  template <typename T>
  NamedNumber(std::string of, T number) : name(std::move(of)),
                                          value(static_cast<double>(number)) {}
  bool operator==(const NamedNumber&) const = default;
};

/// What mending a cause is expected to save.
struct Saving {
  double seconds_a_step = 0;
  double share = 0;          // of a step's time
  double low = 0, high = 0;  // bounds of seconds_a_step
  std::string method;        // the formula, and what was put in
};

/// What a rule found. JSON schema: docs/spec/findings.md. Depends only on the run, never on when it was
/// evaluated.
struct Finding {
  std::string id;     // 16 hex digits, a hash of rule, cause, tensor and first step
  std::string rule;   // "ExplodingTensor"
  std::string cause;  // short stable key inside the rule, e.g. "nan"
  Severity severity = Severity::kWarn;
  std::string tensor;                      // "" if it does not concern a single tensor
  std::vector<std::string> other_tensors;  // also affected, at most 20
  std::uint64_t other_count = 0;           // affected tensors beyond those
  std::string mode = "TRAIN";
  std::uint32_t worker = 0;
  std::int64_t step = 0;  // mode step at which it was seen first (counts forward+backward passes from 0)
  std::int64_t global_step = 0;
  std::int64_t update = 0;      // optimizer updates before that step
  std::int64_t since_step = 0;  // mode step at which the trouble began, <= step
  std::int64_t last_step = 0;   // newest step at which it still held
  bool healed = false;
  std::string leader;               // id of the finding that this one is a consequence of; "" if it leads
  bool forecast = false;            // it predicts something that has not happened yet
  std::int64_t lead_steps = 0;      // forecast: steps until it is expected, 0 if unknown
  std::string what;                 // one sentence: what is wrong
  std::string why;                  // why this is wrong, and the likeliest cause
  std::string remedy;               // what to do
  std::vector<std::string> causes;  // likely causes, likeliest first
  std::vector<NamedNumber> evidence;
  std::vector<std::pair<std::int64_t, double>> series;  // (mode step, value) around it, at most 64
  std::string threshold;                                // which limit, and where it comes from
  std::string page;                                     // "docs/rules/exploding_tensor.md"
  std::optional<Saving> saving;                         // of rules about time
};

/// The finding that a verdict names.
struct Lead {
  const Finding* finding = nullptr;
  bool stops = false;                     // it, or what follows from it
  std::uint64_t leaders = 0, healed = 0;  // findings that follow from no other, and those of them that healed
  std::uint64_t followers = 0;            // findings that follow from another, and stand
};
/// A finding that follows from another counts with its leader, which is as grave as the gravest of them that
/// stands. One that stands comes before all that have healed, then what stops, then NaN that stops (nothing
/// else matters until it is gone), then the earliest. Null without findings.
[[nodiscard]] Lead LeadOf(std::span<const Finding> findings);

/// One JSON object on one line. `event` is "new", "update" or "healed".
[[nodiscard]] std::string ToJson(const Finding& finding, const std::string& event);
[[nodiscard]] Result<std::pair<Finding, std::string>> ParseFindingUntrusted(std::string_view json);
/// Id as described above.
[[nodiscard]] std::string FindingId(const std::string& rule, const std::string& cause,
                                    const std::string& tensor, std::int64_t step);

}  // namespace luff::rules
