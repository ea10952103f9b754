// SPDX-License-Identifier: MIT
// Summaries of chunks (kern/squares.h) against a scalar loop in the order of their sums, bit for bit: any number of
// chunks, forward and transposed, steps up and down the memory, every array against an inaccessible page.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "kern/squares.h"

enum { MOST_WIDTH = 8, MOST_COUNT = 9 };

enum { MATRICES, VECTORS, M, V, USES, MOST_BYTES = 1 << 16 };
#include "guarded.h"

// `count` floats that end, or begin, at the guarded page, in them numbers that are not exact in products.
static float *place(int which, int64_t count, bool at_end) {
    float *data = (float *)(void *)guarded(which, (size_t)count * sizeof(float), !at_end);
    for (int64_t i = 0; i < count; i++) data[i] = (float)((i * 37 + which * 11) % 101 - 50) / 73.0f;
    return data;
}

// row A + next; next NULL: none.
static void row_product(int w, const float *row, const float *a, const float *next, float *out) {
    for (int j = 0; j < w; j++) {
        if (w == 4) {
            const float even = next ? fmaf(row[0], a[j], next[j]) : row[0] * a[j];
            const float odd = fmaf(row[3], a[3 * w + j], row[1] * a[w + j]);
            out[j] = fmaf(row[2], a[2 * w + j], even) + odd;
            continue;
        }
        out[j] = next ? next[j] : 0;
        for (int k = 0; k < w; k++) out[j] = fmaf(row[k], a[k * w + j], out[j]);
    }
}

typedef struct summary {
    float n[MOST_WIDTH][MOST_WIDTH], terms[MOST_WIDTH][4], v[MOST_WIDTH];
} summary;

static void multiply(int w, const float *a, summary *s) {
    for (int i = 0; i < w; i++) {
        float row[MOST_WIDTH];
        row_product(w, s->n[i], a, NULL, row);
        memcpy(s->n[i], row, sizeof row);
    }
}

// The chunk whose steps are a [n][w][w] and b [n][w], `way` 1 or -1 apart.
static summary reference(int w, bool transposed, int64_t n, const float *a, const float *b, int64_t way) {
    const int64_t start = transposed ? 0 : (n - 1) * way;
    summary s = {0};
    for (int i = 0; i < w; i++) memcpy(s.n[i], a + (start * w + i) * w, (size_t)w * sizeof(float));
    memcpy(s.v, b + start * w, (size_t)w * sizeof(float));
    for (int64_t done = 1; done < n; done++) {
        const int64_t step = transposed ? done * way : (n - 1 - done) * way;
        const float *const right = b + step * w;
        if (transposed) {
            float v[MOST_WIDTH];
            row_product(w, s.v, a + step * w * w, right, v);
            memcpy(s.v, v, sizeof v);
        } else {
            for (int i = 0; i < w; i++)
                for (int j = 0; j < w; j++) s.terms[i][j % 4] = fmaf(s.n[i][j], right[j], s.terms[i][j % 4]);
        }
        multiply(w, a + step * w * w, &s);
    }
    for (int i = 0; i < w && !transposed; i++) s.v[i] += s.terms[i][0] + s.terms[i][1] + s.terms[i][2] + s.terms[i][3];
    return s;
}

static void run(int w, bool transposed, int64_t n, int64_t count, int64_t way, int64_t ahead, bool at_end) {
    dpcri_summary_kernel *const kernel = dpcri_summary_at(DPCRI_AVX512, DPCR_F32, DPCR_DENSE, w, transposed);
    assert_non_null(kernel);
    const int64_t values = (int64_t)w * w, last = way > 0 ? 0 : n * count - 1;
    const float *const a = place(MATRICES, n * count * values, at_end) + last * values;
    const float *const b = place(VECTORS, n * count * w, at_end) + last * w;
    float *const m = place(M, count * values, at_end), *const v = place(V, count * w, at_end);
    kernel(&(dpcri_summary){.n = n,
                            .count = count,
                            .a = a,
                            .a_step = way * values,
                            .a_row = way * n * values,
                            .b = b,
                            .b_step = way * w,
                            .b_row = way * n * w,
                            .m = m,
                            .v = v,
                            .ahead = ahead});
    for (int64_t c = 0; c < count; c++) {
        const summary s = reference(w, transposed, n, a + c * way * n * values, b + c * way * n * w, way);
        for (int i = 0; i < w; i++) assert_memory_equal(m + c * values + i * w, s.n[i], (size_t)w * sizeof(float));
        assert_memory_equal(v + c * w, s.v, (size_t)w * sizeof(float));
    }
}

static void summaries(void **state) {
    (void)state;
    if (dpcri_isa_level() != DPCRI_AVX512) skip();
    static const int64_t lengths[] = {1, 2, 3, 6};
    for (int bits = 0; bits < 32; bits++)
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
            for (int64_t count = 1; count <= MOST_COUNT; count++)
                run(bits & 1 ? 8 : 4, bits & 2, lengths[n], count, bits & 4 ? -1 : 1, bits & 8 ? 4 : 1, bits & 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(summaries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
