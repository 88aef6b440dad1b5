// A byte from outside must not become a dtype without a check (IsKnownDType).
#include <cstdint>

#include "luff/tensor/dtype.h"

luff::DType FromDisk(std::uint8_t code) {
#ifdef LUFF_MISUSE
  luff::DType dtype = code;
  return dtype;
#else
  return luff::IsKnownDType(code) ? static_cast<luff::DType>(code) : luff::DType::kInvalid;
#endif
}
