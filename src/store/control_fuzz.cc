// Fuzzes the parsers of untrusted text: control records, run.json, what was uploaded, what was trained after
// a stop, and file names.
#include <string_view>

#include "luff/store/after_stop.h"
#include "luff/store/control.h"
#include "store/paths.h"
#include "store/run_file.h"
#include "store/uploaded.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)luff::store::ParseControlUntrusted(text).ok();
  (void)luff::store::ParseRunFileUntrusted(text).ok();
  (void)luff::store::ParseUploadedUntrusted(text, 0).ok();
  (void)luff::store::ParseUpdatesUntrusted(text);
  (void)luff::store::ParseStreamFileName(text).has_value();
  return 0;
}
