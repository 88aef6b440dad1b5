#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/loss_call.h"
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
  }
  void VisitFields(Fields& io) override {
    io("told", told_);
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
      if (call.output.is_float() && !call.target.is_float() && call.whole()) {
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

  const Limits limits_;
  LossReader reader_;
  std::set<std::string> told_;
  Tables tables_;
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
  spec.summary = "sequences that consist mostly of one token";
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
