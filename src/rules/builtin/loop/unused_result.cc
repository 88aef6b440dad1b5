#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"
#include "rules/kit/step_index.h"

/// UnusedResult: docs/rules/unused_result.md.
namespace luff::rules::unused_result {
namespace {

constexpr const char* kName = "UnusedResult";
constexpr std::size_t kLongest = 200;
constexpr std::size_t kMostPlaces = 64;
constexpr std::int64_t kMostLine = 1LL << 31;

struct Limits {
  std::int64_t places;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::places, "places", "8", "places of the source that are reported (Luff)", Between(1, 64)},
};

// {what}, {why}, {remedy}: 0 is the name, 1 what else the event names.
struct Text {
  std::string_view cause, what, why, remedy, because;
};
constexpr std::array kTexts = std::to_array<Text>({
    {"not_called", "{0} is named and not called", "without parentheses a method does nothing",
     "call it: `{1}`", "parentheses left out"},
    {"mode_not_called", "{0} is named and not called", "the model stays in the mode in which it is",
     "call it: `{1}`", "parentheses left out"},
    {"dropped", "the result of {1} is thrown away", "it gives a new value and leaves {0} as it is",
     "assign the result, or use the form that works in place, if there is one",
     "an assignment that was forgotten, or the underscore of the form that works in place"},
    {"made", "{1} is made and never applied", "an object that nobody keeps does nothing",
     "give it a name where the model is made, and call that name on the values",
     "a layer that was meant to be applied"},
    {"compared", "a value is worked out from {0} and thrown away",
     "a line that only compares or adds changes nothing", "write `{1}` where {0} should change",
     "== in the place of =, or + in the place of +="},
    {"cut_off", "{0} is no part of the sum in the line above",
     "a line ends the statement unless a bracket is open; this one begins with a sign and stands alone",
     "put the whole sum into brackets", "a sum that goes on in the next line without brackets"},
    {"sign_for_sum", "{0} is replaced, not added to", "`=+` assigns a value with a plus sign", "write `{1}`",
     "=+ in the place of +="},
    {"overwritten", "{0} is computed, and replaced in line {1} before anything reads it",
     "what this line has worked out plays no part in the training",
     "pass the first value on, or add both, or take one line out",
     "a line that should read the result above reads its input again; = in the place of +="},
    {"last_alone", "of all that the loop gives {0}, the last one alone counts",
     "each turn replaces the value of the one before, and the backward pass comes behind the loop",
     "put the backward pass and the update inside the loop over batches, or add the terms up: `{1}`, from 0 "
     "on",
     "lines that are indented too little, or = in the place of +="},
    {"never_read", "{0} is a loss that nothing reads",
     "it goes into no backward pass, beside another loss that does, nor into a log",
     "add it to the loss that is differentiated, or take the line out", "a term that was left out of a sum"},
    {"other_variable", "the loop over batches reads none of {0}, but {1} from elsewhere",
     "each update uses the same values, whatever batch the loop has come to",
     "use the names that the loop gives", "a name of another loop"},
    {"same_operands", "{1} gets {0} twice", "of two equal operands this says nothing",
     "give it the other operand", "a copied line with one name not changed"},
    {"unreachable", "{0} is never called: the statement here leaves before line {1}",
     "what stands behind it in the same block never runs", "move it before, or indent what leaves",
     "a statement that is indented too little, or was left from a search for a fault"},
});

std::string TextIn(const nlohmann::json& event, const char* key) {
  const auto at = event.find(key);
  return at == event.end() || !at->is_string() ? std::string()
                                               : at->get_ref<const std::string&>().substr(0, kLongest);
}

std::string Filled(std::string_view text, const std::string& name, const std::string& other) {
  std::string filled;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool place = text.substr(at, 3) == "{0}" || text.substr(at, 3) == "{1}";
    if (place) {
      filled += text[at + 1] == '0' ? name : other;
      at += 2;
    } else {
      filled += text[at];
    }
  }
  return filled;
}

class UnusedResult final : public KeptRule {
 public:
  explicit UnusedResult(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& event : view.index.json_events("unused_result"))
      if (static_cast<std::int64_t>(told_.size()) < limits_.places && event->is_object())
        Tell(view, *event, sink);
  }

  void VisitFields(Fields& io) override { io("told", told_, kMostPlaces); }

 private:
  void Tell(const StepView& view, const nlohmann::json& event, Sink& sink) {
    const std::string cause = TextIn(event, "cause"), file = TextIn(event, "file");
    const bool made = FlagIn(event, "made");
    const auto* text = std::find_if(kTexts.begin(), kTexts.end(), [&](const Text& one) {
      return one.cause == (made && cause == "dropped" ? std::string_view("made") : std::string_view(cause));
    });
    const double line = NumberIn(event, "line");
    if (text == kTexts.end() || !(line >= 1 && line < static_cast<double>(kMostLine)) || file.empty()) return;
    const std::string name = TextIn(event, "name"), other = TextIn(event, "other");
    const std::string place = fmt::format("{}:{}", file, static_cast<std::int64_t>(line));
    if (!told_.insert(place + '\n' + cause).second) return;  // of another rank
    Finding finding =
        FindingAt(kName, cause.c_str(), view.trial, format::kNoId, view.index.first_worker(), view.rows.info);
    finding.tensor = place;
    finding.since_step = 0;
    finding.what = fmt::format("{}: {}", place, Filled(text->what, name, other));
    finding.why = fmt::format("`{}`: {}", TextIn(event, "text"), Filled(text->why, name, other));
    finding.remedy = Filled(text->remedy, name, other);
    finding.causes = {std::string(text->because)};
    finding.evidence = {{"line", static_cast<std::int64_t>(line)}};
    finding.threshold = "a fact of the source of a function that the training runs (Luff)";
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::set<std::string> told_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<UnusedResult>(kName, kParams);
  spec.summary =
      "a result that the training's own lines compute and never use, or a method that they name and do not "
      "call";
  return spec;
}

}  // namespace luff::rules::unused_result
