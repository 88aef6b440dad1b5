#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bounded_read.h"
#include "luff/base/result.h"

/// Files of somebody else's directory: what is there may be anything, of any size, and may go away.
namespace luff::query {

/// Names in a folder, sorted, and whether each is a folder; false (errno) when it cannot be listed.
[[nodiscard]] bool ListFolder(const std::string& path, std::vector<std::pair<std::string, bool>>* names);
/// Time of the last change, -1 for what is not there.
[[nodiscard]] std::int64_t MtimeNs(const std::string& path) noexcept;
/// A whole small file of the directory `root` and its time.
[[nodiscard]] Status ReadSmallFile(const std::string& root, const std::string& name, std::string* text,
                                   std::int64_t* mtime_ns);
/// A file of the directory `root`.
[[nodiscard]] Result<std::unique_ptr<RegularFile>> OpenFile(const std::string& root, const std::string& name);

}  // namespace luff::query
