#pragma once
#include <array>
#include <utility>

#include "luff/format/layout.h"

/// The words of the capture configuration for forms, roles and axes (docs/capture.md).
namespace luff::rules {

inline constexpr std::array<std::pair<format::Form, const char*>, 8> kFormNames = {
    {{format::Form::kSummary, "summary"},
     {format::Form::kRaw, "raw"},
     {format::Form::kHistogram, "histogram"},
     {format::Form::kHash, "hash"},
     {format::Form::kUnits, "units"},
     {format::Form::kDifference, "difference"},
     {format::Form::kExtra, "extra"},
     {format::Form::kShape, "shape"}}};
inline constexpr std::array<const char*, 15> kRoleNames = {"other",
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
                                                           "sample"};
inline constexpr std::array<const char*, 3> kAxisNames = {"channel", "last", "all_but_first"};

}  // namespace luff::rules
