#include "luff/profile/module_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/json.h"

namespace luff::profile {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kMaxModel = 16U << 20;
constexpr std::size_t kModelDepth = 16;

struct ModuleSums {
  std::uint64_t calls = 0;
  std::int64_t forward_ns = 0, forward_own_ns = 0, backward_ns = -1, backward_own_ns = -1;
};

void AddSeen(std::int64_t more, std::int64_t* to) noexcept {
  if (more >= 0) *to = std::min(std::max<std::int64_t>(*to, 0) + more, format::kMaxPhaseNs);
}

std::optional<double> ModuleSeconds(std::int64_t ns) {
  return ns < 0 ? std::nullopt : std::optional(static_cast<double>(ns) * 1e-9);
}

/// Gives the lines what the document "model" says of their numbers.
void NameThem(const std::string& model_json, std::vector<ModuleLine>* lines) {
  std::unordered_map<std::int64_t, ModuleLine*> by_number;
  for (ModuleLine& line : *lines) {
    if (line.number >= 0) by_number[line.number] = &line;
  }
  const Json json = TryParseJson(model_json, {kMaxModel, kModelDepth});
  if (json.is_object() && json.contains("models") && json["models"].is_array()) {
    for (const Json& model : json["models"]) {
      if (!model.is_object() || !model.contains("modules") || !model["modules"].is_array()) continue;
      for (const Json& module : model["modules"]) {
        if (!module.is_object()) continue;
        const auto at = by_number.find(WholeMember(module, "number", -1));
        if (at == by_number.end() || !at->second->name.empty()) continue;
        at->second->name = TextMember(module, "name");
        at->second->type = TextMember(module, "type");
      }
    }
  }
  for (const auto& [number, line] : by_number) {
    if (line->name.empty()) line->name = "module " + std::to_string(number);
  }
}

}  // namespace

Result<ModuleTable> ModulesOf(const query::Trial& trial, const Scope& scope) {
  ModuleTable table;
  std::optional<std::uint32_t> worker = scope.worker;
  std::unordered_map<std::uint32_t, ModuleSums> modules;
  LUFF_RETURN_IF_ERROR(query::VisitModules(
      trial, [&](const query::StepInfo& step, std::uint32_t number, const format::ModuleTimesView& view) {
        if (!worker) worker = number;
        if (number != *worker || step.mode != query::Mode::kTrain || !scope.Has(step)) return;
        table.steps += view.head.steps;
        table.modules = std::max<std::uint64_t>(table.modules, view.head.modules);
        table.hidden = table.hidden || (view.head.flags & format::kModulesHidden) != 0;
        table.recomputed = table.recomputed || (view.head.flags & format::kModulesRecomputed) != 0;
        table.too_many = table.too_many || (view.head.flags & format::kModulesTooMany) != 0;
        for (const format::ModuleTimeRow& row : view.rows) {
          ModuleSums& sums = modules[row.module];
          sums.calls += row.calls;
          AddSeen(row.forward_ns, &sums.forward_ns);
          AddSeen(row.forward_self_ns, &sums.forward_own_ns);
          AddSeen(row.backward_ns, &sums.backward_ns);
          AddSeen(row.backward_self_ns, &sums.backward_own_ns);
        }
      }));
  table.worker = worker.value_or(0);
  for (const auto& [number, sums] : modules) {
    ModuleLine line;
    line.number = number == format::kNoId ? -1 : std::int64_t{number};
    line.calls = sums.calls;
    if (line.number >= 0) line.forward_s = ModuleSeconds(sums.forward_ns);
    line.forward_own_s = static_cast<double>(sums.forward_own_ns) * 1e-9;
    line.backward_s = ModuleSeconds(sums.backward_ns);
    line.backward_own_s = ModuleSeconds(sums.backward_own_ns);
    table.own_s += line.own_s();
    table.lines.push_back(std::move(line));
  }
  for (ModuleLine& line : table.lines) line.share = table.own_s > 0 ? line.own_s() / table.own_s : 0;
  std::ranges::sort(table.lines, [](const ModuleLine& a, const ModuleLine& b) {
    return std::pair(-a.own_s(), a.number) < std::pair(-b.own_s(), b.number);
  });
  if (!table.lines.empty()) NameThem(query::DocumentOf(trial, table.worker, "model"), &table.lines);
  return table;
}

std::vector<std::string> NotSeen(const ModuleTable& table) {
  std::vector<std::string> lines;
  if (table.hidden)
    lines.emplace_back(
        "modules inside a compiled or scripted graph: their time is that of the module around them");
  if (table.recomputed)
    lines.emplace_back(
        "modules in the backward pass: it computes activations again, which would count for the wrong ones");
  else if (table.steps != 0 && std::ranges::none_of(table.lines, [](const ModuleLine& line) {
             return line.backward_s.has_value();
           }))
    lines.emplace_back("modules in the backward pass: nothing of the graph could be seen");
  if (table.too_many)
    lines.emplace_back("all calls of modules: a step has more than 32,768, or more tensors between them");
  return lines;
}

}  // namespace luff::profile
