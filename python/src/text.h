#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

/// Converts text between Python and C++, in place of <nanobind/stl/string.h> and
/// <nanobind/stl/string_view.h>: bytes that are not UTF-8, which names in a run may contain, become lone
/// surrogates and convert back unchanged (PEP 383).
namespace nanobind::detail {

/// Gets the bytes of a str, valid as long as the str and `kept`. Returns false, without a Python error, if
/// `text` is not a str or cannot be encoded.
inline bool BytesOf(handle text, std::string_view* bytes, object* kept) noexcept {
  if (!str_check(text.ptr())) return false;
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size); utf8 != nullptr) {
    *bytes = std::string_view(utf8, static_cast<std::size_t>(size));
    return true;
  }
  PyErr_Clear();
  *kept = steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  char* raw = nullptr;
  if (!kept->is_valid() || PyBytes_AsStringAndSize(kept->ptr(), &raw, &size) != 0) {
    PyErr_Clear();
    return false;
  }
  *bytes = std::string_view(raw, static_cast<std::size_t>(size));
  return true;
}

inline handle TextOf(std::string_view bytes) noexcept {
  return PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape");
}

template <>
struct type_caster<std::string> {
  NB_TYPE_CASTER(std::string, const_name("str"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    std::string_view bytes;
    object kept;
    if (!BytesOf(source, &bytes, &kept)) return false;
    value = std::string(bytes);
    return true;
  }
  static handle from_cpp(const std::string& text, rv_policy, cleanup_list*) noexcept { return TextOf(text); }
};

template <>
struct type_caster<std::string_view> {
  NB_TYPE_CASTER(std::string_view, const_name("str"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept { return BytesOf(source, &value, &kept); }
  static handle from_cpp(std::string_view text, rv_policy, cleanup_list*) noexcept { return TextOf(text); }

  object kept;
};

}  // namespace nanobind::detail
