// SPDX-License-Identifier: MIT
// Kernels of many steps against one call a step, lane and kernel: the same bits, for every number of lanes and rows,
// with every combination of operands, in both dtypes, at every instruction set level. Every array ends at a guard page.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kern/nn_kernels.h"
#include "noise.h"
#include "sampled.h"

enum { MOST_LANES = 9, MOST_ROWS = 8, STEPS = 3, GAP = 1 };

// Numbers of one dtype that end where the memory does.
typedef struct numbers {
    void *pages, *data;
    size_t bytes, element;
    int64_t count;
} numbers;

// Given back, for who next wants as many pages: new ones are four fifths of the time.
enum { KEPT = 64 };
static numbers kept[KEPT];

static numbers room_for(int64_t count, size_t element) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = page;
    while (room < (size_t)count * element) room *= 2;
    numbers n = {.bytes = room + page, .element = element, .count = count};
    for (int i = 0; i < KEPT && !n.pages; i++)
        if (kept[i].pages && kept[i].bytes == n.bytes) n.pages = kept[i].pages, kept[i].pages = NULL;
    if (!n.pages) {
        n.pages = mmap(NULL, n.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(n.pages != MAP_FAILED);
        assert_int_equal(mprotect((char *)n.pages + room, page, PROT_NONE), 0);
    }
    n.data = (char *)n.pages + room - (size_t)count * element;
    return n;
}

static numbers make(int64_t count, size_t element) {
    const numbers n = room_for(count, element);
    noise_fill(element == sizeof(float) ? DPCR_F32 : DPCR_F64, n.data, count, 0.5);
    return n;
}

static numbers copy_of(numbers from) {
    const numbers n = room_for(from.count, from.element);
    memcpy(n.data, from.data, (size_t)n.count * n.element);
    return n;
}

static void destroy(numbers n) {
    int i = 0;
    while (i < KEPT && kept[i].pages) i++;
    if (i < KEPT)
        kept[i] = n;
    else
        munmap(n.pages, n.bytes);
}

static void same(const char *what, const int64_t size[4], numbers a, numbers b) {
    if (memcmp(a.data, b.data, (size_t)a.count * a.element) != 0)
        fail_msg("%s differs: %d lanes, %d steps, %d rows, width %d", what, (int)size[0], (int)size[1], (int)size[2],
                 (int)size[3]);
}

static void *at(numbers n, int64_t i) { return (char *)n.data + i * (int64_t)n.element; }

// [lanes][steps][rows][w] without gaps; with steps outside, as when chunks of one trajectory are its lanes; and
// [lanes][rows].
static dpcri_grid grid_of(numbers n, const int64_t size[4]) {
    return (dpcri_grid){n.data, size[1] * size[2] * size[3], size[2] * size[3], size[3]};
}
static dpcri_grid across(numbers n, const int64_t size[4]) {
    return (dpcri_grid){n.data, size[2] * size[3], size[0] * size[2] * size[3], size[3]};
}
static dpcri_grid ends_of(numbers n, const int64_t size[4]) {
    return (dpcri_grid){n.data, size[2] * (size[3] + GAP), 0, size[3] + GAP};
}
static int64_t ends_count(const int64_t size[4]) { return size[0] * size[2] * (size[3] + GAP) - GAP; }
static dpcri_grid parameters_of(numbers n, const int64_t size[4]) {
    const int64_t step = size[3] * size[3] + size[3];
    return (dpcri_grid){n.data, size[1] * step, step, 0};
}
static dpcri_grid nowhere(dpcri_grid g) { return (dpcri_grid){NULL, g.lane, g.step, g.row}; }

static void *cell(dpcri_grid g, size_t element, int64_t c, int64_t k, int64_t r) {
    return g.data ? (char *)g.data + (c * g.lane + k * g.step + r * g.row) * (int64_t)element : NULL;
}

// One call of `layer` a lane, step and row.
static void forward_apart(const dpcri_nn_kernels *k, const dpcri_forward_steps *p, numbers state) {
    const int64_t w = p->width;
    for (int64_t c = 0; c < p->lanes; c++)
        for (int64_t r = 0; r < p->rows; r++) {
            memcpy(state.data, cell(p->in, k->element, c, 0, r), (size_t)w * k->element);
            for (int64_t s = 0; s < p->steps; s++) {
                const void *weight = cell(p->parameters, k->element, c, s, 0);
                dpcri_layer layer = {.rows = 1,
                                     .depth = w,
                                     .width = w,
                                     .activation = p->activation,
                                     .weight = weight,
                                     .bias = p->bias.data ? cell(p->bias, k->element, c, s, r)
                                                          : (const char *)weight + w * w * (int64_t)k->element,
                                     .in = state.data,
                                     .in_row = w,
                                     .residual = p->residual ? state.data : NULL,
                                     .residual_row = w,
                                     .scale = p->scale,
                                     .out = at(state, w),
                                     .out_row = w,
                                     .slope = cell(p->tape, k->element, c, s, r),
                                     .slope_row = w};
                k->layer(&layer);
                memcpy(state.data, at(state, w), (size_t)w * k->element);
                if (p->states.data) memcpy(cell(p->states, k->element, c, s, r), state.data, (size_t)w * k->element);
            }
            if (p->last.data) memcpy(cell(p->last, k->element, c, 0, r), state.data, (size_t)w * k->element);
        }
}

// mode: 1 residual, 2 states, 4 last in the place of in, 8 tape, 16 lanes across. apart: 1 biases of every row's own, 2
// these, and one W for all
static void forward_case(const dpcri_nn_kernels *k, const int64_t size[4], int activation, int mode, int apart) {
    const int64_t w = size[3], states = size[0] * size[1] * size[2] * w;
    numbers parameters = make(size[0] * size[1] * (w * w + w), k->element), in = make(ends_count(size), k->element);
    numbers z1 = make(states, k->element), z2 = copy_of(z1), t1 = copy_of(z1), t2 = copy_of(z1), in1 = copy_of(in),
            in2 = copy_of(in), state = make(2 * w, k->element), biases = make(states, k->element);
    dpcri_forward_steps p = {.lanes = size[0],
                             .steps = size[1],
                             .rows = size[2],
                             .width = w,
                             .activation = activation,
                             .residual = mode & 1,
                             .scale = mode & 1 ? 0.3 : 1,
                             .parameters = parameters_of(parameters, size)};
    if (apart) p.bias = grid_of(biases, size);
    if (apart == 2) p.parameters.lane = p.parameters.step = 0;
    for (int way = 0; way < 2; way++) {
        const numbers z = way ? z2 : z1, t = way ? t2 : t1, ends = way ? in2 : in1;
        p.in = p.last = ends_of(ends, size);
        p.states = mode & 16 ? across(z, size) : grid_of(z, size),
        p.tape = mode & 16 ? across(t, size) : grid_of(t, size);
        if (!(mode & 2)) p.states = nowhere(p.states);
        if (!(mode & 4)) p.last = nowhere(p.last);
        if (!(mode & 8)) p.tape = nowhere(p.tape);
        if (way)
            k->forward_steps(&p);
        else
            forward_apart(k, &p, state);
    }
    same("states", size, z1, z2), same("tape", size, t1, t2), same("last", size, in1, in2);
    const numbers all[] = {parameters, in, z1, z2, t1, t2, in1, in2, state, biases};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) destroy(all[i]);
}

static void adjoint_apart(const dpcri_nn_kernels *k, const dpcri_adjoint_steps *p, numbers g) {
    const int64_t w = p->width;
    for (int64_t c = 0; c < p->lanes; c++)
        for (int64_t r = 0; r < p->rows; r++) {
            memcpy(g.data, cell(p->last, k->element, c, 0, r), (size_t)w * k->element);
            for (int64_t s = p->steps - 1; s >= 0; s--) {
                void *e = p->e.data ? cell(p->e, k->element, c, s, r) : at(g, w);
                k->slope_pass(&(dpcri_slope_pass){.rows = 1,
                                                  .width = w,
                                                  .scale = p->scale,
                                                  .g = g.data,
                                                  .direct = cell(p->direct, k->element, c, s, r),
                                                  .kept = cell(p->kept, k->element, c, s, r),
                                                  .slope = cell(p->slope, k->element, c, s, r),
                                                  .e = e});
                k->product_transposed(&(dpcri_product){.m = 1,
                                                       .n = w,
                                                       .depth = w,
                                                       .a = e,
                                                       .a_row = w,
                                                       .a_col = 1,
                                                       .b = cell(p->parameters, k->element, c, s, 0),
                                                       .b_row = w,
                                                       .init = p->residual ? g.data : NULL,
                                                       .init_row = w,
                                                       .c = g.data,
                                                       .c_row = w});
            }
            if (p->first_out.data) memcpy(cell(p->first_out, k->element, c, 0, r), g.data, (size_t)w * k->element);
        }
}

// mode: 1 residual, 2 kept, 4 direct (and kept in its place), 8 e in the place of the slopes, 16 lanes across
static void adjoint_case(const dpcri_nn_kernels *k, const int64_t size[4], int mode) {
    const int64_t w = size[3], states = size[0] * size[1] * size[2] * w;
    numbers parameters = make(size[0] * size[1] * (w * w + w), k->element), last1 = make(ends_count(size), k->element);
    numbers slope1 = make(states, k->element), slope2 = copy_of(slope1), direct1 = make(states, k->element),
            direct2 = copy_of(direct1), last2 = copy_of(last1), g = make(2 * w, k->element);
    dpcri_adjoint_steps p = {.lanes = size[0],
                             .steps = size[1],
                             .rows = size[2],
                             .width = w,
                             .residual = mode & 1,
                             .scale = mode & 1 ? 0.3 : 1,
                             .parameters = parameters_of(parameters, size)};
    for (int way = 0; way < 2; way++) {
        const numbers slope = way ? slope2 : slope1, direct = way ? direct2 : direct1;
        p.last = p.first_out = ends_of(way ? last2 : last1, size);
        p.slope = mode & 16 ? across(slope, size) : grid_of(slope, size);
        p.direct = p.kept = mode & 16 ? across(direct, size) : grid_of(direct, size), p.e = p.slope;
        if (!(mode & 2)) p.kept = nowhere(p.kept);
        if (!(mode & 4)) p.direct = nowhere(p.direct);
        if (!(mode & 8)) p.e = nowhere(p.e);
        if (way)
            k->adjoint_steps(&p);
        else
            adjoint_apart(k, &p, g);
    }
    same("adjoint's e", size, slope1, slope2), same("adjoint's kept", size, direct1, direct2);
    same("what comes out of adjoint", size, last1, last2);
    const numbers all[] = {parameters, last1, slope1, slope2, direct1, direct2, last2, g};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) destroy(all[i]);
}

// mode: 1 e given, 2 steps' rows apart by more than their width
static void gradient_case(const dpcri_nn_kernels *k, const int64_t size[4], int mode) {
    const int64_t steps = size[1], rows = size[2], w = size[3], row = mode & 2 ? w + GAP : w,
                  count = steps * rows * row;
    numbers in = make(count, k->element), slope = make(count, k->element), g = make(count, k->element),
            to1 = make(steps * (w * w + w), k->element), to2 = copy_of(to1), e = make(rows * row, k->element);
    const int64_t shape[4] = {1, steps, rows, w};
    dpcri_gradient_steps p = {.steps = steps,
                              .rows = rows,
                              .width = w,
                              .scale = 0.3,
                              .in = {in.data, 0, rows * row, row},
                              .slope = {slope.data, 0, rows * row, row},
                              .g = {mode & 1 ? NULL : g.data, 0, rows * row, row},
                              .gradients = parameters_of(to2, shape)};
    k->gradient_steps(&p);
    for (int64_t s = 0; s < steps; s++) {
        void *to = at(to1, s * (w * w + w)), *from = mode & 1 ? at(slope, s * rows * row) : e.data;
        if (!(mode & 1))
            k->slope_pass(&(dpcri_slope_pass){.rows = rows,
                                              .width = w,
                                              .scale = 0.3,
                                              .g = at(g, s * rows * row),
                                              .g_row = row,
                                              .slope = at(slope, s * rows * row),
                                              .slope_row = row,
                                              .e = e.data,
                                              .e_row = row});
        k->slope_pass(&(dpcri_slope_pass){.rows = rows,
                                          .width = w,
                                          .scale = 1,
                                          .g = from,
                                          .g_row = row,
                                          .sum = (char *)to + w * w * (int64_t)k->element});
        k->product(&(dpcri_product){.m = w,
                                    .n = w,
                                    .depth = rows,
                                    .a = at(in, s * rows * row),
                                    .a_row = 1,
                                    .a_col = row,
                                    .b = from,
                                    .b_row = row,
                                    .init = to,
                                    .init_row = w,
                                    .c = to,
                                    .c_row = w});
    }
    same("gradients", shape, to1, to2);
    const numbers all[] = {in, slope, g, to1, to2, e};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) destroy(all[i]);
}

static void all_cases(const dpcri_nn_kernels *k, const int64_t size[4], int which) {
    for (int mode = 0; mode < 32; mode++) {
        if ((mode + which) % (size[3] > 17 ? 7 : 3)) continue;  // taking turns
        for (int activation = 0; activation < DPCRI_ACT_COUNT; activation++)
            if (activation == (mode + which) % DPCRI_ACT_COUNT || activation == DPCRI_ACT_RELU)
                forward_case(k, size, activation, mode, (mode / 3 + which) % 3);
        adjoint_case(k, size, mode);
        if (mode < 4) gradient_case(k, size, mode);
    }
}

static void many_steps_equal_single_ones(void **state) {
    (void)state;
    static const int64_t widths[] = {
        1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100, DPCRI_STEPS_WIDTH};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8}, lanes[] = {1, 2, 3, 4, 5, 6, 7, 8, MOST_LANES};
    int64_t run = 0;
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcri_nn_kernels *k = dpcri_nn_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            for (size_t w = 0; k && w < sizeof widths / sizeof *widths; w++)
                for (size_t i = 0; i < sizeof rows / sizeof *rows + sizeof lanes / sizeof *lanes; i++) {
                    const int by_rows = i < sizeof rows / sizeof *rows;
                    int64_t size[4] = {by_rows ? 2 : lanes[i - sizeof rows / sizeof *rows], STEPS,
                                       by_rows ? rows[i] : 1, widths[w]};
                    if (sampled(run++)) all_cases(k, size, (int)i);
                    size[1] = 1;
                    if (widths[w] == 8 && sampled(run++)) all_cases(k, size, (int)i);  // a way of its own
                }
        }
}

// More rows than the other two take at once.
static void gradients_take_any_number_of_short_width(void **state) {
    (void)state;
    static const int64_t rows[] = {DPCRI_STEPS_ROWS + 1, 16, 33};
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcri_nn_kernels *k = dpcri_nn_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            for (int64_t w = 1; k && w <= k->short_width; w++)
                for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                    for (int mode = 0; mode < 4; mode++) {
                        const int64_t size[4] = {1, STEPS, rows[i], w};
                        gradient_case(k, size, mode);
                    }
        }
}

static void no_rows_are_none(void **state) {
    (void)state;
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int64_t w = 5; w < 9; w++) {
            const dpcri_nn_kernels *k = dpcri_nn_kernels_at((dpcri_isa)level, DPCR_F32);
            if (!k) continue;
            const int64_t size[4] = {2, 3, 1, w};
            numbers weight = make(w * w + 64, k->element), z = make(6 * w, k->element), untouched = copy_of(z);
            dpcri_forward_steps p = {.lanes = 2, .steps = 3, .width = w, .parameters = {.data = weight.data}};
            p.bias = p.in = p.states = p.tape = grid_of(z, size);
            k->forward_steps(&p);
            same("without rows", size, z, untouched);
            destroy(weight), destroy(z), destroy(untouched);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_rows_are_none),
                                       cmocka_unit_test(many_steps_equal_single_ones),
                                       cmocka_unit_test(gradients_take_any_number_of_short_width)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
