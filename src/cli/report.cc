#include "cli/report.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "base/format.h"
#include "cli/terminal.h"

namespace luff::cli {
namespace {

constexpr std::size_t kLabel = 16;  // "luff:   since   "

std::string Line(const char* label, const std::string& text, std::size_t width) {
  return fmt::format("luff:   {:<8}{}\n", label, Wrapped(text, kLabel, width));
}

}  // namespace

std::string Plural(std::uint64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string StepText(std::string_view mode, std::int64_t step) {
  return fmt::format("{}{}step {}", mode == "TRAIN" ? "" : Escaped(mode), mode == "TRAIN" ? "" : " ", step);
}

std::string FindingText(const rules::Finding& finding, bool colour, std::size_t width) {
  const bool stop = finding.severity == rules::Severity::kStop;
  const char* begin = !colour ? "" : stop ? "\033[1;31m" : "\033[1;33m";
  const char* end = colour ? "\033[0m" : "";
  const std::string rule = Escaped(finding.rule);
  const char* forecast = finding.forecast ? "FORECAST, " : "";
  std::string text =
      fmt::format("luff: {}{}{} {}{}: {}\n", begin, forecast, stop ? "STOP" : "WARN", rule, end,
                  Wrapped(Escaped(finding.what), 6, width, 13 + std::strlen(forecast) + rule.size()));
  if (!finding.tensor.empty()) {
    std::string tensor = Escaped(finding.tensor);
    const std::uint64_t others = finding.other_tensors.size() + finding.other_count;
    if (others > 0) {
      tensor += fmt::format(", and {} ({}{})", Plural(others, "other", "others"),
                            Escaped(finding.other_tensors.empty() ? "" : finding.other_tensors.front()),
                            others > 1 ? ", …" : "");
    }
    text += Line("tensor", tensor, width);
  }
  std::string since = StepText(finding.mode, finding.since_step);
  if (finding.step != finding.since_step) since += fmt::format(", seen at step {}", finding.step);
  since += fmt::format(" (update {})", finding.update);
  if (finding.worker != 0) since += fmt::format(", worker {}", finding.worker);
  text += Line("since", since, width);
  if (finding.forecast && finding.lead_steps > 0)
    text += Line("expect", fmt::format("in about {} steps", finding.lead_steps), width);
  if (!finding.why.empty()) text += Line("why", Escaped(finding.why), width);
  if (!finding.causes.empty()) {
    std::string causes;
    for (const std::string& cause : finding.causes) causes += (causes.empty() ? "" : "; ") + cause;
    text += Line("likely", Escaped(causes), width);
  }
  if (!finding.remedy.empty()) text += Line("to do", Escaped(finding.remedy), width);
  if (finding.page != "docs/own-rules.md") {  // the user's own rules have no page here
    text += Line("more", fmt::format("luff rules explain {}", Escaped(finding.rule)), width);
  }
  return text;
}

std::string NameOf(const rules::Finding& finding) {
  // The trouble of a model that was better before begins after its best evaluation.
  const bool best = std::any_of(finding.evidence.begin(), finding.evidence.end(), [&](const auto& one) {
    const auto& [name, value] = one;
    return name == "best_step" && value == static_cast<double>(finding.since_step);
  });
  return fmt::format("{} ({}{}{} {})", Escaped(finding.rule), Escaped(finding.tensor),
                     finding.tensor.empty() ? "" : ", ", best ? "best evaluation after" : "since",
                     StepText(finding.mode, finding.since_step));
}

std::string FindingsInShort(const std::vector<rules::Finding>& findings) {
  if (findings.empty()) return "no findings";
  const rules::Lead lead = rules::LeadOf(findings);
  const std::uint64_t followers = lead.followers;
  std::string count = Plural(lead.leaders, "finding", "findings");
  if (followers > 0) count += fmt::format(" and {} that follow{}", followers, followers == 1 ? "s" : "");
  if (lead.healed > 0)
    count += lead.healed == lead.leaders ? ", healed" : fmt::format(", {} healed", lead.healed);
  return fmt::format("{}: {}{} {}", count, lead.leaders > 1 ? "first " : "", lead.stops ? "STOP" : "WARN",
                     NameOf(*lead.finding));
}

double Teller::DetailOf(const rules::Finding& finding) {
  for (const auto& [name, value] : finding.evidence) {
    if (name == "detail") return value;
  }
  return 0;
}

std::string Teller::Short(const rules::Finding& finding, const char* lead) const {
  const bool stop = finding.severity == rules::Severity::kStop;
  const char* begin = !colour_ ? "" : stop ? "\033[1;31m" : "\033[1;33m";
  const std::string tensor = finding.tensor.empty() ? "" : " " + Escaped(finding.tensor);
  const std::string name = fmt::format("{} {}", lead, Escaped(finding.rule));
  return fmt::format("luff: {}{}{}{}: {}\n", begin, name, colour_ ? "\033[0m" : "", tensor,
                     Wrapped(Escaped(finding.what), 6, width_, 8 + name.size() + tensor.size()));
}

std::string Teller::Tell(const std::vector<FindingEvent>& events) {
  std::vector<const rules::Finding*> fresh;  // each in its newest form
  std::string text, later;
  std::unordered_map<std::string_view, const rules::Finding*> newest;
  for (const auto& [finding, event] : events) newest[finding.id] = &finding;
  for (const auto& [finding, event] : events) {
    const auto known = told_.find(finding.id);
    if (known == told_.end()) {
      const rules::Finding* last = newest[finding.id];
      told_[finding.id] = last->severity;
      details_[finding.id] = DetailOf(*last);
      fresh.push_back(last);
    } else if (finding.severity > known->second) {
      known->second = finding.severity;
      later += Short(finding, "now STOP:");
    } else if (const double detail = DetailOf(finding); detail > details_[finding.id]) {
      details_[finding.id] = detail;
      later += Short(finding, "more of");
    }
    if (event == "healed") {
      later += fmt::format("luff: {}{}{} has healed at {}\n", Escaped(finding.rule),
                           finding.tensor.empty() ? "" : " ", Escaped(finding.tensor),
                           StepText(finding.mode, finding.last_step));
    }
  }
  std::stable_sort(fresh.begin(), fresh.end(), [](const auto* a, const auto* b) {
    return std::pair(a->step, -static_cast<int>(a->severity)) <
           std::pair(b->step, -static_cast<int>(b->severity));
  });
  std::map<std::pair<std::string, std::int64_t>, std::size_t> shorts;
  std::map<std::pair<std::string, std::int64_t>, std::vector<const rules::Finding*>> beside;
  for (const rules::Finding* finding : fresh) {
    if (finding->leader.empty()) beside[{finding->rule, finding->step}].push_back(finding);
  }
  for (const rules::Finding* finding : fresh) {
    if (!finding->leader.empty()) {
      text +=
          Short(*finding, finding->severity == rules::Severity::kStop ? "follows: STOP" : "follows: WARN");
      continue;
    }
    const std::pair key(finding->rule, finding->step);
    if (led_.insert(key).second) {
      text += FindingText(*finding, colour_, width_);
      // The other findings of its rule and step follow it directly.
      for (const rules::Finding* other : beside[key]) {
        if (other == finding) continue;
        if (++shorts[key] <= kMaxShort) {
          text += Short(*other, other->severity == rules::Severity::kStop ? "also STOP" : "also WARN");
        }
      }
      if (shorts[key] > kMaxShort)
        text += fmt::format("luff:   and {} more of {} at this step\n", shorts[key] - kMaxShort,
                            Escaped(finding->rule));
    } else if (!shorts.contains(key)) {
      text += Short(*finding, finding->severity == rules::Severity::kStop ? "also STOP" : "also WARN");
    }
  }
  return text + later;
}

}  // namespace luff::cli
