#include "luff/base/version.h"

namespace luff {

std::string_view Version() noexcept { return LUFF_VERSION; }

}  // namespace luff
