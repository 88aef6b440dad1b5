#pragma once
#include <string>
#include <vector>

#include "luff/base/status.h"

/// Words that a person gave a run: RUN/tags.json, a list of texts.
namespace luff::catalog {

inline constexpr std::size_t kMaxTags = 64;
inline constexpr std::size_t kMaxTagBytes = 64;

/// Sorted; empty if there are none, or if the file cannot be read.
[[nodiscard]] std::vector<std::string> TagsOf(const std::string& run);

/// Adds and removes tags; replaces the file as a whole. Errors: kInvalidArgument for a tag that is empty,
/// longer than kMaxTagBytes, or has blanks, commas or control characters; kResourceExhausted beyond kMaxTags;
/// those of writing.
[[nodiscard]] Status ChangeTags(const std::string& run, const std::vector<std::string>& add,
                                const std::vector<std::string>& remove);

/// Says what is wrong with a tag. Errors: kInvalidArgument.
[[nodiscard]] Status CheckTag(const std::string& tag);

}  // namespace luff::catalog
