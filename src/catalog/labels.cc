#include "catalog/labels.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "luff/store/control.h"
#include "luff/store/owner.h"

namespace luff::catalog {
namespace {

using Json = nlohmann::json;

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }

/// Errors: kInvalidArgument for anything but a list of tags.
Result<std::vector<std::string>> TagsIn(const Json& json, const char* key) {
  std::vector<std::string> tags;
  const auto list = json.find(key);
  if (list == json.end()) return tags;
  if (!list->is_array() || list->size() > kMaxTags)
    return InvalidArgument(fmt::format("'{}' is a list of at most {} tags", key, kMaxTags));
  for (const Json& one : *list) {
    if (!one.is_string()) return InvalidArgument(fmt::format("'{}' holds something that is no text", key));
    tags.push_back(one.get<std::string>());
    LUFF_RETURN_IF_ERROR(CheckTag(tags.back()));
  }
  return tags;
}

Result<std::optional<std::string>> TextIn(const Json& json, const char* key, std::size_t most) {
  const auto text = json.find(key);
  if (text == json.end()) return std::optional<std::string>();
  if (!text->is_string()) return InvalidArgument(fmt::format("'{}' is no text", key));
  std::optional<std::string> found = text->get<std::string>();
  if (found->size() > most) return InvalidArgument(fmt::format("the {} is longer than {} bytes", key, most));
  return found;
}

void Apply(const LabelChange& change, std::set<std::string>* tags) {
  for (const std::string& tag : change.add) {
    if (tags->size() < kMaxTags) tags->insert(tag);
  }
  for (const std::string& tag : change.remove) tags->erase(tag);
}

}  // namespace

Status CheckTag(const std::string& tag) {
  const bool strange = std::ranges::any_of(tag, [](char c) { return IsControl(c) || c == ' ' || c == ','; });
  if (!tag.empty() && tag.size() <= kMaxTagBytes && !strange && tag.front() != '-') return Status::Ok();
  return InvalidArgument(fmt::format(
      "a tag is a word of at most {} bytes without blanks and commas that does not begin with '-': '{}'",
      kMaxTagBytes, Escaped(tag)));
}

Result<LabelChange> ParseLabelUntrusted(std::string_view text) {
  const Json json = TryParseJson(text, {.bytes = 64 << 10, .depth = 4});
  if (!json.is_object())
    return InvalidArgument(R"(expected {"add": ["tag"], "remove": [], "title": "...", "note": "..."})");
  for (const auto& [key, value] : json.items()) {
    if (key != "add" && key != "remove" && key != "title" && key != "note")
      return InvalidArgument(
          fmt::format("unknown member '{}'; there are add, remove, title, note", Escaped(key)));
  }
  LabelChange change;
  LUFF_ASSIGN_OR_RETURN(change.add, TagsIn(json, "add"));
  LUFF_ASSIGN_OR_RETURN(change.remove, TagsIn(json, "remove"));
  LUFF_ASSIGN_OR_RETURN(change.title, TextIn(json, "title", kMaxTitleBytes));
  LUFF_ASSIGN_OR_RETURN(change.note, TextIn(json, "note", kMaxNoteBytes));
  if (change.title && std::ranges::any_of(*change.title, IsControl))
    return InvalidArgument("a title is one line, without control characters");
  return change;
}

std::vector<LabelChange> LabelChangesOf(const std::string& run) {
  std::vector<LabelChange> changes;
  auto records = store::ReadControl(run, 0, nullptr);
  if (!records.ok()) return changes;
  for (const store::ControlRecord& record : store::WithoutRefused(*std::move(records))) {
    if (record.kind != "label") continue;
    auto change = ParseLabelUntrusted(record.body);
    if (!change.ok()) continue;  // of a newer version, or by hand
    change->author = record.author;
    change->unix_ns = record.created_unix_ns;
    changes.push_back(std::move(*change));
  }
  return changes;
}

Label LabelOf(const std::string& run) {
  Label label;
  std::set<std::string> tags;
  for (const LabelChange& change : LabelChangesOf(run)) {
    Apply(change, &tags);
    if (change.title) label.title = *change.title;
    if (change.note) label.note = *change.note;
  }
  label.tags.assign(tags.begin(), tags.end());
  return label;
}

Result<std::uint64_t> ChangeLabel(const std::string& run, const LabelChange& change,
                                  const store::RecordSigner& sign) {
  Json body = Json::object();
  if (!change.add.empty()) body["add"] = change.add;
  if (!change.remove.empty()) body["remove"] = change.remove;
  if (change.title) body["title"] = *change.title;
  if (change.note) body["note"] = *change.note;
  if (body.empty()) return InvalidArgument("nothing is to be changed");
  const std::string text = JsonText(body);
  LUFF_RETURN_IF_ERROR(ParseLabelUntrusted(text).status());
  const Label before = LabelOf(run);
  std::set<std::string> tags(before.tags.begin(), before.tags.end());
  tags.insert(change.add.begin(), change.add.end());
  for (const std::string& tag : change.remove) tags.erase(tag);
  if (tags.size() > kMaxTags)
    return ResourceExhausted(fmt::format("a run has at most {} tags: {}", kMaxTags, run));
  LUFF_RETURN_IF_ERROR(store::CheckOwner(run));
  store::ControlRecord record;
  record.kind = "label";
  record.author = change.author;
  record.body = text;
  if (sign) LUFF_RETURN_IF_ERROR(sign(&record));
  return store::WriteControl(run, record);
}

}  // namespace luff::catalog
