#include "cli/report.h"

#include <algorithm>

#include <fmt/format.h>

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

std::string FindingText(const rules::Finding& finding, bool colour, std::size_t width) {
  const bool stop = finding.severity == rules::Severity::kStop;
  const char* begin = !colour ? "" : stop ? "\033[1;31m" : "\033[1;33m";
  const char* end = colour ? "\033[0m" : "";
  std::string text = fmt::format("luff: {}{} {}{}: {}\n", begin, stop ? "STOP" : "WARN", Escaped(finding.rule), end,
                                 Wrapped(Escaped(finding.what), 6, width));
  if (!finding.tensor.empty()) {
    std::string tensor = Escaped(finding.tensor);
    const std::uint64_t others = finding.other_tensors.size() + finding.other_count;
    if (others > 0) {
      tensor += fmt::format(", and {} ({}{})", Plural(others, "other", "others"), Escaped(finding.other_tensors.empty() ? "" : finding.other_tensors.front()),
                            others > 1 ? ", …" : "");
    }
    text += Line("tensor", tensor, width);
  }
  std::string since = fmt::format("step {}", finding.since_step);
  if (finding.step != finding.since_step) since += fmt::format(", seen at step {}", finding.step);
  since += fmt::format(" (update {})", finding.update);
  if (finding.worker != 0) since += fmt::format(", worker {}", finding.worker);
  text += Line("since", since, width);
  if (!finding.why.empty()) text += Line("why", Escaped(finding.why), width);
  if (!finding.causes.empty()) {
    std::string causes;
    for (const std::string& cause : finding.causes) causes += (causes.empty() ? "" : "; ") + cause;
    text += Line("likely", Escaped(causes), width);
  }
  if (!finding.remedy.empty()) text += Line("to do", Escaped(finding.remedy), width);
  text += Line("more", fmt::format("luff rules explain {}", Escaped(finding.rule)), width);
  return text;
}

}  // namespace luff::cli
