#include "rules/own/expression_rule.h"
#include "base/format.h"
#include "base/nearest_names.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>

#include "rules/kit/abstains.h"
#include "rules/kit/kept_rule.h"
#include "rules/own/expression.h"
#include "rules/own/expression_state.h"

namespace luff::rules {
namespace {

constexpr const char* kCause = "condition";
constexpr std::size_t kMaxText = 1000;

struct Settings {
  std::string name, message;
  Severity severity = Severity::kWarn;
  std::int64_t in_a_row = 1;
  query::Mode mode = query::Mode::kTrain;
};

class ExpressionRule final : public KeptRule, public Abstains {
 public:
  ExpressionRule(std::shared_ptr<const Expression> expression, Settings settings)
      : expression_(std::move(expression)),
        settings_(std::move(settings)),
        state_(*expression_) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& step = view.rows.info;
    if (step.mode != settings_.mode) return;
    state_.Take(view.trial, view.rows);
    const ExpressionState::Verdict verdict = state_.Evaluate();
    if (!verdict.holds) return;  // unknown: neither one more step in a row nor the end of the row
    ++known_;
    if (!*verdict.holds) {
      if (row_ >= settings_.in_a_row) sink.Heal(kCause, tensor_, step.mode_step);
      row_ = 0;
      return;
    }
    if (row_++ == 0) since_ = step.mode_step;
    if (row_ < settings_.in_a_row) return;
    if (row_ == settings_.in_a_row) tensor_ = verdict.tensor;
    Report(step, verdict, sink);
  }

  void OnEnd(const query::Trial& trial, Sink& sink) override {
    if (known_ == 0) sink.Note("it never had what it needs: " + state_.Missing(trial), false);
    if (state_.overfull()) {
      sink.Note(fmt::format("it keeps at most {} values in all; tensors beyond that were not looked at",
                            Expression::kMaxWindow),
                false);
    }
  }

  [[nodiscard]] Abstention Abstained() const override {
    return {false, known_ == 0 ? "what its condition names" : ""};
  }

  void VisitFields(Fields& io) override {
    io("condition", state_);
    io("known", known_);
    io("row", row_);
    io("since", since_);
    io("tensor", tensor_);
    io.Check(row_ >= 0 && row_ <= known_, "counts of a condition");
  }

 private:
  void Report(const query::StepInfo& step, const ExpressionState::Verdict& verdict, Sink& sink) const {
    Finding finding;
    finding.rule = settings_.name;
    finding.page = kOwnRulesPage;
    finding.cause = kCause;
    finding.severity = settings_.severity;
    finding.tensor = tensor_;  // the same for all updates of one finding
    for (const std::string& name : verdict.other_names) {
      if (name != tensor_) finding.other_tensors.push_back(name);
    }
    finding.other_count = verdict.others;
    finding.mode = std::string(query::ModeName(settings_.mode));
    finding.worker = verdict.worker;
    finding.step = finding.last_step = step.mode_step;
    finding.global_step = step.global_step;
    finding.update = step.update;
    finding.since_step = since_;
    finding.what = settings_.message.empty() ? fmt::format("the condition holds: {}", expression_->text())
                                             : settings_.message;
    std::string values;
    for (const auto& [name, value] : verdict.values) {
      values += fmt::format("{}{} = {:.6g}", values.empty() ? "" : ", ", name, value);
      finding.evidence.emplace_back(name, value);
    }
    finding.why = values;
    finding.threshold = settings_.in_a_row > 1 ? fmt::format("{}, at {} steps in a row (your own)",
                                                             expression_->text(), settings_.in_a_row)
                                               : fmt::format("{} (your own)", expression_->text());
    sink.Report(std::move(finding));
  }

  const std::shared_ptr<const Expression> expression_;
  const Settings settings_;
  ExpressionState state_;
  std::int64_t known_ = 0;  // steps at which the condition was true or false
  std::int64_t row_ = 0;    // the newest of them in a row at which it was true
  std::int64_t since_ = 0;
  std::string tensor_;
};

std::string Quoted(const std::string& name) {
  std::string regex = "^";
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '/' ||
                       static_cast<unsigned char>(c) >= 0x80;
    if (!plain) regex += '\\';
    regex += c;
  }
  return regex + "$";
}

std::vector<Need> NeedsOf(const Expression& expression, const Settings& settings) {
  std::vector<Need> needs;
  for (const Leaf& leaf : expression.leaves()) {
    const std::string regex = leaf.kind == Leaf::Kind::kGroup ? leaf.name : Quoted(leaf.name);
    if (!needs.empty() && leaf.kind != Leaf::Kind::kLoss) {
      auto& include = needs.front().include;
      if (std::find(include.begin(), include.end(), regex) == include.end()) include.push_back(regex);
      continue;
    }
    if (leaf.kind == Leaf::Kind::kLoss) continue;  // losses are always recorded
    Need need;
    need.collection = settings.name;
    need.include = {regex};
    need.forms = static_cast<std::uint32_t>(format::Form::kSummary);
    need.mode = std::string(query::ModeName(settings.mode));
    needs.push_back(std::move(need));
  }
  return needs;
}

Status CheckName(const std::string& name) {
  const bool good =
      !name.empty() && name.size() <= 100 && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
      std::all_of(name.begin(), name.end(),
                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
  if (good) return Status::Ok();
  return InvalidArgument(fmt::format(
      "'{}' is no name of a rule; expected a letter, then letters, digits, '_', '-' or '.'", name));
}

}  // namespace

Result<RuleSpec> ExpressionSpec(const Parameters& given) {
  static const std::vector<std::string> kKnown = {"name", "when", "severity", "message", "for", "mode"};
  for (const auto& [key, value] : given) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      return InvalidArgument(fmt::format("unknown key '{}' of a condition{}; known: {}", key,
                                         NearestText(key, kKnown), fmt::join(kKnown, ", ")));
    }
    if (value.size() > kMaxText && key != "when")
      return InvalidArgument(
          fmt::format("'{}' has {} bytes, at most {} are allowed", key, value.size(), kMaxText));
  }
  const auto text = [&](const char* key, const char* otherwise) {
    const auto at = given.find(key);
    return at == given.end() ? std::string(otherwise) : at->second;
  };
  Settings settings;
  settings.name = text("name", "");
  LUFF_RETURN_IF_ERROR(CheckName(settings.name));
  if (!given.contains("when"))
    return InvalidArgument(fmt::format("rule {} has no condition; write when = \"loss > 5\"", settings.name));
  settings.message = text("message", "");
  const std::string severity = text("severity", "warn");
  if (severity != "warn" && severity != "stop")
    return InvalidArgument(
        fmt::format("'severity' of rule {} is '{}', expected warn or stop", settings.name, severity));
  settings.severity = severity == "stop" ? Severity::kStop : Severity::kWarn;
  const Result<std::int64_t> in_a_row = ParseInt(text("for", "1"));
  if (!in_a_row.ok() || in_a_row.value() < 1) {
    return InvalidArgument(
        fmt::format("'for' of rule {} is '{}', expected how many steps in a row, at least 1", settings.name,
                    text("for", "1")));
  }
  settings.in_a_row = in_a_row.value();
  LUFF_ASSIGN_OR_RETURN(settings.mode, query::ParseMode(text("mode", "TRAIN")));
  Result<Expression> parsed = Expression::ParseUntrusted(given.at("when"));
  if (!parsed.ok()) return parsed.status().WithContext("rule " + settings.name);
  const auto expression = std::make_shared<const Expression>(std::move(parsed).value());

  RuleSpec spec;
  spec.name = settings.name;
  spec.source = "expression";
  spec.summary = expression->text();
  spec.page = kOwnRulesPage;
  for (const std::string& key : kKnown) spec.parameters.push_back({key, "", "", ""});
  spec.needs = [expression, settings](const Parameters&) { return NeedsOf(*expression, settings); };
  spec.make = [expression, settings](const Parameters&) -> Result<std::unique_ptr<Rule>> {
    return std::unique_ptr<Rule>(std::make_unique<ExpressionRule>(expression, settings));
  };
  return spec;
}

}  // namespace luff::rules
