#include <memory>
#include <string>
#include <vector>

#include "cli/bucket_runs.h"
#include "cli/reading.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct PruneOptions {
  std::string url, older, keep;
  bool dry_run = false, json = false;
};

void Prune(const PruneOptions& options) {
  if (!IsUrl(options.url))
    ExitWithError(
        InvalidArgument("this needs the URL of a bucket; of a run on a disk, retention deletes payload "
                        "(max_bytes), and the directory is yours to remove: " +
                        options.url));
  std::vector<std::string> words = {"--older=" + options.older, "--keep=" + options.keep};
  if (options.dry_run) words.emplace_back("--dry-run");
  if (options.json) words.emplace_back("--json");
  words.insert(words.end(), {"--", BucketUrl(options.url)});
  BecomePython("prune", std::move(words), "a bucket is pruned by Luff's Python package");
}

}  // namespace

void AddPrune(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("prune", "Remove old runs from a bucket, or parts of them");
  auto options = std::make_shared<PruneOptions>();
  verb->add_option("URL", options->url, "s3://BUCKET/PREFIX, gs://..., az://... or file:///FOLDER")
      ->required();
  verb->add_option("--older", options->older,
                   "Only runs of which nothing in the bucket has changed for so long: 30d, 12w, 36h")
      ->required();
  verb->add_option("--keep", options->keep,
                   "What is left of a run beside its card: metadata (all but values), or nothing")
      ->required()
      ->check(CLI::IsMember({"metadata", "nothing"}));
  verb->add_flag("--dry-run", options->dry_run, "Only say what would be removed");
  verb->add_flag("--json", options->json, "A line of JSON for each run");
  verb->footer(
      "The card of a run stays, so `luff runs URL` still lists it. Needs the right to list, get and delete,\n"
      "and to put below pruning/, live/, runs/ and cards/. Exit code: 0 done; 2 wrong usage; 5 the bucket\n"
      "refused; 6 it did not answer: run it again.");
  verb->callback([options] { Prune(*options); });
}

}  // namespace luff::cli
