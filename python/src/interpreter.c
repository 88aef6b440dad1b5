// Where the interpreter that this module was compiled for keeps the stacks of its threads. The numbers come
// from its own headers, so each version of Python has those of its own.
#define _GNU_SOURCE 1
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <string.h>

#include "interpreter.h"

#if PY_VERSION_HEX >= 0x030A0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define LUFF_KNOWN_VERSION 1
#include <frameobject.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#endif

/// The bits of a text's state: they are bit fields, whose places only the compiler knows.
static uint32_t StateBits(PyASCIIObject one) {
  uint32_t bits = 0;
  memcpy(&bits, &one.state, sizeof bits);
  return bits;
}

static void DescribeTexts(LuffPythonLayout* out) {
  PyASCIIObject one;
  memset(&one, 0, sizeof one);
  one.state.compact = 1;
  out->compact_mask = StateBits(one);
  one.state.compact = 0;
  one.state.ascii = 1;
  out->ascii_mask = StateBits(one);
  one.state.ascii = 0;
  one.state.kind = 7;
  out->kind_mask = StateBits(one);
  out->kind_shift = 0;
  while (((out->kind_mask >> out->kind_shift) & 1U) == 0) ++out->kind_shift;
  out->text_length = offsetof(PyASCIIObject, length);
  out->text_state = offsetof(PyASCIIObject, state);
  out->ascii_data = sizeof(PyASCIIObject);
  out->compact_data = sizeof(PyCompactUnicodeObject);
  out->bytes_data = offsetof(PyBytesObject, ob_sval);
}

static void DescribeThreads(LuffPythonLayout* out) {
#if PY_VERSION_HEX >= 0x030B0000
  out->first_thread = offsetof(PyInterpreterState, threads.head);
  out->native_id = offsetof(PyThreadState, native_thread_id);
#else
  out->first_thread = offsetof(PyInterpreterState, tstate_head);
  out->native_id = -1;
#endif
  out->next_thread = offsetof(PyThreadState, next);
  out->pthread_id = offsetof(PyThreadState, thread_id);
#if PY_VERSION_HEX >= 0x030D0000
  out->frame = offsetof(PyThreadState, current_frame);
  out->current = -1;
#elif PY_VERSION_HEX >= 0x030B0000
  out->frame = offsetof(PyThreadState, cframe);
  out->current = offsetof(_PyCFrame, current_frame);
#else
  out->frame = offsetof(PyThreadState, frame);
  out->current = -1;
#endif
}

static void DescribeFrames(LuffPythonLayout* out) {
  out->owner = -1;
  out->c_owner = -1;
  out->instructions = -1;
#if PY_VERSION_HEX >= 0x030B0000
  out->previous = offsetof(_PyInterpreterFrame, previous);
#if PY_VERSION_HEX >= 0x030D0000
  out->code = offsetof(_PyInterpreterFrame, f_executable);
  out->instruction = offsetof(_PyInterpreterFrame, instr_ptr);
#else
  out->code = offsetof(_PyInterpreterFrame, f_code);
  out->instruction = offsetof(_PyInterpreterFrame, prev_instr);
#endif
  out->instruction_size = 8;
#if PY_VERSION_HEX >= 0x030C0000
  out->owner = offsetof(_PyInterpreterFrame, owner);
  out->c_owner = FRAME_OWNED_BY_CSTACK;
#endif
  out->name = offsetof(PyCodeObject, co_qualname);
  out->instructions = offsetof(PyCodeObject, co_code_adaptive);
#else
  out->previous = offsetof(PyFrameObject, f_back);
  out->code = offsetof(PyFrameObject, f_code);
  out->instruction = offsetof(PyFrameObject, f_lasti);
  out->instruction_size = 4;
  out->name = offsetof(PyCodeObject, co_name);
#endif
  out->file_name = offsetof(PyCodeObject, co_filename);
  out->first_line = offsetof(PyCodeObject, co_firstlineno);
  out->lines = offsetof(PyCodeObject, co_linetable);
}

static void DescribeLock(LuffPythonLayout* out, PyInterpreterState* interpreter) {
#if PY_VERSION_HEX >= 0x030C0000
  out->gil = (uint64_t)(uintptr_t)interpreter->ceval.gil;
#else
  (void)interpreter;
  out->gil = (uint64_t)(uintptr_t)&_PyRuntime.ceval.gil;
#endif
  out->gil_locked = offsetof(struct _gil_runtime_state, locked);
  out->gil_holder = offsetof(struct _gil_runtime_state, last_holder);
}
#endif

void LuffDescribeInterpreter(LuffPythonLayout* out) {
  memset(out, 0, sizeof *out);
#ifdef LUFF_KNOWN_VERSION
  PyInterpreterState* const interpreter = PyInterpreterState_Get();
  out->version = PY_VERSION_HEX >> 16;
  out->why = "";
  out->interpreter = (uint64_t)(uintptr_t)interpreter;
  DescribeThreads(out);
  DescribeFrames(out);
  DescribeTexts(out);
  DescribeLock(out, interpreter);
  out->type = offsetof(PyObject, ob_type);
  out->size = offsetof(PyVarObject, ob_size);
  out->code_type = (uint64_t)(uintptr_t)&PyCode_Type;
  out->text_type = (uint64_t)(uintptr_t)&PyUnicode_Type;
  out->bytes_type = (uint64_t)(uintptr_t)&PyBytes_Type;
#elif defined(Py_GIL_DISABLED)
  out->why = "this Python has no lock of its own (free-threaded)";
#else
  out->why = "the stacks of this version of Python are not known";
#endif
}
