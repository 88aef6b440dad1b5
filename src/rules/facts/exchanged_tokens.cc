#include "rules/facts/exchanged_tokens.h"

#include <map>
#include <vector>

#include "base/format.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr std::size_t kLeastTokens = 8;  // rows, and ids of a row

}  // namespace

std::optional<ExchangedTokens::Found> ExchangedTokens::Add(const StepView& view) {
  for (const LossCall& call : LossReader::Read(view)) {
    if (!IsIds(call.target.dtype)) continue;
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (!IsIds(input.entry->dtype)) continue;
      const auto ids = LoadSample(view, *input.entry);
      if (ids == nullptr || ids->shape.size() != 2 || !ids->whole()) continue;
      const Rows rows = RowsOf(*ids);
      if (rows.count < kLeastTokens || rows.width < kLeastTokens ||
          ElementsOf(call.target.whole_shape) != ids->values.size())
        continue;
      const std::size_t targets = call.target.values.size() / rows.width;  // rows that were kept
      if (targets < kLeastTokens) continue;
      const auto text = [&](const std::vector<double>& values, std::size_t row, std::size_t from) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * rows.width + from);
        return std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(rows.width - 1));
      };
      std::map<std::vector<double>, std::vector<std::size_t>> owners;
      for (std::size_t i = 0; i < rows.count; ++i) owners[text(ids->values, i, 1)].push_back(i);
      Found found{.loss = call.loss, .rows = targets};
      for (std::size_t i = 0; i < targets; ++i) {
        const std::vector<double> target = text(call.target.values, i, 0);
        // The ids themselves, which the model shifts: windows that follow each other hold them, too.
        if (i < rows.count && target == text(ids->values, i, 0)) {
          ++found.own;
          continue;
        }
        const auto owner = owners.find(target);
        if (owner == owners.end() || owner->second.size() != 1) continue;
        ++(owner->second.front() == i ? found.own : found.other);
      }
      if (found.own + found.other == 0) continue;
      batches_ = 2 * found.other > targets && 4 * found.own <= targets ? batches_ + 1 : 0;
      if (batches_ >= kBatches) return found;
    }
  }
  return std::nullopt;
}

void TellExchangedTokens(const ExchangedTokens::Found& found, Finding* finding) {
  finding->severity = Severity::kStop;
  finding->what =
      fmt::format("{} of {} rows of targets are the next tokens of another row", found.other, found.rows);
  finding->why =
      "each of them is, id by id, what follows in the sequence of another row of the same batch, and not "
      "in that of its own";
  finding->remedy =
      "cut inputs and targets out of one array with the same index, and shuffle or sort both alike";
  finding->causes = {"targets shuffled or sorted apart from the inputs",
                     "rows of inputs and targets drawn by two random numbers"};
  finding->evidence = {{"rows", found.rows}, {"of_another_row", found.other}, {"of_the_own_row", found.own}};
  finding->threshold =
      fmt::format("half of the rows of {} captured batches in a row (Luff)", ExchangedTokens::kBatches);
}

}  // namespace luff::rules
