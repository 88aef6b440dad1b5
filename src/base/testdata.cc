#include "base/testdata.h"

const char* const luff::kTestdata = LUFF_TESTDATA;
