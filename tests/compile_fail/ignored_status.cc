// Ignoring a Status must not compile: losing an error silently is the one unforgivable bug.
#include "luff/base/status.h"

luff::Status Write();

void Caller() {
#ifdef LUFF_MISUSE
  Write();
#else
  luff::Status status = Write();
  if (!status.ok()) return;
#endif
}
