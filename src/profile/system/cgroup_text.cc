#include "profile/system/cgroup_text.h"

#include <algorithm>
#include <optional>

#include "profile/system/text.h"

namespace luff::profile {
namespace {

constexpr std::size_t kMaxPath = 4096, kMaxMounts = 256;

/// A mount of control groups.
struct Mount {
  std::string root, point, options;  // options: "rw,cpu,cpuacct"
  bool v2 = false;
};

/// "\040" and the like stand for what separates words.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      int code = 0;
      bool octal = true;
      for (std::size_t d = 1; d <= 3; ++d) {
        octal = octal && text[i + d] >= '0' && text[i + d] <= '7';
        code = code * 8 + (text[i + d] - '0');
      }
      if (octal && code > 0 && code < 256) {
        plain += static_cast<char>(code);
        i += 3;
        continue;
      }
    }
    plain += text[i];
  }
  return plain;
}

std::vector<Mount> MountsUntrusted(std::string_view text) {
  std::vector<Mount> mounts;
  while (!text.empty() && mounts.size() < kMaxMounts) {
    std::string_view line = TakeLine(&text);
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos || line.size() > 4 * kMaxPath) continue;
    std::string_view after = line.substr(dash + 3);
    const std::string_view type = TakeWord(&after);
    if (type != "cgroup" && type != "cgroup2") continue;
    (void)TakeWord(&after);  // source
    std::string_view before = line.substr(0, dash);
    for (int i = 0; i < 3; ++i) (void)TakeWord(&before);  // id, parent, device
    Mount mount;
    mount.root = Unescaped(TakeWord(&before));
    mount.point = Unescaped(TakeWord(&before));
    mount.options = std::string(TakeWord(&after));
    mount.v2 = type == "cgroup2";
    if (!mount.point.empty() && mount.point.front() == '/') mounts.push_back(std::move(mount));
  }
  return mounts;
}

bool HasOption(std::string_view options, std::string_view wanted) noexcept {
  while (!options.empty()) {
    if (TakeUntil(&options, ',') == wanted) return true;
  }
  return false;
}

bool LeadsUp(std::string_view path) noexcept {
  while (!path.empty()) {
    if (TakeUntil(&path, '/') == "..") return true;
  }
  return false;
}

/// The folder of a group, as seen through a mount.
std::string FolderIn(const Mount& mount, std::string_view group) {
  std::string_view below = group;
  if (mount.root != "/") {
    if (group.starts_with(mount.root) &&
        (group.size() == mount.root.size() || group[mount.root.size()] == '/')) {
      below = group.substr(mount.root.size());
    } else {
      below = {};
    }
  }
  if (below == "/" || LeadsUp(below)) below = {};
  return mount.point + std::string(below);
}

}  // namespace

CgroupFolders FindCgroupsUntrusted(std::string_view groups, std::string_view mounts_text) {
  CgroupFolders found;
  const std::vector<Mount> mounts = MountsUntrusted(mounts_text);
  std::size_t lines = 0;
  while (!groups.empty() && ++lines <= kMaxMounts) {
    std::string_view line = TakeLine(&groups);
    const std::string_view number = TakeUntil(&line, ':');
    const std::string_view controllers = TakeUntil(&line, ':');
    const std::string_view group = line;
    if (group.empty() || group.front() != '/' || group.size() > kMaxPath) continue;
    const auto folder = [&](auto matches) -> std::string {
      const auto at = std::ranges::find_if(mounts, matches);
      return at == mounts.end() ? std::string() : FolderIn(*at, group);
    };
    if (number == "0" && controllers.empty()) {
      found.unified = folder([](const Mount& mount) { return mount.v2; });
      continue;
    }
    const std::pair<std::string_view, std::string*> wanted[] = {
        {"cpu", &found.cpu}, {"cpuacct", &found.cpuacct}, {"memory", &found.memory}, {"blkio", &found.io}};
    for (const auto& [controller, to] : wanted) {
      if (!HasOption(controllers, controller)) continue;
      *to = folder([&](const Mount& mount) { return !mount.v2 && HasOption(mount.options, controller); });
    }
  }
  // What version 1 does not have is with version 2.
  if (!found.unified.empty()) {
    if (found.cpu.empty()) found.cpu = found.unified, found.v2_cpu = true;
    if (found.memory.empty()) found.memory = found.unified, found.v2_memory = true;
    if (found.io.empty()) found.io = found.unified, found.v2_io = true;
  }
  return found;
}

CpuUse ParseCpuStatUntrusted(std::string_view text) {
  CpuUse use;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    const Counted value = TakeNumber(&line);
    if (key == "usage_usec") use.usage_ns = Scaled(value, 1000);
    if (key == "nr_periods") use.periods = value;
    if (key == "nr_throttled") use.throttled_periods = value;
    if (key == "throttled_usec") use.throttled_ns = Scaled(value, 1000);
    if (key == "throttled_time") use.throttled_ns = value;
  }
  return use;
}

Counted CoresOfQuotaUntrusted(std::string_view quota, std::string_view period) {
  std::string_view first = TakeLine(&quota), second = TakeLine(&period);
  const Counted of = TakeNumber(&first), in = TakeNumber(&second);
  const Counted millions = Scaled(of, 1'000'000);
  if (!millions || !in || *in == 0) return std::nullopt;
  return *millions / *in;
}

Counted ParseCpuMaxUntrusted(std::string_view text) {
  std::string_view line = TakeLine(&text);
  const std::string_view quota = TakeWord(&line);
  return CoresOfQuotaUntrusted(quota, TakeWord(&line));
}

Counted ParseOomKillsUntrusted(std::string_view text) {
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    if (TakeWord(&line) == "oom_kill") return TakeNumber(&line);
  }
  return std::nullopt;
}

IoUse ParseIoStatUntrusted(std::string_view text) {
  IoUse use;
  const auto add = [](Counted* to, Counted more) {
    if (more) *to = std::min(to->value_or(0) + *more, std::int64_t{1} << 60U);
  };
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    for (std::string_view word = TakeWord(&line); !word.empty(); word = TakeWord(&line)) {
      if (word.starts_with("rbytes=")) add(&use.read, NumberOf(word.substr(7)));
      if (word.starts_with("wbytes=")) add(&use.written, NumberOf(word.substr(7)));
    }
  }
  return use;
}

}  // namespace luff::profile
