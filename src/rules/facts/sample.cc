#include "rules/facts/sample.h"

#include "luff/tensor/hash.h"
#include "rules/facts/step_memo.h"

namespace luff::rules {
namespace {

constexpr std::uint64_t kStateBits = (1ULL << 52) - 1;

}  // namespace

const std::vector<ModelInput>& ModelInputsOf(const StepView& view) { return view.memo.ModelInputs(view); }

bool IsIds(DType dtype) noexcept {
  return dtype != DType::kBool && (IsSignedInteger(dtype) || IsUnsignedInteger(dtype));
}

Rows RowsOf(const SampleValues& sample) noexcept {
  Rows rows;
  if (sample.shape.empty() || sample.shape[0] <= 0) return rows;
  const std::size_t count = static_cast<std::size_t>(sample.shape[0]);
  if (sample.values.empty() || sample.values.size() % count != 0) return rows;
  rows.count = count;
  rows.width = sample.values.size() / count;
  return rows;
}

std::vector<std::uint64_t> RowHashes(const SampleValues& sample) {
  const Rows rows = RowsOf(sample);
  std::vector<std::uint64_t> hashes(rows.count);
  std::vector<double> row(rows.width);
  for (std::size_t i = 0; i < rows.count; ++i) {
    for (std::size_t j = 0; j < rows.width; ++j)
      row[j] = sample.values[i * rows.width + j] + 0.0;  // -0 + 0 is 0
    hashes[i] = HashBytes(row.data(), row.size() * sizeof(double)) & kStateBits;
  }
  return hashes;
}

query::StepInfo Anchor::Info() const noexcept {
  query::StepInfo info;
  info.mode = query::Mode::kTrain;
  info.mode_step = mode_step;
  info.global_step = global_step;
  info.update = update;
  return info;
}

std::optional<bool> IsTraining(const query::StepInfo& info, const Anchor& last) noexcept {
  if (info.superseded) return std::nullopt;
  if (info.mode == query::Mode::kTrain) return true;
  if (info.mode == query::Mode::kEval && last.mode_step >= 0) return false;
  return std::nullopt;
}

void Anchor::VisitFields(Fields& io) {
  io("mode_step", mode_step);
  io("global_step", global_step);
  io("update", update);
}

}  // namespace luff::rules
