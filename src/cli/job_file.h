#pragma once
#include <string>
#include <string_view>

#include "luff/base/result.h"

/// A job's configuration in SageMaker's JSON, translated by `python -m luff._verbs.sagemaker`.
namespace luff::cli {

/// True for files that must be translated: those that end in ".json".
[[nodiscard]] bool IsJobFile(std::string_view path) noexcept;

/// Returns the configuration as luff.toml would state it. Reports on standard error what Luff cannot do.
/// Bounded: 60 s, 1 MiB. Errors: kNotFound (no Python beside the luff command), kInvalidArgument with key,
/// place and remedy.
[[nodiscard]] Result<std::string> TranslateJobFile(const std::string& path);

/// Evaluates rules of SageMaker's profiler over a finished run and prints on stderr what they say. `folder`:
/// where they write their reports; "": nowhere. At most 10 minutes.
void TellProfilerRules(const std::string& run, const std::string& rules, const std::string& folder);

}  // namespace luff::cli
