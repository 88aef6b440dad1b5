#include "luff/tensor/dtype.h"

#include <array>
#include <string>

namespace luff {
namespace {

enum class Kind : std::uint8_t { kNone, kUnsigned, kSigned, kFloating, kComplex, kText };

struct Row {
  std::string_view name;
  std::uint8_t size;
  Kind kind;
};

// Indexed by the value of DType.
constexpr std::array<Row, kDTypeCount> kRows = {{
    {"invalid", 0, Kind::kNone},
    {"bool", 1, Kind::kUnsigned},
    {"uint8", 1, Kind::kUnsigned},
    {"int8", 1, Kind::kSigned},
    {"uint16", 2, Kind::kUnsigned},
    {"int16", 2, Kind::kSigned},
    {"uint32", 4, Kind::kUnsigned},
    {"int32", 4, Kind::kSigned},
    {"uint64", 8, Kind::kUnsigned},
    {"int64", 8, Kind::kSigned},
    {"float16", 2, Kind::kFloating},
    {"bfloat16", 2, Kind::kFloating},
    {"float32", 4, Kind::kFloating},
    {"float64", 8, Kind::kFloating},
    {"complex64", 8, Kind::kComplex},
    {"complex128", 16, Kind::kComplex},
    {"float8_e4m3fn", 1, Kind::kFloating},
    {"float8_e5m2", 1, Kind::kFloating},
    {"float8_e4m3fnuz", 1, Kind::kFloating},
    {"float8_e5m2fnuz", 1, Kind::kFloating},
    {"float8_e8m0fnu", 1, Kind::kFloating},
    {"complex32", 4, Kind::kComplex},
    {"string", 1, Kind::kText},
}};

constexpr const Row& RowOf(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return kRows[index < kRows.size() ? index : 0];
}

}  // namespace

std::size_t DTypeSize(DType dtype) noexcept { return RowOf(dtype).size; }

std::string_view DTypeName(DType dtype) noexcept { return RowOf(dtype).name; }

Result<DType> ParseDType(std::string_view name) {
  for (std::size_t i = 1; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  std::string message = "\"";
  message += name.substr(0, 64);
  message += "\" is no element type; expected one of";
  for (std::size_t i = 1; i < kRows.size(); ++i) {
    message += i == 1 ? " " : ", ";
    message += kRows[i].name;
  }
  return InvalidArgument(std::move(message));
}

bool IsKnownDType(std::uint8_t code) noexcept { return code > 0 && code < kDTypeCount; }

bool IsFloating(DType dtype) noexcept { return RowOf(dtype).kind == Kind::kFloating; }
bool IsComplex(DType dtype) noexcept { return RowOf(dtype).kind == Kind::kComplex; }
bool IsSignedInteger(DType dtype) noexcept { return RowOf(dtype).kind == Kind::kSigned; }
bool IsUnsignedInteger(DType dtype) noexcept { return RowOf(dtype).kind == Kind::kUnsigned; }

}  // namespace luff
