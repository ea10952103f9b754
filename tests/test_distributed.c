// SPDX-License-Identifier: MIT
// Linear chains over ranks against the loop: the ring bit for bit and signed permutations exactly, for every length
// around the number of ranks, every way to cut, both scans; floats within rounding, and the same bits again; what comes
// in and goes out; refusals that every rank hears.
#include <pthread.h>

#include "chain_problem.h"

enum { MOST_RANKS = 5 };

// ---- a transport with a scan of its own, which multiplies in another order than ours ----

typedef struct scanning {
    const dpcr_transport *by;
} scanning;

static dpcr_status send_on(void *user, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *by = ((scanning *)user)->by;
    return by->send(by->user, to, tag, data, bytes, error);
}

static dpcr_status receive_on(void *user, int64_t from, int64_t tag, void *data, size_t bytes, double deadline,
                              dpcr_error *error) {
    const dpcr_transport *by = ((scanning *)user)->by;
    return by->receive(by->user, from, tag, data, bytes, deadline, error);
}

// One rank after another, from the left.
static dpcr_status scan_in_line(void *user, int reversed, void *data, size_t bytes, dpcr_combine *combine,
                                void *combine_user, double deadline, dpcr_error *error) {
    enum { TAG = 77 };
    const dpcr_transport *by = ((scanning *)user)->by;
    const int64_t q = reversed ? by->ranks - 1 - by->rank : by->rank, step = reversed ? -1 : 1;
    dpcr_status status = DPCR_OK;
    void *before = malloc(bytes + 1);
    assert_non_null(before);
    if (q > 0) DPCR_TRY(by->receive(by->user, by->rank - step, TAG, before, bytes, deadline, error));
    if (q > 0) combine(combine_user, before, data);
    if (q + 1 < by->ranks) DPCR_TRY(by->send(by->user, by->rank + step, TAG, data, bytes, error));
    memcpy(data, before, q > 0 ? bytes : 0);
done:
    free(before);
    return status;
}

// ---- a chain over ranks ----

typedef struct spread {
    problem *p;
    int64_t first[MOST_RANKS + 1];
    int64_t chunk, odd_rank;
    dpcr_scan scan;
    dpcr_scheme scheme;
    bool in_place, want_ends;
    int threads;
    dpcr_distributed_report report;  // rank 0's
    void *in[MOST_RANKS], *out[MOST_RANKS];
    dpcr_status status[MOST_RANKS], told[MOST_RANKS];  // returned, and what the error says
    char text[MOST_RANKS][512];
} spread;

static dpcr_array part(dpcr_array whole, int64_t first, int64_t count) {
    whole.data = (char *)whole.data + first * whole.strides[0] * (int64_t)dpcr_dtype_size(whole.dtype);
    whole.shape[0] = count;
    return whole;
}

static dpcr_status run_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    spread *s = user;
    problem *p = s->p;
    const int64_t r = by->rank, first = s->first[r], count = s->first[r + 1] - first;
    scanning own = {.by = by};
    dpcr_transport transport = *by;
    transport.user = &own, transport.send = send_on, transport.receive = receive_on;
    if (s->scan == DPCR_SCAN_TRANSPORT) transport.exscan = scan_in_line;
    dpcr_chain_shape shape = shape_of(p);
    shape.length = count;
    if (r == s->odd_rank) shape.batch++;
    const dpcr_distributed_options options = {.size = sizeof options,
                                              .transport = &transport,
                                              .scan = s->scan,
                                              .chunk = s->chunk,
                                              .scheme = s->scheme,
                                              .deadline = 20};
    const dpcr_array a = p->shared_steps ? p->va : part(p->va, first, count), z = part(p->vz, first, count);
    const dpcr_array b = s->in_place ? z : part(p->vb, first, count);
    const int64_t state[] = {p->batch, p->w};
    const dpcr_array in = dpcr_array_make(s->in[r], p->dtype, 2, state),
                     out = dpcr_array_make(s->out[r], p->dtype, 2, state);
    dpcr_distributed_report report = {.size = sizeof report};
    s->status[r] = dpcr_chain_distributed(contexts[s->threads], &shape, &options, &a, &b, p->z0 ? &p->v0 : NULL, &z,
                                          s->want_ends ? &in : NULL, s->want_ends ? &out : NULL, &report, error);
    s->told[r] = error->status;
    if (s->status[r] != DPCR_OK) snprintf(s->text[r], sizeof s->text[r], "%s", error->text);
    if (r == 0) s->report = report;
    return DPCR_OK;
}

// Cut 0: evenly; 1: all on the last; 2: at random, with ranks that have nothing.
static void cut(spread *s, int64_t ranks, int how) {
    const int64_t length = s->p->length;
    s->first[0] = 0;
    for (int64_t r = 1; r < ranks; r++)
        s->first[r] = how == 0 ? r * length / ranks : how == 1 ? 0 : random_below(length + 1);
    s->first[ranks] = length;
    for (int64_t i = 1; how == 2 && i < ranks; i++)
        for (int64_t r = 1; r + 1 < ranks; r++)
            if (s->first[r] > s->first[r + 1]) {
                const int64_t kept = s->first[r];
                s->first[r] = s->first[r + 1];
                s->first[r + 1] = kept;
            }
}

static void run(spread *s, int64_t ranks) {
    problem *p = s->p;
    dpcr_error error = {0};
    const size_t bytes = (size_t)(p->length * p->batch * p->w) * dpcr_dtype_size(p->dtype);
    if (s->in_place)
        memcpy(p->z, p->b, bytes);
    else
        memset(p->z, 0xff, bytes);
    for (int64_t r = 0; r < ranks; r++) {
        s->in[r] = room(p->batch * p->w);
        s->out[r] = room(p->batch * p->w);
        memset(s->in[r], 0x77, (size_t)(p->batch * p->w) * dpcr_dtype_size(p->dtype));
        memset(s->out[r], 0x77, (size_t)(p->batch * p->w) * dpcr_dtype_size(p->dtype));
    }
    if (dpcr_ranks_run(contexts[s->threads], ranks, run_rank, s, &error) != DPCR_OK) fail_msg("%s", error.text);
    for (int64_t r = 0; r < ranks; r++) assert_int_equal(s->told[r], s->status[r]);
}

static void end_run(spread *s, int64_t ranks) {
    for (int64_t r = 0; r < ranks; r++) {
        free(s->in[r]);
        free(s->out[r]);
    }
}

static void fail_spread(const spread *s, int64_t ranks, const char *what) {
    const problem *p = s->p;
    fail_msg("%s: %s %s w %d L %d B %d%s%s, %d ranks at %d %d %d %d, chunk %d, scan %d: %s", what,
             dpcr_dtype_name(p->dtype), dpcr_structure_name(p->t.structure), (int)p->w, (int)p->length, (int)p->batch,
             p->transposed ? " transposed" : "", p->z0 ? " z0" : "", (int)ranks, (int)s->first[1], (int)s->first[2],
             (int)s->first[3], (int)s->first[4], (int)s->chunk, (int)s->scan, s->text[0]);
}

// What came in is the state before the range, what goes out the one at its end, or transposed A^T of the first one.
static void check_ends(const spread *s, int64_t ranks) {
    const problem *p = s->p;
    const int64_t state = p->batch * p->w;
    const size_t size = dpcr_dtype_size(p->dtype), bytes = (size_t)state * size;
    const char *z = p->z;
    void *zero = room(state);
    for (int64_t r = 0; !p->transposed && r < ranks; r++) {
        const int64_t first = s->first[r], end = s->first[r + 1];
        const void *in = first > 0 ? z + (size_t)(first - 1) * bytes : r > 0 && p->z0 ? p->z0 : zero;
        const void *out = end > 0 ? z + (size_t)(end - 1) * bytes : p->z0 ? p->z0 : zero;
        if (bytes && memcmp(s->in[r], in, bytes) != 0) fail_spread(s, ranks, "what came in");
        if (bytes && memcmp(s->out[r], out, bytes) != 0) fail_spread(s, ranks, "what went out");
    }
    // z_l = b_l + in, so in the ring what came in is the difference; out of a rank into the next one below it.
    for (int64_t r = 0; p->transposed && r < ranks; r++) {
        const int64_t last = s->first[r + 1] - 1;
        for (int64_t i = 0; p->dtype == DPCR_U32 && s->first[r] <= last && i < state; i++)
            if (((uint32_t *)s->in[r])[i] !=
                ((uint32_t *)p->z)[last * state + i] - ((uint32_t *)p->b)[last * state + i])
                fail_spread(s, ranks, "what came in, transposed");
        if (r > 0 && bytes && memcmp(s->out[r], s->in[r - 1], bytes) != 0) fail_spread(s, ranks, "out and in");
    }
    free(zero);
}

static const width widths[] = {{DPCR_DENSE, 2, 0},    {DPCR_BLOCK, 4, 2}, {DPCR_DIAGONAL, 3, 0}, {DPCR_SCALAR, 2, 0},
                               {DPCR_IDENTITY, 2, 0}, {DPCR_ZERO, 2, 0},  {DPCR_DENSE, 5, 0},    {DPCR_DENSE, 1, 0},
                               {DPCR_DENSE, 4, 0},    {DPCR_DENSE, 8, 0}};
enum { WIDTHS = sizeof widths / sizeof *widths };
static const int64_t chunks[] = {0, 1, 3, 40};

static void one(dpcr_dtype dtype, const width *w, int64_t length, int64_t ranks, int64_t turn, bool exact) {
    const dpcr_transition t = dpcr_transition_square(w->structure, w->w, w->k);
    const int flags = (int)(turn % 4);  // forward, transposed, forward with z0, transposed with shared transitions
    problem p =
        make(t, dtype, length, turn % 3 == 0 ? 3 : 1, flags % 2, flags == 2,
             exact && dtype != DPCR_U32 ? FILL_PERMUTATION : FILL_RANDOM, flags == 3 && dtype == DPCR_U32, flags == 3);
    spread s = {.p = &p,
                .chunk = chunks[turn / 4 % 4],
                .scan = turn % 5 == 0 ? DPCR_SCAN_TRANSPORT : DPCR_SCAN_MESSAGES,
                .in_place = turn % 2 == 0,
                .want_ends = true,
                .threads = turn % 16 == 0 ? 2 : 1,
                .odd_rank = -1};
    cut(&s, ranks, (int)(turn / 3 % 3));
    run(&s, ranks);
    for (int64_t r = 0; r < ranks; r++)
        if (s.status[r] != DPCR_OK) fail_spread(&s, ranks, s.text[r]);
    if (wrong_states(&p, exact)) fail_spread(&s, ranks, "states differ from the loop");
    if (exact) check_ends(&s, ranks);
    assert_int_equal(s.report.length, length);
    end_run(&s, ranks);
    drop(&p);
}

static void ring_bit_for_bit(void **state) {
    (void)state;
    int64_t turn = 0;
    for (int i = 0; i < WIDTHS; i++)
        for (int64_t ranks = 1; ranks <= MOST_RANKS; ranks++)
            for (int64_t length = 0; length <= (i < 3 ? 20 : 7); length++)
                one(DPCR_U32, &widths[i], length, ranks, turn++, true);
    for (int i = 0; i < 3; i++)
        for (int64_t ranks = 2; ranks <= 4; ranks++)
            for (int64_t length = 126; length <= 131; length++) one(DPCR_U32, &widths[i], length, ranks, turn++, true);
}

static void permutations_exactly(void **state) {
    (void)state;
    int64_t turn = 1;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int i = 0; i < WIDTHS; i++)
            for (int64_t ranks = 1; ranks <= 4; ranks++) {
                one((dpcr_dtype)dtype, &widths[i], 30 + turn % 7, ranks, turn, true);
                turn++;
                one((dpcr_dtype)dtype, &widths[i], turn % 5, ranks, turn, true);
                turn += 2;
            }
}

static void numbers_within_rounding(void **state) {
    (void)state;
    static const width wide[] = {{DPCR_DENSE, 17, 0}, {DPCR_BLOCK, 32, 16}, {DPCR_DIAGONAL, 19, 0}, {DPCR_DENSE, 8, 0}};
    int64_t turn = 2;
    for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
        for (int i = 0; i < 4; i++)
            for (int64_t ranks = 2; ranks <= 4; ranks++) one((dpcr_dtype)dtype, &wide[i], 200, ranks, turn++, false);
}

// Same ranks, same bits: with other threads, and with the first run's states as they came.
static void same_bits_again(void **state) {
    (void)state;
    const dpcr_transition t = dpcr_transition_square(DPCR_DENSE, 8, 0);
    for (int transposed = 0; transposed < 2; transposed++) {
        problem p = make(t, DPCR_F32, 3000, 2, transposed, !transposed, FILL_RANDOM, false, false);
        const size_t bytes = (size_t)(p.length * p.batch * p.w) * sizeof(float);
        float *first = malloc(bytes);
        for (int threads = 1; threads <= 2; threads++) {
            spread s = {.p = &p, .threads = threads, .odd_rank = -1};
            cut(&s, 3, 0);
            run(&s, 3);
            if (threads == 1)
                memcpy(first, p.z, bytes);
            else
                assert_memory_equal(first, p.z, bytes);
            assert_true(s.report.compositions > 0 && s.report.applications > p.length);
            end_run(&s, 3);
        }
        free(first);
        drop(&p);
    }
}

// An infinity in one sequence leaves the others, and the ranks without steps multiply it with nothing.
static void infinities_stay(void **state) {
    (void)state;
    const dpcr_transition t = dpcr_transition_square(DPCR_DENSE, 2, 0);
    problem p = make(t, DPCR_F64, 12, 2, false, true, FILL_PERMUTATION, false, false);
    ((double *)p.z0)[0] = INFINITY;
    spread s = {.p = &p, .threads = 1, .odd_rank = -1, .first = {0, 0, 4, 4, 8, 12}};
    run(&s, 5);
    double *got = malloc((size_t)(12 * 4) * sizeof *got);
    memcpy(got, p.z, (size_t)(12 * 4) * sizeof *got);
    end_run(&s, 5);
    const dpcr_chain_options loop = {.size = sizeof loop, .scheme = DPCR_SCHEME_SEQUENTIAL};
    solve(&p, &loop, 1, false);
    for (int l = 0; l < 12; l++)
        for (int i = 2; i < 4; i++) assert_true(got[4 * l + i] == ((double *)p.z)[4 * l + i]);
    assert_true(isinf(got[0]) || isinf(got[1]) || isnan(got[0]));
    free(got);
    drop(&p);
}

// Products of 0.9 and 5 leave float's numbers after 56 steps, within a rank's chunk or between ranks, where a component
// that is never driven stays 0.
static void products_that_overflow_are_not_taken(void **state) {
    (void)state;
    const dpcr_transition t = dpcr_transition_square(DPCR_DIAGONAL, 2, 0);
    static const int64_t cuts[][MOST_RANKS + 1] = {{0, 100, 200, 300, 300, 300}, {0, 20, 40, 40, 80, 300}};
    for (int turn = 0; turn < 16; turn++) {
        problem p = make(t, DPCR_F32, 300, 2, turn % 2, !(turn % 2), FILL_RANDOM, false, false);
        float *const a = p.a, *const b = p.b, *const z = p.z;
        for (int64_t l = 0; l < 300; l++) a[4 * l] = 0.9f, a[4 * l + 1] = 5, b[4 * l + 1] = 0;  // of sequence 0
        for (int64_t l = 0; l < 300; l++) a[4 * l + 2] = a[4 * l + 3] = 0.999f;  // forgets nothing in a chunk
        if (p.z0) ((float *)p.z0)[1] = 0;
        spread s = {.p = &p,
                    .chunk = turn / 4 % 2 ? 90 : 16,
                    .scan = turn / 2 % 2 ? DPCR_SCAN_TRANSPORT : DPCR_SCAN_MESSAGES,
                    .in_place = turn % 4 == 0,
                    .want_ends = true,
                    .threads = 1 + turn % 2,
                    .odd_rank = -1};
        memcpy(s.first, cuts[turn / 8], sizeof s.first);
        run(&s, MOST_RANKS);
        float *const apart = malloc(300 * 4 * sizeof *apart);
        memcpy(apart, z, 300 * 4 * sizeof *apart);
        if (wrong_states(&p, false)) fail_spread(&s, MOST_RANKS, "states differ from the loop");
        for (int r = 0; r < MOST_RANKS; r++)
            for (int i = 0; i < 4; i++)
                assert_true(isfinite(((float *)s.in[r])[i]) && isfinite(((float *)s.out[r])[i]));
        // Chunks of 16 hold within the second rank, whose whole range does not.
        if (turn < 8) assert_int_equal(s.report.finished_from, turn / 4 % 2 ? 100 : 200);
        end_run(&s, MOST_RANKS);
        for (int64_t l = 0; l < 300; l++)
            a[4 * l + 1] = 0.5f;  // nothing overflows: the other sequence has the same bits
        run(&s, MOST_RANKS);
        assert_int_equal(s.report.finished_from, 300);
        for (int64_t l = 0; l < 300; l++) assert_memory_equal(&apart[4 * l + 2], &z[4 * l + 2], 2 * sizeof *z);
        end_run(&s, MOST_RANKS);
        free(apart);
        drop(&p);
    }
}

// 70 steps of 0.2 and 70 of 5: their product underflows where the state, 1e20 before and after them, does not. Both
// within a chunk of the second rank, or in its whole range; or the first of them alone, so that what is lost is small.
// The other sequence keeps its bits.
static void products_that_underflow_are_not_taken(void **state) {
    (void)state;
    enum { LENGTH = 300, RANK = 40 };
    const dpcr_transition t = dpcr_transition_square(DPCR_DIAGONAL, 2, 0);
    for (int turn = 0; turn < 32; turn++) {
        const bool transposed = turn % 2, within = turn / 4 % 2, half = turn / 8 % 2;
        const int64_t row = turn / 16, next = half && !within ? 115 : 200, chunk = !within ? 16 : half ? 75 : 150;
        problem p = make(t, DPCR_F32, LENGTH, 2, transposed, false, FILL_RANDOM, false, false);
        float *const a = (float *)p.a + 2 * row, *const b = (float *)p.b + 2 * row, *const z = p.z;
        for (int64_t i = 0; i < 4 * LENGTH; i++) ((float *)p.a)[i] = 0.9f;
        for (int64_t q = 0; q < LENGTH; q++) {
            const int64_t l = transposed ? LENGTH - 1 - q : q, of = transposed && l + 1 < LENGTH ? l + 1 : l;
            a[4 * of] = q >= 45 && q < 115 ? 0.2f : q >= 115 && q < 185 ? 5 : 1, b[4 * l] = q == 0 ? 1e20f : 0;
            if (half && q == 115) a[4 * of] = 1e-6f;  // what goes out of a transposed range is far below its last state
        }
        if (transposed) a[0] = 1;  // after the last step
        spread s = {.p = &p,
                    .chunk = chunk,
                    .scan = turn / 2 % 2 ? DPCR_SCAN_TRANSPORT : DPCR_SCAN_MESSAGES,
                    .want_ends = true,
                    .threads = 1 + turn / 2 % 2,
                    .odd_rank = -1};
        for (int r = 1; r < MOST_RANKS; r++) {
            const int64_t place[] = {0, RANK, next, 250, 250, LENGTH};
            s.first[r] = transposed ? LENGTH - place[MOST_RANKS - r] : place[r];
        }
        s.first[MOST_RANKS] = LENGTH;
        run(&s, MOST_RANKS);
        float apart[LENGTH * 4];
        memcpy(apart, z, sizeof apart);
        if (wrong_states(&p, false)) fail_spread(&s, MOST_RANKS, "states differ from the loop");
        assert_int_equal(s.report.finished_from, within ? RANK + chunk : next);
        for (int r = 0; r < MOST_RANKS; r++) {
            if (s.first[r] == s.first[r + 1]) continue;
            const int64_t last =
                transposed ? s.first[r] : s.first[r + 1] - 1;  // its state goes out, times what follows
            const int64_t before = transposed ? s.first[r + 1] : s.first[r] - 1;
            const float out = apart[4 * last + 2 * row] * (transposed ? a[4 * last] : 1);
            assert_float_equal(((float *)s.out[r])[2 * row], out, 0);
            if (before < 0 || before >= LENGTH) continue;
            const float in = apart[4 * before + 2 * row] * (transposed ? a[4 * before] : 1);
            assert_float_equal(((float *)s.in[r])[2 * row], in, fabsf(in) * 1e-4F);
        }
        end_run(&s, MOST_RANKS);
        for (int64_t l = 0; l < LENGTH; l++) a[4 * l] = 1;
        run(&s, MOST_RANKS);
        assert_int_equal(s.report.finished_from, LENGTH);
        for (int64_t l = 0; l < LENGTH; l++)
            assert_memory_equal(&apart[4 * l + 2 - 2 * row], &z[4 * l + 2 - 2 * row], 2 * sizeof *z);
        end_run(&s, MOST_RANKS);
        drop(&p);
    }
}

// One number a step, ranks of 60: factor q of step q, from 1e20 on; its last state and where it went on in order.
static float run_factors(float (*factor)(int64_t q), dpcr_scan scan, int64_t *finished_from, int64_t *wrong) {
    enum { LENGTH = 300 };
    problem p =
        make(dpcr_transition_square(DPCR_DIAGONAL, 1, 0), DPCR_F32, LENGTH, 1, false, false, FILL_RANDOM, false, false);
    for (int64_t q = 0; q < LENGTH; q++) ((float *)p.a)[q] = factor(q), ((float *)p.b)[q] = q == 0 ? 1e20f : 0;
    spread s = {.p = &p, .chunk = 16, .scan = scan, .want_ends = true, .threads = 1, .odd_rank = -1};
    for (int r = 0; r <= MOST_RANKS; r++) s.first[r] = 60 * r;
    run(&s, MOST_RANKS);
    *finished_from = s.report.finished_from;
    *wrong = wrong_states(&p, false);
    const float last = ((float *)p.z)[LENGTH - 1];
    end_run(&s, MOST_RANKS);
    drop(&p);
    return last;
}

static float together(int64_t q) { return q < 120 ? 1 : q < 240 ? 0.383f : 6.81f; }
static float overflowing(int64_t q) { return q >= 65 && q < 85 ? 10 : q >= 85 && q < 105 ? 0.1f : 1; }
static float denormal(int64_t q) { return q < 60 ? 1 : q < 124 ? 0.2f : q < 164 ? 5 : 1; }

// Products that underflow of two ranks together, of neither alone; that come back from the denormals; a state that
// overflows in a rank whose product does not.
static void what_products_of_ranks_lose(void **state) {
    (void)state;
    for (int scan = DPCR_SCAN_MESSAGES; scan <= DPCR_SCAN_TRANSPORT; scan++) {
        int64_t from, wrong;
        const float last = run_factors(together, (dpcr_scan)scan, &from, &wrong);
        // In line the state comes first, so there the products are of one rank each.
        assert_true(wrong == 0 && last > 1e19f && from == (scan == DPCR_SCAN_MESSAGES ? 240 : 300));
        run_factors(denormal, (dpcr_scan)scan, &from, &wrong);
        assert_true(wrong == 0);
        assert_true(isinf(run_factors(overflowing, (dpcr_scan)scan, &from, &wrong)));
        assert_true(from > 60 && from <= 120);
    }
}

// Twenty steps shrink a state of 1e20 by 10^50 and twenty bring it back: all where one rank has all steps, in the first
// one's range, in another's, or half in one and half in the next. Where z is b, which the loop would need, every rank
// refuses, and none where nothing is lost.
static void in_place_every_rank_refuses(void **state) {
    (void)state;
    enum { LENGTH = 300 };
    static const int64_t shrinks[] = {70, 110, 120, 140};
    int refusals_seen = 0;
    static const int64_t spread_out[MOST_RANKS + 1] = {0, 100, 160, 220, 220, LENGTH};
    static const int64_t first_long[MOST_RANKS + 1] = {0, 200, 250, 250, 280, LENGTH};
    for (int turn = 0; turn < 40; turn++) {
        const bool transposed = turn % 2, loses = turn / 2 % 2, ahead = turn >= 32, alone = !ahead && turn / 4 % 4 == 0;
        const int64_t from = shrinks[ahead ? 0 : turn / 4 % 4], *const places = ahead ? first_long : spread_out;
        problem p = make(dpcr_transition_square(DPCR_DIAGONAL, 1, 0), DPCR_F32, LENGTH, 1, transposed, false,
                         FILL_RANDOM, false, false);
        for (int64_t q = 0; q < LENGTH; q++) {
            const int64_t l = transposed ? LENGTH - 1 - q : q, of = transposed ? LENGTH - q : q;
            const float factor = q < from || q >= from + 40 ? 1 : q < from + 20 ? 3.1622776e-3f : 3.1622776e2f;
            if (of < LENGTH) ((float *)p.a)[of] = loses ? factor : 0.9f;
            ((float *)p.b)[l] = q == 0 ? 1e20f : 0;
        }
        if (transposed) ((float *)p.a)[0] = 1;
        spread s = {.p = &p,
                    .chunk = alone ? 0 : 15 + turn / 16 * 45,
                    .scan = turn >= 36 ? DPCR_SCAN_TRANSPORT : DPCR_SCAN_MESSAGES,
                    .scheme = alone || ahead ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_AUTO,
                    .in_place = true,
                    .threads = 1,
                    .odd_rank = -1};
        for (int r = 1; r < MOST_RANKS; r++)
            s.first[r] = alone ? (transposed ? 0 : LENGTH) : transposed ? LENGTH - places[MOST_RANKS - r] : places[r];
        s.first[MOST_RANKS] = LENGTH;
        run(&s, MOST_RANKS);
        const bool refused = s.status[0] == DPCR_ERROR_UNSUPPORTED;
        for (int r = 0; r < MOST_RANKS; r++) {
            if (s.status[r] != (refused ? DPCR_ERROR_UNSUPPORTED : DPCR_OK)) fail_spread(&s, MOST_RANKS, "in place");
            if (refused) assert_non_null(strstr(s.text[r], "place"));
        }
        // A product that overflows between ranks is seen before states take the place of b.
        if (refused ? !loses : loses && (alone || ahead || s.chunk == 60)) fail_spread(&s, MOST_RANKS, "in place");
        if (!refused && wrong_states(&p, false)) fail_spread(&s, MOST_RANKS, "states differ from the loop");
        refusals_seen += refused;
        end_run(&s, MOST_RANKS);
        // Apart, the last of two ranks solves a transposed chain where its states go, from b that is still there.
        s.in_place = false;
        if (alone) s.first[1] = transposed ? LENGTH - 2 : 2, s.first[2] = LENGTH;
        run(&s, alone ? 2 : MOST_RANKS);
        if (wrong_states(&p, false)) fail_spread(&s, MOST_RANKS, "states differ from the loop");
        if (refused || !loses) assert_true((s.report.finished_from < LENGTH) == refused);
        if (alone && transposed && loses) assert_int_equal(s.report.applications, LENGTH - 2);  // by the loop, both
        end_run(&s, alone ? 2 : MOST_RANKS);
        drop(&p);
    }
    assert_true(refusals_seen >= 18);
}

// What a product within a range loses, behind which the chain forgets: nothing of it comes to the next rank.
static void in_place_within_a_range(void **state) {
    (void)state;
    enum { LENGTH = 300 };
    for (int turn = 0; turn < 4; turn++) {
        const bool transposed = turn & 1, loses = turn & 2;
        problem p = make(dpcr_transition_square(DPCR_DIAGONAL, 1, 0), DPCR_F32, LENGTH, 1, transposed, false,
                         FILL_RANDOM, false, false);
        for (int64_t q = 0; q < LENGTH; q++) {
            const int64_t l = transposed ? LENGTH - 1 - q : q, of = transposed ? LENGTH - q : q;
            const bool shrinks = q >= 115 && q < 125, grows = q >= 130 && q < 140;
            const float factor = q == 150 ? 0 : !loses ? 0.9f : shrinks ? 1e-5f : grows ? 1e5f : 1;
            if (of < LENGTH) ((float *)p.a)[of] = factor;
            ((float *)p.b)[l] = q == 0 ? 1e20f : q == 150 ? 1 : 0;
        }
        if (transposed) ((float *)p.a)[0] = 1;
        spread s = {.p = &p, .chunk = 15, .in_place = true, .threads = 1, .odd_rank = -1};
        s.first[1] = transposed ? 140 : 100, s.first[2] = transposed ? 200 : 160, s.first[3] = LENGTH;
        run(&s, 3);
        for (int r = 0; r < 3; r++) assert_int_equal(s.status[r], loses ? DPCR_ERROR_UNSUPPORTED : DPCR_OK);
        if (!loses && wrong_states(&p, false)) fail_spread(&s, 3, "states differ from the loop");
        end_run(&s, 3);
        drop(&p);
    }
}

// ---- refusals ----

static void every_rank_hears_of_a_misfit(void **state) {
    (void)state;
    const dpcr_transition t = dpcr_transition_square(DPCR_DENSE, 2, 0);
    problem p = make(t, DPCR_F32, 9, 1, false, false, FILL_RANDOM, false, false);
    spread s = {.p = &p, .threads = 1, .odd_rank = 1};
    cut(&s, 3, 0);
    run(&s, 3);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(s.status[r], DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(s.text[r], r == 1 ? "[2]" : "rank 1: chain_distributed"));
    }
    end_run(&s, 3);
    drop(&p);
}

static dpcr_status refused_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    float one_value = 1;
    const dpcr_array a = dpcr_array_make(&one_value, DPCR_F32, 3, (const int64_t[]){1, 1, 1});
    dpcr_chain_shape shape = {.size = sizeof shape,
                              .length = 1,
                              .batch = 1,
                              .transition = dpcr_transition_square(DPCR_SCALAR, 1, 0),
                              .dtype = DPCR_F32};
    dpcr_distributed_options o = {.size = sizeof o, .transport = by};
    (void)user;
    assert_int_equal(dpcr_chain_distributed(contexts[1], &shape, NULL, &a, &a, NULL, &a, NULL, NULL, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    o.transport = NULL;
    assert_int_equal(dpcr_chain_distributed(contexts[1], &shape, &o, &a, &a, NULL, &a, NULL, NULL, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "transport is NULL"));
    o.transport = by;
    o.scan = DPCR_SCAN_TRANSPORT;
    assert_int_equal(dpcr_chain_distributed(contexts[1], &shape, &o, &a, &a, NULL, &a, NULL, NULL, NULL, error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error->text, "no scan of its own"));
    o.scan = DPCR_SCAN_MESSAGES;
    o.chunk = -1;
    assert_int_equal(dpcr_chain_distributed(contexts[1], &shape, &o, &a, &a, NULL, &a, NULL, NULL, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    o.chunk = 0;
    shape.transposed = 1;
    assert_int_equal(dpcr_chain_distributed(contexts[1], &shape, &o, &a, &a, &a, &a, NULL, NULL, NULL, error),
                     DPCR_ERROR_UNSUPPORTED);
    shape.transposed = 0;
    const dpcr_array start = dpcr_array_make(&one_value, DPCR_F32, 2, (const int64_t[]){1, 1});
    assert_int_equal(dpcr_chain_distributed(contexts[1], &shape, &o, &a, &a, &start, &a, NULL, NULL, NULL, error),
                     DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, "z0 shares memory with z"));
    const int64_t offsets[] = {0, 1};
    const int32_t columns[] = {0};
    const dpcr_pattern pattern = {1, 1, offsets, columns};
    shape.transition = dpcr_transition_csr(&pattern);
    assert_int_equal(dpcr_chain_distributed(contexts[1], &shape, &o, &a, &a, NULL, &a, NULL, NULL, NULL, error),
                     DPCR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error->text, "csr"));
    return DPCR_OK;
}

static void refusals(void **state) {
    (void)state;
    dpcr_error error = {0};
    for (int64_t ranks = 1; ranks <= 2; ranks++)
        if (dpcr_ranks_run(contexts[1], ranks, refused_rank, NULL, &error) != DPCR_OK) fail_msg("%s", error.text);
    assert_int_equal(dpcr_ranks_run(contexts[1], 0, refused_rank, NULL, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(dpcr_ranks_run(contexts[1], 2, NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
}

// A rank that goes leaves the others to their deadline, or, as threads, to its failure.
static dpcr_status deserter(void *user, const dpcr_transport *by, dpcr_error *error) {
    float numbers[4] = {0};
    const dpcr_array a = dpcr_array_make(numbers, DPCR_F32, 3, (const int64_t[]){1, 1, 1});
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = 1,
                                    .batch = 1,
                                    .transition = dpcr_transition_square(DPCR_SCALAR, 1, 0),
                                    .dtype = DPCR_F32};
    const dpcr_distributed_options o = {.size = sizeof o, .transport = by, .deadline = *(bool *)user ? 60 : 0.2};
    if (by->rank == 1) return *(bool *)user ? dpcr_ranks_agree(NULL, 0, DPCR_OK, error) : DPCR_OK;
    return dpcr_chain_distributed(contexts[1], &shape, &o, &a, &a, NULL, &a, NULL, NULL, NULL, error);
}

static void no_wait_is_without_end(void **state) {
    (void)state;
    dpcr_error error = {0};
    bool fails = false;
    assert_int_equal(dpcr_ranks_run(contexts[1], 3, deserter, &fails, &error), DPCR_ERROR_SYSTEM);
    assert_non_null(strstr(error.text, "which sent nothing"));
    fails = true;
    assert_int_equal(dpcr_ranks_run(contexts[1], 3, deserter, &fails, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "transport is NULL"));
}

// One rank's caller asks to stop: between questions of a long range, and all ranks hear of it.
static int stop_now(void *user) { return ++*(int *)user > 0; }

typedef struct stopping {
    int64_t who;
    int asked[MOST_RANKS];
    dpcr_status status[MOST_RANKS];
    char text[MOST_RANKS][512];
} stopping;

static dpcr_status stopped_rank(void *user, const dpcr_transport *by, dpcr_error *error) {
    enum { STEPS = 400, WIDTH = 64 };
    stopping *s = user;
    const bool asks = by->rank == s->who;
    const dpcr_context_options o = {.size = sizeof o,
                                    .threads = 1,
                                    .cancel = asks ? stop_now : NULL,
                                    .cancel_user = asks ? &s->asked[by->rank] : NULL};
    dpcr_context *own = NULL;
    assert_int_equal(dpcr_context_create(&o, &own, error), DPCR_OK);
    float *const numbers = calloc(STEPS * (WIDTH * WIDTH + 2 * WIDTH), sizeof *numbers);
    const dpcr_array a = dpcr_array_make(numbers, DPCR_F32, 3, (const int64_t[]){STEPS, 1, WIDTH * WIDTH}),
                     b = dpcr_array_make(numbers + STEPS * WIDTH * WIDTH, DPCR_F32, 3,
                                         (const int64_t[]){STEPS, 1, WIDTH});
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = STEPS,
                                    .batch = 1,
                                    .transition = dpcr_transition_square(DPCR_DENSE, WIDTH, 0),
                                    .dtype = DPCR_F32};
    const dpcr_distributed_options options = {.size = sizeof options, .transport = by, .deadline = 20};
    s->status[by->rank] = dpcr_chain_distributed(own, &shape, &options, &a, &b, NULL, &b, NULL, NULL, NULL, error);
    snprintf(s->text[by->rank], sizeof s->text[by->rank], "%s", error->text);
    free(numbers);
    dpcr_context_destroy(own);
    return DPCR_OK;
}

static void a_request_to_stop_is_every_rank_s(void **state) {
    (void)state;
    for (int64_t who = 1; who < 3; who++) {  // both make summaries
        stopping s = {.who = who};
        dpcr_error error = {0};
        if (dpcr_ranks_run(contexts[1], 3, stopped_rank, &s, &error) != DPCR_OK) fail_msg("%s", error.text);
        assert_true(s.asked[who] > 0);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(s.status[r], DPCR_ERROR_CANCELLED);
            assert_non_null(strstr(s.text[r], "cancel function"));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_bit_for_bit),
        cmocka_unit_test(permutations_exactly),
        cmocka_unit_test(numbers_within_rounding),
        cmocka_unit_test(same_bits_again),
        cmocka_unit_test(infinities_stay),
        cmocka_unit_test(products_that_overflow_are_not_taken),
        cmocka_unit_test(products_that_underflow_are_not_taken),
        cmocka_unit_test(what_products_of_ranks_lose),
        cmocka_unit_test(in_place_every_rank_refuses),
        cmocka_unit_test(in_place_within_a_range),
        cmocka_unit_test(every_rank_hears_of_a_misfit),
        cmocka_unit_test(refusals),
        cmocka_unit_test(no_wait_is_without_end),
        cmocka_unit_test(a_request_to_stop_is_every_rank_s),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
