// Fuzzes the reading of findings.jsonl: any bytes must give findings and problems that can be grouped and
// printed.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/report.h"
#include "luff/rules/kept_findings.h"

namespace {

namespace fs = std::filesystem;

const fs::path& Folder() {
  static const fs::path folder = [] {
    const char* shared = fs::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    const fs::path path = fs::path(shared) / ("luff-findings-fuzz-" + std::to_string(getpid()));
    fs::create_directories(path / "rules" / "luff");
    std::atexit([] { fs::remove_all(Folder()); });
    return path;
  }();
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace luff::cli;
  std::ofstream(Folder() / "rules" / "luff" / "findings.jsonl", std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const luff::rules::KeptFindings kept = luff::rules::FindingsOfRun(Folder().string());
  if (luff::rules::InGroups(kept.findings).size() != kept.findings.size()) std::abort();
  (void)FindingsInShort(kept.findings).size();
  std::vector<FindingEvent> events;
  for (const auto& finding : kept.findings) events.emplace_back(finding, "new");
  Teller teller(false, 80);
  (void)teller.Tell(events).size();
  return 0;
}
