#include "rules/facts/table_columns.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "rules/facts/sample.h"

namespace luff::rules {

void TableColumns::Add(const StepView& view, const std::vector<Tables::Batch>& batches) {
  if (unfit_ || batches.empty()) return;
  const std::uint32_t worker = view.index.first_worker();
  std::map<std::string, std::vector<double>> now;
  std::size_t rows = 0;
  for (const ModelInput& input : ModelInputsOf(view)) {
    if (input.entry->worker != worker || !IsIds(input.entry->dtype)) continue;
    const auto ids = LoadSample(view, *input.entry);
    if (ids == nullptr || !ids->whole() || ids->shape.empty() || ids->shape.size() > 2) return;
    const Rows shape = RowsOf(*ids);
    if (shape.count == 0 || (rows != 0 && shape.count != rows)) return;
    rows = shape.count;
    if (now.size() + shape.width > kMostColumns) return;
    for (std::size_t column = 0; column < shape.width; ++column) {
      std::vector<double>& values =
          now[fmt::format("{} of argument {} of {}", column, input.index, input.model)];
      for (std::size_t row = 0; row < rows; ++row) values.push_back(ids->values[row * shape.width + column]);
    }
  }
  if (now.size() < 2) return;
  std::vector<std::pair<const Tables::Batch*, std::vector<std::string>>> reads;
  for (const Tables::Batch& batch : batches) {
    if (batch.input.entry->worker != worker) continue;
    std::vector<std::string> same;
    for (const auto& [name, values] : now) {
      if (batch.ids->values == values) same.push_back(name);
    }
    unfit_ = unfit_ || same.empty();
    reads.emplace_back(&batch, std::move(same));
  }
  if (unfit_) return;
  for (const auto& [name, values] : now) {
    if (columns_.size() >= kMostColumns && !columns_.contains(name)) continue;
    Column& column = columns_[name];
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    column.varies = column.varies || *low != *high;
    column.largest = std::max(column.largest, *high);
    column.rows += static_cast<double>(rows);
  }
  for (const auto& [batch, same] : reads) {
    for (const std::string& name : same) {
      if (const auto known = columns_.find(name); known != columns_.end()) known->second.read = true;
    }
    const auto known = tables_.find(batch->input.module);
    if (known == tables_.end() && tables_.size() >= kMostTables) continue;
    const bool fresh = known == tables_.end();
    Table& table = fresh ? tables_[batch->input.module] : known->second;
    table.rows = batch->input.table_rows.value_or(0);
    const bool again = std::find(same.begin(), same.end(), table.column) != same.end();
    if (fresh) {
      table.column = same.size() == 1 ? same.front() : "";
    } else if (!again) {
      table.column.clear();
    }
  }
}

std::optional<TableColumns::Wrong> TableColumns::Find(double rows_per_row) const {
  if (unfit_) return std::nullopt;
  for (const auto& [name, table] : tables_) {
    const auto reads = columns_.find(table.column);
    if (table.column.empty() || reads == columns_.end() || reads->second.rows < rows_per_row * table.rows)
      continue;
    if (table.rows <= reads->second.largest + 1 + kSlack) continue;  // the table is made for this column
    const auto other = std::find_if(tables_.begin(), tables_.end(), [&](const auto& one) {
      return one.first != name && one.second.column == table.column &&
             one.second.rows <= reads->second.largest + 1 + kSlack;
    });
    if (other == tables_.end()) continue;
    for (const auto& [meant, column] : columns_) {
      const double needed = column.largest + 1;
      if (column.read || !column.varies || table.rows < needed || table.rows > needed + kSlack) continue;
      return Wrong{name, other->first, table.column, meant, table.rows, reads->second.largest};
    }
  }
  return std::nullopt;
}

void TableColumns::VisitFields(Fields& io) {
  io("columns", columns_, kMostColumns);
  io("tables", tables_, kMostTables);
  io("unfit", unfit_);
}

}  // namespace luff::rules
