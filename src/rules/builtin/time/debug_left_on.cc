#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "rules/facts/pause_rule.h"

/// DebugLeftOn: docs/rules/debug_left_on.md.
namespace luff::rules::debug_left_on {
namespace {

using Json = nlohmann::json;
constexpr const char* kName = "DebugLeftOn";
constexpr std::int64_t kEvery = 64;  // steps between looks at the document
constexpr std::size_t kMost = 16;    // settings
struct Limits {
  std::int64_t steps;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::steps, "steps", "200", "TRAIN steps after which it is said (Luff)", AtLeast(1)},
};

/// The settings that both looks of the document "debug" found.
std::vector<std::string> FoundTwice(std::string_view document) {
  std::vector<std::string> found;
  const Json json = TryParseJson(document, {1U << 16U, 6});
  if (!json.is_object() || !json.contains("looks") || !json["looks"].is_array()) return found;
  std::size_t looks = 0;
  for (const Json& look : json["looks"]) {
    std::vector<std::string> on;
    if (look.is_object() && look.contains("on") && look["on"].is_array()) {
      for (const Json& one : look["on"])
        if (one.is_string() && on.size() < kMost) on.push_back(one.get<std::string>());
    }
    if (looks++ == 0)
      found = on;
    else
      std::erase_if(found, [&](const std::string& one) { return std::ranges::find(on, one) == on.end(); });
  }
  return looks < 2 ? std::vector<std::string>() : found;
}

class DebugLeftOn final : public KeptRule {
 public:
  explicit DebugLeftOn(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    if (told_ || info.mode != query::Mode::kTrain || ++seen_ % kEvery != 0 || seen_ < limits_.steps) return;
    const std::vector<std::string> on = FoundTwice(view.trial.DocumentAt("debug", view.number));
    if (on.empty()) return;
    told_ = true;
    std::string all;
    for (const std::string& one : on) all += (all.empty() ? "" : ", ") + one;
    Finding finding = FindingAt(kName, "on", view.trial, format::kNoId, 0, info);
    finding.since_step = 0;
    finding.what = fmt::format("{} {} on all along; it slows each step", all, on.size() == 1 ? "is" : "are");
    finding.why = "what helps to find a fault checks or records each operation, and waits for each of them";
    finding.remedy = fmt::format("take {} out again", on.size() == 1 ? "it" : "them");
    finding.causes = {"left from a search for a fault"};
    finding.evidence = {{"settings", on.size()}};
    finding.threshold = "on at step 20 and at step 200 of the training";
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("seen", seen_);
    io("told", told_);
  }

 private:
  const Limits limits_;
  std::int64_t seen_ = 0;
  bool told_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<DebugLeftOn>(kName, kParams);
  spec.summary = "an aid for finding faults is on: anomaly mode, a profiler, waiting launches";
  return spec;
}

}  // namespace luff::rules::debug_left_on
