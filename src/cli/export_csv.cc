#include <cmath>

#include "base/format.h"
#include "base/text_escape.h"
#include "cli/export.h"
#include "luff/rules/kept_findings.h"

namespace luff::cli {
namespace {

/// The shortest text that reads back as the same number.
std::string Number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{}", value);
}

/// Writes summaries.csv, scalars.csv and findings.csv.
class CsvExporter final : public Exporter {
 public:
  CsvExporter(const OutputFolder& out, const ExportChoice* choice) : out_(out), choice_(choice) {}

  Status Begin(const query::Trial&, const ExportState& state) override {
    const auto open = [&](const char* name, const char* head, BufferedFile* file) -> Status {
      const auto known = state.files.find(name);
      const std::uint64_t counted = known == state.files.end() ? 0 : known->second;
      LUFF_ASSIGN_OR_RETURN(*file, out_.OpenAt(name, counted));
      return counted == 0 ? file->Append(head) : Status::Ok();
    };
    LUFF_RETURN_IF_ERROR(
        open("summaries.csv",
             "tensor,worker,mode,step,mode_step,update,dtype,count,min,max,mean,std,sum,abs_mean,"
             "l2,zero_count,nan_count,inf_count\r\n",
             &summaries_));
    return open("scalars.csv", "tensor,worker,mode,step,mode_step,update,value\r\n", &scalars_);
  }

  Status Step(const query::Trial& trial, std::size_t, const query::Trial::StepRows& rows) override {
    const query::StepInfo& info = rows.info;
    const std::string where =
        fmt::format("{},{},{},{}", query::ModeName(info.mode), info.global_step, info.mode_step, info.update);
    std::string text;
    for (const auto& [tensor, worker, dtype, s] : rows.summaries) {
      if (!choice_->Takes(tensor, worker)) continue;
      text +=
          fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\r\n", CsvField(trial.tensor(tensor).name),
                      worker, where, DTypeName(dtype), s.count, Number(s.min(dtype)), Number(s.max(dtype)),
                      Number(s.mean()), Number(s.std()), Number(s.sum), Number(s.abs_mean()), Number(s.l2()),
                      s.zero_count, s.nan_count, s.inf_count);
    }
    LUFF_RETURN_IF_ERROR(summaries_.Append(text));
    text.clear();
    for (const auto& [tensor, worker, value] : rows.scalars) {
      if (!choice_->Takes(tensor, worker)) continue;
      text +=
          fmt::format("{},{},{},{}\r\n", CsvField(trial.tensor(tensor).name), worker, where, Number(value));
    }
    bytes_ = summaries_.bytes() + scalars_.bytes();
    return scalars_.Append(text);
  }

  Status Flush(ExportState* state) override {
    LUFF_RETURN_IF_ERROR(summaries_.Flush());
    LUFF_RETURN_IF_ERROR(scalars_.Flush());
    state->files["summaries.csv"] = summaries_.bytes();
    state->files["scalars.csv"] = scalars_.bytes();
    return Status::Ok();
  }

  Status End(const query::Trial& trial, bool) override {
    std::string text =
        "id,rule,cause,severity,tensor,mode,worker,step,global_step,update,since_step,last_step,healed,what,"
        "why,remedy\r\n";
    for (const rules::Finding& f : rules::FindingsOfRun(trial.path()).findings) {
      text += fmt::format(
          "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\r\n", CsvField(f.id), CsvField(f.rule),
          CsvField(f.cause), f.severity == rules::Severity::kStop ? "stop" : "warn", CsvField(f.tensor),
          CsvField(f.mode), f.worker, f.step, f.global_step, f.update, f.since_step, f.last_step,
          f.healed ? "true" : "false", CsvField(f.what), CsvField(f.why), CsvField(f.remedy));
    }
    bytes_ += text.size();
    return out_.Write("findings.csv", text);
  }

 private:
  const OutputFolder& out_;
  const ExportChoice* choice_;
  BufferedFile summaries_, scalars_;
};

}  // namespace

std::unique_ptr<Exporter> MakeCsvExporter(const OutputFolder& out, const ExportChoice* choice) {
  return std::make_unique<CsvExporter>(out, choice);
}

}  // namespace luff::cli
