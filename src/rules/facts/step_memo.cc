#include "rules/facts/step_memo.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/tensor/hash.h"
#include "rules/facts/run_machines.h"
#include "rules/facts/run_traces.h"
#include "rules/kit/step_index.h"
#include "tensor/element.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;
using format::Role;
constexpr std::size_t kMaxElements = 1 << 20;

template <DType kType>
void Convert(const std::byte* from, std::size_t count, std::vector<double>* to) {
  const std::size_t size = DTypeSize(kType);
  for (std::size_t i = 0; i < count; ++i) (*to)[i] = tensor::ReadElement<kType>(from + i * size);
}

bool ToDoubles(const query::Value& value, std::vector<double>* to) {
  const std::size_t size = DTypeSize(value.dtype);
  if (size == 0) return false;
  const std::size_t count = value.bytes.size() / size;
  if (count > kMaxElements) return false;
  to->resize(count);
  const std::byte* from = value.bytes.data();
  switch (value.dtype) {
    case DType::kBool: Convert<DType::kBool>(from, count, to); return true;
    case DType::kUInt8: Convert<DType::kUInt8>(from, count, to); return true;
    case DType::kInt8: Convert<DType::kInt8>(from, count, to); return true;
    case DType::kInt16: Convert<DType::kInt16>(from, count, to); return true;
    case DType::kInt32: Convert<DType::kInt32>(from, count, to); return true;
    case DType::kInt64: Convert<DType::kInt64>(from, count, to); return true;
    case DType::kFloat16: Convert<DType::kFloat16>(from, count, to); return true;
    case DType::kBFloat16: Convert<DType::kBFloat16>(from, count, to); return true;
    case DType::kFloat32: Convert<DType::kFloat32>(from, count, to); return true;
    case DType::kFloat64: Convert<DType::kFloat64>(from, count, to); return true;
    default: return false;
  }
}

// "sample/WHOSE_input_INDEX", or _weight_
struct SampleName {
  std::string whose;  // kind of a loss, or a model
  std::size_t index = 0;
};

std::optional<SampleName> ParseName(std::string_view name, std::string_view what = "_input_") {
  constexpr std::string_view kPrefix = "sample/";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::size_t at = name.rfind(what);
  if (at == std::string_view::npos || at == 0) return std::nullopt;
  const std::string_view digits = name.substr(at + what.size());
  SampleName parsed;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parsed.index);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  parsed.whose = std::string(name.substr(0, at));
  return parsed;
}

std::optional<SampleValues> Read(const StepView& view, const query::Trial::SummaryEntry& entry) {
  const query::StepInfo& info = view.rows.info;
  if (info.superseded) return std::nullopt;  // a lookup would find the later step with this number
  const auto value = view.trial.ReadValue(entry.tensor, info.global_step, query::Mode::kGlobal, entry.worker);
  if (!value.ok()) return std::nullopt;
  SampleValues sample;
  sample.tensor = entry.tensor;
  sample.dtype = entry.dtype == DType::kInvalid ? value.value().dtype : entry.dtype;
  sample.shape = sample.whole_shape = value.value().shape;
  if (!ToDoubles(value.value(), &sample.values) || sample.values.size() != ElementsOf(sample.shape))
    return std::nullopt;
  const auto shape = view.trial.Shape(entry.tensor, info.global_step, query::Mode::kGlobal, entry.worker);
  if (shape.ok() && !shape.value().global_shape.empty()) sample.whole_shape = shape.value().global_shape;
  return sample;
}

// Leaves out of a call the targets that do not count. False if the call cannot be read without them.
bool LeaveOut(const SampleValues& weights, LossCall* call) {
  std::vector<double>& targets = call->target.values;
  if (weights.values.size() < targets.size()) return false;
  std::vector<bool> counted(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) counted[i] = weights.values[i] != 0;
  if (std::all_of(counted.begin(), counted.end(), [](bool c) { return c; })) return true;
  if (call->target.is_float()) return false;  // numbers have no value that says so
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (!counted[i]) targets[i] = call->settings.ignore_index;
  call->counted = std::move(counted);
  return true;
}

}  // namespace

void StepMemo::Clear() {
  samples_.clear();
  summaries_.clear();
  inputs_.reset();
  calls_.reset();
  facts_fresh_ = false;
  traces_fresh_ = false;
}

const std::shared_ptr<RunMachines>& StepMemo::Machines() {
  if (machines_ == nullptr) machines_ = std::make_shared<RunMachines>();
  return machines_;
}

const std::shared_ptr<RunTraces>& StepMemo::SharedTraces() {
  if (traces_ == nullptr) traces_ = std::make_shared<RunTraces>();
  return traces_;
}

void StepMemo::RefreshTraces(const StepView& view) {
  if (std::exchange(traces_fresh_, true)) return;
  SharedTraces()->Refresh(view.trial, false);
}

std::shared_ptr<const SampleValues> StepMemo::Sample(const StepView& view,
                                                     const query::Trial::SummaryEntry& entry) {
  const auto [known, fresh] = samples_.try_emplace(&entry);
  if (fresh) {
    if (std::optional<SampleValues> sample = Read(view, entry))
      known->second = std::make_shared<const SampleValues>(std::move(*sample));
  }
  return known->second;
}

const Summary* StepMemo::SummaryOf(const StepView& view, query::TensorId tensor, std::uint32_t worker) {
  const auto key = [](std::uint32_t w, query::TensorId t) { return (std::uint64_t{w} << 32) | t; };
  if (summaries_.empty()) {
    for (const auto& entry : view.rows.summaries)
      summaries_.try_emplace(key(entry.worker, entry.tensor), &entry.summary);
  }
  const auto known = summaries_.find(key(worker, tensor));
  return known == summaries_.end() ? nullptr : known->second;
}

std::optional<query::TensorId> StepMemo::LossNamed(const query::Trial& trial, const std::string& name) {
  const std::optional<query::TensorId> id = trial.TensorNamed(name);
  return id && trial.tensor(*id).role == Role::kLoss ? id : std::nullopt;
}

const std::shared_ptr<const ModelFacts>& StepMemo::SharedFacts(const StepView& view) {
  if (facts_fresh_) return facts_;
  facts_fresh_ = true;
  const std::string text = view.trial.DocumentAt("model", view.number);
  const std::uint64_t now = HashBytes(text.data(), text.size());
  if (now != facts_of_) facts_ = std::make_shared<const ModelFacts>(ModelFacts::ParseUntrusted(text));
  facts_of_ = now;
  return facts_;
}

const std::vector<ModelInput>& StepMemo::ModelInputs(const StepView& view) {
  if (inputs_) return *inputs_;
  std::vector<ModelInput>& inputs = inputs_.emplace();
  if (view.rows.info.superseded) return inputs;
  for (const auto& [entry, tensor] : view.index.summaries(Role::kSample)) {
    std::optional<SampleName> name = ParseName(tensor.name);
    // Skips inputs of losses. A loss has recorded its value under the same name, or has one for each sample.
    if (!name || name->whose.ends_with("Loss") || LossNamed(view.trial, name->whose + "_output_0") ||
        LossNamed(view.trial, name->whose + "_output_1"))
      continue;
    inputs.push_back({std::move(name->whose), name->index, &entry});
  }
  std::sort(inputs.begin(), inputs.end(), [](const ModelInput& a, const ModelInput& b) {
    return std::tie(a.entry->worker, a.model, a.index) < std::tie(b.entry->worker, b.model, b.index);
  });
  return inputs;
}

const LossSettings& StepMemo::SettingsOf(const query::Trial& trial, const std::string& kind) {
  static const LossSettings kNone;
  if (settings_.size() >= LossReader::kMaxKinds && !settings_.contains(kind)) return kNone;
  Asked& asked = settings_[kind];
  if (asked.settings.known || ++asked.reads < asked.next) return asked.settings;
  asked.next *= 2;
  const Json document = TryParseJson(trial.Document("model"));
  const auto losses = document.is_object() ? document.find("losses") : document.end();
  if (!document.is_object() || losses == document.end() || !losses->is_array()) return asked.settings;
  for (const Json& loss : *losses) {
    if (!loss.is_object() || loss.value("type", Json()) != Json(kind)) continue;
    LossSettings& settings = asked.settings;
    settings.known = true;
    const Json given = loss.value("settings", Json::object());
    if (!given.is_object()) break;
    const auto number = [&](const char* key, double otherwise) {
      const auto it = given.find(key);
      return it != given.end() && it->is_number() ? it->get<double>() : otherwise;
    };
    settings.label_smoothing = number("label_smoothing", 0);
    settings.ignore_index = number("ignore_class", number("ignore_index", -100));  // Keras, torch
    settings.delta = number("delta", number("beta", 1));
    const auto log_target = given.find("log_target");
    settings.log_target = log_target != given.end() && log_target->is_boolean() && log_target->get<bool>();
  }
  return asked.settings;
}

const std::vector<LossCall>& StepMemo::LossCalls(const StepView& view) {
  if (calls_) return *calls_;
  std::map<std::tuple<std::uint32_t, std::string, std::size_t>,
           std::pair<const query::Trial::SummaryEntry*, const query::Trial::SummaryEntry*>>
      pairs;
  std::map<std::tuple<std::uint32_t, std::string, std::size_t>, const query::Trial::SummaryEntry*> weights;
  for (const auto& [entry, tensor] : view.index.summaries(Role::kSample)) {
    const std::optional<SampleName> name = ParseName(tensor.name);
    if (!name) {
      if (const auto weight = ParseName(tensor.name, "_weight_"))
        weights[{entry.worker, weight->whose, weight->index}] = &entry;
      continue;
    }
    auto& pair = pairs[{entry.worker, name->whose, name->index / 2}];
    (name->index % 2 == 0 ? pair.first : pair.second) = &entry;
  }
  std::vector<LossCall>& calls = calls_.emplace();
  for (const auto& [key, pair] : pairs) {
    const auto& [worker, kind, index] = key;
    if (pair.first == nullptr || pair.second == nullptr) continue;
    const auto loss = LossNamed(view.trial, fmt::format("{}_output_{}", kind, index));
    const auto part = view.trial.TensorNamed(fmt::format("{}_part_{}", kind, index));  // of the loss
    if (!loss && !part) continue;
    const auto output = Sample(view, *pair.first);
    const auto target = Sample(view, *pair.second);
    if (output == nullptr || target == nullptr) continue;
    LossCall call;
    call.kind = kind;
    call.key = KeyOfCall(kind, index);
    call.loss = loss ? *loss : *part;
    call.worker = worker;
    call.settings = SettingsOf(view.trial, kind);
    call.output = *output;
    call.target = *target;
    if (call.output.shape.size() != call.target.shape.size() && SharedFacts(view)->keras()) AlignRanks(&call);
    TakeLogarithms(&call);
    if (view.trial.TensorNamed(fmt::format("sample/{}_weight_{}", kind, index))) {
      const auto weight = weights.find(key);
      const auto kept = weight == weights.end() ? nullptr : Sample(view, *weight->second);
      if (kept == nullptr || !LeaveOut(*kept, &call)) continue;  // what counts is not known
    }
    for (const auto& [scalar, tensor] : view.index.scalars(Role::kLoss)) {
      if (loss == scalar.tensor && scalar.worker == worker) call.value = scalar.value;
    }
    for (const auto& [scalar, tensor] : view.index.scalars(Role::kOther)) {
      if (call.value || part != scalar.tensor || scalar.worker != worker) continue;
      call.loss = scalar.tensor;
      call.value = scalar.value;
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

}  // namespace luff::rules
