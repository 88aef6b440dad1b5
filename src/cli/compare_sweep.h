#pragma once
#include <string>

namespace luff::cli {

/// `luff compare --sweep NAME [DIR]`. `by`: names of parameters, with commas between; "": those that tell bad
/// trials from others, or else the first that differ.
[[noreturn]] void CompareSweep(const std::string& folder, const std::string& sweep, const std::string& by,
                               bool json);

}  // namespace luff::cli
