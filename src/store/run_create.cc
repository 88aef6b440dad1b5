#include <string>

#include "luff/base/env.h"
#include "luff/store/owner.h"
#include "luff/store/writer.h"
#include "store/run_file.h"

namespace luff::store {
namespace {

bool BelongsToARun(const std::string& name) {
  for (const char* own : {"control", "rules", "trainings", "supervisor", "log", "aside.jsonl", "tags.json"}) {
    if (name == own) return true;
  }
  if (name.starts_with("run.json")) return true;
  return name.size() == 5 && name[0] == 'w' && name.find_first_not_of("0123456789", 1) == std::string::npos;
}

Status MakeSubdirectory(Env& env, const std::string& path) {
  Status status = env.MakeDirectory(path);
  return status.code() == StatusCode::kAlreadyExists ? Status::Ok() : status;
}

}  // namespace

Result<RunInfo> CreateRun(const std::string& path, const RunInfo& wanted, bool join, bool resume) {
  Env& env = Env::Real();
  if (path.empty()) return InvalidArgument("found an empty path, expected that of a run directory");
  if (const Status owner = CheckOwner(path); !owner.ok() && owner.code() != StatusCode::kNotFound)
    return owner.WithContext("the run's directory");
  if (!join && SupervisorLock::IsTaken(path)) {
    return AlreadyExists(
        "found a run that a `luff run` is going on with, expected one of our own; wait for its end or name "
        "another directory: " +
        path);
  }
  auto existing = ReadRunFile(env, path);
  if (existing.ok() && !join && !resume) {
    return AlreadyExists("found a run, expected a new or empty directory; resume it or name another: " +
                         path);
  }
  if (!existing.ok() && existing.status().code() != StatusCode::kNotFound &&
      existing.status().code() != StatusCode::kFailedPrecondition) {
    return existing.status();
  }
  if (!existing.ok()) {
    LUFF_RETURN_IF_ERROR(env.MakeDirectories(path));
    if (const Status owner = CheckOwner(path); !owner.ok()) return owner.WithContext("the run's directory");
    LUFF_ASSIGN_OR_RETURN(const auto names, env.List(path));
    for (const std::string& name : names) {
      if (!BelongsToARun(name)) {
        return FailedPrecondition("found a directory that holds \"" + name +
                                  "\" and is no run, expected a new or empty one: " + path);
      }
    }
    RunInfo info = wanted;
    if (info.created_unix_ns == 0) info.created_unix_ns = env.NowUnixNs();
    // Links a finished file to its final name: if several workers create the run at once, exactly one wins.
    const std::string target = path + "/" + std::string(kRunFileName);
    const std::string text = FormatRunFile(info);
    const Status status = WriteNewFile(env, target, text);
    if (status.code() == StatusCode::kAlreadyExists) {
      if (!join && !resume) {
        return AlreadyExists("found a run that another process has just created; name another directory: " +
                             path);
      }
    } else if (!status.ok()) {
      return status;
    }
    existing = ReadRunFile(env, path);
    if (!existing.ok()) return existing.status();
  }
  LUFF_RETURN_IF_ERROR(MakeSubdirectory(env, path + "/control"));
  LUFF_RETURN_IF_ERROR(MakeSubdirectory(env, path + "/rules"));
  return existing;
}

}  // namespace luff::store
