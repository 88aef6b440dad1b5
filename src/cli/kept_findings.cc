#include "cli/kept_findings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/bounded_read.h"
#include "base/format.h"
#include "luff/base/env.h"

namespace luff::cli {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxFileBytes = 256ULL << 20;
constexpr std::size_t kMaxEvaluators = 1000;

class Collector {
 public:
  explicit Collector(std::string run) : run_(std::move(run)) {}

  void File(const std::string& name) {
    const std::string path = run_ + "/rules/" + name + "/findings.jsonl";
    const Result<std::string> text = ReadRegular(path, kMaxFileBytes, kFindingsInRun);
    if (!text.ok()) {
      if (text.status().code() != StatusCode::kNotFound)
        kept_.problems.push_back(fmt::format("findings are not read: {}", text.status().message()));
      return;
    }
    const std::string_view lines = *text;
    for (std::size_t from = 0; from < lines.size();) {
      const std::size_t end = lines.find('\n', from);
      // The last line may not be completely written yet.
      const bool whole = end != std::string_view::npos;
      Line(lines.substr(from, whole ? end - from : end), whole);
      from = whole ? end + 1 : lines.size();
    }
  }

  KeptFindings Kept() && {
    if (unreadable_ > 0)
      kept_.problems.push_back(
          fmt::format("{} lines are no findings: {}/rules/*/findings.jsonl", unreadable_, run_));
    if (left_out_ > 0)
      kept_.problems.push_back(
          fmt::format("{} findings beyond the first {} are not shown: {}/rules/*/findings.jsonl", left_out_,
                      kMaxFindings, run_));
    return std::move(kept_);
  }

 private:
  void Line(std::string_view line, bool whole) {
    if (line.empty()) return;
    auto parsed = rules::ParseFindingUntrusted(line);
    if (!parsed.ok()) {
      unreadable_ += whole ? 1 : 0;
      return;
    }
    rules::Finding& finding = parsed.value().first;
    const auto known = place_.find(finding.id);
    if (known != place_.end()) {
      kept_.findings[known->second] = std::move(finding);
    } else if (kept_.findings.size() < kMaxFindings) {
      place_.emplace(finding.id, kept_.findings.size());
      kept_.findings.push_back(std::move(finding));
    } else {
      ++left_out_;
    }
  }

  const std::string run_;
  KeptFindings kept_;
  std::unordered_map<std::string, std::size_t> place_;  // by id
  std::uint64_t unreadable_ = 0, left_out_ = 0;
};

}  // namespace

KeptFindings FindingsOfRun(const std::string& run) {
  std::vector<std::string> evaluators;
  std::error_code error;
  for (fs::directory_iterator at(run + "/rules", error), end;
       !error && at != end && evaluators.size() < kMaxEvaluators; at.increment(error))
    evaluators.push_back(at->path().filename().string());
  std::sort(evaluators.begin(), evaluators.end());
  Collector collector(run);
  for (const std::string& name : evaluators) collector.File(name);
  return std::move(collector).Kept();
}

std::vector<rules::RuleCoverage> CoverageOfRun(const std::string& run) {
  constexpr std::uint64_t kMaxBytes = 64ULL << 20;
  const auto text = ReadRegular(run + "/rules/luff/checkpoint.json", kMaxBytes, kFindingsInRun);
  if (!text.ok()) return {};
  auto coverage = rules::ParseCoverageUntrusted(*text);
  return coverage.ok() ? std::move(coverage).value() : std::vector<rules::RuleCoverage>{};
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
  std::unordered_set<std::string_view> known;
  std::unordered_map<std::string_view, std::vector<const rules::Finding*>> followers;  // by leader
  for (const rules::Finding& finding : findings) {
    known.insert(finding.id);
    if (!finding.leader.empty()) followers[finding.leader].push_back(&finding);
  }
  std::vector<const rules::Finding*> ordered;
  std::unordered_set<const rules::Finding*> taken;
  const auto take = [&](const rules::Finding* finding) {
    if (taken.insert(finding).second) ordered.push_back(finding);
  };
  for (const rules::Finding& leader : findings) {
    if (!leader.leader.empty() && known.contains(leader.leader)) continue;
    take(&leader);
    if (const auto at = followers.find(leader.id); at != followers.end()) {
      for (const rules::Finding* follower : at->second) take(follower);
      at->second.clear();
    }
  }
  // Adds the rest: followers of followers, whose former leader now follows another finding.
  for (const rules::Finding& finding : findings) take(&finding);
  return ordered;
}

}  // namespace luff::cli
