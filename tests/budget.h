// SPDX-License-Identifier: MIT
// A context whose allocator grants so many requests and then refuses, and counts what was not given back.
#ifndef TESTS_BUDGET_H
#define TESTS_BUDGET_H

#include <deeppcr/deeppcr.h>
#include <stdlib.h>

typedef struct budget {
    int64_t left, live;
} budget;

static inline void *budget_allocate(void *user, size_t bytes, size_t alignment) {
    budget *b = user;
    if (b->left-- <= 0) return NULL;
    b->live++;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static inline void budget_release(void *user, void *memory) {
    ((budget *)user)->live--;
    free(memory);
}

static inline dpcr_context_options budget_options(budget *b) {
    return (dpcr_context_options){.size = sizeof(dpcr_context_options),
                                  .threads = 1,
                                  .allocate = budget_allocate,
                                  .release = budget_release,
                                  .allocator_user = b};
}

#endif
