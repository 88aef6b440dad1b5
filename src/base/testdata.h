// Where the files are that tests read.
#pragma once

namespace luff {

/// The folder testdata of the sources. Linked from one object, so that the path is compiled into no test:
/// checkouts share what the compiler's cache holds of them.
extern const char* const kTestdata;

}  // namespace luff
