// SPDX-License-Identifier: MIT
// Recurrent networks against PyTorch: every fixtures/recurrent_*.safetensors is a network with inputs, outputs and all
// gradients in double (fixtures/make_recurrent_fixtures.py); ours agree to 1e-10, in float to 1e-5 (outputs) and 1e-4
// (gradients), by every method. And what must be equal bit for bit: packed sequences and separate ones, any number of
// threads.
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/recurrent_internal.h"
#include "recurrent_job.h"
#include "rt/trial.h"
#include "sampled.h"

// From a tensor of the file; absent: data NULL.
static dpcr_array copy_of(const dpcr_tensors *t, const char *name, dpcr_dtype dtype) {
    const dpcr_tensor *tensor = dpcr_tensors_find(t, name);
    if (!tensor) return (dpcr_array){0};
    const int64_t *s = tensor->array.shape;
    dpcr_array array = make(dtype, s[0], s[1], s[2]);
    for (int64_t i = 0; i < count_of(&array); i++) put(&array, i, get(&tensor->array, i));
    return array;
}

// ---- PyTorch's numbers ----

// |got - wanted| <= tolerance max(|wanted|, 1e-2)
static void compare(const char *what, const char *name, const dpcr_array *got, const dpcr_tensors *t,
                    double tolerance) {
    const dpcr_tensor *tensor = dpcr_tensors_find(t, name);
    if (!tensor) fail_msg("%s: no tensor %s", what, name);
    assert_int_equal(count_of(got), count_of(&tensor->array));
    double largest = 1e-2;
    for (int64_t i = 0; i < count_of(got); i++) largest = fmax(largest, fabs(get(&tensor->array, i)));
    for (int64_t i = 0; i < count_of(got); i++)
        if (!(fabs(get(got, i) - get(&tensor->array, i)) <= tolerance * largest))
            fail_msg("%s: %s[%d] is %.12g, PyTorch has %.12g", what, name, (int)i, get(got, i), get(&tensor->array, i));
}

// The file's network, in double or float.
static dpcr_recurrent *network_of(dpcr_context *context, const char *path, const dpcr_tensors *t, dpcr_dtype dtype) {
    dpcr_error error = {0};
    dpcr_recurrent *wide, *network;
    const dpcr_recurrent_kind kind = strstr(path, "rnn_relu") ? DPCR_RNN_RELU : 0;
    if (dpcr_recurrent_load(context, path, NULL, kind, &wide, &error) != DPCR_OK) fail_msg("%s", error.text);
    if (dtype == DPCR_F64) return wide;
    dpcr_recurrent_options options = *dpcr_recurrent_get_options(wide);
    options.dtype = dtype;
    assert_int_equal(dpcr_recurrent_create(context, &options, &network, NULL), DPCR_OK);
    for (int64_t i = 0; i < dpcr_recurrent_parameter_count(network); i++) {
        char name[64];
        dpcr_array to;
        assert_int_equal(dpcr_recurrent_parameter(network, i, name, sizeof name, &to, NULL, NULL), DPCR_OK);
        const dpcr_tensor *from = dpcr_tensors_find(t, name);
        assert_non_null(from);
        for (int64_t k = 0; k < count_of(&to); k++) put(&to, k, get(&from->array, k));
    }
    dpcr_recurrent_destroy(wide);
    return network;
}

static void fill_pass(job *j, const dpcr_tensors *t, dpcr_dtype dtype) {
    const dpcr_tensor *lengths = dpcr_tensors_find(t, "lengths"), *y = dpcr_tensors_find(t, "y"),
                      *ht = dpcr_tensors_find(t, "ht");
    j->pass = (dpcr_recurrent_pass){.size = sizeof j->pass,
                                    .x = copy_of(t, "x", dtype),
                                    .h0 = copy_of(t, "h0", dtype),
                                    .c0 = copy_of(t, "c0", dtype),
                                    .y = make(dtype, y->array.shape[0], y->array.shape[1], y->array.shape[2]),
                                    .ht = make(dtype, ht->array.shape[0], ht->array.shape[1], ht->array.shape[2])};
    j->gradients = (dpcr_recurrent_gradients){.size = sizeof j->gradients,
                                              .y = copy_of(t, "grad.y", dtype),
                                              .ht = copy_of(t, "grad.ht", dtype),
                                              .ct = copy_of(t, "grad.ct", dtype)};
    const dpcr_tensor *ct = dpcr_tensors_find(t, "ct");
    if (ct) j->pass.ct = make(dtype, ct->array.shape[0], ct->array.shape[1], ct->array.shape[2]);
    j->gradients.x = alike(&j->pass.x);
    j->gradients.h0 = alike(&j->pass.h0);
    j->gradients.c0 = alike(&j->pass.c0);
    for (int64_t b = 0; lengths && b < lengths->array.shape[0]; b++) j->lengths[b] = (int64_t)get(&lengths->array, b);
    if (lengths) j->pass.lengths = j->lengths;
}

static void check_numbers(job *j, const dpcr_tensors *t, const char *what, double values, double gradients) {
    forward(j);
    compare(what, "y", &j->pass.y, t, values);
    compare(what, "ht", &j->pass.ht, t, values);
    if (j->pass.ct.data) compare(what, "ct", &j->pass.ct, t, values);
    backward(j);
    compare(what, "grad.x", &j->gradients.x, t, gradients);
    if (j->pass.h0.data) compare(what, "grad.h0", &j->gradients.h0, t, gradients);
    if (j->pass.c0.data) compare(what, "grad.c0", &j->gradients.c0, t, gradients);
    for (int64_t i = 0; i < dpcr_recurrent_parameter_count(j->network); i++) {
        char name[64], whole[80];
        dpcr_array gradient;
        assert_int_equal(dpcr_recurrent_parameter(j->network, i, name, sizeof name, NULL, &gradient, NULL), DPCR_OK);
        snprintf(whole, sizeof whole, "grad.%s", name);
        compare(what, whole, &gradient, t, gradients);
    }
}

static void check_file(const char *path) {
    static const struct {
        const char *name;
        dpcr_solve_options solve;
    } ways[] = {
        {"loop",
         {.size = sizeof(dpcr_solve_options), .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL}},
        {"auto", {.size = sizeof(dpcr_solve_options)}},
        {"overlap",
         {.size = sizeof(dpcr_solve_options),
          .method = DPCR_METHOD_OVERLAP,
          .backward = DPCR_SCHEME_OVERLAP,
          .chunk = 3,
          .warm_up = 2,
          .atol = -1,
          .rtol = -1}},
        {"overlap, backward open",
         {.size = sizeof(dpcr_solve_options),
          .method = DPCR_METHOD_OVERLAP,
          .chunk = 3,
          .warm_up = 2,
          .atol = -1,
          .rtol = -1}},
        {"newton",
         {.size = sizeof(dpcr_solve_options),
          .method = DPCR_METHOD_NEWTON,
          .scheme = DPCR_SCHEME_PCR,
          .backward = DPCR_SCHEME_PCR,
          .atol = 1e-12,
          .rtol = 1e-12}},
    };
    dpcr_tensors t = {0};
    dpcr_error error = {0};
    dpcr_context *context = make_context(2);
    if (dpcr_safetensors_read(context, path, &t, &error) != DPCR_OK) fail_msg("%s", error.text);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        for (int wide = 0; wide < 2; wide++) {
            static int64_t runs;
            if (!sampled(runs++)) continue;
            char what[256];
            snprintf(what, sizeof what, "%s, %s, %s", strrchr(path, '/') + 1, ways[i].name, wide ? "double" : "float");
            const dpcr_dtype dtype = wide ? DPCR_F64 : DPCR_F32;
            dpcr_solve_options solve = ways[i].solve;
            if (!wide && solve.atol > 0) solve.atol = solve.rtol = 1e-6;
            job j = {.network = network_of(context, path, &t, dtype)};
            fill_pass(&j, &t, dtype);
            open_plan(&j, solve, true);
            check_numbers(&j, &t, what, wide ? 1e-10 : 1e-5, wide ? 1e-9 : 1e-4);
            check_numbers(&j, &t, what, wide ? 1e-10 : 1e-5, wide ? 1e-9 : 1e-4);  // a plan serves again
            close_plan(&j);
            free_pass(&j);
            dpcr_recurrent_destroy(j.network);
        }
    dpcr_tensors_free(context, &t);
    dpcr_context_destroy(context);
}

static void test_fixtures(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob(FIXTURES "/recurrent_*.safetensors", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 47);
    for (size_t i = 0; i < found.gl_pathc; i++) check_file(found.gl_pathv[i]);
    globfree(&found);
}

// A packed batch gives each sequence the bits that it has alone, in time and in gradients of inputs and states.
static void test_packed_equals_separate(void **state) {
    (void)state;
    enum { T = 11, B = 7 };
    static const int64_t lengths[B] = {4, 11, 0, 1, 9, 9, 2};
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k++) {
        dpcr_recurrent_options options = cell_of(k, 5, 19);
        options.layers = 2;
        options.bidirectional = 1;
        job all = random_job(context, options, T, B);
        memcpy(all.lengths, lengths, sizeof lengths);
        all.pass.lengths = all.lengths;
        open_plan(&all, the_loop, true);
        forward(&all);
        backward(&all);
        for (int64_t b = 0; b < B; b++) {
            job one = random_job(context, options, lengths[b], 1);
            const dpcr_array *const from[] = {&all.pass.x, &all.gradients.y, &all.pass.h0, &all.pass.c0};
            const dpcr_array *const to[] = {&one.pass.x, &one.gradients.y, &one.pass.h0, &one.pass.c0};
            for (int q = 0; q < 4; q++)
                for (int64_t i = 0; to[q]->data && i < to[q]->shape[0]; i++)
                    for (int64_t c = 0; c < to[q]->shape[2]; c++)
                        put(to[q], i * to[q]->shape[2] + c, get(from[q], (i * B + b) * to[q]->shape[2] + c));
            open_plan(&one, the_loop, true);
            forward(&one);
            backward(&one);
            const dpcr_array *const got[] = {&all.pass.y, &all.pass.ht, &all.pass.ct, &all.gradients.x,
                                             &all.gradients.h0};
            const dpcr_array *const alone[] = {&one.pass.y, &one.pass.ht, &one.pass.ct, &one.gradients.x,
                                               &one.gradients.h0};
            for (int q = 0; q < 5; q++)
                for (int64_t i = 0; got[q]->data && i < got[q]->shape[0]; i++)
                    for (int64_t c = 0; c < got[q]->shape[2]; c++) {
                        const double x = get(got[q], (i * B + b) * got[q]->shape[2] + c);
                        const double wanted = i < alone[q]->shape[0] ? get(alone[q], i * got[q]->shape[2] + c) : 0;
                        if (x != wanted)
                            fail_msg("kind %d, sequence %d, array %d at %d: %.9g alone %.9g", (int)k, (int)b, q, (int)i,
                                     x, wanted);
                    }
            close_plan(&one);
            free_pass(&one);
            dpcr_recurrent_destroy(one.network);
        }
        close_plan(&all);
        free_pass(&all);
        dpcr_recurrent_destroy(all.network);
    }
    dpcr_context_destroy(context);
}

// A packed sequence's last state is its own last step's, also by chunks, which carry it on to the batch's end within
// the tolerance only.
static void test_packed_last_states(void **state) {
    (void)state;
    enum { T = 300, B = 6 };
    static const int64_t lengths[B] = {298, 6, 0, 281, 129, 300};
    const dpcr_solve_options overlap = {.size = sizeof overlap, .method = DPCR_METHOD_OVERLAP};
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k++) {
        dpcr_recurrent_options options = cell_of(k, 3, 8);
        options.bidirectional = 1;
        job j = random_job(context, options, T, B);
        memcpy(j.lengths, lengths, sizeof lengths);
        j.pass.lengths = j.lengths;
        open_plan(&j, overlap, false);
        forward(&j);
        const int64_t h = j.pass.ht.shape[2];
        for (int64_t i = 0; i < 2 * B * h; i++) {
            const int64_t way = i / h / B, b = i / h % B, t = way ? 0 : lengths[b] - 1;
            const double wanted = lengths[b] ? get(&j.pass.y, ((t * B + b) * 2 + way) * h + i % h) : get(&j.pass.h0, i);
            if (get(&j.pass.ht, i) != wanted)
                fail_msg("cell %d, sequence %d: ends with %.9g, y with %.9g", (int)k, (int)b, get(&j.pass.ht, i),
                         wanted);
        }
        close_plan(&j);
        free_pass(&j);
        dpcr_recurrent_destroy(j.network);
    }
    dpcr_context_destroy(context);
}

// Small recurrent weights, with which two starts agree bit for bit soon: with PyTorch's, hundreds of units keep a last
// bit of difference for ever.
static void forget_soon(dpcr_recurrent *network) {
    for (int64_t i = 0; i < dpcr_recurrent_parameter_count(network); i++) {
        char name[64];
        dpcr_array weights;
        assert_int_equal(dpcr_recurrent_parameter(network, i, name, sizeof name, &weights, NULL, NULL), DPCR_OK);
        for (int64_t k = 0; strstr(name, "weight_hh") && k < count_of(&weights); k++)
            put(&weights, k, get(&weights, k) / 64);
    }
}

static int64_t shared_pieces;  // of the last numbers_of: those of which the clock was asked (nn/units.c)

// Outputs, then every gradient. `exact`: of a network that forgets soon, by overlap's chunks alone, none finished in
// order.
static double *numbers_of(int threads, dpcr_recurrent_options options, int64_t T, int64_t B, dpcr_solve_options solve,
                          bool exact, int64_t *total) {
    dpcr_context *context = make_context(threads);
    job j = random_job(context, options, T, B);
    if (exact) forget_soon(j.network);
    open_plan(&j, solve, true);
    dpcr_solve_report reports[2] = {{.size = sizeof *reports}, {.size = sizeof *reports}};
    assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, reports, NULL), DPCR_OK);
    if (solve.method == DPCR_METHOD_OVERLAP && exact) {
        assert_int_equal(reports[0].method, DPCR_METHOD_OVERLAP);
        assert_int_equal(reports[0].reason, DPCR_REASON_EXACT);
    }
    backward(&j);
    int64_t count;
    assert_non_null(dpcr_recurrent_vector(j.network, &count));
    const dpcr_array g = {.data = dpcr_recurrent_gradient_vector(j.network), .dtype = options.dtype};
    const int64_t values = count_of(&j.pass.y);
    double *numbers = calloc((size_t)(values + count), sizeof *numbers);
    for (int64_t i = 0; i < values; i++) numbers[i] = get(&j.pass.y, i);
    for (int64_t i = 0; i < count; i++) numbers[values + i] = get(&g, i);
    *total = values + count;
    shared_pieces = dpcri_trials_told(context);
    close_plan(&j);
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
    dpcr_context_destroy(context);
    return numbers;
}

// The numbers of another way are `wanted`.
static void check_again(const double *wanted, int threads, dpcr_recurrent_options options, int64_t T, int64_t B,
                        dpcr_solve_options solve, bool exact) {
    int64_t total;
    double *numbers = numbers_of(threads, options, T, B, solve, exact, &total);
    for (int64_t i = 0; i < total; i++)
        if (numbers[i] != wanted[i])
            fail_msg("kind %d, method %d, %d threads, number %d: %.9g, wanted %.9g", (int)options.kind,
                     (int)solve.method, threads, (int)i, numbers[i], wanted[i]);
    free(numbers);
}

// The same bits for 1 and 3 threads: outputs and every gradient. And overlap with tolerance 0 has the loop's bits;
// `exact`: see numbers_of.
static void check_threads_and_overlap(dpcr_recurrent_options options, int64_t T, int64_t B, int64_t warm_up,
                                      int64_t chunk, bool exact) {
    dpcr_solve_options overlap = the_loop;
    overlap.method = DPCR_METHOD_OVERLAP;
    overlap.warm_up = warm_up, overlap.chunk = chunk;
    overlap.atol = overlap.rtol = -1;
    int64_t total;
    double *wanted = numbers_of(1, options, T, B, the_loop, exact, &total);
    check_again(wanted, 3, options, T, B, the_loop, exact);
    check_again(wanted, 1, options, T, B, overlap, exact);
    free(wanted);
}

static void test_threads_and_overlap(void **state) {
    (void)state;
    for (size_t k = 0; k < CELLS; k++) {
        dpcr_recurrent_options options = cell_of(k, 3, 21);
        options.bidirectional = 1;
        check_threads_and_overlap(options, 700, 3, 128, 96, false);
    }
}

// Chunks behind a sequence's end remember what they began with, and nobody asks: each way in one sweep, to the loop's
// bits.
static void test_packed_overlap(void **state) {
    (void)state;
    enum { T = 700, B = 5 };
    static const int64_t lengths[B] = {640, 3, 0, 420, 700};
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k++) {
        dpcr_recurrent_options options = cell_of(k, 3, 8);
        options.bidirectional = 1;
        double *kept = NULL;
        for (int way = 0; way < 2; way++) {
            job j = random_job(context, options, T, B);
            forget_soon(j.network);
            memcpy(j.lengths, lengths, sizeof lengths);
            j.pass.lengths = j.lengths;
            j.gradients.ht = alike(&j.pass.ht), j.gradients.ct = alike(&j.pass.ct);
            fill(&j.gradients.ht, 5);
            if (j.gradients.ct.data) fill(&j.gradients.ct, 6);
            dpcr_solve_options solve = the_loop;
            if (way == 1) {
                solve.method = DPCR_METHOD_OVERLAP, solve.backward = DPCR_SCHEME_OVERLAP;
                solve.warm_up = solve.backward_warm_up = 160, solve.chunk = solve.backward_chunk = 64;
                solve.atol = solve.rtol = -1;
            }
            open_plan(&j, solve, true);
            dpcr_solve_report there[2] = {{.size = sizeof *there}, {.size = sizeof *there}}, back[2];
            memcpy(back, there, sizeof back);
            assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, there, NULL),
                             DPCR_OK);
            assert_int_equal(
                dpcr_recurrent_backward(j.plan, &j.pass, &j.gradients, j.tape, j.workspace, j.bytes, back, NULL),
                DPCR_OK);
            for (int c = 0; way == 1 && c < 2; c++)
                if (there[c].reason != DPCR_REASON_EXACT || there[c].sweeps > 2 || back[c].sweeps > 2)
                    fail_msg("cell %d, chain %d: %s, %d sweeps, %d back", (int)k, c, dpcr_reason_name(there[c].reason),
                             there[c].sweeps, back[c].sweeps);
            int64_t count, at = 0;
            dpcr_recurrent_vector(j.network, &count);
            const dpcr_array all = {.data = dpcr_recurrent_gradient_vector(j.network),
                                    .dtype = DPCR_F32,
                                    .ndim = 1,
                                    .shape = {count},
                                    .strides = {1}};
            const dpcr_array *const arrays[] = {&j.pass.y,      &j.pass.ht,      &j.pass.ct,
                                                &j.gradients.x, &j.gradients.h0, &all};
            for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) at += arrays[i]->data ? count_of(arrays[i]) : 0;
            double *numbers = calloc((size_t)at, sizeof *numbers);
            at = 0;
            for (size_t q = 0; q < sizeof arrays / sizeof *arrays; q++)
                for (int64_t i = 0; arrays[q]->data && i < count_of(arrays[q]); i++, at++) {
                    numbers[at] = get(arrays[q], i);
                    // Parameters' gradients are summed in another order: some 1700 terms of 1 and less, each a
                    // rounding.
                    if (way == 1 && !(fabs(numbers[at] - kept[at]) <= (q < 5 ? 0 : 1e-4 * fmax(1, fabs(kept[at])))))
                        fail_msg("cell %d, array %d, number %d: %.9g, wanted %.9g", (int)k, (int)q, (int)i, numbers[at],
                                 kept[at]);
                }
            free(kept);
            kept = numbers;
            close_plan(&j);
            free_pass(&j);
            dpcr_recurrent_destroy(j.network);
        }
        free(kept);
    }
    dpcr_context_destroy(context);
}

// What a packed batch forgets is told by the sequences that go on, wherever they lie in it; of one that has left the
// finite numbers before its end nothing converged is told, though the chunks behind it are finite.
static void test_packed_plans(void **state) {
    (void)state;
    enum { T = 4096, B = 3 };
    static const int64_t lengths[2][B] = {{60, 90, T}, {T, 0, 60}};
    dpcr_context *context = make_context(1);
    for (int k = 0; k < 2; k++) {
        job j = random_job(context, cell_of(2, 3, 8), T, B);
        forget_soon(j.network);
        memcpy(j.lengths, lengths[k], sizeof lengths[k]);
        j.pass.lengths = j.lengths;
        const dpcr_solve_options any = {.size = sizeof any},
                                 overlap = {.size = sizeof overlap, .method = DPCR_METHOD_OVERLAP};
        open_plan(&j, any, false);
        assert_string_equal(dpcr_solve_plan_memory(dpcr_recurrent_plan_chain(j.plan, 0), NULL, NULL), "forgets");
        close_plan(&j);
        const int64_t lost = lengths[k][0] < T ? 1 : 2;  // ends soon
        put(&j.pass.x, (20 * B + lost) * 3, (double)NAN);
        open_plan(&j, overlap, false);
        int reason[B];
        dpcr_solve_report report = {.size = sizeof report, .sequence_reason = reason, .batch_capacity = B};
        assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, NULL, j.workspace, j.bytes, &report, NULL), DPCR_OK);
        assert_true(reason[lost] != DPCR_REASON_CONVERGED && reason[lost] != DPCR_REASON_EXACT);
        assert_int_equal(reason[k ? 0 : 2], DPCR_REASON_EXACT);  // its bits met
        close_plan(&j);
        free_pass(&j);
        dpcr_recurrent_destroy(j.network);
    }
    dpcr_context_destroy(context);
}

// Weights beyond the first cache, both W_ih and W_hh: chunks go through them block by block (kern/gates_wide.inc).
static void test_wide_overlap(void **state) {
    (void)state;
    for (size_t k = 0; k < 4; k += TESTS_SANITIZED ? 3 : 1)
        check_threads_and_overlap(cell_of(k, 520, 264), 400, 1, 128, 32, true);
}

// Weights of which threads share the units of a step (nn/units.c), by pieces enough for trials of 2 threads, and of 5,
// to come down to one: those that meet have the bits of one alone.
static void test_wide_shared(void **state) {
    (void)state;
    for (size_t k = 0; k < 4; k++) {  // RNN, with ReLU too, GRU, LSTM
        dpcr_recurrent_options options = cell_of(k, 3, k < 2 ? 391 : 230);
        if (k % 3) options.dtype = DPCR_F64;
        int64_t total;
        double *wanted = numbers_of(1, options, 90, 1, the_loop, false, &total);
        assert_int_equal(shared_pieces, 0);
        for (int threads = 2; threads <= 5; threads += 3) {
            check_again(wanted, threads, options, 90, 1, the_loop, false);
            assert_true(shared_pieces >= 11);  // 90 steps by 8
        }
        free(wanted);
    }
}

// Few units and wide inputs: more rows of all chunks are multiplied together than are copied at a time.
static void test_narrow_overlap_of_wide_inputs(void **state) {
    (void)state;
    for (size_t k = 0; k < 4; k += 2) check_threads_and_overlap(cell_of(k, 16384, 8), 200, 1, 64, 12, true);
}

// One sequence whose products with a large W_ih are made ahead has the bits that it has among five, whose are not.
static void test_products_ahead(void **state) {
    (void)state;
    enum { T = 20, B = 5, INPUTS = 16384, HIDDEN = 72 };
    for (size_t k = 0; k < 4; k += 2) {
        dpcr_context *context = make_context(2);
        job all = random_job(context, cell_of(k, INPUTS, HIDDEN), T, B);
        open_plan(&all, the_loop, false);
        assert_false(all.plan->layers[0].ahead);
        forward(&all);
        job one = random_job(context, cell_of(k, INPUTS, HIDDEN), T, 1);
        const int64_t row = B - 1;
        for (int64_t i = 0; i < T * INPUTS; i++)
            put(&one.pass.x, i, get(&all.pass.x, (i / INPUTS * B + row) * INPUTS + i % INPUTS));
        for (int64_t i = 0; i < HIDDEN; i++) put(&one.pass.h0, i, get(&all.pass.h0, row * HIDDEN + i));
        for (int64_t i = 0; one.pass.c0.data && i < HIDDEN; i++)
            put(&one.pass.c0, i, get(&all.pass.c0, row * HIDDEN + i));
        open_plan(&one, the_loop, false);
        assert_true(one.plan->layers[0].ahead);
        forward(&one);
        for (int64_t i = 0; i < T * HIDDEN; i++)
            assert_true(get(&one.pass.y, i) == get(&all.pass.y, (i / HIDDEN * B + row) * HIDDEN + i % HIDDEN));
        job *const both[] = {&all, &one};
        for (int q = 0; q < 2; q++) {
            close_plan(both[q]);
            free_pass(both[q]);
            dpcr_recurrent_destroy(both[q]->network);
        }
        dpcr_context_destroy(context);
    }
}

static bool is_ahead(const dpcr_recurrent *network, int64_t length, int64_t batch) {
    const dpcr_recurrent_plan_options options = {
        .size = sizeof options, .length = length, .batch = batch, .solve = the_loop};
    dpcr_recurrent_plan *plan;
    assert_int_equal(dpcr_recurrent_plan_create(network, &options, &plan, NULL), DPCR_OK);
    const bool ahead = plan->layers[0].ahead;
    dpcr_recurrent_plan_destroy(plan);
    return ahead;
}

// Products of more than 256 MB are not made ahead, nor those of a fifth sequence.
static void test_most_ahead(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_recurrent_options options = cell_of(0, 16384, 64);
    dpcr_recurrent *network;
    options.size = sizeof options;
    assert_int_equal(dpcr_recurrent_create(context, &options, &network, NULL), DPCR_OK);
    const int64_t most = (1 << 28) / (64 * (int64_t)sizeof(float));
    assert_true(is_ahead(network, most, 1));
    assert_false(is_ahead(network, most + 1, 1));
    assert_true(is_ahead(network, most / 4, 4));
    assert_false(is_ahead(network, most / 4 + 1, 4));
    assert_false(is_ahead(network, 1, 5));
    dpcr_recurrent_destroy(network);
    dpcr_context_destroy(context);
}

// Where the workspace is limited the inputs' products are made ahead only if it has room for them, with the same bits.
static void test_products_within_limit(void **state) {
    (void)state;
    enum { T = 20, INPUTS = 16384, HIDDEN = 72 };
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k += 3) {
        job j = random_job(context, cell_of(k, INPUTS, HIDDEN), T, 1);
        open_plan(&j, the_loop, false);
        assert_true(j.plan->layers[0].ahead);
        forward(&j);
        const dpcr_array y = j.pass.y;
        const size_t room = j.bytes;
        close_plan(&j);
        for (size_t less = 0; less < 2; less++) {
            j.pass.y = alike(&y);
            dpcr_solve_options solve = the_loop;
            solve.memory_limit = room - less;
            open_plan(&j, solve, false);
            assert_true(j.plan->layers[0].ahead == (less == 0));
            assert_true(j.bytes <= solve.memory_limit);
            forward(&j);
            for (int64_t i = 0; i < count_of(&y); i++) assert_true(get(&j.pass.y, i) == get(&y, i));
            close_plan(&j);
            free(j.pass.y.data);
        }
        j.pass.y = y;
        free_pass(&j);
        dpcr_recurrent_destroy(j.network);
    }
    dpcr_context_destroy(context);
}

// One step at a time with the state carried on gives the bits of the whole sequence, with weights laid out once; the
// last state may take the first one's place.
static void test_streaming(void **state) {
    (void)state;
    enum { T = 9, B = 2 };
    dpcr_context *context = make_context(1);
    for (size_t i = 0; i < 2 * CELLS; i++) {
        const bool in_place = i % 2;
        dpcr_recurrent_options options = cell_of(i / 2, 4, 10);
        options.dtype = DPCR_F64;
        options.layers = 2;
        job all = random_job(context, options, T, B), one = random_job(context, options, 1, B);
        open_plan(&all, the_loop, false);
        forward(&all);
        const dpcr_recurrent_plan_options stream = {.size = sizeof stream, .length = 1, .batch = B, .frozen = 1};
        assert_int_equal(dpcr_recurrent_plan_create(one.network, &stream, &one.plan, NULL), DPCR_OK);
        one.bytes = dpcr_recurrent_plan_workspace(one.plan);
        one.workspace = aligned_alloc(64, (one.bytes + 127) / 64 * 64);
        dpcr_array ht = one.pass.ht, ct = one.pass.ct;
        if (in_place) one.pass.ht = one.pass.h0, one.pass.ct = one.pass.c0;
        for (int64_t t = 0; t < T; t++) {
            memcpy(one.pass.x.data, (double *)all.pass.x.data + t * B * 4, B * 4 * sizeof(double));
            forward(&one);
            const int64_t values = count_of(&one.pass.y);
            for (int64_t n = 0; n < values; n++) assert_true(get(&one.pass.y, n) == get(&all.pass.y, t * values + n));
            if (in_place) continue;
            memcpy(one.pass.h0.data, one.pass.ht.data, (size_t)count_of(&one.pass.ht) * sizeof(double));
            if (one.pass.c0.data)
                memcpy(one.pass.c0.data, one.pass.ct.data, (size_t)count_of(&one.pass.ct) * sizeof(double));
        }
        for (int64_t n = 0; n < count_of(&all.pass.ht); n++) assert_true(get(&one.pass.ht, n) == get(&all.pass.ht, n));
        one.pass.ht = ht, one.pass.ct = ct;
        close_plan(&all), close_plan(&one);
        free_pass(&all), free_pass(&one);
        dpcr_recurrent_destroy(all.network), dpcr_recurrent_destroy(one.network);
    }
    dpcr_context_destroy(context);
}

static double sum_of(const dpcr_array *a) {
    double sum = 0;
    for (int64_t i = 0; i < count_of(a); i++) sum += get(a, i);
    return sum;
}

// A plan follows its network's parameters from call to call, unless they were said to be frozen.
static void test_parameters_change(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    for (size_t k = 0; k < CELLS; k++)
        for (int frozen = 0; frozen < 2; frozen++) {
            const dpcr_recurrent_options options = cell_of(k, 3, 6);
            job j = random_job(context, options, 4, 2);
            const dpcr_recurrent_plan_options plan = {.size = sizeof plan, .length = 4, .batch = 2, .frozen = frozen};
            assert_int_equal(dpcr_recurrent_plan_create(j.network, &plan, &j.plan, NULL), DPCR_OK);
            j.bytes = dpcr_recurrent_plan_workspace(j.plan);
            j.workspace = aligned_alloc(64, (j.bytes + 127) / 64 * 64);
            forward(&j);
            const double before = sum_of(&j.pass.y);
            int64_t count;
            float *vector = dpcr_recurrent_vector(j.network, &count);
            for (int64_t i = 0; i < count; i++) vector[i] *= 0.5f;
            forward(&j);
            assert_true((sum_of(&j.pass.y) == before) == (frozen != 0));
            close_plan(&j);
            free_pass(&j);
            dpcr_recurrent_destroy(j.network);
        }
    dpcr_context_destroy(context);
}

// GRUs whose weights are ten times PyTorch's, DEER's difficult case: newton's iterates may grow without bounds on the
// way, and the result is the loop's within T sweeps (k sweeps make the first k steps exact), or is finished in order.
static void test_difficult_weights(void **state) {
    (void)state;
    enum { T = 100, B = 2, H = 8 };
    dpcr_context *context = make_context(1);
    int by_newton = 0;
    for (unsigned seed = 1; seed <= 8; seed++) {
        const dpcr_recurrent_options options = {
            .kind = DPCR_GRU, .dtype = DPCR_F64, .inputs = 4, .hidden = H, .seed = seed};
        job loop = random_job(context, options, T, B), newton = random_job(context, options, T, B);
        job *const both[] = {&loop, &newton};
        for (int i = 0; i < 2; i++) {
            int64_t count;
            double *vector = dpcr_recurrent_vector(both[i]->network, &count);
            for (int64_t k = 0; k < count; k++) vector[k] *= 10;
        }
        open_plan(&loop, the_loop, false);
        forward(&loop);
        open_plan(&newton,
                  (dpcr_solve_options){.size = sizeof(dpcr_solve_options),
                                       .method = DPCR_METHOD_NEWTON,
                                       .scheme = DPCR_SCHEME_PCR,
                                       .atol = 1e-11,
                                       .rtol = 1e-11,
                                       .max_sweeps = T + 1},
                  false);
        dpcr_solve_report report = {.size = sizeof report};
        dpcr_error error = {0};
        if (dpcr_recurrent_execute(newton.plan, &newton.pass, NULL, newton.workspace, newton.bytes, &report, &error) !=
            DPCR_OK)
            fail_msg("%s", error.text);
        assert_true(report.reason > 0 && report.sweeps <= T + 1);
        by_newton += report.reason == DPCR_REASON_CONVERGED || report.reason == DPCR_REASON_EXACT;
        for (int64_t i = 0; i < count_of(&loop.pass.y); i++) {
            const double x = get(&newton.pass.y, i), wanted = get(&loop.pass.y, i);
            if (!(fabs(x - wanted) < 1e-8))
                fail_msg("seed %u, number %d: %.12g, the loop has %.12g", seed, (int)i, x, wanted);
        }
        for (int i = 0; i < 2; i++) {
            close_plan(both[i]);
            free_pass(both[i]);
            dpcr_recurrent_destroy(both[i]->network);
        }
    }
    assert_true(by_newton >= 4);
    dpcr_context_destroy(context);
}

static uint64_t draw_state;
static double uniform(void) {
    draw_state ^= draw_state << 13, draw_state ^= draw_state >> 7, draw_state ^= draw_state << 17;
    return (double)(draw_state >> 11) / 4503599627370496.0 - 1;  // in [-1, 1)
}
static double normal(void) { return sqrt(-2 * log((uniform() + 1) / 2 + 1e-300)) * cos(3.14159265358979 * uniform()); }

// A6, DEER's own rule (its tests): two units, T = 100, weights U(-1, 1) m / sqrt 2, biases U(-1, 1) / sqrt 2, x ~ N(0,
// 1) / m, h0 ~ N(0, 1). Twelve draws each; every one ends right within T rounds, and of those with m = 10 some are not
// Newton's.
static void test_difficult_by_rule(void **state) {
    (void)state;
    enum { T = 100, H = 2, DRAWS = 12 };
    static const double sizes[] = {1, 10, 100};
    dpcr_context *context = make_context(1);
    draw_state = 12345;
    for (int m = 0; m < 3; m++) {
        int hard = 0;
        for (int draw = 0; draw < DRAWS; draw++) {
            const dpcr_recurrent_options options = {.kind = DPCR_GRU, .dtype = DPCR_F64, .inputs = H, .hidden = H};
            job loop = random_job(context, options, T, 1), newton = random_job(context, options, T, 1);
            int64_t count;
            double *vector = dpcr_recurrent_vector(loop.network, &count);
            for (int64_t k = 0; k < count; k++)
                vector[k] = uniform() / sqrt(H) * (k < count - 6 * H ? sizes[m] : 1);  // biases come last
            memcpy(dpcr_recurrent_vector(newton.network, NULL), vector, (size_t)count * sizeof *vector);
            for (int64_t k = 0; k < T * H; k++) put(&loop.pass.x, k, normal() / sizes[m]);
            for (int64_t k = 0; k < H; k++) put(&loop.pass.h0, k, normal());
            memcpy(newton.pass.x.data, loop.pass.x.data, T * H * sizeof(double));
            memcpy(newton.pass.h0.data, loop.pass.h0.data, H * sizeof(double));
            open_plan(&loop, the_loop, false);
            forward(&loop);
            open_plan(&newton,
                      (dpcr_solve_options){.size = sizeof(dpcr_solve_options),
                                           .method = DPCR_METHOD_NEWTON,
                                           .scheme = DPCR_SCHEME_PCR,
                                           .atol = 1e-10,
                                           .rtol = 1e-10,
                                           .max_sweeps = T + 1},
                      false);
            dpcr_solve_report report = {.size = sizeof report};
            dpcr_error error = {0};
            if (dpcr_recurrent_execute(newton.plan, &newton.pass, NULL, newton.workspace, newton.bytes, &report,
                                       &error) != DPCR_OK)
                fail_msg("%s", error.text);
            assert_true(report.reason > 0 && report.sweeps <= T + 1);
            hard += report.sweeps > 12 || report.reason == DPCR_REASON_FALLBACK;
            for (int64_t i = 0; i < T * H; i++)
                if (!(fabs(get(&newton.pass.y, i) - get(&loop.pass.y, i)) < 1e-6))
                    fail_msg("m %g, draw %d, number %d: %.12g, the loop has %.12g", sizes[m], draw, (int)i,
                             get(&newton.pass.y, i), get(&loop.pass.y, i));
            job *const both[] = {&loop, &newton};
            for (int i = 0; i < 2; i++) {
                close_plan(both[i]);
                free_pass(both[i]);
                dpcr_recurrent_destroy(both[i]->network);
            }
        }
        assert_true(m == 0 ? hard == 0 : m == 1 ? hard > 0 : true);
    }
    dpcr_context_destroy(context);
}

// NaN in one sequence leaves the others untouched.
static void test_nan_stays(void **state) {
    (void)state;
    enum { T = 6, B = 5 };
    dpcr_context *context = make_context(1);
    for (size_t k = 0; k < CELLS; k++) {
        const dpcr_recurrent_options options = cell_of(k, 3, 8);
        job j = random_job(context, options, T, B);
        open_plan(&j, the_loop, false);
        forward(&j);
        dpcr_array clean = alike(&j.pass.y);
        memcpy(clean.data, j.pass.y.data, (size_t)count_of(&clean) * sizeof(float));
        put(&j.pass.x, (2 * B + 3) * 3, NAN);
        forward(&j);
        for (int64_t i = 0; i < count_of(&clean); i++) {
            const int64_t width = j.pass.y.shape[2], b = i / width % B, t = i / width / B;
            const double x = get(&j.pass.y, i);
            if (b == 3 && t >= 2)
                assert_true(isnan(x));
            else
                assert_true(x == get(&clean, i));
        }
        free(clean.data);
        close_plan(&j);
        free_pass(&j);
        dpcr_recurrent_destroy(j.network);
    }
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_packed_equals_separate),
        cmocka_unit_test(test_packed_last_states),
        cmocka_unit_test(test_threads_and_overlap),
        cmocka_unit_test(test_packed_overlap),
        cmocka_unit_test(test_packed_plans),
        cmocka_unit_test(test_wide_overlap),
        cmocka_unit_test(test_wide_shared),
        cmocka_unit_test(test_narrow_overlap_of_wide_inputs),
        cmocka_unit_test(test_products_ahead),
        cmocka_unit_test(test_most_ahead),
        cmocka_unit_test(test_products_within_limit),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_nan_stays),
        cmocka_unit_test(test_difficult_weights),
        cmocka_unit_test(test_difficult_by_rule),
        cmocka_unit_test(test_parameters_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
