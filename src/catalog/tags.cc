#include "catalog/tags.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "luff/base/env.h"

namespace luff::catalog {
namespace {

constexpr std::uint64_t kMaxFileBytes = 64 << 10;

std::string FileOf(const std::string& run) { return run + "/tags.json"; }

}  // namespace

Status CheckTag(const std::string& tag) {
  const bool strange = std::any_of(tag.begin(), tag.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == ',' || c == 127;
  });
  if (!tag.empty() && tag.size() <= kMaxTagBytes && !strange && tag.front() != '-') return Status::Ok();
  return InvalidArgument(fmt::format(
      "a tag is a word of at most {} bytes without blanks and commas that does not begin with '-': '{}'",
      kMaxTagBytes, Escaped(tag)));
}

std::vector<std::string> TagsOf(const std::string& run) {
  const auto text = ReadRegular(FileOf(run), kMaxFileBytes, 1);
  if (!text.ok()) return {};
  const nlohmann::json json = TryParseJson(*text);
  if (!json.is_array()) return {};
  std::set<std::string> tags;
  for (const nlohmann::json& one : json) {
    if (one.is_string() && tags.size() < kMaxTags && CheckTag(one.get<std::string>()).ok())
      tags.insert(one.get<std::string>());
  }
  return {tags.begin(), tags.end()};
}

Status ChangeTags(const std::string& run, const std::vector<std::string>& add,
                  const std::vector<std::string>& remove) {
  const std::vector<std::string> before = TagsOf(run);
  std::set<std::string> tags(before.begin(), before.end());
  for (const std::string& tag : add) {
    LUFF_RETURN_IF_ERROR(CheckTag(tag));
    tags.insert(tag);
  }
  for (const std::string& tag : remove) tags.erase(tag);
  if (tags.size() > kMaxTags)
    return ResourceExhausted(fmt::format("a run has at most {} tags: {}", kMaxTags, run));
  return WriteWholeFile(Env::Real(), FileOf(run), JsonText(nlohmann::json(tags)) + "\n");
}

}  // namespace luff::catalog
