// SPDX-License-Identifier: MIT
// Memory between two pages that must not be touched. The test defines, before it includes this, the enumerators of its
// pieces, USES their number and MOST_BYTES the largest. And numbers of either dtype.
#ifndef TESTS_GUARDED_H
#define TESTS_GUARDED_H

#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "deeppcr/array.h"

// One piece for each use, kept for the next; `bytes` at its end, or at its beginning.
static inline char *guarded(int use, size_t bytes, bool beginning) {
    static char *begins[USES];
    assert_true(bytes <= MOST_BYTES);
    if (!begins[use]) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *pages = mmap(NULL, MOST_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(pages, MAP_FAILED);
        assert_int_equal(mprotect(pages + page, MOST_BYTES, PROT_READ | PROT_WRITE), 0);
        begins[use] = pages + page;
    }
    return begins[use] + (beginning ? 0 : MOST_BYTES - bytes);
}

static inline double number_at(dpcr_dtype dtype, const void *data, int64_t i) {
    return dtype == DPCR_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static inline void put_number(dpcr_dtype dtype, void *data, int64_t i, double x) {
    if (dtype == DPCR_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = (float)x;
}

#endif
