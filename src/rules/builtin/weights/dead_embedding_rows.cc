#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/builtin/weights/conditions.h"
#include "rules/facts/common_needs.h"
#include "rules/facts/cut_ids.h"
#include "rules/facts/step_memo.h"
#include "rules/facts/table_columns.h"
#include "rules/facts/token_stats.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// DeadEmbeddingRows: docs/rules/dead_embedding_rows.md.
namespace luff::rules::dead_embedding_rows {
namespace {

constexpr const char* kName = "DeadEmbeddingRows";

struct Limits {
  double used, one, tokens_per_row, table_rows;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::used, "used", "0.25", "share of the rows that are used, at most (Luff)"},
    {&Limits::one, "one", "0.4", "share of the tokens that one id takes, at least (Luff)"},
    {&Limits::tokens_per_row, "tokens_per_row", "10",
     "tokens for each row of the table before it is judged (Luff)"},
    {&Limits::table_rows, "table_rows", "32", "smaller tables are left alone (Luff)"},
};

class DeadEmbeddingRows final : public KeptRule {
 public:
  explicit DeadEmbeddingRows(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain) return;
    if (const auto cut = cut_.OnStep(view)) TellCut(view, *cut, sink);
    const std::vector<Tables::Batch> batches = tables_.OnStep(view, 1);
    columns_.Add(view, batches);
    if (!batches.empty()) OtherColumn(view, sink);
    for (const Tables::Batch& batch : batches) conditions_.Add(batch);
    if (!batches.empty()) OneCondition(view, batches, sink);
    for (const Tables::Batch& batch : batches) {
      if (told_.contains(batch.input.module) || *batch.input.table_rows < limits_.table_rows) continue;
      TokenStats* stats = tables_.StatsOf(batch);
      if (stats == nullptr) continue;
      stats->Add(*batch.ids);
      Judge(view, batch.input, *stats, sink);
    }
  }
  void VisitFields(Fields& io) override {
    io("told", told_);
    io("tables", tables_);
    io("columns", columns_);
    io("cut", cut_);
    io("conditions", conditions_);
  }

 private:
  // Reports a table that is asked for numbers between the ids.
  static void TellCut(const StepView& view, const CutIds::Cut& cut, Sink& sink) {
    Finding finding = FindingAt(kName, "cut_ids", view, *cut.entry);
    finding.severity = cut.ids == 1 ? Severity::kStop : Severity::kWarn;
    finding.since_step = 0;
    finding.what =
        fmt::format("an embedding gets numbers that are no ids: {:.3g} % of {} are no whole numbers",
                    100 * cut.share, finding.tensor);
    finding.why = fmt::format(
        "Keras cuts off what is behind the point, so that {} or more different numbers become {}: the model "
        "does not see what distinguishes them",
        cut.numbers,
        cut.ids == 1 ? fmt::format("the one id {:g}", cut.first) : fmt::format("{} ids", cut.ids));
    finding.remedy =
        "give the embedding whole ids, as a tokenizer makes them, and do not scale them; numbers go into a "
        "dense "
        "layer, without an embedding";
    finding.causes = {"ids that were scaled like features (divided, standardised, MinMaxScaler)",
                      "a column of numbers in front of an embedding"};
    finding.evidence = {{"share", cut.share}, {"numbers", cut.numbers}, {"ids", cut.ids}};
    finding.threshold = "a fifth of the numbers, in 3 captured batches in a row (Luff)";
    sink.Report(std::move(finding));
  }

  // Reports a table that is asked for the ids of another one, whose own column nobody reads.
  void OtherColumn(const StepView& view, Sink& sink) {
    const std::optional<TableColumns::Wrong> wrong = columns_.Find(limits_.tokens_per_row);
    if (!wrong || !told_.insert("column\n" + wrong->table).second) return;
    Finding finding = FindingAt(kName, "other_column", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what = fmt::format("{} and {} look up the same column of ids ({}), and nothing reads column {}",
                               wrong->table, wrong->other, wrong->column, wrong->meant);
    finding.why = fmt::format(
        "the {:.0f} rows of {} are as many as the column that is not read has ids; of the one that is looked "
        "up the "
        "largest id is {:.0f}, so that the other rows are never used",
        wrong->rows, wrong->table, wrong->largest);
    finding.remedy = fmt::format(
        "give {} its own column of the input: the index of the column is another one", wrong->table);
    finding.causes = {"a constant in the place of the loop's index", "the same argument for two tables"};
    finding.evidence = {{"rows", wrong->rows}, {"largest_id", wrong->largest}};
    finding.threshold = fmt::format("a fact of all captured rows, {:g} for each row of the table (Luff)",
                                    limits_.tokens_per_row);
    sink.Report(std::move(finding));
  }

  // Reports a table that is asked for one id only, while another model's table of as many rows gets all.
  void OneCondition(const StepView& view, const std::vector<Tables::Batch>& batches, Sink& sink) {
    for (const Tables::Batch& batch : batches) {
      const std::string& module = batch.input.module;
      const auto twin = conditions_.TwinOf(module, limits_.tokens_per_row, view.memo.Facts(view));
      if (!twin || !told_.insert("condition\n" + module).second) continue;
      Finding finding = FindingAt(kName, "one_condition", view, *batch.input.entry);
      finding.since_step = 0;
      finding.what = fmt::format("{} of {} gets the id {} and no other", module, batch.input.model, twin->id);
      finding.why = fmt::format(
          "in all {} captured batches it is asked for one of its {:.0f} rows, while {}, of as many rows in "
          "another model of the training, has got {} of them: what {} learns is for one condition, and its "
          "other rows stay as they were drawn",
          twin->batches, twin->rows, twin->other, twin->used, batch.input.model);
      finding.remedy =
          "draw the condition for each sample of each step (torch.randint(classes, (n,))), or hand on the "
          "labels of the batch";
      finding.causes = {"an id that was fixed to look at one class, and is still there",
                        "torch.full or zeros in the place of torch.randint"};
      finding.evidence = {{"id", twin->id}, {"rows", twin->rows}, {"used_by_other", twin->used}};
      finding.threshold = fmt::format(
          "a fact of all captured batches, {} at least, {:g} ids for each row of the table (Luff)",
          Conditions::kBatches, limits_.tokens_per_row);
      sink.Report(std::move(finding));
    }
  }

  void Judge(const StepView& view, const TableInput& input, const TokenStats& stats, Sink& sink) {
    const double rows = *input.table_rows;
    const double used = static_cast<double>(stats.used()) / rows;
    if (stats.many() || stats.tokens() < limits_.tokens_per_row * rows || used > limits_.used) return;
    // A small corpus also leaves most of a large vocabulary unused, but then no single id replaces all
    // others.
    if (stats.top_share() < limits_.one || !stats.saturated() || stats.top_is_padding()) return;
    if (input.padding.has_value() && *input.padding == static_cast<double>(stats.top())) return;
    told_.insert(input.module);
    Finding finding = FindingAt(kName, "unused", view, *input.entry);
    finding.since_step = 0;
    finding.what = fmt::format("{:.0f} of the {:.0f} rows of the table of {} are never used",
                               rows * (1 - used), rows, input.module);
    finding.why = fmt::format(
        "id {} takes {:.3g} % of {:.0f} tokens, only {} ids have come at all and the second half of the "
        "tokens "
        "brought no new one: most words are mapped to one id",
        stats.top(), 100 * stats.top_share(), stats.tokens(), stats.used());
    finding.remedy = "check the tokenizer and its vocabulary: is it the one that the table was made for?";
    finding.causes = {"ids beyond a limit are replaced by the unknown id",
                      "another vocabulary than the table's", "text was not normalised as the vocabulary's"};
    finding.evidence = {{"used_share", used},
                        {"top_id", stats.top()},
                        {"top_share", stats.top_share()},
                        {"largest_id", stats.largest()},
                        {"tokens", stats.tokens()}};
    finding.threshold = fmt::format(
        "at most {:g} % of the rows used, one id at least {:g} % of the tokens, {:g} tokens a row (Luff)",
        100 * limits_.used, 100 * limits_.one, limits_.tokens_per_row);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::set<std::string> told_;
  Tables tables_;
  TableColumns columns_;
  CutIds cut_;
  Conditions conditions_;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<DeadEmbeddingRows>(kName, kParams);
  spec.version = 4;  // 2: "other_column"; 3: "cut_ids"; 4: "one_condition"
  spec.summary =
      "an embedding table whose rows are hardly used: one id takes their place, or other ids are looked up, "
      "or "
      "numbers that are none";
  spec.needs = [](const Parameters&) {
    std::vector<Need> needs = SampleNeeds();
    needs.push_back(TableNeed());
    return needs;
  };
  return spec;
}

}  // namespace luff::rules::dead_embedding_rows
