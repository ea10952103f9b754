// SPDX-License-Identifier: MIT
// Denoisers: multilayer perceptrons with a shift by time and class before every activation.
//
//   s(t) = W_s silu(W_1 silu(W_0 sinusoids(t))) + class[y]
//   h = silu(W_in x + s_1);   h += silu(W_l h + s_l), l = 2..D;   m = W_out h
//
// The shift of every trained time is tabled, so sampling pays for x's products alone. Jacobians by forward mode: the
// tangents of x's components go through the layers as rows of the same products, width rows for one, of several steps
// at once:
//   H_1 = diag(act'(u_1)) W_in;   H_l = H_{l-1} + diag(act'(u_l)) W_l H_{l-1};   dm/dx = W_out H_D
// Work of a row: 2 width hidden (2 + ...) flops, that of a Jacobian width times the hidden layers' more.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "sample/networks.h"

static dpcr_status check_options(const dpcr_diffusion_options *o, const dpcr_autoencoder *a, dpcr_error *error) {
    const int64_t most = DPCRI_MOST_WIDTH;
    const int64_t channels = o->channels > 0 ? o->channels : 1;
    const bool picture = o->rows >= 1 && o->cols >= 1 && o->rows <= most && o->cols <= most / o->rows &&
                         o->channels >= 0 && channels <= most / (o->rows * o->cols);
    const int64_t width = !picture ? 0 : a ? a->options.latent : dpcr_diffusion_pixels(o);
    if (picture && a && (a->options.rows != o->rows || a->options.cols != o->cols || a->channels != channels))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "diffusion: pictures of %lld x %lld x %lld, wanted %lld x %lld x %lld, the auto-encoder's",
                          (long long)channels, (long long)o->rows, (long long)o->cols, (long long)a->channels,
                          (long long)a->options.rows, (long long)a->options.cols);
    if (picture && o->width == width && o->hidden >= 1 && o->hidden <= most && o->depth >= 1 &&
        o->depth <= DPCRI_MOST_DEPTH && o->classes >= 0 && o->classes <= 256 &&
        (unsigned)o->prediction < DPCR_PREDICTION_COUNT)
        return DPCR_OK;
    return dpcri_fail(
        error, DPCR_ERROR_ARGUMENT,
        "diffusion: pictures of %lld x %lld, width %lld, hidden %lld, depth %lld, classes %lld, prediction "
        "%d; wanted at most %lld pixels and numbers, width %lld, depth 1 to %d, at most 256 classes",
        (long long)o->rows, (long long)o->cols, (long long)o->width, (long long)o->hidden, (long long)o->depth,
        (long long)o->classes, (int)o->prediction, (long long)most, (long long)width, DPCRI_MOST_DEPTH);
}

static void add_layers(dpcr_diffusion *d) {
    const dpcr_diffusion_options *o = &d->options;
    char name[24];
    dpcri_net_add(&d->net, "time.0", DPCRI_TIME_WIDTH, DPCRI_TIME_WIDTH, DPCRI_ACT_SILU, false);
    dpcri_net_add(&d->net, "time.1", DPCRI_TIME_WIDTH, DPCRI_TIME_WIDTH, DPCRI_ACT_SILU, false);
    dpcri_net_add(&d->net, "shift", DPCRI_TIME_WIDTH, d->shifts, DPCRI_ACT_IDENTITY, false);
    if (o->classes) dpcri_net_add(&d->net, "class", o->classes + 1, d->shifts, DPCRI_ACT_IDENTITY, false);
    d->first = dpcri_net_add(&d->net, "in", o->width, o->hidden, DPCRI_ACT_SILU, false);
    for (int64_t i = 1; i < o->depth; i++) {
        snprintf(name, sizeof name, "hidden.%d", (int)i);
        dpcri_net_add(&d->net, name, o->hidden, o->hidden, DPCRI_ACT_SILU, true);
    }
    dpcri_net_add(&d->net, "out", o->hidden, o->width, DPCRI_ACT_IDENTITY, false);
}

static dpcr_status take(dpcr_diffusion *d, int64_t rows, int64_t width, float **place, dpcr_error *error) {
    bool overflow = false;
    const size_t bytes = dpcri_bytes(rows, width, sizeof(float), &overflow);
    *place = overflow ? NULL : dpcri_alloc_zero(d->context, bytes);
    if (*place || !bytes) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "diffusion: no memory for %lld x %lld numbers", (long long)rows,
                      (long long)width);
}

static dpcr_status take_work(dpcr_diffusion *d, dpcr_error *error) {
    dpcr_status status;
    const dpcr_diffusion_options *o = &d->options;
    const int64_t rows = DPCRI_NET_ROWS;
    const bool jacobians = o->width <= DPCR_DIFFUSION_JACOBIAN;
    DPCR_TRY(take(d, o->noise.steps, d->shifts, &d->shift, error));
    DPCR_TRY(take(d, o->classes + 1, d->shifts, &d->class_shift, error));
    DPCR_TRY(take(d, rows, d->shifts, &d->s, error));
    DPCR_TRY(take(d, rows, o->hidden, &d->h[0], error));
    DPCR_TRY(
        take(d, rows, jacobians && o->width > o->hidden ? o->width : o->hidden, &d->h[1], error));  // a Jacobian too
    DPCR_TRY(take(d, rows, o->hidden, &d->slope, error));
    DPCR_TRY(take(d, rows, o->width, &d->plain, error));
    if (jacobians) DPCR_TRY(take(d, o->hidden, o->width, &d->in_transposed, error));
    if (jacobians) DPCR_TRY(take(d, rows, o->width, &d->plain_j, error));
done:
    return status;
}

static dpcr_status make(dpcr_context *context, const dpcr_diffusion_options *options, dpcr_autoencoder *autoencoder,
                        bool drawn, dpcr_diffusion **model, dpcr_error *error) {
    dpcr_status status;
    const uint64_t seed = options->seed + 1;
    dpcr_diffusion *d = dpcri_alloc_zero(context, sizeof *d);
    if (!d) {
        dpcr_autoencoder_destroy(autoencoder);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "diffusion: no memory");
    }
    *d = (dpcr_diffusion){.context = context, .options = *options, .autoencoder = autoencoder, .guidance = 1};
    d->options.size = sizeof d->options;
    DPCR_TRY(dpcri_noise_options_fill(&options->noise, &d->options.noise, error));
    DPCR_TRY(check_options(options, autoencoder, error));
    d->shifts = options->depth * options->hidden;
    d->net = dpcri_net_make(context);
    add_layers(d);
    DPCR_TRY(take_work(d, error));
    DPCR_TRY(dpcri_net_create(&d->net, drawn ? &seed : NULL, error));
    DPCR_TRY(dpcri_stack_create(&d->net, d->first, (int)options->depth + 1, &d->stack, error));
    if (drawn) dpcri_diffusion_refresh(d);
    *model = d;
    d = NULL;
done:
    dpcr_diffusion_destroy(d);
    return status;
}

dpcr_status dpcr_diffusion_create(dpcr_context *context, const dpcr_diffusion_options *options,
                                  dpcr_autoencoder *autoencoder, dpcr_diffusion **model, dpcr_error *error) {
    if (model) *model = NULL;
    if (!context || !options || !model || options->size < sizeof *options) {
        dpcr_autoencoder_destroy(autoencoder);
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "diffusion_create: context, options or model is NULL, or options.size is short");
    }
    return make(context, options, autoencoder, true, model, error);
}

void dpcr_diffusion_destroy(dpcr_diffusion *d) {
    if (!d) return;
    dpcr_autoencoder_destroy(d->autoencoder);
    dpcri_stack_destroy(d->stack);
    dpcri_net_destroy(&d->net);
    float *const owned[] = {d->shift, d->class_shift, d->in_transposed, d->s,      d->h[0],
                            d->h[1],  d->slope,       d->plain,         d->plain_j};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) dpcri_free(d->context, owned[i]);
    dpcri_free(d->context, d->labels);
    dpcri_free(d->context, d);
}

const dpcr_diffusion_options *dpcr_diffusion_get_options(const dpcr_diffusion *d) { return d ? &d->options : NULL; }
dpcr_autoencoder *dpcr_diffusion_autoencoder(const dpcr_diffusion *d) { return d ? d->autoencoder : NULL; }
int64_t dpcr_diffusion_parameters(const dpcr_diffusion *d) { return d ? d->net.parameters : 0; }

// ---- time and class ----

void dpcri_sinusoids(double time, float *out) {
    enum { HALF = DPCRI_TIME_WIDTH / 2 };
    for (int k = 0; k < HALF; k++) {
        const double angle = time * exp(-9.210340371976184 * k / HALF);  // log 10000
        out[k] = (float)sin(angle);
        out[HALF + k] = (float)cos(angle);
    }
}

void dpcri_diffusion_time(const dpcr_diffusion *d, int64_t rows, const double *times, float *scratch, float *s) {
    float *a = scratch, *b = a + rows * DPCRI_TIME_WIDTH;
    for (int64_t i = 0; i < rows; i++) dpcri_sinusoids(times[i], a + i * DPCRI_TIME_WIDTH);
    dpcri_dense_forward(&d->net, 0, rows, a, NULL, 0, b, NULL);
    dpcri_dense_forward(&d->net, 1, rows, b, NULL, 0, a, NULL);
    dpcri_dense_forward(&d->net, 2, rows, a, NULL, 0, s, NULL);
}

void dpcri_diffusion_refresh(dpcr_diffusion *d) {
    enum { ROWS = 64 };
    float scratch[2 * ROWS * DPCRI_TIME_WIDTH];
    double times[ROWS];
    const int64_t T = d->options.noise.steps, classes = d->options.classes;
    const dpcri_dense *table = &d->net.layers[3], *in = &d->net.layers[d->first];
    dpcri_net_pack(&d->net);
    for (int64_t t = 0; t < T; t += ROWS) {
        const int64_t rows = T - t < ROWS ? T - t : ROWS;
        for (int64_t i = 0; i < rows; i++) times[i] = (double)(t + i);
        dpcri_diffusion_time(d, rows, times, scratch, d->shift + t * d->shifts);
    }
    for (int64_t c = 0; classes && c <= classes; c++)
        for (int64_t q = 0; q < d->shifts; q++)
            d->class_shift[c * d->shifts + q] = d->net.values[table->weight + q * (classes + 1) + c];
    if (d->in_transposed)
        d->net.nn->transpose(in->out, in->in, d->net.values + in->weight, in->in, d->in_transposed, in->out);
}

void dpcri_diffusion_shift(const dpcr_diffusion *d, double time, float *s) {
    const int64_t t = (int64_t)time, shifts = d->shifts;
    float scratch[2 * DPCRI_TIME_WIDTH];
    if ((double)t == time && t >= 0 && t < d->options.noise.steps)
        memcpy(s, d->shift + t * shifts, (size_t)shifts * sizeof *s);
    else
        dpcri_diffusion_time(d, 1, &time, scratch, s);
}

// s of a row: the table's, or made where the time lies between the trained ones.
static void shift_of(const dpcr_diffusion *d, double time, int64_t label, float *s) {
    const int64_t shifts = d->shifts;
    dpcri_diffusion_shift(d, time, s);
    if (!d->options.classes) return;
    const float *c = d->class_shift + (label < 0 ? d->options.classes : label) * shifts;
    for (int64_t q = 0; q < shifts; q++) s[q] += c[q];
}

static int64_t label_of(const dpcr_diffusion *d, int64_t sequence) {
    return d->labels && sequence < d->batch ? d->labels[sequence] : -1;
}

// ---- evaluation ----

typedef struct rows_in {
    int64_t rows;
    const float *x;
    const double *times;
    const int64_t *sequences;
    bool classless;
} rows_in;

static void fill_shifts(dpcr_diffusion *d, const rows_in *in) {
    for (int64_t i = 0; i < in->rows; i++) {
        const int64_t label = in->classless ? -1 : label_of(d, in->sequences[i]);
        const bool again = i > 0 && in->times[i] == in->times[i - 1] && !d->options.classes;
        if (again)
            memcpy(d->s + i * d->shifts, d->s + (i - 1) * d->shifts, (size_t)d->shifts * sizeof *d->s);
        else
            shift_of(d, in->times[i], label, d->s + i * d->shifts);
    }
}

// s of all rows where they have the same, tabled: the loop's own case; NULL: they have not.
static const float *shared_shift(const dpcr_diffusion *d, const rows_in *in) {
    const int64_t t = (int64_t)in->times[0];
    if (d->options.classes || (double)t != in->times[0] || t < 0 || t >= d->options.noise.steps) return NULL;
    for (int64_t i = 1; i < in->rows; i++)
        if (in->times[i] != in->times[0]) return NULL;
    return d->shift + t * d->shifts;
}

static void evaluate_few(dpcr_diffusion *d, const rows_in *in, float *m) {
    const float *shared = shared_shift(d, in);
    if (!shared) fill_shifts(d, in);
    dpcri_stack_run(d->stack, in->rows, in->x, shared ? shared : d->s, shared ? 0 : d->shifts, m);
}

static void evaluate(dpcr_diffusion *d, const rows_in *in, float *m) {
    const int64_t W = d->options.hidden;
    const float *h = in->x;
    if (in->rows <= DPCRI_FEW_ROWS) {
        evaluate_few(d, in, m);
        return;
    }
    fill_shifts(d, in);
    for (int64_t l = 0; l < d->options.depth; l++) {
        float *y = d->h[l % 2];
        dpcri_dense_forward(&d->net, d->first + (int)l, in->rows, h, d->s + l * W, d->shifts, y, NULL);
        h = y;
    }
    dpcri_dense_forward(&d->net, d->first + (int)d->options.depth, in->rows, h, NULL, 0, m, NULL);
}

// Rows whose tangents are as many rows as a product takes; their h, twice, and slopes lie in `slope`.
static int64_t jacobian_rows(const dpcr_diffusion *d) {
    const int64_t fit = DPCRI_NET_ROWS / d->options.width, most = DPCRI_NET_ROWS / 3;
    return fit < most ? fit : most;
}

// m and j of some rows: the tangents of all, [rows][width][hidden], go through the layers together.
static void linearise_rows(dpcr_diffusion *d, const rows_in *in, float *m, float *j) {
    const int64_t W = d->options.hidden, w = d->options.width, rows = in->rows;
    float *h[2] = {d->slope, d->slope + rows * W}, *slope = d->slope + 2 * rows * W, *tangents = d->h[0],
          *next = d->h[1];
    const float *x = in->x;
    fill_shifts(d, in);
    for (int64_t l = 0; l < d->options.depth; l++) {
        float *y = h[l % 2];
        dpcri_dense_forward(&d->net, d->first + (int)l, rows, x, d->s + l * W, d->shifts, y, slope);
        x = y;
        if (l > 0) dpcri_dense_map(&d->net, d->first + (int)l, rows * w, tangents, next);
        for (int64_t i = 0; i < rows * w; i++) {
            const float *g = slope + i / w * W, *from = l ? next + i * W : d->in_transposed + i % w * W;
            float *t = tangents + i * W;
            for (int64_t q = 0; q < W; q++) t[q] = l ? t[q] + g[q] * from[q] : g[q] * from[q];
        }
    }
    dpcri_dense_forward(&d->net, d->first + (int)d->options.depth, rows, x, NULL, 0, m, NULL);
    dpcri_dense_map(&d->net, d->first + (int)d->options.depth, rows * w, tangents, next);
    for (int64_t i = 0; i < rows; i++) d->net.nn->transpose(w, w, next + i * w * w, w, j + i * w * w, w);
}

bool dpcri_diffusion_guided(const dpcr_diffusion *d) { return d->guidance != 1 && d->options.classes && d->labels; }

static void guide(const dpcr_diffusion *d, int64_t count, const float *plain, float *m) {
    const float g = (float)d->guidance;
    for (int64_t i = 0; i < count; i++) m[i] = plain[i] + g * (m[i] - plain[i]);
}

static int predict(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences, void *m) {
    dpcr_diffusion *d = user;
    const int64_t w = d->options.width;
    for (int64_t i = 0; i < rows; i += DPCRI_NET_ROWS) {
        rows_in in = {.rows = rows - i < DPCRI_NET_ROWS ? rows - i : DPCRI_NET_ROWS,
                      .x = (const float *)x + i * w,
                      .times = times + i,
                      .sequences = sequences + i};
        float *to = (float *)m + i * w;
        evaluate(d, &in, to);
        if (!dpcri_diffusion_guided(d)) continue;
        in.classless = true;
        evaluate(d, &in, d->plain);
        guide(d, in.rows * w, d->plain, to);
    }
    return 0;
}

static int linearise(void *user, int64_t rows, const void *x, const double *times, const int64_t *sequences, void *m,
                     void *j) {
    dpcr_diffusion *d = user;
    const int64_t w = d->options.width;
    const int64_t most = jacobian_rows(d);
    for (int64_t i = 0; i < rows; i += most) {
        rows_in in = {.rows = rows - i < most ? rows - i : most,
                      .x = (const float *)x + i * w,
                      .times = times + i,
                      .sequences = sequences + i};
        float *to = (float *)m + i * w, *a = (float *)j + i * w * w;
        linearise_rows(d, &in, to, a);
        if (!dpcri_diffusion_guided(d)) continue;
        in.classless = true;
        linearise_rows(d, &in, d->plain, d->plain_j);
        guide(d, in.rows * w, d->plain, to);
        guide(d, in.rows * w * w, d->plain_j, a);
    }
    return 0;
}

dpcr_diffusion *dpcri_diffusion_of(const dpcr_denoiser *denoiser) {
    return denoiser->predict == predict ? denoiser->user : NULL;
}

// Of some numbers of the network, all over it, and of the guidance.
static uint64_t identity_of(const dpcr_diffusion *d) {
    enum { NUMBERS = 256 };
    const int64_t stride = d->net.parameters / NUMBERS + 1;
    uint64_t sum = dpcri_checksum(DPCRI_CHECKSUM, &d->guidance, sizeof d->guidance);
    for (int64_t i = 0; i < d->net.parameters; i += stride)
        sum = dpcri_checksum(sum, &d->net.values[i], sizeof d->net.values[i]);
    return sum;
}

dpcr_status dpcr_diffusion_denoiser(dpcr_diffusion *d, const int32_t *labels, int64_t batch, double guidance,
                                    dpcr_denoiser *denoiser, dpcr_error *error) {
    if (!d || !denoiser || denoiser->size < offsetof(dpcr_denoiser, identity))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "diffusion_denoiser: wanted a model and a denoiser with its size");
    if (batch < 0 || batch > UINT32_MAX || !isfinite(guidance))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "diffusion_denoiser: batch is %lld or guidance is %g",
                          (long long)batch, guidance);
    for (int64_t i = 0; labels && i < batch; i++)
        if (labels[i] < -1 || labels[i] >= d->options.classes)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "diffusion_denoiser: class %d of sample %lld, wanted -1 to %lld: the model has %lld",
                              (int)labels[i], (long long)i, (long long)d->options.classes - 1,
                              (long long)d->options.classes);
    dpcri_free(d->context, d->labels);
    d->labels = NULL;
    d->batch = batch;
    d->guidance = guidance;
    if (labels && batch) {
        d->labels = dpcri_alloc(d->context, (size_t)batch * sizeof *d->labels);
        if (!d->labels) return dpcri_fail(error, DPCR_ERROR_MEMORY, "diffusion_denoiser: no memory for the classes");
        memcpy(d->labels, labels, (size_t)batch * sizeof *labels);
    }
    const double w = (double)d->options.width, W = (double)d->options.hidden, D = (double)d->options.depth;
    const double halves = dpcri_diffusion_guided(d) ? 2 : 1, layers = 2 * W * W * (D - 1);
    dpcr_denoiser all = {.user = d,
                         .width = d->options.width,
                         .dtype = DPCR_F32,
                         .prediction = d->options.prediction,
                         .flops = halves * (4 * w * W + layers),
                         .predict = predict,
                         .identity = identity_of(d)};
    if (d->in_transposed) {
        all.linearise = linearise;
        all.jacobian_flops = halves * w * (2 * w * W + layers);
    }
    dpcri_copy_out(denoiser, &all, sizeof all);
    return DPCR_OK;
}

dpcr_status dpcr_diffusion_pictures(dpcr_diffusion *d, int64_t n, const float *z, float *x, dpcr_error *error) {
    if (!d || n < 0 || (n && (!z || !x)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "diffusion_pictures: model, z or x is NULL");
    if (d->autoencoder) return dpcr_autoencoder_decode(d->autoencoder, n, z, x, error);
    for (int64_t i = 0; i < n * d->options.width; i++) {
        const float p = (z[i] + 1) / 2;
        x[i] = p < 0 ? 0 : p > 1 ? 1 : p;
    }
    return DPCR_OK;
}

// ---- files ----

dpcr_status dpcri_diffusion_put(const dpcr_diffusion *d, const float *values, dpcri_bundle *bundle, dpcr_error *error) {
    dpcr_status status;
    const dpcr_diffusion_options *o = &d->options;
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.rows", o->rows, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.cols", o->cols, error));
    if (o->channels > 1) DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.channels", o->channels, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.width", o->width, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.hidden", o->hidden, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.depth", o->depth, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.classes", o->classes, error));
    DPCR_TRY(dpcri_bundle_text(bundle, "deeppcr.denoiser.prediction", dpcr_prediction_name(o->prediction), error));
    DPCR_TRY(dpcri_bundle_text(bundle, "deeppcr.denoiser.schedule", dpcr_noise_name(o->noise.kind), error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.steps", o->noise.steps, error));
    DPCR_TRY(dpcri_bundle_real(bundle, "deeppcr.denoiser.beta_first", o->noise.beta_first, error));
    DPCR_TRY(dpcri_bundle_real(bundle, "deeppcr.denoiser.beta_last", o->noise.beta_last, error));
    DPCR_TRY(dpcri_bundle_int(bundle, "deeppcr.denoiser.latent", d->autoencoder != NULL, error));
    DPCR_TRY(dpcri_net_tensors(&d->net, values ? values : d->net.values, &bundle->tensors, error));
    if (d->autoencoder) DPCR_TRY(dpcri_autoencoder_put(d->autoencoder, NULL, bundle, error));
done:
    return status;
}

static dpcr_status read_names(const dpcr_tensors *tensors, const char *path, dpcr_diffusion_options *o,
                              dpcr_error *error) {
    dpcr_error own = {0};
    if (dpcr_prediction_find(dpcr_tensors_metadata(tensors, "deeppcr.denoiser.prediction"), &o->prediction, &own) !=
            DPCR_OK ||
        dpcr_noise_find(dpcr_tensors_metadata(tensors, "deeppcr.denoiser.schedule"), &o->noise.kind, &own) != DPCR_OK)
        return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: %s", path, own.text);
    return DPCR_OK;
}

dpcr_status dpcri_diffusion_get(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                dpcr_diffusion **model, dpcr_error *error) {
    dpcr_status status;
    dpcr_diffusion *d = NULL;
    dpcr_autoencoder *a = NULL;
    dpcr_diffusion_options o = {.size = sizeof o};
    dpcr_error own = {0};
    const int64_t most = DPCRI_MOST_WIDTH;
    int64_t latent = 0;
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.rows", 1, most, &o.rows, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.cols", 1, most / o.rows, &o.cols, error));
    if (dpcr_tensors_metadata(tensors, "deeppcr.denoiser.channels"))
        DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.channels", 1, most, &o.channels, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.width", 1, most, &o.width, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.hidden", 1, most, &o.hidden, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.depth", 1, DPCRI_MOST_DEPTH, &o.depth, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.classes", 0, 256, &o.classes, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.steps", 1, DPCRI_MOST_TIMES, &o.noise.steps, error));
    DPCR_TRY(dpcri_bundle_get_int(tensors, path, "deeppcr.denoiser.latent", 0, 1, &latent, error));
    DPCR_TRY(dpcri_bundle_get_real(tensors, path, "deeppcr.denoiser.beta_first", &o.noise.beta_first, error));
    DPCR_TRY(dpcri_bundle_get_real(tensors, path, "deeppcr.denoiser.beta_last", &o.noise.beta_last, error));
    DPCR_TRY(read_names(tensors, path, &o, error));
    if (latent) DPCR_TRY(dpcri_autoencoder_get(context, tensors, path, &a, error));
    status = make(context, &o, a, false, &d, &own);
    if (status == DPCR_ERROR_ARGUMENT)  // the file's fault
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: %s", path, own.text));
    if (status != DPCR_OK) DPCR_TRY(dpcri_fail(error, status, "%s", own.text));
    DPCR_TRY(dpcri_net_read(&d->net, tensors, path, error));
    dpcri_diffusion_refresh(d);
    *model = d;
    d = NULL;
done:
    dpcr_diffusion_destroy(d);
    return status;
}

dpcr_status dpcr_diffusion_load(dpcr_context *context, const char *path, dpcr_diffusion **model, dpcr_error *error) {
    dpcr_status status;
    dpcr_tensors tensors = {0};
    if (model) *model = NULL;
    if (!context || !path || !model)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "diffusion_load: context, path or model is NULL");
    DPCR_TRY(dpcri_bundle_read(context, path, &tensors, error));
    const char *kind = dpcr_tensors_metadata(&tensors, "deeppcr.kind");
    if (!kind || strcmp(kind, "denoiser") != 0)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "%s: no denoiser ('deeppcr.kind' is %.40s, wanted denoiser)",
                            path, kind ? kind : "missing"));
    DPCR_TRY(dpcri_diffusion_get(context, &tensors, path, model, error));
done:
    dpcr_tensors_free(context, &tensors);
    return status;
}

dpcr_status dpcr_diffusion_save(const dpcr_diffusion *d, const char *path, dpcr_error *error) {
    dpcr_status status;
    dpcri_bundle bundle = {0};
    if (!d || !path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "diffusion_save: model or path is NULL");
    DPCR_TRY(dpcri_bundle_create(&bundle, d->context, error));
    DPCR_TRY(dpcri_bundle_text(&bundle, "deeppcr.kind", "denoiser", error));
    DPCR_TRY(dpcri_diffusion_put(d, NULL, &bundle, error));
    DPCR_TRY(dpcr_safetensors_write_summed(path, &bundle.tensors, error));
done:
    dpcri_bundle_destroy(&bundle);
    return status;
}
