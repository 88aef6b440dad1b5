#include "server/assets.h"

#include <algorithm>
#include <array>
#include <iterator>

// CMake lists the files of web/dist: PAGE_FILE(number, "/path", "type", "file").
#define PAGE_FILE(number, path, type, file)                                                       \
  asm(".section .rodata\n.global luff_page_" #number "\nluff_page_" #number ":\n.incbin \"" file  \
      "\"\n.global luff_page_end_" #number "\nluff_page_end_" #number ":\n.byte 0\n.previous\n"); \
  extern "C" const char luff_page_##number[];                                                     \
  extern "C" const char luff_page_end_##number[];
#include "server/page_files.inc"
#undef PAGE_FILE

// openapi.json, as it lies beside this file.
asm(".section .rodata\n.global luff_openapi\nluff_openapi:\n.incbin \"" LUFF_OPENAPI
    "\"\n.global luff_openapi_end\nluff_openapi_end:\n.byte 0\n.previous\n");
extern "C" const char luff_openapi[];
extern "C" const char luff_openapi_end[];

namespace luff::server {

std::string_view OpenApiText() noexcept {
  return {luff_openapi, static_cast<std::size_t>(luff_openapi_end - luff_openapi)};
}

const Asset* FindAsset(std::string_view path) {
#define PAGE_FILE(number, path, type, file) \
  Asset{path,                               \
        type,                               \
        {luff_page_##number, static_cast<std::size_t>(luff_page_end_##number - luff_page_##number)}},
  static const Asset assets[] = {
#include "server/page_files.inc"
      Asset{}};
#undef PAGE_FILE
  const auto* const last = std::end(assets) - 1;
  const auto* const at =
      std::find_if(std::begin(assets), last, [&](const Asset& one) { return one.path == path; });
  return at == last ? nullptr : at;
}

}  // namespace luff::server
