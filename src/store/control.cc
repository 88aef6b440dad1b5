#include "luff/store/control.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bounded_read.h"
#include "base/json.h"
#include "base/json_number.h"
#include "luff/base/env.h"
#include "store/owned_folder.h"

namespace luff::store {
namespace {

using Json = nlohmann::json;
constexpr std::uint64_t kMaxRecordBytes = 1 << 20;
constexpr std::size_t kMaxDepth = 16;
constexpr int kMaxAttempts = 1000;

std::string ControlFileName(std::uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "%06llu.json", static_cast<unsigned long long>(number));
  return name;
}

/// Returns 0 if the name is not that of a control record.
std::uint64_t ControlNumber(const std::string& name) {
  if (name.size() < 11 || name.size() > 20 || !name.ends_with(".json")) return 0;
  std::uint64_t number = 0;
  for (std::size_t i = 0; i + 5 < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return 0;
    number = number * 10 + static_cast<std::uint64_t>(name[i] - '0');
  }
  return number;
}

using List = std::function<Result<std::vector<std::string>>()>;
using Read = std::function<Result<std::string>(const std::string& name)>;

Result<std::set<std::uint64_t>> NumbersAfter(const List& list, std::uint64_t after) {
  LUFF_ASSIGN_OR_RETURN(const auto names, list());
  std::set<std::uint64_t> numbers;
  for (const std::string& name : names) {
    if (const std::uint64_t number = ControlNumber(name); number > after) numbers.insert(number);
  }
  return numbers;
}

Result<std::vector<ControlRecord>> ReadLog(const List& list, const Read& read, std::uint64_t after,
                                           const std::string& directory, std::vector<std::string>* problems) {
  LUFF_ASSIGN_OR_RETURN(auto numbers, NumbersAfter(list, after));
  // A listing may miss files that are created while it is read. Number N is taken after N - 1, so a second
  // listing has all numbers up to the last of the first.
  if (!numbers.empty() && *numbers.rbegin() - after != numbers.size()) {
    const std::uint64_t last = *numbers.rbegin();
    LUFF_ASSIGN_OR_RETURN(numbers, NumbersAfter(list, after));
    numbers.erase(numbers.upper_bound(last), numbers.end());
  }
  std::vector<ControlRecord> records;
  for (const std::uint64_t number : numbers) {
    const std::string name = ControlFileName(number);
    auto text = read(name);
    auto record = text.ok() ? ParseControlUntrusted(*text) : Result<ControlRecord>(text.status());
    if (record.ok() && record->number != number) {
      record = Corruption("found number " + std::to_string(record->number) + " inside");
    }
    if (record.ok()) {
      records.push_back(std::move(record).value());
    } else if (problems != nullptr) {
      problems->push_back(record.status().ToString() + ": " + directory + "/" + name);
    }
  }
  return records;
}

}  // namespace

Result<ControlRecord> ParseControlUntrusted(std::string_view text) {
  if (text.size() > kMaxRecordBytes) return Corruption("control record is larger than 1 MiB");
  try {
    const Json json = TryParseJson(text, {kMaxRecordBytes, kMaxDepth});
    if (!json.is_object()) return Corruption("control record is no JSON object");
    ControlRecord record;
    if (!json.contains("number")) return Corruption("control record without a number");
    record.number = WholeNumber<std::uint64_t>(json, "number", 0);
    record.kind = TextMember(json, "kind");
    if (record.kind.empty()) return Corruption("control record without a kind");
    record.phase = TextMember(json, "phase");
    record.proposal = WholeNumber(json, "proposal", record.proposal);
    record.train_step = WholeNumber(json, "train_step", record.train_step);
    record.created_unix_ns = WholeNumber(json, "created_unix_ns", record.created_unix_ns);
    if (const auto at = json.find("deadline_s"); at != json.end()) {
      if (!at->is_number()) return Corruption("control record with a number that is none");
      record.deadline_s = at->get<double>();
      if (!(record.deadline_s >= 0.0 && record.deadline_s <= 3600.0)) {
        return Corruption("control record with a deadline outside of 0 to 3600 s");
      }
    }
    record.reason = TextMember(json, "reason");
    record.finding = TextMember(json, "finding");
    record.author = TextMember(json, "author");
    record.key_id = TextMember(json, "key_id");
    record.signature = TextMember(json, "signature");
    record.signed_text = TextMember(json, "signed");
    if (const auto at = json.find("body"); at != json.end() && !at->is_null()) record.body = JsonText(*at);
    return record;
  } catch (const std::exception& error) {
    return Corruption(std::string("control record: ") + error.what());
  }
}

Result<std::uint64_t> WriteControl(const std::string& run_path, const ControlRecord& wanted, Env& env) {
  const std::string directory = run_path + "/control";
  if (!env.Exists(run_path + "/run.json")) {
    return NotFound("found no run.json, expected a run directory: " + run_path);
  }
  try {
    LUFF_ASSIGN_OR_RETURN(const auto names, env.List(directory));
    std::uint64_t number = 1;
    for (const std::string& name : names) number = std::max(number, ControlNumber(name) + 1);
    Json json;
    json["kind"] = wanted.kind;
    json["phase"] = wanted.phase;
    json["proposal"] = wanted.proposal;
    json["train_step"] = wanted.train_step;
    json["deadline_s"] = wanted.deadline_s;
    json["reason"] = wanted.reason;
    json["finding"] = wanted.finding;
    Json body =
        wanted.body.empty() ? Json(nullptr) : TryParseJson(wanted.body, {kMaxRecordBytes, kMaxDepth - 1});
    if (body.is_discarded()) return InvalidArgument("body of a control record is no JSON");
    json["body"] = std::move(body);
    json["author"] = wanted.author;
    json["key_id"] = wanted.key_id;
    json["signature"] = wanted.signature;
    if (!wanted.signed_text.empty()) json["signed"] = wanted.signed_text;
    json["created_unix_ns"] = wanted.created_unix_ns != 0 ? wanted.created_unix_ns : env.NowUnixNs();
    // link(2) refuses an existing name, so a number is taken by one process only.
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt, ++number) {
      json["number"] = number;
      const std::string text = JsonText(json, 2) + "\n";
      if (text.size() > kMaxRecordBytes) return InvalidArgument("control record is larger than 1 MiB");
      const Status written = WriteNewFile(env, directory + "/" + ControlFileName(number), text);
      if (written.ok()) return number;
      if (written.code() != StatusCode::kAlreadyExists) return written;
    }
    return Unavailable("other processes took every number tried: " + directory);
  } catch (const std::exception& error) {
    return Internal(std::string("writing a control record: ") + error.what());
  }
}

Result<ControlRecord> DecideControl(const std::string& run_path, const ControlRecord& record) {
  if (record.proposal == 0) return InvalidArgument("a decision without the number of its proposal");
  for (int attempt = 0; attempt < 2; ++attempt) {
    LUFF_ASSIGN_OR_RETURN(const auto records, ReadCommands(run_path, record.proposal));
    for (const ControlRecord& other : records) {
      if (other.proposal == record.proposal && (other.phase == "commit" || other.phase == "abort"))
        return other;
    }
    if (attempt == 0) {
      LUFF_ASSIGN_OR_RETURN([[maybe_unused]] const std::uint64_t number, WriteControl(run_path, record));
    }
  }
  return Unavailable("a decision was written and cannot be read back: " + run_path);
}

Result<std::vector<ControlRecord>> ReadControl(const std::string& run_path, std::uint64_t after,
                                               std::vector<std::string>* problems) {
  Env& env = Env::Real();
  const std::string directory = run_path + "/control";
  return ReadLog(
      [&] { return env.List(directory); },
      [&](const std::string& name) { return ReadRegular(directory + "/" + name, kMaxRecordBytes, 2); }, after,
      directory, problems);
}

std::vector<ControlRecord> WithoutRefused(std::vector<ControlRecord> records) {
  std::set<std::uint64_t> refused;
  for (const ControlRecord& record : records) {
    if (record.kind == "reply" && record.phase == "refused") refused.insert(record.proposal);
  }
  std::erase_if(records, [&](const ControlRecord& record) {
    return (record.kind == "mark" || record.kind == "label") && refused.contains(record.number);
  });
  return records;
}

Result<std::vector<ControlRecord>> ReadCommands(const std::string& run_path, std::uint64_t after) {
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder run, OwnedFolder::Open(run_path));
  LUFF_ASSIGN_OR_RETURN(const OwnedFolder folder, run.Below("control"));
  return ReadLog([&] { return folder.List(); },
                 [&](const std::string& name) { return folder.Read(name, kMaxRecordBytes); }, after,
                 run_path + "/control", nullptr);
}

}  // namespace luff::store
