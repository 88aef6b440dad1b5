#include <algorithm>

#include "base/format.h"
#include "base/nearest_names.h"
#include "base/text_escape.h"
#include "catalog/labels.h"
#include "cli/json.h"
#include "cli/key_option.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/actions/requests.h"

/// `luff label`, and `luff tag` for tags alone: what people say of a run.
namespace luff::cli {
namespace {

struct LabelOptions : ReadOptions {
  std::vector<std::string> add, remove;
  std::optional<std::string> title, note;
  std::string key;
};

/// The tags to remove that the run has; tells of the others.
std::vector<std::string> PresentOf(const LabelOptions& options) {
  const std::vector<std::string> tags = catalog::LabelOf(options.run).tags;
  std::vector<std::string> present;
  for (const std::string& tag : options.remove) {
    if (std::ranges::find(tags, tag) != tags.end())
      present.push_back(tag);
    else
      fmt::print(stderr, "luff: the run has no tag '{}'{}\n", Escaped(tag), Escaped(NearestText(tag, tags)));
  }
  return present;
}

void Change(const LabelOptions& options) {
  catalog::LabelChange change;
  change.add = options.add;
  change.remove = PresentOf(options);
  if (change.add.empty() && change.remove.empty() && !options.title && !options.note) ExitWith(kExitOk);
  change.title = options.title;
  change.note = options.note;
  change.author = actions::Author();
  (void)ValueOrExit(
      catalog::ChangeLabel(options.run, change, SignerOrExit(options.key, options.run, "label")));
  ExitWith(kExitOk);
}

bool ChangesSomething(const LabelOptions& options) {
  return !options.add.empty() || !options.remove.empty() || options.title || options.note;
}

void ShowLabel(const LabelOptions& options) {
  const catalog::Label label = catalog::LabelOf(options.run);
  if (options.json) {
    PrintJson({{"tags", label.tags}, {"title", label.title}, {"note", label.note}});
    ExitWith(kExitOk);
  }
  if (label.tags.empty() && label.title.empty() && label.note.empty())
    fmt::print(stderr, "luff: nothing is said of it yet; --tag, --name and --note say something\n");
  if (!label.title.empty()) fmt::print("name  {}\n", Escaped(label.title));
  for (const std::string& tag : label.tags) fmt::print("tag   {}\n", Escaped(tag));
  if (!label.note.empty()) fmt::print("note  {}\n", EscapedLines(label.note));
  ExitWith(kExitOk);
}

}  // namespace

void AddLabel(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("label", "What you say of a run: tags, a name, a note");
  auto options = std::make_shared<LabelOptions>();
  verb->add_option("RUN", options->run, kOwnRunHelp)->required();
  verb->add_option("--tag", options->add, "A tag to add; may be repeated")->allow_extra_args(false);
  verb->add_option("--untag", options->remove, "A tag to remove; may be repeated")->allow_extra_args(false);
  verb->add_option("--name", options->title,
                   "A name for people; \"\" removes it. The directory keeps its own");
  verb->add_option("--note", options->note, "A note; \"\" removes it");
  verb->add_flag("--json", options->json, "What is said of it, as JSON");
  AddKeyOption(verb, &options->key);
  verb->footer("Without options, it shows what is said of the run.");
  verb->callback([options] {
    FindOwnRunOrExit(&options->run);
    (void)OpenOrExit(*options);  // reports an error if it is not a run
    if (ChangesSomething(*options)) Change(*options);
    ShowLabel(*options);
  });
}

void AddTag(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("tag", "Tags of a run: words to find it by (luff runs --tag)");
  auto options = std::make_shared<LabelOptions>();
  verb->add_option("RUN", options->run, kOwnRunHelp)->required();
  verb->add_option("TAG", options->add, "Tags to add; without any, those that it has are listed");
  verb->add_option("--remove", options->remove, "A tag to remove; may be repeated")->allow_extra_args(false);
  AddKeyOption(verb, &options->key);
  verb->callback([options] {
    FindOwnRunOrExit(&options->run);
    (void)OpenOrExit(*options);
    if (ChangesSomething(*options)) Change(*options);
    for (const std::string& tag : catalog::LabelOf(options->run).tags) fmt::print("{}\n", Escaped(tag));
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
