#include "cli/kept_actions.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/format.h"
#include "cli/terminal.h"
#include "luff/actions/audit.h"

namespace luff::cli {

KeptActions ActionsOfRun(const std::string& run) {
  KeptActions kept;
  std::map<std::string, std::size_t> place;
  const actions::Audit audit(run + "/rules/luff/actions.jsonl");
  for (const actions::AuditLine& line : audit.earlier()) {
    if (line.event == "silenced" || line.event == "limited" || line.event == "dropped") {
      ++kept.left_out;
      if (!place.contains(line.id)) continue;
    }
    const auto [known, fresh] = place.emplace(line.id, kept.actions.size());
    if (fresh) {
      KeptAction one;
      one.id = line.id;
      one.action = line.action;
      one.kind = line.kind;
      one.rule = line.cause.substr(0, line.cause.find('/'));
      one.finding = line.finding;
      one.begun_unix_ns = line.unix_ns;
      if (line.finding.empty()) one.asked = line.detail;
      kept.actions.push_back(std::move(one));
    }
    KeptAction& action = kept.actions[known->second];
    if (line.event == "silenced" || line.event == "limited") continue;  // a suppressed repetition
    action.state = line.event;
    action.detail = line.detail;
    action.unix_ns = line.unix_ns;
    action.attempts = std::max(action.attempts, line.attempt);
    if (line.train_step >= 0) action.train_step = line.train_step;
  }
  return kept;
}

std::string StateText(const KeptAction& action) {
  std::string text = action.state;
  std::replace(text.begin(), text.end(), '_', ' ');
  text = Escaped(text);
  if (action.train_step >= 0) {
    const bool past = action.state == "carried_out" || action.state == "committed";
    text += fmt::format("{} after {} TRAIN steps", past ? "" : ", meant to be", action.train_step);
  }
  if (action.attempts > 1) text += fmt::format(", {} attempts", action.attempts);
  if (!action.detail.empty()) text += ": " + Escaped(action.detail);
  return text;
}

}  // namespace luff::cli
