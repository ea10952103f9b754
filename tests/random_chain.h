// SPDX-License-Identifier: MIT
// Linear chains drawn at random (draws.h): their numbers, and the chain by its definition, exactly in the ring of
// uint32, else within what rounding explains.
#ifndef TESTS_RANDOM_CHAIN_H
#define TESTS_RANDOM_CHAIN_H

#include "draws.h"
#include "linear_common.h"

// A chain, its numbers row by row without strides (the definition's), and the arrays that the library gets.
typedef struct drawn_chain {
    dpcr_chain_shape shape;
    dpcr_chain_options options;
    int64_t length, batch, w, values;
    dpcr_dtype dtype;
    table a, b, z0, z;
    bool has_z0, in_place;
    int64_t nan_row, nan_step;  // where b has a NaN; -1: nowhere
    void *la, *lb, *lz0;        // [L][B][values], [L][B][w], [B][w]
    double gain;
} drawn_chain;

static void *table_of(int64_t count) {
    void *memory = calloc((size_t)count + 1, 8);
    assert_non_null(memory);
    return memory;
}

static void copy_number(dpcr_dtype dtype, void *to, int64_t i, const void *from, int64_t k) {
    const size_t size = dpcr_dtype_size(dtype);
    memcpy((char *)to + (size_t)i * size, (const char *)from + (size_t)k * size, size);
}

static void draw_number(dpcr_dtype dtype, void *to, int64_t i, double scale) {
    if (dtype == DPCR_U32)
        ((uint32_t *)to)[i] = draw_chance(20) ? (uint32_t)draw_below(3) : (uint32_t)draw_bits();
    else
        put(dtype, to, i, draw_chance(3) ? 0 : scale * draw_signed());
}

// Row by row what a table holds.
static void *flat_copy(const table *t) {
    const int64_t n = t->steps < 0 ? 1 : t->steps;
    void *all = table_of(n * t->rows * t->values);
    for (int64_t l = 0; l < n; l++)
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t i = 0; i < t->values; i++)
                copy_number(t->view.dtype, all, (l * t->rows + r) * t->values + i, t->view.data, table_at(t, l, r) + i);
    return all;
}

static void fill_table(const table *t, double scale) {
    const int64_t n = t->steps < 0 ? 1 : t->steps;
    for (int64_t l = 0; l < n; l++)
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t i = 0; i < t->values; i++)
                draw_number(t->view.dtype, t->view.data, table_at(t, l, r) + i, scale);
}

// Transitions whose rows have sums of absolute values below `gain`, or signed permutations.
static void fill_steps(const drawn_chain *c, const table *t, bool permutations) {
    const dpcr_structure s = c->shape.transition.structure;
    const int64_t k = s == DPCR_DENSE || s == DPCR_CSR ? c->w : s == DPCR_BLOCK ? c->shape.transition.block : 1;
    for (int64_t l = 0; l < t->steps; l++)
        for (int64_t r = 0; r < t->rows; r++) {
            const int64_t at = table_at(t, l, r), shift = draw_below(k);
            for (int64_t i = 0; i < t->values; i++)
                if (!permutations || c->dtype == DPCR_U32)
                    draw_number(c->dtype, t->view.data, at + i, c->gain * (draw_chance(2) ? 1 : 1.0 / (double)k));
                else
                    put(c->dtype, t->view.data, at + i,
                        k == 1 || (i / k + shift) % k == i % k ? (draw_chance(50) ? 1 : -1) : 0);
        }
}

static void draw_numbers(drawn_chain *c) {
    const bool permutations = draw_chance(20) && c->shape.transition.structure != DPCR_CSR;
    c->gain = DRAW_OF(0.2, 0.5, 0.9, 0.95, 1, 1.05, 2);
    while (c->gain > 1 && (double)c->length * log(c->gain) > 40) c->gain = 1;
    if (c->shape.transition.structure == DPCR_DENSE && c->gain > 1) c->gain = 1;
    c->a = draw_table("a", c->dtype, c->length, c->batch, c->values, STRIDED | SHARED);
    fill_steps(c, &c->a, permutations);
    c->in_place = draw_chance(30);
    c->b = draw_table(c->in_place ? "z" : "b", c->dtype, c->length, c->batch, c->w, STRIDED);
    fill_table(&c->b, permutations ? 100 : 1);
    c->has_z0 = !c->shape.transposed && draw_chance(60);
    if (c->has_z0) {
        c->z0 = draw_table("z0", c->dtype, -1, c->batch, c->w, STRIDED);
        fill_table(&c->z0, 1);
    }
    c->nan_row = -1;
    if (c->dtype != DPCR_U32 && c->batch > 1 && c->length > 0 && draw_chance(10)) {
        c->nan_row = draw_below(c->batch), c->nan_step = draw_below(c->length);
        put(c->dtype, c->b.view.data, table_at(&c->b, c->nan_step, c->nan_row) + draw_below(c->w), NAN);
    }
    // Without an initial state the first transition is not read.
    if (c->dtype != DPCR_U32 && !c->has_z0 && c->values && c->a.step != 0 && c->length > 0)
        for (int64_t r = 0; r < c->batch; r++) put(c->dtype, c->a.view.data, table_at(&c->a, 0, r), NAN);
    c->la = flat_copy(&c->a), c->lb = flat_copy(&c->b), c->lz0 = c->has_z0 ? flat_copy(&c->z0) : NULL;
    if (!c->in_place) c->z = draw_table("z", c->dtype, c->length, c->batch, c->w, STRIDED | WRITTEN);
    tell("%s%s gain %g%s%s", c->has_z0 ? " z0" : "", c->in_place ? " in place" : "", c->gain,
         permutations ? " permutations" : "", c->nan_row >= 0 ? " NaN" : "");
    keep_sum(&c->a), keep_sum(&c->b), keep_sum(&c->z0);
}

static loop_case definition(const drawn_chain *c) {
    return (loop_case){.t = c->shape.transition,
                       .dtype = c->dtype,
                       .length = c->length,
                       .batch = c->batch,
                       .values = c->values,
                       .transposed = c->shape.transposed,
                       .a = c->la,
                       .b = c->lb,
                       .z0 = c->lz0,
                       .a_step = c->batch * c->values,
                       .a_row = c->values};
}

// The states, and how far from them a result may lie: rounding, as the chain of absolute values says it, and where
// chunks are joined within a tolerance, that, carried on likewise.
typedef struct bounds {
    long double *want, *most;
    uint32_t *ring;
} bounds;

static bounds bounds_of(const drawn_chain *c, double joined) {
    const int64_t count = c->length * c->batch * c->w;
    bounds s = {table_of(2 * count), table_of(2 * count), table_of(count)};
    uint32_t *unused = table_of(count);
    loop_case l = definition(c);
    plain_loop(&l, s.want, s.ring);
    l.absolute = true;
    if (c->dtype != DPCR_U32) plain_loop(&l, s.most, unused);
    const double rounding = epsilon_of(c->dtype) * 4.0 * (double)(c->w + 4) * (double)(c->length + 2);
    for (int64_t i = 0; i < count; i++) s.most[i] = s.most[i] * rounding + (c->dtype == DPCR_F32 ? FLT_MIN : DBL_MIN);
    if (joined > 0) {
        long double *carried = table_of(2 * count);
        void *each = table_of(count);
        double largest = 1;
        for (int64_t i = 0; i < count; i++)
            if (isfinite((double)s.want[i])) largest = fmax(largest, fabs((double)s.want[i]));
        for (int64_t i = 0; i < count; i++) put(c->dtype, each, i, joined * largest);
        l.b = each, l.z0 = NULL;
        plain_loop(&l, carried, unused);
        for (int64_t i = 0; i < count; i++) s.most[i] += 2 * carried[i];
        free(carried), free(each);
    }
    free(unused);
    return s;
}

static void free_bounds(bounds *s) { free(s->want), free(s->most), free(s->ring); }

static void compare_states(const drawn_chain *c, const table *z, const bounds *s, const char *what) {
    const double huge = c->dtype == DPCR_F32 ? 1e32 : 1e280;
    for (int64_t l = 0; l < z->steps; l++)
        for (int64_t r = 0; r < z->rows; r++)
            for (int64_t i = 0; i < z->values; i++) {
                const int64_t at = (l * z->rows + r) * z->values + i;
                if (c->dtype == DPCR_U32) {
                    const uint32_t got = ((const uint32_t *)z->view.data)[table_at(z, l, r) + i];
                    if (got != s->ring[at])
                        wrong("%s: %s(%lld, %lld, %lld) is %u, wanted %u", what, z->name, (long long)l, (long long)r,
                              (long long)i, got, s->ring[at]);
                    continue;
                }
                const double got = table_get(z, l, r, i), want = (double)s->want[at], most = (double)s->most[at];
                const bool beyond = r == c->nan_row && (c->shape.transposed ? l <= c->nan_step : l >= c->nan_step);
                if (beyond || isnan(want) || !(most <= huge) || fabs(want) > huge)
                    continue;  // inf 0 is in a bound, too
                if (!(fabs(got - want) <= most))
                    wrong("%s: %s(%lld, %lld, %lld) is %.9g, wanted %.9g within %.3g", what, z->name, (long long)l,
                          (long long)r, (long long)i, got, want, most);
            }
}

static void same_bits(const drawn_chain *c, const void *one, const void *other, const char *what) {
    const int64_t at = differs(one, other, c->dtype, c->length * c->batch * c->w);
    if (at < 0) return;
    wrong("%s: %lld is %.9g and %.9g", what, (long long)at, get(c->dtype, one, at), get(c->dtype, other, at));
}

#endif
