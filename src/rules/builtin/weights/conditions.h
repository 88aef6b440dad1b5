#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "rules/facts/model_facts.h"
#include "rules/facts/token_stats.h"
#include "rules/kit/fields.h"

namespace luff::rules::dead_embedding_rows {

/// **Thread-compatible.** Which ids small tables get: classes, domains, times, by which several models of a
/// training are told what to do.
class Conditions {
 public:
  static constexpr std::int64_t kBatches = 8;

  struct Twin {
    std::string other;
    std::int64_t id = 0, batches = 0;
    std::size_t used = 0;
    double rows = 0;
  };

  void Add(const Tables::Batch& batch) {
    const double rows = *batch.input.table_rows;
    if (rows < kFewest || rows > kMost || batch.ids->values.empty()) return;
    if (tables_.size() >= Tables::kMaxTables && !tables_.contains(batch.input.module)) return;
    Table& table = tables_[batch.input.module];
    table.model = batch.input.model;
    table.rows = rows;
    table.padding = batch.input.padding.value_or(-1);
    ++table.batches;
    table.ids += static_cast<double>(batch.ids->values.size());
    for (const double value : batch.ids->values)
      if (value >= 0 && value < rows) table.seen.insert(static_cast<std::int64_t>(value));
  }

  /// The table of another model, as large as this one, that gets nearly all ids, if this one gets a single
  /// one. Not of a model that is built alike: a teacher, or a critic of a student that began as a copy and is
  /// asked for the last time only.
  [[nodiscard]] std::optional<Twin> TwinOf(const std::string& module, double ids_per_row,
                                           const ModelFacts& facts) const {
    const auto at = tables_.find(module);
    if (at == tables_.end()) return std::nullopt;
    const Table& one = at->second;
    if (one.seen.size() != 1 || one.model.empty() || !one.Judged(ids_per_row) ||
        static_cast<double>(*one.seen.begin()) == one.padding)
      return std::nullopt;
    for (const auto& [name, other] : tables_) {
      if (other.model == one.model || other.model.empty() || other.rows != one.rows) continue;
      if (AreAlike(facts, one.model, other.model)) continue;
      if (!other.Judged(ids_per_row) || static_cast<double>(other.seen.size()) < kNearlyAll * other.rows)
        continue;
      return Twin{name, *one.seen.begin(), one.batches, other.seen.size(), one.rows};
    }
    return std::nullopt;
  }

  void VisitFields(Fields& io) { io("tables", tables_, Tables::kMaxTables); }

 private:
  static constexpr double kFewest = 3, kMost = 1024, kNearlyAll = 0.75;

  static bool AreAlike(const ModelFacts& facts, const std::string& model, const std::string& other) {
    const auto& types = facts.ModuleTypes(model);
    return types.contains("") && types == facts.ModuleTypes(other);
  }

  struct Table {
    std::string model;
    double rows = 0, padding = -1, ids = 0;
    std::int64_t batches = 0;
    std::set<std::int64_t> seen;
    [[nodiscard]] bool Judged(double ids_per_row) const {
      return batches >= kBatches && ids >= ids_per_row * rows;
    }
    void VisitFields(Fields& io) {
      io("model", model);
      io("rows", rows);
      io("padding", padding);
      io("ids", ids);
      io("batches", batches);
      io("seen", seen, static_cast<std::size_t>(kMost));
    }
  };

  std::map<std::string, Table> tables_;  // by module
};

}  // namespace luff::rules::dead_embedding_rows
