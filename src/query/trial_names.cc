#include <algorithm>
#include <set>

#include "luff/base/regex.h"
#include "query/run_trial.h"

namespace luff::query {
Result<TensorId> RunTrial::FindTensor(std::string_view name) const {
  const auto at = by_name_.find(name);
  if (at != by_name_.end()) return at->second;
  return NoTensor(name);
}

std::vector<std::string> RunTrial::CollectionNames() const {
  std::set<std::string> names;
  for (const auto& [worker, known] : collections_) names.insert(known.second.begin(), known.second.end());
  names.erase("");
  return {names.begin(), names.end()};
}

Result<std::vector<std::string>> RunTrial::TensorNames(const NameFilter& filter) const {
  std::optional<Regex> regex;
  if (!filter.regex.empty()) {
    LUFF_ASSIGN_OR_RETURN(regex, Regex::Compile(filter.regex));
  }
  if (!filter.collection.empty()) {
    LUFF_RETURN_IF_ERROR(CheckCollection(filter.collection));
  }
  std::vector<std::uint8_t> wanted(tensors_.size(), filter.step || filter.mode != Mode::kGlobal ? 0 : 1);
  if (filter.step) {
    LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(*filter.step, filter.mode));
    for (const auto& worker : workers_) {
      for (std::size_t id = 0; id < tensors_.size(); ++id) {
        if (wanted[id] != 0) continue;
        const auto rows = RowsOf(*worker, static_cast<TensorId>(id), n);
        if (!rows || !rows->slot) continue;
        const auto has = [&](const auto& block) {
          return block.ok() && std::binary_search(block->step.begin(), block->step.end(), rows->index);
        };
        wanted[id] = has(rows->segment->Summaries(*rows->slot)) || has(rows->segment->Index(*rows->slot)) ||
                     has(rows->segment->Scalars(*rows->slot)) || has(rows->segment->Forms(*rows->slot));
      }
    }
  } else if (filter.mode != Mode::kGlobal) {
    // Seen in the mode at any step.
    for (std::size_t id = 0; id < tensors_.size(); ++id) {
      LUFF_ASSIGN_OR_RETURN(const auto steps, TensorSteps(static_cast<TensorId>(id), filter.mode));
      wanted[id] = steps.empty() ? 0 : 1;
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, id] : by_name_) {  // sorted
    if (wanted[id] == 0 || (regex && !regex->Search(name))) continue;
    const auto& collections = tensors_[id].collections;
    if (!filter.collection.empty() &&
        std::find(collections.begin(), collections.end(), filter.collection) == collections.end()) {
      continue;
    }
    names.push_back(name);
  }
  return names;
}

std::string RunTrial::Document(std::string_view name) const {
  for (const auto& worker : workers_) {
    const auto at = worker->reader->documents().find(std::string(name));
    if (at != worker->reader->documents().end()) return at->second;
  }
  return {};
}

}  // namespace luff::query
