#pragma once
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

/// Names of files in a run directory.
namespace luff::store {

/// How many names of a path RUN/WORKER/FILE lie in the run, which others may have made (base/bounded_read.h).
inline constexpr std::size_t kNamesInRun = 2;

inline std::string WorkerDirectory(const std::string& run_path, std::uint32_t worker) {
  char name[16];
  std::snprintf(name, sizeof(name), "/w%04u", worker);
  return run_path + name;
}

/// The folder of a host's sampler. It has the files of a worker's folder.
inline std::string HostDirectory(const std::string& run_path, std::uint32_t host) {
  char name[16];
  std::snprintf(name, sizeof(name), "/h%04u", host);
  return run_path + name;
}

/// m-NNNNNN.lfm, or m-NNNNNN-G.lfm for a segment that was merged G times.
inline std::string MetaFileName(std::uint64_t sequence, std::uint32_t generation = 0) {
  char name[48];
  if (generation == 0) {
    std::snprintf(name, sizeof(name), "m-%06llu.lfm", static_cast<unsigned long long>(sequence));
  } else {
    std::snprintf(name, sizeof(name), "m-%06llu-%u.lfm", static_cast<unsigned long long>(sequence),
                  generation);
  }
  return name;
}
inline std::string DataFileName(std::uint64_t sequence) {
  char name[32];
  std::snprintf(name, sizeof(name), "d-%06llu.lfd", static_cast<unsigned long long>(sequence));
  return name;
}

struct StreamFileName {
  bool meta = false;
  std::uint64_t sequence = 0;
  std::uint32_t generation = 0;
};

/// Returns nullopt for any other name, including temporary files.
inline std::optional<StreamFileName> ParseStreamFileName(std::string_view name) {
  StreamFileName parsed;
  if (name.size() < 12 || name.size() > 40 || name[1] != '-') return std::nullopt;
  std::string_view suffix = name.substr(name.size() - 4);
  if (name[0] == 'm' && suffix == ".lfm")
    parsed.meta = true;
  else if (name[0] != 'd' || suffix != ".lfd")
    return std::nullopt;
  std::string_view digits = name.substr(2, name.size() - 6);
  std::uint64_t number = 0;
  std::size_t at = 0;
  for (; at < digits.size() && digits[at] >= '0' && digits[at] <= '9'; ++at) {
    if (at >= 15) return std::nullopt;
    number = number * 10 + static_cast<std::uint64_t>(digits[at] - '0');
  }
  if (at < 6) return std::nullopt;
  parsed.sequence = number;
  if (at < digits.size()) {
    if (!parsed.meta || digits[at] != '-') return std::nullopt;
    std::uint64_t generation = 0;
    ++at;
    if (at == digits.size() || digits.size() - at > 6) return std::nullopt;
    for (; at < digits.size(); ++at) {
      if (digits[at] < '0' || digits[at] > '9') return std::nullopt;
      generation = generation * 10 + static_cast<std::uint64_t>(digits[at] - '0');
    }
    parsed.generation = static_cast<std::uint32_t>(generation);
  }
  return parsed;
}

}  // namespace luff::store
