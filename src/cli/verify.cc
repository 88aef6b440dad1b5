#include "luff/query/verify.h"
#include "base/format.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "luff/base/env.h"
#include "luff/store/verify.h"

namespace luff::cli {
namespace {

Json DamageJson(const std::vector<store::Damage>& damage) {
  Json list = Json::array();
  for (const store::Damage& d : damage)
    list.push_back({{"file", d.file}, {"offset", d.offset}, {"what", d.what}});
  return list;
}

template <typename Report>
void PrintDamage(const Report& report) {
  for (const std::string& note : report.notes) fmt::print("note: {}\n", Escaped(note));
  for (const store::Damage& d : report.damage)
    fmt::print("damage: {} at byte {}: {}\n", Escaped(d.file), d.offset, Escaped(d.what));
  if (report.damage_count > report.damage.size())
    fmt::print("and {} more\n", report.damage_count - report.damage.size());
}

template <typename Report>
std::string Verdict(const Report& report) {
  return report.damage_count == 0 ? "clean" : fmt::format("{} damaged places", report.damage_count);
}

void VerifySmdebug(const ReadOptions& options) {
  const query::SmdebugReport report = ValueOrExit(query::VerifySmdebug(options.run));
  if (options.json) {
    PrintJson({{"clean", report.damage_count == 0},
               {"format", "smdebug"},
               {"files", report.files},
               {"bytes", report.bytes},
               {"records", report.records},
               {"records_without_checksum", report.unchecked},
               {"values", report.values},
               {"shapes", report.shapes},
               {"workers", report.workers},
               {"steps", report.steps},
               {"damage_count", report.damage_count},
               {"damage", DamageJson(report.damage)},
               {"notes", report.notes}});
  } else {
    PrintDamage(report);
    fmt::print("{}: {} files, {}, {} steps, {} workers, {} values, {} records checked\n", Verdict(report),
               report.files, SizeText(report.bytes), report.steps, report.workers, report.values,
               report.records);
  }
  ExitWith(report.damage_count == 0 ? kExitOk : 1);
}

struct VerifyVerbOptions : ReadOptions {
  std::uint64_t max_bytes = store::VerifyOptions().max_bytes;
};

void Verify(const VerifyVerbOptions& options) {
  if (!Env::Real().Exists(options.run + "/run.json") && query::IsSmdebugDirectory(options.run))
    VerifySmdebug(options);
  const store::VerifyReport report = ValueOrExit(store::VerifyRun(options.run, {options.max_bytes}));
  if (options.json) {
    PrintJson({{"clean", report.damage_count == 0},
               {"files", report.files},
               {"bytes", report.bytes},
               {"frames", report.frames},
               {"footers", report.footers},
               {"chunks", report.chunks},
               {"rows", report.rows},
               {"absent", report.absent},
               {"damage_count", report.damage_count},
               {"damage", DamageJson(report.damage)},
               {"notes", report.notes}});
  } else {
    PrintDamage(report);
    fmt::print("{}: {} files, {}, {} frames, {} footers, {} chunks, {} values checked{}\n", Verdict(report),
               report.files, SizeText(report.bytes), report.frames, report.footers, report.chunks,
               report.rows - report.absent,
               report.absent == 0 ? std::string() : fmt::format(", {} are not here", report.absent));
  }
  ExitWith(report.damage_count == 0 ? kExitOk : 1);
}

}  // namespace

void AddVerify(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("verify",
                                      "Check every byte of a run, or of a directory that smdebug wrote: exit "
                                      "code 0 clean, 1 damage, 2 not a run");
  auto options = std::make_shared<VerifyVerbOptions>();
  AddRunOption(verb, options.get());
  verb->add_option("--max-bytes", options->max_bytes,
                   "Bytes to decode at most of values that repeat one number; only for Luff's own runs")
      ->capture_default_str();
  verb->callback([options] {
    FindRunOrExit(&options->run);
    Verify(*options);
  });
}

}  // namespace luff::cli
