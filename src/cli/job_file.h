#pragma once
#include <string>
#include <string_view>

#include "luff/base/result.h"

/// A job's configuration in the JSON of SageMaker, translated by `python -m luff._verbs.sagemaker`.
namespace luff::cli {

/// True for files that are translated first: they end in ".json".
[[nodiscard]] bool IsJobFile(std::string_view path) noexcept;

/// The same as luff.toml says it. What cannot be done here is told on standard error. Bounded: 60 s, 1 MiB.
/// Errors: kNotFound (no Python beside the luff command), kInvalidArgument with key, place and remedy.
[[nodiscard]] Result<std::string> TranslateJobFile(const std::string& path);

}  // namespace luff::cli
