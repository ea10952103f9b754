// SPDX-License-Identifier: MIT
// What the calls of linear chains promise beside numbers: refusals in words, memory that is refused, empty chains, and
// what is never read.
#include "budget.h"
#include "chain/auto.h"
#include "chain/chain_internal.h"
#include "chain_problem.h"
#include "kern/squares.h"
#include "rt/core.h"

static void expect(dpcr_status got, dpcr_status wanted, dpcr_error *error, const char *words) {
    if (got != wanted || error->status != wanted || !strstr(error->text, words) || strchr(error->text, '\n'))
        fail_msg("got %s \"%s\", wanted %s with \"%s\"", dpcr_status_name(got), error->text, dpcr_status_name(wanted),
                 words);
    *error = (dpcr_error){0};
}

static void plan_refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    dpcr_chain_plan *plan = NULL;
    const dpcr_chain_shape good = {.size = sizeof good,
                                   .length = 8,
                                   .batch = 2,
                                   .transition = dpcr_transition_square(DPCR_DENSE, 3, 0),
                                   .dtype = DPCR_F32};
    const dpcr_chain_options fine = {.size = sizeof fine};
#define PLAN(s, o) dpcr_chain_plan_create(contexts[1], s, o, &plan, &e)
    expect(dpcr_chain_plan_create(NULL, &good, &fine, &plan, &e), DPCR_ERROR_ARGUMENT, &e, "context is NULL");
    expect(dpcr_chain_plan_create(contexts[1], NULL, &fine, &plan, &e), DPCR_ERROR_ARGUMENT, &e, "shape is NULL");
    expect(dpcr_chain_plan_create(contexts[1], &good, &fine, NULL, &e), DPCR_ERROR_ARGUMENT, &e, "plan is NULL");
    dpcr_chain_shape s = good;
    dpcr_chain_options o = fine;
    s.size = 8;
    expect(PLAN(&s, &o), DPCR_ERROR_ARGUMENT, &e, "shape.size");
    s = good;
    s.transition.cols = 2;
    expect(PLAN(&s, &o), DPCR_ERROR_UNSUPPORTED, &e, "3x2");
    s = good, s.length = -1;
    expect(PLAN(&s, &o), DPCR_ERROR_ARGUMENT, &e, "length -1");
    s = good, s.dtype = (dpcr_dtype)9;
    expect(PLAN(&s, &o), DPCR_ERROR_ARGUMENT, &e, "dtype is 9");
    s = good, s.length = INT64_MAX / 2;
    expect(PLAN(&s, &o), DPCR_ERROR_OVERFLOW, &e, "address space");
    s = good, s.length = INT64_MAX / 64, o.scheme = DPCR_SCHEME_PCR;
    expect(PLAN(&s, &o), DPCR_ERROR_OVERFLOW, &e, "sequential needs none");
    s = good, s.transition = dpcr_transition_square(DPCR_BLOCK, 6, 4);
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "divisor");
    s = good, s.transition = dpcr_transition_square((dpcr_structure)17, 6, 4);
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "structure is 17");
    s = good, s.transition = dpcr_transition_square(DPCR_DIAGONAL, 0, 0);
    expect(PLAN(&s, &fine), DPCR_ERROR_ARGUMENT, &e, "positive");
    o = fine, o.size = 3;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "options.size");
    o = fine, o.scheme = (dpcr_scheme)40;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "scheme is 40");
    o = fine, o.chunk = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "chunk");
    o = fine, o.levels = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "levels");
    o = fine, o.warm_up = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "warm_up");
    o = fine, o.max_sweeps = -1;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "max_sweeps");
    o = fine, o.tolerance = NAN;
    expect(PLAN(&good, &o), DPCR_ERROR_ARGUMENT, &e, "tolerance");
    s = good, s.dtype = DPCR_U32, o = fine, o.tolerance = 1, o.scheme = DPCR_SCHEME_OVERLAP;
    expect(PLAN(&s, &o), DPCR_ERROR_UNSUPPORTED, &e, "tolerance 0 works");
#undef PLAN
    assert_null(plan);
    assert_true(dpcr_chain_plan_create(contexts[1], &good, NULL, &plan, NULL) == DPCR_OK);
    assert_non_null(strstr(dpcr_chain_plan_sentence(plan), "sequential: chunked would"));
    assert_int_equal(dpcr_chain_plan_scheme(plan), DPCR_SCHEME_SEQUENTIAL);
    dpcr_chain_plan_destroy(plan);
    dpcr_chain_plan_destroy(NULL);
    dpcr_scheme scheme;
    for (int i = 0; i < DPCR_SCHEME_COUNT; i++) {
        assert_int_equal(dpcr_scheme_find(dpcr_scheme_name((dpcr_scheme)i), &scheme, NULL), DPCR_OK);
        assert_int_equal(scheme, i);
    }
    expect(dpcr_scheme_find("quick", &scheme, &e), DPCR_ERROR_ARGUMENT, &e, "quick");
    assert_string_equal(dpcr_scheme_name((dpcr_scheme)99), "unknown");
}

static dpcr_scheme chosen_of(dpcri_core core, dpcr_transition t, dpcr_dtype dtype, int64_t length, int threads) {
    const dpcr_chain_shape shape = {
        .size = sizeof shape, .transition = t, .dtype = dtype, .length = length, .batch = 1};
    const dpcri_core own = dpcri_core_kind();
    dpcr_chain_plan *plan = NULL;
    dpcri_core_let_be(core);
    assert_int_equal(dpcr_chain_plan_create(contexts[threads], &shape, NULL, &plan, NULL), DPCR_OK);
    dpcri_core_let_be(own);
    const dpcr_scheme scheme = dpcr_chain_plan_scheme(plan);
    dpcr_chain_plan_destroy(plan);
    return scheme;
}

static dpcr_scheme chosen(dpcri_core core, dpcr_structure structure, int64_t w, int64_t length, int threads) {
    return chosen_of(core, dpcr_transition_square(structure, w, 0), DPCR_F32, length, threads);
}

// Products of 4 by 4 matrices pay on one thread where a vector of 512 bits takes one pass through the units, and not
// where it takes two (Zen 4), where its shuffles share one unit (Xeon), or where vectors are narrower.
static void auto_counts_the_passes_of_a_vector(void **state) {
    (void)state;
    const bool wide = dpcri_isa_level() == DPCRI_AVX512;
    for (int core = DPCRI_CORE_WHOLE; core <= DPCRI_CORE_SHARED; core++)
        assert_int_equal(chosen((dpcri_core)core, DPCR_DENSE, 4, 1 << 14, 1),
                         wide && core == DPCRI_CORE_WHOLE ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL);
}

// Elements that leave most of a vector idle go by chunks, those that fill one by the loop.
static void auto_composes_few_elements(void **state) {
    (void)state;
    if (dpcri_isa_level() != DPCRI_AVX512) skip();
    for (int core = DPCRI_CORE_WHOLE; core <= DPCRI_CORE_SHARED; core += DPCRI_CORE_SHARED)
        for (int64_t w = 1; w <= 16; w *= 2)
            assert_int_equal(chosen((dpcri_core)core, DPCR_DIAGONAL, w, 1 << 14, 1),
                             w <= 4 ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL);
}

// Two blocks of 2 go by chunks at every level, on every core; two of 4 on one thread, and blocks of the ring, whose
// kernels are the definition's, by the loop.
static void auto_composes_few_blocks(void **state) {
    (void)state;
    const dpcr_transition twos = dpcr_transition_square(DPCR_BLOCK, 4, 2),
                          fours = dpcr_transition_square(DPCR_BLOCK, 8, 4);
    for (int core = DPCRI_CORE_WHOLE; core <= DPCRI_CORE_SHARED; core++)
        for (int threads = 1; threads <= 2; threads++) {
            assert_int_equal(chosen_of((dpcri_core)core, twos, DPCR_F32, 1 << 14, threads), DPCR_SCHEME_CHUNKED);
            assert_int_equal(chosen_of((dpcri_core)core, twos, DPCR_U32, 1 << 14, threads), DPCR_SCHEME_SEQUENTIAL);
            if (threads == 1)
                assert_int_equal(chosen_of((dpcri_core)core, fours, DPCR_F32, 1 << 14, 1), DPCR_SCHEME_SEQUENTIAL);
            // A Zen 3 takes 8.6 ns a step of four blocks in windows, 7.1 by the loop.
            if (dpcri_isa_level() == DPCRI_AVX2 && core != DPCRI_CORE_SHARED)
                assert_int_equal(
                    chosen_of((dpcri_core)core, dpcr_transition_square(DPCR_BLOCK, 8, 2), DPCR_F32, 1 << 14, threads),
                    DPCR_SCHEME_SEQUENTIAL);
        }
}

// What does not lie in a Xeon's second-level cache comes so slowly that windows of few elements lose to the loop.
static void auto_knows_a_far_cache(void **state) {
    (void)state;
    if (dpcri_isa_level() != DPCRI_AVX512) skip();
    assert_int_equal(chosen(DPCRI_CORE_SHARED, DPCR_DIAGONAL, 3, 1 << 14, 1), DPCR_SCHEME_CHUNKED);
    for (int64_t w = 3; w <= 64; w += w < 4 ? 1 : w)
        assert_int_equal(chosen(DPCRI_CORE_SHARED, DPCR_DIAGONAL, w, 1 << 18, 1), DPCR_SCHEME_SEQUENTIAL);
    assert_int_equal(chosen(DPCRI_CORE_SHARED, DPCR_DENSE, 1, 1 << 18, 1), DPCR_SCHEME_CHUNKED);
}

// Where kern/squares.h serves, windows of so few steps run on one thread, whatever there are: the choice is the same.
static void auto_counts_threads_that_work(void **state) {
    (void)state;
    if (!dpcri_summary_at(dpcri_isa_level(), DPCR_F32, DPCR_DENSE, 4, false)) skip();
    for (int core = DPCRI_CORE_WHOLE; core <= DPCRI_CORE_SHARED; core++)
        for (int64_t length = 64; length <= 1024; length *= 2)
            assert_int_equal(chosen((dpcri_core)core, DPCR_DENSE, 4, length, 1),
                             chosen((dpcri_core)core, DPCR_DENSE, 4, length, 2));
    assert_int_equal(chosen(DPCRI_CORE_WHOLE, DPCR_DENSE, 4, 1024, 2), DPCR_SCHEME_CHUNKED);
}

// Where vectors take two turns: chunks of dense width 8 side by side gain on two threads what the third cache holds and
// nothing from memory. One thread gains where the loop waits longer than its bytes take, which is so with AVX-512;
// without vectors nothing does.
static void overlap_gains_from_caches(void **state) {
    (void)state;
    const dpcri_core core = dpcri_core_kind();
    const dpcri_isa level = dpcri_isa_level();
    dpcr_chain_shape shape = {.size = sizeof shape,
                              .transition = dpcr_transition_square(DPCR_DENSE, 8, 0),
                              .dtype = DPCR_F32,
                              .length = 1 << 14,
                              .batch = 1};
    const double run_ups = 1.1;
    dpcri_chain_place place = {0};
    dpcri_core_let_be(DPCRI_CORE_TURNS);
    for (place.threads = 1; place.threads <= 2; place.threads++)
        assert_int_equal(dpcri_chain_overlap_gain(&shape, DPCR_SCHEME_SEQUENTIAL, 64, &place, run_ups) > 0,
                         level >= DPCRI_AVX2 && (place.threads == 2 || level == DPCRI_AVX512));
    shape.length = 1 << 18;
    place.threads = 2;
    assert_true(dpcri_chain_overlap_gain(&shape, DPCR_SCHEME_SEQUENTIAL, 64, &place, run_ups) == 0);
    // A Xeon's third-level cache gives each of two threads what it gives one, and one no more than the loop gets.
    dpcri_core_let_be(DPCRI_CORE_SHARED);
    for (place.threads = 1; place.threads <= 2 && level == DPCRI_AVX512; place.threads++)
        assert_int_equal(dpcri_chain_overlap_gain(&shape, DPCR_SCHEME_SEQUENTIAL, 64, &place, run_ups) > 0,
                         place.threads == 2);
    dpcri_core_let_be(core);
}

static double seconds_of(dpcr_context *context, const dpcr_chain_shape *shape, dpcr_scheme scheme) {
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(context, shape, &options, &plan, NULL), DPCR_OK);
    const double seconds = dpcr_chain_plan_seconds(plan);
    dpcr_chain_plan_destroy(plan);
    return seconds;
}

static dpcr_context *context_of_one(void) {
    const dpcr_context_options options = {.size = sizeof options, .threads = 1};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static void describe_machine(dpcr_context *context, dpcr_machine m) {
    m.size = sizeof m;
    assert_int_equal(dpcr_context_set_machine(context, &m, NULL), DPCR_OK);
}

// Chunks of rows of elements side by side are no faster than the loop on one thread, and are on two.
static void elements_gain_by_threads_alone(void **state) {
    (void)state;
    for (int64_t w = 2; w <= 64; w *= 2) {
        const dpcr_chain_shape shape = {.size = sizeof shape,
                                        .transition = dpcr_transition_square(DPCR_DIAGONAL, w, 0),
                                        .dtype = DPCR_F32,
                                        .length = 1 << 14,
                                        .batch = 1};
        const double loop = seconds_of(contexts[1], &shape, DPCR_SCHEME_SEQUENTIAL);
        assert_in_range(1000 * seconds_of(contexts[1], &shape, DPCR_SCHEME_OVERLAP) / loop, 1000, 1300);
        assert_true(seconds_of(contexts[2], &shape, DPCR_SCHEME_OVERLAP) < 0.85 * loop);
    }
}

// Two cores that are described are two threads at hand.
static void a_described_machine_is_this_one(void **state) {
    (void)state;
    const dpcr_transition ts[] = {
        dpcr_transition_square(DPCR_DENSE, 1, 0), dpcr_transition_square(DPCR_DENSE, 2, 0),
        dpcr_transition_square(DPCR_DENSE, 4, 0), dpcr_transition_square(DPCR_DENSE, 9, 0),
        dpcr_transition_square(DPCR_BLOCK, 8, 2), dpcr_transition_square(DPCR_DIAGONAL, 16, 0)};
    dpcr_context *context = context_of_one();
    describe_machine(context, (dpcr_machine){.threads = 2});
    for (size_t i = 0; i < sizeof ts / sizeof *ts; i++)
        for (int64_t batch = 1; batch <= 8; batch += 7)
            for (int scheme = DPCR_SCHEME_SEQUENTIAL; scheme < DPCR_SCHEME_COUNT; scheme++) {
                const dpcr_chain_shape shape = {
                    .size = sizeof shape, .transition = ts[i], .dtype = DPCR_F32, .length = 1 << 11, .batch = batch};
                const double here = seconds_of(contexts[2], &shape, (dpcr_scheme)scheme);
                const double there = seconds_of(context, &shape, (dpcr_scheme)scheme);
                if (!(fabs(here - there) <= 1e-9 * here))
                    fail_msg("%s, case %zu, batch %d: %g here, %g there", dpcr_scheme_name((dpcr_scheme)scheme), i,
                             (int)batch, here, there);
            }
    dpcr_context_destroy(context);
}

// Each rate counts where it should: a loop of one sequence waits, however many cores there are; chunks go among them,
// until their ends, one after another, or the memory are all there is; pcr's levels wait for all cores.
static void a_described_machine_counts(void **state) {
    (void)state;
    dpcr_context *context = context_of_one();
    dpcr_chain_shape shape = {.size = sizeof shape,
                              .transition = dpcr_transition_square(DPCR_DENSE, 2, 0),
                              .dtype = DPCR_F32,
                              .length = 1 << 16,
                              .batch = 1};
    dpcr_machine here = {.size = sizeof here};
    assert_int_equal(dpcr_context_machine(context, &here, NULL), DPCR_OK);
    describe_machine(context, (dpcr_machine){.threads = 1});
    const double loop = seconds_of(context, &shape, DPCR_SCHEME_SEQUENTIAL);
    const double chunks = seconds_of(context, &shape, DPCR_SCHEME_CHUNKED);
    const double levels = seconds_of(context, &shape, DPCR_SCHEME_PCR);
    describe_machine(context, (dpcr_machine){.threads = 16, .region = 1e-6});
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_SEQUENTIAL) == loop);
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_CHUNKED) < chunks / 3);
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_PCR) < levels / 3);
    describe_machine(context, (dpcr_machine){.threads = 1e6, .region = 1e-5});
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_CHUNKED) > chunks / 100);
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_PCR) > 16 * 1e-5);
    // Chunks' ends wait for one another, however fast all else: 1024 or 512 of them, 1.9 ns each and more.
    describe_machine(context, (dpcr_machine){.threads = 16, .region = 1e-9, .flops = 1e6 * here.flops});
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_CHUNKED) > 0.9e-6);
    // Chunks that no fused kernel takes gain no more than their threads.
    double by_threads[2];
    for (int i = 0; i < 2; i++) {
        const dpcr_chain_options longer = {.size = sizeof longer, .scheme = DPCR_SCHEME_CHUNKED, .chunk = 500};
        dpcr_chain_plan *plan = NULL;
        describe_machine(context, (dpcr_machine){.threads = i ? 16 : 1});
        assert_int_equal(dpcr_chain_plan_create(context, &shape, &longer, &plan, NULL), DPCR_OK);
        by_threads[i] = dpcr_chain_plan_seconds(plan);
        dpcr_chain_plan_destroy(plan);
    }
    assert_true(by_threads[1] < by_threads[0] && by_threads[0] <= 16 * by_threads[1]);
    describe_machine(context, (dpcr_machine){.latency = 3 * here.latency});
    const double slow = seconds_of(context, &shape, DPCR_SCHEME_SEQUENTIAL);
    if (fabs(slow - 3 * loop) > 1e-9 * slow) fail_msg("a loop of %g s that waits three times as long: %g", loop, slow);
    describe_machine(context, (dpcr_machine){.flops = here.flops / 4});
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_SEQUENTIAL) == loop);
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_CHUNKED) > 3 * chunks);
    describe_machine(context, (dpcr_machine){.bandwidth = 1e6, .cache_bytes = {0, 0, 1e6}});
    shape.length = 1 << 20;
    const double far = (double)shape.length * 8 * sizeof(float) / 1e6;
    assert_true(fabs(seconds_of(context, &shape, DPCR_SCHEME_SEQUENTIAL) / far - 1) < 1e-9);
    describe_machine(context, (dpcr_machine){.bandwidth = 1e6, .cache_bytes = {0, 0, 1e9}});
    assert_true(seconds_of(context, &shape, DPCR_SCHEME_SEQUENTIAL) < far / 10);
    dpcr_context_destroy(context);
}

// AUTO goes by what is described: where waiting costs nothing there is the loop, where arithmetic costs nothing chunks;
// and overlap, which wants arithmetic, gains nothing where that is slow.
static void auto_goes_by_a_described_machine(void **state) {
    (void)state;
    dpcr_context *context = context_of_one();
    dpcr_chain_shape shape = {.size = sizeof shape,
                              .transition = dpcr_transition_square(DPCR_DENSE, 2, 0),
                              .dtype = DPCR_F32,
                              .length = 1 << 16,
                              .batch = 1};
    dpcri_chain_place place = {0};
    dpcr_machine here = {.size = sizeof here};
    assert_int_equal(dpcr_context_machine(context, &here, NULL), DPCR_OK);
    const dpcr_machine machines[] = {{.latency = here.latency / 1000}, {.flops = here.flops * 1000}};
    for (int i = 0; i < 2; i++) {
        dpcr_chain_plan *plan = NULL;
        describe_machine(context, machines[i]);
        assert_int_equal(dpcr_chain_plan_create(context, &shape, NULL, &plan, NULL), DPCR_OK);
        assert_int_equal(dpcr_chain_plan_scheme(plan), i ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL);
        dpcr_chain_plan_destroy(plan);
    }
    shape.transition = dpcr_transition_square(DPCR_DENSE, 4, 0);
    shape.length = 1 << 14;
    for (int i = 0; i < 2; i++) {
        describe_machine(context, (dpcr_machine){.threads = 2, .flops = i ? here.flops / 100 : 0});
        place = dpcri_chain_place_of(context);
        assert_int_equal(dpcri_chain_overlap_gain(&shape, DPCR_SCHEME_SEQUENTIAL, 64, &place, 1.1) > 0, !i);
    }
    dpcr_context_destroy(context);
}

// What is timed on this machine is not asked of another.
static void a_described_machine_is_not_timed(void **state) {
    (void)state;
    dpcr_context *context = context_of_one();
    dpcr_chain_plan *plan = NULL;
    dpcr_error e = {0};
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .transition = dpcr_transition_square(DPCR_DENSE, 2, 0),
                                    .dtype = DPCR_F32,
                                    .length = 1 << 12,
                                    .batch = 1};
    dpcr_chain_options options = {.size = sizeof options, .planning = DPCR_PLANNING_MEASURE};
    for (int again = 0; again < 2; again++) {
        assert_int_equal(dpcr_chain_plan_create(context, &shape, again ? NULL : &options, &plan, NULL), DPCR_OK);
        assert_true(!again == !strstr(dpcr_chain_plan_sentence(plan), "known from"));
        dpcr_chain_plan_destroy(plan);
    }
    describe_machine(context, (dpcr_machine){.bandwidth = 1e12});
    for (int planning = 0; planning < DPCR_PLANNING_COUNT; planning++) {
        options.planning = (dpcr_planning)planning;
        const dpcr_status status = dpcr_chain_plan_create(context, &shape, &options, &plan, &e);
        if (planning != DPCR_PLANNING_ESTIMATE) {
            expect(status, DPCR_ERROR_UNSUPPORTED, &e, "estimate works");
            continue;
        }
        assert_int_equal(status, DPCR_OK);
        assert_null(strstr(dpcr_chain_plan_sentence(plan), "known from"));
        dpcr_chain_plan_destroy(plan);
    }
    describe_machine(context, (dpcr_machine){.threads = 1e18, .region = 1e-12});  // nothing overflows, nothing is free
    for (int scheme = DPCR_SCHEME_SEQUENTIAL; scheme < DPCR_SCHEME_COUNT; scheme++) {
        const double seconds = seconds_of(context, &shape, (dpcr_scheme)scheme);
        assert_true(seconds > 0 && seconds < 1);
    }
    dpcr_context_destroy(context);
}

// The states, and the matrices of width 4 and 8, of eight chunks that go side by side lie on sets of the cache of their
// own, and a longer run-up has no shorter chunks.
static void chunks_lie_apart(void **state) {
    (void)state;
    for (int64_t w = 1; w <= 200; w++)
        for (int64_t length = 1 << 12; length <= 1 << 18; length *= 4)
            for (int64_t warm_up = 64, before = 0; warm_up <= 320; warm_up += 8) {
                const int64_t chunk = dpcri_chain_overlap_chunk(length, warm_up, w);
                assert_true(chunk >= before && chunk <= 8 * warm_up + length / 32 + 64);
                for (int64_t c = 1; c < 8; c++) {
                    assert_in_range(c * chunk * w * 4 % 4096, 64, 4096 - 64);
                    if (w == 4 || w == 8) assert_in_range(c * chunk * w * w * 4 % 4096, 64, 4096 - 64);
                }
                before = chunk;
            }
}

static bool share(const dpcr_array *z0, int64_t row, const dpcr_array *z, int64_t l, int64_t b) {
    const int64_t size = (int64_t)dpcr_dtype_size(z->dtype);
    const char *const one = (const char *)z0->data + row * z0->strides[0] * size;
    const char *const other = (const char *)z->data + (l * z->strides[0] + b * z->strides[1]) * size;
    return llabs(one - other) < z->shape[2] * size;
}

static bool rows_collide(const dpcr_array *z) {
    for (int64_t i = 0; i < z->shape[0] * z->shape[1]; i++) {
        const int64_t l = i / z->shape[1], b = i % z->shape[1];
        const dpcr_array row = {.data = (char *)z->data +
                                        (l * z->strides[0] + b * z->strides[1]) * (int64_t)dpcr_dtype_size(z->dtype)};
        for (int64_t j = 0; j < i; j++)
            if (share(&row, 0, z, j / z->shape[1], j % z->shape[1])) return true;
    }
    return false;
}

// Against every pair of rows, for z of either order of its dimensions, with gaps, going up or down, or with rows of one
// dimension in the other's gaps.
static void start_on_rows_of_z(void **state) {
    (void)state;
    enum { ROOM = 4096 };
    char *const memory = room(ROOM / 8);
    int64_t refused = 0, cases = 60000;
    uint64_t seed = 5;
#define DRAW(n) ((int64_t)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) % (n))
    for (int64_t i = 0; i < cases; i++) {
        const int64_t length = 1 + DRAW(4), batch = 1 + DRAW(3), w = 1 + DRAW(3);
        const dpcr_dtype dtype = DRAW(2) ? DPCR_F32 : DPCR_F64;
        dpcr_array z = dpcr_array_make(memory + ROOM / 2, dtype, 3, (const int64_t[]){length, batch, w}), z0;
        const int inner = (int)DRAW(2);
        z.strides[inner] = w + DRAW(3);
        z.strides[1 - inner] = (z.shape[inner] - 1) * z.strides[inner] + w + DRAW(4);
        if (DRAW(4) == 0) z.strides[inner] = w * (2 + DRAW(2)), z.strides[1 - inner] = z.strides[inner] + w;
        for (int d = 0; d < 2; d++) z.strides[d] *= DRAW(2) ? 1 : -1;
        z0 = dpcr_array_make(memory + ROOM / 2 + DRAW(241) - 120, dtype, 2, (const int64_t[]){batch, w});
        z0.strides[0] = DRAW(31) - 15;
        if (rows_collide(&z)) continue;
        bool wanted = false;
        for (int64_t row = 0; row < batch; row++)
            for (int64_t l = 0; l < length; l++)
                for (int64_t b = 0; b < batch; b++) wanted |= share(&z0, row, &z, l, b);
        const dpcr_status got = dpcri_check_start("test", &z0, &z, NULL);
        if (got != (wanted ? DPCR_ERROR_ARGUMENT : DPCR_OK))
            fail_msg("case %lld: %s, rows %sshare memory", (long long)i, dpcr_status_name(got),
                     wanted ? "" : "do not ");
        refused += wanted;
    }
#undef DRAW
    assert_in_range(refused, cases / 5, cases - cases / 5);
    free(memory);
}

static void execute_refusals(void **state) {
    (void)state;
    dpcr_error e = {0};
    problem p = make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F32, 8, 2, false, true, FILL_RANDOM, false, false);
    const dpcr_chain_shape shape = shape_of(&p);
    const dpcr_chain_options options = {.size = sizeof options, .scheme = DPCR_SCHEME_PCR};
    dpcr_chain_plan *plan = NULL;
    assert_int_equal(dpcr_chain_plan_create(contexts[1], &shape, &options, &plan, NULL), DPCR_OK);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    unsigned char *workspace = room((int64_t)bytes / 8 + 16);
    dpcr_array x;
#define RUN(a, b, z0, z) dpcr_chain_execute(plan, a, b, z0, z, workspace, bytes, NULL, &e)
    expect(dpcr_chain_execute(NULL, &p.va, &p.vb, NULL, &p.vz, workspace, bytes, NULL, &e), DPCR_ERROR_ARGUMENT, &e,
           "plan is NULL");
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace, bytes - 1, NULL, &e), DPCR_ERROR_MEMORY, &e,
           "workspace");
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, NULL, bytes, NULL, &e), DPCR_ERROR_MEMORY, &e, "NULL");
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace + 4, bytes, NULL, &e), DPCR_ERROR_ARGUMENT, &e,
           "alignment");
    dpcr_chain_report report = {.size = 1};
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace, bytes, &report, &e), DPCR_ERROR_ARGUMENT, &e,
           "report.size");
    expect(RUN(NULL, &p.vb, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "a is NULL");
    expect(RUN(&p.va, NULL, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "b is NULL");
    x = p.vb, x.shape[0] = 7;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "b is [7][2][3] float32, wanted [8][2][3] float32");
    x = p.vb, x.dtype = DPCR_F64;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "float64");
    x = p.vb, x.ndim = 2;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "b is");
    x = p.vb, x.device.type = DPCR_CUDA;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_UNSUPPORTED, &e, "host memory");
    x = p.vb, x.strides[2] = 2;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "contiguous");
    x = p.vb, x.strides[0] = INT64_MAX / 2;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_OVERFLOW, &e, "address space");
    x = p.vb, x.data = NULL;
    expect(RUN(&p.va, &x, NULL, &p.vz), DPCR_ERROR_ARGUMENT, &e, "data of b is NULL");
    x = p.vz, x.strides[0] = 0;
    expect(RUN(&p.va, &p.vb, NULL, &x), DPCR_ERROR_ARGUMENT, &e, "overlap");
    x = p.vz, x.strides[0] = 3, x.strides[1] = 24;
    expect(RUN(&p.va, &p.vz, NULL, &x), DPCR_ERROR_ARGUMENT, &e, "other strides");
    x = p.v0, x.shape[0] = 1;
    expect(RUN(&p.va, &p.vb, &x, &p.vz), DPCR_ERROR_ARGUMENT, &e, "z0 is [1][3] float32, wanted [2][3] float32");
    x = p.v0, x.data = (float *)p.z + 7 * 2 * 3;  // the last state of a solve before
    expect(RUN(&p.va, &p.vb, &x, &p.vz), DPCR_ERROR_ARGUMENT, &e, "z0 shares memory with z");
#undef RUN
    expect(dpcr_chain_jvp(plan, &p.va, NULL, &p.vz, NULL, NULL, NULL, &p.vz, workspace, bytes, &e), DPCR_ERROR_ARGUMENT,
           &e, "dz is z");
    expect(dpcr_chain_vjp(plan, &p.va, NULL, &p.vz, &p.vb, NULL, NULL, NULL, workspace, bytes, &e), DPCR_ERROR_ARGUMENT,
           &e, "db is NULL");
    dpcr_chain_plan_destroy(plan);
    dpcr_chain_shape backward = shape;
    backward.transposed = 1;
    assert_int_equal(dpcr_chain_plan_create(contexts[1], &backward, &options, &plan, NULL), DPCR_OK);
    expect(dpcr_chain_execute(plan, &p.va, &p.vb, &p.v0, &p.vz, workspace, bytes, NULL, &e), DPCR_ERROR_UNSUPPORTED, &e,
           "transposed");
    expect(dpcr_chain_jvp(plan, &p.va, NULL, &p.vz, NULL, NULL, NULL, &p.vb, workspace, bytes, &e),
           DPCR_ERROR_UNSUPPORTED, &e, "transposed");
    expect(dpcr_chain_vjp(plan, &p.va, NULL, &p.vz, &p.vb, NULL, &p.vb, NULL, workspace, bytes, &e),
           DPCR_ERROR_UNSUPPORTED, &e, "transposed");
    dpcr_chain_plan_destroy(plan);
    free(workspace);
    drop(&p);
}

static void out_of_memory(void **state) {
    (void)state;
    budget m = {.left = 1};
    const dpcr_context_options options = budget_options(&m);
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = 64,
                                    .batch = 2,
                                    .transition = dpcr_transition_square(DPCR_DENSE, 3, 0),
                                    .dtype = DPCR_F64};
    int refused = 0;
    for (int allowed = 0;; allowed++, refused++) {
        dpcr_error e = {0};
        dpcr_chain_plan *plan = NULL;
        const int64_t before = m.live;
        m.left = allowed;
        const dpcr_status status = dpcr_chain_plan_create(context, &shape, NULL, &plan, &e);
        if (status == DPCR_OK) {
            dpcr_chain_plan_destroy(plan);
            assert_int_equal(m.live, before);
            break;
        }
        assert_null(plan);
        assert_int_equal(m.live, before);
        expect(status, DPCR_ERROR_MEMORY, &e, "no memory for the plan");
    }
    assert_true(refused > 0);
    // Execute allocates nothing.
    problem p = make(shape.transition, DPCR_F64, 64, 2, false, false, FILL_RANDOM, false, false);
    for (int v = 0; v < VARIANTS; v++) {
        const dpcr_chain_options o = variant(v);
        dpcr_chain_plan *plan = NULL;
        m.left = 100;
        assert_int_equal(dpcr_chain_plan_create(context, &shape, &o, &plan, NULL), DPCR_OK);
        m.left = 0;
        void *workspace = room((int64_t)dpcr_chain_plan_workspace(plan) / 8 + 8);
        assert_int_equal(
            dpcr_chain_execute(plan, &p.va, &p.vb, NULL, &p.vz, workspace, dpcr_chain_plan_workspace(plan), NULL, NULL),
            DPCR_OK);
        assert_int_equal(m.left, 0);
        free(workspace);
        dpcr_chain_plan_destroy(plan);
    }
    drop(&p);
    dpcr_context_destroy(context);
    assert_int_equal(m.live, 0);
}

static void empty(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++)
        for (int transposed = 0; transposed < 2; transposed++) {
            const dpcr_chain_options options = variant(v);
            problem none = make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F32, 0, 4, transposed, true, FILL_RANDOM,
                                false, false);
            solve(&none, &options, 2, false);
            drop(&none);
            problem nobody = make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F32, 5, 0, transposed, true,
                                  FILL_RANDOM, false, false);
            solve(&nobody, &options, 2, false);
            drop(&nobody);
        }
}

// Without an initial state the first transition is not read, in either direction.
static void first_transition_is_not_read(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        problem p =
            make(dpcr_transition_square(DPCR_DENSE, 3, 0), DPCR_F64, 50, 1, v % 2, false, FILL_RANDOM, false, false);
        for (int i = 0; i < 9; i++) ((double *)p.a)[i] = NAN;
        const dpcr_chain_options options = variant(v);
        solve(&p, &options, 2, false);
        for (int i = 0; i < 150; i++) assert_false(isnan(((double *)p.z)[i]));
        drop(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_refusals),
        cmocka_unit_test(auto_counts_the_passes_of_a_vector),
        cmocka_unit_test(auto_composes_few_elements),
        cmocka_unit_test(auto_composes_few_blocks),
        cmocka_unit_test(auto_knows_a_far_cache),
        cmocka_unit_test(auto_counts_threads_that_work),
        cmocka_unit_test(overlap_gains_from_caches),
        cmocka_unit_test(a_described_machine_is_this_one),
        cmocka_unit_test(a_described_machine_counts),
        cmocka_unit_test(auto_goes_by_a_described_machine),
        cmocka_unit_test(a_described_machine_is_not_timed),
        cmocka_unit_test(elements_gain_by_threads_alone),
        cmocka_unit_test(chunks_lie_apart),
        cmocka_unit_test(start_on_rows_of_z),
        cmocka_unit_test(execute_refusals),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(empty),
        cmocka_unit_test(first_transition_is_not_read),
    };
    cmocka_set_test_filter(getenv("DEEPPCR_TEST_FILTER"));  // a pattern picks tests by name
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
