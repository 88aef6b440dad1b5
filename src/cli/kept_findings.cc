#include "cli/kept_findings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "base/format.h"

namespace luff::cli {
namespace fs = std::filesystem;

KeptFindings FindingsOfRun(const std::string& run) {
  constexpr std::size_t kMaxLine = 1U << 20;
  KeptFindings kept;
  std::map<std::string, std::size_t> place;
  std::error_code error;
  for (fs::directory_iterator at(run + "/rules", error), end; !error && at != end; at.increment(error)) {
    std::ifstream file(at->path() / "findings.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (line.empty()) continue;
      auto parsed =
          line.size() > kMaxLine
              ? Result<std::pair<rules::Finding, std::string>>(ResourceExhausted("a line of more than 1 MiB"))
              : rules::ParseFindingUntrusted(line);
      if (!parsed.ok()) {
        // The last line may still be on its way to the file.
        if (!file.eof()) ++kept.unreadable;
        continue;
      }
      rules::Finding& finding = parsed.value().first;
      const auto [known, fresh] = place.emplace(finding.id, kept.findings.size());
      if (fresh)
        kept.findings.push_back(std::move(finding));
      else
        kept.findings[known->second] = std::move(finding);
    }
  }
  return kept;
}

Result<std::string> NewestRun() {
  const char* home = std::getenv("LUFF_HOME");
  const char* user = std::getenv("HOME");
  const std::string runs = home != nullptr   ? std::string(home) + "/runs"
                           : user != nullptr ? std::string(user) + "/.luff/runs"
                                             : std::string();
  std::error_code error;
  std::string newest;
  fs::file_time_type newest_time{};
  for (fs::directory_iterator it(runs, error), end; !error && it != end; it.increment(error)) {
    std::error_code failed;
    const std::string file = it->path().string() + "/run.json";
    const fs::file_time_type time = fs::last_write_time(file, failed);
    if (failed || (!newest.empty() && time <= newest_time)) continue;
    newest = it->path().string();
    newest_time = time;
  }
  if (newest.empty()) return NotFound(fmt::format("there is no run; name one with --run: {}", runs));
  return newest;
}

std::vector<const rules::Finding*> InGroups(const std::vector<rules::Finding>& findings) {
  std::vector<const rules::Finding*> ordered;
  const auto known = [&](const std::string& id) {
    return std::any_of(findings.begin(), findings.end(), [&](const auto& f) { return f.id == id; });
  };
  for (const rules::Finding& leader : findings) {
    if (!leader.leader.empty() && known(leader.leader)) continue;
    ordered.push_back(&leader);
    for (const rules::Finding& follower : findings) {
      if (follower.leader == leader.id && &follower != &leader) ordered.push_back(&follower);
    }
  }
  // A follower of a follower (a leader that was taken over by one no longer there): nothing is left out.
  for (const rules::Finding& finding : findings) {
    if (std::find(ordered.begin(), ordered.end(), &finding) == ordered.end()) ordered.push_back(&finding);
  }
  return ordered;
}

}  // namespace luff::cli
