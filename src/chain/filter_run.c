// SPDX-License-Identifier: MIT
// Filters over long signals. A channel is cut into K stretches of n samples and a rest, lanes of the kernel:
//   e_c <- the states after stretch c from zeros; its last m samples do where the filter forgets in m < n
//   s_0 = zi;  s_{c+1} = A^n s_c + e_c       (A^n = 0 where it forgets)
//   y of stretch c from s_c; the rest from the last one's end
// A filter with slow modes makes more of what the s_c are off: its links have twice a double's digits, and before y its
// stretches run for their ends alone, whose distance from the next starts, carried on, is added to those:
//   d_c = end_c - s_{c+1};  Delta_{c+1} = A^n Delta_c + d_c;  s_c += Delta_c, again while that shrinks
// Work at most 2 L samples, 3 L where modes are slow, L (1 + m/n) where the filter forgets; depth 2 n + K. In the end
// Delta is looked at once more; a channel where it is large, or with numbers that are not finite, runs again in order.
// The adjoint is the same from the last sample down, with the transposed power. Derivation: docs/math/filter.md.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chain/filter.h"
#include "chain/twofold.h"
#include "rt/dev/device.h"
#include "rt/watch.h"

enum {
    LANES = DPCRI_FILTER_LANES,
    SHORTEST = 64,
    LONGEST = 16384,
    USUAL = 4096,
    MEMORIES = 8,
    LINES = 32,
    LARGE = 16 << 20,
    MIDDLE = 4 << 20,
    LOOKS = 4,    // at the ends, before a slow filter's samples
    STEADY = 64,  // a memory of so many stretches is short: links whose power is a few roundings off do
    VECTORS = 6,  // of w numbers: scratch of the links
    SMALL = 2048  // bytes of the stack, for the states of a few channels that run in order
};
// Of the largest state of its kind. DEFECT: what Delta may be in the end; LOST: even where the loop's rounding is large
static const double DEFECT = 1e-10, LOST = 1e-3;
// Starts that move by less than NEAR are as good as the links, which are right to 1e-8 of what they move, make them;
// those that do not move FEWER times less than before are off by the rounding of the stretches alone, as the loop is.
static const double NEAR = 1e-8, FEWER = 16;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

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
    dpcri_filter_matrix power;   // A^n column by column (backward, row by row); value NULL: forgotten
    double *vectors;             // [VECTORS][w]
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
    const int64_t most = f->watch ? dpcri_watch_steps((double)lanes * sample_flops(f->filter)) : steps;
    for (int64_t done = 0; done < steps && !dpcri_watch_stopped(f->watch); done += run.steps) {
        run.steps = least(most, steps - done);
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

static bool forgets(const filtering *f) { return f->stage->memory <= f->n; }

// Does the filter make more than a few times of what a state is off, over the signal?
static bool is_slow(const filtering *f) { return !forgets(f) && f->stage->slow <= f->length; }

// A^n, for sums over its columns.
static void take_power(filtering *f, dpcri_filter_matrix power, dpcri_filter_matrix scratch) {
    const int64_t w = f->stage->width;
    f->power = (dpcri_filter_matrix){0};
    if (forgets(f)) return;
    dpcri_filter_power(f->stage, f->n, is_slow(f) || f->stage->memory / STEADY > f->n, power, scratch);
    f->power = f->backward ? power : scratch;
    for (int64_t i = 0; i < w && !f->backward; i++)
        for (int64_t j = 0; j < w; j++) {
            scratch.value[j * w + i] = power.value[i * w + j];
            scratch.rest[j * w + i] = power.rest[i * w + j];
        }
}

// next += column s
static void add_column(int64_t w, const double *restrict column, double s, double *restrict next) {
    for (int64_t i = 0; i < w; i++) next[i] += column[i] * s;
}

static void add_twofold_column(int64_t w, const double *restrict column, const double *restrict column_rest, double s,
                               double s_rest, double *restrict next, double *restrict rest) {
    for (int64_t i = 0; i < w; i++) dpcri_twofold_add(&next[i], &rest[i], column[i], column_rest[i], s, s_rest);
}

// Rows of column j of the power that may hold something: nothing goes back from a section to those before it.
static int64_t first_row(const filtering *f, int64_t j) { return f->backward ? 0 : j - j % f->filter->order; }
static int64_t row_end(const filtering *f, int64_t j) {
    return f->backward ? j - j % f->filter->order + f->filter->order : f->stage->width;
}

// next = A^n s + e
static void link(const filtering *f, const double *s, const double *e, double *next) {
    const int64_t w = f->stage->width;
    for (int64_t i = 0; i < w; i++) next[i] = e[i];
    for (int64_t j = 0; f->power.value && j < w; j++) {
        const int64_t from = first_row(f, j), to = row_end(f, j);
        add_column(to - from, f->power.value + j * w + from, s[j], next + from);
    }
}

// The same in twice a double's digits: s and next are [2][w], value and rest.
static void link_twofold(const filtering *f, const double *s, const double *e, double *next) {
    const int64_t w = f->stage->width;
    memcpy(next, e, (size_t)w * sizeof *e);
    memset(next + w, 0, (size_t)w * sizeof *e);
    for (int64_t j = 0; j < w; j++) {
        const int64_t from = first_row(f, j), to = row_end(f, j), at = j * w + from;
        add_twofold_column(to - from, f->power.value + at, f->power.rest + at, s[j], s[w + j], next + from,
                           next + w + from);
    }
    for (int64_t i = 0; i < w; i++) dpcri_twofold_settle(&next[i], &next[w + i]);
}

static void chain_starts(const filtering *f) {
    const int64_t w = f->stage->width;
    const size_t bytes = (size_t)w * sizeof *f->start;
    const bool slow = is_slow(f);
    for (int64_t b = 0; b < f->channels; b++) {
        double *s = f->vectors, *next = s + 2 * w;
        memcpy(s, state_of(f, b), bytes);
        memset(s + w, 0, bytes);
        memcpy(nth(f, f->start, b, 0), s, bytes);
        for (int64_t i = 1; i < f->stretches; i++) {
            (slow ? link_twofold : link)(f, s, nth(f, f->end, b, i - 1), next);
            memcpy(nth(f, f->start, b, i), next, bytes);
            double *const last = s;
            s = next, next = last;
        }
    }
}

// Stretches of channel b have run from their starts: Delta_i = A^n Delta_{i-1} + (the end before start i) - start i,
// which is by how much start i is off beside what the stretches make of the first one. Its largest entry beside the
// largest state of its kind; HUGE_VAL: some number is not finite. move: each start moves by that, of a slow filter.
static double defect_of(const filtering *f, int64_t b, bool move) {
    const int64_t w = f->stage->width;
    double *delta = f->vectors, *next = delta + 2 * w, *const size = delta + 4 * w, *const off = delta + 5 * w;
    memset(delta, 0, (size_t)(VECTORS * w) * sizeof *delta);
    for (int64_t i = 1; i < f->stretches; i++) {
        double *const start = nth(f, f->start, b, i), *const end = nth(f, f->end, b, i - 1);
        for (int64_t s = 0; s < w; s++) {
            if (!(isfinite(end[s]) && isfinite(start[s]))) return HUGE_VAL;
            size[s] = larger(size[s], larger(fabs(end[s]), fabs(start[s])));
            end[s] -= start[s];
        }
        (move ? link_twofold : link)(f, delta, end, next);
        for (int64_t s = 0; s < w; s++) {
            off[s] = larger(off[s], fabs(next[s]));
            if (move) start[s] += next[s];
        }
        double *const last = delta;
        delta = next, next = last;
    }
    double defect = 0;
    for (int64_t s = 0; s < w; s++)
        if (off[s] > 0) defect = larger(defect, off[s] / size[s]);
    return defect;
}

static int64_t groups_of(int64_t lanes) { return (lanes + LANES - 1) / LANES; }

// Moves the starts of every channel until they are as near as the rounding of the stretches lets them be. defect
// [channels]: by how much each moved last.
static void refine_starts(const filtering *f, double *defect, unsigned char *steady) {
    bool again = true;
    for (int64_t b = 0; b < f->channels; b++) defect[b] = HUGE_VAL, steady[b] = 0;
    for (int look = 0; again && look < LOOKS; look++) {
        dpcri_parallel(f->filter->context, groups_of(f->channels * f->stretches), look_at_ends, (void *)f);
        again = false;
        for (int64_t b = 0; b < f->channels; b++) {
            if (steady[b]) continue;
            const double before = defect[b];
            defect[b] = defect_of(f, b, true);
            steady[b] = defect[b] <= NEAR || !(defect[b] < before / FEWER);
            again = again || !steady[b];
        }
    }
}

// Do all stretches of channel b end where the next ones began, but for rounding? Its last end goes to `state`.
static bool seams_meet(const filtering *f, int64_t b, const double *moved) {
    const int64_t w = f->stage->width;
    double *last = state_of(f, b);
    memcpy(last, nth(f, f->end, b, f->stretches - 1), (size_t)w * sizeof *last);
    for (int64_t s = 0; s < w; s++)
        if (!isfinite(last[s])) return false;
    const double defect = defect_of(f, b, false);
    return defect <= DEFECT || (is_slow(f) && defect <= FEWER * moved[b] && defect <= LOST);
}

// ---- all stages, all channels ----

typedef struct job {
    const dpcr_filter *filter;
    bool backward;
    signals x, y, zi, zf;  // zi, zf: data may be NULL
    int64_t batch, length;
    signals middle;    // between stages, doubles: y where that has them, else of `together` channels
    int64_t together;  // channels that go through all stages at once
    double *starts, *ends, *states, *vectors;
    dpcri_filter_matrix power, scratch;
    double *moved;                // [together]: how far the starts of a slow stage moved last
    unsigned char *steady, *bad;  // [together], [batch]
    dpcri_watch *watch;
} job;

// One stage over all channels; `bad` [channels] is set where a channel has to run in order.
static void run_stage(filtering *f, const job *j, unsigned char *bad) {
    dpcr_context *context = f->filter->context;
    if (f->backward && f->rest) dpcri_parallel(context, groups_of(f->channels), filter_rest, f);
    if (f->stretches) {
        const int64_t groups = groups_of(f->channels * f->stretches);
        take_power(f, j->power, j->scratch);
        dpcri_parallel(context, groups, summarise, f);
        chain_starts(f);
        if (is_slow(f)) refine_starts(f, j->moved, j->steady);
        dpcri_parallel(context, groups, filter_stretches, f);
        for (int64_t b = 0; b < f->channels; b++)
            if (!seams_meet(f, b, j->moved)) bad[b] = 1;
    }
    if (!f->backward && f->rest) dpcri_parallel(context, groups_of(f->channels), filter_rest, f);
}

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
    double **const matrices[] = {&j->power.value, &j->power.rest, &j->scratch.value, &j->scratch.rest};
    const int64_t linked = lanes ? width : 0;  // nothing is, where no stage is cut
    for (int i = 0; i < 4; i++) *matrices[i] = dpcri_arena_take(arena, linked * linked, sizeof **matrices[i]);
    j->vectors = dpcri_arena_take(arena, VECTORS * linked, sizeof *j->vectors);
    j->moved = dpcri_arena_take(arena, lanes ? j->together : 0, sizeof *j->moved);
    j->steady = dpcri_arena_take(arena, lanes ? j->together : 0, 1);
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
                         .vectors = j->vectors,
                         .state = j->states + first * f->sections * f->order,
                         .watch = j->watch};
        if (!in_order) cut(&run);
        run_stage(&run, j, j->bad + first);
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

// Where an array lies that does not lie on the host.
static const char *elsewhere(const dpcr_array *a, char *text, size_t bytes) {
    char where[32];
    text[0] = 0;
    if (a->device.type != DPCR_HOST) snprintf(text, bytes, " on %s", dpcri_device_text(a->device, where, sizeof where));
    return text;
}

static dpcr_status take_signal(const char *function, const char *name, const dpcr_array *a, const dpcr_array *like,
                               signals *s, dpcr_error *error) {
    char text[96], where[40];
    const bool floating = a->dtype == DPCR_F32 || a->dtype == DPCR_F64;
    if (a->device.type != DPCR_HOST || a->ndim != 2 || !floating || a->shape[0] < 0 || a->shape[1] < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: %s is %s%s, wanted [channels][samples] of float32 or float64 on the host", function,
                          name, dpcri_array_text(a, text, sizeof text), elsewhere(a, where, sizeof where));
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
    char text[96], where[40];
    *s = (signals){0};
    if (!a) return DPCR_OK;
    if (a->device.type != DPCR_HOST || a->ndim != 3 || a->dtype != DPCR_F64 || a->shape[0] != batch ||
        a->shape[1] != f->sections || a->shape[2] != f->order || (a->strides[2] != 1 && f->order > 1) ||
        (a->strides[1] != f->order && f->sections > 1))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: %s is %s%s, wanted [%" PRId64 "][%" PRId64 "][%" PRId64
                          "] of float64 on the host, sections contiguous",
                          function, name, dpcri_array_text(a, text, sizeof text), elsewhere(a, where, sizeof where),
                          batch, f->sections, f->order);
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

// The signal that is written lies apart from all others; zf is written when all else has been read.
static dpcr_status check_apart(const char *function, const dpcr_array *x, const dpcr_array *zi, const dpcr_array *y,
                               const dpcr_array *zf, bool backward, dpcr_error *error) {
    const char *const written = backward ? "gx" : "y";
    dpcr_status status;
    DPCR_TRY(dpcri_check_apart(function, backward ? "gy" : "x", x, written, y, error));
    DPCR_TRY(dpcri_check_apart(function, backward ? "gzf" : "zi", zi, written, y, error));
    DPCR_TRY(dpcri_check_apart(function, backward ? "gzi" : "zf", zf, written, y, error));
done:
    return status;
}

static dpcr_status execute(const char *function, const dpcr_array *x, const dpcr_array *zi, const dpcr_array *y,
                           const dpcr_array *zf, job *j, dpcr_error *error) {
    dpcr_status status = prepare(function, x, zi, y, zf, j, error);
    if (status == DPCR_OK) status = dpcri_check_written(function, j->backward ? "gx" : "y", y, error);
    if (status == DPCR_OK) status = dpcri_check_written(function, j->backward ? "gzi" : "zf", zf, error);
    if (status == DPCR_OK) status = check_apart(function, x, zi, y, zf, j->backward, error);
    if (status != DPCR_OK || j->batch == 0) return status;
    _Alignas(64) unsigned char small[SMALL];
    dpcri_arena arena = {.base = small, .size = sizeof small};
    void *memory = NULL;
    carve(j, &arena);
    if (arena.overflow) {
        dpcri_arena count = {0};
        const size_t bytes = carve(j, &count);
        memory = count.overflow ? NULL : dpcri_alloc(j->filter->context, bytes);
        if (!memory)
            return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for the states of %" PRId64 " channels",
                              function, j->batch);
        arena = (dpcri_arena){.base = memory, .size = bytes};
        carve(j, &arena);
    }
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
