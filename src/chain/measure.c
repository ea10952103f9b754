// SPDX-License-Identifier: MIT
// Measuring linear chains: every scheme that may win runs the whole chain, in interleaved rounds, and the winner goes
// into the context's wisdom. All schemes but overlap take the same time whatever the numbers are; overlap runs on the
// caller's typical transitions, with the shortest warm-up that needed one sweep on them.
#include "chain/measure.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/text.h"
#include "rt/race.h"
#include "rt/rt.h"
#include "rt/wisdom.h"

static const char *const planning_names[DPCR_PLANNING_COUNT] = {"estimate", "measure", "wisdom"};

const char *dpcr_planning_name(dpcr_planning planning) {
    return (unsigned)planning < DPCR_PLANNING_COUNT ? planning_names[planning] : "unknown";
}

dpcr_status dpcr_planning_find(const char *name, dpcr_planning *planning, dpcr_error *error) {
    for (int i = 0; name && planning && i < DPCR_PLANNING_COUNT; i++)
        if (strcmp(name, planning_names[i]) == 0) {
            *planning = (dpcr_planning)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "planning is \"%s\", wanted estimate, measure or wisdom",
                      name ? name : "");
}

enum { TRIALS = DPCRI_CHAIN_TRIALS, FIRST_WARM_UP = 64, LEAST_WARM_UP = 8, WARM_UPS_A_CHAIN = 8 };
static const double hopeless = 30;  // times the loop's flops

typedef struct trial {
    dpcr_chain_options options;
    dpcr_chain_plan *plan;
    double median;
} trial;

typedef struct trials {
    dpcr_chain_plan *asked;
    trial all[TRIALS];
    int64_t count;
    dpcr_array a, b, z;
    void *memory, *workspace;
    size_t workspace_bytes;
} trials;

// ---- wisdom ----

// Which transitions a choice was made for: others may remember where those forget. Of very many a share, evenly spread.
static void typical_text(const dpcr_chain_plan *plan, char *text, size_t bytes) {
    enum { MOST_BYTES = 1 << 20, LEAST_PLACES = 16 };
    const dpcr_array *a = plan->options.typical;
    const int64_t batch = plan->shape.batch, places = plan->shape.length * batch;
    if (!a || plan->values == 0) {
        snprintf(text, bytes, "%d", a != NULL);
        return;
    }
    const size_t real = dpcr_dtype_size(a->dtype), each = (size_t)plan->values * real;
    const int64_t full = MOST_BYTES / (int64_t)each, most = full < LEAST_PLACES ? LEAST_PLACES : full;
    const int64_t count = places < most ? places : most;
    const int64_t a_step = a->shape[0] > 1 ? a->strides[0] : 0, a_row = a->shape[1] > 1 ? a->strides[1] : 0;
    uint64_t sum = DPCRI_CHECKSUM;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = places / count * i + places % count * i / count;
        const int64_t element = at / batch * a_step + at % batch * a_row;
        sum = dpcri_checksum(sum, (const char *)a->data + element * (int64_t)real, each);
    }
    snprintf(text, bytes, "%016" PRIx64, sum);
}

static void key_of(const dpcr_chain_plan *plan, char *key) {
    const dpcr_chain_shape *s = &plan->shape;
    const dpcr_chain_options *o = &plan->options;
    char typical[24];
    typical_text(plan, typical, sizeof typical);
    dpcri_text_print(
        key, DPCRI_WISDOM_KEY,
        "linear %s L%lld B%lld w%lld %s%lld transposed %d typical %s threads %d chunk %lld levels %d warm-up %lld "
        "tol %.9g sweeps %d",
        dpcr_dtype_name(s->dtype), (long long)s->length, (long long)s->batch, (long long)s->transition.rows,
        dpcr_structure_name(s->transition.structure), (long long)s->transition.block, s->transposed != 0, typical,
        dpcr_context_threads(plan->context), (long long)o->chunk, o->levels, (long long)o->warm_up, o->tolerance,
        o->max_sweeps);
}

bool dpcri_chain_recall(dpcr_chain_plan *plan) {
    char key[DPCRI_WISDOM_KEY], value[DPCRI_WISDOM_VALUE], name[16];
    long long chunk = 0, warm_up = 0;
    dpcr_scheme scheme = DPCR_SCHEME_AUTO;
    int end = 0;
    key_of(plan, key);
    if (!dpcri_wisdom_find(plan->context, key, value)) return false;
    const int read = sscanf(value, "%15s chunk %lld warm-up %lld%n", name, &chunk, &warm_up, &end);
    if (read != 3 || value[end] || chunk < 0 || warm_up < 0 || dpcr_scheme_find(name, &scheme, NULL) != DPCR_OK ||
        scheme == DPCR_SCHEME_AUTO)
        return false;
    plan->options.scheme = scheme;
    plan->options.chunk = chunk;
    plan->options.warm_up = warm_up;
    snprintf(plan->sentence, sizeof plan->sentence, "%s: known from an earlier measurement", name);
    return true;
}

static void remember(const dpcr_chain_plan *plan, const dpcr_chain_options *winner) {
    char key[DPCRI_WISDOM_KEY], value[DPCRI_WISDOM_VALUE];
    key_of(plan, key);
    snprintf(value, sizeof value, "%s chunk %lld warm-up %lld", dpcr_scheme_name(winner->scheme),
             (long long)winner->chunk, (long long)winner->warm_up);
    dpcri_wisdom_set(plan->context, key, value);  // refused memory: measured again the next time
}

// ---- trials ----

static void add(trials *t, dpcr_scheme scheme, int64_t chunk, int64_t warm_up) {
    if (t->count == TRIALS) return;
    trial *new = &t->all[t->count];
    *new = (trial){.options = t->asked->options};
    new->options.scheme = scheme;
    new->options.planning = DPCR_PLANNING_ESTIMATE;
    new->options.typical = NULL;
    if (new->options.chunk == 0) new->options.chunk = chunk;
    if (new->options.warm_up == 0) new->options.warm_up = warm_up;
    if (dpcr_chain_plan_create(t->asked->context, &t->asked->shape, &new->options, &new->plan, NULL) != DPCR_OK) return;
    const size_t bytes = dpcr_chain_plan_workspace(new->plan);
    if (bytes > t->workspace_bytes) t->workspace_bytes = bytes;
    t->count++;
}

static void add_schemes(trials *t) {
    const dpcr_transition *transition = &t->asked->shape.transition;
    const double apply = dpcr_transition_apply_flops(transition), compose = dpcr_transition_compose_flops(transition);
    const double threads = dpcr_context_threads(t->asked->context), length = (double)t->asked->shape.length;
    const double levels = length > 2 ? ceil(log2(length)) : 1;
    add(t, DPCR_SCHEME_SEQUENTIAL, 0, 0);
    if (length < 32 || apply == 0) return;
    if (compose + 2 * apply < hopeless * threads * apply) {
        add(t, DPCR_SCHEME_CHUNKED, 0, 0);
        if (t->count == 2 && t->asked->options.chunk == 0) {
            const int64_t chunk = t->all[1].plan->options.chunk;
            add(t, DPCR_SCHEME_CHUNKED, 4 * chunk, 0);
            if (chunk >= 64) add(t, DPCR_SCHEME_CHUNKED, chunk / 4, 0);
        }
        add(t, DPCR_SCHEME_BLELLOCH, 0, 0);
    }
    if (levels * (compose + apply) < hopeless * threads * apply) add(t, DPCR_SCHEME_PCR, 0, 0);
    if (!t->asked->options.typical) return;
    for (int64_t m = LEAST_WARM_UP; m < t->asked->shape.length / WARM_UPS_A_CHAIN && t->count < TRIALS; m *= 2)
        add(t, DPCR_SCHEME_OVERLAP, 0, m);
}

static void fill(const dpcr_array *array, double low, double high) {
    int64_t count = 1;
    for (int d = 0; d < array->ndim; d++) count *= array->shape[d];
    for (int64_t i = 0; i < count; i++) {
        const double value = low + (high - low) * (double)(i * 7 % 16) / 15;
        if (array->dtype == DPCR_F64)
            ((double *)array->data)[i] = value;
        else if (array->dtype == DPCR_F32)
            ((float *)array->data)[i] = (float)value;
        else
            ((uint32_t *)array->data)[i] = (uint32_t)i;
    }
}

// Transitions that contract, so that nothing grows beyond the finite numbers or dies away into denormals beside b = 1.
static bool allocate(trials *t) {
    const dpcr_chain_shape *s = &t->asked->shape;
    const size_t real = dpcr_dtype_size(s->dtype);
    const int64_t w = s->transition.rows, values = t->asked->values, n = s->length * s->batch;
    const bool own = !t->asked->options.typical && values > 0;
    dpcri_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            t->memory = arena.overflow ? NULL : dpcri_alloc(t->asked->context, arena.used);
            if (!t->memory) return false;
            arena = (dpcri_arena){.base = t->memory, .size = arena.used};
        }
        void *a = own ? dpcri_arena_take(&arena, n * values, real) : NULL;
        void *b = dpcri_arena_take(&arena, n * w, real), *z = dpcri_arena_take(&arena, n * w, real);
        t->workspace = dpcri_arena_take(&arena, (int64_t)t->workspace_bytes, 1);
        t->a = dpcr_array_make(a, s->dtype, 3, (const int64_t[]){s->length, s->batch, values});
        t->b = dpcr_array_make(b, s->dtype, 3, (const int64_t[]){s->length, s->batch, w});
        t->z = dpcr_array_make(z, s->dtype, 3, (const int64_t[]){s->length, s->batch, w});
    }
    const double bound = 0.9 / (double)(s->transition.structure == DPCR_BLOCK ? s->transition.block : w);
    if (own) fill(&t->a, -bound, bound);
    if (!own && values > 0) t->a = *t->asked->options.typical;
    fill(&t->b, 0.5, 1);
    return true;
}

static dpcr_status run(trials *t, int64_t i, dpcr_chain_report *report) {
    return dpcr_chain_execute(t->all[i].plan, t->a.data ? &t->a : NULL, &t->b, NULL, &t->z, t->workspace,
                              t->workspace_bytes, report, NULL);
}

static bool run_trial(void *argument, int64_t i) { return run(argument, i, NULL) == DPCR_OK; }

// Overlap whose boundaries were not right at once is no candidate, and of those that were the first four are enough.
static bool keep_overlaps(trials *t) {
    int64_t kept = 0, overlaps = 0;
    for (int64_t i = 0; i < t->count; i++) {
        dpcr_chain_report report = {.size = sizeof report};
        bool keep = true;
        if (t->all[i].options.scheme == DPCR_SCHEME_OVERLAP) {
            if (run(t, i, &report) != DPCR_OK) return false;
            keep = report.sweeps == 1 && report.finished_from >= t->asked->shape.length && overlaps < 4;
            overlaps += keep;
        }
        if (keep) {
            const trial swapped = t->all[kept];
            t->all[kept++] = t->all[i];
            if (kept - 1 != i) t->all[i] = swapped;
        }
    }
    for (int64_t i = kept; i < t->count; i++) dpcr_chain_plan_destroy(t->all[i].plan);
    t->count = kept;
    return kept > 0;
}

static void tell(dpcr_chain_plan *plan, const trials *t, int64_t winner) {
    const trial *best = &t->all[winner], *other = NULL;
    for (int64_t i = 0; i < t->count; i++)
        if (t->all[i].options.scheme != best->options.scheme && (!other || t->all[i].median < other->median))
            other = &t->all[i];
    int used = snprintf(plan->sentence, sizeof plan->sentence, "%s: measured %.3g us",
                        dpcr_scheme_name(best->options.scheme), best->median * 1e6);
    if (other && other->median < HUGE_VAL)
        snprintf(plan->sentence + used, sizeof plan->sentence - (size_t)used, ", %s %.3g us",
                 dpcr_scheme_name(other->options.scheme), other->median * 1e6);
}

// The winner, then the others by their times.
static void keep_times(dpcr_chain_plan *plan, const trials *t, int64_t winner) {
    plan->timed_count = 0;
    for (int64_t k = -1; k < t->count; k++) {
        const trial *each = &t->all[k < 0 ? winner : k];
        if (k == winner || each->median == HUGE_VAL) continue;
        const dpcr_chain_options *o = dpcr_chain_plan_options(each->plan);
        const bool overlaps = o->scheme == DPCR_SCHEME_OVERLAP, cuts = overlaps || o->scheme == DPCR_SCHEME_CHUNKED;
        const dpcr_chain_candidate c = {.size = sizeof c,
                                        .scheme = o->scheme,
                                        .chunk = cuts ? o->chunk : 0,
                                        .warm_up = overlaps ? o->warm_up : 0,
                                        .seconds = dpcr_chain_plan_seconds(each->plan),
                                        .measured = each->median,
                                        .workspace = dpcr_chain_plan_workspace(each->plan)};
        int64_t at = plan->timed_count++;
        for (; at > 1 && plan->timed[at - 1].measured > c.measured; at--) plan->timed[at] = plan->timed[at - 1];
        plan->timed[at] = c;
    }
}

bool dpcri_chain_measure(dpcr_chain_plan *plan) {
    trials t = {.asked = plan};
    double median[TRIALS];
    const double seconds = plan->options.planning_seconds > 0 ? plan->options.planning_seconds : 1;
    int64_t winner = -1;
    add_schemes(&t);
    if (t.count > 0 && plan->shape.length > 0 && plan->shape.batch > 0 && allocate(&t) && keep_overlaps(&t))
        winner = dpcri_race(t.count, run_trial, &t, seconds, dpcri_race_seconds, median);
    if (winner >= 0) {
        for (int64_t i = 0; i < t.count; i++) t.all[i].median = median[i];
        tell(plan, &t, winner);
        keep_times(plan, &t, winner);
        remember(plan, &t.all[winner].options);
        plan->options.scheme = t.all[winner].options.scheme;
        plan->options.chunk = t.all[winner].options.chunk;
        plan->options.warm_up = t.all[winner].options.warm_up;
    }
    for (int64_t i = 0; i < t.count; i++) dpcr_chain_plan_destroy(t.all[i].plan);
    dpcri_free(plan->context, t.memory);
    return winner >= 0;
}
