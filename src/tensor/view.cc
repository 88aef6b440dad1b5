#include "luff/tensor/view.h"

#include <string>

namespace luff {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;

std::string ShapeText(std::span<const std::int64_t> dims) {
  std::string text = "(";
  for (std::size_t i = 0; i < dims.size() && i < 16; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return text + ")";
}

Status CheckDims(DType dtype, std::span<const std::int64_t> dims) {
  if (!IsKnownDType(static_cast<std::uint8_t>(dtype))) {
    return InvalidArgument("element type " + std::to_string(static_cast<int>(dtype)) +
                           " is unknown; expected 1 to " + std::to_string(kDTypeCount - 1));
  }
  if (dims.size() > kMaxRank) {
    return InvalidArgument("rank " + std::to_string(dims.size()) + " is above the limit of " +
                           std::to_string(kMaxRank) + "; flatten the tensor first");
  }
  std::uint64_t bytes = DTypeSize(dtype);
  bool empty = false;
  for (const std::int64_t d : dims) {
    if (d < 0) return InvalidArgument("shape " + ShapeText(dims) + " has a negative dimension");
    empty = empty || d == 0;
  }
  for (const std::int64_t d : dims) {
    // Dimensions of an empty tensor are bounded too: code that multiplies strides relies on it.
    const auto factor = d == 0 ? std::uint64_t{1} : static_cast<std::uint64_t>(d);
    if (factor > kMaxBytes / bytes) {
      return InvalidArgument("shape " + ShapeText(dims) + " of " + std::string(DTypeName(dtype)) +
                             (empty ? " is empty but its other dimensions exceed" : " has more than") +
                             " 2^62 bytes");
    }
    bytes *= factor;
  }
  return Status::Ok();
}

}  // namespace

Result<Layout> Layout::Contiguous(DType dtype, std::span<const std::int64_t> dims) {
  LUFF_RETURN_IF_ERROR(CheckDims(dtype, dims));
  Layout layout;
  layout.dtype = dtype;
  layout.rank = static_cast<std::uint8_t>(dims.size());
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    layout.dims[i] = dims[i];
    layout.strides[i] = stride;
    stride *= dims[i] == 0 ? 1 : dims[i];
  }
  return layout;
}

Result<Layout> Layout::Strided(DType dtype, std::span<const std::int64_t> dims,
                               std::span<const std::int64_t> strides) {
  if (dims.size() != strides.size()) {
    return InvalidArgument(std::to_string(dims.size()) + " dimensions but " + std::to_string(strides.size()) +
                           " strides; expected as many of one as of the other");
  }
  LUFF_RETURN_IF_ERROR(CheckDims(dtype, dims));
  Layout layout;
  layout.dtype = dtype;
  layout.rank = static_cast<std::uint8_t>(dims.size());
  std::uint64_t room = kMaxBytes / DTypeSize(dtype);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const auto reach = strides[i] < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(strides[i])
                                      : static_cast<std::uint64_t>(strides[i]);
    const auto steps = dims[i] > 1 ? static_cast<std::uint64_t>(dims[i]) - 1 : 0;
    if (steps != 0 && reach > room / steps) {
      return InvalidArgument("strides " + ShapeText(strides) + " of shape " + ShapeText(dims) +
                             " reach further than 2^62 bytes");
    }
    room -= reach * steps;
    layout.dims[i] = dims[i];
    layout.strides[i] = strides[i];
  }
  return layout;
}

std::uint64_t Layout::element_count() const noexcept {
  std::uint64_t count = 1;
  for (std::size_t i = 0; i < rank; ++i) count *= static_cast<std::uint64_t>(dims[i]);
  return count;
}

bool Layout::is_contiguous() const noexcept {
  std::int64_t expected = 1;
  bool contiguous = true;
  for (std::size_t i = rank; i-- > 0;) {
    if (dims[i] == 0) return true;
    if (dims[i] == 1) continue;
    contiguous = contiguous && strides[i] == expected;
    expected *= dims[i];
  }
  return contiguous;
}

}  // namespace luff
