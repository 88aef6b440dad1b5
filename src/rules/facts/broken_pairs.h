#pragma once
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "luff/rules/finding.h"
#include "rules/facts/json_event.h"

namespace luff::rules {

/// Says in a finding what the event `broken_pairs` (docs/spec/evidence.md) tells: a model's inputs come from
/// one loader and the targets of its loss from another, and each shuffles for itself. False for a malformed
/// event.
[[nodiscard]] inline bool TellBrokenPairs(const nlohmann::json& event, Finding* finding) {
  const double rows = NumberIn(event, "samples");
  const double batch = NumberIn(event, "batch_size");
  if (!(rows > 0) || !(batch > 0)) return false;
  finding->what =
      "the model's inputs come from one loader and the targets of its loss from another, and each shuffles "
      "for itself";
  finding->why = fmt::format(
      "both go through {:.0f} rows, each in an order of its own (their seeds differ): a row meets its own "
      "target only by chance, and another one in each pass",
      rows);
  finding->remedy =
      "put inputs and targets into one dataset, whose rows hold both, and use one loader: "
      "DataLoader(TensorDataset(inputs, targets), shuffle=True)";
  finding->causes = {"two loaders with shuffle=True that zip() joins"};
  finding->evidence = {{"rows", rows}, {"batch_size", batch}};
  finding->threshold = "a fact of three steps in a row, by memory and by seeds (Luff)";
  return true;
}

}  // namespace luff::rules
