// A reference into a Result that dies at the end of the line must not compile.
#include <string>

#include "luff/base/result.h"

luff::Result<std::string> Read();

std::size_t Caller() {
#ifdef LUFF_MISUSE
  std::string& text = *Read();
  return text.size();
#else
  const std::string& text = *Read();  // by value: lives as long as the name
  return text.size();
#endif
}
