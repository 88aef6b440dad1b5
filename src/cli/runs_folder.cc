#include "cli/runs_folder.h"

#include <cstdio>
#include <filesystem>

#include "base/format.h"
#include "catalog/catalog.h"
#include "cli/reading.h"
#include "cli/terminal.h"

namespace luff::cli {

std::string RunsFolderOrExit(const std::string& given) {
  const std::string home = catalog::Home();
  if (IsUrl(given))
    ExitWithError(InvalidArgument(
        "this needs a directory of runs; those of a bucket are listed by `luff runs " + given + "`"));
  if (given.empty() && home.empty())
    ExitWithError(InvalidArgument("neither LUFF_HOME nor HOME is set; name the directory of the runs"));
  std::string folder =
      std::filesystem::absolute(given.empty() ? home + "/runs" : given).lexically_normal().string();
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

std::string IndexFile() {
  const std::string home = catalog::Home();
  return home.empty() ? std::string() : home + "/catalog.sqlite3";
}

void PrintReading(std::size_t done, std::size_t all) {
  constexpr std::size_t kWorthTelling = 200;
  if (all < kWorthTelling || !StderrIsTerminal() || (done % 50 != 0 && done != all)) return;
  fmt::print(stderr, "\rluff: reading {} of {} runs{}", done, all, done == all ? "\n" : "");
}

}  // namespace luff::cli
