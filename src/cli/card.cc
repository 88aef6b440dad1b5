#include <memory>
#include <string>

#include "base/format.h"
#include "catalog/bucket_card.h"
#include "cli/reading.h"
#include "cli/verbs.h"

namespace luff::cli {

void AddCard(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("card", "The card of a run, for a bucket");
  verb->group("");  // hidden: `luff sync` asks for it
  auto run = std::make_shared<std::string>();
  verb->add_option("RUN", *run, "The run's directory")->required();
  verb->callback([run] {
    fmt::print("{}\n", catalog::BucketCard(ValueOrExit(catalog::ReadCard(*run))));
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
