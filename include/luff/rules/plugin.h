/* Rules in a shared library: a plain C interface, so that any compiler can build one (docs/own-rules.md).
 *
 * The library exports luff_rule_plugin_v1. It is loaded only in a separate process for the rule: if it
 * crashes, hangs or uses too much memory, only that process ends.
 *
 * Structs with a member `size` grow only at their end: check `size` before reading a member that a later
 * version added. Strings are UTF-8 and NUL-terminated. Strings and arrays belong to the side that passes them
 * and are valid until the call returns; those in luff_rule_v1 are valid as long as the library is loaded. All
 * functions are called from one thread. No C++ exception may leave a function of the library. */
#ifndef LUFF_RULES_PLUGIN_H_
#define LUFF_RULES_PLUGIN_H_

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): C */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#ifdef __cplusplus
extern "C" {
#endif

#define LUFF_RULE_PLUGIN_VERSION 1

/* Bits of luff_need_v1::forms. */
#define LUFF_FORM_SUMMARY 1u
#define LUFF_FORM_HISTOGRAM 4u

#define LUFF_MODE_TRAIN 1
#define LUFF_MODE_EVAL 2
#define LUFF_MODE_PREDICT 3

#define LUFF_SEVERITY_WARN 1
#define LUFF_SEVERITY_STOP 2

typedef struct luff_parameter_v1 {
  const char* name;
  const char* value;
} luff_parameter_v1;

/* Tensors that must be captured. */
typedef struct luff_need_v1 {
  uint32_t size;
  uint32_t forms;        /* 0: summaries */
  const char* include;   /* regular expression on tensor names */
  const char* mode;      /* "TRAIN", "EVAL", ...; NULL: TRAIN */
  int64_t save_interval; /* 0 or 1: every step */
} luff_need_v1;

/* Statistics of one tensor in one step, over its finite elements; mean, min, ... are NaN if it has none. */
typedef struct luff_summary_v1 {
  uint32_t tensor; /* number; luff_host_v1::tensor_name gives its name */
  uint32_t worker;
  uint64_t count, zero_count, nan_count, inf_count;
  double min, max, mean, std, sum, abs_sum, abs_max, l2;
} luff_summary_v1;

typedef struct luff_scalar_v1 {
  uint32_t tensor;
  uint32_t worker;
  double value;
} luff_scalar_v1;

/* One complete step. `summary_size` and `scalar_size` are the distances between array elements. */
typedef struct luff_step_v1 {
  uint32_t size;
  int32_t mode; /* LUFF_MODE_... */
  int64_t step; /* of the mode, from 0 */
  int64_t global_step;
  int64_t update; /* optimizer updates before it */
  const luff_summary_v1* summaries;
  uint64_t summary_count;
  uint64_t summary_size;
  const luff_scalar_v1* scalars;
  uint64_t scalar_count;
  uint64_t scalar_size;
} luff_step_v1;

/* What the rule found. NULL strings count as empty, a NULL cause as "condition". A later finding with the
 * same cause and tensor updates the first. */
typedef struct luff_finding_v1 {
  uint32_t size;
  int32_t severity;   /* LUFF_SEVERITY_... */
  const char* cause;  /* short stable key, e.g. "nan" */
  const char* tensor; /* "" if it is not about a single tensor */
  const char* what;   /* one sentence: what is wrong */
  const char* why;
  const char* remedy;
  const char* threshold; /* which limit, and where it comes from */
  int64_t since_step;    /* step of the mode at which it began; -1: this step */
  const char* const* evidence_names;
  const double* evidence_values;
  uint64_t evidence_count; /* at most 64 are kept */
} luff_finding_v1;

/* Functions that the rule may call, with `host` as first argument, while one of its own functions runs. */
typedef struct luff_host_v1 {
  uint32_t size;
  uint32_t version;
  void (*report)(const struct luff_host_v1* host, const luff_finding_v1* finding);
  void (*heal)(const struct luff_host_v1* host, const char* cause, const char* tensor);
  /* Name and role ("weight", "gradient", "loss", ...) of a tensor; NULL for an unknown number. */
  const char* (*tensor_name)(const struct luff_host_v1* host, uint32_t tensor);
  const char* (*tensor_role)(const struct luff_host_v1* host, uint32_t tensor);
  /* Reports that the run lacks the data that the rule reads; shown at the end if every step reported it. */
  void (*lacks)(const struct luff_host_v1* host, const char* what);
  /* Gives the reason why create returns NULL. In other functions: this step could not be judged. */
  void (*fail)(const struct luff_host_v1* host, const char* message);
} luff_host_v1;

/* One rule. Functions after `on_step` may be NULL. */
typedef struct luff_rule_v1 {
  uint32_t size;
  int32_t rule_version; /* of behaviour and state */
  const char* name;
  const char* summary; /* one line */
  /* Makes an instance, or returns NULL after host->fail. */
  void* (*create)(const luff_host_v1* host, const luff_parameter_v1* parameters, uint64_t count);
  void (*destroy)(void* rule);
  void (*on_step)(void* rule, const luff_host_v1* host, const luff_step_v1* step);
  void (*on_end)(void* rule, const luff_host_v1* host);
  /* Returns the length of the state and writes it into `buffer` if it fits. Without this function, a restart
   * repeats all steps. */
  uint64_t (*save)(void* rule, char* buffer, uint64_t capacity);
  /* Loads a saved state; returns 0 on success. */
  int32_t (*restore)(void* rule, const char* state, uint64_t length);
  /* Sets `needs` to an array of what must be captured and returns its length. */
  uint64_t (*needs)(const luff_need_v1* const** needs);
} luff_rule_v1;

typedef struct luff_rule_plugin {
  uint32_t size;
  uint32_t version; /* LUFF_RULE_PLUGIN_VERSION */
  uint64_t rule_count;
  const luff_rule_v1* const* rules;
} luff_rule_plugin;

#if defined(__GNUC__)
#define LUFF_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define LUFF_PLUGIN_EXPORT
#endif

/* The only symbol that Luff looks up. */
LUFF_PLUGIN_EXPORT const luff_rule_plugin* luff_rule_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif /* LUFF_RULES_PLUGIN_H_ */
