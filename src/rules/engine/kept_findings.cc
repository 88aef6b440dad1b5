#include "luff/rules/kept_findings.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/bounded_read.h"
#include "base/format.h"
#include "luff/base/env.h"

namespace luff::rules {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxFileBytes = 256ULL << 20;
constexpr std::size_t kMaxEvaluators = 1000;

std::string FileOf(const std::string& run, const std::string& evaluator) {
  return run + "/rules/" + evaluator + "/findings.jsonl";
}

std::vector<std::string> EvaluatorsOf(const std::string& run) {
  std::vector<std::string> evaluators;
  std::error_code error;
  for (fs::directory_iterator at(run + "/rules", error), end;
       !error && at != end && evaluators.size() < kMaxEvaluators; at.increment(error))
    evaluators.push_back(at->path().filename().string());
  std::sort(evaluators.begin(), evaluators.end());
  return evaluators;
}

class Collector {
 public:
  explicit Collector(std::string run) : run_(std::move(run)) {}

  void File(const std::string& name) {
    const Result<std::string> text = ReadRegular(FileOf(run_, name), kMaxFileBytes, kFindingsInRun);
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
    auto parsed = ParseFindingUntrusted(line);
    if (!parsed.ok()) {
      unreadable_ += whole ? 1 : 0;
      return;
    }
    Finding& finding = parsed.value().first;
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
  Collector collector(run);
  for (const std::string& name : EvaluatorsOf(run)) collector.File(name);
  return std::move(collector).Kept();
}

std::uint64_t FindingsStampOf(const std::string& run) {
  std::uint64_t stamp = 0xcbf29ce484222325ULL;  // FNV-1a over words
  const auto mix = [&stamp](auto word) {
    stamp = (stamp ^ static_cast<std::uint64_t>(word)) * 0x100000001b3ULL;
  };
  for (const std::string& name : EvaluatorsOf(run)) {
    struct stat info{};
    mix(std::hash<std::string>()(name));
    if (stat(FileOf(run, name).c_str(), &info) != 0) continue;
    for (const auto word :
         {static_cast<std::uint64_t>(info.st_ino), static_cast<std::uint64_t>(info.st_size),
          static_cast<std::uint64_t>(info.st_mtim.tv_sec), static_cast<std::uint64_t>(info.st_mtim.tv_nsec)})
      mix(word);
  }
  return stamp;
}

std::vector<Finding> TimeFindings(std::vector<Finding> findings, bool input) {
  std::erase_if(findings, [&](const Finding& one) {
    const bool about_time = one.saving || one.rule == "DebugLeftOn";
    return !about_time || one.healed || (one.rule == "InputBound" && !input);
  });
  const auto cost = [](const Finding& one) { return one.saving ? one.saving->seconds_a_step : 0; };
  std::ranges::stable_sort(findings, std::greater<>(), cost);
  return findings;
}

std::vector<const Finding*> InGroups(const std::vector<Finding>& findings) {
  std::unordered_set<std::string_view> known;
  std::unordered_map<std::string_view, std::vector<const Finding*>> followers;  // by leader
  for (const Finding& finding : findings) {
    known.insert(finding.id);
    if (!finding.leader.empty()) followers[finding.leader].push_back(&finding);
  }
  std::vector<const Finding*> ordered;
  std::unordered_set<const Finding*> taken;
  const auto take = [&](const Finding* finding) {
    if (taken.insert(finding).second) ordered.push_back(finding);
  };
  for (const Finding& leader : findings) {
    if (!leader.leader.empty() && known.contains(leader.leader)) continue;
    take(&leader);
    if (const auto at = followers.find(leader.id); at != followers.end()) {
      for (const Finding* follower : at->second) take(follower);
      at->second.clear();
    }
  }
  // Adds the rest: followers of followers, whose former leader now follows another finding.
  for (const Finding& finding : findings) take(&finding);
  return ordered;
}

}  // namespace luff::rules
