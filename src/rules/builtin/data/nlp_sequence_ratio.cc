#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/json_event.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/masked_steps.h"
#include "rules/facts/model_modules.h"
#include "rules/facts/sample.h"
#include "rules/facts/token_stats.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// NLPSequenceRatio: docs/rules/nlp_sequence_ratio.md.
namespace luff::rules::nlp_sequence_ratio {
namespace {

using format::Form;
constexpr const char* kName = "NLPSequenceRatio";

struct Limits {
  std::string values, percents;
  std::int64_t interval;
  double share, tokens, table_rows;
};
constexpr Param<Limits> kParams[] = {
    {nullptr, "tensor_regex", ".*embedding0_input_0",
     "tensors to inspect (original; Luff's set takes inputs of embedding tables)"},
    {&Limits::values, "token_values", "0", "tokens to count, a comma list (original)"},
    {&Limits::percents, "token_thresholds_percent", "50",
     "largest share of each token in percent (original)"},
    {&Limits::interval, "interval", "8", "TRAIN steps between two captures", AtLeast(1), "1"},
    {&Limits::share, "share", "0.5", "largest share of one id (Luff)"},
    {&Limits::tokens, "tokens", "1000", "tokens before it is judged (Luff)"},
    {&Limits::table_rows, "table_rows", "32", "smaller tables are left alone (Luff)"},
};
constexpr std::int64_t kSamples = 3;  // of a table before it is judged (Luff)
constexpr std::int64_t kTurned = 16;  // captured steps: a script may also mask by turns (Luff)
constexpr double kCounted = 0.25;     // of the targets: padding that the loss counts (Luff)
constexpr double kNearlyAll = 0.9;    // of the padded rows, which end with the same id

// smdebug's rule: per tensor, 100 x count(x == token) / size > threshold for any token.

struct Token {
  double value = 0, percent = 50;
};

class Original final : public KeptRule {
 public:
  Original(TensorSelector selector, std::vector<Token> tokens)
      : selector_(std::move(selector)),
        tokens_(std::move(tokens)) {}

  void OnStep(const StepView& view, Sink& sink) override {
    for (const auto& entry : view.rows.summaries) {
      if (!selector_.Selects(view.trial, entry.tensor)) continue;
      const auto values = LoadSample(view, entry);
      if (values == nullptr || values->values.empty()) continue;
      for (const Token& token : tokens_) {
        const auto count = std::count(values->values.begin(), values->values.end(), token.value);
        const double percent =
            100.0 * static_cast<double>(count) / static_cast<double>(values->values.size());
        if (!(percent > token.percent)) continue;
        Finding finding = FindingAt(kName, "ratio", view, entry);
        finding.what = fmt::format("{:.3g} % of {} are the token {:g}", percent, finding.tensor, token.value);
        finding.why = "most of the sequence is one token";
        finding.remedy = "sort sequences by length, cut them, or look at the tokenizer";
        finding.evidence = {{"percent", percent}, {"token", token.value}};
        finding.threshold = fmt::format("more than {:g} % (original)", token.percent);
        sink.Report(std::move(finding));
        break;
      }
    }
  }

 private:
  TensorSelector selector_;
  const std::vector<Token> tokens_;
};

// Luff's rule: one id takes most places of the sequences that an embedding table gets. At the ends of rows it
// is padding, which does harm only if it is averaged or enters the loss. Anywhere else it replaces words that
// the vocabulary lacks.
class Luff final : public KeptRule {
 public:
  explicit Luff(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    bool padded = false;
    for (const Tables::Batch& batch : tables_.OnStep(view, limits_.table_rows)) {
      if (batch.ids->shape.size() < 2 || batch.ids->shape.back() < 4) continue;
      TokenStats* mine = tables_.StatsOf(batch);
      if (mine == nullptr) continue;
      mine->Add(*batch.ids);
      const TableInput& input = batch.input;
      const TokenStats& stats = *mine;
      if (stats.samples() < kSamples || stats.tokens() < limits_.tokens || stats.top_share() <= limits_.share)
        continue;
      const bool known = input.padding.has_value() && *input.padding == static_cast<double>(stats.top());
      if (stats.top_is_padding()) {
        padded = true;
        if (!known && input.type == "EmbeddingBag") TellBag(view, input, stats, sink);
      } else if (!known && stats.top_is_scattered()) {
        TellToken(view, input, stats, sink);
      }
    }
    if (padded) Losses(view, sink);
    modules_.OnStep(view);
    Counted(view, sink);
    OnlyPadding(view, sink);
    Hidden(view, sink);
  }
  void VisitFields(Fields& io) override {
    io("told", told_);
    io("counted", counted_, LossReader::kMaxKinds);
    io("turned", turned_, LossReader::kMaxKinds);
    io("weighted", weighted_);
    io("masked", masked_, kMaxMasked);
    io("tables", tables_);
    io("reader", reader_);
  }

 private:
  Finding Begin(const StepView& view, const char* cause, const TensorAt& at) const {
    Finding finding = FindingAt(kName, cause, view, at);
    finding.since_step = 0;
    finding.threshold =
        fmt::format("more than {:g} % of the tokens (original; where it matters: Luff)", 100 * limits_.share);
    return finding;
  }

  void TellToken(const StepView& view, const TableInput& input, const TokenStats& stats, Sink& sink) {
    if (!told_.insert("token " + input.module).second) return;
    Finding finding = Begin(view, "token", {input.entry->tensor, input.entry->worker});
    finding.what = fmt::format("id {} is {:.3g} % of all that {} is asked for", stats.top(),
                               100 * stats.top_share(), input.module);
    finding.why = fmt::format(
        "it stands anywhere between others, so it is no padding: it takes the place of the words that the "
        "vocabulary lacks, and their meaning is lost; {} of {:g} ids have come at all",
        stats.used(), *input.table_rows);
    finding.remedy = "check the tokenizer: is the vocabulary the one that the text was counted for?";
    finding.causes = {"most words are mapped to the unknown id", "another vocabulary than the text's"};
    finding.evidence = {{"share", stats.top_share()},
                        {"id", stats.top()},
                        {"tokens", stats.tokens()},
                        {"used", stats.used()}};
    sink.Report(std::move(finding));
  }

  void TellBag(const StepView& view, const TableInput& input, const TokenStats& stats, Sink& sink) {
    if (!told_.insert("bag " + input.module).second) return;
    Finding finding = Begin(view, "padding", {input.entry->tensor, input.entry->worker});
    finding.what = fmt::format("{:.3g} % of what {} puts together is padding (id {})",
                               100 * stats.top_share(), input.module, stats.top());
    finding.why = "the bag has no padding_idx, so the padding's row is added to every sample's";
    finding.remedy = fmt::format("give padding_idx={} to EmbeddingBag, or use offsets", stats.top());
    finding.causes = {"padding_idx is missing"};
    finding.evidence = {{"share", stats.top_share()}, {"id", stats.top()}};
    sink.Report(std::move(finding));
  }

  // Reports padding that the loss counts like any other target.
  void Losses(const StepView& view, Sink& sink) {
    for (const LossCall& call : reader_.Read(view)) {
      if (call.output.is_float() && !call.target.is_float() && call.whole() && !OnePerRow(view, call)) {
        const Recognition known = reader_.Recognise(call);
        if ((known.formula != Formula::kCrossEntropy && known.formula != Formula::kNll) || !known.by_value ||
            known.weights == Weights::kSome)
          continue;
        for (const auto& [module, stats] : tables_.all()) {
          const double id = static_cast<double>(stats.top());
          if (!stats.top_is_padding() || id == call.settings.ignore_index) continue;
          const auto count = std::count(call.target.values.begin(), call.target.values.end(), id);
          const double share = static_cast<double>(count) / static_cast<double>(call.target.values.size());
          if (share <= limits_.share || !told_.insert("loss " + call.kind).second) continue;
          Finding finding = Begin(view, "padding", {call.loss, call.worker});
          finding.what =
              fmt::format("{:.3g} % of the targets of {} are padding (id {})", 100 * share, call.kind, id);
          finding.why = "the loss counts them like words, so the model is trained mostly to predict padding";
          finding.remedy =
              fmt::format("give ignore_index={:g} to the loss, or leave padding out of the mean", id);
          finding.causes = {"ignore_index is missing", "sequences of very different length in one batch"};
          finding.evidence = {{"share", share}, {"id", id}};
          sink.Report(std::move(finding));
        }
      }
    }
  }

  // Whether a loss has one target for each row of ids: these are classes of texts, and no tokens.
  static bool OnePerRow(const StepView& view, const LossCall& call) {
    const std::vector<ModelInput>& inputs = ModelInputsOf(view);
    return std::any_of(inputs.begin(), inputs.end(), [&](const ModelInput& input) {
      if (!IsIds(input.entry->dtype)) return false;
      const auto ids = LoadSample(view, *input.entry);
      return ids != nullptr && ids->whole_shape.size() == 2 &&
             static_cast<std::size_t>(ids->whole_shape[0]) == ElementsOf(call.target.whole_shape);
    });
  }

  // Reports a loss that counts the places at which the model's own input is padding: a table says which id
  // that is. The answer to them is always the same one. Where rows have no mark of their end, padding is that
  // mark, which a model of next tokens or of whole rows must learn.
  void Counted(const StepView& view, Sink& sink) {
    const std::set<double> known_ids = PaddingIds();
    if (view.rows.info.superseded) return;
    weighted_ = weighted_ || !view.index.json_events("loss_weights").empty();
    for (const LossCall& call : reader_.Read(view)) {
      if (!call.output.is_float() || call.target.is_float()) continue;
      Padding found;
      if (!known_ids.empty() && call.whole()) found = PaddingOf(view, call, known_ids);
      // Without a table that names it, or a target for each of its ids, padding is what stands behind a mark
      // of the end, and nowhere else.
      if (found.places == 0) found = Marked(view, call);
      if (found.places == 0 || (!known_ids.empty() && !known_ids.contains(found.id))) continue;
      if (!counted_.contains(call.key) && counted_.size() >= LossReader::kMaxKinds) continue;
      std::int64_t& counted = counted_[call.key];
      const Recognition known = reader_.Recognise(call);
      // Of calls of which only the first rows are kept, the settings tell what counts.
      // So do the ids of a loss that the script writes itself: what does not count has none.
      const bool told = call.settings.known || IsWritten(view, call);
      const bool by_settings = !call.whole() && call.value && told && call.counted.empty() && !weighted_ &&
                               Classes(FormulaOfKind(call.kind));
      const bool by_value = Classes(known.formula) && known.by_value && known.weights != Weights::kSome;
      const bool counts = (by_settings || by_value) && found.target != call.settings.ignore_index;
      const double share = static_cast<double>(found.places) / static_cast<double>(call.target.values.size());
      if (!counts || share < (found.mark ? limits_.share : kCounted) ||
          (!call.counted.empty() && OnlyOf(view, call, known_ids))) {
        counted = 0;
        continue;
      }
      if (++counted < kSamples || (!by_value && IsUnreduced(view, call.kind)) ||
          !told_.insert("loss " + call.kind).second)
        continue;
      Finding finding = FindingAt(kName, "padding", view, TensorAt{call.loss, call.worker});
      finding.since_step = 0;
      finding.what = fmt::format("{:.3g} % of the targets that {} counts stand beside padding (id {:g})",
                                 100 * share, call.kind, found.id);
      finding.why = fmt::format(
          "{}, and the target is always {:g}: the model learns that at once, and the mean of the loss looks "
          "better than it is",
          found.mark ? fmt::format("these places stand behind id {:g}, which ends each row", *found.mark)
                     : fmt::format("the model's input is padding at these places, as padding_idx={:g} of its "
                                   "table says",
                                   found.id),
          found.target);
      finding.remedy =
          found.target == found.id
              ? fmt::format("give ignore_index={:g} to the loss, or leave padding out of the mean",
                            found.target)
              : "pad targets with -100, which the loss ignores, or leave padding out of the mean";
      finding.causes = {"ignore_index is missing", "ignore_index is another id than that of the padding"};
      finding.evidence = {{"share", share}, {"id", found.id}, {"target", found.target}};
      finding.threshold = fmt::format("{:g} % of the targets, in {} captured steps in a row (Luff)",
                                      100 * (found.mark ? limits_.share : kCounted), kSamples);
      sink.Report(std::move(finding));
    }
  }

  // Reports a loss that the script multiplies by zeros and ones, or chooses from, so that padding of the
  // model's own input counts and nothing else does.
  void OnlyPadding(const StepView& view, Sink& sink) {
    const std::set<double> ids = PaddingIds();
    if (ids.empty()) return;
    for (const LossCall& call : reader_.Read(view)) {
      if (call.counted.empty()) continue;
      if (!turned_.contains(call.key) && turned_.size() >= LossReader::kMaxKinds) continue;
      std::int64_t& turned = turned_[call.key];
      const std::optional<double> id = OnlyOf(view, call, ids);
      if (!id && turned >= kTurned)
        sink.Heal("only_padding", view.trial.tensor(call.loss).name, view.rows.info.mode_step);
      turned = id ? turned + 1 : 0;
      if (turned < kTurned || !told_.insert("mask " + call.kind).second) continue;
      Finding finding = FindingAt(kName, "only_padding", view, TensorAt{call.loss, call.worker});
      finding.since_step = 0;
      finding.what = fmt::format("{} counts the places of padding (id {:g}), and no others", call.kind, *id);
      finding.why = fmt::format(
          "the values of the loss are masked: of each captured batch those that count stand where the "
          "model's "
          "input is padding, as padding_idx={:g} of its table says, and all that hold anything else are left "
          "out; their targets are all the same",
          *id);
      finding.remedy = fmt::format("turn the mask round: 1 where the input is not {:g}, 0 where it is", *id);
      finding.causes = {"== in the place of != where the mask is made",
                        "a mask that is true where something is hidden, used as one of what counts"};
      finding.evidence = {{"id", *id}, {"steps", static_cast<double>(turned)}};
      finding.threshold = fmt::format("a fact of {} captured steps in a row (Luff)", kTurned);
      sink.Report(std::move(finding));
    }
  }

  // Reports steps that a layer of Keras masks although they hold what the model should see.
  void Hidden(const StepView& view, Sink& sink) {
    for (const auto& event : view.index.json_events("masked_input")) {
      const auto model = event->find("model");
      const double place = NumberIn(*event, "input");
      const double value = NumberIn(*event, "value");
      if (model == event->end() || !model->is_string() || !(place >= 0 && place < kMaxMasked) ||
          std::isnan(value))
        continue;
      const std::string key = fmt::format("{} {:.0f}", model->get<std::string>(), place);
      if (masked_.size() < kMaxMasked) masked_.try_emplace(key, value, FlagIn(*event, "ids"));
    }
    if (masked_.empty() || view.rows.info.superseded) return;
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto known = masked_.find(fmt::format("{} {}", input.model, input.index));
      if (known == masked_.end() || input.entry->worker != view.index.first_worker()) continue;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr) continue;
      MaskedSteps& steps = known->second;
      steps.Add(*sample);
      const std::string& name = view.trial.tensor(input.entry->tensor).name;
      if (steps.fault() == MaskedSteps::Fault::kNone) {
        if (told_.erase("hidden " + known->first) > 0)
          sink.Heal("values_masked", name, view.rows.info.mode_step);
      } else if (told_.insert("hidden " + known->first).second) {
        TellHidden(view, input, steps, sink);
      }
    }
  }

  static void TellHidden(const StepView& view, const ModelInput& input, const MaskedSteps& steps,
                         Sink& sink) {
    const MaskedSteps::Fault fault = steps.fault();
    Finding finding =
        FindingAt(kName, "values_masked", view, TensorAt{input.entry->tensor, input.entry->worker});
    finding.since_step = 0;
    const std::string layer =
        steps.ids() ? "Embedding(mask_zero=True)" : fmt::format("Masking(mask_value={:g})", steps.value());
    finding.what = fault == MaskedSteps::Fault::kAll
                       ? fmt::format("{} hides every step of {}", layer, finding.tensor)
                       : fmt::format("{} hides {:.3g} % of the steps of {}, and these are no padding", layer,
                                     100 * steps.share(), finding.tensor);
    finding.why =
        fault == MaskedSteps::Fault::kAll ? "the layers behind it skip all there is: the model sees nothing"
        : fault == MaskedSteps::Fault::kAlike
            ? "all steps that the mask leaves hold one and the same value: the model can see how many "
              "there are, and not where, nor what stands between"
            : "id 0 stands between others as often as they do: it is one of the ids, and no padding";
    finding.remedy =
        steps.ids()
            ? "number the ids from 1 and keep 0 for padding (input_dim grows by one), or leave mask_zero out"
            : "leave the Masking layer out, or pad with a value that the data do not have and "
              "give it as mask_value";
    finding.causes = {"a mask_value that is a value of the data, too", "sequences that need no mask",
                      "ids that begin at 0 under mask_zero=True"};
    finding.evidence = {{"masked_share", steps.share()}, {"rows", steps.rows()}};
    finding.threshold = fmt::format("a fact of {} rows (Luff)", MaskedSteps::kRows);
    sink.Report(std::move(finding));
  }

  // The id of padding if only places count at which the model's input is it, and all of these have one
  // target: gaps that are to be filled have many.
  static std::optional<double> OnlyOf(const StepView& view, const LossCall& call,
                                      const std::set<double>& ids) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (!IsIds(input.entry->dtype) || input.entry->worker != call.worker) continue;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || !sample->whole() || sample->values.size() != call.counted.size()) continue;
      for (const double id : ids) {
        bool only = true;
        std::set<double> targets;
        std::set<double> others;
        for (std::size_t i = 0; i < call.counted.size() && only; ++i) {
          only = !call.counted[i] || sample->values[i] == id;
          if (call.counted[i]) {
            targets.insert(call.target.values[i]);
          } else if (sample->values[i] != id) {
            others.insert(sample->values[i]);
          }
        }
        if (only && targets.size() == 1 && others.size() > 1) return id;
      }
    }
    return std::nullopt;
  }

  // Whether the loss gives a value for each target, of which the script makes a mean itself.
  static bool IsUnreduced(const StepView& view, const std::string& kind) {
    const nlohmann::json model = TryParseJson(view.trial.Document("model"));
    for (const nlohmann::json& loss : ListIn(model, "losses")) {
      const auto type = loss.is_object() ? loss.find("type") : loss.end();
      if (type == loss.end() || *type != nlohmann::json(kind)) continue;
      const auto settings = loss.find("settings");
      if (settings == loss.end() || !settings->is_object()) continue;
      const auto reduction = settings->find("reduction");
      return reduction != settings->end() && *reduction == nlohmann::json("none");
    }
    return false;
  }

  // Whether a call was read off the graph: no loss of the document has its kind.
  static bool IsWritten(const StepView& view, const LossCall& call) {
    return !call.settings.known && view.trial.tensor(call.loss).name.find("_part_") != std::string::npos;
  }

  static bool Classes(Formula formula) noexcept {
    return formula == Formula::kCrossEntropy || formula == Formula::kNll;
  }

  // The ids that tables of the models take for padding.
  [[nodiscard]] std::set<double> PaddingIds() const {
    std::set<double> ids;
    for (const ModuleFacts& module : modules_.modules()) {
      const std::optional<double> id =
          module.type == "Embedding" ? module.Number("padding_idx") : std::nullopt;
      if (id) ids.insert(*id);
    }
    return ids;
  }

  struct Padding {
    double id = 0, target = 0;  // target: that of all these places
    std::size_t places = 0;     // 0: there is none, it is not padding alone, or it marks the end
    std::optional<double> mark = std::nullopt;  // the id in front of each run, once in each row
  };

  // The padding of a loss's targets behind a mark of the end: in rows as the loss has them, or as the model's
  // ids have, of which the first place may have no target.
  static Padding Marked(const StepView& view, const LossCall& call) {
    SampleValues rows = call.target;
    const auto count = static_cast<std::int64_t>(rows.values.size());
    for (std::size_t axis = 1; axis < rows.shape.size(); ++axis)
      if (rows.whole_shape.size() != rows.shape.size() || rows.shape[axis] != rows.whole_shape[axis])
        return {};
    std::erase(rows.shape, 1);  // (N, 1, L) of losses over two axes
    bool ids = false;           // frames of signals have labels, too: before, at and after something
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (!IsIds(input.entry->dtype) || input.entry->worker != call.worker) continue;
      ids = true;
      if (rows.shape.size() != 1) break;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || sample->whole_shape.size() != 2 || sample->whole_shape[0] < 1) continue;
      const std::int64_t many = sample->whole_shape[0], length = sample->whole_shape[1];
      if (count != many * length && count != many * (length - 1)) continue;
      rows.shape = {many, count / many};
    }
    if (!ids) return {};
    if (rows.shape.size() != 2 || rows.shape[0] < 4 || rows.shape[1] < 4) return {};
    for (const bool columns : {false, true}) {
      const Padding found{.id = rows.values.back(), .target = rows.values.back()};
      if (!EndsIn(rows, found.id, columns)) continue;
      const std::optional<double> mark = MarkOf(rows, found.id, columns);
      if (!mark) continue;
      const auto places = std::count(rows.values.begin(), rows.values.end(), found.id);
      return {found.id, found.id, static_cast<std::size_t>(places), mark};
    }
    return {};
  }

  // The id that stands in front of the padding in all padded rows (or columns), and once in each of them.
  static std::optional<double> MarkOf(const SampleValues& sample, double id, bool columns) {
    const auto rows = static_cast<std::size_t>(sample.shape[columns ? 1 : 0]);
    const auto length = static_cast<std::size_t>(sample.shape[columns ? 0 : 1]);
    std::optional<double> mark;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto at = [&](std::size_t i) {
        return sample.values[columns ? i * rows + row : row * length + i];
      };
      std::size_t used = 0;
      while (used < length && at(used) != id) ++used;
      if (used == length) continue;
      if (used < 2 || at(used - 1) != mark.value_or(at(used - 1))) return std::nullopt;
      mark = at(used - 1);
      for (std::size_t i = 0; i + 1 < used; ++i)
        if (at(i) == *mark) return std::nullopt;
    }
    return mark;
  }

  // The padding of a model's input that has a target for each id: runs of unlike length at the ends of rows
  // (or of columns, if time comes first), whose targets are one id.
  static Padding PaddingOf(const StepView& view, const LossCall& call, const std::set<double>& ids) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      if (!IsIds(input.entry->dtype) || input.entry->worker != call.worker) continue;
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr || !sample->whole() || sample->shape.size() != 2 ||
          sample->values.size() != call.target.values.size())
        continue;
      for (const double id : ids) {
        Padding found{.id = id};
        bool same = true;
        for (std::size_t i = 0; i < sample->values.size(); ++i) {
          if (sample->values[i] != id) continue;
          if (found.places++ == 0) found.target = call.target.values[i];
          same = same && call.target.values[i] == found.target;
        }
        for (const bool columns : {false, true})
          if (found.places > 0 && same && EndsIn(*sample, id, columns) &&
              !IsEnd(*sample, call.target.values, found, columns))
            return found;
      }
    }
    return {};
  }

  // Whether all rows (or columns) end in runs of the id, of unlike length, and have it nowhere else.
  static bool EndsIn(const SampleValues& sample, double id, bool columns) {
    const auto rows = static_cast<std::size_t>(sample.shape[columns ? 1 : 0]);
    const auto length = static_cast<std::size_t>(sample.shape[columns ? 0 : 1]);
    std::set<std::size_t> lengths;
    for (std::size_t row = 0; row < rows; ++row) {
      std::size_t used = 0;
      const auto at = [&](std::size_t i) {
        return sample.values[columns ? i * rows + row : row * length + i];
      };
      while (used < length && at(used) != id) ++used;
      for (std::size_t i = used; i < length; ++i) {
        if (at(i) != id) return false;
      }
      lengths.insert(used);
    }
    return lengths.size() > 1 && !lengths.contains(0);
  }

  // Whether padding says where rows (or columns) end: no id stands in front of it in nearly all of them, and
  // it is the target of the place before it, or the targets are the inputs.
  static bool IsEnd(const SampleValues& sample, const std::vector<double>& targets, const Padding& padding,
                    bool columns) {
    const auto rows = static_cast<std::size_t>(sample.shape[columns ? 1 : 0]);
    const auto length = static_cast<std::size_t>(sample.shape[columns ? 0 : 1]);
    std::map<double, std::size_t> last;
    std::size_t padded = 0;
    std::size_t asked = 0;  // rows whose last id must foretell the padding
    for (std::size_t row = 0; row < rows; ++row) {
      const auto at = [&](std::size_t i) { return columns ? i * rows + row : row * length + i; };
      std::size_t used = 0;
      while (used < length && sample.values[at(used)] != padding.id) ++used;
      if (used == 0 || used == length) continue;
      ++padded;
      ++last[sample.values[at(used - 1)]];
      asked += targets[at(used - 1)] == padding.target ? 1 : 0;
    }
    std::size_t most = 0;
    for (const auto& [id, count] : last) most = std::max(most, count);
    return static_cast<double>(most) < kNearlyAll * static_cast<double>(padded) &&
           (2 * asked >= padded || targets == sample.values);
  }

  const Limits limits_;
  LossReader reader_;
  std::set<std::string> told_;
  std::map<std::string, std::int64_t> counted_;  // captured steps in a row that count much padding, by call
  std::map<std::string, std::int64_t> turned_;   // and that count nothing else
  static constexpr std::size_t kMaxMasked = 16;
  std::map<std::string, MaskedSteps> masked_;  // by model and place of the input
  Tables tables_;
  bool weighted_ = false;  // a loss was given weights of classes
  ModelModules modules_;   // read from the run, not saved
};

Result<std::vector<Token>> TokensOf(const Limits& limits) {
  const std::vector<std::string> values = ParseList(limits.values);
  const std::vector<std::string> percents = ParseList(limits.percents);
  if (values.size() != percents.size() || values.empty()) {
    return InvalidArgument(fmt::format(
        "'token_values' has {} entries and 'token_thresholds_percent' has {}; give one threshold for "
        "each token",
        values.size(), percents.size()));
  }
  std::vector<Token> tokens(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    LUFF_ASSIGN_OR_RETURN(tokens[i].value, ParseDouble(values[i]));
    LUFF_ASSIGN_OR_RETURN(tokens[i].percent, ParseDouble(percents[i]));
  }
  return tokens;
}

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, false));
    LUFF_ASSIGN_OR_RETURN(std::vector<Token> tokens, TokensOf(limits));
    if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(std::move(selector), std::move(tokens)));
    return std::unique_ptr<Rule>(new Luff(limits));
  });
  spec.aliases = {"PaddingDominates"};
  // 2: padding beside which a loss counts; 3: a loss that counts nothing else; 4: steps that Keras masks; 5:
  // padding behind a mark of the end; 6: which a written loss counts
  spec.version = 6;
  spec.summary = "sequences that consist mostly of one token, or whose values a mask hides";
  spec.needs = [](const Parameters& all) {
    std::vector<Need> needs = SampleNeeds();
    needs.push_back(TableNeed());
    needs.back().save_interval = IntervalOf(all);
    if (!IsOriginal(all)) return needs;
    needs = SelectedNeeds(all, "input_sequence", Bit(Form::kSummary) | Bit(Form::kRaw));
    for (Need& need : needs) need.save_interval = IntervalOf(all);
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::nlp_sequence_ratio
