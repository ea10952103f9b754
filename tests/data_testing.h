// SPDX-License-Identifier: MIT
// What the tests of src/data share: a scratch folder, an allocator that counts and fails, refusals by code and text.
#ifndef DATA_TESTING_H
#define DATA_TESTING_H

// cmocka.h wants the first four before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deeppcr/data.h"

typedef struct counting {
    int64_t live, calls, fail_at;  // fail_at < 0: never
} counting;

static inline void *counting_allocate(void *user, size_t bytes, size_t alignment) {
    counting *c = user;
    if (c->calls++ == c->fail_at) return NULL;
    c->live++;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static inline void counting_release(void *user, void *memory) {
    ((counting *)user)->live--;
    free(memory);
}

typedef struct scratch {
    char folder[64];
    char path[256];  // of the last scratch_path
    counting memory;
    dpcr_context *context;
    dpcr_error error;
} scratch;

static inline int scratch_setup(void **state) {
    scratch *s = calloc(1, sizeof *s);
    snprintf(s->folder, sizeof s->folder, "%s/deeppcr-test-XXXXXX", P_tmpdir);
    s->memory.fail_at = -1;
    if (!mkdtemp(s->folder)) return -1;
    const dpcr_context_options options = {.size = sizeof options,
                                          .threads = 1,
                                          .allocate = counting_allocate,
                                          .release = counting_release,
                                          .allocator_user = &s->memory};
    *state = s;
    return dpcr_context_create(&options, &s->context, NULL);
}

// Files in the scratch folder, `.` and `..` apart; removes them where asked.
static inline int scratch_files(scratch *s, int remove_them) {
    int count = 0;
    DIR *folder = opendir(s->folder);
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", s->folder, e->d_name);
        if (remove_them) unlink(path);
        count++;
    }
    closedir(folder);
    return count;
}

static inline int scratch_teardown(void **state) {
    scratch *s = *state;
    dpcr_context_destroy(s->context);
    const int64_t live = s->memory.live;
    scratch_files(s, 1);
    rmdir(s->folder);
    free(s);
    return live == 0 ? 0 : -1;
}

static inline const char *scratch_path(scratch *s, const char *name) {
    snprintf(s->path, sizeof s->path, "%s/%s", s->folder, name);
    return s->path;
}

static inline const char *scratch_write(scratch *s, const char *name, const void *bytes, size_t count) {
    const char *path = scratch_path(s, name);
    unlink(path);  // truncating a file in place makes some file systems write it out at once
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    return path;
}

// The whole of a small file; *count bytes, to be freed.
static inline unsigned char *load_file(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *bytes = malloc(1 << 20);
    *count = fread(bytes, 1, 1 << 20, file);
    assert_true(*count < 1 << 20);
    fclose(file);
    return bytes;
}

static inline void assert_refused_at(scratch *s, dpcr_status got, dpcr_status wanted, const char *text,
                                     const char *file, int line) {
    if (got != wanted || s->error.status != wanted || !strstr(s->error.text, text)) {
        print_error("got %d '%s', wanted %d '..%s..'\n", got, s->error.text, wanted, text);
        _fail(file, line);
    }
    memset(&s->error, 0, sizeof s->error);
}
// The call's status, the code, and a part of the text.
#define assert_refused(s, got, wanted, text) assert_refused_at(s, got, wanted, text, __FILE__, __LINE__)

static inline double element(const dpcr_array *array, int64_t i) {
    switch (array->dtype) {
        case DPCR_F32: return ((const float *)array->data)[i];
        case DPCR_F64: return ((const double *)array->data)[i];
        case DPCR_U32: return ((const uint32_t *)array->data)[i];
    }
    return -1;
}

// Contiguous, of this type and shape, and element i is i + 0.5 (i for uint32), as the fixtures have it.
static inline void assert_numbers(const dpcr_array *array, dpcr_dtype dtype, int ndim, const int64_t *shape) {
    const dpcr_array wanted = dpcr_array_make(array->data, dtype, ndim, shape);
    int64_t count = 1;
    assert_int_equal(array->dtype, dtype);
    assert_int_equal(array->device.type, DPCR_HOST);
    assert_int_equal(array->ndim, ndim);
    for (int d = 0; d < ndim; d++) {
        assert_int_equal(array->shape[d], shape[d]);
        assert_int_equal(array->strides[d], wanted.strides[d]);
        count *= shape[d];
    }
    for (int64_t i = 0; i < count; i++) assert_true(element(array, i) == (double)i + (dtype == DPCR_U32 ? 0 : 0.5));
}
#define SHAPE(...) \
    (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

static inline dpcr_array numbers(void *data, dpcr_dtype dtype, int ndim, const int64_t *shape) {
    const dpcr_array array = dpcr_array_make(data, dtype, ndim, shape);
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) count *= shape[d];
    for (int64_t i = 0; i < count; i++) {
        if (dtype == DPCR_F32) ((float *)data)[i] = (float)i + 0.5f;
        if (dtype == DPCR_F64) ((double *)data)[i] = (double)i + 0.5;
        if (dtype == DPCR_U32) ((uint32_t *)data)[i] = (uint32_t)i;
    }
    return array;
}

#define scratch_test(function) cmocka_unit_test_setup_teardown(function, scratch_setup, scratch_teardown)

#endif
