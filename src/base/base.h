// SPDX-License-Identifier: MIT
// Errors, checked sizes, memory. Everything else stands on this header.
#ifndef DPCRI_BASE_H
#define DPCRI_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deeppcr/array.h"
#include "deeppcr/context.h"

// Returns early to the label `done` with `status` set; the one thing a macro hides here. Needs: dpcr_status status.
#define DPCR_TRY(expression)              \
    do {                                  \
        status = (expression);            \
        if (status != DPCR_OK) goto done; \
    } while (0)

#if defined(__GNUC__)
#define DPCRI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DPCRI_PRINTF(f, a)
#endif

// Writes the text into `error` (when not NULL) and returns `status`, so that `return dpcri_fail(...)` reads as one
// step.
dpcr_status dpcri_fail(dpcr_error *error, dpcr_status status, const char *format, ...) DPCRI_PRINTF(3, 4);
dpcr_status dpcri_fail_code(dpcr_error *error, dpcr_status status, int code, const char *format, ...)
    DPCRI_PRINTF(4, 5);
// DPCR_ERROR_CANCELLED: "CALL: stopped by the caller's cancel function".
dpcr_status dpcri_fail_stopped(dpcr_error *error, const char *call);
// DPCR_ERROR_ARGUMENT where room of fields to come is not 0: of a newer header, or garbage.
dpcr_status dpcri_check_reserved(const char *options, const uint64_t *reserved, size_t bytes, dpcr_error *error);

// One line for an error: control characters become '?', and what is longer is cut in the middle, where paths are; the
// end stays, which says what was wrong, of texts of up to 8191 bytes; of longer ones, that of those. No UTF-8 sequence
// is cut. `bytes`: 32 or more; what it says may quote `text`.
void dpcri_line_print(char *text, size_t bytes, const char *format, va_list arguments);

// Checked arithmetic on extents (>= 0): false when the result does not fit.
bool dpcri_mul(int64_t a, int64_t b, int64_t *product);
bool dpcri_add(int64_t a, int64_t b, int64_t *sum);

// a * b * c in bytes, or 0 with *overflow set (never cleared).
size_t dpcri_bytes(int64_t a, int64_t b, int64_t c, bool *overflow);

// Memory of the context's allocator, 64-byte aligned; NULL when refused or when bytes is 0. Free is NULL-safe.
void *dpcri_alloc(dpcr_context *context, size_t bytes);
void *dpcri_alloc_zero(dpcr_context *context, size_t bytes);
char *dpcri_strdup(dpcr_context *context, const char *text);
void dpcri_free(dpcr_context *context, void *memory);

// True when the caller's cancel function asks to stop.
bool dpcri_cancelled(const dpcr_context *context);

// Carves named pieces out of a workspace. With base NULL it only counts, so one function both sizes and carves.
typedef struct dpcri_arena {
    unsigned char *base;
    size_t used, size;
    bool overflow;  // a piece's size overflowed, or the pieces exceed `size` of a real base
} dpcri_arena;

// count elements of element_bytes, 64-byte aligned; NULL while counting or on overflow.
void *dpcri_arena_take(dpcri_arena *arena, int64_t count, size_t element_bytes);

// Shape of array, in words, such as "[4][2][8] float32", for error texts. Returns buffer.
const char *dpcri_array_text(const dpcr_array *array, char *buffer, size_t bytes);

// Whether an element's place, in bytes from the data on, is beyond what an int64_t holds. Strides of extents up to 1
// say nothing, for they are multiplied by 0.
bool dpcri_reaches_too_far(const dpcr_array *array);

// Refuses an array that is written and has two elements at one place (a stride of 0 where there are several, strides
// that make indices meet), and one that reaches beyond the address space; NULL and empty ones pass. Its dtype and ndim
// have been checked. Exact for dimensions that lie one in another; of others, some that would take a long search are
// refused too.
dpcr_status dpcri_check_written(const char *call, const char *name, const dpcr_array *array, dpcr_error *error);

// Refuses an array that shares memory with another one, which is written; NULL and empty ones pass, and one that
// reaches beyond the address space does not. Exact but for strides that would take a long search, which are refused.
dpcr_status dpcri_check_apart(const char *call, const char *name, const dpcr_array *array, const char *written_name,
                              const dpcr_array *written, dpcr_error *error);

// Refuses a z0, [B][w], with a row that shares memory with one of z, [L][B][w]; both have been checked for shape.
// Where z's rows share memory with one another, which dpcri_check_written refuses, some may be missed.
dpcr_status dpcri_check_start(const char *call, const dpcr_array *z0, const dpcr_array *z, dpcr_error *error);

// Structures of the public headers may grow: a caller's, of which `size` bytes are known here, says in its first field
// `size` how much of it there is. What lies beyond is not read, and not written; copied out, it keeps its size.
#define DPCRI_COPY_IN(to, from) memcpy(&(to), (from), (from)->size < sizeof(to) ? (from)->size : sizeof(to))
void dpcri_copy_out(void *to, const void *from, size_t size);

double dpcri_seconds(void);  // monotonic clock

#endif
