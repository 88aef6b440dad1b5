#include "luff/store/trainings.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/json.h"
#include "luff/format/layout.h"
#include "luff/store/reader.h"
#include "store/run_file.h"

namespace luff::store {
namespace {

using Json = nlohmann::json;
constexpr std::uint32_t kMaxTrainings = 9999;
constexpr std::uint64_t kMaxEntryBytes = 64 << 10;
constexpr int kMaxAttempts = 20'000;  // each fails only because another training has taken the number
constexpr const char* kFirst = ".";   // the first training's run, as the list names it

std::string Folder(const std::string& first_run) { return first_run + "/trainings"; }

std::string EntryName(std::uint32_t number) {
  char name[16];
  std::snprintf(name, sizeof(name), "%04u.json", number);
  return name;
}

/// Returns 0 if the name is not that of an entry.
std::uint32_t EntryNumber(const std::string& name) {
  unsigned number = 0;
  if (name.size() != 9 || std::sscanf(name.c_str(), "%4u", &number) != 1 || EntryName(number) != name)
    return 0;
  return number;
}

/// The directory in which `path` lies, with a slash at its end.
std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

std::string NameIn(const std::string& first_run, const std::string& run) {
  return run == first_run ? kFirst : run.substr(ParentOf(run).size());
}

/// An entry names a run in the same directory, never a path that leads out of it.
bool ParseUntrusted(std::string_view text, const std::string& first_run, Training* training) {
  const Json json = TryParseJson(text, {kMaxEntryBytes, 4});
  if (!json.is_object()) return false;
  for (const auto& [key, to] : {std::pair{"job", &training->job},
                                {"world", &training->world},
                                {"command", &training->command},
                                {"run", &training->run}}) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_string()) return false;
    *to = at->get<std::string>();
  }
  if (training->run == kFirst) {
    training->run = first_run;
    return true;
  }
  const std::string stem = first_run.substr(ParentOf(first_run).size()) + "-";
  if (!training->run.starts_with(stem) || training->run.size() == stem.size()) return false;
  if (training->run.find_first_not_of("0123456789", stem.size()) != std::string::npos) return false;
  training->run = ParentOf(first_run) + training->run;
  return true;
}

/// Numbers of all entries, readable or not, up to one after which none existed when the call began. A listing
/// may miss files that are created while it is read. Number N is taken after N - 1, so a second listing has
/// all numbers up to the last of the first.
std::set<std::uint32_t> Numbers(const std::string& first_run, Env& env) {
  const auto list = [&] {
    std::set<std::uint32_t> numbers;
    if (const auto names = env.List(Folder(first_run)); names.ok()) {
      for (const std::string& name : *names) numbers.insert(EntryNumber(name));
    }
    numbers.erase(0);
    return numbers;
  };
  std::set<std::uint32_t> numbers = list();
  if (numbers.empty() || *numbers.rbegin() == numbers.size()) return numbers;
  const std::uint32_t last = *numbers.rbegin();
  numbers = list();
  numbers.erase(numbers.upper_bound(last), numbers.end());
  return numbers;
}

std::vector<Training> Read(const std::string& first_run, const std::set<std::uint32_t>& numbers) {
  std::vector<Training> found;
  for (const std::uint32_t number : numbers) {
    Training training;
    training.number = number;
    const auto text = ReadRegular(Folder(first_run) + "/" + EntryName(number), kMaxEntryBytes, 2);
    if (text.ok() && ParseUntrusted(*text, first_run, &training)) found.push_back(std::move(training));
  }
  return found;
}

/// The first free name beside the first run.
Result<std::string> NewBeside(const std::string& first_run, const std::vector<Training>& known, Env& env) {
  for (std::uint32_t number = 2; number <= 2 * kMaxTrainings; ++number) {
    const std::string path = first_run + "-" + std::to_string(number);
    const bool taken =
        std::any_of(known.begin(), known.end(), [&](const Training& one) { return one.run == path; });
    if (!taken && !env.Exists(path)) return path;
  }
  return ResourceExhausted("no name is free beside the job's first run: " + first_run);
}

/// The run of a job's earlier parts with which a training goes on: that of the same command, else the first,
/// of those that no training of this part has taken. "" if there is none.
std::string Earlier(const std::vector<Training>& known, const std::string& job, const std::string& command) {
  std::set<std::string> taken;
  for (const Training& one : known) {
    if (one.job == job) taken.insert(one.run);
  }
  std::string first;
  for (const Training& one : known) {
    if (taken.contains(one.run)) continue;
    if (one.command == command) return one.run;
    if (first.empty()) first = one.run;
  }
  return first;
}

/// True if a worker of the run has written to its end. A launcher does not restart such a rank.
bool HasCompleted(const std::string& run, std::uint32_t worker, Env& env) {
  const auto info = ReadRunFile(env, run);
  if (!info.ok()) return false;
  char name[16];
  std::snprintf(name, sizeof(name), "/w%04u", worker);
  if (!env.Exists(run + name)) return false;
  const auto reader = WorkerReader::Open(run + name, worker, *info, {});
  if (!reader.ok() || !(*reader)->Refresh(true).ok() || !(*reader)->end()) return false;
  return (*reader)->end()->reason == static_cast<std::uint32_t>(format::EndReason::kCompleted);
}

Result<std::string> FindOne(const std::string& first_run, const Training& wanted, bool resume, Env& env) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const std::set<std::uint32_t> numbers = Numbers(first_run, env);
    const std::vector<Training> known = Read(first_run, numbers);
    bool first = true;
    for (const Training& one : known) {
      if (one.job == wanted.job && one.world == wanted.world) return one.run;
      first = first && one.job != wanted.job;
    }
    std::string run = resume ? Earlier(known, wanted.job, wanted.command) : "";
    if (run.empty() && first) run = first_run;
    if (run.empty()) {
      LUFF_ASSIGN_OR_RETURN(run, NewBeside(first_run, known, env));
    }
    const std::uint32_t number = numbers.empty() ? 1 : *numbers.rbegin() + 1;
    if (number > kMaxTrainings) return ResourceExhausted("the job has begun 9999 trainings: " + first_run);
    const Json entry{{"job", wanted.job},
                     {"world", wanted.world},
                     {"command", wanted.command},
                     {"run", NameIn(first_run, run)}};
    const Status written =
        WriteNewFile(env, Folder(first_run) + "/" + EntryName(number), JsonText(entry) + "\n");
    if (written.code() == StatusCode::kAlreadyExists) continue;  // perhaps by a rank of the same world
    if (!written.ok()) return written;
    LUFF_RETURN_IF_ERROR(
        env.MakeDirectories(run).WithContext("another training of the job needs a directory"));
    return run;
  }
  return Unavailable("other trainings of the job keep taking the next number: " + first_run);
}

}  // namespace

std::vector<Training> ReadTrainings(const std::string& first_run, std::uint32_t after, Env& env) {
  std::set<std::uint32_t> numbers = Numbers(first_run, env);
  numbers.erase(numbers.begin(), numbers.upper_bound(after));
  return Read(first_run, numbers);
}

Result<std::string> FindTraining(const std::string& first_run, const Training& wanted, std::uint32_t rank,
                                 bool resume, Env& env) {
  LUFF_RETURN_IF_ERROR(env.MakeDirectories(Folder(first_run)));
  if (rank == format::kNoId) return FindOne(first_run, wanted, resume, env);
  Training next = wanted;
  for (std::uint32_t again = 2; again <= kMaxTrainings; ++again) {
    LUFF_ASSIGN_OR_RETURN(const std::string run, FindOne(first_run, next, resume, env));
    // In a resumed job a worker may have completed in the part before.
    if (resume || !HasCompleted(run, rank, env)) return run;
    next.world = wanted.world + ", time " + std::to_string(again);
  }
  return ResourceExhausted("the job has begun 9999 trainings: " + first_run);
}

}  // namespace luff::store
