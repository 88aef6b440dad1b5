#pragma once
// C as well as C++: the interpreter's own headers, from which the numbers come, are C.
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#ifdef __cplusplus
extern "C" {
#endif

/// Where a Python interpreter of one version keeps the stacks of its threads: offsets in bytes, and addresses
/// in this process. An offset of -1: that version has no such field.
typedef struct LuffPythonLayout {  // NOLINT(modernize-use-using)
  int32_t version;                 // 0x030B: 3.11; 0: stacks cannot be read, `why` says why
  const char* why;

  uint64_t interpreter;  // address
  int32_t first_thread;  // in the interpreter
  int32_t next_thread;   // in a thread, as all up to `frame`
  int32_t native_id;     // the system's number
  int32_t pthread_id;
  int32_t frame;    // the innermost frame, or the structure that holds it:
  int32_t current;  // in that structure; -1: `frame` is the frame itself

  int32_t previous;  // in a frame, as all up to `owner`
  int32_t code;
  int32_t instruction;       // the address of an instruction, or a number of instructions
  int32_t instruction_size;  // 8 or 4 bytes
  int32_t owner;             // one byte
  int32_t c_owner;           // its value in frames that are none of Python's

  int32_t file_name;  // in a code object, as all up to `instructions`
  int32_t name;
  int32_t first_line;
  int32_t lines;         // the table that says which instructions are on which line
  int32_t instructions;  // the first one; -1: frames hold a number

  int32_t type, size;  // in an object
  uint64_t code_type, text_type, bytes_type;
  int32_t text_length, text_state;  // in a text
  uint32_t compact_mask, ascii_mask, kind_mask;
  int32_t kind_shift;
  int32_t ascii_data, compact_data, bytes_data;

  uint64_t gil;  // address of Python's lock; 0: not known
  int32_t gil_locked, gil_holder;
} LuffPythonLayout;

#ifdef __cplusplus
}
#endif
