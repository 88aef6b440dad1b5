#pragma once
#include <sys/stat.h>

#include <string>

#include "luff/base/env.h"

namespace luff::store {

/// Gives a finished file its name, once; kAlreadyExists if another file has it. Over NFS the answer to a
/// successful link may be lost, and the repeated request then reports that the name exists; so it checks
/// whether the name is our file's.
[[nodiscard]] inline Status LinkNew(Env& env, const std::string& temporary, const std::string& target) {
  Status linked = env.Link(temporary, target);
  if (linked.ok()) return linked;
  struct stat ours{};
  struct stat theirs{};
  const bool made = lstat(temporary.c_str(), &ours) == 0 && lstat(target.c_str(), &theirs) == 0 &&
                    ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  return made ? Status::Ok() : linked;
}

}  // namespace luff::store
