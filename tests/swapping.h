// SPDX-License-Identifier: MIT
// A context whose allocator, at one of its calls, puts another file in a file's place: what is read in two goes is of
// both.
#ifndef TESTS_SWAPPING_H
#define TESTS_SWAPPING_H

#include "training.h"

typedef struct swap {
    const folder *f;
    const content *files;  // [2]: the one that lies there first, the other
    char other[160];
    int64_t left;  // calls until then
    bool unused;   // training began before it came to that
} swap;

static inline void *swap_allocate(void *user, size_t bytes, size_t alignment) {
    swap *s = user;
    if (s->left-- == 0) assert_int_equal(rename(s->other, s->f->file), 0);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static inline void swap_release(void *user, void *memory) {
    (void)user;
    free(memory);
}

// Its allocator waits; `s` is to stay where it is.
static inline dpcr_context *swap_context(swap *s, const folder *f, const content files[2]) {
    *s = (swap){.f = f, .files = files, .left = -1};
    snprintf(s->other, sizeof s->other, "%s/other", f->path);
    const dpcr_context_options options = {
        .size = sizeof options, .threads = 1, .allocate = swap_allocate, .release = swap_release, .allocator_user = s};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

// The first file lies there, and after `calls` more the second one will.
static inline void swap_after(swap *s, int64_t calls) {
    write_file(s->f->file, s->files[0].bytes, s->files[0].size);
    write_file(s->other, s->files[1].bytes, s->files[1].size);
    s->left = calls;
}

// For progress of a resumed run, whose file has been read by then.
static inline int swap_ends(void *user, const dpcr_train_state *state) {
    (void)state;
    swap *s = user;
    s->unused |= s->left >= 0;
    s->left = -1;
    return 0;
}

#endif
