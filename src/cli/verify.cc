#include <fmt/format.h>

#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/store/verify.h"

namespace luff::cli {
namespace {

void Verify(const ReadOptions& options) {
  const store::VerifyReport report = ValueOrExit(store::VerifyRun(options.run));
  if (options.json) {
    Json damage = Json::array();
    for (const store::Damage& d : report.damage)
      damage.push_back({{"file", d.file}, {"offset", d.offset}, {"what", d.what}});
    PrintJson({{"clean", report.damage_count == 0},
               {"files", report.files},
               {"bytes", report.bytes},
               {"frames", report.frames},
               {"footers", report.footers},
               {"chunks", report.chunks},
               {"rows", report.rows},
               {"damage_count", report.damage_count},
               {"damage", std::move(damage)},
               {"notes", report.notes}});
  } else {
    for (const std::string& note : report.notes) fmt::print("note: {}\n", Escaped(note));
    for (const store::Damage& d : report.damage)
      fmt::print("damage: {} at byte {}: {}\n", Escaped(d.file), d.offset, Escaped(d.what));
    if (report.damage_count > report.damage.size())
      fmt::print("and {} more\n", report.damage_count - report.damage.size());
    fmt::print("{}: {} files, {}, {} frames, {} footers, {} chunks, {} values checked\n",
               report.damage_count == 0 ? "clean" : fmt::format("{} damaged places", report.damage_count),
               report.files, SizeText(report.bytes), report.frames, report.footers, report.chunks,
               report.rows);
  }
  ExitWith(report.damage_count == 0 ? kExitOk : 1);
}

}  // namespace

void AddVerify(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("verify", "Check every byte of a run: exit code 0 clean, 1 damage, 2 no run");
  auto options = std::make_shared<ReadOptions>();
  AddRunOption(verb, options.get());
  verb->callback([options] { Verify(*options); });
}

}  // namespace luff::cli
