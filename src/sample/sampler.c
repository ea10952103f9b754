// SPDX-License-Identifier: MIT
// A sampler's chain:   z_l = f_l(z_{l-1}),   one step a call of the denoiser (Heun: two), all noise drawn before.
//
// The callbacks gather the rows of a span - lanes, sequences that are at work - into blocks, so that a sweep over a
// window is a few large products, which read the weights once for many steps. Work: the denoiser's. Memory: the noise,
// N x B x width where any is added, and the blocks. Sources: step.c; docs/diffusion.md.
#include <math.h>
#include <string.h>

#include "base/checksum.h"
#include "rt/rt.h"
#include "sample/normals.h"
#include "sample/sample.h"

// Rows of a call: BLOCK_ROWS, or a step of the loop over a larger batch.
enum { BLOCK_ROWS = 256, MOST_ROWS = 4096, BLOCK_BYTES = 64 << 20, JACOBIAN_BYTES = 4 << 20 };

#define T float
#define N(name) name##_f32
#include "sample/rows.inc"
#undef T
#undef N
#define T double
#define N(name) name##_f64
#include "sample/rows.inc"
#undef T
#undef N

#define BY_DTYPE(s, name, ...) ((s)->denoiser.dtype == DPCR_F32 ? name##_f32(__VA_ARGS__) : name##_f64(__VA_ARGS__))

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }
static size_t real_of(const dpcr_sampler *s) { return dpcr_dtype_size(s->denoiser.dtype); }
static void *row_of(const dpcr_sampler *s, void *rows, int64_t i) {
    return rows ? (char *)rows + (size_t)(i * s->width) * real_of(s) : NULL;
}

// ---- rows of a span ----

static char *lane_row(const dpcr_sampler *s, const dpcr_array *array, int64_t lane, int64_t row) {
    return (char *)array->data + (lane * array->strides[0] + row * array->strides[1]) * (int64_t)real_of(s);
}

static char *step_row(const dpcr_sampler *s, const dpcr_array *array, int64_t lane, int64_t k, int64_t row) {
    return (char *)array->data +
           (lane * array->strides[0] + k * array->strides[1] + row * array->strides[2]) * (int64_t)real_of(s);
}

// Lanes and sequences from number *at on, those at work, until the block is full; their states go to x and p.
static int64_t gather(dpcr_sampler *s, const dpcr_span *span, const dpcr_array *in, int64_t most, int64_t *at) {
    const size_t bytes = (size_t)s->width * real_of(s);
    int64_t rows = 0;
    for (; *at < span->lanes * span->rows && rows < most; ++*at) {
        const int64_t lane = *at / span->rows, row = *at % span->rows;
        if (span->active && !span->active[row]) continue;
        const char *from = lane_row(s, in, lane, row);
        memcpy(row_of(s, s->x, rows), from, bytes);
        if (s->p) memcpy(row_of(s, s->p, rows), from + bytes, bytes);
        s->lanes[rows] = lane;
        s->sequences[rows++] = span->row + row;
    }
    return rows;
}

static const dpcri_step *step_of(const dpcr_sampler *s, const dpcr_span *span, int64_t i, int64_t k) {
    return &s->steps[span->first + s->lanes[i] * span->stride + k];
}

static int predict(dpcr_sampler *s, int64_t rows, const void *x, void *m, void *j) {
    s->rows += rows;
    s->calls++;
    if (!j) return s->denoiser.predict(s->denoiser.user, rows, x, s->times, s->sequences, m);
    s->products += rows * s->width;
    return s->denoiser.linearise(s->denoiser.user, rows, x, s->times, s->sequences, m, j);
}

// m (and j) at x, the rows' k-th steps.
static int read_first(dpcr_sampler *s, const dpcr_span *span, int64_t rows, int64_t k, void *j) {
    for (int64_t i = 0; i < rows; i++) s->times[i] = step_of(s, span, i, k)->first.time;
    return predict(s, rows, s->x, s->m, j);
}

// The rows whose step reads twice: m1 (and j1) at x1. Only the chain's last step may not, whose lane is the last.
static int read_second(dpcr_sampler *s, const dpcr_span *span, int64_t rows, int64_t k, void *j) {
    int64_t twice = 0;
    for (int64_t i = 0; i < rows && step_of(s, span, i, k)->twice; i++) {
        s->times[i] = step_of(s, span, i, k)->second.time;
        twice = i + 1;
    }
    return twice ? predict(s, twice, s->x1, s->m1, j) : 0;
}

static void paint(const dpcr_sampler *s, const dpcri_step *step, int64_t sequence, void *x) {
    if (s->mask)
        BY_DTYPE(s, paint, s->width, s->mask, step->alpha, step->sigma, row_of(s, s->known, sequence),
                 row_of(s, s->start, sequence), x);
}

static const void *noise_of(const dpcr_sampler *s, int64_t l, int64_t sequence) {
    return row_of(s, s->noise, l * s->batch + sequence);
}

// x1 = the step's result, or its prediction where it reads twice; p = x0, where kept.
static void finish_first(dpcr_sampler *s, const dpcr_span *span, int64_t rows, int64_t k) {
    for (int64_t i = 0; i < rows; i++) {
        const int64_t l = span->first + s->lanes[i] * span->stride + k;
        void *x1 = row_of(s, s->x1, i), *p = row_of(s, s->p, i);
        BY_DTYPE(s, step, &s->steps[l], s->options.clip, s->width, row_of(s, s->x, i), row_of(s, s->m, i), p,
                 noise_of(s, l, s->sequences[i]), x1, p);
        if (!s->steps[l].twice) paint(s, &s->steps[l], s->sequences[i], x1);
    }
}

static void finish_second(dpcr_sampler *s, const dpcr_span *span, int64_t rows, int64_t k) {
    for (int64_t i = 0; i < rows; i++) {
        const dpcri_step *step = step_of(s, span, i, k);
        void *x1 = row_of(s, s->x1, i);
        if (!step->twice) continue;
        BY_DTYPE(s, second, step, s->options.clip, s->width, row_of(s, s->x, i), row_of(s, s->m, i), x1,
                 row_of(s, s->m1, i), x1);
        paint(s, step, s->sequences[i], x1);
    }
}

// The new states to where they are wanted.
static void put(const dpcr_sampler *s, int64_t i, char *to) {
    const size_t bytes = (size_t)s->width * real_of(s);
    memcpy(to, row_of(s, s->x1, i), bytes);
    if (s->p) memcpy(to + bytes, row_of(s, s->p, i), bytes);
}

static bool reads_twice(const dpcr_sampler *s) { return s->options.kind == DPCR_SAMPLER_HEUN; }

static int run_step(dpcr_sampler *s, const dpcr_span *span, int64_t rows, int64_t k) {
    int code = read_first(s, span, rows, k, NULL);
    if (code) return code;
    finish_first(s, span, rows, k);
    if (!reads_twice(s)) return 0;
    if ((code = read_second(s, span, rows, k, NULL))) return code;
    finish_second(s, span, rows, k);
    return 0;
}

static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    dpcr_sampler *s = user;
    (void)tape;
    int64_t rows;
    for (int64_t at = 0; (rows = gather(s, span, in, s->block, &at)) > 0;) {
        for (int64_t k = 0; k < span->steps; k++) {
            const int code = run_step(s, span, rows, k);
            if (code) return code;
            for (int64_t i = 0; states && i < rows; i++)
                put(s, i, step_row(s, states, s->lanes[i], k, s->sequences[i] - span->row));
            void *x = s->x;
            s->x = s->x1;
            s->x1 = x;
        }
        void *x = s->x;  // the last step's result, back where put looks
        s->x = s->x1;
        s->x1 = x;
        for (int64_t i = 0; last && i < rows; i++)
            put(s, i, lane_row(s, last, s->lanes[i], s->sequences[i] - span->row));
    }
    return 0;
}

// ---- Jacobians ----

static void *square_of(const dpcr_sampler *s, void *squares, int64_t i) {
    return (char *)squares + (size_t)(i * s->width * s->width) * real_of(s);
}

static void jacobian_of(dpcr_sampler *s, const dpcri_step *step, int64_t i, void *a) {
    BY_DTYPE(s, jacobian, step, s->options.clip, s->width, s->p != NULL, step->twice ? NULL : s->mask,
             row_of(s, s->x, i), row_of(s, s->m, i), square_of(s, s->j, i), a);
}

// A step that reads twice: d x1 / d x goes to j's place once j is used up, so it is made in `a` first.
static int linearise_twice(dpcr_sampler *s, const dpcr_span *span, int64_t rows, const dpcr_array *a) {
    const int code = read_second(s, span, rows, 0, s->j1);
    if (code) return code;
    for (int64_t i = 0; i < rows; i++) {
        const dpcri_step *step = step_of(s, span, i, 0);
        if (!step->twice) continue;
        void *to = lane_row(s, a, s->lanes[i], s->sequences[i] - span->row);
        memcpy(s->square, to, (size_t)(s->width * s->width) * real_of(s));
        BY_DTYPE(s, second_jacobian, step, s->options.clip, s->width, s->mask, row_of(s, s->x, i), row_of(s, s->m, i),
                 square_of(s, s->j, i), row_of(s, s->x1, i), row_of(s, s->m1, i), square_of(s, s->j1, i), s->square,
                 to);
    }
    finish_second(s, span, rows, 0);
    return 0;
}

static int linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                     const dpcr_array *a) {
    dpcr_sampler *s = user;
    int64_t rows;
    if (!a) return advance(user, span, in, NULL, f, NULL);
    for (int64_t at = 0; (rows = gather(s, span, in, s->jacobian_block, &at)) > 0;) {
        int code = read_first(s, span, rows, 0, s->j);
        if (code) return code;
        for (int64_t i = 0; i < rows; i++)
            jacobian_of(s, step_of(s, span, i, 0), i, lane_row(s, a, s->lanes[i], s->sequences[i] - span->row));
        finish_first(s, span, rows, 0);
        if (reads_twice(s) && (code = linearise_twice(s, span, rows, a))) return code;
        for (int64_t i = 0; f && i < rows; i++) put(s, i, lane_row(s, f, s->lanes[i], s->sequences[i] - span->row));
    }
    return 0;
}

// ---- coarse steps ----

// One step over each lane's span, of the sampler's own kind, as steps of `to`: its errors grow and shrink as those of
// the steps between do (of ddpm by ddim's step they would shrink half as fast). Noise is added after it.
static dpcr_span one_step_each(dpcr_sampler *s, const dpcr_span *span, dpcr_sampler *to) {
    dpcr_span one = *span;
    for (int64_t c = 0; c < span->lanes; c++) {
        const dpcri_place *from = s->places + span->first + c * span->stride;
        s->coarser[c] =
            dpcri_step_make(s->options.kind, s->denoiser.prediction, s->options.eta, from[0], from[span->steps], NULL);
    }
    *to = *s;
    to->steps = s->coarser;
    to->noise = NULL;
    one.first = 0, one.stride = 1, one.steps = 1;
    return one;
}

static void keep_counts(dpcr_sampler *s, const dpcr_sampler *of) {
    s->rows = of->rows, s->products = of->products, s->calls = of->calls;
}

// x += the noise of steps first .. first + steps - 1 of a sequence, each as the slopes of those after it carry it.
static void add_noise(const dpcr_sampler *s, int64_t first, int64_t steps, int64_t sequence, char *x) {
    double factor = 1;
    for (int64_t l = first + steps - 1; l >= first; factor *= s->slopes[l--])
        BY_DTYPE(s, add, s->width, s->mask, factor * s->steps[l].noise, noise_of(s, l, sequence), x);
}

static int coarse(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last) {
    dpcr_sampler *s = user, coarser;
    const dpcr_span one = one_step_each(s, span, &coarser);
    const int code = advance(&coarser, &one, in, NULL, last, NULL);
    keep_counts(s, &coarser);
    for (int64_t c = 0; !code && s->noise && c < span->lanes; c++)
        for (int64_t row = 0; row < span->rows; row++)
            if (!span->active || span->active[row])
                add_noise(s, span->first + c * span->stride, span->steps, span->row + row, lane_row(s, last, c, row));
    return code;
}

static int coarse_linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *last,
                            const dpcr_array *a) {
    dpcr_sampler *s = user, coarser;
    if (last) {
        const int code = coarse(user, span, in, last);
        if (code) return code;
    }
    const dpcr_span one = one_step_each(s, span, &coarser);
    const int code = linearise(&coarser, &one, in, NULL, a);
    keep_counts(s, &coarser);
    return code;
}

// dx'/dx where the data are normal of deviation d: x0 = alpha d^2 / v x and e = sigma / v x, v = (alpha d)^2 + sigma^2.
static double slope_of(const dpcri_step *step, dpcri_place at) {
    const double d = DPCR_SAMPLER_DEVIATION, v = at.alpha * at.alpha * d * d + at.sigma * at.sigma;
    const double x0 = at.alpha * d * d / v, e = at.sigma / v;
    if (!step->twice) return step->x + step->x0 * x0 + step->e * e;
    const double x1 = step->x + step->x0 * x0, w = step->alpha * step->alpha * d * d + step->sigma * step->sigma;
    return step->then_x + step->then_x0 * x0 + (step->then_x1 + step->then_x01 * step->alpha * d * d / w) * x1;
}

// ---- noise ----

// Normal numbers of row `place` of a sample's path: place 0 is where it starts, l + 1 its step l (skipped ones
// counted).
static void draw(const dpcr_sampler *s, int64_t sequence, int64_t place, void *to) {
    const uint64_t stream = DPCRI_STREAM_SAMPLE | (uint32_t)(s->options.first_sample + sequence);
    if (s->denoiser.dtype == DPCR_F32)
        dpcri_normals_f32(s->options.seed, stream, (uint64_t)place, s->width, to);
    else
        dpcri_normals_f64(s->options.seed, stream, (uint64_t)place, s->width, to);
}

static void draw_sequence(void *argument, int64_t sequence) {
    const dpcr_sampler *s = argument;
    draw(s, sequence, 0, row_of(s, s->start, sequence));
    for (int64_t l = 0; s->noise && l < s->chain.length; l++)
        if (s->steps[l].noise > 0)
            draw(s, sequence, s->options.skip + l + 1, row_of(s, s->noise, l * s->batch + sequence));
}

// ---- making one ----

static dpcr_status check_denoiser(const dpcr_denoiser *d, dpcr_error *error) {
    if (d->size < offsetof(dpcr_denoiser, identity) || !d->predict)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sampler: denoiser.size is %zu, wanted sizeof(dpcr_denoiser), %zu, with the callback predict",
                          d->size, sizeof *d);
    if (d->width < 1 || d->width > (1 << 24) || (d->dtype != DPCR_F32 && d->dtype != DPCR_F64))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sampler: the denoiser's width is %lld in %s, wanted 1 to 2^24 in float32 or float64",
                          (long long)d->width, dpcr_dtype_name(d->dtype));
    if ((unsigned)d->prediction >= DPCR_PREDICTION_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: prediction is %d, wanted a named one",
                          (int)d->prediction);
    if (!(d->flops >= 0 && d->jacobian_flops >= 0 && isfinite(d->flops) && isfinite(d->jacobian_flops)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sampler: the denoiser's flops are %g, those of a Jacobian %g, wanted 0 or more", d->flops,
                          d->jacobian_flops);
    if (d->size > offsetof(dpcr_denoiser, kinks) && ((int)d->kinks < DPCR_KINKS_NONE || d->kinks > DPCR_KINKS_AFFINE))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sampler: the denoiser's kinks is %d, wanted 0, none, to %d, affine", (int)d->kinks,
                          (int)DPCR_KINKS_AFFINE);
    return DPCR_OK;
}

static dpcr_status fill_options(dpcr_sampler *s, const dpcr_sampler_options *given, dpcr_error *error) {
    dpcr_sampler_options *o = &s->options;
    if (given->size < offsetof(dpcr_sampler_options, times))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sampler: options.size is %zu, wanted sizeof(dpcr_sampler_options), %zu", given->size,
                          sizeof *given);
    DPCRI_COPY_IN(*o, given);
    o->mask = o->known = NULL;
    const dpcr_status status = dpcri_noise_options_fill(&given->noise, &o->noise, error);
    if (status != DPCR_OK) return status;
    if (o->steps == 0) o->steps = o->noise.steps;
    if ((unsigned)o->kind >= DPCR_SAMPLER_COUNT || (unsigned)o->spacing >= DPCR_SPACING_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: kind %d or spacing %d is none of the named ones",
                          (int)o->kind, (int)o->spacing);
    if (o->steps < 1 || o->steps > o->noise.steps || o->skip < 0 || o->skip >= o->steps)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "sampler: %lld steps of which %lld are left out, wanted 1 to %lld, and fewer left out",
                          (long long)o->steps, (long long)o->skip, (long long)o->noise.steps);
    if (!(o->eta >= 0 && o->eta <= 1) || !(o->clip >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: eta is %g and clip %g, wanted 0 to 1 and 0 or more",
                          o->eta, o->clip);
    if (o->eta > 0 && o->kind != DPCR_SAMPLER_DDIM)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: eta is %g with %s, wanted 0: it is ddim's alone",
                          o->eta, dpcr_sampler_name(o->kind));
    if (o->first_sample < 0 || o->first_sample > UINT32_MAX - s->batch)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: first_sample is %lld, wanted 0 to 2^32 - 1 - batch",
                          (long long)o->first_sample);
    return DPCR_OK;
}

// The times that the caller gives: falling, within the trained ones.
static dpcr_status take_times(const dpcr_sampler_options *o, double *times, dpcr_error *error) {
    double before = (double)o->noise.steps;
    for (int64_t i = 0; i < o->steps; before = times[i++]) {
        times[i] = o->times[i];
        if (!(times[i] >= 0 && times[i] <= (double)(o->noise.steps - 1) && times[i] < before))
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "sampler: time %lld of %lld is %g, wanted falling ones from %lld at most to 0 at least",
                              (long long)i + 1, (long long)o->steps, times[i], (long long)o->noise.steps - 1);
    }
    return DPCR_OK;
}

// Steps divide by how far log(sigma / alpha) goes. Times of a spacing lie apart; those of a caller may not.
static bool is_apart(dpcri_place at, dpcri_place to) {
    return to.sigma == 0 || log(at.sigma / at.alpha) - log(to.sigma / to.alpha) > 1e-9;
}

static dpcr_status make_steps(dpcr_sampler *s, dpcr_error *error) {
    const dpcr_sampler_options *o = &s->options;
    const int64_t n = o->steps, length = n - o->skip;
    double *times = dpcri_alloc(s->context, (size_t)(n + o->noise.steps) * sizeof(double));
    s->steps = dpcri_alloc_zero(s->context, (size_t)length * sizeof *s->steps);
    s->places = dpcri_alloc_zero(s->context, (size_t)(length + 1) * sizeof *s->places);
    s->slopes = dpcri_alloc_zero(s->context, (size_t)length * sizeof *s->slopes);
    s->coarser = dpcri_alloc_zero(s->context, (size_t)length * sizeof *s->coarser);
    if (!times || !s->steps || !s->places || !s->slopes || !s->coarser) {
        dpcri_free(s->context, times);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler: no memory for %lld steps", (long long)n);
    }
    double *abar = times + n;
    dpcri_noise_fill(&o->noise, NULL, abar);
    dpcr_status status = DPCR_OK;
    const bool given = o->times != NULL;
    if (given)
        DPCR_TRY(take_times(o, times, error));
    else
        dpcri_spacing_fill(o->spacing, &o->noise, abar, n, times);
    s->options.times = NULL;
    const dpcri_place end = {.time = o->keep_last ? 0 : -1,
                             .alpha = o->keep_last ? sqrt(abar[0]) : 1,
                             .sigma = o->keep_last ? sqrt(1 - abar[0]) : 0};
    dpcri_place before = {0};
    for (int64_t l = 0; l < length; l++) {
        const int64_t i = l + o->skip;
        const dpcri_place at = dpcri_place_at(&o->noise, abar, times[i]);
        const dpcri_place to = i + 1 < n ? dpcri_place_at(&o->noise, abar, times[i + 1]) : end;
        if (given && i + 1 < n && !is_apart(at, to))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                "sampler: times %lld and %lld of %lld, %.17g and %.17g, are too close to each other",
                                (long long)i + 1, (long long)i + 2, (long long)n, times[i], times[i + 1]));
        s->steps[l] = dpcri_step_make(o->kind, s->denoiser.prediction, o->eta, at, to, l > 0 ? &before : NULL);
        s->noisy = s->noisy || s->steps[l].noise > 0;
        s->slopes[l] = slope_of(&s->steps[l], at);
        s->places[l] = at, s->places[l + 1] = to;
        before = at;
    }
done:
    dpcri_free(s->context, times);
    return status;
}

static dpcr_status take(dpcr_sampler *s, void *place, int64_t a, int64_t b, int64_t c, size_t element,
                        dpcr_error *error) {
    bool overflow = false;
    const size_t count = dpcri_bytes(a, b, c, &overflow);
    void *memory = overflow || count > SIZE_MAX / 2 / element ? NULL : dpcri_alloc_zero(s->context, count * element);
    if (!memory && count)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler: no memory for %lld x %lld x %lld numbers", (long long)a,
                          (long long)b, (long long)c);
    memcpy(place, &memory, sizeof memory);
    return DPCR_OK;
}

static dpcr_status take_blocks(dpcr_sampler *s, dpcr_error *error) {
    dpcr_status status;
    const size_t real = real_of(s);
    const int64_t w = s->width, square = w * w, fit = JACOBIAN_BYTES / (int64_t)real / square;
    const int64_t rows_there = s->batch * (s->options.steps - s->options.skip), held = BLOCK_BYTES / (int64_t)real / w;
    s->block = least_of(most_of(BLOCK_ROWS, least_of(s->batch, MOST_ROWS)),
                        least_of(most_of(held, 1), most_of(rows_there, 1)));
    s->jacobian_block = least_of(most_of(fit, 1), least_of(s->block, BLOCK_ROWS));
    void *rows[] = {&s->x, &s->m, &s->x1, &s->m1};
    for (int i = 0; i < 4; i++) DPCR_TRY(take(s, rows[i], s->block, w, 1, real, error));
    if (s->options.kind == DPCR_SAMPLER_DPM_SOLVER) DPCR_TRY(take(s, &s->p, s->block, w, 1, real, error));
    DPCR_TRY(take(s, &s->times, s->block, 1, 1, sizeof *s->times, error));
    DPCR_TRY(take(s, &s->sequences, s->block, 1, 1, sizeof *s->sequences, error));
    DPCR_TRY(take(s, &s->lanes, s->block, 1, 1, sizeof *s->lanes, error));
    if (s->denoiser.linearise) DPCR_TRY(take(s, &s->j, s->jacobian_block, square, 1, real, error));
    if (s->denoiser.linearise && reads_twice(s)) {
        DPCR_TRY(take(s, &s->j1, s->jacobian_block, square, 1, real, error));
        DPCR_TRY(take(s, &s->square, square, 1, 1, real, error));
    }
    DPCR_TRY(take(s, &s->start, s->batch, w, 1, real, error));
    if (s->noisy) DPCR_TRY(take(s, &s->noise, s->options.steps - s->options.skip, s->batch, w, real, error));
done:
    return status;
}

static bool is_matrix(const dpcr_array *array, dpcr_dtype dtype, int64_t rows, int64_t width) {
    return array && (array->data || rows == 0) && array->dtype == dtype && array->device.type == DPCR_HOST &&
           array->ndim == 2 && array->shape[0] == rows && array->shape[1] == width &&
           (array->strides[1] == 1 || width == 1);
}

static dpcr_status refuse_matrix(const char *name, const dpcr_array *array, const dpcr_sampler *s, int64_t width,
                                 dpcr_error *error) {
    char got[160];
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "sampler: %s is %s, wanted [%lld][%lld] %s on the host, last dimension contiguous", name,
                      array ? dpcri_array_text(array, got, sizeof got) : "NULL", (long long)s->batch, (long long)width,
                      dpcr_dtype_name(s->denoiser.dtype));
}

static dpcr_status copy_mask(dpcr_sampler *s, const dpcr_sampler_options *given, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_array *mask = given->mask;
    const size_t real = real_of(s);
    if (!mask && !given->known) return DPCR_OK;
    if (!mask)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: known is given, but no mask of the places that are");
    if (!mask->data || mask->ndim != 1 || mask->shape[0] != s->width || mask->dtype != s->denoiser.dtype ||
        mask->device.type != DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: the mask is not [%lld] %s on the host",
                          (long long)s->width, dpcr_dtype_name(s->denoiser.dtype));
    if (!is_matrix(given->known, s->denoiser.dtype, s->batch, s->width))
        return refuse_matrix("known", given->known, s, s->width, error);
    DPCR_TRY(take(s, &s->mask, s->width, 1, 1, 1, error));
    DPCR_TRY(take(s, &s->known, s->batch, s->width, 1, real, error));
    for (int64_t i = 0; i < s->width; i++) {
        const char *at = (const char *)mask->data + i * mask->strides[0] * (int64_t)real;
        s->mask[i] = s->denoiser.dtype == DPCR_F32 ? *(const float *)at != 0 : *(const double *)at != 0;
    }
    for (int64_t b = 0; b < s->batch; b++)
        memcpy(row_of(s, s->known, b), (const char *)given->known->data + b * given->known->strides[0] * (int64_t)real,
               (size_t)s->width * real);
done:
    return status;
}

// Of all that makes the chain's steps but its noise, and the classes asked for, which take about as many sweeps. A
// model that tells none is known by where it lies.
static uint64_t identity_of(const dpcr_sampler *s) {
    const dpcr_sampler_options *o = &s->options;
    const double numbers[5] = {(double)o->kind, (double)s->denoiser.prediction, o->eta, o->clip, s->mask ? 1 : 0};
    uint64_t sum = dpcri_checksum(DPCRI_CHECKSUM, &s->denoiser.identity, sizeof s->denoiser.identity);
    if (!s->denoiser.identity) {
        sum = dpcri_checksum(sum, &s->denoiser.user, sizeof s->denoiser.user);
        sum = dpcri_checksum(sum, &s->denoiser.predict, sizeof s->denoiser.predict);
    }
    sum = dpcri_checksum(sum, numbers, sizeof numbers);
    sum = dpcri_checksum(sum, s->places, (size_t)(o->steps - o->skip + 1) * sizeof *s->places);
    return s->mask ? dpcri_checksum(sum, s->mask, (size_t)s->width) : sum;
}

// A step is affine in what the model says, but where x0 is cut or it is asked twice a step, whose units may then make
// up for each other.
static dpcr_kinks kinks_of(const dpcr_sampler *s) {
    if (s->options.clip > 0 || (s->denoiser.kinks == DPCR_KINKS_AFFINE && reads_twice(s))) return DPCR_KINKS_CURVED;
    return s->denoiser.kinks;
}

static void make_chain(dpcr_sampler *s) {
    const int64_t width = s->p ? 2 * s->width : s->width;
    const double readings = reads_twice(s) ? 2 : 1, told = s->denoiser.flops;
    const double flops = told > 0 ? readings * told + 12 * (double)s->width : 0;
    s->chain = (dpcr_steps){.size = sizeof s->chain,
                            .user = s,
                            .length = s->options.steps - s->options.skip,
                            .batch = s->batch,
                            .width = width,
                            .dtype = s->denoiser.dtype,
                            .flops = flops,
                            .lanes = least_of(s->block, BLOCK_ROWS),
                            .advance = advance,
                            .coarse = coarse,
                            .coarse_flops = flops,
                            .slopes = s->p ? NULL : s->slopes,
                            .identity = identity_of(s)};
    if (!s->denoiser.linearise) return;
    s->chain.linearise = linearise;
    s->chain.kinks = kinks_of(s);
    s->chain.coarse_linearise = coarse_linearise;
    s->chain.jacobian = dpcr_transition_square(DPCR_DENSE, width, 0);
    s->chain.jacobian_flops = readings * s->denoiser.jacobian_flops + 4 * (double)width * (double)width;
}

dpcr_status dpcr_sampler_create(dpcr_context *context, const dpcr_denoiser *denoiser,
                                const dpcr_sampler_options *options, int64_t batch, dpcr_sampler **sampler,
                                dpcr_error *error) {
    dpcr_status status;
    dpcr_sampler *s = NULL;
    if (sampler) *sampler = NULL;
    if (!context || !denoiser || !options || !sampler)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_create: context, denoiser, options or sampler is NULL");
    if (batch < 0 || batch > UINT32_MAX)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_create: batch is %lld, wanted 0 to 2^32 - 1",
                          (long long)batch);
    DPCR_TRY(check_denoiser(denoiser, error));
    s = dpcri_alloc_zero(context, sizeof *s);
    if (!s) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler_create: no memory for the sampler"));
    s->context = context;
    DPCRI_COPY_IN(s->denoiser, denoiser);
    s->batch = batch;
    s->width = denoiser->width;
    DPCR_TRY(fill_options(s, options, error));
    DPCR_TRY(make_steps(s, error));
    DPCR_TRY(take_blocks(s, error));
    DPCR_TRY(copy_mask(s, options, error));
    make_chain(s);
    dpcri_parallel(context, batch, draw_sequence, s);
    if (s->options.device.type != 0 && s->options.device.type != DPCR_HOST)
        DPCR_TRY(dpcri_sampler_device_create(s, error));
    if (s->there) s->chain.launch = dpcri_sampler_launch, s->chain.launch_sweeps = 1;
    *sampler = s;
    s = NULL;
done:
    dpcr_sampler_destroy(s);
    return status;
}

void dpcr_sampler_destroy(dpcr_sampler *s) {
    if (!s) return;
    dpcri_sampler_device_destroy(s);
    void *const owned[] = {s->steps,  s->places, s->slopes,    s->start, s->noise,  s->mask, s->known,
                           s->x,      s->m,      s->x1,        s->m1,    s->p,      s->j,    s->j1,
                           s->square, s->times,  s->sequences, s->lanes, s->coarser};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) dpcri_free(s->context, owned[i]);
    dpcri_free(s->context, s);
}

const dpcr_steps *dpcr_sampler_steps(const dpcr_sampler *sampler) { return sampler ? &sampler->chain : NULL; }

dpcr_status dpcr_sampler_start(const dpcr_sampler *sampler, const dpcr_array *x, const dpcr_array *z0,
                               dpcr_error *error) {
    if (!sampler) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_start: sampler is NULL");
    const dpcr_sampler *s = sampler;
    const int64_t real = (int64_t)real_of(s);
    if (x && !is_matrix(x, s->denoiser.dtype, s->batch, s->width)) return refuse_matrix("x", x, s, s->width, error);
    if (!is_matrix(z0, s->denoiser.dtype, s->batch, s->chain.width))
        return refuse_matrix("z0", z0, s, s->chain.width, error);
    const dpcr_status status = dpcri_check_written("sampler_start", "z0", z0, error);
    if (status != DPCR_OK) return status;
    for (int64_t b = 0; b < s->batch; b++) {
        char *to = (char *)z0->data + b * z0->strides[0] * real;
        const void *from = x ? (const char *)x->data + b * x->strides[0] * real : row_of(s, s->start, b);
        memcpy(to, from, (size_t)(s->width * real));
        if (s->p) memset(to + s->width * real, 0, (size_t)(s->width * real));
    }
    return DPCR_OK;
}

dpcr_status dpcr_sampler_noise(const dpcr_sampler *sampler, const dpcr_array *x, dpcr_error *error) {
    if (!sampler) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_noise: sampler is NULL");
    const dpcr_sampler *s = sampler;
    const int64_t real = (int64_t)real_of(s);
    if (!is_matrix(x, s->denoiser.dtype, s->batch, s->width)) return refuse_matrix("x", x, s, s->width, error);
    const dpcr_status status = dpcri_check_written("sampler_noise", "x", x, error);
    if (status != DPCR_OK) return status;
    double abar[DPCRI_MOST_TIMES];
    dpcri_noise_fill(&s->options.noise, NULL, abar);
    const dpcri_place at = dpcri_place_at(&s->options.noise, abar, s->steps[0].first.time);
    for (int64_t b = 0; b < s->batch; b++) {
        void *row = (char *)x->data + b * x->strides[0] * real;
        const void *start = row_of(s, s->start, b);
        for (int64_t i = 0; i < s->width; i++) {
            if (s->denoiser.dtype == DPCR_F32) {
                float *to = (float *)row + i;
                *to = (float)(at.alpha * *to + at.sigma * ((const float *)start)[i]);
            } else {
                double *to = (double *)row + i;
                *to = at.alpha * *to + at.sigma * ((const double *)start)[i];
            }
        }
    }
    return DPCR_OK;
}

dpcr_status dpcr_sampler_step(const dpcr_sampler *sampler, int64_t step, double *time, double *variance,
                              dpcr_error *error) {
    if (!sampler) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_step: sampler is NULL");
    if (step < 0 || step >= sampler->chain.length)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_step: step %lld, wanted one of the sampler's %lld",
                          (long long)step, (long long)sampler->chain.length);
    const dpcri_step *s = &sampler->steps[step];
    if (time) *time = s->first.time;
    if (variance) *variance = s->noise * s->noise;
    return DPCR_OK;
}

dpcr_status dpcr_sampler_scale(const dpcr_sampler *sampler, double *scale, dpcr_error *error) {
    if (!sampler || !scale) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_scale: sampler or scale is NULL");
    double former = 1;
    for (int64_t l = 0; l < sampler->chain.length; l++) {
        const double variance = sampler->steps[l].variance;
        if (variance > 0) former = sqrt(variance);
        scale[l] = former;
    }
    return DPCR_OK;
}

void dpcr_sampler_counts(const dpcr_sampler *sampler, int64_t *rows, int64_t *products, int64_t *calls) {
    if (rows) *rows = sampler ? sampler->rows : 0;
    if (products) *products = sampler ? sampler->products : 0;
    if (calls) *calls = sampler ? sampler->calls : 0;
}

void dpcr_sampler_counts_reset(dpcr_sampler *sampler) {
    if (sampler) sampler->rows = sampler->products = sampler->calls = 0;
}
