#include <cstddef>
#include <cstdint>
#include <string_view>

#include "watch/answers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const luff::watch::Numbers numbers;
  (void)luff::watch::AnswerUntrusted({reinterpret_cast<const char*>(data), size},
                                     "token-token-token-token-token-32", numbers);
  return 0;
}
