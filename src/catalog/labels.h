#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "luff/base/result.h"
#include "luff/store/control.h"

/// What people say of a run: tags, a title, a note. Records of kind "label" in the run's control log
/// (docs/spec/control.md).
namespace luff::catalog {

inline constexpr std::size_t kMaxTags = 64;
inline constexpr std::size_t kMaxTagBytes = 64, kMaxTitleBytes = 256, kMaxNoteBytes = 4096;

struct Label {
  std::vector<std::string> tags;  // sorted
  std::string title, note;        // "" if there is none
};

/// One change, and who made it.
struct LabelChange {
  std::vector<std::string> add = {}, remove = {};    // tags
  std::optional<std::string> title = {}, note = {};  // "" removes it
  std::string author = {};
  std::int64_t unix_ns = 0;
};

/// All changes together; records that are damaged or too large are left out, as are all if the log cannot be
/// read.
[[nodiscard]] Label LabelOf(const std::string& run);
/// Each change by itself, the newest last.
[[nodiscard]] std::vector<LabelChange> LabelChangesOf(const std::string& run);

/// Writes a change; returns the number of its record. Errors: kInvalidArgument for a change of nothing, a tag
/// that is empty, longer than kMaxTagBytes, or has blanks, commas or control characters, a title with control
/// characters, texts that are too long; kResourceExhausted beyond kMaxTags; kFailedPrecondition (another
/// user's run), kNotFound, kIo, those of `sign`, which may be null.
[[nodiscard]] Result<std::uint64_t> ChangeLabel(const std::string& run, const LabelChange& change,
                                                const store::RecordSigner& sign = {});

/// Says what is wrong with a tag. Errors: kInvalidArgument.
[[nodiscard]] Status CheckTag(const std::string& tag);

/// Reads a change as records and requests hold it: `add`, `remove`: lists of texts; `title`, `note`: texts.
/// Errors: kInvalidArgument for anything else.
[[nodiscard]] Result<LabelChange> ParseLabelUntrusted(std::string_view json);

}  // namespace luff::catalog
