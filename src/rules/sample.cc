#include "rules/sample.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>

#include <nlohmann/json.hpp>

#include "luff/tensor/hash.h"

namespace luff::rules {
namespace {

constexpr std::uint64_t kStateBits = (1ULL << 52) - 1;

// "sample/PREFIX_input_K"
bool Split(std::string_view name, std::string* prefix, std::size_t* index) {
  constexpr std::string_view kHead = "sample/";
  constexpr std::string_view kInput = "_input_";
  if (!name.starts_with(kHead)) return false;
  name.remove_prefix(kHead.size());
  const std::size_t at = name.rfind(kInput);
  if (at == std::string_view::npos || at == 0) return false;
  const std::string_view digits = name.substr(at + kInput.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *index);
  if (error != std::errc() || end != digits.data() + digits.size()) return false;
  *prefix = std::string(name.substr(0, at));
  return true;
}

// A loss has told its value under the same name.
bool IsLoss(const query::Trial& trial, const std::string& prefix) {
  for (const char* output : {"_output_0", "_output_1"}) {
    const Result<query::TensorId> id = trial.FindTensor(prefix + output);
    if (id.ok() && trial.tensor(id.value()).role == format::Role::kLoss) return true;
  }
  return false;
}

}  // namespace

std::vector<ModelInput> ModelInputsOf(const StepView& view) {
  std::vector<ModelInput> inputs;
  if (view.rows.info.superseded) return inputs;
  for (const auto& entry : view.rows.summaries) {
    const query::TensorInfo& tensor = view.trial.tensor(entry.tensor);
    if (tensor.role != format::Role::kSample) continue;
    ModelInput input;
    if (!Split(tensor.name, &input.model, &input.index) || IsLoss(view.trial, input.model)) continue;
    input.entry = &entry;
    inputs.push_back(std::move(input));
  }
  std::sort(inputs.begin(), inputs.end(), [](const ModelInput& a, const ModelInput& b) {
    return std::tie(a.entry->worker, a.model, a.index) < std::tie(b.entry->worker, b.model, b.index);
  });
  return inputs;
}

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

void Anchor::Save(nlohmann::json* to) const { *to = {mode_step, global_step, update}; }

void Anchor::Load(const nlohmann::json& from) {
  mode_step = from.at(0);
  global_step = from.at(1);
  update = from.at(2);
}

}  // namespace luff::rules
