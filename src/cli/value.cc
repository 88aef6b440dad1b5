#include <algorithm>
#include <optional>

#include "base/format.h"
#include "cli/reading.h"
#include "cli/tensor_names.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

namespace luff::cli {
namespace {

struct ValueOptions : ReadOptions {
  std::string name;
  std::int64_t step = 0;
  std::size_t limit = 1000;
};

/// Returns the stored value, or else the recorded scalar, as most losses have.
Result<query::Value> ValueAt(const query::Trial& trial, query::TensorId id, query::Mode mode,
                             const ValueOptions& options) {
  auto value = trial.ReadValue(id, options.step, mode, options.worker);
  if (value.ok() || value.status().code() != StatusCode::kOutOfRange) return value;
  const auto scalars = trial.Scalars(id, mode, options.worker);
  for (std::size_t i = 0; scalars.ok() && i < scalars->size(); ++i) {
    const query::ScalarAt& scalar = (*scalars)[i];
    if (StepAs(mode, scalar) != options.step) continue;
    const auto number = std::make_shared<double>(scalar.value);
    return query::Value{DType::kFloat64, {}, std::as_bytes(std::span(number.get(), 1)), number};
  }
  return value;
}

/// The evaluation that a step of a scalar belongs to; nothing for other values.
std::optional<catalog::Evaluation> EvaluationAt(const query::Trial& trial, query::TensorId id,
                                                query::Mode mode, const ValueOptions& options) {
  if (mode != query::Mode::kEval) return std::nullopt;
  const auto scalars = trial.Scalars(id, mode, options.worker);
  if (!scalars.ok()) return std::nullopt;
  for (const catalog::Evaluation& one : catalog::EvaluationsOf(*scalars))
    if (one.first_step <= options.step && options.step <= one.mean.mode_step) return one;
  return std::nullopt;
}

void Show(const ValueOptions& options) {
  const auto trial = OpenOrExit(options);
  const auto id = ValueOrExit(FindMeant(*trial, options.name));
  const std::string& name = trial->tensor(id).name;
  const query::Mode mode = ModeOfTensor(options, *trial, id);
  const query::Value value = ValueOrExit(ValueAt(*trial, id, mode, options));
  const auto evaluation = EvaluationAt(*trial, id, mode, options);
  const std::size_t count = value.bytes.size() / std::max<std::size_t>(1, DTypeSize(value.dtype));
  const std::size_t shown = options.limit == 0 ? count : std::min(count, options.limit);
  std::vector<double> numbers;
  std::string text;
  if (value.dtype == DType::kString) {
    text.assign(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
  } else {
    numbers.resize(shown);
    ToFloat64(value.dtype, value.bytes.data(), shown, numbers.data());
  }
  if (options.json) {
    Json json{{"name", name},
              {"step", options.step},
              {"mode", query::ModeName(mode)},
              {"dtype", DTypeName(value.dtype)},
              {"shape", value.shape},
              {"count", count}};
    if (value.dtype == DType::kString)
      json["text"] = text;
    else
      json["values"] = numbers;
    if (evaluation) json["evaluation"] = EvaluationJson(*evaluation);
    PrintJson(json, -1);
    ExitWith(kExitOk);
  }
  if (value.dtype == DType::kString) {
    fmt::print("{}\n", Escaped(text));
    ExitWith(kExitOk);
  }
  fmt::print("{} {} [{}]{}, {} step {}\n", Escaped(name), DTypeName(value.dtype),
             fmt::join(value.shape, ", "), IsComplex(value.dtype) ? ", magnitudes" : "",
             query::ModeName(mode), options.step);
  const std::size_t row =
      value.shape.empty() ? 1 : static_cast<std::size_t>(std::max<std::int64_t>(1, value.shape.back()));
  for (std::size_t i = 0; i < shown; ++i) {
    fmt::print("{}{}", NumberText(numbers[i]),
               (i + 1) % std::min<std::size_t>(row, 10) == 0 || i + 1 == shown ? "\n" : " ");
  }
  if (evaluation && evaluation->steps > 1)
    fmt::print("{} is the mean of this evaluation (EVAL {}, update {})\n", NumberText(evaluation->mean.value),
               StepsText(*evaluation), evaluation->mean.update);
  if (shown < count) fmt::print("... {} more (--limit 0 shows all)\n", count - shown);
  ExitWith(kExitOk);
}

}  // namespace

void AddValue(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("value", "One tensor at one step");
  auto options = std::make_shared<ValueOptions>();
  AddRunOption(verb, options.get());
  verb->add_option("NAME", options->name, "Name of the tensor")->required();
  verb->add_option("STEP", options->step, "Step")->required();
  verb->add_option("--limit", options->limit, "Elements shown at most; 0: all")->capture_default_str();
  AddModeOption(verb, options.get());
  verb->callback([options] {
    FindRunOrExit(&options->run, Rows::kAsked);
    Show(*options);
  });
}

}  // namespace luff::cli
