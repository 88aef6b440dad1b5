#include "errors.h"

#include <nanobind/nanobind.h>

#include <exception>
#include <string>
#include <string_view>

#include "text.h"

namespace luff::python {
namespace nb = nanobind;
namespace {

// Returns the class in luff/errors.py for a code. A test raises every code and compares.
const char* ErrorClassName(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kInvalidArgument: return "InvalidArgumentError";
    case StatusCode::kNotFound: return "NotFoundError";
    case StatusCode::kAlreadyExists: return "AlreadyExistsError";
    case StatusCode::kOutOfRange: return "OutOfRangeError";
    case StatusCode::kFailedPrecondition: return "FailedPreconditionError";
    case StatusCode::kCorruption: return "CorruptionError";
    case StatusCode::kUnsupportedVersion: return "UnsupportedVersionError";
    case StatusCode::kIo: return "IoError";
    case StatusCode::kResourceExhausted: return "ResourceExhaustedError";
    case StatusCode::kUnavailable: return "UnavailableError";
    case StatusCode::kDeadlineExceeded: return "DeadlineExceededError";
    case StatusCode::kCancelled: return "CancelledError";
    case StatusCode::kInternal:
    case StatusCode::kOk: return "InternalError";
  }
  return "InternalError";
}

// Sets the Python error for a StatusException; other exceptions go to the next translator. Messages may
// quote bytes of a damaged file, so they are decoded with replacement.
void Translate(const std::exception_ptr& error, void* /*payload*/) {
  try {
    std::rethrow_exception(error);
  } catch (const StatusException& e) {
    const std::string_view text = e.status().message();
    PyObject* message =
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
    PyObject* module = message != nullptr ? PyImport_ImportModule("luff.errors") : nullptr;
    PyObject* type =
        module != nullptr ? PyObject_GetAttrString(module, ErrorClassName(e.status().code())) : nullptr;
    if (type != nullptr) PyErr_SetObject(type, message);
    Py_XDECREF(type);
    Py_XDECREF(module);
    Py_XDECREF(message);
  }
}

}  // namespace

void InitErrors(nb::module_& m);
void InitErrors(nb::module_& m) {
  nb::register_exception_translator(Translate);
  m.def(
      "raise_status",
      [](int code, const std::string& message) {
        if (code < 1 || code > static_cast<int>(StatusCode::kInternal)) {
          ThrowIfError(InvalidArgument("status code " + std::to_string(code) + " found, 1 to 13 expected"));
        }
        ThrowIfError(Status(static_cast<StatusCode>(code), message));
      },
      nb::arg("code"), nb::arg("message"),
      "Raise the exception of a status code, so that tests can see each of them.");
}

}  // namespace luff::python
