#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/kit/fields.h"

namespace luff::rules::sample_mixing {

inline constexpr double kAcross = 1e-3;  // of the outputs' spread: more than rounding

// The sizes of a shape of at most 8 axes, as "2, 32, 16"; "" if there is none.
inline std::string ShapeIn(const nlohmann::json& event, const char* name) {
  const nlohmann::json& list = ListIn(event, name);
  std::vector<std::int64_t> sizes;
  for (const nlohmann::json& size : list) {
    if (!size.is_number_integer() || sizes.size() >= 8) return "";
    sizes.push_back(size.get<std::int64_t>());
  }
  return fmt::format("{}", fmt::join(sizes, ", "));
}

/// What a model shares out among the samples of a batch, or scales by them, as it has said when it was asked.
struct SharedOut {
  std::string of;  // "softmax", "sum", "norm" or "max"; empty: nothing
  std::string shape;
  double across = 0, itself = 0, rows = 0;
  bool weighs = false;  // values along another axis
  bool whole = false;   // along all axes
  bool ends_in_one = false;

  void Read(const nlohmann::json& answer) {
    const auto name = answer.find("of");
    const std::string sizes = ShapeIn(answer, "shape");
    const double change = NumberIn(answer, "across");
    if (name == answer.end() || !name->is_string() || sizes.empty() || !(change > kAcross)) return;
    const std::string& value = name->get_ref<const std::string&>();
    if (value != "softmax" && value != "sum" && value != "norm" && value != "max") return;
    of = value, shape = sizes, across = change;
    itself = NumberIn(answer, "itself"), rows = NumberIn(answer, "rows");
    weighs = FlagIn(answer, "weighs"), whole = FlagIn(answer, "whole");
    const nlohmann::json& list = ListIn(answer, "shape");
    ends_in_one = list.size() > 2 && list.back() == 1;
  }
  void VisitFields(Fields& io) {
    io("of", of);
    io("shape", shape);
    io("across", across);
    io("itself", itself);
    io("rows", rows);
    io("weighs", weighs);
    io("whole", whole);
    io("ends_in_one", ends_in_one);
  }

  [[nodiscard]] std::string_view Does() const {
    return of == "sum"    ? "a division by the sum"
           : of == "norm" ? "a division by the length"
           : of == "max"  ? "a division by the largest value"
                          : "a softmax";
  }
  [[nodiscard]] std::string_view Call() const {
    return of == "sum"    ? "the sum that numbers are divided by"
           : of == "norm" ? "normalize or norm"
           : of == "max"  ? "the max or amax that numbers are divided by"
                          : "softmax";
  }
  [[nodiscard]] std::string Remedy() const {
    if (of == "norm")
      return "give it the axis of a sample's numbers (dim=-1): F.normalize(x, dim=-1), x / x.norm(dim=-1, "
             "keepdim=True)";
    if (of == "max")
      return "divide by the largest value of each sample: x / x.amax(-1, keepdim=True), or amax(dim=(1, 2, "
             "3), "
             "keepdim=True) for images";
    if (of == "sum")
      return "divide by the sum over the values that are to be weighed: x / x.sum(-1, keepdim=True)";
    return fmt::format("give the softmax the axis whose values it is to weigh (dim={})",
                       ends_in_one ? "1 for weights of (batch, places, 1)"
                       : weighs    ? "-1 for attention over places"
                                : "-1 for attention over places, dim=1 for weights of (batch, places, ..)");
  }
};

}  // namespace luff::rules::sample_mixing
