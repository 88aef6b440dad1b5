#pragma once
// Text formatting for Luff: <fmt/format.h>, with the code behind every call compiled once, in format.cc,
// instead of in each of a hundred files. Other versions of {fmt} separate that code in their own ways and are
// used as they are.
#include <fmt/format.h>

#if FMT_VERSION / 10000 == 9
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
#endif
