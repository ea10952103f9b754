// SPDX-License-Identifier: MIT
// AUTO on a device by measurement: the loop, overlap and newton, as far as the chain's launch serves them, solve the
// whole chain at hand there, in interleaved rounds by the device's clock, in memory of the device that lives until the
// plan is made, from the caller's start where it lies there, else from zeros. What they took is remembered in the
// context's wisdom by device, shape and options, and taken from there by plans made later.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "rt/dev/device.h"
#include "rt/race.h"
#include "rt/watch.h"
#include "solve/solve_internal.h"

enum { WAYS = 3 };
static const double least_seconds = 5e-6;  // of a run: shorter ones are launches alone, and would be repeated too often
static const dpcr_method methods[WAYS] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON};

typedef struct trial {
    dpcr_context *context;
    dpcri_watch *watch;
    dpcr_device device;
    const dpcri_device_table *table;
    dpcr_solve_plan *plans[WAYS];  // NULL: not served
    const dpcr_array *z0;          // or NULL: zeros
    dpcr_array z;
    void *workspace, *stream, *events[2];
    size_t bytes;
    double now;            // seconds that the device was at work
    double seconds[WAYS];  // 0: was not timed
} trial;

// ---- what is remembered ----

// False where it does not fit.
static bool key_of(const dpcr_solve_plan *plan, const dpcr_device_info *info, char *key) {
    const dpcr_steps *s = &plan->steps;
    const dpcr_solve_options *o = &plan->options;
    const int used = dpcri_text_print(
        key, DPCRI_WISDOM_KEY,
        "device %.100s %d.%d solve %s L%lld B%lld w%lld %s%lld flops %.9g tol %.9g %.9g joins %.9g chunk %lld "
        "warm-up %lld sweeps "
        "%d%s limit %zu chain %016" PRIx64,
        info->name, info->major, info->minor, dpcr_dtype_name(s->dtype), (long long)s->length, (long long)s->batch,
        (long long)s->width, dpcr_structure_name(s->jacobian.structure), (long long)s->jacobian.block, s->flops,
        o->atol, o->rtol, o->join_tolerance, (long long)o->chunk, (long long)o->warm_up, o->max_sweeps,
        o->no_fallback ? " left open" : "", o->memory_limit, s->identity);
    return used > 0 && used < DPCRI_WISDOM_KEY;
}

static bool recall(dpcr_context *context, const char *key, double *seconds) {
    char text[DPCRI_WISDOM_VALUE];
    int end = 0;
    if (!dpcri_wisdom_find(context, key, text)) return false;
    if (dpcri_text_scan(text, "sequential %lf overlap %lf newton %lf%n", &seconds[0], &seconds[1], &seconds[2], &end) !=
            3 ||
        text[end] != 0)
        return false;
    bool any = false;
    for (int i = 0; i < WAYS; i++) {
        if (!(seconds[i] >= 0 && seconds[i] < 1e9)) return false;
        any = any || seconds[i] > 0;
    }
    return any;
}

static void remember(dpcr_context *context, const char *key, const double *seconds) {
    char text[DPCRI_WISDOM_VALUE];
    dpcri_text_print(text, sizeof text, "sequential %.9g overlap %.9g newton %.9g", seconds[0], seconds[1], seconds[2]);
    dpcri_wisdom_set(context, key, text);  // refused memory: measured again the next time
}

// ---- measuring ----

static bool run(void *argument, int64_t i) {
    trial *t = argument;
    dpcr_solve_report report = {.size = sizeof report};
    if (!t->plans[i] || dpcri_watch_stopped(t->watch)) return false;
    const int id = t->device.id;
    double seconds = 0;
    dpcr_status status = t->table->event_record(id, t->events[0], t->stream, NULL);
    if (status == DPCR_OK)
        status = dpcr_solve_enqueue(t->plans[i], t->z0, &t->z, t->workspace, t->bytes, t->stream, NULL);
    if (status == DPCR_OK) status = t->table->event_record(id, t->events[1], t->stream, NULL);
    if (status == DPCR_OK) status = dpcr_solve_collect(t->plans[i], t->workspace, t->bytes, t->stream, &report, NULL);
    if (status == DPCR_OK) status = t->table->event_seconds(id, t->events[0], t->events[1], &seconds, NULL);
    if (dpcri_watch_heard(t->watch, status) || status != DPCR_OK) return false;
    t->now += fmax(seconds, least_seconds);
    return report.reason > 0 || report.reason == DPCR_REASON_NONFINITE;
}

static double device_clock(void *argument) { return ((const trial *)argument)->now; }

// How many ways are served; what they need at most.
static int make_plans(trial *t, const dpcr_solve_plan *plan) {
    int served = 0;
    dpcr_solve_options filled = plan->options;  // 0 is a default in the plan's yet, as the caller gave it
    dpcri_device_defaults(&filled, plan->steps.dtype, plan->steps.length, 1, 1);
    const bool bits = dpcri_joins_in_bits(&filled);
    for (int i = 0; i < WAYS; i++) {
        dpcr_solve_options o = plan->options;
        if (bits && methods[i] == DPCR_METHOD_NEWTON) continue;
        o.method = methods[i];
        o.planning = DPCR_PLANNING_ESTIMATE;
        if (dpcr_solve_plan_create(plan->context, &plan->steps, &o, &t->plans[i], NULL) != DPCR_OK) continue;
        const size_t bytes = dpcr_solve_plan_workspace(t->plans[i]);
        if (bytes > t->bytes) t->bytes = bytes;
        served++;
    }
    return served;
}

// States, workspace, a stream and its events; false: there is no room.
static bool prepare(trial *t, const dpcr_solve_plan *plan) {
    const dpcr_steps *s = &plan->steps;
    const int64_t shape[3] = {s->length, s->batch, s->width}, real = (int64_t)dpcr_dtype_size(s->dtype);
    bool overflow = false;
    int64_t rows = 0;
    if (!dpcri_mul(s->length, s->batch, &rows)) return false;
    const size_t states = dpcri_bytes(rows, s->width, real, &overflow), limit = plan->options.memory_limit;
    if (overflow || states > SIZE_MAX - t->bytes || (limit && states + t->bytes > limit)) return false;
    t->z = dpcr_array_make(NULL, s->dtype, 3, shape);
    t->z.device = t->device;
    return dpcr_device_allocate(t->device, states, &t->z.data, NULL) == DPCR_OK &&
           dpcr_device_allocate(t->device, t->bytes, &t->workspace, NULL) == DPCR_OK &&
           dpcr_stream_create(t->device, &t->stream, NULL) == DPCR_OK &&
           t->table->event_create(t->device.id, &t->events[0], NULL) == DPCR_OK &&
           t->table->event_create(t->device.id, &t->events[1], NULL) == DPCR_OK;
}

static void end(trial *t) {
    for (int i = 0; i < WAYS; i++) dpcr_solve_plan_destroy(t->plans[i]);
    dpcr_device_release(t->device, t->z.data);
    dpcr_device_release(t->device, t->workspace);
    for (int i = 0; i < 2; i++)
        if (t->events[i]) t->table->event_destroy(t->device.id, t->events[i]);
    if (t->stream) dpcr_stream_destroy(t->device, t->stream);
}

// Fills t->seconds. `told`: why nothing was timed, for the sentence.
static dpcr_status measure(trial *t, const dpcr_solve_plan *plan, const char **told, dpcr_error *error) {
    const double budget = plan->options.planning_seconds > 0 ? plan->options.planning_seconds : 1;
    double median[WAYS];
    if (make_plans(t, plan) == 0) {
        *told = "";  // the caller is told why
        return DPCR_OK;
    }
    *told = " (not enough memory there to measure)";
    if (!prepare(t, plan)) return DPCR_OK;
    const int64_t winner = dpcri_race(WAYS, run, t, budget, device_clock, median);
    if (dpcri_watch_stopped(t->watch)) return dpcri_fail_stopped(error, "solve_plan_create");
    *told = winner < 0 ? " (no way could be measured there)" : NULL;
    for (int i = 0; i < WAYS && winner >= 0; i++) t->seconds[i] = median[i] < HUGE_VAL ? median[i] : 0;
    return DPCR_OK;
}

// ---- choosing ----

// Those that were timed as the plan's candidates, the fastest first.
static void list_candidates(dpcr_solve_plan *plan, const double *seconds) {
    plan->candidate_count = 0;
    for (int i = 0; i < WAYS; i++) {
        if (seconds[i] <= 0) continue;
        int64_t at = plan->candidate_count++;
        for (; at > 0 && plan->candidates[at - 1].measured > seconds[i]; at--)
            plan->candidates[at] = plan->candidates[at - 1];
        plan->candidates[at] = (dpcr_candidate){.size = sizeof(dpcr_candidate),
                                                .method = methods[i],
                                                .chunk = plan->options.chunk,
                                                .warm_up = plan->options.warm_up,
                                                .measured = seconds[i]};
    }
}

static void write_sentence(dpcr_solve_plan *plan, const char *where, const char *name, bool known) {
    const dpcr_candidate *c = plan->candidates;
    int used =
        snprintf(plan->sentence, sizeof plan->sentence, "%s: %.3g us on %s (%.100s)%s", dpcr_method_name(c->method),
                 1e6 * c->measured, where, name, known ? ", known from an earlier measurement" : ", measured");
    for (int64_t i = 1; i < plan->candidate_count; i++)
        used += snprintf(plan->sentence + used, sizeof plan->sentence - (size_t)used, "%s%s %.3g us",
                         i > 1 ? ", " : "; ", dpcr_method_name(c[i].method), 1e6 * c[i].measured);
}

dpcr_status dpcri_device_measured(dpcr_solve_plan *plan, const dpcr_device_info *info, const char *where,
                                  const char **told, dpcr_error *error) {
    dpcri_watch watch;
    trial t = {.context = plan->context, .device = plan->options.device};
    const double began = dpcri_seconds();
    const dpcr_planning planning = plan->options.planning;
    dpcr_status status = DPCR_OK;
    char key[DPCRI_WISDOM_KEY];
    const bool fits = key_of(plan, info, key), known = fits && recall(plan->context, key, t.seconds);
    *told = NULL;
    if (!known && planning == DPCR_PLANNING_ESTIMATE) return DPCR_OK;
    if (!known && planning == DPCR_PLANNING_WISDOM)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "solve: nothing is known of this chain on %s; planning measure would find out", where);
    if (!known) {
        const dpcr_array *start = plan->options.start;
        if (start && start->device.type == t.device.type && start->device.id == t.device.id) t.z0 = start;
        DPCR_TRY(dpcri_device_ready(t.device, "solve_plan_create", &t.table, error));
        t.watch = dpcri_watch_begin(&watch, plan->context, HUGE_VAL);
        status = measure(&t, plan, told, error);
        end(&t);
        plan->planning_seconds = dpcri_seconds() - began;
        if (status != DPCR_OK || *told) return status;
        if (fits) remember(plan->context, key, t.seconds);
    }
    list_candidates(plan, t.seconds);
    plan->options.method = plan->candidates[0].method;
    write_sentence(plan, where, info->name, known);
done:
    return status;
}
