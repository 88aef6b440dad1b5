// Ignoring a Result must not compile.
#include "luff/base/result.h"

luff::Result<int> Read();

int Caller() {
#ifdef LUFF_MISUSE
  Read();
  return 0;
#else
  luff::Result<int> value = Read();
  return value.ok() ? *value : -1;
#endif
}
