#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bounded_read.h"
#include "luff/base/result.h"

/// Reads files of a directory that another program writes: they may hold anything, be of any size, and
/// disappear.
namespace luff::query {

/// Lists the names in a folder, sorted, and whether each is a folder. Returns false and sets errno if it
/// cannot.
[[nodiscard]] bool ListFolder(const std::string& path, std::vector<std::pair<std::string, bool>>* names);
/// Time of the last change; -1 if there is no such file.
[[nodiscard]] std::int64_t MtimeNs(const std::string& path) noexcept;
/// Reads a whole file of at most 256 MiB below the directory `root`, and its time of change.
[[nodiscard]] Status ReadSmallFile(const std::string& root, const std::string& name, std::string* text,
                                   std::int64_t* mtime_ns);
/// Opens a file below the directory `root`.
[[nodiscard]] Result<std::unique_ptr<RegularFile>> OpenFile(const std::string& root, const std::string& name);

}  // namespace luff::query
