/* Terrace's C API: open a model, submit requests, take their tokens. Plain C99, no C++ types.
 *
 * Functions return TERRACE_OK or an error code; terrace_last_error() then gives this thread's
 * message. An engine may be used from several threads: calls take its lock, one at a time. Strings
 * are UTF-8. Option structs start with their size, set by their _init function, so that they can
 * grow. SPDX-License-Identifier: MIT */
#ifndef TERRACE_TERRACE_H
#define TERRACE_TERRACE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TERRACE_API __attribute__((visibility("default")))
#else
#define TERRACE_API
#endif

typedef struct terrace_engine terrace_engine;

enum {
    TERRACE_OK = 0,
    TERRACE_INVALID_ARGUMENT = 1,
    TERRACE_NOT_FOUND = 2,
    TERRACE_UNSUPPORTED = 3,
    TERRACE_CORRUPT_DATA = 4,
    TERRACE_OUT_OF_MEMORY = 5,
    TERRACE_IO = 6,
    TERRACE_CANCELLED = 7,
    TERRACE_INTERNAL = 8
};

/* Why a request ended; TERRACE_RUNNING while it has not. */
enum {
    TERRACE_RUNNING = 0,
    TERRACE_STOP_ID = 1,
    TERRACE_STOP_STRING = 2,
    TERRACE_LENGTH = 3,
    TERRACE_CONTEXT_FULL = 4,
    TERRACE_WAS_CANCELLED = 5,
    TERRACE_FAILED = 6
};

typedef struct terrace_options {
    uint32_t size;
    const char* model_dir;   /* folder of an EXL3 pack or a plain checkpoint */
    const char* device;      /* "auto", "cpu", "reference" */
    const char* isa;         /* "auto", "avx2", "avx512", "avx512vbmi" */
    const char* activations; /* "int16", "f32" */
    int32_t threads;         /* 0: every CPU of the process */
    int32_t ctx;           /* tokens a sequence may hold; 0: the smaller of the model's and 8192 */
    int32_t max_seqs;      /* sequences at once */
    int32_t prefill_chunk; /* prompt rows of one step, a multiple of 64 */
    uint64_t host_limit;   /* bytes of memory; 0: what the machine has available */
} terrace_options;

typedef struct terrace_request {
    uint32_t size;
    const char* prompt;    /* text; special tokens in it are recognised */
    const int32_t* tokens; /* or ids, when prompt is NULL */
    size_t n_tokens;
    int32_t max_tokens;
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: off */
    float top_p, min_p;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    const char* const* stop; /* n_stop strings that end the text */
    size_t n_stop;
    int32_t ignore_eos; /* not 0: the model's own stop tokens do not end it */
} terrace_request;

typedef struct terrace_event {
    int32_t token;    /* -1: none with this event */
    const char* text; /* whole characters; valid until the next call with this engine */
    size_t text_bytes;
    int32_t finish; /* TERRACE_RUNNING or the reason */
    int32_t prompt_tokens, generated_tokens;
} terrace_event;

TERRACE_API void terrace_options_init(terrace_options* options);
TERRACE_API void terrace_request_init(terrace_request* request);

TERRACE_API int terrace_open(const terrace_options* options, terrace_engine** out);
TERRACE_API void terrace_close(terrace_engine* engine);

TERRACE_API int terrace_submit(terrace_engine* engine, const terrace_request* request,
                               uint64_t* id);
/* Computes until request `id` has an event. After one with finish != TERRACE_RUNNING the id is
 * gone. */
TERRACE_API int terrace_next(terrace_engine* engine, uint64_t id, terrace_event* out);
/* The request ends with TERRACE_WAS_CANCELLED at the next step. Unknown ids are ignored. */
TERRACE_API int terrace_cancel(terrace_engine* engine, uint64_t id);

/* The memory table, as text; valid until the next call with this engine. */
TERRACE_API const char* terrace_memory_report(terrace_engine* engine);
TERRACE_API const char* terrace_last_error(void);
TERRACE_API const char* terrace_version(void);

#ifdef __cplusplus
}
#endif
#endif
