#include "catalog/card.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/json.h"
#include "base/json_nonfinite.h"
#include "catalog/labels.h"
#include "catalog/secret_words.h"
#include "luff/base/work_bound.h"
#include "luff/query/ranks.h"
#include "luff/query/trial.h"
#include "luff/rules/kept_findings.h"
#include "luff/store/control.h"

namespace luff::catalog {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using query::Mode;

constexpr std::size_t kMaxWords = 4096;  // of a command
constexpr std::size_t kMaxProblems = 10;

std::string Cut(std::string text) {
  if (text.size() <= kMaxText) return text;
  text.resize(kMaxText - 3);
  return text + "...";
}

std::string TextOf(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? Cut(at->get<std::string>()) : std::string();
}

// The command line is in run.json; of scripts that attached themselves it is in the environment.
std::vector<std::string> WordsOf(const Json& list) {
  std::vector<std::string> words;
  if (!list.is_array()) return words;
  for (const Json& word : list) {
    if (!word.is_string() || words.size() == kMaxWords) break;
    words.push_back(Cut(word.get<std::string>()));
  }
  return words;
}

void ReadIdentity(const std::string& run, Card* card) {
  const auto text = ReadRegular(run + "/run.json", 16 << 20, 1);
  const Json json = text.ok() ? TryParseJson(*text) : Json();
  if (!json.is_object()) return;
  card->run_id = TextOf(json, "run_id");
  if (const auto command = json.find("command"); command != json.end()) card->command = WordsOf(*command);
}

void ReadEnvironment(const query::Trial& trial, Card* card) {
  const Json json = TryParseJson(trial.Document("environment"));
  if (!json.is_object()) return;
  card->host = TextOf(json, "host");
  card->framework = TextOf(json, "framework");
  if (const auto argv = json.find("argv"); card->command.empty() && argv != json.end())
    card->command = WordsOf(*argv);
  // Besides versions the document describes the process and the machine.
  static const std::set<std::string_view> kOther = {"executable", "platform", "host",       "framework",
                                                    "device",     "backend",  "distributed"};
  for (const auto& [name, value] : json.items()) {
    if (!value.is_string() || kOther.contains(name) || card->versions.size() == kMaxParameters) continue;
    const auto version = value.get<std::string>();
    if (!version.empty() && version.front() >= '0' && version.front() <= '9')
      card->versions[Cut(name)] = Cut(version);
  }
}

// What `luff.trial_run` says of a trial: what it is called, and its parameters, which count more than others.
void ReadTrial(const query::Trial& trial, Card* card) {
  const Json json = TryParseJson(trial.Document("trial"));
  if (!json.is_object()) return;
  card->sweep = Cut(TextOf(json, "sweep"));
  card->trial = Cut(TextOf(json, "name"));
  const auto params = json.find("params");
  if (params == json.end() || !params->is_object()) return;
  for (const auto& [name, value] : params->items()) {
    if (name.empty() || SoundsSecret(name)) continue;
    if (card->parameters.size() >= kMaxParameters && !card->parameters.contains(Cut(name))) continue;
    Parameter& to = card->parameters[Cut(name)];
    if (value.is_boolean())
      to = value.get<bool>();
    else if (value.is_number())
      to = value.get<double>();
    else
      to = Cut(value.is_string() ? value.get<std::string>() : JsonText(value));
  }
}

// Names of tensors with scalars: losses, then the others.
std::vector<std::string> ScalarNames(const query::Trial& trial, std::size_t* losses) {
  std::vector<std::string> names;
  std::set<std::string> known;
  const auto add = [&](const std::string& name) {
    if (names.size() < kMaxScalars && known.insert(name).second) names.push_back(name);
  };
  for (query::TensorId id = 0; id < trial.tensor_count(); ++id) {
    if (trial.tensor(id).role == query::Role::kLoss) add(trial.tensor(id).name);
  }
  for (const char* collection : {"losses", "scalars", "metrics"}) {
    if (collection == std::string_view("scalars")) *losses = names.size();
    const auto found = trial.TensorNames({"", collection, {}, Mode::kGlobal});
    for (const std::string& name : found.ok() ? *found : std::vector<std::string>()) add(name);
  }
  return names;
}

void Add(double value, std::int64_t step, Scalar* scalar) {
  if (scalar->count++ == 0) scalar->first = value;
  scalar->last = value;
  scalar->last_step = step;
  if (!std::isfinite(value)) return;  // neither the least nor the greatest
  if (!(value >= scalar->min)) {
    scalar->min = value;
    scalar->min_step = step;
  }
  if (!(value <= scalar->max)) {
    scalar->max = value;
    scalar->max_step = step;
  }
}

std::optional<Scalar> ReadScalar(const query::Trial& trial, const std::string& name, Mode mode) {
  const auto id = trial.TensorNamed(name);
  if (!id) return {};
  const auto rows = trial.Scalars(*id, mode);
  if (!rows.ok() || rows->empty()) return {};
  Scalar scalar;
  scalar.name = name;
  scalar.eval = mode == Mode::kEval;
  scalar.min = scalar.max = std::nan("");
  for (const query::ScalarAt& row : scalar.eval ? MeansOfEvaluations(*rows) : *rows)
    Add(row.value, row.mode_step, &scalar);
  return scalar;
}

void ReadScalars(const query::Trial& trial, Card* card) {
  std::size_t losses = 0;
  const std::vector<std::string> names = ScalarNames(trial, &losses);
  std::uint64_t most = 0;
  std::uint64_t most_eval = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kGlobal}) {
      // GLOBAL holds the values of both; it is of interest where only scalars without a mode exist.
      if (mode == Mode::kGlobal && !card->scalars.empty() && card->scalars.back().name == names[i]) continue;
      const auto scalar = ReadScalar(trial, names[i], mode);
      if (!scalar || card->scalars.size() == kMaxScalars) continue;
      card->scalars.push_back(*scalar);
      if (i >= losses) continue;
      if (scalar->eval && scalar->count > most_eval) {
        most_eval = scalar->count;
        card->eval_loss = names[i];
      } else if (!scalar->eval && scalar->count > most) {
        most = scalar->count;
        card->loss = names[i];
      }
    }
  }
}

// Settings of the only optimizer's first group, as they were at the first step: "lr", "momentum", ...
void ReadOptimizer(const query::Trial& trial, Card* card) {
  std::set<std::string> names;
  for (query::TensorId id = 0; id < trial.tensor_count(); ++id) {
    if (trial.tensor(id).name.starts_with("optimizer/")) names.insert(trial.tensor(id).name);
  }
  std::string only;
  std::vector<std::pair<std::string, std::string>> settings;  // name, tensor
  for (const std::string& name : names) {
    const std::size_t from = name.find('/') + 1;
    const std::size_t dot = name.find('.', from);
    if (dot == std::string::npos) continue;
    const std::string optimizer = name.substr(from, dot - from);
    if (!only.empty() && only != optimizer) return;  // several: no setting is that of the training
    only = optimizer;
    constexpr std::string_view kGroup = "group0.";
    if (name.compare(dot + 1, kGroup.size(), kGroup) == 0)
      settings.emplace_back(name.substr(dot + 1 + kGroup.size()), name);
  }
  if (!only.empty()) card->parameters.emplace("optimizer", only);
  for (const auto& [setting, tensor] : settings) {
    const auto id = trial.TensorNamed(tensor);
    const auto rows =
        id ? trial.Scalars(*id, Mode::kGlobal) : Result<std::vector<query::ScalarAt>>(NotFound(""));
    if (rows.ok() && !rows->empty() && card->parameters.size() < kMaxParameters)
      card->parameters.emplace(setting, rows->front().value);
  }
}

// The main loss at a glance, for a picture of the size of a word.
void ReadCourse(const query::Trial& trial, Card* card) {
  const bool eval = card->loss.empty();
  const auto id = trial.TensorNamed(eval ? card->eval_loss : card->loss);
  const auto rows = id ? trial.Scalars(*id, eval ? Mode::kEval : Mode::kTrain)
                       : Result<std::vector<query::ScalarAt>>(NotFound(""));
  if (!rows.ok()) return;
  const std::vector<query::ScalarAt> values = eval ? MeansOfEvaluations(*rows) : *rows;
  const std::size_t points = std::min(kCoursePoints, values.size());
  for (std::size_t i = 0; i < points; ++i) {
    const std::size_t from = i * values.size() / points;
    const std::size_t to = (i + 1) * values.size() / points;
    double sum = 0;
    for (std::size_t k = from; k < to; ++k) sum += values[k].value;
    card->course.push_back(std::isfinite(sum) ? sum / static_cast<double>(to - from) : std::nan(""));
  }
}

// Four digits are more than a picture shows.
double Rounded(double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(std::fabs(value))));
  const double rounded = std::round(value * scale) / scale;
  return std::isfinite(rounded) ? rounded : value;
}

void ReadSteps(const query::Trial& trial, Card* card) {
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kPredict}) {
    if (const std::size_t count = trial.Steps(mode).size(); count > 0)
      card->steps[std::string(query::ModeName(mode))] = count;
  }
  if (trial.step_count() == 0) return;
  const query::StepInfo last = trial.step_at(trial.step_count() - 1);
  card->took_s = std::max(0.0, static_cast<double>(last.wall_unix_ns - card->begun_unix_ns) * 1e-9);
}

// The id of the finding that stopped the job; "" if a person did, or if nobody wrote it down. Whoever asks as
// soon as the workers have left finds the stop that they carried out, and no outcome yet.
std::string StoppedBy(const std::string& run) {
  const auto records = store::ReadControl(run, 0, nullptr);
  if (!records.ok()) return {};
  for (auto record = records->rbegin(); record != records->rend(); ++record) {
    if (record->kind == "outcome" || (record->kind == "stop" && record->phase == "commit"))
      return record->finding;
  }
  return {};
}

void ReadFindings(const std::string& run, Card* card) {
  const rules::KeptFindings kept = rules::FindingsOfRun(run);
  std::set<std::string> rules;
  for (const rules::Finding& finding : kept.findings) {
    if (finding.healed || !finding.leader.empty()) continue;
    ++card->findings;
    rules.insert(Cut(finding.rule));
  }
  card->rules.assign(rules.begin(), rules.end());
  for (const std::string& problem : kept.problems) card->problems.push_back(Cut(problem));
  rules::Lead lead = rules::LeadOf(kept.findings);
  if (card->outcome == "stopped") {  // by a finding, or by a person
    const auto stop = std::ranges::find(kept.findings, StoppedBy(run), &rules::Finding::id);
    lead = {};
    if (stop != kept.findings.end()) lead = {&*stop, stop->severity == rules::Severity::kStop, 0, 0, 0};
  } else if (lead.finding != nullptr && lead.finding->healed) {
    lead = {};
  }
  if (lead.finding == nullptr) return;
  card->headline = {Cut(lead.finding->rule), lead.stops ? "stop" : "warn", Cut(lead.finding->tensor),
                    lead.finding->mode,      Cut(lead.finding->what),      lead.finding->since_step};
}

std::string Verdict(const Card& card) {
  if (card.outcome == "running" || card.outcome == "stopped" || card.outcome == "failed") return card.outcome;
  if (!card.problems.empty()) return "damaged";
  if (card.steps.empty()) return "empty";
  return card.findings > 0 ? "findings" : "ok";
}

// A name as programs have it: argparse reads --learning-rate as learning_rate.
std::string NameOf(std::string_view word) {
  std::string name(word);
  std::replace(name.begin(), name.end(), '-', '_');
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '/';
  });
  return plain && std::isdigit(static_cast<unsigned char>(name.front())) == 0 ? Cut(name) : std::string();
}

Json ToJson(const Scalar& one) {
  return {{"name", one.name},   {"mode", one.eval ? "EVAL" : "TRAIN"},
          {"count", one.count}, {"first", one.first},
          {"last", one.last},   {"last_step", one.last_step},
          {"min", one.min},     {"min_step", one.min_step},
          {"max", one.max},     {"max_step", one.max_step}};
}

Card NamedCard(const std::string& run) {
  Card card;
  card.run = run;
  card.name = fs::path(run).filename().string();
  return card;
}

}  // namespace

const std::vector<std::string>& VerdictWords() {
  static const std::vector<std::string> words = {"running", "ok",    "findings", "stopped",
                                                 "failed",  "empty", "damaged"};
  return words;
}

Parameter ParameterOf(const std::string& text) {
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool whole = !text.empty() && end == text.c_str() + text.size() && std::isfinite(number) &&
                     (std::isdigit(static_cast<unsigned char>(text.back())) != 0 || text.back() == '.');
  if (whole) return number;
  return text;
}

std::map<std::string, Parameter> ParametersOf(const std::vector<std::string>& command) {
  std::map<std::string, Parameter> found;
  const auto add = [&](std::string_view word, const std::string& value) {
    const std::string name = NameOf(word);
    if (name.empty() || SoundsSecret(name) || found.size() >= kMaxParameters) return;
    found[name] = ParameterOf(value);
  };
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    const bool option = word.starts_with("--") && word.size() > 2;
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) {
      if (option || word.front() != '-')
        add(std::string_view(word).substr(option ? 2 : 0, equals - (option ? 2 : 0)),
            word.substr(equals + 1));
    } else if (option) {
      // A word after an option is its value, unless it is an option itself; "-1" is a number.
      const bool value =
          i + 1 < command.size() &&
          (!command[i + 1].starts_with('-') || std::holds_alternative<double>(ParameterOf(command[i + 1])));
      add(std::string_view(word).substr(2), value ? command[i + 1] : "true");
      if (value) ++i;
    }
  }
  return found;
}

Result<Card> ReadCard(const std::string& run) {
  const WorkBound unbounded(nullptr);  // a card is kept for all who ask later
  const auto opened = query::Trial::Open(run);
  if (!opened.ok()) {
    if (opened.status().code() != StatusCode::kCorruption &&
        opened.status().code() != StatusCode::kUnsupportedVersion)
      return opened.status();
    Card card = NamedCard(run);
    card.outcome = "unknown";
    card.verdict = "damaged";
    card.problems = {Cut(std::string(opened.status().message()))};
    return card;
  }
  return CardOf(run, **opened);
}

Card CardOf(const std::string& run, const query::Trial& trial) {
  const WorkBound unbounded(nullptr);
  Card card = NamedCard(run);
  ReadIdentity(run, &card);
  ReadEnvironment(trial, &card);
  card.parameters = ParametersOf(card.command);
  ReadOptimizer(trial, &card);
  ReadTrial(trial, &card);
  Label label = LabelOf(run);
  card.tags = std::move(label.tags);
  card.title = Cut(std::move(label.title));
  card.note = Cut(std::move(label.note));
  const query::Trial::Outcome outcome = trial.outcome();
  card.outcome = outcome.state;
  card.why = Cut(outcome.why);
  card.begun_unix_ns = trial.created_unix_ns();
  card.workers = query::RanksOf(trial);
  ReadSteps(trial, &card);
  ReadScalars(trial, &card);
  ReadCourse(trial, &card);
  ReadFindings(run, &card);
  for (const std::string& problem : trial.Problems()) {
    if (card.problems.size() < kMaxProblems) card.problems.push_back(Cut(problem));
  }
  card.verdict = Verdict(card);
  return card;
}

std::vector<Evaluation> EvaluationsOf(const std::vector<query::ScalarAt>& values) {
  std::vector<Evaluation> evaluations;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t end = i;
    double sum = 0;
    for (; end < values.size() && values[end].update == values[i].update; ++end) sum += values[end].value;
    evaluations.push_back({values[end - 1], values[i].mode_step, end - i});
    evaluations.back().mean.value = sum / static_cast<double>(end - i);
    i = end;
  }
  return evaluations;
}

std::vector<query::ScalarAt> MeansOfEvaluations(const std::vector<query::ScalarAt>& values) {
  std::vector<query::ScalarAt> means;
  for (const Evaluation& one : EvaluationsOf(values)) means.push_back(one.mean);
  return means;
}

const Scalar* FindScalar(const Card& card, const std::string& name, bool eval) {
  for (const Scalar& one : card.scalars) {
    if (one.name == name && one.eval == eval) return &one;
  }
  return nullptr;
}

std::string ToJson(const Card& card) {
  Json json{{"card", 1},
            {"run", card.run},
            {"name", card.name},
            {"run_id", card.run_id},
            {"command", card.command},
            {"host", card.host},
            {"framework", card.framework},
            {"versions", card.versions},
            {"sweep", card.sweep},
            {"trial", card.trial},
            {"tags", card.tags},
            {"title", card.title},
            {"note", card.note},
            {"outcome", card.outcome},
            {"why", card.why},
            {"verdict", card.verdict},
            {"begun_unix_ns", card.begun_unix_ns},
            {"took_s", card.took_s},
            {"steps", card.steps},
            {"workers", card.workers},
            {"findings", {{"count", card.findings}, {"rules", card.rules}}},
            {"loss", card.loss},
            {"eval_loss", card.eval_loss},
            {"problems", card.problems}};
  if (card.heard_unix_ns != 0) json["heard_unix_ns"] = card.heard_unix_ns;
  if (!card.pruned.empty()) json["pruned"] = card.pruned;
  if (!card.headline.rule.empty()) {
    const Headline& head = card.headline;
    json["findings"]["first"] = {
        {"rule", head.rule}, {"severity", head.severity},     {"tensor", head.tensor},
        {"mode", head.mode}, {"since_step", head.since_step}, {"what", head.what}};
  }
  json["parameters"] = Json::object();
  for (const auto& [name, value] : card.parameters)
    std::visit([&, &key = name](const auto& of) { json["parameters"][key] = of; }, value);
  json["scalars"] = Json::array();
  for (const Scalar& one : card.scalars) json["scalars"].push_back(ToJson(one));
  json["course"] = Json::array();
  for (const double value : card.course) json["course"].push_back(Rounded(value));
  NameNonFinite(&json);
  return JsonText(json);
}

}  // namespace luff::catalog
