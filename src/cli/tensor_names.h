#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "luff/query/trial.h"

/// Tensors by what a person calls them: "loss", "Weights", "fc1".
namespace luff::cli {

/// Names of the tensors of a role ("loss" or "losses") or a collection; if there are none, those that contain
/// the word, whatever its case. Ordered as in the trial.
[[nodiscard]] std::vector<std::string> NamesMeantBy(const query::Trial& trial, std::string_view word);

/// The tensor of this name, or the only one that is meant by it. Errors: kNotFound, which lists several that
/// may be meant, or the nearest names.
[[nodiscard]] Result<query::TensorId> FindMeant(const query::Trial& trial, const std::string& word);

}  // namespace luff::cli
