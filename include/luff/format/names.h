#pragma once
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "luff/base/result.h"
#include "luff/format/layout.h"

/// The names of modes, roles and forms in configurations, exports and on the command line.
namespace luff::format {

inline constexpr std::array<const char*, 4> kModeNames = {"TRAIN", "EVAL", "PREDICT",
                                                          "GLOBAL"};  // from mode 1
inline constexpr std::array<const char*, 18> kRoleNames = {"other",
                                                           "weight",
                                                           "bias",
                                                           "gradient",
                                                           "buffer",
                                                           "input",
                                                           "output",
                                                           "loss",
                                                           "loss_input",
                                                           "optimizer_state",
                                                           "optimizer_setting",
                                                           "scalar",
                                                           "custom",
                                                           "label",
                                                           "sample",
                                                           "output_gradient",
                                                           "input_gradient",
                                                           "attention"};
inline constexpr std::array<std::pair<Form, const char*>, 8> kFormNames = {{{Form::kSummary, "summary"},
                                                                            {Form::kRaw, "raw"},
                                                                            {Form::kHistogram, "histogram"},
                                                                            {Form::kHash, "hash"},
                                                                            {Form::kUnits, "units"},
                                                                            {Form::kDifference, "difference"},
                                                                            {Form::kExtra, "extra"},
                                                                            {Form::kShape, "shape"}}};

inline constexpr std::array<const char*, kPhaseCount> kPhaseNames = {
    "other",     "data_wait", "data_start", "forward", "loss", "backward", "optimizer", "clip",   "zero_grad",
    "scheduler", "eval",      "checkpoint", "compile", "gc",   "luff",     "trace",     "compute"};
/// "phase 17" for a number that is not known.
[[nodiscard]] std::string PhaseName(std::uint8_t phase);

/// "GLOBAL" for a number that is no mode.
[[nodiscard]] std::string_view ModeName(Mode mode) noexcept;
/// Ignores case. Errors: kInvalidArgument naming the four modes.
[[nodiscard]] Result<Mode> ParseMode(std::string_view name);

}  // namespace luff::format
