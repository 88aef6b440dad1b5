#pragma once
#include "luff/capture/python_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Fills in where this interpreter keeps its stacks. The caller holds Python's lock.
void LuffDescribeInterpreter(LuffPythonLayout* out);

#ifdef __cplusplus
}
#endif
