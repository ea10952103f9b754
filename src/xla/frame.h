// SPDX-License-Identifier: MIT
// XLA's call frame, as it lies in memory: what XLA keeps for all versions 0.x of its foreign function interface. A test
// has the compiler hold it against jaxlib's own header.
#ifndef DPCRI_XLA_FRAME_H
#define DPCRI_XLA_FRAME_H

#include <stddef.h>
#include <stdint.h>

typedef struct dpcri_xla_buffer {
    size_t size;
    void *extension;
    int dtype;
    void *numbers;
    int64_t rank;
    const int64_t *shape;
} dpcri_xla_buffer;

typedef struct dpcri_xla_arrays {
    size_t size;
    void *extension;
    int64_t count;
    const int *types;
    const dpcri_xla_buffer *const *items;
} dpcri_xla_arrays;

typedef struct dpcri_xla_text {
    const char *first;
    size_t size;
} dpcri_xla_text;

typedef struct dpcri_xla_attributes {
    size_t size;
    void *extension;
    int64_t count;
    const int *types;
    const void *names;
    const dpcri_xla_text *const *items;
} dpcri_xla_attributes;

// What XLA copies an error of: the message lives no longer than the call.
typedef struct dpcri_xla_error {
    size_t size;
    void *extension;
    const char *message;
    int code;
} dpcri_xla_error;

// The beginning of XLA's own functions.
typedef struct dpcri_xla_api {
    size_t size;
    void *extension;
    struct {
        size_t size;
        void *extension;
        int major, minor;
    } version;
    const void *internal;
    void *(*make_error)(dpcri_xla_error *);
} dpcri_xla_api;

typedef struct dpcri_xla_frame {
    size_t size;
    void *extension;
    const dpcri_xla_api *api;
    const void *context;
    int stage;
    dpcri_xla_arrays given, found;
    dpcri_xla_attributes said;
} dpcri_xla_frame;

// XLA's numbers: a stage, a kind of attribute, dtypes, a code of errors.
enum {
    DPCRI_XLA_EXECUTE = 3,
    DPCRI_XLA_TEXT = 4,
    DPCRI_XLA_INT64 = 5,
    DPCRI_XLA_FLOAT64 = 12,
    DPCRI_XLA_CANCELLED = 1
};

#endif
