// SPDX-License-Identifier: MIT
// Kernels of sparse matrices (sparse.h) and of filters (filter.h).
#include <math.h>
#include <stdlib.h>

#include "kern/filter.h"
#include "kern/sparse.h"
#include "kernels.h"

// ---- matrices: square, `width` rows; csr ones have bands ----

enum { BAND = 2, MOST_ROWS = 256 };

typedef struct pattern {
    int64_t offsets[MOST_ROWS + 1];
    int32_t columns[MOST_ROWS * (4 * BAND + 1)];
} pattern;

static dpcri_matrix band_of(int64_t n, int64_t reach, pattern *p) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        p->offsets[i] = count;
        for (int64_t j = i < reach ? 0 : i - reach; j <= i + reach && j < n; j++) p->columns[count++] = (int32_t)j;
    }
    p->offsets[n] = count;
    return (dpcri_matrix){.structure = DPCR_CSR, .rows = n, .cols = n, .offsets = p->offsets, .columns = p->columns};
}

static int64_t entries_of(const dpcri_matrix *a) {
    return a->structure == DPCR_CSR ? a->offsets[a->rows] : a->structure == DPCR_DIAGONAL ? a->rows : a->rows * a->cols;
}

static dpcri_matrix matrix_of(dpcr_structure structure, int64_t n, pattern *p) {
    if (structure == DPCR_CSR) return band_of(n, BAND, p);
    return (dpcri_matrix){.structure = structure, .rows = n, .cols = n};
}

typedef struct matrix_call {
    const dpcri_sparse_operations *operations;
    const dpcri_sparse_kernels *kernels;
    dpcri_matrix a, b, c;
    int64_t lanes;
    size_t element;
    const void *x;
    void *y, *places;
} matrix_call;

// `count` numbers; of a bundle each of them for every lane.
static void *alike(work *w, int64_t count, int64_t lanes) {
    void *once = draw(w, count, 1), *all = room(w, count * lanes);
    for (int64_t i = 0; i < count * lanes; i++) put(w->dtype, all, i, get(w->dtype, once, i / lanes));
    return all;
}

// A call for matrices of that structure, with numbers of A.
static matrix_call call_of(work *w, dpcr_structure structure, bool bundle, pattern *p) {
    matrix_call c = {.kernels = dpcri_sparse_kernels_at(w->level, w->dtype), .a = matrix_of(structure, w->width, p)};
    c.operations = bundle ? &c.kernels->bundle : &c.kernels->single;
    c.lanes = bundle ? c.kernels->lanes : 1;
    c.a.bundled = bundle;
    c.a.values = alike(w, entries_of(&c.a), c.lanes);
    return c;
}

static void run_apply(void *argument) {
    const matrix_call *c = argument;
    c->operations->apply(&c->a, c->x, c->y, 0, c->a.rows);
}

// y = A x
static void apply(work *w, dpcr_structure structure, bool bundle) {
    const int64_t n = w->width;
    pattern p;
    matrix_call c = call_of(w, structure, bundle, &p);
    c.x = alike(w, n, c.lanes), c.y = comes_out(w, n, c.lanes);
    const double lanes = (double)c.lanes, entries = (double)entries_of(&c.a);
    runs(w, run_apply, &c, (cost){lanes, lanes * 2 * entries, lanes * (entries + 2 * (double)n)});
}
static void apply_dense(work *w) { apply(w, DPCR_DENSE, false); }
static void apply_diagonal(work *w) { apply(w, DPCR_DIAGONAL, false); }
static void apply_csr(work *w) { apply(w, DPCR_CSR, false); }
static void apply_dense_bundle(work *w) { apply(w, DPCR_DENSE, true); }
static void apply_diagonal_bundle(work *w) { apply(w, DPCR_DIAGONAL, true); }
static void apply_csr_bundle(work *w) { apply(w, DPCR_CSR, true); }

static void run_apply_t(void *argument) {
    const matrix_call *c = argument;
    c->kernels->apply_t(&c->a, c->x, c->y);
}

// y += A^T x
static void apply_t_csr(work *w) {
    const int64_t n = w->width;
    pattern p;
    matrix_call c = call_of(w, DPCR_CSR, false, &p);
    c.x = draw(w, n, 1), c.y = comes_out(w, n, 1);
    const double entries = (double)entries_of(&c.a);
    runs(w, run_apply_t, &c, (cost){1, 2 * entries, entries + 2 * (double)n});
}

static void run_compose(void *argument) {
    const matrix_call *c = argument;
    c->operations->compose(&c->a, &c->b, &c->c, c->places, 0, c->a.rows);
}

// C = A B of the same structure
static void compose(work *w, dpcr_structure structure, bool bundle) {
    const int64_t n = w->width;
    pattern p, q, r;
    matrix_call c = call_of(w, structure, bundle, &p);
    c.b = matrix_of(structure, n, &q);
    c.c = structure == DPCR_CSR ? band_of(n, 2 * BAND, &r) : matrix_of(structure, n, NULL);
    c.b.bundled = c.c.bundled = bundle;
    const int64_t entries = entries_of(&c.a), out = entries_of(&c.c);
    c.b.values = alike(w, entries, c.lanes), c.c.values = comes_out(w, out, c.lanes);
    c.places = room(w, n);
    const double lanes = (double)c.lanes, row = structure == DPCR_CSR ? 2 * BAND + 1 : (double)n;
    runs(w, run_compose, &c, (cost){lanes, lanes * 2 * (double)entries * row, lanes * (double)(2 * entries + out)});
}
static void compose_dense(work *w) { compose(w, DPCR_DENSE, false); }
static void compose_csr(work *w) { compose(w, DPCR_CSR, false); }
static void compose_dense_bundle(work *w) { compose(w, DPCR_DENSE, true); }
static void compose_csr_bundle(work *w) { compose(w, DPCR_CSR, true); }

enum { SEQUENCES = 16 };  // whole bundles at every level

static void run_pack(void *argument) {
    const matrix_call *c = argument;
    const int64_t n = c->a.rows;
    for (int64_t g = 0; g < SEQUENCES; g += c->lanes) {
        const size_t at = (size_t)(g * n) * c->element;
        c->kernels->pack(n, c->lanes, (const char *)c->x + at, n, c->places);
        c->kernels->unpack(n, c->lanes, c->places, (char *)c->y + at, n);
    }
}

// Bundles of vectors, in and out again: what comes out is what went in.
static void pack(work *w) {
    const int64_t n = w->width;
    matrix_call c = {.kernels = dpcri_sparse_kernels_at(w->level, w->dtype), .a = {.rows = n}};
    c.lanes = c.kernels->lanes, c.element = dpcr_dtype_size(w->dtype);
    c.x = draw(w, SEQUENCES * n, 1), c.places = room(w, c.lanes * n), c.y = comes_out(w, SEQUENCES * n, 1);
    runs(w, run_pack, &c, (cost){SEQUENCES, 0, 3 * (double)(SEQUENCES * n)});
}

// ---- filters: `rows` lanes, STEPS samples each, through `width` sections of order 2, or one of order `width` ----

enum { STEPS = 256 };

typedef struct filter_call {
    dpcri_filter_kernel kernel;
    dpcri_filter_run run;
    double b[3 * DPCRI_FILTER_STATES], a[3 * DPCRI_FILTER_STATES];
    double states[DPCRI_FILTER_LANES][DPCRI_FILTER_STATES], *state[DPCRI_FILTER_LANES];
    const void *x[DPCRI_FILTER_LANES];
    void *y[DPCRI_FILTER_LANES];
} filter_call;

static void run_filter(void *argument) {
    const filter_call *c = argument;
    c->kernel(&c->run);
}

static void filter(work *w, bool lone, bool backward) {
    const int64_t sections = lone ? 1 : w->width, order = lone ? w->width : 2, lanes = w->rows;
    filter_call *c = calloc(1, sizeof *c);
    if (!c) exit(3);
    const size_t stretch = STEPS * dpcr_dtype_size(w->dtype);
    char *x = draw(w, lanes * STEPS, 1), *y = comes_out(w, lanes * STEPS, 1);
    for (int64_t i = 0; i < lanes; i++)
        c->state[i] = c->states[i], c->x[i] = x + (size_t)i * stretch, c->y[i] = y + (size_t)i * stretch;
    for (int64_t i = 0; lone && i <= order; i++) {  // sum |a_i| is 0.9 but for a_0
        c->b[i] = 0.5 / (double)(i + 1), c->a[i] = i == 0 ? 1 : (i % 3 ? 0.9 : -0.9) / (double)order;
    }
    for (int64_t s = 0; s < sections && !lone; s++) {  // poles of radius 0.9
        c->b[3 * s] = 0.5, c->b[3 * s + 1] = -0.25, c->b[3 * s + 2] = 0.125;
        c->a[3 * s] = 1, c->a[3 * s + 1] = -1.5 + 0.1 * (double)s, c->a[3 * s + 2] = 0.81;
    }
    c->kernel = dpcri_filter_at(w->level);
    c->run = (dpcri_filter_run){.sections = sections,
                                .order = order,
                                .b = c->b,
                                .a = c->a,
                                .backward = backward,
                                .x_dtype = w->dtype,
                                .y_dtype = w->dtype,
                                .lanes = lanes,
                                .steps = STEPS,
                                .x = c->x,
                                .y = c->y,
                                .x_stride = 1,
                                .y_stride = 1,
                                .state = c->state};
    const double all = (double)lanes * STEPS;
    runs(w, run_filter, c, (cost){all, all * (double)(sections * (4 * order + 1)), 2 * all});
    free(c);
}
static void filter_forward(work *w) { filter(w, false, false); }
static void filter_back(work *w) { filter(w, false, true); }
static void filter_lone(work *w) { filter(w, true, false); }
static void filter_lone_back(work *w) { filter(w, true, true); }

void show_others(dpcri_isa level, dpcr_dtype dtype) {
    enum { WIDTH = 64 };
    const double sums = 4 + 4 * sqrt(WIDTH);
    const kernel_line lines[] = {
        {"sparse_apply_dense", WIDTH, 1, sums, apply_dense},
        {"sparse_apply_diagonal", WIDTH, 1, 1, apply_diagonal},
        {"sparse_apply_csr", WIDTH, 1, 12, apply_csr},
        {"sparse_apply_dense_bundle", WIDTH, 1, sums, apply_dense_bundle},
        {"sparse_apply_diagonal_bundle", WIDTH, 1, 1, apply_diagonal_bundle},
        {"sparse_apply_csr_bundle", WIDTH, 1, 12, apply_csr_bundle},
        {"sparse_apply_t_csr", WIDTH, 1, 12, apply_t_csr},
        {"sparse_compose_dense", WIDTH, 1, sums, compose_dense},
        {"sparse_compose_csr", WIDTH, 1, 12, compose_csr},
        {"sparse_compose_dense_bundle", WIDTH, 1, sums, compose_dense_bundle},
        {"sparse_compose_csr_bundle", WIDTH, 1, 12, compose_csr_bundle},
        {"sparse_pack_unpack", WIDTH, 1, 1, pack},
        {"filter_order_2", 1, DPCRI_FILTER_LANES, 16, filter_forward},
        {"filter_order_2", 4, DPCRI_FILTER_LANES, 16, filter_forward},
        {"filter_order_2", 4, 1, 16, filter_forward},
        {"filter_order_2", 4, 2, 16, filter_forward},
        {"filter_order_2", 8, 1, 64, filter_forward},
        {"filter_order_2_back", 1, DPCRI_FILTER_LANES, 16, filter_back},
        {"filter_order_2_back", 4, DPCRI_FILTER_LANES, 16, filter_back},
        {"filter_order_2_back", 4, 1, 16, filter_back},
        {"filter_lone", 8, 1, 16, filter_lone},
        {"filter_lone", 32, 1, 32, filter_lone},
        {"filter_lone", 32, 2, 32, filter_lone},
        {"filter_lone", 128, 1, 64, filter_lone},
        {"filter_lone_back", 8, 1, 16, filter_lone_back},
        {"filter_lone_back", 32, 1, 32, filter_lone_back},
        {"filter_lone_back", 128, 1, 64, filter_lone_back},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) show(&lines[i], level, dtype);
}
