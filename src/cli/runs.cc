#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "catalog/catalog.h"
#include "catalog/labels.h"
#include "cli/bucket_runs.h"
#include "cli/reading.h"
#include "cli/report.h"
#include "cli/runs_folder.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct RunsOptions {
  std::string folder, where, text, parquet, sort = "-begun";
  std::vector<std::string> tags;
  std::size_t limit = 20;
  bool all = false, json = false;
};

// "today 18:30:12" or "2026-11-23 18:30:12", local time.
std::string WhenText(std::int64_t unix_ns) {
  if (unix_ns <= 0) return "-";
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  const std::time_t now = std::time(nullptr);
  std::tm then{};
  std::tm today{};
  char text[32];
  if (localtime_r(&seconds, &then) == nullptr || localtime_r(&now, &today) == nullptr) return "-";
  const bool same = then.tm_year == today.tm_year && then.tm_yday == today.tm_yday;
  std::strftime(text, sizeof(text), same ? "today %H:%M:%S" : "%Y-%m-%d %H:%M", &then);
  return text;
}

// "0.4 s", "12 s", "3 min", "2.1 h", "3.5 d".
std::string TookText(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} d", seconds / 86400);
}

std::string VerdictText(const catalog::Entry& run) {
  std::string text = run.verdict;
  if (run.verdict == "findings") text = Plural(run.findings, "finding", "findings");
  const std::string& more =
      run.verdict == "failed" || run.verdict == "damaged" || run.headline.empty() ? run.why : run.headline;
  if (run.verdict == "ok" || run.verdict == "empty" || more.empty()) return text;
  return fmt::format("{}: {}", text, more);
}

// Of a loss that is no number, the index has nothing: its card does. `member`: last or min.
std::string LossText(const catalog::Entry& run, const std::optional<double>& loss, const char* member) {
  if (loss) return fmt::format("{:.4g}", *loss);
  const nlohmann::json card = TryParseJson(run.card);
  const std::string name = card.is_object() ? TextMember(card, "loss") : std::string();
  if (name.empty() || !card.contains("scalars") || !card["scalars"].is_array()) return "-";
  for (const nlohmann::json& one : card["scalars"]) {
    if (!one.is_object() || TextMember(one, "name") != name || TextMember(one, "mode") != "TRAIN") continue;
    const std::string value = TextMember(one, member);
    if (value == "NaN") return "nan";
    if (value == "Infinity" || value == "-Infinity") return value[0] == '-' ? "-inf" : "inf";
  }
  return "-";
}

// "  (lr 0.1; baseline, sweep)": the name that people gave it, and tags; "" where nothing is said of it.
std::string LabelText(const catalog::Entry& run) {
  const nlohmann::json card = TryParseJson(run.card);
  if (!card.is_object()) return {};
  std::string tags;
  for (const nlohmann::json& tag : card.value("tags", nlohmann::json::array()))
    if (tag.is_string()) tags += (tags.empty() ? "" : ", ") + tag.get<std::string>();
  const std::string title = TextMember(card, "title");
  if (title.empty() && tags.empty()) return {};
  return fmt::format("  ({}{}{})", title, title.empty() || tags.empty() ? "" : "; ", tags);
}

// A run of a bucket of which nothing was heard for so long may have been lost with its machine.
constexpr double kHeardS = 900;

// "; not heard of for 3.1 h", of a run in a bucket that runs as far as is known.
std::string SilenceText(const catalog::Entry& run) {
  if (run.verdict != "running") return {};
  const nlohmann::json card = TryParseJson(run.card);
  const std::int64_t heard = card.is_object() ? WholeMember(card, "heard_unix_ns", 0) : 0;
  const double silent = static_cast<double>(std::time(nullptr)) - static_cast<double>(heard) * 1e-9;
  if (heard == 0 || silent < kHeardS) return {};
  return fmt::format("; not heard of for {}", TookText(silent));
}

std::string PrunedText(const catalog::Entry& run) {
  const nlohmann::json card = TryParseJson(run.card);
  const std::string pruned = card.is_object() ? TextMember(card, "pruned") : std::string();
  return pruned.empty() ? pruned : fmt::format("; {} pruned", pruned);
}

// What a run is called: by its path, or in a bucket by its first digits.
struct Names {
  std::vector<std::string> of;
  std::size_t width = 4;

  Names(const catalog::Answer& answer, bool bucket) {
    const std::size_t digits = bucket ? DigitsOf(answer) : 0;
    for (const catalog::Entry& run : answer.entries) {
      std::string name = Escaped(run.name);
      if (bucket) {
        const nlohmann::json card = TryParseJson(run.card);
        const std::string own = card.is_object() ? TextMember(card, "name") : std::string();
        name = fmt::format("{}  {}", run.name.substr(0, digits), Escaped(own));
      }
      width = std::max(width, name.size());
      of.push_back(std::move(name));
    }
  }
};

void PrintTable(const catalog::Answer& answer, bool bucket) {
  const Names names(answer, bucket);
  fmt::print("{:>6}  {:<{}}  {:<16}  {:>7}  {:>8}  {:>9}  {:>9}  {}\n", "", bucket ? "id, name" : "name",
             names.width, "begun", "took", "steps", "loss", "best", "verdict");
  for (std::size_t i = 0; i < answer.entries.size(); ++i) {
    const catalog::Entry& run = answer.entries[i];
    const std::string more = bucket ? SilenceText(run) + PrunedText(run) : std::string();
    fmt::print("{:>6}  {:<{}}  {:<16}  {:>7}  {:>8}  {:>9}  {:>9}  {}\n", fmt::format("@{}", run.age),
               names.of[i], names.width, WhenText(run.begun_unix_ns), TookText(run.took_s), run.steps,
               LossText(run, run.loss, "last"), LossText(run, run.best_loss, "min"),
               Escaped(VerdictText(run) + more + LabelText(run)));
  }
}

catalog::Answer AnswerOrExit(const RunsOptions& options, const catalog::Question& question) {
  if (!IsUrl(options.folder)) return ValueOrExit(catalog::Ask(IndexFile(), question, PrintReading));
  const auto source = CardsOfBucket(question.folder);
  return ValueOrExit(catalog::AskBucket(IndexFile(), question, source.get(), PrintReading));
}

void List(const RunsOptions& options) {
  for (const std::string& tag : options.tags) {
    if (const Status good = catalog::CheckTag(tag); !good.ok()) ExitWithError(good.WithContext("--tag"));
  }
  const bool bucket = IsUrl(options.folder);
  catalog::Question question;
  question.folder = bucket ? BucketUrl(options.folder) : RunsFolderOrExit(options.folder);
  std::error_code error;
  if (options.folder.empty() && !std::filesystem::exists(question.folder, error)) {
    if (!options.json) fmt::print("no runs yet: {}\n", Escaped(question.folder));
    ExitWith(kExitOk);
  }
  if (!options.where.empty()) question.where = ValueOrExit(catalog::ParseCondition(options.where));
  question.tags = options.tags;
  question.text = options.text;
  question.ascending = !options.sort.starts_with('-');
  question.sort = question.ascending ? options.sort : options.sort.substr(1);
  question.limit = options.all || options.json ? SIZE_MAX : options.limit;
  const catalog::Answer answer = AnswerOrExit(options, question);
  for (const std::string& note : answer.notes) fmt::print(stderr, "luff: {}\n", Escaped(note));
  if (options.json) {
    for (const catalog::Entry& run : answer.entries) fmt::print("{}\n", JsonEscaped(run.card));
    ExitWith(kExitOk);
  }
  if (answer.entries.empty()) {
    fmt::print(
        "{}: {}\n",
        answer.all == 0 ? "no runs" : fmt::format("none of {} matches", Plural(answer.all, "run", "runs")),
        Escaped(question.folder));
    ExitWith(kExitOk);
  }
  PrintTable(answer, bucket);
  if (answer.matching > answer.entries.size())
    fmt::print("and {} more (--all)\n", answer.matching - answer.entries.size());
  ExitWith(kExitOk);
}

// The table is made of what --json tells.
[[noreturn]] void WriteTable(const RunsOptions& options) {
  std::vector<std::string> words{options.parquet, "--sort=" + options.sort};
  if (!options.where.empty()) words.push_back("--where=" + options.where);
  if (!options.text.empty()) words.push_back("--text=" + options.text);
  for (const std::string& tag : options.tags) words.push_back("--tag=" + tag);
  if (!options.folder.empty()) words.insert(words.end(), {"--", options.folder});
  BecomePythonThatAsks("runs_table", std::move(words), "tables are written by Luff's Python package");
}

}  // namespace

void AddRuns(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("runs", "The runs of a directory or a bucket: when, how long, loss, verdict");
  auto options = std::make_shared<RunsOptions>();
  verb->add_option("DIR", options->folder,
                   "The directory, or the URL of a bucket; default: $LUFF_HOME/runs, or ~/.luff/runs");
  verb->add_option("--where", options->where,
                   "Only runs for which this holds, e.g. 'verdict = stopped and lr > 0.01'");
  verb->add_option(
      "--text", options->text,
      "Only runs with all of these words: in name, title, note, tags, command, parameters, finding");
  verb->add_option("--tag", options->tags, "Only runs with this tag; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--sort", options->sort, "A field, e.g. loss; -loss: the greatest first")
      ->capture_default_str();
  verb->add_option("-n,--limit", options->limit, "Runs shown")->capture_default_str();
  verb->add_flag("--all", options->all, "Show all of them");
  verb->add_flag("--json", options->json, "The card of each run, a line of JSON (docs/spec/catalog.md)");
  verb->add_option("--parquet", options->parquet, "Writes the cards of all of them as a table into this file")
      ->excludes("--json")
      ->excludes("--limit");
  verb->footer(
      "Every verb that reads a run takes the name in this table, the beginning of it, or @1 for the newest;\n"
      "of a bucket URL/ID (its first digits are enough) or URL/@1.\n"
      "Fields: name, begun, took, steps, loss, eval_loss, verdict, findings, rule, tag, sweep, "
      "trial,\n"
      "host, framework, command, outcome, version.NAME, parameters (lr) and scalars (accuracy, "
      "accuracy.max). Joined by and, or, not, "
      "( ).");
  verb->callback([options] {
    if (!options->parquet.empty()) WriteTable(*options);
    List(*options);
  });
}

}  // namespace luff::cli
