#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "luff/base/regex.h"
#include "luff/query/trial.h"

namespace luff::query {

/// Collections of a directory that smdebug wrote, and the roles and module paths that follow from its
/// tensors' names.
class SmdebugCollections {
 public:
  struct Problem {
    std::string file;  // its name
    std::uint64_t offset = 0;
    std::string what;  // what was found
  };
  /// `texts`: collections files by name. Reports invalid files in `problems`.
  void Parse(const std::map<std::string, std::string>& texts, std::vector<Problem>* problems);
  /// Number of workers that the trial waits for; 1 if no file gives it.
  [[nodiscard]] std::uint32_t num_workers() const noexcept { return num_workers_; }
  [[nodiscard]] std::vector<std::string> Names() const;
  /// Fills in collections, role and module path of the tensor of this name.
  void Describe(TensorInfo* info) const;
  /// The collections of the first valid file, as JSON; "" if there is none.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  struct Collection {
    std::set<std::string, std::less<>> tensors;
    std::set<std::string> patterns;
    std::vector<Regex> regexes;
  };
  std::map<std::string, Collection> collections_;
  std::uint32_t num_workers_ = 1;
  std::string text_;
};

}  // namespace luff::query
