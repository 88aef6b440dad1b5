#include "watch/said_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <functional>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text_escape.h"
#include "luff/base/env.h"

namespace luff::watch {
namespace {

constexpr std::uint64_t kMaxBytes = 1ULL << 30;

std::uint64_t KeyOf(std::string_view run, const rules::Finding& finding, std::string_view what) {
  std::string text(run);
  text += '\n';
  text += finding.id;
  text += '\n';
  text += what;
  return std::hash<std::string>()(text);
}

std::string_view WhatOf(const rules::Finding& finding, std::string_view event) {
  if (event == "healed" || finding.healed) return "healed";
  return finding.severity == rules::Severity::kStop ? "stop" : "warn";
}

}  // namespace

std::string RunKey(const std::string& name, const std::string& run_id) { return name + "\n" + run_id; }

Result<SaidLog> SaidLog::Open(std::string path) {
  SaidLog log(std::move(path));
  if (!Env::Real().Exists(log.path_)) {
    LUFF_RETURN_IF_ERROR(BeginLines(log.path_));
    return log;
  }
  LUFF_ASSIGN_OR_RETURN(const std::string text, ReadRegular(log.path_, kMaxBytes, 1));
  std::size_t from = 0;
  for (std::size_t end = 0; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    const std::string_view line = std::string_view(text).substr(from, end - from);
    const auto parsed = rules::ParseFindingUntrusted(line);
    if (!parsed.ok()) continue;
    const nlohmann::json json = TryParseJson(line);
    log.Know(RunKey(TextMember(json, "run"), TextMember(json, "run_id")), parsed->first, parsed->second);
  }
  if (from == text.size()) return log;
  LUFF_ASSIGN_OR_RETURN(const auto file, Env::Real().Open(log.path_, Env::OpenMode::kReadWrite));
  LUFF_RETURN_IF_ERROR(file->Truncate(from));  // it was being written when the process was killed
  return log;
}

void SaidLog::Know(std::string_view run, const rules::Finding& finding, std::string_view event) {
  said_.insert(KeyOf(run, finding, WhatOf(finding, event)));
  said_.insert(KeyOf(run, finding, ""));
}

void SaidLog::KnowOfOthers(std::string_view run, const rules::Finding& finding, std::string_view event,
                           std::uint64_t number) {
  of_others_.emplace(KeyOf(run, finding, WhatOf(finding, event)), number);
  of_others_.emplace(KeyOf(run, finding, ""), number);
}

bool SaidLog::Has(std::string_view run, const rules::Finding& finding, std::string_view what,
                  std::uint64_t before) const {
  const std::uint64_t key = KeyOf(run, finding, what);
  if (said_.contains(key)) return true;
  const auto first = of_others_.lower_bound({key, 0});
  return first != of_others_.end() && first->first == key && first->second < before;
}

bool SaidLog::Knows(std::string_view run, const rules::Finding& finding) const {
  return Has(run, finding, "", UINT64_MAX);
}

bool SaidLog::IsNewsBefore(std::string_view run, const rules::Finding& finding, std::string_view event,
                           std::uint64_t before) const {
  const std::string_view what = WhatOf(finding, event);
  if (what == "healed" && !Knows(run, finding)) return false;  // it came and went unseen
  if (what == "warn" && Has(run, finding, "stop", before)) return false;
  return !Has(run, finding, what, before);
}

bool SaidLog::IsNews(std::string_view run, const rules::Finding& finding, std::string_view event) const {
  return IsNewsBefore(run, finding, event, UINT64_MAX);
}

bool SaidLog::IsOursToSay(std::string_view run, const rules::Finding& finding, std::string_view event,
                          std::uint64_t number) const {
  return IsNewsBefore(run, finding, event, number);
}

Status SaidLog::Say(const std::string& name, const std::string& run_id, const rules::Finding& finding,
                    const std::string& event) {
  const nlohmann::ordered_json of = {{"run", name}, {"run_id", run_id}};
  const std::string head = JsonText(of);
  LUFF_RETURN_IF_ERROR(AppendLine(
      path_, JsonEscaped(head.substr(0, head.size() - 1) + "," + rules::ToJson(finding, event).substr(1))));
  Know(RunKey(name, run_id), finding, event);
  return Status::Ok();
}

}  // namespace luff::watch
