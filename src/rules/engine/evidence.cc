#include "rules/engine/evidence.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "luff/store/reader.h"
#include "rules/facts/json_event.h"
#include "rules/facts/run_traces.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/select.h"

namespace luff::rules {
namespace {

using format::EventKind;
using format::Form;
using format::Role;

enum Kind : std::uint8_t {
  kSteps,
  kLosses,
  kEvaluations,
  kGradients,
  kWeights,
  kWeightChanges,
  kWeightRows,
  kSettings,
  kClipping,
  kUpdates,
  kModes,
  kBatches,
  kInputs,
  kEvaluationInputs,
  kImages,
  kIds,
  kTables,
  kLossCalls,
  kEvaluationLossCalls,
  kTwoModels,
  kWorkers,
  kReluUnits,
  kBounded,
  kDropout,
  kLoaded,
  kAccumulated,
  kRounded,
  kAttention,
  kCodes,
  kCausal,
  kBoosting,
  kNamed,     // never set: for rules whose tensors the user names
  kOtherRun,  // likewise
  kWaits,
  kSampledHost,
  kPhases,
  kTraced,
  kAllocator,
  kKinds
};

constexpr std::array<const char*, kKinds> kWords = {
    "a training step",
    "a training loss",
    "losses of an evaluation",
    "gradients",
    "weights",
    "changes of weights",
    "weights of layers",
    "settings of an optimizer",
    "clipped gradients",
    "updates by an optimizer",
    "calls of a model",
    "batches",
    "inputs of a model",
    "inputs of an evaluation",
    "images",
    "ids of tokens",
    "tables of embeddings",
    "calls of a loss",
    "calls of a loss in an evaluation",
    "two models",
    "several workers",
    "ReLU layers",
    "tanh or sigmoid layers",
    "dropout layers",
    "weights from a file",
    "updates of several batches",
    "16-bit weights",
    "attention",
    "a variational model",
    "a model of next tokens",
    "boosting rounds",
    "tensors that you name",
    "another run (--other)",
    "waits for data (phases of a loop)",
    "20 s of samples of the machine",
    "where the time of steps went (phases)",
    "a trace of a few steps on a device (luff trace)",
    "counters of a device's allocator",
};

constexpr std::uint64_t Bit(Kind kind) noexcept { return std::uint64_t{1} << kind; }
constexpr std::uint64_t Both(Kind a, Kind b) noexcept { return Bit(a) | Bit(b); }

struct Look {
  std::string_view rule;
  std::uint64_t all;          // all of these,
  std::uint64_t or_else = 0;  // or one of these
};

constexpr Look kLooks[] = {
    {"AccumulationScale", Bit(kAccumulated)},
    {"AllZero", Bit(kNamed)},
    {"AllocatorThrash", Bit(kTraced), Bit(kAllocator)},
    {"AttentionCollapse", Bit(kAttention)},
    {"BatchOrder", Bit(kLossCalls)},
    {"CausalLeak", Bit(kCausal)},
    {"CheckInputImages", Bit(kImages)},
    {"CheckpointStalls", Bit(kPhases)},
    {"ClassImbalance", Bit(kLossCalls)},
    {"ClipSaturated", Bit(kClipping)},
    {"CommunicationBound", Bit(kTraced)},
    {"Confusion", Bit(kLossCalls)},
    {"ConstantOutput", Bit(kLossCalls)},
    {"ContrastivePairs", Bit(kLossCalls)},
    {"ContainerThrottled", Bit(kSampledHost)},
    {"CopyNotOverlapped", Bit(kTraced)},
    {"CpuOversubscribed", Bit(kSampledHost)},
    {"DataLeak", Both(kInputs, kEvaluationInputs)},
    {"DeadEmbeddingRows", Bit(kTables)},
    {"DeadRelu", Bit(kReluUnits)},
    {"DebugLeftOn", Bit(kUpdates)},
    {"EvalShare", Bit(kPhases)},
    {"ExplodingTensor", Bit(kLosses)},
    {"FeatureImportanceOverweight", Bit(kBoosting)},
    {"FirstStepsSlow", Bit(kPhases)},
    {"FrozenAtInit", Bit(kLoaded), Bit(kWeights)},
    {"GcPauses", Bit(kPhases)},
    {"GradientNotCleared", Bit(kUpdates)},
    {"GpuThrottled", Bit(kSampledHost)},
    {"GpuUnderused", Bit(kSampledHost)},
    {"HalfPrecisionOff", Bit(kTraced)},
    {"HighDropout", Bit(kDropout)},
    {"HostSync", Bit(kTraced)},
    {"ImageLayout", Bit(kInputs)},
    {"InitialLoss", Bit(kLossCalls)},
    {"InputBound", Bit(kWaits)},
    {"InputScale", Bit(kInputs)},
    {"LabelNoise", Bit(kLossCalls)},
    {"LaunchBound", Bit(kTraced)},
    {"LoggingStalls", Bit(kPhases)},
    {"LossFormula", Bit(kUpdates)},
    {"LossInputContract", Bit(kLossCalls)},
    {"LossNotDecreasing", Bit(kLosses)},
    {"LossShapeMismatch", Bit(kLossCalls)},
    {"LossSpike", Bit(kLosses)},
    {"MemoryGrowth", Bit(kSampledHost)},
    {"MissingActivation", Bit(kUpdates)},
    {"ModeCollapse", Bit(kTwoModels)},
    {"ModeMismatch", Bit(kModes)},
    {"NLPSequenceRatio", Bit(kIds)},
    {"NoBetterThanConstant", Bit(kEvaluationLossCalls)},
    {"NoGradient", Bit(kGradients)},
    {"NonFinite", Bit(kLosses), Bit(kGradients) | Bit(kWeights)},
    {"OptimizerSettings", Bit(kSettings)},
    {"OptimizerSlow", Both(kPhases, kUpdates)},
    {"OptimizerStateReset", Bit(kUpdates)},
    {"Overfit", Bit(kEvaluations), Bit(kBoosting)},
    {"Overtraining", Bit(kEvaluations), Bit(kBoosting)},
    {"PageableCopy", Bit(kTraced)},
    {"ParamNotOptimized", Bit(kUpdates)},
    {"PoorWeightInitialization", Bit(kWeightRows), Bit(kWeights)},
    {"PosteriorCollapse", Bit(kCodes)},
    {"PrecisionLoss", Bit(kRounded)},
    {"Recompiles", Bit(kPhases)},
    {"RegularizationDominates", Bit(kWeightChanges)},
    {"RepeatedBatch", Bit(kBatches), Bit(kInputs)},
    {"ReplicaDivergence", Bit(kWorkers)},
    {"RunningStatistics", Bit(kModes)},
    {"SampleMixing", Bit(kInputs)},
    {"SaturatedActivation", Bit(kBounded)},
    {"ScheduleCollapse", Bit(kSettings)},
    {"SimilarAcrossRuns", Bit(kOtherRun)},
    {"StalledTrainingRule", Bit(kSteps)},
    {"StepSkipped", Bit(kUpdates), Bit(kGradients)},
    {"StorageBound", Both(kSampledHost, kWaits)},
    {"Straggler", Both(kPhases, kWorkers)},
    {"Swapping", Bit(kSampledHost)},
    {"SymmetricUnits", Bit(kWeightRows)},
    {"TargetRange", Bit(kLossCalls)},
    {"TensorVariance", Bit(kNamed)},
    {"Tf32Off", Bit(kTraced)},
    {"TrainValSkew", Both(kInputs, kEvaluationInputs)},
    {"TreeDepth", Bit(kBoosting)},
    {"UnchangedTensor", Bit(kWeightChanges)},
    {"Underfit", Bit(kEvaluations)},
    {"UnusedResult", Bit(kUpdates)},
    {"VanishingGradient", Bit(kGradients)},
    {"WeightUpdateRatio", Bit(kWeightChanges)},
    {"WorkersRestart", Bit(kWaits)},
    {"WorseThanSimple", Both(kInputs, kLossCalls)},
};

const Look* LookOf(std::string_view rule) noexcept {
  const auto* at =
      std::find_if(std::begin(kLooks), std::end(kLooks), [&](const Look& look) { return look.rule == rule; });
  return at == std::end(kLooks) ? nullptr : at;
}

std::uint64_t OfTensor(const query::TensorInfo& info, query::Mode mode) {
  switch (info.role) {
    case Role::kLoss: return Bit(mode == query::Mode::kTrain ? kLosses : kEvaluations);
    case Role::kGradient: return Bit(kGradients);
    case Role::kWeight:
      return Bit(kWeights) | (info.module_type.find("Embedding") != std::string::npos ? Bit(kTables) : 0);
    case Role::kOptimizerSetting:
      return Bit(kSettings) | (info.name.starts_with("clip/") ? Bit(kClipping) : 0);
    case Role::kOutput:
      return info.module_type == "Tanh" || info.module_type == "Sigmoid" ? Bit(kBounded) : 0;
    default: return 0;
  }
}

std::uint64_t OfEvent(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::kOptimizerStep: return Bit(kUpdates);
    case EventKind::kForward: return Bit(kModes);
    case EventKind::kBatch: return Bit(kBatches);
    default: return 0;
  }
}

}  // namespace

void Evidence::OnStep(const StepView& view) {
  if (view.rows.info.mode == query::Mode::kTrain) seen_ |= Bit(kSteps);
  for (const query::StepPhases& phases : view.rows.phases) {
    seen_ |= Bit(kPhases);
    if (phases.begins[static_cast<std::size_t>(format::Phase::kDataWait)] != 0) seen_ |= Bit(kWaits);
  }
  if (traces_ == nullptr) traces_ = view.memo.SharedTraces();
  OnTensors(view);
  OnEvents(view);
  OnSamples(view);
  if (std::has_single_bit(++steps_)) OnDocuments(view);
  OnClock(view);
}

/// Rules on samples judge windows of ten seconds, and not the first one.
void Evidence::OnClock(const StepView& view) {
  constexpr std::int64_t kTwoWindowsNs = 20'000'000'000;
  const query::StepInfo& info = view.rows.info;
  if ((seen_ & Bit(kSampledHost)) != 0 || info.mode != query::Mode::kTrain || info.wall_unix_ns <= 0) return;
  if (clock_ns_ == 0 || info.wall_unix_ns < clock_ns_) clock_ns_ = info.wall_unix_ns;
  if (info.wall_unix_ns - clock_ns_ < kTwoWindowsNs) return;
  const auto hosts = store::HostNumbers(view.trial.path());
  if (hosts.ok() && !hosts->empty())
    seen_ |= Bit(kSampledHost);
  else
    clock_ns_ = info.wall_unix_ns;  // looks again after two more
}

void Evidence::OnTensors(const StepView& view) {
  const query::Mode mode = view.rows.info.mode;
  const auto bit = static_cast<std::uint8_t>(1U << (static_cast<unsigned>(mode) & 7U));
  const auto look = [&](query::TensorId id, std::uint32_t worker) {
    if (worker > 0) seen_ |= Bit(kWorkers);
    if (id >= looked_.size()) looked_.resize(std::max<std::size_t>(view.trial.tensor_count(), id + 1));
    if ((looked_[id] & bit) != 0) return;
    looked_[id] |= bit;
    seen_ |= OfTensor(view.trial.tensor(id), mode);
  };
  for (const auto& entry : view.rows.summaries) look(entry.tensor, entry.worker);
  for (const auto& entry : view.rows.scalars) look(entry.tensor, entry.worker);
  if (!view.index.units(Role::kOutput).empty()) seen_ |= Bit(kReluUnits);
  if (!view.index.units(Role::kWeight).empty()) seen_ |= Bit(kWeightRows);
  if ((seen_ & Bit(kWeightChanges)) != 0) return;
  for (const auto& entry : view.rows.forms) {
    if (entry.row.form == static_cast<std::uint16_t>(Form::kDifference)) seen_ |= Bit(kWeightChanges);
  }
}

void Evidence::OnEvents(const StepView& view) {
  for (const query::EventAt& event : view.rows.events)
    seen_ |= OfEvent(static_cast<EventKind>(event.row.kind));
  if (view.rows.event_json.empty()) return;
  constexpr std::pair<const char*, Kind> kTold[] = {{"load_state_dict", kLoaded},
                                                    {"accumulation", kAccumulated},
                                                    {"rounding", kRounded},
                                                    {"causal", kCausal}};
  for (const auto& [kind, bit] : kTold) {
    if (!view.index.json_events(kind).empty()) seen_ |= Bit(bit);
  }
  for (const auto& inside : view.index.json_events("inside")) {
    if (!ListIn(*inside, "attention").empty()) seen_ |= Bit(kAttention);
    if (!ListIn(*inside, "codes").empty()) seen_ |= Bit(kCodes);
  }
}

void Evidence::OnSamples(const StepView& view) {
  const bool training = view.rows.info.mode == query::Mode::kTrain;
  const std::uint64_t calls = Bit(training ? kLossCalls : kEvaluationLossCalls);
  const std::uint64_t inputs = Bit(training ? kInputs : kEvaluationInputs);
  const std::uint64_t wanted = calls | inputs | Bit(kImages) | Bit(kIds) | Bit(kTwoModels);
  if ((seen_ & wanted) == wanted) return;
  for (const ModelInput& input : ModelInputsOf(view)) {
    seen_ |= inputs;
    if (IsIds(input.entry->dtype)) seen_ |= Bit(kIds);
    if (first_model_.empty()) first_model_ = input.model;
    if (input.model != first_model_) seen_ |= Bit(kTwoModels);
    if ((seen_ & Bit(kImages)) != 0) continue;
    const query::StepInfo& info = view.rows.info;
    const auto shape =
        view.trial.Shape(input.entry->tensor, info.global_step, query::Mode::kGlobal, input.entry->worker);
    if (shape.ok() && shape->shape.size() == 4) seen_ |= Bit(kImages);
  }
  if ((seen_ & calls) == 0 && !view.memo.LossCalls(view).empty()) seen_ |= calls;
}

void Evidence::OnDocuments(const StepView& view) {
  if (!view.trial.Document("boosting").empty()) seen_ |= Bit(kBoosting);
  if (!view.trial.Document("allocator").empty()) seen_ |= Bit(kAllocator);
  for (const ModuleFacts& module : view.memo.Facts(view).modules())
    if (module.type.find("Dropout") != std::string::npos) seen_ |= Bit(kDropout);
}

bool Evidence::Knows(std::string_view rule) { return LookOf(rule) != nullptr; }

std::string Evidence::LackOf(const Choice& choice) const {
  if (!choice.spec->source.empty()) return "";  // a user's own rule reports this itself
  const Look* look = LookOf(choice.spec->name);
  if (look == nullptr) return "";
  const bool traced =
      traces_ != nullptr &&
      std::ranges::any_of(traces_->all(), [](const RunTraces::Seen& one) { return one.devices.span_s > 0; });
  const std::uint64_t seen = seen_ | (traced ? Bit(kTraced) : 0);
  if ((look->all & ~seen) == 0 || (look->or_else & seen) != 0) return "";
  const auto lacking = static_cast<std::size_t>(std::countr_zero(look->all & ~seen));
  // If the user named something, it is captured for the rule, which then judges each step.
  const bool named = lacking == kNamed || lacking == kOtherRun || IsOriginal(choice.parameters);
  if (named && !choice.spec->needs(choice.parameters).empty()) return "";
  return kWords[lacking];
}

}  // namespace luff::rules
