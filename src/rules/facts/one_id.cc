#include "rules/facts/one_id.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

// Values of a column of ids, one for each row of a model's argument.
struct Ids {
  std::string name;
  std::vector<double> values;
  [[nodiscard]] bool constant() const {
    return std::all_of(values.begin(), values.end(), [&](double id) { return id == values.front(); });
  }
};

std::vector<Ids> ColumnsOf(const StepView& view, std::size_t most) {
  std::vector<Ids> found;
  for (const ModelInput& input : ModelInputsOf(view)) {
    if (input.entry->worker != view.index.first_worker() || !IsIds(input.entry->dtype)) continue;
    const auto ids = LoadSample(view, *input.entry);
    if (ids == nullptr || !ids->whole() || ids->shape.empty() || ids->shape.size() > 2) continue;
    const Rows shape = RowsOf(*ids);
    for (std::size_t column = 0; column < shape.width && found.size() < most; ++column) {
      Ids& one = found.emplace_back();
      one.name = fmt::format("column {} of argument {} of {}", column, input.index, input.model);
      for (std::size_t row = 0; row < shape.count; ++row)
        one.values.push_back(ids->values[row * shape.width + column]);
      if (one.values.empty()) found.pop_back();
    }
  }
  return found;
}

}  // namespace

void OneId::Add(const StepView& view, const std::vector<Tables::Batch>& batches) {
  if (batches.empty()) return;
  const std::vector<Ids> now = ColumnsOf(view, kMostColumns);
  for (const Tables::Batch& batch : batches) {
    const std::vector<double>& ids = batch.ids->values;
    if (ids.empty() || batch.input.entry->worker != view.index.first_worker()) continue;
    if (!tables_.contains(batch.input.module) && tables_.size() >= kMostTables) continue;
    const auto [known, fresh] = tables_.try_emplace(batch.input.module);
    Table& table = known->second;
    if (fresh) table.id = ids.front();
    table.rows = batch.input.table_rows.value_or(0);
    table.asked += static_cast<double>(ids.size());
    table.one = table.one && std::all_of(ids.begin(), ids.end(), [&](double id) { return id == table.id; });
    table.given = table.given || std::any_of(now.begin(), now.end(), [&](const Ids& one) {
                    return one.values.front() == table.id && one.constant();
                  });
  }
  for (const Ids& one : now) {
    if (!columns_.contains(one.name) && columns_.size() >= kMostColumns) continue;
    Column& column = columns_[one.name];
    const auto [low, high] = std::minmax_element(one.values.begin(), one.values.end());
    column.largest = std::max(column.largest, *high);
    column.negative = column.negative || *low < 0;
    column.varies = column.varies || *low != *high;
    // Sequences that hold the column may be looked up as a whole.
    column.read = column.read || std::any_of(batches.begin(), batches.end(), [&](const Tables::Batch& batch) {
                    const std::vector<double>& ids = batch.ids->values;
                    return ids == one.values || ids.size() > one.values.size();
                  });
  }
}

std::optional<OneId::Found> OneId::Find(double ids_per_row) const {
  for (const auto& [name, table] : tables_) {
    if (!table.one || table.given || table.asked < ids_per_row * table.rows) continue;
    for (const auto& [said, column] : columns_) {
      const double needed = column.largest + 1;
      if (column.read || column.negative || !column.varies || table.rows < needed ||
          table.rows > needed + kSlack)
        continue;
      return Found{name, said, table.id, table.rows, column.largest};
    }
  }
  return std::nullopt;
}

void OneId::VisitFields(Fields& io) {
  io("tables", tables_, kMostTables);
  io("columns", columns_, kMostColumns);
}

}  // namespace luff::rules
