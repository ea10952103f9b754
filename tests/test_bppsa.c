// SPDX-License-Identifier: MIT
// BPPSA: every length and limit on levels in the exact ring, random rectangular chains against the loop, operands in
// order, counts, bits that depend on nothing else, what is refused.
#include "budget.h"
#include "sparse_common.h"

static dpcr_context *contexts[4];  // by threads

static int open_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        assert_int_equal(dpcr_context_create(&options, &contexts[threads], NULL), DPCR_OK);
    }
    return 0;
}

static int close_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) dpcr_context_destroy(contexts[threads]);
    return 0;
}

// A chain with its numbers, [B][values] a step, contiguous.
typedef struct net {
    int64_t n, batch;
    dpcr_dtype dtype;
    bool whole;
    operand **operands;
    dpcr_transition *steps;
    unsigned char *shared;
    dpcr_array *values, *gradients, *want;
    dpcr_array last;
} net;

static int64_t width_of(const net *c, int64_t l) {
    return l < c->n ? c->steps[l].rows : c->n > 0 ? c->steps[c->n - 1].cols : 1;
}

static dpcr_array lines(dpcr_dtype dtype, int64_t rows, int64_t values) {
    return dpcr_array_make(room_for(rows * values), dtype, 2, (const int64_t[]){rows, values});
}

static net make_net(int64_t n, int64_t batch, dpcr_dtype dtype, int64_t least, int64_t most, bool mixed, bool whole) {
    net c = {.n = n, .batch = batch, .dtype = dtype, .whole = whole};
    c.operands = calloc((size_t)n + 1, sizeof *c.operands);
    c.steps = calloc((size_t)n + 1, sizeof *c.steps);
    c.shared = calloc((size_t)n + 1, 1);
    c.values = calloc((size_t)n + 1, sizeof *c.values);
    c.gradients = calloc((size_t)n + 1, sizeof *c.gradients);
    c.want = calloc((size_t)n + 1, sizeof *c.want);
    int64_t width = least + random_below(most - least + 1);
    for (int64_t l = 0; l < n; l++) {
        const dpcr_structure kind = mixed ? operand_kinds[random_below(3)] : DPCR_DENSE;
        const int64_t cols = kind == DPCR_DIAGONAL ? width : least + random_below(most - least + 1);
        c.operands[l] = make_operand(kind, width, cols, 500);
        c.steps[l] = c.operands[l]->t;
        c.shared[l] = mixed && random_below(3) == 0;
        c.values[l] = lines(dtype, c.shared[l] ? 1 : batch, c.operands[l]->entries);
        fill_values(dtype, whole, c.values[l].data, (c.shared[l] ? 1 : batch) * c.operands[l]->entries);
        width = cols;
    }
    for (int64_t l = 0; l < n; l++) {
        c.gradients[l] = lines(dtype, batch, width_of(&c, l));
        c.want[l] = lines(DPCR_F64, batch, width_of(&c, l));
    }
    c.last = lines(dtype, batch, width);
    fill_values(dtype, whole, c.last.data, batch * width);
    return c;
}

static void drop_net(net *c) {
    for (int64_t l = 0; l < c->n; l++) {
        drop_operand(c->operands[l]);
        free(c->values[l].data), free(c->gradients[l].data), free(c->want[l].data);
    }
    free(c->operands), free(c->steps), free(c->shared), free(c->values), free(c->gradients), free(c->want);
    free(c->last.data);
}

// Keeps random chains from growing or vanishing: multiplies a sequence's step, and what it gave, by a power of two.
static void scale_step(net *c, int64_t l, int64_t b) {
    const int64_t rows = c->steps[l].rows, entries = c->operands[l]->entries;
    double most = 0, *want = (double *)c->want[l].data + b * rows;
    for (int64_t i = 0; i < rows; i++) most = fmax(most, fabs(want[i]));
    if (c->whole || c->shared[l] || most == 0 || c->dtype == DPCR_U32) return;
    const double scale = exp2(-round(log2(most)));
    for (int64_t i = 0; i < rows; i++) want[i] *= scale;
    for (int64_t e = b * entries; e < (b + 1) * entries; e++)
        put(c->dtype, c->values[l].data, e, scale * get(c->dtype, c->values[l].data, e));
}

// The loop, on expanded matrices: exact in the ring (whose numbers a double holds), else in double.
static void plain_loop_of(net *c) {
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t l = c->n - 1; l >= 0; l--) {
            const int64_t rows = c->steps[l].rows, cols = c->steps[l].cols;
            const int64_t size = (int64_t)dpcr_dtype_size(c->dtype);
            char *dense = expand(&c->steps[l], c->dtype,
                                 (char *)c->values[l].data + (c->shared[l] ? 0 : b * c->operands[l]->entries) * size);
            for (int64_t i = 0; i < rows; i++) {
                double sum = 0;
                uint32_t ring = 0;
                for (int64_t j = 0; j < cols; j++) {
                    const double x = l == c->n - 1 ? get(c->dtype, c->last.data, b * cols + j)
                                                   : ((double *)c->want[l + 1].data)[b * cols + j];
                    if (c->dtype == DPCR_U32)
                        ring += ((uint32_t *)dense)[i * cols + j] * (uint32_t)x;
                    else
                        sum += get(c->dtype, dense, i * cols + j) * x;
                }
                ((double *)c->want[l].data)[b * rows + i] = c->dtype == DPCR_U32 ? ring : sum;
            }
            free(dense);
            scale_step(c, l, b);
        }
}

static dpcr_bppsa_plan *plan_of(const net *c, int threads, int levels, int lanes) {
    const dpcr_bppsa_shape shape = {.size = sizeof shape,
                                    .length = c->n,
                                    .batch = c->batch,
                                    .steps = c->steps,
                                    .shared = c->shared,
                                    .dtype = c->dtype};
    const dpcr_bppsa_options options = {.size = sizeof options, .levels = levels, .lanes = lanes};
    dpcr_bppsa_plan *plan = NULL;
    dpcr_error error = {0};
    if (dpcr_bppsa_plan_create(contexts[threads], &shape, &options, &plan, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    return plan;
}

static void execute(const net *c, const dpcr_bppsa_plan *plan) {
    const size_t bytes = dpcr_bppsa_plan_workspace(plan);
    unsigned char *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
    dpcr_error error = {0};
    memset(workspace, 0xff, bytes + 64);  // NaN: nothing may be taken over from before
    for (int64_t l = 0; l < c->n; l++)
        if (c->gradients[l].data)
            memset(c->gradients[l].data, 0xff, (size_t)(c->batch * width_of(c, l)) * dpcr_dtype_size(c->dtype));
    if (dpcr_bppsa_execute(plan, c->values, &c->last, c->gradients, workspace, bytes, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    for (size_t i = bytes; i < bytes + 64; i++) assert_int_equal(workspace[i], 0xff);
    free(workspace);
}

static void run(const net *c, int threads, int levels, int lanes) {
    dpcr_bppsa_plan *plan = plan_of(c, threads, levels, lanes);
    execute(c, plan);
    dpcr_bppsa_plan_destroy(plan);
}

// Largest difference from the loop at any boundary, relative to the largest gradient there of its sequence.
static double worst(const net *c) {
    double most = 0;
    for (int64_t l = 0; l < c->n; l++)
        for (int64_t b = 0; b < c->batch; b++) {
            const int64_t w = width_of(c, l);
            double scale = 0, error = 0;
            for (int64_t i = b * w; i < b * w + w; i++) {
                const double want = ((double *)c->want[l].data)[i], got = get(c->dtype, c->gradients[l].data, i);
                scale = fmax(scale, fabs(want));
                error = !(fabs(got - want) <= error) ? fabs(got - want) : error;
            }
            if (error > 0 || isnan(error)) most = !(error / scale <= most) ? error / scale : most;
        }
    return most;
}

static void exact_ring(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 130; n++) {
        net c = make_net(n, n % 7 == 0 ? 6 : 1, DPCR_U32, 1, 5, true, true);
        plain_loop_of(&c);
        for (int levels = 0; levels <= 9; levels++) {
            run(&c, 1 + levels % 3, levels, (int)(n % 2));
            if (worst(&c) != 0) fail_msg("length %d, levels %d", (int)n, levels);
        }
        drop_net(&c);
    }
}

// A22: lengths 0..999, any limit, steps 1..19 wide. A state may be a small difference of what a product
// holds: then the scan loses digits that the loop keeps, in a few chains of random numbers up to three. Short chains of
// whole numbers are exact.
static void random_chains(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++) {
        double most = 0;
        int beyond = 0;
        for (int i = 0; i < 120; i++) {
            const bool mixed = i % 2, whole = i % 3 == 0;
            const int64_t n = whole ? random_below(6) : mixed ? random_below(100) : i == 2 ? 999 : random_below(1000);
            net c = make_net(n, 1 + random_below(whole ? 20 : 3), all_dtypes[d], 1, 19, mixed, whole);
            plain_loop_of(&c);
            run(&c, 1 + i % 3, (int)random_below(22), i % 5 == 0);
            const double error = worst(&c), digits = d == 0 ? 1e-4 : 1e-12;
            if (!(error <= (whole ? 0 : 1000 * digits)))
                fail_msg("%s, length %d%s: %g", dpcr_dtype_name(all_dtypes[d]), (int)n, mixed ? ", mixed" : "", error);
            beyond += error > digits;
            most = fmax(most, error);
            drop_net(&c);
        }
        print_message("%s: largest relative error %.2g, %d of 120 beyond\n", dpcr_dtype_name(all_dtypes[d]), most,
                      beyond);
        assert_true(beyond <= 20);
    }
}

// Products that do not commute: g_0 = A_0 A_1 A_2 A_3 g_4, worked out by hand.
static void operands_in_order(void **state) {
    (void)state;
    const double up[] = {1, 1, 0, 1}, down[] = {1, 0, 1, 1}, two[] = {2, 0, 0, 1}, swap[] = {0, 1, 1, 0};
    const double *numbers[] = {up, down, two, swap};
    const double want[4][2] = {{17, 11}, {6, 11}, {6, 5}, {3, 5}};
    double out[4][2], last[] = {5, 3};
    dpcr_transition steps[4];
    dpcr_array values[4], gradients[4];
    const dpcr_array g = dpcr_array_make(last, DPCR_F64, 2, (const int64_t[]){1, 2});
    for (int l = 0; l < 4; l++) {
        steps[l] = dpcr_transition_square(DPCR_DENSE, 2, 0);
        values[l] = dpcr_array_make((void *)numbers[l], DPCR_F64, 2, (const int64_t[]){1, 4});
        gradients[l] = dpcr_array_make(out[l], DPCR_F64, 2, (const int64_t[]){1, 2});
    }
    for (int levels = 0; levels < 4; levels++) {
        const dpcr_bppsa_shape shape = {
            .size = sizeof shape, .length = 4, .batch = 1, .steps = steps, .dtype = DPCR_F64};
        const dpcr_bppsa_options options = {.size = sizeof options, .levels = levels};
        dpcr_bppsa_plan *plan = NULL;
        assert_int_equal(dpcr_bppsa_plan_create(contexts[1], &shape, &options, &plan, NULL), DPCR_OK);
        void *workspace = aligned_alloc(64, (dpcr_bppsa_plan_workspace(plan) + 63) / 64 * 64);
        assert_int_equal(
            dpcr_bppsa_execute(plan, values, &g, gradients, workspace, dpcr_bppsa_plan_workspace(plan), NULL), DPCR_OK);
        assert_memory_equal(out, want, sizeof want);
        free(workspace);
        dpcr_bppsa_plan_destroy(plan);
    }
}

// A sequence alone, in any company, on any number of threads, in bundles or not: the same bits.
static void bits_depend_on_nothing_else(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int levels = 0; levels < 4; levels++) {
            const int64_t batch = 37;
            const size_t size = dpcr_dtype_size(all_dtypes[d]);
            net c = make_net(23, batch, all_dtypes[d], 1, 60, true, false);
            run(&c, 1, levels, 0);
            dpcr_array *first = c.gradients;
            for (int variant = 0; variant < 3; variant++) {
                c.gradients = calloc((size_t)c.n, sizeof *c.gradients);
                for (int64_t l = 0; l < c.n; l++) c.gradients[l] = lines(c.dtype, batch, width_of(&c, l));
                run(&c, variant == 0 ? 3 : 2, levels, variant == 2);
                for (int64_t l = 0; l < c.n; l++) {
                    assert_memory_equal(c.gradients[l].data, first[l].data, (size_t)(batch * width_of(&c, l)) * size);
                    free(c.gradients[l].data);
                }
                free(c.gradients);
            }
            for (int64_t b = 0; b < batch; b += 7) {  // alone
                net one = c;
                one.batch = 1;
                one.values = calloc((size_t)c.n, sizeof *one.values);
                one.gradients = calloc((size_t)c.n, sizeof *one.gradients);
                for (int64_t l = 0; l < c.n; l++) {
                    one.values[l] = c.values[l];
                    one.values[l].shape[0] = 1;
                    if (!c.shared[l])
                        one.values[l].data = (char *)c.values[l].data + (size_t)(b * c.operands[l]->entries) * size;
                    one.gradients[l] = lines(c.dtype, 1, width_of(&c, l));
                }
                one.last.shape[0] = 1;
                one.last.data = (char *)c.last.data + (size_t)(b * width_of(&c, c.n)) * size;
                run(&one, 1, levels, 0);
                for (int64_t l = 0; l < c.n; l++) {
                    const size_t bytes = (size_t)width_of(&c, l) * size;
                    assert_memory_equal(one.gradients[l].data, (char *)first[l].data + (size_t)b * bytes, bytes);
                    free(one.gradients[l].data);
                }
                free(one.values), free(one.gradients);
            }
            c.gradients = first;
            drop_net(&c);
        }
}

// Strides, gradients that nobody wants, a gradient at the end that all share.
static void arrays_as_they_come(void **state) {
    (void)state;
    net c = make_net(9, 18, DPCR_F32, 4, 7, true, false);
    for (int64_t b = 1; b < 18; b++)
        memcpy((float *)c.last.data + b * width_of(&c, 9), c.last.data, (size_t)width_of(&c, 9) * 4);
    plain_loop_of(&c);
    float *unwanted = c.gradients[3].data;
    c.gradients[3].data = NULL;
    c.last.shape[0] = 1;
    const int64_t wide = width_of(&c, 5) + 3;
    float *apart = room_for(18 * wide), *narrow = c.gradients[5].data;
    c.gradients[5].data = apart;
    c.gradients[5].strides[0] = wide;
    dpcr_bppsa_plan *plan = plan_of(&c, 2, 3, 0);
    const size_t bytes = dpcr_bppsa_plan_workspace(plan);
    void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    for (int64_t i = 0; i < 18 * wide; i++) apart[i] = 77;
    assert_int_equal(dpcr_bppsa_execute(plan, c.values, &c.last, c.gradients, workspace, bytes, NULL), DPCR_OK);
    for (int64_t i = 0; i < 18 * wide; i++)
        if (i % wide >= wide - 3)
            assert_true(apart[i] == 77);
        else
            narrow[i / wide * (wide - 3) + i % wide] = apart[i];
    for (int64_t i = 0; i < 18 * width_of(&c, 3); i++)
        unwanted[i] = (float)((double *)c.want[3].data)[i];  // nothing to compare
    c.gradients[3].data = unwanted;
    c.gradients[5].data = narrow;
    assert_true(worst(&c) <= 1e-5);
    free(apart), free(workspace);
    dpcr_bppsa_plan_destroy(plan);
    drop_net(&c);
}

// NaN and infinity stay in their sequence, and get as far as in the loop.
static void not_finite(void **state) {
    (void)state;
    for (int levels = 0; levels < 5; levels++) {
        net c = make_net(20, 9, DPCR_F32, 1, 6, false, false), clean = c;
        run(&c, 2, levels, 0);
        dpcr_array *before = c.gradients;
        c.gradients = calloc(20, sizeof *c.gradients);
        for (int64_t l = 0; l < 20; l++) c.gradients[l] = lines(DPCR_F32, 9, width_of(&c, l));
        ((float *)c.values[11].data)[4 * c.operands[11]->entries] = NAN;
        run(&c, 2, levels, 0);
        for (int64_t l = 0; l < 20; l++) {
            const int64_t w = width_of(&c, l);
            for (int64_t b = 0; b < 9; b++)
                if (b != 4 || l > 11)
                    assert_memory_equal((float *)c.gradients[l].data + b * w, (float *)before[l].data + b * w,
                                        (size_t)w * 4);
                else
                    assert_true(isnan(((float *)c.gradients[l].data)[b * w]));
            free(c.gradients[l].data);
        }
        free(c.gradients);
        c.gradients = clean.gradients;
        drop_net(&c);
    }
}

// Gradients of the loop, in arrays of their own.
static dpcr_array *loop_of(net *c) {
    dpcr_array *const got = c->gradients;
    c->gradients = calloc((size_t)c->n, sizeof *c->gradients);
    for (int64_t l = 0; l < c->n; l++) c->gradients[l] = lines(c->dtype, c->batch, width_of(c, l));
    run(c, 1, 1, 1);
    dpcr_array *const loop = c->gradients;
    c->gradients = got;
    return loop;
}

static void drop_lines(dpcr_array *arrays, int64_t n) {
    for (int64_t l = 0; l < n; l++) free(arrays[l].data);
    free(arrays);
}

// Structural zeros that meet an infinity in one sequence, and products that overflow where the loop does not: the
// loop's gradients, whole numbers.
static void as_the_loop_beyond_the_finite(void **state) {
    (void)state;
    enum { STEPS = 13, BATCH = 11, WIDTH = 3 };
    static const int64_t offsets[] = {0, 1, 3, 6};
    static const int32_t columns[] = {0, 0, 1, 0, 1, 2};
    const dpcr_pattern triangle = {WIDTH, WIDTH, offsets, columns};
    for (int k = 0; k < 2 * 6 * 2; k++) {
        const bool overflows = k % 2;
        const int levels = k / 2 % 6;
        const dpcr_dtype dtype = k / 12 ? DPCR_F64 : DPCR_F32;
        const dpcr_transition step =
            overflows ? dpcr_transition_square(DPCR_DIAGONAL, WIDTH, 0) : dpcr_transition_csr(&triangle);
        const int64_t entries = dpcr_transition_values(&step);
        net c = make_net(STEPS, BATCH, dtype, WIDTH, WIDTH, false, true);
        for (int64_t l = 0; l < STEPS; l++) {
            c.steps[l] = step;
            c.values[l].shape[1] = c.values[l].strides[0] = entries;
            c.shared[l] = l % 3 == 0;
            if (c.shared[l]) c.values[l].shape[0] = 1;
            for (int64_t e = 0; overflows && e < BATCH; e++)
                put(dtype, c.values[l].data, e * entries + 2, dtype == DPCR_F32 ? 1e30 : 1e300);
        }
        for (int64_t b = 0; overflows && b < BATCH; b++) put(dtype, c.last.data, b * WIDTH + 2, 0);
        if (!overflows) put(dtype, c.last.data, 4 * WIDTH + 2, INFINITY);
        dpcr_array *const loop = loop_of(&c);
        for (int lanes = 0; lanes < 2; lanes++) {
            run(&c, 1 + lanes, levels, lanes);
            for (int64_t l = 0; l < STEPS; l++)
                for (int64_t i = 0; i < BATCH * WIDTH; i++) {
                    const double x = get(dtype, c.gradients[l].data, i), y = get(dtype, loop[l].data, i);
                    assert_true(x == y || (isnan(x) && isnan(y)));
                }
        }
        drop_lines(loop, STEPS);
        drop_net(&c);
    }
}

// An infinity that meets an empty row of the next step's is in no product; times the 0 that comes out of there it is
// NaN.
static void infinities_that_products_miss(void **state) {
    (void)state;
    enum { STEPS = 13, WIDTH = 2 };
    static const int64_t full[] = {0, 2, 4}, half[] = {0, 2, 2};
    static const int32_t columns[] = {0, 1, 0, 1};
    const dpcr_pattern square = {WIDTH, WIDTH, full, columns}, without = {WIDTH, WIDTH, half, columns};
    for (int64_t at = 0; at + 1 < STEPS; at++) {
        net c = make_net(STEPS, 3, DPCR_F32, WIDTH, WIDTH, false, true);
        for (int64_t l = 0; l < STEPS; l++) {
            c.steps[l] = dpcr_transition_csr(l == at + 1 ? &without : &square);
            c.values[l].shape[1] = c.values[l].strides[0] = dpcr_transition_values(&c.steps[l]);
        }
        ((float *)c.values[at].data)[4 + 1] = INFINITY;
        dpcr_array *const loop = loop_of(&c);
        run(&c, 1, 0, 0);
        assert_true(isnan(((float *)c.gradients[at].data)[WIDTH]));
        for (int64_t l = 0; l < STEPS; l++)
            for (int64_t i = 0; i < 3 * WIDTH; i++) {
                const float x = ((float *)c.gradients[l].data)[i], y = ((float *)loop[l].data)[i];
                assert_true(x == y || (isnan(x) && isnan(y)));
            }
        drop_lines(loop, STEPS);
        drop_net(&c);
    }
}

// Two steps shrink a large gradient, or one component of it, by more than the range of a product and two bring it back,
// at every place of the tree, in every other sequence.
static void what_products_lose(void **state) {
    (void)state;
    enum { STEPS = 21, BATCH = 19, WIDTH = 5 };
    for (int k = 0; k < 3 * 2 * 2 * 5; k++) {
        const dpcr_structure kind = operand_kinds[k % 3];
        const dpcr_dtype dtype = all_dtypes[k / 3 % 2];
        const bool one = k / 6 % 2;
        const int levels = k / 12;
        const double factor = dtype == DPCR_F32 ? 1e-25 : 1e-170, large = dtype == DPCR_F32 ? 1e30 : 1e250;
        for (int64_t first = k % 4; first < STEPS - 4; first += 4) {
            net c = make_net(STEPS, BATCH, dtype, WIDTH, WIDTH, false, false);
            for (int64_t l = 0; l < STEPS; l++) {
                drop_operand(c.operands[l]);
                c.operands[l] = make_operand(kind, WIDTH, WIDTH, 1000);
                c.steps[l] = c.operands[l]->t;
                const int64_t entries = c.operands[l]->entries, at = l - first;
                c.values[l].shape[1] = c.values[l].strides[0] = entries;
                for (int64_t e = 0; e < BATCH * entries; e++) {
                    const int64_t row = e % entries / (entries / WIDTH), column = e % entries % WIDTH;
                    const bool hit = e / entries % 2 && (!one || row == 2);
                    const double scale = at == 0 || at == 1 ? 1 / factor : at == 2 || at == 3 ? factor : 1;
                    put(dtype, c.values[l].data, e, row == column ? hit ? scale : 1 : 0);
                }
            }
            for (int64_t i = 0; i < BATCH * WIDTH; i++) put(dtype, c.last.data, i, large * (1 + (double)i));
            dpcr_array *const loop = loop_of(&c);
            run(&c, 1 + levels % 3, levels, k % 2);
            for (int64_t l = 0; l < STEPS; l++)
                for (int64_t i = 0; i < BATCH * WIDTH; i++) {
                    const double x = get(dtype, c.gradients[l].data, i), y = get(dtype, loop[l].data, i);
                    if (!(fabs(x - y) <= 1e-3 * fabs(y)))
                        fail_msg("%s %s levels %d first %d: gradient %d of boundary %d is %g, the loop's %g",
                                 dpcr_structure_name(kind), dpcr_dtype_name(dtype), levels, (int)first, (int)i, (int)l,
                                 x, y);
                }
            drop_lines(loop, STEPS);
            drop_net(&c);
        }
    }
}

// Diagonals behind sums that come near zero, as in networks: gradients that products made stay as they are, and are not
// what the first step makes of those before it, to the bit.
static void rounding_is_no_loss(void **state) {
    (void)state;
    enum { STEPS = 23, BATCH = 200, WIDTH = 20 };
    for (int d = 0; d < 2; d++) {
        net c = make_net(STEPS, BATCH, all_dtypes[d], WIDTH, WIDTH, false, false);
        const size_t size = dpcr_dtype_size(c.dtype);
        for (int64_t l = 0; l < STEPS; l += 2) {
            drop_operand(c.operands[l]);
            c.operands[l] = make_operand(DPCR_DIAGONAL, WIDTH, WIDTH, 0);
            c.steps[l] = c.operands[l]->t;
            c.values[l].shape[1] = c.values[l].strides[0] = WIDTH;
            for (int64_t e = 0; e < BATCH * WIDTH; e++) put(c.dtype, c.values[l].data, e, random_below(4) ? 1.1 : 0);
        }
        run(&c, 2, 0, 0);
        net first = c;
        dpcr_array made = lines(c.dtype, BATCH, WIDTH);
        first.n = 1, first.gradients = &made, first.last = c.gradients[1];
        run(&first, 1, 1, 0);
        int same = 0;
        for (int64_t b = 0; b < BATCH; b++)
            same += memcmp((char *)made.data + (size_t)(b * WIDTH) * size,
                           (char *)c.gradients[0].data + (size_t)(b * WIDTH) * size, WIDTH * size) == 0;
        assert_in_range(same, 0, 2);
        free(made.data);
        drop_net(&c);
    }
}

// Counts by their formulas; costs of dense steps by hand; levels add up.
static void counts(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 70; n++)
        for (int levels = 0; levels <= 7; levels++) {
            const int64_t w = 3;
            dpcr_transition steps[70];
            for (int64_t l = 0; l < n; l++) steps[l] = dpcr_transition_square(DPCR_DENSE, w, 0);
            const dpcr_bppsa_shape shape = {
                .size = sizeof shape, .length = n, .batch = 1, .steps = steps, .dtype = DPCR_F32};
            const dpcr_bppsa_options options = {.size = sizeof options, .levels = levels};
            dpcr_bppsa_plan *plan = NULL;
            assert_int_equal(dpcr_bppsa_plan_create(contexts[1], &shape, &options, &plan, NULL), DPCR_OK);
            const dpcr_bppsa_cost *cost = dpcr_bppsa_plan_cost(plan);
            int64_t products = 0, depth = 0, deepest = 0;
            double critical = 0;
            while ((INT64_C(1) << deepest) <= n) deepest++;
            const int64_t D = levels == 0 || levels - 1 > deepest ? deepest : levels - 1;
            for (int64_t d = 0; d < D; d++) {
                const int64_t ends = (n + 1) >> (d + 1);
                products += ends > 1 ? ends - 1 : 0;
                depth += (ends > 0) + (3 * (INT64_C(1) << d) <= n + 1);
                critical += (ends > 1 ? 54 : ends > 0 ? 18 : 0) + (3 * (INT64_C(1) << d) <= n + 1 ? 18 : 0);
            }
            const int64_t middle = ((n + 1) >> D) > 1 ? ((n + 1) >> D) - 1 : 0;
            assert_int_equal(cost->levels, D);
            assert_int_equal(cost->compositions, products);
            assert_int_equal(cost->applications, n);
            assert_int_equal(cost->depth, depth + middle);
            assert_true(cost->loop_flops == 18.0 * (double)n);
            assert_true(cost->flops == 18.0 * (double)n + 54.0 * (double)products);
            assert_true(cost->critical_flops == critical + 18.0 * (double)middle);
            assert_int_equal(cost->product_values, 9 * products);
            assert_true(cost->patterns <= D && (products == 0) == (cost->patterns == 0));  // one a level, used again
            double flops = 0, path = 0;
            for (int64_t i = 0; i < dpcr_bppsa_plan_levels(plan); i++) {
                flops += dpcr_bppsa_plan_level(plan, i)->flops;
                path += dpcr_bppsa_plan_level(plan, i)->critical_flops;
            }
            assert_true(flops == cost->flops && path == cost->critical_flops);
            assert_null(dpcr_bppsa_plan_level(plan, dpcr_bppsa_plan_levels(plan)));
            assert_null(dpcr_bppsa_plan_level(plan, -1));
            dpcr_bppsa_plan_destroy(plan);
        }
}

// Csr and diagonal: flops of a product are its matches, counted entry by entry on the expanded patterns.
static void sparse_costs(void **state) {
    (void)state;
    operand *o[4];
    dpcr_transition steps[4];
    const int64_t w[] = {20, 30, 30, 25, 15};
    for (int l = 0; l < 4; l++) {
        o[l] = make_operand(l == 1 ? DPCR_DIAGONAL : DPCR_CSR, w[l], w[l + 1], 100);
        steps[l] = o[l]->t;
    }
    // With one level: up, g_3 and A_1 A_2 (A_1 is diagonal: a match an entry of A_2); middle, g_1; down, g_2 and g_0.
    const dpcr_bppsa_shape shape = {.size = sizeof shape, .length = 4, .batch = 2, .steps = steps, .dtype = DPCR_F64};
    const dpcr_bppsa_options options = {.size = sizeof options, .levels = 2};
    dpcr_bppsa_plan *plan = NULL;
    assert_int_equal(dpcr_bppsa_plan_create(contexts[1], &shape, &options, &plan, NULL), DPCR_OK);
    const dpcr_bppsa_cost *cost = dpcr_bppsa_plan_cost(plan);
    const double e0 = (double)o[0]->entries, e1 = 30, e2 = (double)o[2]->entries, e3 = (double)o[3]->entries;
    assert_int_equal(cost->compositions, 1);
    assert_true(cost->loop_flops == 2 * (e0 + e1 + e2 + e3));
    assert_true(cost->flops == 2 * (e3 + e2) + 2 * e2 + 2 * (e2 + e0));
    assert_true(cost->critical_flops == 2 * fmax(e3, e2) + 2 * e2 + 2 * fmax(e2, e0));
    dpcr_bppsa_plan_destroy(plan);
    for (int l = 0; l < 4; l++) drop_operand(o[l]);
}

static void refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    dpcr_bppsa_plan *plan = NULL;
    dpcr_transition steps[] = {
        {DPCR_DENSE, 2, 3, 0, NULL}, {DPCR_DIAGONAL, 3, 3, 0, NULL}, {DPCR_DENSE, 3, 4, 0, NULL}};
    const dpcr_bppsa_shape good = {.size = sizeof good, .length = 3, .batch = 2, .steps = steps, .dtype = DPCR_F32};
    dpcr_bppsa_shape s = good;
    const dpcr_bppsa_options fine = {.size = sizeof fine};
    dpcr_bppsa_options o = fine;
#define PLAN(s, o) dpcr_bppsa_plan_create(contexts[1], s, o, &plan, &e)
    expect(dpcr_bppsa_plan_create(NULL, &good, &fine, &plan, &e), DPCR_ERROR_ARGUMENT, &e, "context is NULL");
    expect(PLAN(NULL, &fine), DPCR_ERROR_ARGUMENT, &e, "shape is NULL");
    expect(dpcr_bppsa_plan_create(contexts[1], &good, &fine, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "plan is NULL");
    s.size = 8;
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "shape.size");
    s = good, s.length = -1;
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "length -1");
    s = good, s.dtype = (dpcr_dtype)7;
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "dtype is 7");
    s = good, s.steps = NULL;
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "steps is NULL");
    o.size = 1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "options.size");
    o = (dpcr_bppsa_options){.size = offsetof(dpcr_bppsa_options, lanes), .lanes = 3, .most_bytes = 1};
    assert_int_equal(PLAN(&good, &o), DPCR_OK);  // an older caller's: what lies behind is not read
    dpcr_bppsa_plan_destroy(plan);
    o = fine, o.levels = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "levels");
    o = fine, o.lanes = 3;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "lanes");
    o = fine, o.most_bytes = 100;
    expect(PLAN(&good, &o), DPCR_ERROR_MEMORY, &e, "fewer levels");
    steps[1].rows = steps[1].cols = 5;
    expect(PLAN(&good, &fine), DPCR_ERROR_ARGUMENT, &e, "step 0 has 3 columns and step 1 5 rows");
    steps[1] = dpcr_transition_square(DPCR_SCALAR, 3, 0);
    expect(PLAN(&good, &fine), DPCR_ERROR_UNSUPPORTED, &e, "step 1 is scalar");
    const int64_t offsets[] = {0, 1, 2, 3};
    const int32_t columns[] = {0, 1, 3};
    const dpcr_pattern pattern = {3, 3, offsets, columns};
    steps[1] = dpcr_transition_csr(&pattern);
    expect(PLAN(&good, &fine), DPCR_ERROR_ARGUMENT, &e, "row 2 has column 3");
    const dpcr_transition tall = {DPCR_DENSE, INT64_C(1) << 40, 1, 0, NULL},
                          wide = {DPCR_DENSE, 1, INT64_C(1) << 40, 0, NULL}, vast[] = {wide, tall, wide, tall};
    s = (dpcr_bppsa_shape){.size = sizeof s, .length = 4, .batch = 1, .steps = vast, .dtype = DPCR_F64};
    expect(PLAN(&s, &fine), DPCR_ERROR_OVERFLOW, &e, "too many values");
    steps[1] = (dpcr_transition){DPCR_DIAGONAL, 3, 3, 0, NULL};
    assert_null(plan);
#undef PLAN
    assert_int_equal(dpcr_bppsa_plan_create(contexts[1], &good, NULL, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_bppsa_plan_workspace(plan);
    assert_true(bytes == dpcr_bppsa_plan_cost(plan)->workspace_bytes);
    unsigned char *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
    float data[8][64] = {{0}};
    const int64_t values[] = {6, 3, 12}, widths[] = {2, 3, 3};
    dpcr_array a[3], g[3], last = dpcr_array_make(data[6], DPCR_F32, 2, (const int64_t[]){2, 4});
    for (int l = 0; l < 3; l++) {
        a[l] = dpcr_array_make(data[l], DPCR_F32, 2, (const int64_t[]){2, values[l]});
        g[l] = dpcr_array_make(data[l + 3], DPCR_F32, 2, (const int64_t[]){2, widths[l]});
    }
#define RUN() dpcr_bppsa_execute(plan, a, &last, g, workspace, bytes, &e)
    assert_int_equal(RUN(), DPCR_OK);
    expect(dpcr_bppsa_execute(NULL, a, &last, g, workspace, bytes, &e), DPCR_ERROR_ARGUMENT, &e, "plan is NULL");
    expect(dpcr_bppsa_execute(plan, NULL, &last, g, workspace, bytes, &e), DPCR_ERROR_ARGUMENT, &e, "values is NULL");
    expect(dpcr_bppsa_execute(plan, a, &last, NULL, workspace, bytes, &e), DPCR_ERROR_ARGUMENT, &e,
           "gradients is NULL");
    expect(dpcr_bppsa_execute(plan, a, NULL, g, workspace, bytes, &e), DPCR_ERROR_ARGUMENT, &e, "last is NULL");
    expect(dpcr_bppsa_execute(plan, a, &last, g, workspace, bytes - 1, &e), DPCR_ERROR_MEMORY, &e, "wanted");
    expect(dpcr_bppsa_execute(plan, a, &last, g, NULL, bytes, &e), DPCR_ERROR_MEMORY, &e, "NULL");
    expect(dpcr_bppsa_execute(plan, a, &last, g, workspace + 4, bytes, &e), DPCR_ERROR_ARGUMENT, &e, "alignment");
    a[1].shape[1] = 4;
    expect(RUN(), DPCR_ERROR_ARGUMENT, &e, "values[1] is [2][4] float32, wanted [2][3]");
    a[1].shape[1] = 3, a[2].shape[0] = 1;
    expect(RUN(), DPCR_ERROR_ARGUMENT, &e, "values[2]");
    a[2].shape[0] = 2, g[0].strides[0] = 1;
    expect(RUN(), DPCR_ERROR_ARGUMENT, &e, "overlap");
    g[0].strides[0] = 2, g[2].dtype = DPCR_F64;
    expect(RUN(), DPCR_ERROR_ARGUMENT, &e, "gradients[2]");
    g[2].dtype = DPCR_F32, last.shape[1] = 3;
    expect(RUN(), DPCR_ERROR_ARGUMENT, &e, "last is");
#undef RUN
    free(workspace);
    dpcr_bppsa_plan_destroy(plan);
    dpcr_bppsa_plan_destroy(NULL);
}

static void memory_refused(void **state) {
    (void)state;
    net c = make_net(17, 3, DPCR_F32, 1, 12, true, false);
    int refused = 0, done = 0;
    for (int64_t grants = 0; !done && grants < 200; grants++) {
        budget left = {.left = grants};
        const dpcr_context_options options = budget_options(&left);
        dpcr_context *context = NULL;
        dpcr_error error = {0};
        dpcr_bppsa_plan *plan = NULL;
        if (dpcr_context_create(&options, &context, NULL) != DPCR_OK) continue;
        const dpcr_bppsa_shape shape = {.size = sizeof shape,
                                        .length = c.n,
                                        .batch = c.batch,
                                        .steps = c.steps,
                                        .shared = c.shared,
                                        .dtype = c.dtype};
        if (dpcr_bppsa_plan_create(context, &shape, NULL, &plan, &error) == DPCR_OK) {
            const int64_t at = left.left;
            execute(&c, plan);  // allocates nothing
            assert_int_equal(left.left, at);
            done = 1;
        } else {
            expect(error.status, DPCR_ERROR_MEMORY, &error, "refused");
            assert_null(plan);
            refused++;
        }
        dpcr_bppsa_plan_destroy(plan);
        dpcr_context_destroy(context);
        assert_int_equal(left.live, 0);
    }
    assert_true(done && refused > 10);
    drop_net(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_ring),
                                       cmocka_unit_test(random_chains),
                                       cmocka_unit_test(operands_in_order),
                                       cmocka_unit_test(bits_depend_on_nothing_else),
                                       cmocka_unit_test(arrays_as_they_come),
                                       cmocka_unit_test(not_finite),
                                       cmocka_unit_test(as_the_loop_beyond_the_finite),
                                       cmocka_unit_test(infinities_that_products_miss),
                                       cmocka_unit_test(what_products_lose),
                                       cmocka_unit_test(rounding_is_no_loss),
                                       cmocka_unit_test(counts),
                                       cmocka_unit_test(sparse_costs),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(memory_refused)};
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
