#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "luff/query/trial.h"
#include "luff/rules/finding.h"

/// What `luff plot RUN` draws if nothing is named.
namespace luff::cli {

struct Overview {
  std::vector<std::string> names;           // tensors, what matters first
  std::map<query::Role, std::size_t> left;  // how many are not drawn
};

/// Losses, tensors that findings name, learning rate, norms of gradients, then the training's own scalars.
/// `charts`: how many there may be; a tensor with values in training and evaluation takes two.
[[nodiscard]] Overview OverviewOf(const query::Trial& trial, const std::vector<rules::Finding>& findings,
                                  std::size_t charts);

/// "12 gradients, 4 weights", the most frequent first; "" if nothing was left out.
[[nodiscard]] std::string LeftText(const Overview& overview);

}  // namespace luff::cli
