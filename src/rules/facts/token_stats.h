#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/facts/model_modules.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Counts the ids that an embedding table is asked for, and where in the rows the most frequent one occurs.
/// Bounded: beyond kMaxIds different ids it drops the counts, and many() is true.
class TokenStats {
 public:
  static constexpr std::size_t kMaxIds = 1 << 16;

  void Add(const SampleValues& ids);

  [[nodiscard]] double tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int64_t samples() const noexcept { return samples_; }
  [[nodiscard]] bool many() const noexcept { return many_; }
  [[nodiscard]] std::size_t used() const noexcept { return counts_.size(); }
  [[nodiscard]] std::int64_t largest() const noexcept {
    return counts_.empty() ? -1 : counts_.rbegin()->first;
  }
  /// The most frequent id, and its share of all tokens.
  [[nodiscard]] std::int64_t top() const noexcept { return top_; }
  [[nodiscard]] double top_share() const noexcept;
  /// The top id occurs at the ends of rows, as padding does.
  [[nodiscard]] bool top_is_padding() const noexcept;
  /// The top id occurs anywhere in rows of several tokens: it does not follow itself much more often than its
  /// share of all tokens suggests.
  [[nodiscard]] bool top_is_scattered() const noexcept;
  /// No new id appeared in the second half of all tokens.
  [[nodiscard]] bool saturated() const noexcept { return tokens_ > 0 && last_new_ <= tokens_ / 2; }

  void VisitFields(Fields& io);

 private:
  double tokens_ = 0, last_new_ = 0;  // last_new_: tokens before the last new id
  std::int64_t samples_ = 0;
  bool many_ = false;
  std::map<std::int64_t, double> counts_;
  std::int64_t top_ = -1;
  // Since the current top id became the top: its occurrences, those in a run at an end of a row, those with a
  // next token in the row, and those followed by the same id.
  double met_ = 0, at_end_ = 0, has_next_ = 0, same_next_ = 0;
};

/// The ids given to one embedding table in a step.
struct TableInput {
  const query::Trial::SummaryEntry* entry = nullptr;
  std::string module;  // name of the module
  std::string model;   // name of its model
  std::string type;    // "Embedding" or "EmbeddingBag"
  std::optional<double> table_rows, padding;
};
[[nodiscard]] std::vector<TableInput> TableInputsOf(const StepView& view, const ModelModules& modules);

/// **Thread-compatible.** Statistics of the embedding tables of a run, by name of the module; at most
/// kMaxTables.
class Tables {
 public:
  static constexpr std::size_t kMaxTables = 64;
  struct Batch {
    TableInput input;
    std::shared_ptr<const SampleValues> ids;
  };
  /// For a TRAIN step: the ids given to tables of at least `rows` rows. Skips tables of unknown size.
  [[nodiscard]] std::vector<Batch> OnStep(const StepView& view, double rows);
  /// Statistics of the batch's table; null beyond kMaxTables.
  [[nodiscard]] TokenStats* StatsOf(const Batch& batch);
  [[nodiscard]] const std::map<std::string, TokenStats>& all() const noexcept { return stats_; }
  void VisitFields(Fields& io);

 private:
  ModelModules modules_;
  std::map<std::string, TokenStats> stats_;
};

/// The need that captures what TableInputsOf reads.
[[nodiscard]] Need TableNeed();

}  // namespace luff::rules
