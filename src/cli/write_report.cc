#include "cli/write_report.h"

#include <cstdio>

#include "base/format.h"
#include "cli/reading.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

/// `luff report RUN`: the page of `luff serve` as one file.
namespace luff::cli {

Status WriteReport(const std::string& run, const std::string& out, Existing existing,
                   const server::ReportOptions& options) {
  const auto write = [&]() -> Status {
    LUFF_ASSIGN_OR_RETURN(const std::string page, server::ReportTemplate());
    LUFF_ASSIGN_OR_RETURN(const std::string report, server::MakeReport(run, page, options));
    if (out == "-") {
      fmt::print("{}", report);
      return Status::Ok();
    }
    LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(out, existing));
    LUFF_RETURN_IF_ERROR(file->Append(report));
    return file->Commit();
  };
  return write().WithContext("the report cannot be written");
}

void AddReport(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("report", "A run as one HTML file: the page of luff serve, to keep or to mail");
  static std::string run;
  static std::string out = "luff-report.html";
  static server::ReportOptions options;
  static bool force = false;
  verb->add_option("RUN", run, kRunHelp)->required();
  verb->add_option("-o,--out", out, "File; - for standard output");
  verb->add_option("--max-bytes", options.max_bytes,
                   "Largest file: 5MB, 25MB (default). What does not fit is left out, and the page says so")
      ->transform(SizeValue(true));
  verb->add_flag("!--no-samples", options.samples,
                 "Leave out samples: rows of the inputs, outputs and targets of the training");
  verb->add_flag("--force", force, "Replace an existing file");
  verb->callback([] {
    FindRunOrExit(&run);
    if (const Status written = WriteReport(run, out, force ? Existing::kReplace : Existing::kRefuse, options);
        !written.ok())
      ExitWithError(written);
    if (out != "-") fmt::print("{}\n", Escaped(out));
    ExitWith(kExitOk);
  });
}

}  // namespace luff::cli
