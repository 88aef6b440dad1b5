#include "luff/actions/marks.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/json_number.h"
#include "base/nearest_names.h"
#include "luff/rules/kept_findings.h"
#include "luff/store/owner.h"

namespace luff::actions {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kMaxNote = 4096;
constexpr std::array<std::string_view, 3> kWords = {"acknowledge", "mute", "reopen"};

}  // namespace

std::string_view WordOf(Mark::As as) noexcept { return kWords[static_cast<std::size_t>(as)]; }

std::string SaidOf(const Mark& mark) {
  return fmt::format("{}{} by {}{}{}", WordOf(mark.as),
                     mark.until_step >= 0 ? fmt::format(" until step {}", mark.until_step) : "", mark.author,
                     mark.note.empty() ? "" : ": ", mark.note);
}

Result<Mark::As> ParseMark(std::string_view word) {
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    if (kWords[i] == word) return static_cast<Mark::As>(i);
  }
  return InvalidArgument(
      fmt::format("a finding is marked with {}, not with '{}'", fmt::join(kWords, ", "), word));
}

Result<std::uint64_t> SetMark(const std::string& run, const Mark& mark, const store::RecordSigner& sign) {
  const auto findings = rules::FindingsOfRun(run).findings;
  if (std::ranges::find(findings, mark.finding, &rules::Finding::id) == findings.end()) {
    std::vector<std::string> ids;
    for (const rules::Finding& finding : findings) ids.push_back(finding.id);
    return NotFound(ids.empty() ? "the run has no finding: " + run
                                : fmt::format("the run has no finding '{}'{}", mark.finding,
                                              NearestText(mark.finding, ids)));
  }
  if (mark.note.size() > kMaxNote)
    return InvalidArgument(fmt::format("the note is longer than {} bytes", kMaxNote));
  LUFF_RETURN_IF_ERROR(store::CheckOwner(run));
  Json body{{"as", WordOf(mark.as)}};
  if (mark.as == Mark::As::kMute && mark.until_step >= 0) body["until_step"] = mark.until_step;
  store::ControlRecord record;
  record.kind = "mark";
  record.finding = mark.finding;
  record.reason = mark.note;
  record.author = mark.author;
  record.body = JsonText(body);
  if (sign) LUFF_RETURN_IF_ERROR(sign(&record));
  return store::WriteControl(run, record);
}

Result<Mark> MarkOf(const store::ControlRecord& record) {
  const Json body = TryParseOrderedJson(record.body);
  if (record.kind != "mark" || !body.is_object()) return InvalidArgument("this record marks nothing");
  Mark mark;
  LUFF_ASSIGN_OR_RETURN(mark.as, ParseMark(TextMember(body, "as")));
  mark.finding = record.finding;
  try {
    mark.until_step = WholeNumber<std::int64_t>(body, "until_step", -1);
  } catch (const std::invalid_argument& error) {
    return InvalidArgument(error.what());
  }
  mark.note = record.reason;
  mark.author = record.author;
  mark.unix_ns = record.created_unix_ns;
  return mark;
}

void TakeMarks(std::span<const store::ControlRecord> records, std::map<std::string, Mark>* marks) {
  for (const store::ControlRecord& record : records) {
    if (record.kind != "mark") continue;
    const Result<Mark> mark = MarkOf(record);
    if (!mark.ok()) continue;  // of a newer version
    if (mark->as == Mark::As::kReopen) {
      marks->erase(mark->finding);
    } else {
      (*marks)[mark->finding] = *mark;
    }
  }
}

std::map<std::string, Mark> MarksIn(std::span<const store::ControlRecord> records) {
  std::map<std::string, Mark> marks;
  TakeMarks(store::WithoutRefused({records.begin(), records.end()}), &marks);
  return marks;
}

}  // namespace luff::actions
