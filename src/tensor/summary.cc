#include "luff/tensor/summary.h"

#include <algorithm>
#include <cmath>

#include "tensor/element.h"
#include "tensor/kernel_table.h"

namespace luff {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using tensor::Domain;
using tensor::DomainOf;

double BoundAsDouble(std::uint64_t bits, DType dtype) noexcept {
  switch (DomainOf(dtype)) {
    case Domain::kSigned: return static_cast<double>(std::bit_cast<std::int64_t>(bits));
    case Domain::kUnsigned: return static_cast<double>(bits);
    case Domain::kFloat: break;
  }
  return std::bit_cast<double>(bits);
}

/// True if bound `a` lies below bound `b`.
bool Below(std::uint64_t a, std::uint64_t b, DType dtype) noexcept {
  switch (DomainOf(dtype)) {
    case Domain::kSigned: return std::bit_cast<std::int64_t>(a) < std::bit_cast<std::int64_t>(b);
    case Domain::kUnsigned: return a < b;
    case Domain::kFloat: break;
  }
  return std::bit_cast<double>(a) < std::bit_cast<double>(b);
}

}  // namespace

double Summary::mean() const noexcept {
  const std::uint64_t n = finite_count();
  return n == 0 ? kNan : sum / static_cast<double>(n);
}

double Summary::variance() const noexcept {
  const std::uint64_t n = finite_count();
  if (n == 0) return kNan;
  const double m = sum / static_cast<double>(n);
  const double v = sum_sq / static_cast<double>(n) - m * m;
  return v > 0 ? v : (std::isnan(v) ? kNan : 0.0);
}

double Summary::std() const noexcept { return std::sqrt(variance()); }

double Summary::abs_mean() const noexcept {
  const std::uint64_t n = finite_count();
  return n == 0 ? kNan : abs_sum / static_cast<double>(n);
}

double Summary::l2() const noexcept { return std::sqrt(sum_sq); }

double Summary::min(DType dtype) const noexcept {
  return finite_count() == 0 ? kNan : BoundAsDouble(min_bits, dtype);
}

double Summary::max(DType dtype) const noexcept {
  return finite_count() == 0 ? kNan : BoundAsDouble(max_bits, dtype);
}

double Summary::abs_max(DType dtype) const noexcept {
  return finite_count() == 0 ? kNan : std::max(std::fabs(min(dtype)), std::fabs(max(dtype)));
}

void Summary::Merge(const Summary& other, DType dtype) noexcept {
  if (other.finite_count() != 0) {
    const bool first = finite_count() == 0;
    if (first || Below(other.min_bits, min_bits, dtype)) min_bits = other.min_bits;
    if (first || Below(max_bits, other.max_bits, dtype)) max_bits = other.max_bits;
  }
  count += other.count;
  sum += other.sum;
  sum_sq += other.sum_sq;
  abs_sum += other.abs_sum;
  zero_count += other.zero_count;
  nan_count += other.nan_count;
  inf_count += other.inf_count;
}

}  // namespace luff
