#pragma once
#include "rules/facts/loss_call.h"
#include "rules/facts/row_examples.h"

namespace luff::rules {

/// Whether an input, or a column of it, tells the targets of a call by itself: it equals them, names each
/// class by another number (or zeros and a one), or rises or falls with them from row to row. Then the model
/// is given its labels, as one that returns its own loss is, and what a line makes of them says nothing of
/// the other inputs. By chance it is so in a call of a few rows. Reads rows, count, targets, kind and
/// as_they_are.
[[nodiscard]] bool HoldsTargets(const SampleValues& sample, const RowExamples& examples);

}  // namespace luff::rules
