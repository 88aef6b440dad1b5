// luff_golden DIRECTORY: writes the golden run and its JSON twin there (testdata/format/v1.2). Needs an
// ADR: the bytes of a published format never change.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "golden.h"

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: luff_golden DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!luff::store::WriteGoldenRun((directory / "run").string())) return 1;
  std::ofstream(directory / "run.expected.json") << luff::store::GoldenTwin();
  return 0;
}
