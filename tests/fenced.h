// SPDX-License-Identifier: MIT
// Arrays of a test that end at a page that must not be touched: who reads or writes an element behind one ends the
// test. Zeroed when taken; their memory is kept for the next.
#ifndef TESTS_FENCED_H
#define TESTS_FENCED_H

#include <sys/mman.h>
#include <unistd.h>

enum { FENCED_BYTES = 1 << 18, FENCED_ARRAYS = 48 };

typedef struct fenced_arrays {
    char *begin;
    size_t stride;
    bool taken[FENCED_ARRAYS];
} fenced_arrays;

static inline fenced_arrays *all_fenced(void) {
    static fenced_arrays all;
    if (all.begin) return &all;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    all.stride = FENCED_BYTES + page;
    all.begin = mmap(NULL, FENCED_ARRAYS * all.stride, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(all.begin, MAP_FAILED);
    for (int i = 0; i < FENCED_ARRAYS; i++)
        assert_int_equal(mprotect(all.begin + (size_t)i * all.stride, FENCED_BYTES, PROT_READ | PROT_WRITE), 0);
    return &all;
}

// `count` elements of `size` bytes, FENCED_BYTES at most.
static inline void *fenced(int64_t count, size_t size) {
    fenced_arrays *all = all_fenced();
    const size_t bytes = (size_t)count * size;
    int i = 0;
    while (i < FENCED_ARRAYS && all->taken[i]) i++;
    assert_true(i < FENCED_ARRAYS && bytes <= FENCED_BYTES);
    all->taken[i] = true;
    return memset(all->begin + (size_t)i * all->stride + FENCED_BYTES - bytes, 0, bytes);
}

static inline void drop_fenced(const void *array) {
    fenced_arrays *all = all_fenced();
    const size_t at = (size_t)((const char *)array - all->begin) / all->stride;
    assert_true(at < FENCED_ARRAYS && all->taken[at]);
    all->taken[at] = false;
}

#endif
