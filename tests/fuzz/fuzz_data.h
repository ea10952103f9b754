// SPDX-License-Identifier: MIT
// What the fuzzers of src/data share: a context whose allocator counts, so that a leak is a crash in every build, and a
// walk over what was read, so that a wrong extent is a read out of bounds.
#ifndef FUZZ_DATA_H
#define FUZZ_DATA_H

#include <stdlib.h>

#include "data/tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static int64_t fuzz_live;
static volatile unsigned fuzz_sum;

static void *fuzz_allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    fuzz_live += memory != NULL;
    return memory;
}

static void fuzz_release(void *user, void *memory) {
    (void)user;
    fuzz_live--;
    free(memory);
}

static inline dpcr_context *fuzz_context(void) {
    static dpcr_context *context;
    const dpcr_context_options options = {
        .size = sizeof options, .threads = 1, .allocate = fuzz_allocate, .release = fuzz_release};
    if (!context && dpcr_context_create(&options, &context, NULL) != DPCR_OK) abort();
    return context;
}

static inline void fuzz_touch(const void *data, int64_t bytes) {
    const unsigned char *p = data;
    for (int64_t i = 0; i < bytes; i++) fuzz_sum += p[i];
}

static inline void fuzz_check(bool holds) {
    if (!holds) abort();
}

typedef dpcr_status (*fuzz_reader)(dpcr_context *context, const dpcri_source *source, dpcr_tensors *tensors,
                                   dpcr_error *error);

// Reads, walks over all that came, frees; nothing may be left but the context.
static inline void fuzz_tensors(fuzz_reader reader, const uint8_t *bytes, size_t count) {
    dpcr_context *context = fuzz_context();
    const int64_t live = fuzz_live;
    dpcr_error error = {0};
    dpcr_tensors t;
    const dpcri_source source = dpcri_source_memory("fuzz", bytes, count);
    const dpcr_status status = reader(context, &source, &t, &error);
    if (status == DPCR_OK) {
        for (int64_t i = 0; i < t.count; i++) {
            int64_t elements = 0, size = 0;
            const dpcr_array *array = &t.items[i].array;
            fuzz_check(dpcri_shape_bytes(array->dtype, array->ndim, array->shape, &elements, &size));
            fuzz_touch(array->data, size);
            fuzz_check(dpcr_tensors_find(&t, t.items[i].name) == &t.items[i]);
        }
        for (int64_t i = 0; i < t.metadata_count; i++)
            fuzz_check(dpcr_tensors_metadata(&t, t.metadata_keys[i]) == t.metadata_values[i]);
        for (int64_t i = 0; i < t.other_count; i++)
            fuzz_check(dpcr_tensors_other(&t, t.other_names[i]) == t.other_dtypes[i] &&
                       !dpcr_tensors_find(&t, t.other_names[i]));
    } else {
        fuzz_check(error.status == status && error.text[0] &&
                   (status == DPCR_ERROR_FORMAT || status == DPCR_ERROR_MEMORY));
        fuzz_check(t.count == 0 && !t.items);
    }
    dpcr_tensors_free(context, &t);
    fuzz_check(fuzz_live == live);
}

#endif
