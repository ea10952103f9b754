// SPDX-License-Identifier: MIT
// Filters over long signals. A channel is cut into K stretches of n samples and a rest, lanes of the kernel:
//   e_c <- the states after stretch c from zeros; its last m samples do where the filter forgets in m < n
//   s_0 = zi;  s_{c+1} = A^n s_c + e_c       (A^n = 0 where it forgets)
//   y of stretch c from s_c; the rest from the last one's end
// Work at most 2 L samples, L (1 + m/n) where the filter forgets; depth 2 n + K. The ends are compared with the starts
// that were taken; a channel with a defect, or with numbers that are not finite, runs again in order.
// The adjoint is the same from the last sample down, with the transposed power. Derivation: docs/math/filter.md.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "chain/filter.h"
#include "rt/watch.h"

enum {
    LANES = DPCRI_FILTER_LANES,
    SHORTEST = 64,
    LONGEST = 16384,
    USUAL = 4096,
    MEMORIES = 8,
    LINES = 32,
    LARGE = 16 << 20,
    MIDDLE = 4 << 20
};
static const double DEFECT = 1e-10;  // of the largest state of its kind

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// A signal or states: channel b begins at data + b * channel; in bytes, 4 or 8 an element.
typedef struct signals {
    char *data;
    int64_t channel, step, element;
} signals;

typedef struct filtering {
    const dpcr_filter *filter;
    const dpcri_filter_stage *stage;
    bool backward;
    signals x, y;
    int64_t channels, length;
    int64_t stretches, n, rest;  // K, samples of each, and what is left over at the end
    int64_t seen;                // samples of a stretch that its summary looks at: min(n, m)
    double *start, *end;         // [K][channels][w]
    double *state;  // of channel 0: what goes in at first, then what comes out; all of the filter's, one channel after
                    // the other
    dpcri_watch *watch;
} filtering;

// From the length and the filter alone.
static void cut(filtering *f) {
    const int64_t length = f->length, memory = f->stage->memory;
    f->stretches = 0, f->rest = length;
    if (length >= f->stage->limit || length < LANES * SHORTEST) return;
    const int64_t wanted =
        memory > LONGEST / MEMORIES ? USUAL : most(MEMORIES * memory, LONGEST / MEMORIES);  // samples a stretch
    const int64_t groups = length / (LANES * wanted), two = length >= 16 * LANES * SHORTEST ? 2 : 1;
    f->stretches = LANES * most(groups, two);
    f->n = length / f->stretches;
    if (f->n >= LINES) f->n = (f->n - LINES / 2) / LINES * LINES + LINES / 2;  // whole lines of cache, an odd number
    if (memory > f->n && !f->stage->power) {
        f->stretches = 0;
        return;
    }
    f->rest = length - f->n * f->stretches;
    f->seen = least(f->n, memory);
}

static double *state_of(const filtering *f, int64_t b) {
    return f->state + (b * f->filter->sections + f->stage->first) * f->filter->order;
}

static const void *sample(const signals *s, int64_t b, int64_t l) { return s->data + b * s->channel + l * s->step; }

static dpcr_dtype dtype_of(const signals *s) { return s->element == 4 ? DPCR_F32 : DPCR_F64; }

static double sample_flops(const dpcr_filter *f) { return (double)f->sections * (4 * (double)f->order + 1); }

// Samples [l0[i], l0[i] + steps) of channels b[i] from and to state[i], for up to LANES of them.
static void run_lanes(const filtering *f, int64_t lanes, const int64_t *b, const int64_t *l0, int64_t steps,
                      double *const *state, bool store) {
    const void *x[LANES];
    void *y[LANES];
    const int64_t order = f->filter->order, at = f->stage->first * (order + 1);
    dpcri_filter_run run = {.sections = f->stage->count,
                            .order = order,
                            .b = f->filter->b + at,
                            .a = f->filter->a + at,
                            .backward = f->backward,
                            .open = f->filter->open,
                            .x_dtype = dtype_of(&f->x),
                            .y_dtype = dtype_of(&f->y),
                            .lanes = lanes,
                            .x = x,
                            .y = store ? y : NULL,
                            .x_stride = f->x.step / f->x.element,
                            .y_stride = f->y.step / f->y.element,
                            .stream = f->channels * f->length * f->y.element > LARGE,
                            .state = state};
    const int64_t most = dpcri_watch_steps((double)lanes * sample_flops(f->filter));
    for (int64_t done = 0; done < steps && !dpcri_watch_stopped(f->watch); done += run.steps) {
        run.steps = f->watch ? least(most, steps - done) : steps;
        const int64_t skip = f->backward ? steps - done - run.steps : done;
        for (int64_t i = 0; i < lanes; i++) {
            x[i] = sample(&f->x, b[i], l0[i] + skip);
            y[i] = f->y.data + b[i] * f->y.channel + (l0[i] + skip) * f->y.step;
        }
        dpcri_filter_get()(&run);
    }
}

typedef enum stretch_pass { SUMMARISE, LOOK, STORE } stretch_pass;

// From zero over what a seam remembers; from the starts, for the ends alone; and for the samples.
static void run_stretches(const filtering *f, int64_t group, stretch_pass pass) {
    const int64_t w = f->stage->width, lanes = least(LANES, f->channels * f->stretches - group * LANES);
    const int64_t steps = pass == SUMMARISE ? f->seen : f->n, skipped = f->backward ? 0 : f->n - steps;
    int64_t b[LANES], l0[LANES];
    double *state[LANES];
    for (int64_t i = 0; i < lanes; i++) {
        const int64_t q = group * LANES + i;
        b[i] = q % f->channels, l0[i] = q / f->channels * f->n + skipped;  // interleaved channels share cache lines
        state[i] = f->end + q * w;
    }
    double *from = f->end + group * LANES * w;
    if (pass != SUMMARISE)
        memcpy(from, f->start + group * LANES * w, (size_t)(lanes * w) * sizeof *from);
    else
        memset(from, 0, (size_t)(lanes * w) * sizeof *from);
    run_lanes(f, lanes, b, l0, steps, state, pass == STORE);
}

static void summarise(void *argument, int64_t group) { run_stretches(argument, group, SUMMARISE); }
static void look_at_ends(void *argument, int64_t group) { run_stretches(argument, group, LOOK); }
static void filter_stretches(void *argument, int64_t group) { run_stretches(argument, group, STORE); }

static void filter_rest(void *argument, int64_t group) {
    const filtering *f = argument;
    const int64_t lanes = least(LANES, f->channels - group * LANES);
    int64_t b[LANES], l0[LANES];
    double *state[LANES];
    for (int64_t i = 0; i < lanes; i++) {
        b[i] = group * LANES + i, l0[i] = f->stretches * f->n;
        state[i] = state_of(f, b[i]);
    }
    run_lanes(f, lanes, b, l0, f->rest, state, true);
}

// Along the run: stretch i of channel b is the i-th from the front, backward from the back.
static double *nth(const filtering *f, double *states, int64_t b, int64_t i) {
    const int64_t c = f->backward ? f->stretches - 1 - i : i;
    return states + (c * f->channels + b) * f->stage->width;
}

// s' = A^n s + e, transposed backward; power NULL: forgotten.
static void link(const filtering *f, const double *power, const double *s, const double *e, double *next) {
    const int64_t w = f->stage->width;
    memcpy(next, e, (size_t)w * sizeof *e);
    for (int64_t i = 0; power && i < w; i++)
        for (int64_t j = 0; j < w; j++) next[i] += (f->backward ? power[j * w + i] : power[i * w + j]) * s[j];
}

static void chain_starts(const filtering *f, const double *power) {
    const size_t bytes = (size_t)f->stage->width * sizeof *f->start;
    for (int64_t b = 0; b < f->channels; b++) {
        memcpy(nth(f, f->start, b, 0), state_of(f, b), bytes);
        for (int64_t i = 1; i < f->stretches; i++)
            link(f, power, nth(f, f->start, b, i - 1), nth(f, f->end, b, i - 1), nth(f, f->start, b, i));
    }
}

// Stretches have run from their starts; where one does not end where the next began, the next's start moves by that,
// and all behind it by what they make of it.
static void refine_starts(const filtering *f, const double *power, double *moved, double *next) {
    const int64_t w = f->stage->width;
    for (int64_t b = 0; b < f->channels; b++) {
        memset(moved, 0, (size_t)w * sizeof *moved);
        for (int64_t i = 1; i < f->stretches; i++) {
            double *const start = nth(f, f->start, b, i), *const end = nth(f, f->end, b, i - 1);
            for (int64_t s = 0; s < w; s++) end[s] -= start[s];
            link(f, power, moved, end, next);
            for (int64_t s = 0; s < w; s++) start[s] += next[s];
            memcpy(moved, next, (size_t)w * sizeof *moved);
        }
    }
}

// Do all stretches of channel b end where the next ones began? Its last end goes to `state`.
static bool seams_meet(const filtering *f, int64_t b) {
    const int64_t w = f->stage->width;
    double *last = state_of(f, b);
    memcpy(last, nth(f, f->end, b, f->stretches - 1), (size_t)w * sizeof *last);
    for (int64_t s = 0; s < w; s++) {
        double size = 0, defect = 0;
        for (int64_t i = 1; i < f->stretches; i++) {
            const double end = nth(f, f->end, b, i - 1)[s], start = nth(f, f->start, b, i)[s];
            if (!(isfinite(end) && isfinite(start))) return false;
            size = fmax(size, fmax(fabs(end), fabs(start)));
            defect = fmax(defect, fabs(end - start));
        }
        if (defect > DEFECT * size || !isfinite(last[s])) return false;
    }
    return true;
}

static int64_t groups_of(int64_t lanes) { return (lanes + LANES - 1) / LANES; }

// One stage over all channels; `bad` [channels] is set where a channel has to run in order.
static void run_stage(filtering *f, double *power, double *scratch, unsigned char *bad) {
    dpcr_context *context = f->filter->context;
    const bool forgets = f->stage->memory <= f->n;
    if (f->backward && f->rest) dpcri_parallel(context, groups_of(f->channels), filter_rest, f);
    if (f->stretches) {
        const int64_t groups = groups_of(f->channels * f->stretches);
        if (!forgets) dpcri_filter_power(f->stage, f->n, power, scratch);
        dpcri_parallel(context, groups, summarise, f);
        chain_starts(f, forgets ? NULL : power);
        if (!forgets &&
            f->stage->slow <= f->n) {  // a slow mode makes up to 1 / (1 - |pole|) times more of the seams' rounding
            dpcri_parallel(context, groups, look_at_ends, f);
            refine_starts(f, power, scratch, scratch + f->stage->width);
        }
        dpcri_parallel(context, groups, filter_stretches, f);
        for (int64_t b = 0; b < f->channels; b++)
            if (!seams_meet(f, b)) bad[b] = 1;
    }
    if (!f->backward && f->rest) dpcri_parallel(context, groups_of(f->channels), filter_rest, f);
}

// ---- all stages, all channels ----

typedef struct job {
    const dpcr_filter *filter;
    bool backward;
    signals x, y, zi, zf;  // zi, zf: data may be NULL
    int64_t batch, length;
    signals middle;    // between stages, doubles: y where that has them, else of `together` channels
    int64_t together;  // channels that go through all stages at once
    double *starts, *ends, *states, *power, *scratch;
    unsigned char *bad;
    dpcri_watch *watch;
} job;

static void carve_middle(job *j, dpcri_arena *arena) {
    j->together = j->batch;
    j->middle = j->y;
    if (j->filter->stages == 1 || j->y.element == sizeof(double)) return;
    j->together = least(j->batch, most(1, MIDDLE / most(1, j->length)));
    int64_t count = 0;
    if (!dpcri_mul(j->together, j->length, &count)) arena->overflow = true;
    char *data = dpcri_arena_take(arena, count, sizeof(double));
    j->middle = (signals){data, j->length * (int64_t)sizeof(double), sizeof(double), sizeof(double)};
}

static size_t carve(job *j, dpcri_arena *arena) {
    const dpcr_filter *f = j->filter;
    int64_t width = 0, lanes = 0;
    for (int64_t i = 0; i < f->stages; i++) {
        filtering one = {.stage = &f->stage[i], .length = j->length};
        cut(&one);
        width = most(width, one.stage->width);
        lanes = most(lanes, one.stretches);
    }
    int64_t count = 0;
    carve_middle(j, arena);
    if (!dpcri_mul(lanes, j->together, &count) || !dpcri_mul(count, width, &count)) arena->overflow = true;
    j->starts = dpcri_arena_take(arena, count, sizeof *j->starts);
    j->ends = dpcri_arena_take(arena, count, sizeof *j->ends);
    if (!dpcri_mul(j->batch, f->sections * f->order, &count)) arena->overflow = true;
    j->states = dpcri_arena_take(arena, count, sizeof *j->states);
    j->power = dpcri_arena_take(arena, width * width, sizeof *j->power);
    j->scratch = dpcri_arena_take(arena, most(width, 2) * width, sizeof *j->scratch);
    j->bad = dpcri_arena_take(arena, j->batch, 1);
    return arena->used;
}

// The states that go into channels first .. first + channels - 1.
static void take_in(job *j, int64_t first, int64_t channels) {
    const int64_t states = j->filter->sections * j->filter->order;
    const size_t bytes = (size_t)states * sizeof *j->states;
    for (int64_t b = first; b < first + channels; b++)
        if (j->zi.data)
            memcpy(j->states + b * states, j->zi.data + b * j->zi.channel, bytes);
        else
            memset(j->states + b * states, 0, bytes);
}

static signals from_channel(signals s, int64_t first) {
    s.data += first * s.channel;
    return s;
}

// Those channels through all stages, cut or in order.
static void run_stages(job *j, int64_t first, int64_t channels, bool in_order) {
    const dpcr_filter *f = j->filter;
    const signals y = from_channel(j->y, first), middle = j->middle.data == j->y.data ? y : j->middle;
    take_in(j, first, channels);
    for (int64_t i = 0; i < f->stages; i++) {
        const dpcri_filter_stage *stage = &f->stage[j->backward ? f->stages - 1 - i : i];
        filtering run = {.filter = f,
                         .stage = stage,
                         .backward = j->backward,
                         .x = i ? middle : from_channel(j->x, first),
                         .y = i + 1 < f->stages ? middle : y,
                         .channels = channels,
                         .length = j->length,
                         .rest = j->length,
                         .start = j->starts,
                         .end = j->ends,
                         .state = j->states + first * f->sections * f->order,
                         .watch = j->watch};
        if (!in_order) cut(&run);
        run_stage(&run, j->power, j->scratch, j->bad + first);
    }
}

static void run_job(job *j) {
    const int64_t states = j->filter->sections * j->filter->order;
    memset(j->bad, 0, (size_t)j->batch);
    for (int64_t b = 0; b < j->batch && !dpcri_watch_stopped(j->watch); b += j->together)
        run_stages(j, b, least(j->together, j->batch - b), false);
    for (int64_t b = 0; b < j->batch; b++)
        if (j->bad[b] && !dpcri_watch_stopped(j->watch)) run_stages(j, b, 1, true);
    for (int64_t b = 0; b < j->batch && j->zf.data; b++)
        memcpy(j->zf.data + b * j->zf.channel, j->states + b * states, (size_t)states * sizeof *j->states);
}

// ---- arguments ----

static dpcr_status take_signal(const char *function, const char *name, const dpcr_array *a, const dpcr_array *like,
                               signals *s, dpcr_error *error) {
    char text[96];
    const bool floating = a->dtype == DPCR_F32 || a->dtype == DPCR_F64;
    if (a->device.type != DPCR_HOST || a->ndim != 2 || !floating || a->shape[0] < 0 || a->shape[1] < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: %s is %s, wanted [channels][samples] of float32 or float64 on the host", function, name,
                          dpcri_array_text(a, text, sizeof text));
    if (a->shape[0] != like->shape[0] || a->shape[1] != like->shape[1] || a->dtype != like->dtype)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s, wanted the shape and dtype of the other signal",
                          function, name, dpcri_array_text(a, text, sizeof text));
    if (!a->data && a->shape[0] > 0 && a->shape[1] > 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s has no data", function, name);
    const int64_t element = (int64_t)dpcr_dtype_size(a->dtype);
    *s = (signals){a->data, a->strides[0] * element, a->strides[1] * element, element};
    return DPCR_OK;
}

static dpcr_status take_states(const dpcr_filter *f, const char *function, const char *name, const dpcr_array *a,
                               int64_t batch, signals *s, dpcr_error *error) {
    char text[96];
    *s = (signals){0};
    if (!a) return DPCR_OK;
    if (a->device.type != DPCR_HOST || a->ndim != 3 || a->dtype != DPCR_F64 || a->shape[0] != batch ||
        a->shape[1] != f->sections || a->shape[2] != f->order || (a->strides[2] != 1 && f->order > 1) ||
        (a->strides[1] != f->order && f->sections > 1))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: %s is %s, wanted [%" PRId64 "][%" PRId64 "][%" PRId64
                          "] of float64, sections contiguous",
                          function, name, dpcri_array_text(a, text, sizeof text), batch, f->sections, f->order);
    if (!a->data && batch > 0 && f->order > 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s has no data", function, name);
    *s = (signals){a->data, a->strides[0] * (int64_t)sizeof(double), 0, sizeof(double)};
    return DPCR_OK;
}

static dpcr_status prepare(const char *function, const dpcr_array *x, const dpcr_array *zi, const dpcr_array *y,
                           const dpcr_array *zf, job *j, dpcr_error *error) {
    dpcr_status status;
    if (!j->filter || !x || !y)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: filter or a signal is NULL", function);
    DPCR_TRY(take_signal(function, j->backward ? "gy" : "x", x, x, &j->x, error));
    DPCR_TRY(take_signal(function, j->backward ? "gx" : "y", y, x, &j->y, error));
    if (x->data == y->data && x->data && x->shape[0] && x->shape[1])
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: both signals lie in the same place", function);
    DPCR_TRY(take_states(j->filter, function, j->backward ? "gzf" : "zi", zi, x->shape[0], &j->zi, error));
    DPCR_TRY(take_states(j->filter, function, j->backward ? "gzi" : "zf", zf, x->shape[0], &j->zf, error));
    j->batch = x->shape[0];
    j->length = x->shape[1];
done:
    return status;
}

dpcr_status dpcri_filter_check(const dpcr_filter *filter, const char *function, const dpcr_array *x,
                               const dpcr_array *zi, const dpcr_array *y, const dpcr_array *zf, dpcr_error *error) {
    job j = {.filter = filter};
    return prepare(function, x, zi, y, zf, &j, error);
}

static dpcr_status execute(const char *function, const dpcr_array *x, const dpcr_array *zi, const dpcr_array *y,
                           const dpcr_array *zf, job *j, dpcr_error *error) {
    dpcr_status status = prepare(function, x, zi, y, zf, j, error);
    if (status == DPCR_OK) status = dpcri_check_written(function, j->backward ? "gx" : "y", y, error);
    if (status == DPCR_OK) status = dpcri_check_written(function, j->backward ? "gzi" : "zf", zf, error);
    if (status != DPCR_OK || j->batch == 0) return status;
    dpcri_arena count = {0};
    const size_t bytes = carve(j, &count);
    dpcri_arena arena = {.base = count.overflow ? NULL : dpcri_alloc(j->filter->context, bytes), .size = bytes};
    if (!arena.base)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for the states of %" PRId64 " channels", function,
                          j->batch);
    void *memory = arena.base;
    carve(j, &arena);
    dpcri_watch watch;
    j->watch =
        dpcri_watch_begin(&watch, j->filter->context, (double)j->batch * (double)j->length * sample_flops(j->filter));
    run_job(j);
    dpcri_free(j->filter->context, memory);
    if (!dpcri_watch_stopped(j->watch)) return DPCR_OK;
    return dpcri_fail_stopped(error, function);
}

dpcr_status dpcr_filter_execute(const dpcr_filter *filter, const dpcr_array *x, const dpcr_array *zi,
                                const dpcr_array *y, const dpcr_array *zf, dpcr_error *error) {
    job j = {.filter = filter};
    return execute("filter_execute", x, zi, y, zf, &j, error);
}

dpcr_status dpcr_filter_adjoint(const dpcr_filter *filter, const dpcr_array *gy, const dpcr_array *gzf,
                                const dpcr_array *gx, const dpcr_array *gzi, dpcr_error *error) {
    job j = {.filter = filter, .backward = true};
    return execute("filter_adjoint", gy, gzf, gx, gzi, &j, error);
}
