// SPDX-License-Identifier: MIT
// Options of passes and plans of recurrent networks: resets equal separate sequences bit for bit, by every method;
// dropout equals layers run apart with its masks between them; recomputing plans have the gradients of others and a
// smaller tape.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>

#include "base/random.h"
#include "model/recurrent_internal.h"
#include "recurrent_job.h"
#include "sampled.h"

static void open_as(job *j, dpcr_recurrent_plan_options options, dpcr_solve_options solve) {
    dpcr_error error = {0};
    options.size = sizeof options;
    options.length = j->pass.x.shape[0];
    options.batch = j->pass.x.shape[1];
    options.packed = j->pass.lengths != NULL;
    options.resets = j->pass.resets != NULL;
    options.training = 1;
    options.solve = solve;
    if (dpcr_recurrent_plan_create(j->network, &options, &j->plan, &error) != DPCR_OK) fail_msg("%s", error.text);
    const size_t tape = dpcr_recurrent_plan_tape(j->plan);
    j->bytes = dpcr_recurrent_plan_workspace(j->plan);
    j->workspace = aligned_alloc(64, (j->bytes + 127) / 64 * 64);
    j->tape = aligned_alloc(64, (tape + 127) / 64 * 64);
    memset(j->workspace, 0xff, j->bytes);  // NaN: nothing may be read before it is written
    memset(j->tape, 0xff, tape);
}

static void close_job(job *j) {
    close_plan(j);
    free_pass(j);
    dpcr_recurrent_destroy(j->network);
}

static bool same(const dpcr_array *a, const dpcr_array *b) {
    return count_of(a) == count_of(b) && memcmp(a->data, b->data, (size_t)count_of(a) * dpcr_dtype_size(a->dtype)) == 0;
}

static void copy_gradients(dpcr_recurrent *network, double *to) {
    int64_t count;
    dpcr_recurrent_vector(network, &count);
    const dpcr_array all =
        dpcr_array_make(dpcr_recurrent_gradient_vector(network), dpcr_recurrent_get_options(network)->dtype, 1, &count);
    for (int64_t i = 0; i < count; i++) to[i] = get(&all, i);
}

// ---- resets ----

enum { T = 13, B = 4 };
static const int64_t lengths[B] = {13, 9, 13, 5};
static const unsigned char marks[T * B] = {
    [0 * B + 2] = 1, [3 * B + 0] = 1, [4 * B + 0] = 7, [12 * B + 0] = 1,
    [8 * B + 1] = 1, [9 * B + 1] = 1, [6 * B + 2] = 1,
};

// to [steps][1][w] = from [T][B][w] from step `first` of row b, or back.
static void cut(const dpcr_array *whole, const dpcr_array *part, int64_t first, int64_t b, bool back) {
    const int64_t w = whole->shape[2];
    for (int64_t t = 0; t < part->shape[0]; t++)
        for (int64_t i = 0; i < w; i++)
            if (back)
                put(whole, ((first + t) * whole->shape[1] + b) * w + i, get(part, t * w + i));
            else
                put(part, t * w + i, get(whole, ((first + t) * whole->shape[1] + b) * w + i));
}

// Initial or last states of row b for one direction of every layer, of the whole's arrays and the piece's.
static void states_of(const dpcr_array *whole, const dpcr_array *part, int64_t b, int64_t direction, bool back) {
    for (int64_t n = direction; whole->data && n < whole->shape[0]; n += 2) {
        const dpcr_array of_chain = dpcr_array_make((char *)whole->data, whole->dtype, 3, whole->shape);
        for (int64_t i = 0; i < whole->shape[2]; i++) {
            const int64_t at = (n * whole->shape[1] + b) * whole->shape[2] + i, there = n * part->shape[2] + i;
            if (back)
                put(&of_chain, at, get(part, there));
            else
                put(part, there, get(whole, at));
        }
    }
}

// Steps first .. end - 1 of row b alone; its numbers go into `wanted`, which has the whole's arrays.
static void run_piece(dpcr_context *context, dpcr_recurrent_options options, job *all, job *wanted, int64_t first,
                      int64_t end, int64_t b, bool begins, bool ends) {
    job one = random_job(context, options, end - first, 1);
    cut(&all->pass.x, &one.pass.x, first, b, false);
    cut(&all->gradients.y, &one.gradients.y, first, b, false);
    memset(one.pass.h0.data, 0, (size_t)count_of(&one.pass.h0) * 8);
    if (one.pass.c0.data) memset(one.pass.c0.data, 0, (size_t)count_of(&one.pass.c0) * 8);
    const bool used[2] = {begins, ends};  // which directions begin with h0
    for (int d = 0; d < 2; d++)
        if (used[d]) {
            states_of(&all->pass.h0, &one.pass.h0, b, d, false);
            states_of(&all->pass.c0, &one.pass.c0, b, d, false);
        }
    open_as(&one, (dpcr_recurrent_plan_options){0}, the_loop);
    forward(&one);
    backward(&one);
    cut(&wanted->pass.y, &one.pass.y, first, b, true);
    cut(&wanted->gradients.x, &one.gradients.x, first, b, true);
    for (int d = 0; d < 2; d++) {
        if (used[d]) states_of(&wanted->gradients.h0, &one.gradients.h0, b, d, true);
        if (used[1 - d] || (d == 1 && first == 0)) {
            states_of(&wanted->pass.ht, &one.pass.ht, b, d, true);
            states_of(&wanted->pass.ct, &one.pass.ct, b, d, true);
        }
    }
    int64_t count;
    dpcr_recurrent_vector(one.network, &count);
    double *sums = calloc((size_t)count, sizeof *sums);
    copy_gradients(one.network, sums);
    double *to = wanted->tape;  // the sums of all pieces
    for (int64_t i = 0; i < count; i++) to[i] += sums[i];
    free(sums);
    close_job(&one);
}

// By the loop the bits of the sequences run apart; weights' gradients, whose sums are in another order, to rounding.
static void check_resets(dpcr_context *context, dpcr_recurrent_options options, bool packed) {
    job all = random_job(context, options, T, B), wanted = random_job(context, options, T, B);
    int64_t count;
    dpcr_recurrent_vector(all.network, &count);
    wanted.tape = calloc((size_t)count, sizeof(double));
    const dpcr_array *const blank[] = {&wanted.pass.y, &wanted.gradients.x, &wanted.gradients.h0};
    for (int i = 0; i < 3; i++) memset(blank[i]->data, 0, (size_t)count_of(blank[i]) * 8);
    all.pass.resets = marks;
    if (packed) all.pass.lengths = memcpy(all.lengths, lengths, sizeof lengths);
    for (int64_t b = 0; b < B; b++) {
        const int64_t end = packed ? lengths[b] : T;
        for (int64_t first = 0, next; first < end; first = next) {
            for (next = first + 1; next < end && !marks[next * B + b];) next++;
            run_piece(context, options, &all, &wanted, first, next, b, first == 0 && !marks[b], next == end);
        }
    }
    open_as(&all, (dpcr_recurrent_plan_options){0}, the_loop);
    forward(&all);
    backward(&all);
    assert_true(same(&all.pass.y, &wanted.pass.y));
    assert_true(same(&all.pass.ht, &wanted.pass.ht));
    if (all.pass.ct.data) assert_true(same(&all.pass.ct, &wanted.pass.ct));
    assert_true(same(&all.gradients.x, &wanted.gradients.x));
    assert_true(same(&all.gradients.h0, &wanted.gradients.h0));
    double *got = calloc((size_t)count, sizeof *got), *sums = wanted.tape;
    copy_gradients(all.network, got);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - sums[i]) <= 1e-12 * (1 + fabs(sums[i]))))
            fail_msg("kind %d: gradient %d is %.12g, apart %.12g", (int)options.kind, (int)i, got[i], sums[i]);
    free(got);
    close_job(&all);
    free(wanted.tape);
    free_pass(&wanted);
    dpcr_recurrent_destroy(wanted.network);
}

static void test_resets_equal_separate(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k++)
        for (int packed = 0; packed < 2; packed++) {
            if (!sampled((int64_t)(2 * k) + packed)) continue;
            dpcr_recurrent_options options = cell_of(k, 3, 9);
            options.dtype = DPCR_F64;
            options.layers = 2;
            options.bidirectional = 1;
            check_resets(context, options, packed);
        }
    dpcr_context_destroy(context);
}

static const dpcr_solve_options methods[] = {
    {.size = sizeof(dpcr_solve_options),
     .method = DPCR_METHOD_OVERLAP,
     .backward = DPCR_SCHEME_OVERLAP,
     .chunk = 16,
     .warm_up = 8,
     .atol = -1,
     .rtol = -1},
    {.size = sizeof(dpcr_solve_options),
     .method = DPCR_METHOD_NEWTON,
     .scheme = DPCR_SCHEME_PCR,
     .backward = DPCR_SCHEME_PCR,
     .atol = 1e-12,
     .rtol = 1e-12},
};
enum { METHODS = sizeof methods / sizeof methods[0] };

// Every method goes with resets; where one lies in each warm-up, chunks start from the loop's own bits, and none is
// run again.
static void test_resets_by_all_methods(void **state) {
    (void)state;
    enum { STEPS = 200, ROWS = 2 };
    unsigned char every[STEPS * ROWS] = {0};
    for (int t = 0; t < STEPS; t++) every[t * ROWS] = every[t * ROWS + 1] = t % 8 == 3;
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k++) {
        dpcr_recurrent_options options = cell_of(k, 3, 8);
        options.dtype = DPCR_F64;
        job loop = random_job(context, options, STEPS, ROWS);
        loop.pass.resets = every;
        open_as(&loop, (dpcr_recurrent_plan_options){0}, the_loop);
        forward(&loop);
        backward(&loop);
        for (int m = 0; m < METHODS; m++) {
            job j = random_job(context, options, STEPS, ROWS);
            dpcr_solve_report report = {.size = sizeof report};
            j.pass.resets = every;
            open_as(&j, (dpcr_recurrent_plan_options){0}, methods[m]);
            assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, &report, NULL),
                             DPCR_OK);
            backward(&j);
            if (m == 0) assert_true(report.sweeps == 1 && same(&j.pass.y, &loop.pass.y));
            for (int64_t i = 0; i < count_of(&j.pass.y); i++)
                assert_true(fabs(get(&j.pass.y, i) - get(&loop.pass.y, i)) < 1e-10);
            for (int64_t i = 0; i < count_of(&j.gradients.x); i++)
                assert_true(fabs(get(&j.gradients.x, i) - get(&loop.gradients.x, i)) < 1e-9);
            for (int64_t i = 0; i < count_of(&j.gradients.h0); i++)
                assert_true(fabs(get(&j.gradients.h0, i) - get(&loop.gradients.h0, i)) < 1e-9);
            close_job(&j);
        }
        close_job(&loop);
    }
    dpcr_context_destroy(context);
}

// ---- dropout ----

static bool is_dropped(double p, uint64_t seed, uint64_t call, int64_t layer, int64_t t, int64_t b, int64_t i) {
    const uint64_t own = dpcri_random_u64(seed, DPCRI_STREAM_DROPOUT | (uint64_t)layer, call);
    uint32_t words[4];
    dpcri_random_block(own, (uint64_t)t << 32 | (uint64_t)b, (uint64_t)i / 4, words);
    return words[i % 4] < (uint64_t)(p * 0x1p32);
}

static double mask(const dpcr_array *from, const dpcr_array *to, double p, uint64_t seed, uint64_t call) {
    const int64_t width = from->shape[2], rows = from->shape[1];
    int64_t dropped = 0;
    for (int64_t i = 0; i < count_of(from); i++) {
        const bool out = is_dropped(p, seed, call, 0, i / width / rows, i / width % rows, i % width);
        dropped += out;
        put(to, i, out ? 0 : (double)((float)get(from, i) * (float)(1 / (1 - p))));
    }
    return (double)dropped / (double)count_of(from);
}

static void copy_parameters(dpcr_recurrent *from, int64_t offset, dpcr_recurrent *to) {
    int64_t count, all;
    const float *f = dpcr_recurrent_vector(from, &all);
    float *v = dpcr_recurrent_vector(to, &count);
    memcpy(v, f + offset, (size_t)count * sizeof *v);
}

// Two layers with dropout between them are two networks of one layer with the mask in between: every bit, both ways.
static void test_dropout(void **state) {
    (void)state;
    enum { STEPS = 31, ROWS = 3, H = 10 };
    const double p = 0.3;
    for (int threads = 1; threads <= 3; threads += 2) {
        dpcr_context *context = make_context(threads);
        for (size_t k = 0; k < 4; k++) {
            dpcr_recurrent_options options = cell_of(k, 5, H), upper;
            options.bidirectional = 1;
            job first = random_job(context, options, STEPS, ROWS);
            upper = options;
            upper.inputs = 2 * H;
            job second = random_job(context, upper, STEPS, ROWS);
            options.layers = 2;
            job both = random_job(context, options, STEPS, ROWS);
            int64_t below;
            dpcr_recurrent_vector(first.network, &below);
            copy_parameters(both.network, 0, first.network);
            copy_parameters(both.network, below, second.network);
            memset(both.pass.h0.data, 0, (size_t)count_of(&both.pass.h0) * 8);
            job *const parts[] = {&first, &second, &both};
            for (int i = 0; i < 3; i++) {
                memset(parts[i]->pass.h0.data, 0, (size_t)count_of(&parts[i]->pass.h0) * 8);
                if (parts[i]->pass.c0.data) memset(parts[i]->pass.c0.data, 0, (size_t)count_of(&parts[i]->pass.c0) * 8);
                open_as(parts[i], (dpcr_recurrent_plan_options){.dropout = p, .recompute = i == 2 && threads > 1},
                        the_loop);
            }
            both.pass.dropout_seed = 77, both.pass.dropout_call = 5 + k;
            forward(&both);
            forward(&first);
            const double share = mask(&first.pass.y, &second.pass.x, p, 77, 5 + k);
            assert_true(fabs(share - p) < 0.06);
            forward(&second);
            assert_true(same(&both.pass.y, &second.pass.y));
            backward(&both);
            backward(&second);
            mask(&second.gradients.x, &first.gradients.y, p, 77, 5 + k);
            backward(&first);
            assert_true(same(&both.gradients.x, &first.gradients.x));
            int64_t count;
            dpcr_recurrent_vector(both.network, &count);
            const float *g = dpcr_recurrent_gradient_vector(both.network),
                        *a = dpcr_recurrent_gradient_vector(first.network),
                        *b = dpcr_recurrent_gradient_vector(second.network);
            assert_memory_equal(g, a, (size_t)below * sizeof *g);
            assert_memory_equal(g + below, b, (size_t)(count - below) * sizeof *g);
            both.pass.dropout_call++;  // another call has other masks
            forward(&both);
            assert_false(same(&both.pass.y, &second.pass.y));
            for (int i = 0; i < 3; i++) close_job(parts[i]);
        }
        dpcr_context_destroy(context);
    }
}

// Everything dropped: the upper layer sees zeros. And nothing is dropped where the plan is not for training.
static void test_dropout_at_its_ends(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_recurrent_options options = cell_of(2, 5, 6);
    options.layers = 2;
    job j = random_job(context, options, 8, 2);
    dpcr_recurrent_plan_options o = {.dropout = 1};
    open_as(&j, o, the_loop);
    forward(&j);
    const dpcr_array kept = alike(&j.pass.y);
    memcpy(kept.data, j.pass.y.data, (size_t)count_of(&kept) * sizeof(float));
    put(&j.pass.x, 0, 9);
    forward(&j);
    assert_true(same(&kept, &j.pass.y));
    backward(&j);
    for (int64_t i = 0; i < count_of(&j.gradients.x); i++) assert_true(get(&j.gradients.x, i) == 0);
    close_plan(&j);
    o = (dpcr_recurrent_plan_options){.size = sizeof o, .length = 8, .batch = 2, .dropout = 0.5};
    for (int way = 0; way < 2; way++) {
        assert_int_equal(dpcr_recurrent_plan_create(j.network, &o, &j.plan, NULL), DPCR_OK);
        j.bytes = dpcr_recurrent_plan_workspace(j.plan);
        j.workspace = aligned_alloc(64, (j.bytes + 127) / 64 * 64);
        j.tape = NULL;
        forward(&j);
        if (way == 0) memcpy(kept.data, j.pass.y.data, (size_t)count_of(&kept) * sizeof(float));
        assert_true(same(&kept, &j.pass.y));
        close_plan(&j);
        o.dropout = 0;
    }
    free(kept.data);
    o.dropout = 1.5;
    dpcr_error error = {0};
    assert_int_equal(dpcr_recurrent_plan_create(j.network, &o, &j.plan, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "dropout is 1.5"));
    o.dropout = 0;
    o.solve = (dpcr_solve_options){.size = sizeof o.solve, .guess = DPCR_GUESS_GIVEN};
    assert_int_equal(dpcr_recurrent_plan_create(j.network, &o, &j.plan, &error), DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "guess is given"));
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
    dpcr_context_destroy(context);
}

// ---- recompute ----

// Long enough for several windows of what is made again, in every order in which a chain lies.
static void check_recompute(dpcr_context *context, dpcr_recurrent_options options, int form, dpcr_solve_options solve) {
    enum { STEPS = 300, ROWS = 3 };
    static const int64_t ends[ROWS] = {300, 120, 299};
    static unsigned char some[STEPS * ROWS];
    some[150 * ROWS] = some[9 * ROWS + 1] = 1;
    job jobs[2];
    double *sums[2];
    int64_t count;
    for (int way = 0; way < 2; way++) {
        job *j = &jobs[way];
        *j = random_job(context, options, STEPS, ROWS);
        if (form) j->pass.lengths = memcpy(j->lengths, ends, sizeof ends), j->pass.resets = some;
        open_as(j, (dpcr_recurrent_plan_options){.recompute = way}, solve);
        forward(j);
        backward(j);
        dpcr_recurrent_vector(j->network, &count);
        sums[way] = calloc((size_t)count, sizeof(double));
        copy_gradients(j->network, sums[way]);
    }
    assert_true(same(&jobs[0].pass.y, &jobs[1].pass.y));
    assert_true(same(&jobs[0].gradients.x, &jobs[1].gradients.x));
    assert_true(same(&jobs[0].gradients.h0, &jobs[1].gradients.h0));
    assert_memory_equal(sums[0], sums[1], (size_t)count * sizeof(double));
    const size_t whole = dpcr_recurrent_plan_tape(jobs[0].plan), small = dpcr_recurrent_plan_tape(jobs[1].plan);
    const size_t step = (size_t)(STEPS * ROWS) * dpcr_dtype_size(jobs[0].pass.x.dtype);
    const int64_t gates = options.kind == DPCR_LSTM || options.kind == DPCR_GRU ? 4 : 1;
    assert_true(whole - small >= 4 * step * (size_t)(gates * options.hidden));  // two layers of two directions
    for (int way = 0; way < 2; way++) {
        free(sums[way]);
        close_job(&jobs[way]);
    }
}

static void test_recompute(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k++)
        for (int form = 0; form < 2; form++)
            for (int m = -1; m < METHODS; m++) {
                static int64_t runs;
                if (!sampled(runs++)) continue;
                if (m == 1 && k % 3 != (size_t)form) continue;  // newton is slow
                dpcr_recurrent_options options = cell_of(k, 3, 11);
                options.layers = 2;
                options.bidirectional = 1;
                dpcr_solve_options solve = m < 0 ? the_loop : methods[m];
                if (m == 1) solve.atol = solve.rtol = 1e-5;
                check_recompute(context, options, form, solve);
            }
    // Weights so wide that inputs are copied: a tape made again needs their place too.
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_LSTM; kind += 1 + 2 * TESTS_SANITIZED) {
        const dpcr_recurrent_options wide = {.size = sizeof wide,
                                             .kind = (dpcr_recurrent_kind)kind,
                                             .dtype = DPCR_F32,
                                             .inputs = 1024,
                                             .hidden = 128,
                                             .layers = 2,
                                             .bidirectional = 1,
                                             .seed = 3};
        check_recompute(context, wide, 0, the_loop);
    }
    dpcr_recurrent_options gru = cell_of(2, 3, 4);
    job j = random_job(context, gru, 9, 2);
    open_as(&j, (dpcr_recurrent_plan_options){.recompute = 1}, the_loop);
    assert_int_equal(dpcr_recurrent_plan_tape(j.plan), 0);  // all that is kept lies in y
    close_job(&j);
    dpcr_context_destroy(context);
}

// Variants too wide for Jacobians, with a tape and without.
static void test_wide_variants(void **state) {
    (void)state;
    dpcr_context *context = make_context(2);
    for (size_t k = 4; k < CELLS; k++) {
        job taped = random_job(context, cell_of(k, 3, 141), 6, 3),
            plain = random_job(context, cell_of(k, 3, 141), 6, 3);
        open_plan(&taped, the_loop, true);
        open_plan(&plain, the_loop, false);
        forward(&taped);
        forward(&plain);
        assert_true(same(&taped.pass.y, &plain.pass.y));
        backward(&taped);
        close_job(&taped);
        close_job(&plain);
    }
    dpcr_context_destroy(context);
}

// Gates that are all but closed have digits of their own: a clip beyond all numbers changes none of them, and in double
// they are the same beside their size.
static void test_closed_variants(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    const dpcr_recurrent_options lstm = {.kind = DPCR_LSTM, .inputs = 4, .hidden = 19};
    dpcr_recurrent_options clipped = lstm, twice = lstm;
    clipped.clip = 1000, twice.dtype = DPCR_F64;
    job jobs[] = {random_job(context, lstm, 9, 3), random_job(context, clipped, 9, 3),
                  random_job(context, twice, 9, 3)};
    for (int i = 0; i < 3; i++) {
        for (int64_t k = 0; k < dpcr_recurrent_parameter_count(jobs[i].network); k++) {
            char name[64];
            dpcr_array to, from;
            assert_int_equal(dpcr_recurrent_parameter(jobs[i].network, k, name, sizeof name, &to, NULL, NULL), DPCR_OK);
            assert_int_equal(dpcr_recurrent_parameter(jobs[0].network, k, name, sizeof name, &from, NULL, NULL),
                             DPCR_OK);
            for (int64_t q = 0; q < count_of(&to); q++) {
                const bool gate = strcmp(name, "bias_ih_l0") == 0 && q / lstm.hidden != 2;
                put(&to, q, get(&from, q) - (gate && i == 0 ? 12 : 0));
            }
        }
        for (int64_t q = 0; q < count_of(&jobs[i].pass.x); q++) put(&jobs[i].pass.x, q, get(&jobs[0].pass.x, q));
        memset(jobs[i].pass.h0.data, 0, (size_t)count_of(&jobs[i].pass.h0) * 8);
        memset(jobs[i].pass.c0.data, 0, (size_t)count_of(&jobs[i].pass.c0) * 8);
        open_plan(&jobs[i], the_loop, false);
        forward(&jobs[i]);
    }
    for (int64_t q = 0; q < count_of(&jobs[2].pass.y); q++) {
        const double wanted = get(&jobs[2].pass.y, q), most = 2e-5 * fabs(wanted) + 1e-16;
        assert_true(fabs(wanted) < 1e-9);
        assert_float_equal(get(&jobs[0].pass.y, q), wanted, most);
        assert_float_equal(get(&jobs[1].pass.y, q), wanted, most);
    }
    for (int i = 0; i < 3; i++) close_job(&jobs[i]);
    dpcr_context_destroy(context);
}

// A plan that is not for training has no weights for the way back, so its chains are not tried on it either.
static void test_plans_not_for_training(void **state) {
    (void)state;
    const dpcr_solve_options open = {.size = sizeof open};
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < CELLS; k++) {
        job j = random_job(context, cell_of(k, 3, k < 4 ? 700 : 141), 130, 1);  // wide: reading them would fault
        open_plan(&j, open, false);
        forward(&j);
        dpcr_candidate candidate = {.size = sizeof candidate};
        const dpcr_solve_plan *plan = dpcr_recurrent_plan_chain(j.plan, 0);
        assert_true(dpcr_solve_plan_candidate(plan, 0, &candidate));
        for (int64_t i = 0; dpcr_solve_plan_candidate(plan, i, &candidate); i++) assert_false(candidate.backward);
        close_plan(&j);
        // Nor is a scheme for it looked at, or room left.
        dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
        open_plan(&j, loop, false);
        const size_t bytes = j.bytes;
        close_plan(&j);
        loop.backward = DPCR_SCHEME_OVERLAP;
        open_plan(&j, loop, false);
        assert_true(j.bytes <= bytes && bytes < (1 << 24));
        close_job(&j);
    }
    dpcr_context_destroy(context);
}

// A pass of a caller who knows nothing of resets and dropout.
static void test_older_passes(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    job j = random_job(context, cell_of(2, 3, 4), 9, 2);
    open_plan(&j, the_loop, true);
    j.pass.size = offsetof(dpcr_recurrent_pass, resets);
    j.pass.resets = (const unsigned char *)1;
    forward(&j);
    backward(&j);
    j.pass.size = sizeof j.pass;
    dpcr_error error = {0};
    assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, NULL, &error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "the option resets"));
    j.pass.size = 8;
    assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, NULL, &error),
                     DPCR_ERROR_ARGUMENT);
    close_job(&j);
    dpcr_context_destroy(context);
}

// A name that was cut would be another parameter's.
static void test_names_have_room(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_recurrent_options options = cell_of(2, 3, 4);
    options.size = sizeof options;
    options.layers = 2;
    options.bidirectional = 1;
    dpcr_recurrent *network = NULL;
    dpcr_error error = {0};
    assert_int_equal(dpcr_recurrent_create(context, &options, &network, NULL), DPCR_OK);
    for (int64_t i = 0; i < dpcr_recurrent_parameter_count(network); i++) {
        char name[64], cut[64] = "before";
        dpcr_array array = {0};
        assert_int_equal(dpcr_recurrent_parameter(network, i, name, sizeof name, NULL, NULL, NULL), DPCR_OK);
        assert_int_equal(dpcr_recurrent_parameter(network, i, cut, strlen(name), &array, NULL, &error),
                         DPCR_ERROR_ARGUMENT);
        assert_true(!strcmp(cut, "before") && !array.data && strstr(error.text, name));
        assert_int_equal(dpcr_recurrent_parameter(network, i, cut, strlen(name) + 1, &array, NULL, NULL), DPCR_OK);
        assert_string_equal(cut, name);
    }
    dpcr_recurrent_destroy(network);
    dpcr_context_destroy(context);
}

// Reports lie side by side as large as the caller's program has them, an older one or a newer.
static void test_reports_of_other_programs(void **state) {
    (void)state;
    enum { CHAINS = 3, ROOM = 2 * sizeof(dpcr_solve_report) };
    dpcr_context *context = make_context(1);
    dpcr_recurrent_options options = cell_of(2, 3, 4);
    options.layers = CHAINS;
    job j = random_job(context, options, 30, 2);
    dpcr_solve_options solve = {.size = sizeof solve, .method = DPCR_METHOD_OVERLAP, .backward = DPCR_SCHEME_OVERLAP};
    dpcr_error error = {0};
    open_plan(&j, solve, true);
    dpcr_recurrent_zero_gradients(j.network);
    const size_t sizes[] = {offsetof(dpcr_solve_report, residual_history), sizeof(dpcr_solve_report) + 16};
    for (int k = 0; k < 2; k++) {
        _Alignas(16) unsigned char room[CHAINS + 1][ROOM], *at = room[0];
        memset(room, 0xa5, sizeof room);
        for (int c = 0; c < CHAINS; c++) {
            memset(at + (size_t)c * sizes[k], 0, sizes[k]);
            memcpy(at + (size_t)c * sizes[k], &sizes[k], sizeof sizes[k]);
        }
        for (int back = 0; back < 2; back++) {
            const dpcr_status status = back
                                           ? dpcr_recurrent_backward(j.plan, &j.pass, &j.gradients, j.tape, j.workspace,
                                                                     j.bytes, (dpcr_solve_report *)(void *)at, &error)
                                           : dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes,
                                                                    (dpcr_solve_report *)(void *)at, &error);
            if (status != DPCR_OK) fail_msg("%s", error.text);
            for (int c = 0; c < CHAINS; c++) {
                dpcr_solve_report told = {0};
                memcpy(&told, at + (size_t)c * sizes[k], offsetof(dpcr_solve_report, seconds));
                assert_true(told.size == sizes[k] && told.method == DPCR_METHOD_OVERLAP && told.reason > 0 &&
                            told.evaluations > 0);
            }
        }
        for (size_t i = CHAINS * sizes[k]; i < sizeof room; i++) assert_int_equal(at[i], 0xa5);
        size_t other = sizes[k] + 8;
        memcpy(at + sizes[k], &other, sizeof other);
        assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes,
                                                (dpcr_solve_report *)(void *)at, &error),
                         DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "report 1's size is"));
    }
    close_job(&j);
    dpcr_context_destroy(context);
}

// Options of a solve are read as far as their size says, like everything else: what lies behind it is not asked for.
static void test_older_solve_options(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    job j = random_job(context, cell_of(2, 3, 4), 30, 2);
    dpcr_recurrent_plan_options p = {.size = sizeof p, .length = 30, .batch = 2, .training = 1};
    p.solve = (dpcr_solve_options){.method = DPCR_METHOD_OVERLAP, .backward = DPCR_SCHEME_OVERLAP, .chunk = -1};
    dpcr_error error = {0};
    p.solve.size = offsetof(dpcr_solve_options, method);
    assert_int_equal(dpcr_recurrent_plan_create(j.network, &p, &j.plan, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "options.solve.size is 8"));
    p.solve.size = offsetof(dpcr_solve_options, backward);
    assert_int_equal(dpcr_recurrent_plan_create(j.network, &p, &j.plan, NULL), DPCR_OK);
    const dpcr_solve_plan *chain = dpcr_recurrent_plan_chain(j.plan, 0);
    assert_int_equal(dpcr_solve_plan_method(chain), DPCR_METHOD_OVERLAP);
    assert_int_equal(dpcr_solve_plan_backward(chain), DPCR_SCHEME_SEQUENTIAL);
    dpcr_recurrent_plan_destroy(j.plan);
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
    dpcr_context_destroy(context);
}

// ---- parameters ----

static int64_t numbers_of(const dpcr_array *array) {
    int64_t count = 1;
    for (int32_t i = 0; i < array->ndim; i++) count *= array->shape[i];
    return count;
}

static void test_parameters_set_together(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    for (dpcr_recurrent_kind kind = DPCR_RNN_TANH; kind <= DPCR_MINGRU; kind++) {
        dpcr_recurrent_options options = {.size = sizeof options, .kind = kind, .inputs = 3, .hidden = 5, .layers = 2};
        options.bidirectional = 1;
        options.seed = 1;
        options.projection = kind == DPCR_LSTM ? 2 : 0;
        dpcr_recurrent *from, *to, *old;
        assert_int_equal(dpcr_recurrent_create(context, &options, &from, NULL), DPCR_OK);
        options.seed = 2;
        assert_int_equal(dpcr_recurrent_create(context, &options, &to, NULL), DPCR_OK);
        assert_int_equal(dpcr_recurrent_create(context, &options, &old, NULL), DPCR_OK);
        const void *tensors[32];
        const int64_t count = dpcr_recurrent_parameter_count(from), left = 1;
        assert_in_range(count, 1, 32);
        dpcr_array array, was;
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(dpcr_recurrent_parameter(from, i, NULL, 0, &array, NULL, NULL), DPCR_OK);
            tensors[i] = i == left ? NULL : array.data;
        }
        dpcr_recurrent_set_parameters(to, tensors);
        for (int64_t i = 0; i < count; i++) {
            dpcr_recurrent_parameter(i == left ? old : from, i, NULL, 0, &was, NULL, NULL);
            dpcr_recurrent_parameter(to, i, NULL, 0, &array, NULL, NULL);
            assert_true(same(&array, &was));
        }
        int64_t numbers;
        dpcr_recurrent_vector(to, &numbers);
        float *gradients = dpcr_recurrent_gradient_vector(to);
        for (int64_t k = 0; k < numbers; k++) gradients[k] = (float)(k + 1);
        float *copies[32];  // each with a number beyond, which stays as it is
        void *places[32];
        for (int64_t i = 0; i < count; i++) {
            dpcr_recurrent_parameter(to, i, NULL, 0, NULL, &array, NULL);
            const int64_t own = numbers_of(&array);
            copies[i] = calloc((size_t)own + 1, sizeof(float));
            assert_non_null(copies[i]);
            places[i] = i == left ? NULL : copies[i];
        }
        dpcr_recurrent_get_gradients(to, places);
        for (int64_t i = 0; i < count; i++) {
            dpcr_recurrent_parameter(to, i, NULL, 0, NULL, &array, NULL);
            const int64_t own = numbers_of(&array);
            for (int64_t k = 0; k < own; k++)
                assert_true(copies[i][k] == (i == left ? 0 : ((const float *)array.data)[k]));
            assert_true(copies[i][own] == 0);
            free(copies[i]);
        }
        dpcr_recurrent *const made[] = {from, to, old};
        for (int i = 0; i < 3; i++) dpcr_recurrent_destroy(made[i]);
    }
    dpcr_recurrent_set_parameters(NULL, NULL);
    dpcr_recurrent_get_gradients(NULL, NULL);
    dpcr_context_destroy(context);
}

// SCALED is a larger number than CONVERGED and a weaker word.
static void test_the_worst_of_chains(void **state) {
    (void)state;
    static const struct {
        dpcr_reason first, second, worst;
    } cases[] = {{DPCR_REASON_FALLBACK, DPCR_REASON_CONVERGED, DPCR_REASON_FALLBACK},
                 {DPCR_REASON_CONVERGED, DPCR_REASON_FALLBACK, DPCR_REASON_FALLBACK},
                 {DPCR_REASON_EXACT, DPCR_REASON_RESIDUAL_ONLY, DPCR_REASON_RESIDUAL_ONLY},
                 {DPCR_REASON_FALLBACK, DPCR_REASON_NOT_CONVERGED, DPCR_REASON_NOT_CONVERGED},
                 {DPCR_REASON_SEQUENTIAL, DPCR_REASON_SEQUENTIAL, DPCR_REASON_SEQUENTIAL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dpcr_solve_report reports[] = {{.reason = cases[i].first, .residual = 0.25},
                                             {.reason = cases[i].second, .residual = 0.5}};
        dpcr_reason reason;
        double residual;
        dpcri_recurrent_worst(reports, 2, &reason, &residual);
        assert_int_equal(reason, cases[i].worst);
        assert_true(residual == 0.5);
        dpcri_recurrent_worst(reports, 1, &reason, &residual);
        assert_int_equal(reason, cases[i].first);
        assert_true(residual == 0.25);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resets_equal_separate),
        cmocka_unit_test(test_resets_by_all_methods),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_dropout_at_its_ends),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_plans_not_for_training),
        cmocka_unit_test(test_older_passes),
        cmocka_unit_test(test_older_solve_options),
        cmocka_unit_test(test_reports_of_other_programs),
        cmocka_unit_test(test_names_have_room),
        cmocka_unit_test(test_wide_variants),
        cmocka_unit_test(test_closed_variants),
        cmocka_unit_test(test_parameters_set_together),
        cmocka_unit_test(test_the_worst_of_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
