#pragma once
// What formats text in Luff: <fmt/format.h>, whose machine for one call is compiled once, in format.cc, and
// not in each of a hundred files. Other versions of {fmt} keep it apart in ways of their own and are used as
// they are.
#include <fmt/format.h>

#if FMT_VERSION / 10000 == 9
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
#endif
