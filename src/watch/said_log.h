#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "luff/base/result.h"
#include "luff/rules/finding.h"

/// Which findings were said already: a file of JSON lines, which is what is said. A process that is killed
/// and started again reads it, so that no finding is missing and none stands there twice.
namespace luff::watch {

/// **Thread-compatible.** One process writes it at a time: the caller holds the lock of its folder.
class SaidLog {
 public:
  /// Reads the file, made if absent, and cuts off a line that was not finished. Errors: kIo,
  /// kResourceExhausted for one larger than 1 GiB.
  [[nodiscard]] static Result<SaidLog> Open(std::string path);

  /// Whether an event of a finding is news: it is new, worse than what was said, or healed. `run`: the run's
  /// name and id.
  [[nodiscard]] bool IsNews(std::string_view run, const rules::Finding& finding,
                            std::string_view event) const;
  /// Whether anything was said of the finding.
  [[nodiscard]] bool Knows(std::string_view run, const rules::Finding& finding) const;
  /// Somebody else says it, in the commit of that number; 0: it is known to be said.
  void KnowOfOthers(std::string_view run, const rules::Finding& finding, std::string_view event,
                    std::uint64_t number);
  /// Whether it is ours to say what the commit of that number has: neither this file has it nor an earlier
  /// commit of another.
  [[nodiscard]] bool IsOursToSay(std::string_view run, const rules::Finding& finding, std::string_view event,
                                 std::uint64_t number) const;
  /// Appends {"run":...,"run_id":...,<the finding>} and forgets it is news. Errors: those of writing; then it
  /// is still news.
  [[nodiscard]] Status Say(const std::string& name, const std::string& run_id, const rules::Finding& finding,
                           const std::string& event);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  explicit SaidLog(std::string path) : path_(std::move(path)) {}
  void Know(std::string_view run, const rules::Finding& finding, std::string_view event);
  /// Whether this file has it, or a commit of another before that number.
  [[nodiscard]] bool Has(std::string_view run, const rules::Finding& finding, std::string_view what,
                         std::uint64_t before) const;
  [[nodiscard]] bool IsNewsBefore(std::string_view run, const rules::Finding& finding, std::string_view event,
                                  std::uint64_t before) const;

  std::string path_;
  std::unordered_set<std::uint64_t> said_;                       // hashes of run, finding and event
  std::set<std::pair<std::uint64_t, std::uint64_t>> of_others_;  // and in which commit
};

/// How SaidLog calls a run.
[[nodiscard]] std::string RunKey(const std::string& name, const std::string& run_id);

}  // namespace luff::watch
