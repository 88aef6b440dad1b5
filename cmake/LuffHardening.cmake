# Hardening flags for everything that is built: a memory error in Luff should abort the process instead of running an
# attacker's code. Sanitizer builds go without, since they check the same and more. Each flag is tried first, so that
# other compilers and machines build too.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)
include(CheckPIESupported)

check_pie_supported()

if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  return()
endif()

# _FORTIFY_SOURCE=3 (GCC 12, clang 9) needs optimisation. -U, since distributions predefine a lower level.
add_compile_options($<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=3>)

foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
  string(MAKE_C_IDENTIFIER "LUFF_HAS${flag}" known)
  check_cxx_compiler_flag(${flag} ${known})
  if(${known})
    add_compile_options(${flag})
  endif()
endforeach()

foreach(flag relro now noexecstack)
  check_linker_flag(CXX -Wl,-z,${flag} LUFF_HAS_Z_${flag})
  if(LUFF_HAS_Z_${flag})
    add_link_options(-Wl,-z,${flag})
  endif()
endforeach()
