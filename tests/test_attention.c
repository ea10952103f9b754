// SPDX-License-Identifier: MIT
// Linear attention: with and without decays, decays by rows and the delta rule, every layout and extent against the
// definition in double, forward and gradients, in pages whose neighbours must not be touched; keys of one component
// and decays of 0 and 1 exactly; what is not finite stays in its place; requests to stop, refusals and refused memory.
#include "attention_problem.h"
#include "sampled.h"

static const char *const names[] = {"q", "k", "v", "g", "beta", "s0"};

// ---- the definition, and its derivative, in double, step by step ----

static double input(const problem *p, int use, int64_t i, double otherwise) {
    return given(p, use) ? get(&p->at[use], i) : otherwise;
}

typedef struct step {
    int64_t key, value, g, beta;  // where its numbers begin
} step;

static step step_of(const problem *p, int64_t b, int64_t l, int64_t h) {
    const int64_t row = b * p->length + l, head = row * p->heads + h;
    return (step){(row * p->groups + h * p->groups / p->heads) * p->keys, head * p->values,
                  head * (p->by_row ? p->keys : 1), head};
}

static double decay_of(const problem *p, const step *s, int64_t c) {
    return given(p, G_) ? exp(get(&p->at[G_], s->g + (p->by_row ? c : 0))) : 1;
}

// The state after a step, and u, from that before it; o too.
static void forth(const problem *p, const step *s, const double *before, double *after, double *u, double **value) {
    for (int64_t v = 0; v < p->values; v++) {
        double y = 0, o = 0;
        for (int64_t c = 0; c < p->keys; c++)
            y += decay_of(p, s, c) * before[c * p->values + v] * get(&p->at[K_], s->key + c);
        u[v] = get(&p->at[V_], s->value + v);
        if (given(p, BETA)) u[v] = get(&p->at[BETA], s->beta) * (u[v] - y);
        for (int64_t c = 0; c < p->keys; c++) {
            double *x = after + c * p->values + v;
            *x = decay_of(p, s, c) * before[c * p->values + v] + get(&p->at[K_], s->key + c) * u[v];
            o += get(&p->at[Q], s->key + c) * *x;
        }
        value[O][s->value + v] = p->in.scale * o;
    }
}

// `carry` becomes the gradient of the state before the step.
static void back(const problem *p, const step *s, const double *before, const double *after, const double *u,
                 double *carry, double **value) {
    double **g = value + GRADIENTS;
    for (int64_t v = 0; v < p->values; v++) {
        const double go = p->in.scale * get(&p->at[GO], s->value + v);
        double gu = 0, y = 0;
        for (int64_t c = 0; c < p->keys; c++) {
            const int64_t at = c * p->values + v;
            const double k = get(&p->at[K_], s->key + c), x = decay_of(p, s, c) * before[at];
            carry[at] += go * get(&p->at[Q], s->key + c);
            g[Q][s->key + c] += go * after[at];
            g[K_][s->key + c] += carry[at] * u[v];
            gu += carry[at] * k, y += x * k;
        }
        if (given(p, BETA)) {
            g[BETA][s->beta] += gu * (get(&p->at[V_], s->value + v) - y);
            gu *= get(&p->at[BETA], s->beta);
        }
        g[V_][s->value + v] = gu;
        for (int64_t c = 0; c < p->keys; c++) {
            const int64_t at = c * p->values + v;
            const double d = decay_of(p, s, c), x = d * before[at];
            if (given(p, BETA)) g[K_][s->key + c] -= gu * x, carry[at] -= gu * get(&p->at[K_], s->key + c);
            if (given(p, G_)) g[G_][s->g + (p->by_row ? c : 0)] += carry[at] * x;
            carry[at] *= d;
        }
    }
}

static void head_of(const problem *p, int64_t b, int64_t h, double **value) {
    const int64_t L = p->length, size = p->keys * p->values, first = (b * p->heads + h) * size;
    double *states = calloc((size_t)((L + 1) * size), sizeof *states), *carry = calloc((size_t)size, sizeof *carry),
           *u = calloc((size_t)(L * p->values + 1), sizeof *u);
    for (int64_t i = 0; i < size; i++) states[i] = input(p, S0, first + i, 0), carry[i] = get(&p->at[GLAST], first + i);
    for (int64_t l = 0; l < L; l++) {
        const step s = step_of(p, b, l, h);
        forth(p, &s, states + l * size, states + (l + 1) * size, u + l * p->values, value);
    }
    for (int64_t l = L - 1; l >= 0; l--) {
        const step s = step_of(p, b, l, h);
        back(p, &s, states + l * size, states + (l + 1) * size, u + l * p->values, carry, value);
    }
    for (int64_t i = 0; i < size; i++)
        value[LAST][first + i] = states[L * size + i], value[GRADIENTS + S0][first + i] = carry[i];
    free(states);
    free(carry);
    free(u);
}

// The largest number of an array is what its errors are measured by: a state's numbers all go into one another.
// Roundings of what is summed, in ours and in the definition's, go either way.
static void compare(const problem *p, int use, const double *value) {
    if (use >= GRADIENTS && use != GRADIENTS + S0 && !given(p, use - GRADIENTS)) return;
    const double eps = p->dtype == DPCR_F32 ? 0x1p-24 : 0x1p-53, terms = (double)(p->keys * p->values + p->length);
    const double bound = p->whole ? 0 : (20 + 2 * sqrt(terms)) * eps;
    double most = 1;
    for (int64_t i = 0; i < count_of(&p->at[use]); i++) most = fmax(most, fabs(value[i]));
    for (int64_t i = 0; i < count_of(&p->at[use]); i++) {
        const double got = get(&p->at[use], i), error = fabs(got - value[i]);
        if (!(error <= bound * most))
            fail_msg("%s%s, number %lld: %.17g, wanted %.17g, %g eps of %g", use >= GRADIENTS ? "gradient of " : "",
                     use >= GRADIENTS ? names[use - GRADIENTS]
                     : use == O       ? "o"
                                      : "last",
                     (long long)i, got, value[i], error / eps / most, most);
    }
}

static void check_problem(dpcr_context *context, problem *p, bool beginning, bool keeps) {
    fill(p, beginning);
    double *value[KEPT] = {0};
    for (int use = O; use < KEPT; use++) value[use] = calloc((size_t)count_of(&p->at[use]) + 1, sizeof(double));
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++) head_of(p, b, h, value);
    const size_t bytes = (dpcr_attention_kept_bytes(&p->in) + 63) / 64 * 64;
    void *kept = keeps ? aligned_alloc(64, bytes) : NULL;
    run(context, p, kept);
    for (int use = O; use < KEPT; use++)
        if (use != GO && use != GLAST) compare(p, use, value[use]);
    for (int use = O; use < KEPT; use++) free(value[use]);
    free(kept);
}

static void agrees_with_the_definition(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 15, 16, 17, 40, 130, 150}, keys[] = {1, 3, 8, 16, 33},
                         values[] = {1, 5, 16, 32, 70};
    dpcr_context *context = context_of(3, NULL);
    for (int round = 0; round < (TESTS_SANITIZED ? 1 : 3); round++)
        for (int64_t l = 0; l < 8; l++)
            for (int64_t k = 0; k < 5; k++)
                for (int64_t v = 0; v < 5; v++) {
                    problem p = {.dtype = pick(2) ? DPCR_F64 : DPCR_F32,
                                 .batch = 1 + pick(2),
                                 .length = lengths[l],
                                 .groups = 1 + pick(3),
                                 .keys = keys[k],
                                 .values = values[v],
                                 .mixed = true,
                                 .by_row = pick(2),
                                 .there = (unsigned)pick(8) << G_};
                    p.heads = p.groups * (pick(10) ? 1 + pick(3) : 5);
                    check_problem(context, &p, pick(2), pick(2));
                }
    dpcr_context_destroy(context);
}

// Nothing is rounded then, and a decay of 0 forgets what was before.
static void is_exact_with_whole_numbers(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 120; k++) {
        problem p = {.dtype = pick(2) ? DPCR_F64 : DPCR_F32,
                     .batch = 2,
                     .length = pick(5) ? 23 : 140,
                     .groups = 1,
                     .heads = 1 + pick(6),
                     .keys = pick(3) ? 5 : 20,
                     .values = pick(2) ? 6 : 32,
                     .mixed = true,
                     .by_row = pick(2),
                     .whole = true,
                     .there = (unsigned)pick(8) << G_};
        if (!(p.there & 1u << BETA)) p.length = 23;
        check_problem(context, &p, pick(2), pick(2));
    }
    dpcr_context_destroy(context);
}

static void takes_no_steps_and_no_batch(void **state) {
    (void)state;
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 4; k++) {
        problem p = {.dtype = DPCR_F32,
                     .batch = k % 2 ? 0 : 2,
                     .length = k < 2 ? 0 : 4,
                     .groups = 1,
                     .heads = 2,
                     .keys = 3,
                     .values = 4,
                     .there = 7u << G_};
        check_problem(context, &p, false, k < 2);
    }
    dpcr_context_destroy(context);
}

// ---- numbers at their ends ----

// A NaN of a step is in no number of o before it, nor in another head's or entry's; one of v's columns stays there.
static void what_is_not_finite_stays_in_its_place(void **state) {
    (void)state;
    static const int uses[] = {Q, K_, V_, G_, BETA};
    dpcr_context *context = context_of(2, NULL);
    for (int k = 0; k < 20; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, k / 2 % 2);
        const int use = uses[k % 5];
        p.length = 40, p.values = 40, p.groups = 2;
        fill(&p, false);
        const int64_t when = 21, heads = 2,
                      each = use == BETA || (use == G_ && !p.by_row) ? 1
                             : use == V_                             ? p.values
                                                                     : p.keys;
        const int64_t column = use == V_ ? 3 : 0;
        put(&p.at[use], ((1 * p.length + when) * heads + 1) * each + column, NAN);  // of entry 1, head 1
        run(context, &p, NULL);
        bool seen = false;
        for (int64_t i = 0; i < count_of(&p.at[O]); i++) {
            const int64_t v = i % p.values, h = i / p.values % heads, l = i / p.values / heads % p.length,
                          b = i / p.values / heads / p.length;
            const bool may = b == 1 && h == 1 && l >= when && (use != V_ || v == column) && (use != Q || l == when);
            const bool is = isnan(get(&p.at[O], i));
            seen |= is;
            if (is && !may) fail_msg("a NaN of %s is in o of step %d, column %d", names[use], (int)l, (int)v);
        }
        assert_true(seen);
    }
    dpcr_context_destroy(context);
}

static void forgets(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    for (int k = 0; k < 4; k++) {
        problem p = middling(k % 2 ? DPCR_F64 : DPCR_F32, k / 2);
        p.batch = p.heads = 1, p.length = 20;
        fill(&p, false);
        const int64_t each = p.by_row ? p.keys : 1;
        for (int64_t i = 0; i < 7 * p.values; i++) put(&p.at[GO], i, 0);
        for (int64_t i = 0; i < each; i++) put(&p.at[G_], 7 * each + i, i % 2 ? -INFINITY : -800);
        run(context, &p, NULL);
        for (int64_t i = 0; i < count_of(&p.at[S0]); i++) assert_true(get(&p.at[GRADIENTS + S0], i) == 0);
        const double before = get(&p.at[O], 7 * p.values);
        put(&p.at[K_], 0, 3);  // states before that no longer matter
        run(context, &p, NULL);
        assert_true(get(&p.at[O], 7 * p.values) == before);
    }
    dpcr_context_destroy(context);
}

// The stride of a single step, head or component says nothing.
static void takes_any_stride_of_one(void **state) {
    (void)state;
    dpcr_context *context = context_of(3, NULL);
    const int64_t odd[] = {INT64_MAX, INT64_MIN, 1};
    double last = 0;
    problem p = middling(DPCR_F32, true);
    p.batch = p.length = p.heads = p.keys = p.values = 1;
    fill(&p, false);
    for (int k = 0; k < 3; k++) {
        for (int use = 0; use < KEPT; use++)
            for (int d = 0; d < p.at[use].ndim; d++) p.at[use].strides[d] = odd[(k + d) % 3];
        run(context, &p, NULL);
        double sum = 0;
        for (int use = O; use < KEPT; use++) sum += get(&p.at[use], 0);
        assert_true(!isnan(sum) && (k == 0 || sum == last));
        last = sum;
    }
    dpcr_context_destroy(context);
}

// ---- what is refused, and who stops ----

// One number for all that goes in, and much of it.
static void stops_when_asked(void **state) {
    (void)state;
    enum { LENGTH = 1 << 14, WIDTH = 128, HEADS = 4 };
    const int64_t rows[4] = {1, LENGTH, HEADS, WIDTH};
    float one = 0.01f, *o = malloc((size_t)HEADS * LENGTH * WIDTH * sizeof *o);
    const dpcr_array to = dpcr_array_make(o, DPCR_F32, 4, rows);
    dpcr_array q = dpcr_array_make(&one, DPCR_F32, 4, rows);
    memset(q.strides, 0, sizeof q.strides);
    const dpcr_attention in = {.size = sizeof in, .q = &q, .k = &q, .v = &q, .scale = 1};
    const dpcr_attention_gradients out = {.size = sizeof out, .v = &to};
    dpcr_context *context = context_of(2, asked);
    dpcr_error error = {0};
    for (int back = 0; back < 2; back++) {
        const dpcr_status status = back ? dpcr_attention_adjoint(context, &in, &q, NULL, NULL, &out, &error)
                                        : dpcr_attention_scan(context, &in, &to, NULL, NULL, &error);
        assert_int_equal(status, DPCR_ERROR_CANCELLED);
        assert_non_null(strstr(error.text, back ? "attention_adjoint" : "attention_scan"));
    }
    dpcr_context_destroy(context);
    free(o);
}

// Of no steps either; where nothing is wanted there is nothing to do, however many sequences there are.
static void stops_among_states_of_no_steps(void **state) {
    (void)state;
    enum { BATCH = 1 << 13, WIDTH = 16 };
    const int64_t rows[4] = {BATCH, 0, 1, WIDTH}, s[4] = {BATCH, 1, WIDTH, WIDTH}, many = INT64_C(1) << 40;
    float *memory = calloc((size_t)BATCH * WIDTH * WIDTH, sizeof *memory);
    dpcr_array q = dpcr_array_make(NULL, DPCR_F32, 4, rows);
    const dpcr_array states = dpcr_array_make(memory, DPCR_F32, 4, s);
    const dpcr_attention in = {.size = sizeof in, .q = &q, .k = &q, .v = &q, .scale = 1};
    const dpcr_attention_gradients out = {.size = sizeof out, .s0 = &states}, none = {.size = sizeof none};
    dpcr_context *context = context_of(2, asked);
    assert_int_equal(dpcr_attention_scan(context, &in, &q, &states, NULL, NULL), DPCR_ERROR_CANCELLED);
    assert_int_equal(dpcr_attention_adjoint(context, &in, &q, NULL, NULL, &out, NULL), DPCR_ERROR_CANCELLED);
    q.shape[0] = many;
    assert_int_equal(dpcr_attention_scan(context, &in, &q, NULL, NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_attention_adjoint(context, &in, &q, NULL, NULL, &none, NULL), DPCR_OK);
    dpcr_context_destroy(context);
    free(memory);
}

static void refused(dpcr_context *context, problem *p, bool back, dpcr_status wanted, const char *words) {
    dpcr_error error = {0};
    const dpcr_status status = back ? dpcr_attention_adjoint(context, &p->in, &p->at[GO], NULL, NULL, &p->out, &error)
                                    : dpcr_attention_scan(context, &p->in, &p->at[O], NULL, NULL, &error);
    if (status != wanted || !strstr(error.text, words)) fail_msg("wanted '%s', got %d '%s'", words, status, error.text);
    fill(p, false);
}

static void refuses_shapes(dpcr_context *context, problem *p) {
    static const char *const wanted[] = {"[B][L][G][K]", "[2][20][1][10] float32", "[B][L][H][V]",
                                         "[2][20][2]",   "[2][20][2] float32",     "[2][2][10][75] float32"};
    for (int use = 0; use < INPUTS; use++) {
        dpcr_array *a = &p->at[use];
        a->ndim++, a->shape[a->ndim - 1] = 1;
        assert_int_equal(dpcr_attention_kept_bytes(&p->in), 0);
        refused(context, p, false, DPCR_ERROR_ARGUMENT, wanted[use]);
        a->ndim--;
        refused(context, p, false, DPCR_ERROR_ARGUMENT, wanted[use]);
        if (use != Q && use != V_) {  // whose extents the others are held to
            a->shape[a->ndim - 1]++;
            refused(context, p, true, DPCR_ERROR_ARGUMENT, names[use]);
        }
        p->at[GRADIENTS + use].strides[0] = 0;
        refused(context, p, true, DPCR_ERROR_ARGUMENT, "has a stride of 0");
        p->at[GRADIENTS + use].strides[0] = p->at[GRADIENTS + use].strides[1];
        refused(context, p, true, DPCR_ERROR_ARGUMENT, "its strides make it overlap itself");
        a->strides[0] = INT64_MAX / 2;
        refused(context, p, false, DPCR_ERROR_OVERFLOW, "beyond the address space");
        p->at[GRADIENTS + use].strides[0] = INT64_MIN;
        refused(context, p, true, DPCR_ERROR_OVERFLOW, "beyond the address space");
        a->dtype = DPCR_F64;
        refused(context, p, false, DPCR_ERROR_ARGUMENT, use == Q ? "wanted [2][20][1][10] float64" : names[use]);
        a->data = NULL;
        refused(context, p, false, DPCR_ERROR_ARGUMENT, "has no data");
    }
    p->at[Q].shape[2] = p->at[K_].shape[2] = 4;
    refused(context, p, false, DPCR_ERROR_ARGUMENT, "G divides H");
    p->at[Q].shape[3] = 0;
    refused(context, p, false, DPCR_ERROR_ARGUMENT, "K and V from 1");
    p->at[Q].dtype = DPCR_U32;
    refused(context, p, false, DPCR_ERROR_ARGUMENT, "float32 or float64");
    for (int none = 0; none < 2; none++) {  // nothing, but sizes beside it that are too large
        for (int use = 0; use < KEPT; use++) {
            p->at[use].shape[0] = none ? INT64_MAX / 8 : 0;
            if (use != S0 && use != LAST && use != GLAST && use != GRADIENTS + S0)
                p->at[use].shape[1] = none ? 0 : INT64_MAX / 8;
        }
        refused(context, p, true, DPCR_ERROR_OVERFLOW, "more than memory can number");
    }
}

static dpcr_status there_and_back(dpcr_context *context, void *user) {
    const problem *p = user;
    const dpcr_status status = dpcr_attention_scan(context, &p->in, &p->at[O], NULL, NULL, NULL);
    return status == DPCR_OK ? dpcr_attention_adjoint(context, &p->in, &p->at[GO], NULL, NULL, &p->out, NULL) : status;
}

static void refuses(void **state) {
    (void)state;
    dpcr_context *context = context_of(1, NULL);
    dpcr_error error = {0};
    problem p = middling(DPCR_F32, false);
    p.length = 20;
    fill(&p, false);
    refuses_shapes(context, &p);
    p.in.scale = NAN, p.in.size += 64, p.out.size += 64;  // newer ones are served
    refused(context, &p, true, DPCR_ERROR_ARGUMENT, "wanted a finite number");
    for (int k = 0; k < 2; k++) {
        p.in.scale = k ? NAN : 1e300;
        refused(context, &p, k, DPCR_ERROR_ARGUMENT, "wanted a finite number");
        p.in.size--;
        refused(context, &p, k, DPCR_ERROR_ARGUMENT, "of another size");
        p.in.k = NULL;
        refused(context, &p, k, DPCR_ERROR_ARGUMENT, "q, k or v is NULL");
        *(k ? &p.in.beta : &p.in.g) = NULL;
        refused(context, &p, true, DPCR_ERROR_ARGUMENT, "not there");
    }
    p.out.size--;
    refused(context, &p, true, DPCR_ERROR_ARGUMENT, "of another size");
    p.at[O].data = p.at[V_].data;
    refused(context, &p, false, DPCR_ERROR_ARGUMENT, "o lies where v does");
    p.at[O].data = p.at[S0].data;
    refused(context, &p, false, DPCR_ERROR_ARGUMENT, "o lies where s0 does");
    p.at[GRADIENTS + K_].data = p.at[GRADIENTS + Q].data;
    refused(context, &p, true, DPCR_ERROR_ARGUMENT, "the gradient of q lies where the gradient of k does");
    p.at[GRADIENTS + V_].data = p.at[GO].data;
    refused(context, &p, true, DPCR_ERROR_ARGUMENT, "the gradient of v lies where go does");
    refused(NULL, &p, false, DPCR_ERROR_ARGUMENT, "NULL");
    refused(NULL, &p, true, DPCR_ERROR_ARGUMENT, "NULL");
    char *off = guarded(KEPT, 1 << 16, true) + 16;
    assert_int_equal(dpcr_attention_scan(context, &p.in, &p.at[O], NULL, off, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "kept lies 16 bytes off"));
    assert_int_equal(dpcr_attention_scan(context, NULL, &p.at[O], NULL, NULL, &error), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(context);
    refuses_without_memory(there_and_back, &p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_definition),
        cmocka_unit_test(is_exact_with_whole_numbers),
        cmocka_unit_test(takes_no_steps_and_no_batch),
        cmocka_unit_test(what_is_not_finite_stays_in_its_place),
        cmocka_unit_test(forgets),
        cmocka_unit_test(takes_any_stride_of_one),
        cmocka_unit_test(stops_when_asked),
        cmocka_unit_test(stops_among_states_of_no_steps),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
