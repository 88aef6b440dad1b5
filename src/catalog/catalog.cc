#include "catalog/catalog.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "base/nearest_names.h"
#include "base/text_escape.h"
#include "catalog/bucket_look.h"
#include "catalog/index.h"
#include "catalog/walk.h"
#include "luff/base/env.h"

namespace luff::catalog {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemory = ":memory:";

// The index names commands and parameters: nobody else reads it, as nobody else reads a run.
void MakePrivate(const std::string& index) {
  if (index == kMemory) return;
  (void)Env::Real().MakeDirectories(fs::path(index).parent_path().string());
  const int fd = open(index.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
}

/// Brings an index up to date.
using Refreshing = std::function<Status(Index*)>;

Status AskIndex(const std::string& index, const Question& question, const Refreshing& refresh,
                Answer* answer) {
  MakePrivate(index);
  LUFF_ASSIGN_OR_RETURN(Index opened, Index::Open(index));
  LUFF_RETURN_IF_ERROR(refresh(&opened));
  answer->notes.insert(answer->notes.end(), opened.notes().begin(), opened.notes().end());
  return opened.Find(question, answer);
}

bool IsOfTheIndex(const Status& status) {
  return status.code() == StatusCode::kCorruption || status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kIo;
}

void RemoveIndex(const std::string& index) {
  std::error_code ignored;
  for (const char* end : {"", "-journal", "-wal", "-shm"}) fs::remove(index + end, ignored);
}

// "@3" -> 3; 0 for anything else.
std::size_t AgeOf(const std::string& text) {
  if (text.size() < 2 || text.size() > 8 || text[0] != '@') return 0;
  const bool digits = std::all_of(text.begin() + 1, text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits ? static_cast<std::size_t>(std::atoi(text.c_str() + 1)) : 0;
}

Result<std::string> ByAge(const std::string& folder, std::size_t age) {
  Question question;
  question.folder = folder;
  question.limit = age;
  const std::string home = Home();
  const auto answer = Ask(home.empty() ? std::string() : home + "/catalog.sqlite3", question);
  if (answer.ok() && answer->entries.size() >= age) return answer->entries[age - 1].path;
  const std::size_t runs = answer.ok() ? answer->entries.size() : 0;
  return NotFound(runs == 0
                      ? fmt::format("there is no run; name one by its path: {}", folder)
                      : fmt::format("there is no run @{}, the oldest one is @{}: {}", age, runs, folder));
}

Result<Answer> AskAnyIndex(const std::string& index, const Question& question, const Refreshing& refresh) {
  Answer answer;
  std::string used = index.empty() ? kMemory : index;
  for (int attempt = 0;; ++attempt) {
    const Status asked = AskIndex(used, question, refresh, &answer);
    if (asked.ok()) return answer;
    if (!IsOfTheIndex(asked) || used == kMemory) return asked;
    answer = {};
    if (asked.code() == StatusCode::kCorruption && attempt == 0) {
      RemoveIndex(index);
    } else {
      answer.notes.push_back(fmt::format("all runs were read again: {}", asked.message()));
      used = kMemory;
    }
  }
}

}  // namespace

Result<Answer> Ask(const std::string& index, const Question& question, const Progress& progress) {
  LUFF_ASSIGN_OR_RETURN(Found found, FindRuns(question.folder));
  LUFF_ASSIGN_OR_RETURN(Answer answer, AskAnyIndex(index, question, [&](Index* opened) {
                          return opened->Refresh(question, found, progress);
                        }));
  answer.notes.insert(answer.notes.end(), found.left_out.begin(), found.left_out.end());
  return answer;
}

Result<Answer> AskBucket(const std::string& index, const Question& question, CardSource* source,
                         const Progress& progress) {
  Status bucket = Status::Ok();
  LUFF_ASSIGN_OR_RETURN(Answer answer, AskAnyIndex(index, question, [&](Index* opened) {
                          return opened->RefreshFrom(question.folder, source, progress, &bucket);
                        }));
  if (bucket.ok()) return answer;
  if (answer.all == 0) return bucket;
  answer.notes.push_back(
      fmt::format("shown is what was known before, the bucket was not read: {}", bucket.message()));
  return answer;
}

std::string Home() {
  const char* home = std::getenv("LUFF_HOME");
  if (home != nullptr && *home != 0) return fs::absolute(home).lexically_normal().string();
  const char* user = std::getenv("HOME");
  return user != nullptr && *user != 0 ? (fs::path(user) / ".luff").string() : std::string();
}

Result<std::string> FindRun(const std::string& meant) {
  std::error_code ignored;
  if (fs::exists(meant, ignored)) return meant;
  const std::string home = Home();
  const std::string runs = home.empty() ? std::string() : home + "/runs";
  const std::size_t slash = meant.rfind('/');
  const std::string last = slash == std::string::npos ? meant : meant.substr(slash + 1);
  const std::size_t age = AgeOf(last);
  if (age > 0 && slash != std::string::npos)
    return ByAge(fs::absolute(meant.substr(0, slash + 1)).lexically_normal().parent_path().string(), age);
  if (slash != std::string::npos || meant.empty()) return NotFound("there is no such directory: " + meant);
  if (runs.empty())
    return NotFound(fmt::format("there is no such run, and neither LUFF_HOME nor HOME is set: {}", meant));
  if (age > 0) return ByAge(runs, age);
  const auto names = Env::Real().List(runs);
  std::vector<std::string> known;
  std::vector<std::string> begin;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name == meant) return runs + "/" + name;
    if (name.starts_with(meant)) begin.push_back(name);
    known.push_back(name);
  }
  if (begin.size() == 1) return runs + "/" + begin.front();
  if (begin.empty() && meant.front() == '@')
    return NotFound(fmt::format("'{}' is no age of a run: @1 is the newest, @2 the one before it", meant));
  const std::string near = Escaped(NearestText(meant, known));
  if (begin.empty())
    return NotFound(fmt::format("there is no directory '{}', and no run of this name{}{}", meant, near,
                                near.empty() ? "; `luff runs` lists the runs" : ""));
  begin.resize(std::min<std::size_t>(begin.size(), 3));
  return NotFound(fmt::format("several runs begin with '{}': {}", meant,
                              Escaped(fmt::format("{}", fmt::join(begin, ", ")))));
}

}  // namespace luff::catalog
