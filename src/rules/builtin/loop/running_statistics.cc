#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/model_modules.h"
#include "rules/facts/sample.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// RunningStatistics: docs/rules/running_statistics.md.
namespace luff::rules::running_statistics {
namespace {

using format::EventKind;
constexpr const char* kName = "RunningStatistics";
constexpr std::size_t kMaxModels = 256;
constexpr double kFast = 0.9;  // momentum with which hardly more than the newest batch is left
constexpr std::int64_t kFewRows = 32, kFewMaps = 16;  // samples of a batch whose statistics are rough
constexpr std::int64_t kMany = 1 << 20;               // of one whose rows have many samples each
constexpr std::int64_t kBatches = 16;                 // that are measured
constexpr std::int64_t kStarted = 16, kLooks = 2;     // steps before a graph counts, and graphs
constexpr std::int64_t kUpdates = 32;  // of any optimizer, before a model is said to be left behind

// Bits of the event `forward` (docs/spec/evidence.md).
constexpr std::uint64_t kTraining = 1U << 8, kTold = 1U << 12;

struct Limits {
  double share;
  std::int64_t passes, evaluations;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "0.8", "share of the initial statistics that is left", Between(0, 1)},
    {&Limits::passes, "passes", "100", "training passes before it is judged", AtLeast(1)},
    {&Limits::evaluations, "evaluations", "2", "evaluations that have used them", AtLeast(1)},
};

bool IsBatchNorm(const std::string& type) {
  return type.find("BatchNorm") != std::string::npos && type != "BatchNormalization";  // Keras's is reversed
}

// Layers of PyTorch, whose momentum is the share that a batch takes over: Flax and Keras call the rest so.
bool IsTorchs(const std::string& type) {
  return type == "BatchNorm1d" || type == "BatchNorm2d" || type == "BatchNorm3d";
}

// A layer keeps (1 - momentum) of its running statistics at each training pass, so (1 - momentum)^n of the
// initial ones (mean 0, variance 1) is left after n passes. Evaluations normalise with these statistics.
class RunningStatistics final : public KeptRule {
 public:
  explicit RunningStatistics(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.superseded) return;
    loaded_ = loaded_ || LoadsWeights(view.index);
    modules_.OnStep(view);
    LeftBehind(view, sink);
    Shared(view, sink);
    const bool trains = view.rows.info.mode == query::Mode::kTrain;
    if (trains) CountRows(view);
    bool evaluates = false;
    for (const query::EventAt& event : view.index.events(EventKind::kForward)) {
      const std::uint64_t bits = event.row.argument;
      if (event.worker != view.index.first_worker() || (bits & kTold) == 0) continue;
      if (trains && (bits & kTraining) != 0 &&
          (passes_.size() < kMaxModels || passes_.contains(event.row.subject)))
        ++passes_[event.row.subject];
      evaluates = evaluates || (!trains && (bits & kTraining) == 0 && passes_.contains(event.row.subject));
    }
    if (trains) {
      evaluating_ = false;
    } else if (evaluates && !evaluating_) {
      evaluating_ = true;
      ++evaluations_;
      TellShared(view, sink);
      Judge(view, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("passes", passes_, kMaxModels);
    io("evaluations", evaluations_);
    io("evaluating", evaluating_);
    io("loaded", loaded_);
    io("open", open_);
    io("updates", updates_);
    io("behind", behind_, kMaxModels);
    io("kept", kept_, kMaxModels);
    io("told", told_);
    io("rows", rows_);
    io("batches", batches_);
    io("fast", fast_);
    io("shared", shared_, kMaxName);
    io("shared_layers", shared_layers_);
    io("shared_looks", shared_looks_);
    io("apart", apart_);
    io("shared_told", shared_told_);
  }

 private:
  // A model that is evaluated, whose weights move without an optimizer, and whose statistics do not: an
  // average of another model's weights, which left the buffers out.
  void LeftBehind(const StepView& view, Sink& sink) {
    updates_ += static_cast<std::int64_t>(view.index.events(EventKind::kOptimizerStep).size());
    for (const auto& event : view.index.json_events("initial_statistics")) {
      const auto model = event->find("model");
      const double layers = NumberIn(*event, "layers");
      if (model == event->end() || !model->is_string()) continue;
      const auto& name = model->get_ref<const std::string&>();
      if (!(layers > 0)) {
        behind_.erase(name);
        kept_.erase(name);
        if (told_ == name) {
          sink.Heal("left_behind", "", view.rows.info.mode_step);
          told_.clear();
        }
      } else if (behind_.size() < kMaxModels && name.size() < kMaxName) {
        behind_[name] = std::min(layers, 1e6);
        if (FlagIn(*event, "kept")) kept_.insert(name);
      }
    }
    if (behind_.empty() || !told_.empty() || updates_ < kUpdates ||
        view.rows.info.mode != query::Mode::kTrain)
      return;
    const ModelFacts& facts = view.memo.Facts(view);
    for (const auto& [name, layers] : behind_) {
      if (!facts.AnyOptimized() || facts.IsPartlyOptimized(name)) continue;
      told_ = name;
      Finding finding = FindingAt(kName, "left_behind", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      const bool kept = kept_.contains(name);
      finding.what = fmt::format(
          "{} is evaluated with {}, while its weights change", name,
          kept ? "running statistics that have stood still since its first evaluation, far from those of the "
                 "model beside it"
               : "the running statistics of the start (mean 0, variance 1)");
      finding.why = fmt::format(
          "no optimizer holds its weights, so they are an average or a copy of another model's; the buffers "
          "of "
          "its {:g} layers of batch normalisation were not copied with them",
          layers);
      finding.remedy =
          "copy the buffers with the weights: for a, b in zip(average.buffers(), model.buffers()): "
          "a.copy_(b); "
          "or "
          "work them out again with torch.optim.swa_utils.update_bn";
      finding.causes = {"an average (EMA, SWA) of parameters() only", "load of a state without buffers"};
      finding.evidence = {{"layers", layers}, {"updates", updates_}};
      finding.threshold =
          fmt::format("a fact: all of them, and weights that changed; {} updates (Luff)", kUpdates);
      sink.Report(std::move(finding));
      return;
    }
  }
  // Layers that one pass uses at two places, one behind the other: graphs that show that their batches are
  // another matter there. The first updates do not count, in which a model is on its way.
  void Shared(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("shared_norms")) {
      const nlohmann::json& layers = ListIn(*event, "layers");
      if (layers.empty()) {
        shared_looks_ = 0;
        if (std::exchange(shared_told_, false)) sink.Heal("shared", "", view.rows.info.mode_step);
        continue;
      }
      const auto name = layers.front().is_object() ? layers.front().find("layer") : layers.front().end();
      if (view.rows.info.mode_step < kStarted || name == layers.front().end() || !name->is_string()) continue;
      const auto& layer = name->get_ref<const std::string&>();
      if (layer.size() >= kMaxName) continue;
      shared_ = layer;
      apart_ = NumberIn(layers.front(), "apart");
      shared_layers_ = static_cast<std::int64_t>(layers.size());
      ++shared_looks_;
    }
  }
  void TellShared(const StepView& view, Sink& sink) {
    if (shared_told_ || shared_looks_ < kLooks) return;
    shared_told_ = true;
    Finding finding = FindingAt(kName, "shared", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what =
        fmt::format("{} normalises two places of the model with the same running statistics", shared_);
    finding.why = fmt::format(
        "one forward pass uses it twice, the second time on what it gave the first time and more; in "
        "training "
        "each batch is normalised by its own mean and variance, and the means of the two places lie {:.2g} "
        "deviations apart (median over its channels), or the variances differ four times: the running "
        "statistics are a mixture of both, and evaluations normalise neither place with its own; so it is "
        "with "
        "{} of the layers",
        std::isfinite(apart_) ? apart_ : 0.0, shared_layers_);
    finding.remedy =
        "give each place a batch normalisation of its own: copy.deepcopy() in the place of a second name for "
        "the same modules, or make them again; share the convolution alone where its weights are to be "
        "shared";
    finding.causes = {
        "a list or Sequential that was copied without its modules: decoder = encoder, [layer] * n",
        "a layer that is used again and again on purpose, with its normalisation"};
    finding.evidence = {{"layers", shared_layers_}, {"apart", std::isfinite(apart_) ? apart_ : 0.0}};
    finding.threshold = fmt::format(
        "a fact of {} graphs: the same running statistics twice, one behind the other, and half of the "
        "channels "
        "with means more than a deviation apart or variances that differ four times (Luff)",
        kLooks);
    sink.Report(std::move(finding));
  }
  void CountRows(const StepView& view) {
    if (batches_ >= kBatches) return;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->whole_shape.empty()) continue;
      // Points, places of a signal and words are samples of a layer's statistics, too, and many of them.
      const bool many = sample->whole_shape.size() == 3 || !sample->is_float();
      rows_ = std::max(rows_, many ? kMany : sample->whole_shape.front());
      batches_ += input.index == 0 ? 1 : 0;
    }
  }
  // Statistics that are those of the newest batch, which has few samples.
  void Fast(const StepView& view, Sink& sink) {
    if (fast_ || rows_ < 1 || batches_ < kBatches) return;
    for (const ModuleFacts& module : modules_.modules()) {
      const double momentum = module.Number("momentum").value_or(0);
      if (!IsTorchs(module.type) || !module.training || !(momentum >= kFast && momentum <= 1)) continue;
      if (rows_ > (module.type == "BatchNorm1d" ? kFewRows : kFewMaps)) continue;
      if (module.Number("track_running_stats").value_or(1) == 0) continue;
      fast_ = true;
      const std::string layer = module.name.empty() ? module.path : module.name;
      Finding finding = FindingAt(kName, "fast", view, TensorAt{format::kNoId});
      finding.since_step = 0;
      finding.what = fmt::format(
          "evaluations normalise with the statistics of the newest batch of the training, of {} samples ({})",
          rows_, layer);
      finding.why = fmt::format(
          "{} has a momentum of {:g}: each training pass replaces that share of its mean and variance by the "
          "batch's, "
          "so that what all data have in the mean is never known",
          layer, momentum);
      const double meant = std::max(std::round((1 - momentum) * 1e6) / 1e6, 0.01);
      finding.remedy = fmt::format(
          "set the momentum of batch normalisation to {:g}{}, PyTorch's default; other libraries call "
          "momentum "
          "what is 1 - momentum here",
          meant, meant == 0.1 ? "" : ", or to 0.1");
      finding.causes = {"a momentum taken over from another library"};
      finding.evidence = {{"momentum", momentum}, {"rows", rows_}};
      finding.threshold =
          fmt::format("momentum from {:g} on, at most {} samples in a batch ({} of images) (Luff)", kFast,
                      kFewRows, kFewMaps);
      sink.Report(std::move(finding));
      return;
    }
  }
  void Judge(const StepView& view, Sink& sink) {
    // The largest count of all models: that of the layer's own model can only be smaller.
    std::int64_t passes = 0;
    for (const auto& [model, count] : passes_) passes = std::max(passes, count);
    if (loaded_ || passes < limits_.passes || evaluations_ < limits_.evaluations) return;
    Fast(view, sink);
    const ModuleFacts* worst = nullptr;
    double momentum = 1, layers = 0;
    for (const ModuleFacts& module : modules_.modules()) {
      const std::optional<double> own = module.Number("momentum");
      if (!IsBatchNorm(module.type) || !module.training || !own.has_value() || !(*own >= 0 && *own < 1))
        continue;
      if (module.Number("track_running_stats").value_or(1) == 0) continue;
      ++layers;
      if (*own < momentum) {
        momentum = *own;
        worst = &module;
      }
    }
    const double left = std::pow(1 - momentum, static_cast<double>(passes));
    if (worst == nullptr || left < limits_.share) {
      if (open_) sink.Heal("slow", "", view.rows.info.mode_step);
      open_ = false;
      return;
    }
    open_ = true;
    Finding finding = FindingAt(kName, "slow", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    const std::string layer = worst->name.empty() ? worst->path : worst->name;
    finding.what =
        fmt::format("evaluations normalise with statistics of which {:.0f} % are those of the start ({})",
                    100 * left, layer);
    finding.why = fmt::format(
        "{} has a momentum of {:g}: each training pass takes over that share of the batch's mean and "
        "variance, and "
        "there were {} passes; the rest is still mean 0 and variance 1",
        layer, momentum, passes);
    finding.remedy =
        "set the momentum of batch normalisation to 0.1, PyTorch's default; other libraries call momentum "
        "what is "
        "1 - momentum here";
    finding.causes = {"a momentum taken over from another library", "a training that is too short for it"};
    finding.evidence = {{"momentum", momentum}, {"passes", passes}, {"left", left}, {"layers", layers}};
    finding.threshold = fmt::format("{:g} left after at least {} passes, at the evaluation number {} (Luff)",
                                    limits_.share, limits_.passes, limits_.evaluations);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::uint32_t, std::int64_t> passes_;  // training passes by number of the model
  std::int64_t evaluations_ = 0;
  static constexpr std::size_t kMaxName = 256;
  bool evaluating_ = false, loaded_ = false, open_ = false;
  std::int64_t updates_ = 0;
  std::map<std::string, double> behind_;  // models whose statistics are those of the start -> layers
  std::set<std::string> kept_;            // of them, those with other statistics than at the start
  std::string told_;                      // the one that the finding names
  std::int64_t rows_ = 0, batches_ = 0;   // the most samples of a batch, and batches that were measured
  bool fast_ = false;                     // that is told
  std::string shared_;                    // a layer that is used at two places
  std::int64_t shared_layers_ = 0, shared_looks_ = 0;
  double apart_ = 0;  // deviations
  bool shared_told_ = false;
  ModelModules modules_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<RunningStatistics>(kName, kParams);
  spec.version = 5;  // 2: "left_behind"; 3: "fast"; 4: "shared"; 5: statistics that stand still
  spec.summary =
      "batch normalisation whose running statistics hardly move, are those of a single batch, or of two "
      "places";
  spec.needs = [](const Parameters&) { return SampleNeeds(); };
  return spec;
}

}  // namespace luff::rules::running_statistics
