#include <set>

#include "query/run_trial.h"

namespace luff::query {

std::optional<TensorId> RunTrial::TensorNamed(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? std::nullopt : std::optional(at->second);
}

Result<TensorId> RunTrial::FindTensor(std::string_view name) const {
  if (const auto id = TensorNamed(name)) return *id;
  return NoTensor(name);
}

std::vector<std::string> RunTrial::CollectionNames() const {
  std::set<std::string> names;
  for (const auto& [worker, known] : collections_) names.insert(known.second.begin(), known.second.end());
  names.erase("");
  return {names.begin(), names.end()};
}

std::string RunTrial::Document(std::string_view name) const {
  for (const auto& worker : workers_) {
    const auto at = worker->reader->documents().find(std::string(name));
    if (at != worker->reader->documents().end()) return at->second;
  }
  return {};
}

std::string RunTrial::DocumentOfWorker(std::uint32_t worker, std::string_view name) const {
  for (const auto& one : workers_) {
    if (one->reader->worker() != worker) continue;
    const auto at = one->reader->documents().find(std::string(name));
    if (at != one->reader->documents().end()) return at->second;
  }
  return {};
}

std::string RunTrial::DocumentAt(std::string_view name, std::size_t n) const {
  for (const auto& worker : workers_) {
    const std::uint64_t ordinal = worker->OrdinalOf(n);
    if (ordinal == kNoOrdinal) continue;
    if (const std::string* at = worker->reader->DocumentAt(std::string(name), ordinal)) return *at;
  }
  return Document(name);
}

}  // namespace luff::query
