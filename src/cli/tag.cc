#include "base/format.h"
#include "base/text_escape.h"
#include "catalog/tags.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct TagOptions : ReadOptions {
  std::vector<std::string> add, remove;
};

void Tag(const TagOptions& options) {
  (void)OpenOrExit(options);  // reports an error if it is not a run
  if (options.add.empty() && options.remove.empty()) {
    for (const std::string& tag : catalog::TagsOf(options.run)) fmt::print("{}\n", Escaped(tag));
    ExitWith(kExitOk);
  }
  if (const Status changed = catalog::ChangeTags(options.run, options.add, options.remove); !changed.ok())
    ExitWithError(changed);
  ExitWith(kExitOk);
}

}  // namespace

void AddTag(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("tag", "Tags of a run: words to find it by (luff runs --tag)");
  auto options = std::make_shared<TagOptions>();
  verb->add_option("RUN", options->run, kRunHelp)->required();
  verb->add_option("TAG", options->add, "Tags to add; without any, those that it has are listed");
  verb->add_option("--remove", options->remove, "A tag to remove; may be repeated")->allow_extra_args(false);
  verb->callback([options] {
    FindRunOrExit(&options->run);
    Tag(*options);
  });
}

}  // namespace luff::cli
