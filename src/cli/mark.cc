#include "base/format.h"
#include "cli/finding_names.h"
#include "cli/json.h"
#include "cli/key_option.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/actions/marks.h"
#include "luff/actions/requests.h"
#include "luff/rules/kept_findings.h"

/// `luff mark`: what a person says of a finding.
namespace luff::cli {
namespace {

struct MarkOptions : ReadOptions {
  std::string finding, word, note;
  std::string key;
  std::int64_t until_step = -1;
};

void List(const MarkOptions& options) {
  const auto records = ValueOrExit(store::ReadControl(options.run, 0, nullptr));
  for (const auto& [finding, mark] : actions::MarksIn(records)) {
    fmt::print("{}  {}\n", Escaped(finding), Escaped(actions::SaidOf(mark)));
  }
  ExitWith(kExitOk);
}

void SetOne(const MarkOptions& options) {
  const auto findings = rules::FindingsOfRun(options.run).findings;
  const auto meant = FindingsMeantBy(options.finding, findings);
  if (meant.size() != 1) ExitWithError(NoSuchFinding(options.finding, findings, options.run));
  actions::Mark mark;
  mark.finding = meant.front()->id;
  mark.as = ValueOrExit(actions::ParseMark(options.word));
  mark.until_step = options.until_step;
  mark.note = options.note;
  mark.author = actions::Author();
  if (options.until_step >= 0 && mark.as != actions::Mark::As::kMute)
    ExitWithError(InvalidArgument("--until-step belongs to mute"));
  (void)ValueOrExit(actions::SetMark(options.run, mark, SignerOrExit(options.key, options.run, "mark")));
  ExitWith(kExitOk);
}

}  // namespace

void AddMark(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("mark", "Say of a finding that it is known, or silence its notifications");
  auto options = std::make_shared<MarkOptions>();
  verb->add_option("RUN", options->run, kOwnRunHelp)->required();
  verb->add_option("FINDING", options->finding,
                   "Its id (luff show) or the first letters, or its rule; without it, the marks are listed");
  verb->add_option("AS", options->word, "acknowledge, mute or reopen");
  verb->add_option("--until-step", options->until_step, "mute: until so many TRAIN steps are finished")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 60));
  verb->add_option("--note", options->note, "For people");
  AddKeyOption(verb, &options->key);
  verb->footer(
      "The finding itself stays as it is. A mute silences webhooks, mails and commands, nothing else.");
  verb->callback([options] {
    FindOwnRunOrExit(&options->run);
    (void)OpenOrExit(*options);
    if (options->finding.empty()) List(*options);
    if (options->word.empty())
      ExitWithError(InvalidArgument("what is to be said of it? acknowledge, mute or reopen"));
    SetOne(*options);
  });
}

}  // namespace luff::cli
