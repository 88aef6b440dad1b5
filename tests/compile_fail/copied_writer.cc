// A worker folder has one writer: it cannot be copied, nor made without Open.
#include <memory>
#include <utility>

#include "luff/store/writer.h"

using luff::store::WorkerWriter;

std::unique_ptr<WorkerWriter> Take(std::unique_ptr<WorkerWriter> writer) {
#ifdef LUFF_MISUSE
  WorkerWriter second = *writer;
  (void)second;
#endif
  return writer;
}
