// SPDX-License-Identifier: MIT
// A sampler's chain by sweeps on a device (solve/sweeps.c has the method):
//   path [L + 1][B][w']: the start, then the states, guessed
//   repeat:  f = the steps of every sequence's own window, all rows of all at once, some launches a layer
//            one launch sums residuals, moves states and fronts;  the fronts come home, 64 bytes a sequence
//   what the budget left goes in order from its exact prefix on, sequences side by side, nothing waited for
// A sequence's window follows from its own front alone, so its bits and its sweeps hang on nothing beside it; those
// that have ended leave the rows. Work a sweep: the windows' evaluations. Memory: the path, twice a window's states,
// and what the network has in between for at most ROWS rows.
#include <string.h>

#include "rt/rt.h"
#include "sample/sampler_device.h"

enum { ROWS = 1 << 14, PAGE = 256 };

// What the launch's workspace holds.
typedef struct layout {
    float *path;                    // [L + 1][B][w']
    float *f, *r;                   // [window][B][w']
    uint32_t *flags;                // [window][B]
    double *scale;                  // [L], or NULL
    dpcri_device_progress *places;  // [B]
    int32_t *who;                   // [B]
    // of parataa
    double *slopes, *change, *sums;          // [L] or NULL, [window][B][w'], [window][B][12]
    dpcri_device_past *past;                 // [B]
    float *past_z, *past_r, *old_z, *old_r;  // [B][mixed - 1][window][w'], [B][window][w']
    dpcri_sampler_space space;               // of `block` steps of all sequences
    int64_t block;                           // steps of a window evaluated at once
    size_t bytes;
} layout;

typedef struct sweeping {
    dpcr_sampler *s;
    const dpcr_launch *what;
    layout at;
    dpcri_device_progress *places;  // [B], as told
    int32_t *who;                   // [B], the first `count` at work
    int64_t count;
    int64_t *evaluations;           // [B]
    dpcr_device_outcome *outcomes;  // [B]
} sweeping;

// ---- memory ----

static void *carve(char *base, size_t *used, int64_t a, int64_t b, int64_t c, size_t element, bool *overflow) {
    int64_t values = 0;
    if (!dpcri_mul(a, b, &values)) *overflow = true;
    const size_t bytes = *overflow ? 0 : dpcri_bytes(values, c, element, overflow);
    if (bytes > SIZE_MAX / 64) *overflow = true;
    void *place = base ? base + *used : NULL;
    if (!*overflow) *used += (bytes + PAGE - 1) / PAGE * PAGE;
    if (*used > SIZE_MAX / 4) *overflow = true;
    return place;
}

// The places in `base`, or with NULL how many bytes they take.
static bool lay_out(const dpcr_sampler *s, const dpcr_launch *what, char *base, layout *at) {
    const int64_t B = s->batch, L = s->chain.length, w = s->chain.width, W = what->window;
    const int64_t fit = ROWS / (B > 0 ? B : 1), block = fit < 1 ? 1 : fit < W ? fit : W;
    const int64_t hidden = s->there->model->options.hidden;
    const int readings = s->options.kind == DPCR_SAMPLER_HEUN ? 2 : 1;
    size_t used = 0;
    bool overflow = false;
    *at = (layout){.block = block};
    at->path = carve(base, &used, L + 1, B, w, sizeof(float), &overflow);
    at->f = carve(base, &used, W, B, w, sizeof(float), &overflow);
    if (what->method == DPCR_METHOD_PARATAA) {
        const int64_t pasts = what->mixed - 1;
        if (s->chain.slopes) at->slopes = carve(base, &used, L, 1, 1, sizeof(double), &overflow);
        at->change = carve(base, &used, W, B, w, sizeof(double), &overflow);
        at->sums = carve(base, &used, W, B, 12, sizeof(double), &overflow);
        at->past = carve(base, &used, B, 1, 1, sizeof *at->past, &overflow);
        at->past_z = carve(base, &used, pasts * W, B, w, sizeof(float), &overflow);
        at->past_r = carve(base, &used, pasts * W, B, w, sizeof(float), &overflow);
        at->old_z = carve(base, &used, pasts ? W : 0, B, w, sizeof(float), &overflow);
        at->old_r = carve(base, &used, pasts ? W : 0, B, w, sizeof(float), &overflow);
    } else {
        at->r = carve(base, &used, W, B, w, sizeof(float), &overflow);
        at->flags = carve(base, &used, W, B, 1, sizeof(uint32_t), &overflow);
    }
    if (what->step_scale) at->scale = carve(base, &used, L, 1, 1, sizeof(double), &overflow);
    at->places = carve(base, &used, B, 1, 1, sizeof *at->places, &overflow);
    at->who = carve(base, &used, B, 1, 1, sizeof *at->who, &overflow);
    for (int i = 0; i < readings; i++) {
        at->space.m[i] = carve(base, &used, block, B, s->width, sizeof(float), &overflow);
        if (s->there->guided) at->space.plain[i] = carve(base, &used, block, B, s->width, sizeof(float), &overflow);
    }
    for (int i = 0; i < 2; i++) at->space.h[i] = carve(base, &used, block, B, hidden, sizeof(float), &overflow);
    at->bytes = used;
    return !overflow;
}

static dpcr_status take_memory(sweeping *p, dpcr_error *error) {
    const size_t batch = (size_t)p->s->batch;
    p->places = dpcri_alloc_zero(p->s->context, batch * sizeof *p->places);
    p->who = dpcri_alloc_zero(p->s->context, batch * sizeof *p->who);
    p->evaluations = dpcri_alloc_zero(p->s->context, batch * sizeof *p->evaluations);
    p->outcomes = dpcri_alloc_zero(p->s->context, batch * sizeof *p->outcomes);
    if (p->places && p->who && p->evaluations && p->outcomes) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler: no memory for the places of %zu sequences", batch);
}

static void free_memory(sweeping *p) {
    dpcri_free(p->s->context, p->places);
    dpcri_free(p->s->context, p->who);
    dpcri_free(p->s->context, p->evaluations);
    dpcri_free(p->s->context, p->outcomes);
}

static dpcr_status copy(const sweeping *p, void *to, const void *from, size_t bytes, dpcri_direction direction,
                        dpcr_error *error) {
    const dpcri_pieces *m = &p->s->there->memory;
    return m->table->copy(m->device.id, to, from, bytes, direction, p->what->stream, error);
}

static dpcr_status wait(const sweeping *p, dpcr_error *error) {
    return dpcr_stream_wait(p->s->there->memory.device, p->what->stream, error);
}

static dpcr_status move(const sweeping *p, const dpcri_device_move *given, dpcr_error *error) {
    const dpcri_sampler_device *d = p->s->there;
    dpcri_device_move m = *given;
    m.rows = p->s->batch, m.width = p->s->chain.width;
    return d->kernels->move(d->memory.device.id, &m, p->what->stream, error);
}

// ---- evaluating ----

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Steps of a sequence's window that there are.
static int64_t steps_of(const sweeping *p, int64_t b, int64_t most) {
    return least(most, p->s->chain.length - p->places[b].front);
}

// Counts what the network is asked for of those at work; returns the steps of the widest window.
static int64_t count_rows(sweeping *p, int64_t most) {
    dpcr_sampler *s = p->s;
    const int64_t L = s->chain.length;
    const bool heun = s->options.kind == DPCR_SAMPLER_HEUN;
    int64_t widest = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const int64_t b = p->who[i], n = steps_of(p, b, most);
        const bool ends = p->places[b].front + n == L && n > 0;  // the only step that may not read twice
        p->evaluations[b] += n;
        s->rows += heun ? 2 * n - (ends && !s->steps[L - 1].twice) : n;
        widest = n > widest ? n : widest;
    }
    return widest;
}

static dpcri_device_window window_of(const sweeping *p, int64_t most) {
    return (dpcri_device_window){.count = p->count,
                                 .most = most,
                                 .length = p->s->chain.length,
                                 .batch = p->s->batch,
                                 .who = p->at.who,
                                 .places = p->at.places};
}

// f of `steps` steps of those at work, from their fronts on.
static dpcr_status evaluate(sweeping *p, int64_t most, int64_t steps, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t width = p->s->chain.width;
    dpcri_sampler_rows x = {.x = p->at.path, .row = width, .path = true, .window = window_of(p, most)};
    for (int64_t j = 0; j < steps; j += p->at.block) {
        x.window.first = j;
        x.rows = least(p->at.block, steps - j) * p->count;
        DPCR_TRY(
            dpcri_sampler_evaluate(p->s, &x, &p->at.space, p->at.f + j * p->count * width, p->what->stream, error));
    }
done:
    return status;
}

static dpcri_device_sweep sweep_of(const sweeping *p, int64_t most) {
    const dpcr_launch *what = p->what;
    return (dpcri_device_sweep){.window = window_of(p, most),
                                .width = p->s->chain.width,
                                .atol = what->atol,
                                .rtol = what->rtol,
                                .scale = p->at.scale,
                                .mean = what->lock == DPCR_LOCK_MEAN_SQUARE,
                                .guess = what->guess == DPCR_GUESS_STATE,
                                .max_sweeps = what->max_sweeps,
                                .no_fallback = what->no_fallback,
                                .path = p->at.path,
                                .f = p->at.f,
                                .r = p->at.r,
                                .flags = p->at.flags,
                                .mixed = what->method == DPCR_METHOD_PARATAA ? what->mixed : 0,
                                .order = what->order,
                                .slopes = p->at.slopes,
                                .change = p->at.change,
                                .sums = p->at.sums,
                                .past = p->at.past,
                                .past_z = p->at.past_z,
                                .past_r = p->at.past_r,
                                .old_z = p->at.old_z,
                                .old_r = p->at.old_r};
}

// ---- the start ----

static dpcr_status send_places(const sweeping *p, dpcr_error *error) {
    return copy(p, p->at.places, p->places, (size_t)p->s->batch * sizeof *p->places, DPCRI_TO_DEVICE, error);
}

static dpcr_status send_who(const sweeping *p, dpcr_error *error) {
    return copy(p, p->at.who, p->who, (size_t)p->count * sizeof *p->who, DPCRI_TO_DEVICE, error);
}

// z_l = f_l(what stands in the path), a window at a time, the last first: none reads what another has written.
static dpcr_status guess_by_steps(sweeping *p, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t L = p->s->chain.length, B = p->s->batch, w = p->s->chain.width, W = p->what->window;
    for (int64_t l = (L - 1) / W * W; l >= 0; l -= W) {
        for (int64_t b = 0; b < B; b++) p->places[b] = (dpcri_device_progress){.front = l};
        DPCR_TRY(send_places(p, error));
        DPCR_TRY(wait(p, error));
        const int64_t steps = count_rows(p, W);
        DPCR_TRY(evaluate(p, W, steps, error));
        DPCR_TRY(move(p,
                      &(dpcri_device_move){.steps = steps,
                                           .from = p->at.f,
                                           .from_step = B * w,
                                           .from_row = w,
                                           .to = p->at.path + (l + 1) * B * w,
                                           .to_step = B * w,
                                           .to_row = w},
                      error));
    }
    memset(p->places, 0, (size_t)B * sizeof *p->places);
done:
    return status;
}

// The path's states: copies of z0, what z holds, or what the steps make of z0 or of zeros.
static dpcr_status guess(sweeping *p, dpcr_error *error) {
    dpcr_status status;
    const dpcr_array *z0 = p->what->z0, *z = p->what->z;
    const int64_t L = p->s->chain.length, B = p->s->batch, w = p->s->chain.width;
    const int kind = p->what->guess;
    const dpcri_device_move start = {
        .steps = 1, .from = z0->data, .from_row = z0->strides[0], .to = p->at.path, .to_row = w};
    dpcri_device_move all = start;
    if (kind == DPCR_GUESS_GIVEN) {
        all = (dpcri_device_move){.from = z->data, .from_step = z->strides[0], .from_row = z->strides[1]};
        all.to = p->at.path + B * w;
    }
    if (kind == DPCR_GUESS_ZERO) all.from = NULL;
    all.steps = kind == DPCR_GUESS_GIVEN ? L : L + 1;
    all.to_step = B * w, all.to_row = w;
    DPCR_TRY(move(p, &all, error));
    if (kind == DPCR_GUESS_ZERO || kind == DPCR_GUESS_STEP) DPCR_TRY(guess_by_steps(p, error));
    DPCR_TRY(move(p, &start, error));
done:
    return status;
}

static dpcr_status begin(sweeping *p, dpcr_error *error) {
    dpcr_status status;
    const int64_t B = p->s->batch;
    for (int64_t b = 0; b < B; b++) p->who[b] = (int32_t)b;
    p->count = B;
    DPCR_TRY(send_who(p, error));
    if (p->at.scale)
        DPCR_TRY(copy(p, p->at.scale, p->what->step_scale, (size_t)p->s->chain.length * sizeof *p->at.scale,
                      DPCRI_TO_DEVICE, error));
    if (p->at.slopes)
        DPCR_TRY(copy(p, p->at.slopes, p->s->chain.slopes, (size_t)p->s->chain.length * sizeof *p->at.slopes,
                      DPCRI_TO_DEVICE, error));
    if (p->at.past) {
        const dpcri_pieces *m = &p->s->there->memory;
        DPCR_TRY(m->table->fill(m->device.id, p->at.past, 0, (size_t)B * sizeof *p->at.past, p->what->stream, error));
    }
    DPCR_TRY(guess(p, error));
    DPCR_TRY(send_places(p, error));
done:
    return status;
}

// ---- sweeps ----

// Those that are wanted, in their order; on the device too, where they are others than before.
static dpcr_status gather(sweeping *p, bool wanted(const sweeping *p, const dpcri_device_progress *at),
                          dpcr_error *error) {
    const int64_t before = p->count;
    p->count = 0;
    for (int64_t b = 0; b < p->s->batch; b++)
        if (wanted(p, &p->places[b])) p->who[p->count++] = (int32_t)b;
    return p->count && p->count != before ? send_who(p, error) : DPCR_OK;
}

static bool at_work(const sweeping *p, const dpcri_device_progress *at) {
    (void)p;
    return at->ended == DPCRI_DEVICE_AT_WORK;
}

static bool left_over(const sweeping *p, const dpcri_device_progress *at) {
    return at->ended == DPCRI_DEVICE_NOT_FINITE || (at->ended == DPCRI_DEVICE_SPENT && !p->what->no_fallback);
}

static dpcr_status sweep(sweeping *p, dpcr_error *error) {
    dpcr_status status;
    const dpcri_sampler_device *d = p->s->there;
    const int64_t most = p->what->window, steps = count_rows(p, most);
    const dpcri_device_sweep a = sweep_of(p, most);
    DPCR_TRY(evaluate(p, most, steps, error));
    DPCR_TRY(d->kernels->sweep(d->memory.device.id, &a, p->what->stream, error));
    DPCR_TRY(copy(p, p->places, p->at.places, (size_t)p->s->batch * sizeof *p->places, DPCRI_TO_HOST, error));
    DPCR_TRY(wait(p, error));
    DPCR_TRY(gather(p, at_work, error));
done:
    return status;
}

// Step after step from each one's own front on, which is what its exact prefix leaves.
static dpcr_status finish_in_order(sweeping *p, dpcr_error *error) {
    dpcr_status status;
    const dpcri_sampler_device *d = p->s->there;
    DPCR_TRY(gather(p, left_over, error));
    dpcri_device_sweep a = sweep_of(p, 1);
    a.in_order = 1;
    while (p->count && count_rows(p, 1) > 0) {
        DPCR_TRY(evaluate(p, 1, 1, error));
        DPCR_TRY(d->kernels->sweep(d->memory.device.id, &a, p->what->stream, error));
        for (int64_t i = 0; i < p->count; i++) p->places[p->who[i]].front += steps_of(p, p->who[i], 1);
    }
done:
    return status;
}

static dpcr_status tell(sweeping *p, dpcr_error *error) {
    dpcr_status status;
    const dpcr_launch *what = p->what;
    const int64_t B = p->s->batch, w = p->s->chain.width;
    for (int64_t b = 0; b < B; b++)
        p->outcomes[b] = (dpcr_device_outcome){.sweeps = p->places[b].sweeps,
                                               .non_finite = p->places[b].ended == DPCRI_DEVICE_NOT_FINITE,
                                               .locked = p->places[b].locked,
                                               .residual = p->places[b].residual};
    DPCR_TRY(move(p,
                  &(dpcri_device_move){.steps = p->s->chain.length,
                                       .from = p->at.path + B * w,
                                       .from_step = B * w,
                                       .from_row = w,
                                       .to = what->z->data,
                                       .to_step = what->z->strides[0],
                                       .to_row = what->z->strides[1]},
                  error));
    DPCR_TRY(copy(p, what->outcome, p->outcomes, (size_t)B * sizeof *p->outcomes, DPCRI_TO_DEVICE, error));
    DPCR_TRY(copy(p, what->evaluations, p->evaluations, (size_t)B * sizeof *p->evaluations, DPCRI_TO_DEVICE, error));
done:
    return status;
}

static dpcr_status solve(sweeping *p, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(begin(p, error));
    while (p->count > 0) {
        if (dpcri_cancelled(p->s->context)) DPCR_TRY(dpcri_fail_stopped(error, "solve"));
        DPCR_TRY(sweep(p, error));
    }
    DPCR_TRY(finish_in_order(p, error));
    DPCR_TRY(tell(p, error));
done:
    return status;
}

dpcr_status dpcri_sampler_sweeps(dpcr_sampler *s, dpcr_launch *what, dpcr_error *error) {
    sweeping p = {.s = s, .what = what};
    dpcr_status status;
    if (!lay_out(s, what, what->z ? what->workspace : NULL, &p.at))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "sampler: a window of %lld steps of %lld sequences does not fit",
                          (long long)what->window, (long long)s->batch);
    if (!what->z) {
        what->bytes = p.at.bytes;
        return DPCR_OK;
    }
    status = take_memory(&p, error);
    if (status == DPCR_OK) status = solve(&p, error);
    const dpcr_status waited = wait(&p, status == DPCR_OK ? error : NULL);  // what was copied from here is freed now
    free_memory(&p);
    return status == DPCR_OK ? waited : status;
}
