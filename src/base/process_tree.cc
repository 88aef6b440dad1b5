#include "base/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <unordered_map>

#include "base/interrupted.h"

namespace luff {
namespace {

struct Known {
  pid_t pid, parent;
  char state;
};

/// Reads parent and state from /proc/PID/stat. They follow the process's name, which may contain any
/// character. Returns false if the process is gone.
bool Read(pid_t pid, Known* known) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (file < 0) return false;
  char text[512];
  const ssize_t got = Uninterrupted([&] { return read(file, text, sizeof(text) - 1); });
  close(file);
  if (got <= 0) return false;
  text[got] = 0;
  const char* end = std::strrchr(text, ')');
  if (end == nullptr || std::strlen(end) < 5) return false;
  *known = {pid, static_cast<pid_t>(std::strtol(end + 4, nullptr, 10)), end[2]};
  return true;
}

std::vector<Known> Everybody() {
  std::vector<Known> all;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return all;
  while (const dirent* entry = readdir(folder)) {
    char* end = nullptr;
    const long pid = std::strtol(entry->d_name, &end, 10);
    Known known{};
    if (pid > 0 && *end == 0 && Read(static_cast<pid_t>(pid), &known)) all.push_back(known);
  }
  closedir(folder);
  return all;
}

}  // namespace

std::vector<BelowProcess> ProcessesBelow(pid_t top, const std::function<bool(pid_t)>& skip) {
  std::unordered_map<pid_t, std::vector<Known>> children;
  for (const Known& one : Everybody()) children[one.parent].push_back(one);
  std::vector<BelowProcess> found;
  std::vector<pid_t> open{top};
  for (std::size_t i = 0; i < open.size(); ++i) {
    const auto of = children.find(open[i]);
    if (of == children.end()) continue;
    for (const Known& one : of->second) {
      if (skip && skip(one.pid)) continue;
      open.push_back(one.pid);
      if (one.state != 'Z' && one.state != 'X') found.push_back({one.pid, one.state == 'T'});
    }
    children.erase(of);  // /proc changes while it is read: parents may form a cycle
  }
  return found;
}

std::vector<pid_t> ProcessesAbove(pid_t bottom) {
  std::vector<pid_t> above;
  Known known{bottom, 0, 0};
  while (known.pid > 0 && above.size() < 1000) {  // /proc changes while it is read: a cycle is possible
    above.push_back(known.pid);
    if (!Read(known.pid, &known)) break;
    known.pid = known.parent;
  }
  return above;
}

bool KillBelow(pid_t top, const std::function<bool(pid_t)>& skip) noexcept {
  try {
    for (int turn = 0; turn < 50; ++turn) {  // a process may fork meanwhile
      const std::vector<BelowProcess> living = ProcessesBelow(top, skip);
      if (living.empty()) return true;
      for (const BelowProcess& one : living) kill(one.pid, SIGKILL);
      usleep(turn < 5 ? 1'000 : 10'000);
    }
  } catch (const std::exception&) {  // out of memory
    return false;
  }
  return false;
}

}  // namespace luff
