#pragma once
#include <sys/stat.h>

#include <string>

#include "luff/base/env.h"

namespace luff::store {

/// Gives a finished file its name, once: kAlreadyExists when somebody else's has it. Over NFS the answer to a
/// link that was made may be lost, and the repeated request says that the name exists: what counts is whether
/// it is our file that has it.
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
