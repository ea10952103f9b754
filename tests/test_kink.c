// SPDX-License-Identifier: MIT
// ReLU's kink: chains whose units are closed at a first guess and open in the chain, or the other way round, are not
// called solved, by windows, by sweeps over all states or by auto. Beside the loop, over starts far below the
// tolerance.
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "solving.h"

#include "deeppcr/deeppcr.h"
#include "noise.h"
#include "sampled.h"

typedef struct kinked {
    dpcr_dtype dtype;
    int64_t width, length, own;  // own: each step has its W
    double scale, tolerance;     // 0: no residual; the default
    double *weight, *x, *z0;
} kinked;

static kinked make(dpcr_dtype dtype, int64_t w, int64_t length, bool own, double start) {
    kinked k = {.dtype = dtype, .width = w, .length = length, .own = own};
    k.weight = calloc((size_t)((own ? length : 1) * w * w), sizeof(double));
    k.x = calloc((size_t)(length * w), sizeof(double)), k.z0 = calloc((size_t)w, sizeof(double));
    for (int64_t i = 0; i < w; i++) k.z0[i] = start * (double)(1 + i % 3);
    return k;
}

static void *as(dpcr_dtype dtype, double *numbers, int64_t count) {
    for (int64_t i = 0; dtype == DPCR_F32 && i < count; i++) ((float *)numbers)[i] = (float)numbers[i];
    return numbers;
}

typedef struct way {
    dpcr_method method;
    dpcr_scheme scheme;  // AUTO: by windows, where there are some
    int64_t window;
    dpcr_guess guess;
} way;

static const way ways[] = {
    {.method = DPCR_METHOD_NEWTON},
    {.method = DPCR_METHOD_SHOOTING},
    {.method = DPCR_METHOD_AUTO},
    {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL},
    {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_PCR},
    {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL, .window = 11},
    {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL, .guess = DPCR_GUESS_STATE},
    {.method = DPCR_METHOD_SHOOTING, .scheme = DPCR_SCHEME_SEQUENTIAL},
    {.method = DPCR_METHOD_SHOOTING, .scheme = DPCR_SCHEME_SEQUENTIAL, .guess = DPCR_GUESS_STATE},
};

// The chain of k's numbers, as its dtype has them, for so many sequences; true: windows serve it.
static bool open_cell(kinked *k, int64_t rows, dpcr_context *context, dpcr_cell **cell, dpcr_steps *steps) {
    const int64_t w = k->width, L = k->length, shape[3] = {L, w, w}, states[3] = {L, rows, w};
    const int64_t weights = (k->own ? L : 1) * w * w;
    dpcr_array input = dpcr_array_make(as(k->dtype, k->x, L * w), k->dtype, 3, states);
    input.strides[0] = w, input.strides[1] = 0;  // the same for all
    const dpcr_cell_options o = {
        .size = sizeof o,
        .kind = DPCR_CELL_DENSE,
        .dtype = k->dtype,
        .length = L,
        .batch = rows,
        .width = w,
        .activation = DPCR_ACT_RELU,
        .scale = k->scale,
        .weight = dpcr_array_make(as(k->dtype, k->weight, weights), k->dtype, k->own ? 3 : 2, shape + !k->own),
        .input = input};
    *steps = (dpcr_steps){.size = sizeof *steps};
    assert_int_equal(dpcr_cell_create(context, &o, cell, NULL), DPCR_OK);
    assert_int_equal(dpcr_cell_steps(*cell, steps, NULL), DPCR_OK);
    as(k->dtype, k->z0, w);
    return steps->window != NULL;
}

static dpcr_solve_options options_of(const way *by, const kinked *k) {
    return (dpcr_solve_options){.size = sizeof(dpcr_solve_options),
                                .method = by->method,
                                .scheme = by->scheme,
                                .window = by->window,
                                .guess = by->guess,
                                .atol = k->tolerance,
                                .rtol = k->tolerance};
}

// Every way: where it says that it agrees with the loop, it does.
static void claims(const char *what, kinked *k) {
    dpcr_context *const context = solving_context(1);
    dpcr_cell *cell;
    dpcr_steps steps;
    assert_int_equal(open_cell(k, 1, context, &cell, &steps), k->width <= 4);
    const chain c = {.length = k->length, .batch = 1, .width = k->width, .dtype = k->dtype};
    const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
    solved by_loop = solve_steps(context, &steps, &c, k->z0, &loop, NULL, 0);
    for (size_t m = 0; m < sizeof ways / sizeof *ways; m++) {
        const dpcr_solve_options by = options_of(&ways[m], k);
        solved s = solve_steps(context, &steps, &c, k->z0, &by, NULL, 0);
        assert_int_equal(s.status, DPCR_OK);
        const double error = largest_error(&c, s.z, by_loop.z), most = fmax(3 * k->tolerance, 1e-4);
        if (s.reasons[0] != DPCR_REASON_RESIDUAL_ONLY && !(error <= most))
            fail_msg("%s, way %d, dtype %d, w %d: reason %d, and off by %g", what, (int)m, (int)k->dtype, (int)k->width,
                     s.reasons[0], error);
        solved_free(&s);
    }
    solved_free(&by_loop);
    dpcr_cell_destroy(cell);
    dpcr_context_destroy(context);
    free(k->weight), free(k->x), free(k->z0);
}

// W so many times a cycle of the components: from the first guess, 0, nothing grows.
static void closed_units_open(void **state) {
    int64_t run = 0;
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int64_t w = 1; w <= 6; w++)
            for (int slow = 0; slow < 2; slow++) {
                if (!sampled(run++)) continue;
                kinked k = make((dpcr_dtype)dtype, w, slow ? 1500 : 20, false, 1e-9);
                for (int64_t i = 0; i < w; i++) k.weight[i * w + (i + 1) % w] = slow ? 1.02 : 5;
                k.tolerance = 1e-4;
                claims(slow ? "slow growth" : "growth", &k);
            }
}

// A tiny number that grows beside a large one that stays: each counts by itself.
static void tiny_numbers_grow_beside_large_ones(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int slow = 0; slow < 2; slow++) {
            kinked k = make((dpcr_dtype)dtype, 2, slow ? 1500 : 20, false, dtype == DPCR_F32 ? 1e-9 : 1e-17);
            k.weight[0] = 1, k.weight[3] = slow ? dtype == DPCR_F32 ? 1.02 : 1.04 : dtype == DPCR_F32 ? 5 : 12;
            k.z0[0] = 1;
            k.tolerance = 1e-4;
            claims("beside", &k);
        }
}

// A chain that dies at every 32nd step, of which the ends of chunks are.
static void dead_chains_stay_dead(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int fine = 0; fine < 2; fine++) {
            kinked k = make((dpcr_dtype)dtype, 1, 1500, false, fine ? 1e-12 : 1e-6);
            k.weight[0] = 1.02;
            for (int64_t l = 31; l < k.length; l += 32) k.x[l] = fine ? -1e-12 : -9.7e-6;
            k.tolerance = fine ? 0 : 2.1e-4;
            claims(fine ? "dead, default tolerance" : "dead", &k);
        }
}

// With the residual an open unit of W = -1 takes all of an error away, and a closed one keeps it.
static void residuals_keep_what_opens(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
        kinked k = make((dpcr_dtype)dtype, 1, 128, true, 1e-11);
        for (int64_t l = 0; l < k.length; l++) k.weight[l] = l % 2 ? 1 : -1;
        k.scale = 1;
        claims("residual", &k);
        for (int run = 0; run < 40; run++) {
            if (!sampled(run)) continue;
            kinked drawn = make((dpcr_dtype)dtype, 1 + run % 6, 128, true, 1e-9);
            for (int64_t i = 0; i < drawn.length * drawn.width * drawn.width; i++) drawn.weight[i] = noise(1.7);
            drawn.scale = 0.5;
            claims("drawn", &drawn);
        }
    }
}

// Of a tiny state all units may be open, and W W = 0; with one closed it grows.
static void products_that_vanish_are_no_agreement(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
        kinked k = make((dpcr_dtype)dtype, 2, 200, false, 0);
        k.weight[0] = 1.2, k.weight[1] = 1.44, k.weight[2] = -1, k.weight[3] = -1.2;
        k.z0[0] = 1e-11;
        claims("products", &k);
    }
}

// A number below the rounding of the terms that it is a difference of, K - K: exact in the loop, and then it grows.
// From a guess of zeros by twins that come to 1, and, kicked at step 5, beside one that stays there.
static void units_turn_by_less_than_rounding(void **state) {
    int64_t run = 0;
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (double times = 1; times <= 4096; times *= 16)
            for (int twins = 0; twins < 2; twins++) {
                if (!sampled(run++)) continue;
                const double tiny = dtype == DPCR_F32 ? 1e-6 : 1e-11;
                kinked k = make((dpcr_dtype)dtype, 5, twins ? 60 : 400, false, 0);
                k.z0[0] = 1;
                if (twins) {
                    k.z0[1] = 1, k.z0[2] = tiny;
                    k.weight[0] = k.weight[6] = 0.5;
                    k.weight[10] = times, k.weight[11] = -times, k.weight[12] = 1.5;
                    for (int64_t l = 0; l < k.length; l++) k.x[5 * l] = k.x[5 * l + 1] = 0.5;
                } else {
                    k.weight[0] = 1, k.weight[5] = times, k.weight[6] = 1.1, k.weight[7] = 1;
                    for (int64_t l = 0; l < k.length; l++) k.x[5 * l + 1] = -times;
                    k.x[5 * 4 + 2] = tiny;
                }
                claims(twins ? "twins" : "a kick", &k);
            }
}

// A row of W of powers of two, whose bits add up to those of the closed unit's zeros. Of units 0 to 3, which stay at 1,
// a kick makes unit 5 tiny, its terms are not, and unit 6 keeps a large multiple of it.
static void sums_of_bits_are_told_apart(void **state) {
    (void)state;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int low = 1; low <= 2; low++) {
            const double a = low, row[4] = {a, 4 / a, -a, -4 / a};
            kinked k = make((dpcr_dtype)dtype, 7, 40, false, 0);
            for (int64_t i = 0; i < 4; i++) k.z0[i] = 1, k.weight[5 * 7 + i] = row[i];
            for (int64_t l = 0; l < k.length; l++)
                for (int64_t i = 0; i < 4; i++) k.x[7 * l + i] = 1;
            k.x[4 * 7 + 4] = dtype == DPCR_F32 ? 0x1p-19 : 0x1p-48, k.weight[4] = 1;
            k.weight[6 * 7 + 5] = dtype == DPCR_F32 ? 1e6 : 1e14, k.weight[6 * 7 + 6] = 1;
            claims("powers of two", &k);
        }
}

// Chains that creep and others in a batch: what is finished in order has the loop's bits, and each has the bits and the
// reason that it has alone.
static void batches_are_sequences_alone(void **state) {
    (void)state;
    enum { B = 5, W = 6, L = 120 };
    static const struct {
        dpcr_method method;
        int64_t window;
    } sweeping[] = {{DPCR_METHOD_NEWTON, 0}, {DPCR_METHOD_NEWTON, 40}, {DPCR_METHOD_SHOOTING, 0}};
    int left = 0, found = 0;
    dpcr_context *const context = solving_context(2);
    for (int run = 0; run < 24; run++) {
        kinked k = make(DPCR_F64, W, L, true, 1);
        for (int64_t i = 0; i < L * W * W; i++) k.weight[i] = noise(0.3 + 0.08 * run / 3);
        for (int64_t i = 0; i < (run % 2 ? L : 30) * W; i++) k.x[i] = noise(0.5);
        double z0[B * W];
        for (int64_t i = 0; i < B * W; i++) z0[i] = noise(1) * pow(10, (double)(-3 * (i / W)));
        dpcr_steps many, one;
        dpcr_cell *all, *alone;
        open_cell(&k, B, context, &all, &many), open_cell(&k, 1, context, &alone, &one);
        const chain c = {.length = L, .batch = B, .width = W, .dtype = DPCR_F64},
                    single = {.length = L, .batch = 1, .width = W, .dtype = DPCR_F64};
        const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
        solved by_loop = solve_steps(context, &many, &c, z0, &loop, NULL, 0);
        for (size_t m = 0; m < sizeof sweeping / sizeof *sweeping; m++) {
            const dpcr_solve_options by = {.size = sizeof by,
                                           .method = sweeping[m].method,
                                           .scheme = DPCR_SCHEME_SEQUENTIAL,
                                           .window = sweeping[m].window};
            solved s = solve_steps(context, &many, &c, z0, &by, NULL, 0);
            for (int64_t b = 0; b < B; b++) {
                solved apart = solve_steps(context, &one, &single, z0 + b * W, &by, NULL, 0);
                assert_int_equal(apart.reasons[0], s.reasons[b]);
                const bool bits = s.reasons[b] == DPCR_REASON_FALLBACK || s.reasons[b] == DPCR_REASON_EXACT;
                left += s.reasons[b] == DPCR_REASON_FALLBACK, found += s.reasons[b] == DPCR_REASON_CONVERGED;
                for (int64_t l = 0; l < L; l++) {
                    const double *const z = (double *)s.z + (l * B + b) * W, *const y =
                                                                                 (double *)by_loop.z + (l * B + b) * W;
                    assert_memory_equal(z, (double *)apart.z + l * W, W * sizeof *z);
                    if (bits) assert_memory_equal(z, y, W * sizeof *z);
                }
                solved_free(&apart);
            }
            solved_free(&s);
        }
        solved_free(&by_loop);
        dpcr_cell_destroy(all), dpcr_cell_destroy(alone);
        free(k.weight), free(k.x), free(k.z0);
    }
    assert_true(left > 20 && found > 20);
    dpcr_context_destroy(context);
}

// That a chain ends for this reason, after so many sweeps at most.
static void takes(const char *what, kinked *k, const way *by, int64_t chunk, dpcr_reason reason, int sweeps) {
    dpcr_context *const context = solving_context(1);
    dpcr_cell *cell;
    dpcr_steps steps;
    open_cell(k, 1, context, &cell, &steps);
    const chain c = {.length = k->length, .batch = 1, .width = k->width, .dtype = k->dtype};
    dpcr_solve_options options = options_of(by, k);
    options.chunk = chunk;
    solved s = solve_steps(context, &steps, &c, k->z0, &options, NULL, 0);
    if (s.reasons[0] != reason || s.sweeps[0] > sweeps)
        fail_msg("%s, method %d, window %d, chunk %d, dtype %d, w %d: %s after %d sweeps", what, by->method,
                 (int)by->window, (int)chunk, (int)k->dtype, (int)k->width, dpcr_reason_name(s.reasons[0]),
                 s.sweeps[0]);
    solved_free(&s);
    dpcr_cell_destroy(cell);
    dpcr_context_destroy(context);
    free(k->weight), free(k->x), free(k->z0);
}

// Networks as they are: what has no number behind a kink that matters takes no more sweeps than others.
static void usual_chains_converge(void **state) {
    (void)state;
    const struct {
        way by;
        int64_t chunk;
        int sweeps;
    } cases[] = {
        {{.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL}, 0, 20},
        {{.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL, .guess = DPCR_GUESS_STEP}, 0, 20},
        {{.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL, .window = 40}, 0, 60},
        {{.method = DPCR_METHOD_SHOOTING, .scheme = DPCR_SCHEME_SEQUENTIAL}, 0, 8},
        {{.method = DPCR_METHOD_SHOOTING, .scheme = DPCR_SCHEME_SEQUENTIAL}, 3, 12},
    };
    int64_t run = 0;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int64_t w = 5; w <= 32; w += 27)
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                if (!sampled(run++)) continue;
                kinked k = make((dpcr_dtype)dtype, w, 200, true, 1);
                const double size = 0.8 * sqrt(6 / (double)w);
                for (int64_t j = 0; j < k.length * w * w; j++) k.weight[j] = noise(size);
                for (int64_t j = 0; j < k.length * w; j++) k.x[j] = noise(0.5);
                takes("usual", &k, &cases[i].by, cases[i].chunk, DPCR_REASON_CONVERGED, cases[i].sweeps);
            }
    // Chunks that forget where they began: what their last steps round is more than what comes through them.
    kinked k = make(DPCR_F64, 32, 1000, true, 1);
    for (int64_t j = 0; j < k.length * 32 * 32; j++) k.weight[j] = noise(0.5 * sqrt(6 / 32.0));
    for (int64_t j = 0; j < k.length * 32; j++) k.x[j] = noise(0.5);
    takes("forgetting", &k, &cases[3].by, 0, DPCR_REASON_CONVERGED, 3);
    // Fronts may go step by step for long before the chain is found; or it is found soon, and small.
    k = make(DPCR_F64, 16, 300, true, 1);
    for (int64_t j = 0; j < k.length * 16 * 16; j++) k.weight[j] = noise(0.95 * sqrt(6 / 16.0));
    for (int64_t j = 0; j < k.length * 16; j++) k.x[j] = noise(0.5);
    takes("nearly neutral", &k, &cases[0].by, 0, DPCR_REASON_CONVERGED, 100);
    k = make(DPCR_F32, 32, 1000, true, 4e-6);
    for (int64_t j = 0; j < k.length * 32 * 32; j++) k.weight[j] = noise(0.85 * sqrt(6 / 32.0));
    for (int64_t j = 0; j < k.length * 32; j++) k.x[j] = noise(2e-6);
    takes("small", &k, &cases[0].by, 0, DPCR_REASON_CONVERGED, 40);
}

// Without biases numbers die away, each right only beside itself: a step a sweep, which is left to the loop soon.
static void chains_that_creep_are_left(void **state) {
    (void)state;
    kinked k = make(DPCR_F32, 32, 1000, true, 1);
    for (int64_t j = 0; j < k.length * 32 * 32; j++) k.weight[j] = noise(0.5 * sqrt(6 / 32.0));
    const way by = {.method = DPCR_METHOD_NEWTON, .scheme = DPCR_SCHEME_SEQUENTIAL};
    takes("creeping", &k, &by, 0, DPCR_REASON_FALLBACK, 60);
}

static void positive(const chain *c, int64_t l, int64_t b, const double *in, double *out, double *j) {
    (void)b;
    const double a = c->jacobian.structure == DPCR_ZERO ? 0 : c->jacobian.structure == DPCR_IDENTITY ? 1 : 0.9;
    for (int64_t i = 0; i < c->width; i++) out[i] = fmax(0, a * in[i] + 0.1 * (double)(1 + l % 3));
    for (int64_t i = 0; j && i < c->width * c->width; i++)
        j[i] = i % (c->width + 1) == 0 && out[i / c->width] > 0 ? a : 0;
}

// J of every structure, sequences side by side, windows and none, kinks of either kind.
static void structures_converge(void **state) {
    (void)state;
    static const dpcr_structure structures[] = {DPCR_ZERO,     DPCR_IDENTITY, DPCR_SCALAR,
                                                DPCR_DIAGONAL, DPCR_BLOCK,    DPCR_DENSE};
    dpcr_context *const context = solving_context(2);
    const double z0[3 * 6] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1e-9};
    for (size_t s = 0; s < sizeof structures / sizeof *structures; s++)
        for (int kinks = DPCR_KINKS_CURVED; kinks <= DPCR_KINKS_AFFINE; kinks++)
            for (int64_t window = 0; window < 20; window += 7) {
                chain c = {.step = positive, .length = 50, .batch = 3, .width = 6, .dtype = DPCR_F64};
                c.jacobian = dpcr_transition_square(structures[s], 6, structures[s] == DPCR_BLOCK ? 2 : 0);
                dpcr_steps steps = chain_steps(&c);
                steps.kinks = (dpcr_kinks)kinks;
                const dpcr_solve_options by = {.size = sizeof by,
                                               .method = DPCR_METHOD_NEWTON,
                                               .scheme = DPCR_SCHEME_SEQUENTIAL,
                                               .window = window};
                solved got = solve_steps(context, &steps, &c, z0, &by, NULL, 0);
                void *const loop = loop_of(&c, z0);
                assert_int_equal(got.status, DPCR_OK);
                for (int b = 0; b < 3; b++)
                    if ((got.reasons[b] != DPCR_REASON_CONVERGED && got.reasons[b] != DPCR_REASON_EXACT) ||
                        got.sweeps[b] > (window ? 30 : 3))
                        fail_msg("structure %d, window %d: reason %d after %d sweeps", (int)structures[s], (int)window,
                                 got.reasons[b], got.sweeps[b]);
                assert_true(largest_error(&c, got.z, loop) < 1e-14);
                free(loop);
                solved_free(&got);
            }
    dpcr_context_destroy(context);
}

// Chains of one's own say that f has kinks: cells and models of ReLUs, and what they are between them.
static void chains_tell_their_kinks(void **state) {
    (void)state;
    dpcr_context *const context = solving_context(1);
    for (int activation = DPCR_ACT_IDENTITY; activation < DPCR_ACT_COUNT; activation++)
        for (int form = 0; form < 6; form++) {
            const bool norm = form % 3 == 1, two = form % 3 == 2, residual = form > 2 || two;
            const dpcr_model_options o = {.size = sizeof o,
                                          .architecture = residual ? DPCR_RESNET : DPCR_MLP,
                                          .layers = 2,
                                          .width = 5,
                                          .activation = (dpcr_activation)activation,
                                          .branch = two ? DPCR_BRANCH_TWO_LAYER : DPCR_BRANCH_LINEAR,
                                          .layer_norm = norm};
            dpcr_model *model = NULL;
            dpcr_steps steps = {.size = sizeof steps};
            if (dpcr_model_create(context, &o, &model, NULL) != DPCR_OK) continue;  // not of every form
            assert_int_equal(dpcr_model_steps(model, 1, &steps, NULL), DPCR_OK);
            assert_int_equal(steps.kinks, activation != DPCR_ACT_RELU ? DPCR_KINKS_NONE
                                          : norm                      ? DPCR_KINKS_CURVED
                                                                      : DPCR_KINKS_AFFINE);
            dpcr_model_destroy(model);
        }
    chain c = {.step = positive, .length = 5, .batch = 1, .width = 2, .dtype = DPCR_F64};
    dpcr_steps steps = chain_steps(&c);
    for (int kinks = -1; kinks <= 3; kinks++) {
        dpcr_solve_plan *plan = NULL;
        steps.kinks = (dpcr_kinks)kinks;
        assert_int_equal(dpcr_solve_plan_create(context, &steps, NULL, &plan, NULL),
                         kinks < 0 || kinks > 2 ? DPCR_ERROR_ARGUMENT : DPCR_OK);
        dpcr_solve_plan_destroy(plan);
    }
    dpcr_context_destroy(context);
}

// dpcr_steps_check of layers that say what they are, or something else.
static void the_check_tells_of_kinks(void **state) {
    (void)state;
    dpcr_context *const context = solving_context(1);
    float z0[2 * 5] = {0.3f, -0.2f, 0.9f, 0.1f, -0.7f, 1, 2, -3, 4, -5};
    const dpcr_array start = dpcr_array_make(z0, DPCR_F32, 2, (const int64_t[]){2, 5});
    for (int activation = DPCR_ACT_IDENTITY; activation < DPCR_ACT_COUNT; activation++)
        for (int residual = 0; residual < 2; residual++)
            for (int kinks = DPCR_KINKS_NONE; kinks <= DPCR_KINKS_AFFINE; kinks++) {
                const dpcr_model_options o = {.size = sizeof o,
                                              .architecture = residual ? DPCR_RESNET : DPCR_MLP,
                                              .layers = 30,
                                              .width = 5,
                                              .activation = (dpcr_activation)activation,
                                              .seed = 3};
                dpcr_model *model = NULL;
                dpcr_steps steps = {.size = sizeof steps};
                dpcr_error error = {0};
                assert_int_equal(dpcr_model_create(context, &o, &model, NULL), DPCR_OK);
                assert_int_equal(dpcr_model_steps(model, 2, &steps, NULL), DPCR_OK);
                steps.kinks = (dpcr_kinks)kinks;
                const bool bends = activation != DPCR_ACT_RELU && activation != DPCR_ACT_IDENTITY;
                const bool wrong =
                    (activation == DPCR_ACT_RELU && kinks == DPCR_KINKS_NONE) || (bends && kinks == DPCR_KINKS_AFFINE);
                const dpcr_status status = dpcr_steps_check(context, &steps, &start, 1e-4, &error);
                if (status != (wrong ? DPCR_ERROR_CALLBACK : DPCR_OK))
                    fail_msg("%s of %s, kinks %d: %s", residual ? "resnet" : "mlp", dpcr_activation_name(o.activation),
                             kinks, status == DPCR_OK ? "right" : error.text);
                if (wrong) assert_non_null(strstr(error.text, "kinks"));
                dpcr_model_destroy(model);
            }
    // In double, of one's own; a program that was built before there were kinks is asked for none.
    chain bent = {.step = positive,
                  .length = 40,
                  .batch = 1,
                  .width = 3,
                  .dtype = DPCR_F64,
                  .jacobian = dpcr_transition_square(DPCR_DENSE, 3, 0)};
    chain smooth = tanh_chain(40, 1, 3, DPCR_F64);
    chain affine = {.step = step_affine,
                    .length = 40,
                    .batch = 1,
                    .width = 3,
                    .dtype = DPCR_F64,
                    .parameters = (const double[]){0.9, 0.1}};
    chain *const chains[] = {&bent, &smooth, &affine};
    double from[3] = {0.3, -0.2, 0.1};
    const dpcr_array first = dpcr_array_make(from, DPCR_F64, 2, (const int64_t[]){1, 3});
    for (int i = 0; i < 3; i++)
        for (int kinks = DPCR_KINKS_NONE; kinks <= DPCR_KINKS_AFFINE; kinks++) {
            dpcr_steps steps = chain_steps(chains[i]);
            steps.kinks = (dpcr_kinks)kinks;
            const bool wrong = (i == 0 && kinks == DPCR_KINKS_NONE) || (i == 1 && kinks == DPCR_KINKS_AFFINE);
            assert_int_equal(dpcr_steps_check(context, &steps, &first, 1e-4, NULL),
                             wrong ? DPCR_ERROR_CALLBACK : DPCR_OK);
            steps.size = offsetof(dpcr_steps, kinks);
            assert_int_equal(dpcr_steps_check(context, &steps, &first, 1e-4, NULL), DPCR_OK);
        }
    dpcr_context_destroy(context);
}

// An RNN of ReLUs from a state far below the tolerance, without inputs: as closed_units_open.
static void networks_open(void **state) {
    (void)state;
    enum { T = 24, H = 6 };
    dpcr_context *const context = solving_context(1);
    const dpcr_recurrent_options options = {
        .size = sizeof options, .kind = DPCR_RNN_RELU, .dtype = DPCR_F64, .inputs = 1, .hidden = H, .no_bias = 1};
    dpcr_recurrent *network = NULL;
    assert_int_equal(dpcr_recurrent_create(context, &options, &network, NULL), DPCR_OK);
    int64_t count = 0;
    double *const weights = dpcr_recurrent_vector(network, &count);
    assert_int_equal(count, H + H * H);
    memset(weights, 0, (size_t)count * sizeof *weights);
    for (int64_t i = 0; i < H; i++) weights[H + i * H + (i + 1) % H] = 5;
    double x[T] = {0}, h0[H], y[2][T * H];
    for (int64_t i = 0; i < H; i++) h0[i] = 1e-14;
    const int64_t in[3] = {T, 1, 1}, first[3] = {1, 1, H}, out[3] = {T, 1, H};
    for (int newton = 0; newton < 2; newton++) {
        const dpcr_recurrent_plan_options by = {
            .size = sizeof by,
            .length = T,
            .batch = 1,
            .solve = {.size = sizeof by.solve, .method = newton ? DPCR_METHOD_NEWTON : DPCR_METHOD_SEQUENTIAL}};
        const dpcr_recurrent_pass pass = {.size = sizeof pass,
                                          .x = dpcr_array_make(x, DPCR_F64, 3, in),
                                          .h0 = dpcr_array_make(h0, DPCR_F64, 3, first),
                                          .y = dpcr_array_make(y[newton], DPCR_F64, 3, out)};
        dpcr_recurrent_plan *plan = NULL;
        dpcr_error error = {0};
        if (dpcr_recurrent_plan_create(network, &by, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
        const size_t bytes = dpcr_recurrent_plan_workspace(plan);
        void *const workspace = solving_workspace(bytes);
        assert_int_equal(dpcr_recurrent_execute(plan, &pass, NULL, workspace, bytes, NULL, &error), DPCR_OK);
        free(workspace);
        dpcr_recurrent_plan_destroy(plan);
    }
    assert_true(y[0][T * H - 1] > 100);
    for (int64_t i = 0; i < T * H; i++) assert_true(fabs(y[1][i] - y[0][i]) <= 1e-12 * fabs(y[0][i]));
    dpcr_recurrent_destroy(network);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_units_open),
        cmocka_unit_test(tiny_numbers_grow_beside_large_ones),
        cmocka_unit_test(dead_chains_stay_dead),
        cmocka_unit_test(residuals_keep_what_opens),
        cmocka_unit_test(products_that_vanish_are_no_agreement),
        cmocka_unit_test(units_turn_by_less_than_rounding),
        cmocka_unit_test(sums_of_bits_are_told_apart),
        cmocka_unit_test(usual_chains_converge),
        cmocka_unit_test(batches_are_sequences_alone),
        cmocka_unit_test(chains_that_creep_are_left),
        cmocka_unit_test(structures_converge),
        cmocka_unit_test(chains_tell_their_kinks),
        cmocka_unit_test(the_check_tells_of_kinks),
        cmocka_unit_test(networks_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
