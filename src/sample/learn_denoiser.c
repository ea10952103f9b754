// SPDX-License-Identifier: MIT
// A denoiser's loss and its gradients: for every picture a random time t and noise e,
//   x = alpha_t x0 + sigma_t e;   loss = mean over rows and components of (m(x, t, y) - target)^2
// target e, x0 or alpha e - sigma x0 by the prediction; some pictures without their class, for guidance.
// Back through  h = silu(W_in x + s_1), h += silu(W_l h + s_l):  the shifts' gradients are the du of every layer.
#include <math.h>
#include <string.h>

#include "sample/learn.h"
#include "sample/normals.h"

typedef struct denoiser_learning {
    dpcr_diffusion *d;
    const dpcr_dataset *data;
    uint64_t seed;
    double drop;
    int64_t rows;
    float *codes;           // [count][width]: of all pictures, with an auto-encoder; else NULL
    double *abar;           // [T]
    double *times;          // [rows]
    int32_t *labels;        // [rows], -1 none
    float *x, *target, *m;  // [rows][width]
    float *sinusoids, *time[2], *time_slope[2], *g_time[2];    // [rows][DPCRI_TIME_WIDTH]
    float *s, *ds;                                             // [rows][shifts]
    float *h[DPCRI_MOST_DEPTH], *slope[DPCRI_MOST_DEPTH], *g;  // [rows][hidden]
    float *ones;     // [rows][shifts] slope of layers without activation, used up as du
    double *losses;  // [rows]
    const dpcri_batch *batch;
} denoiser_learning;

static dpcr_status take(denoiser_learning *l, int64_t rows, int64_t width, float **place, dpcr_error *error) {
    bool overflow = false;
    const size_t bytes = dpcri_bytes(rows, width, sizeof(float), &overflow);
    *place = overflow ? NULL : dpcri_alloc_zero(l->d->context, bytes);
    if (*place) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for %lld x %lld numbers", (long long)rows,
                      (long long)width);
}

// Picture, time, noise and target of row i.
static void draw_row(void *argument, int64_t i) {
    denoiser_learning *l = argument;
    const dpcr_diffusion_options *o = &l->d->options;
    const int64_t w = o->width, picture = l->batch->order[i];
    const uint64_t row = (uint64_t)(l->batch->step * l->rows + i);
    const uint64_t t =
        dpcri_random_below(l->seed, DPCRI_STREAM_DENOISER | DPCRI_LEARN_TIME, row, (uint64_t)o->noise.steps);
    const float alpha = (float)sqrt(l->abar[t]), sigma = (float)sqrt(1 - l->abar[t]);
    const bool dropped = dpcri_random_uniform(l->seed, DPCRI_STREAM_DENOISER | DPCRI_LEARN_DROP, row) < l->drop;
    float *x = l->x + i * w, *target = l->target + i * w;
    dpcri_normals_f32(l->seed, DPCRI_STREAM_DENOISER | DPCRI_LEARN_NOISE, row, w, x);
    for (int64_t k = 0; k < w; k++) {
        const float x0 = l->codes ? l->codes[picture * w + k] : (float)l->data->images[picture * w + k] / 127.5f - 1;
        const float e = x[k];
        x[k] = alpha * x0 + sigma * e;
        target[k] = o->prediction == DPCR_PREDICT_X0  ? x0
                    : o->prediction == DPCR_PREDICT_V ? alpha * e - sigma * x0
                                                      : e;
    }
    l->times[i] = (double)t;
    l->labels[i] = dropped ? -1 : (int32_t)l->data->labels[picture];
    dpcri_sinusoids((double)t, l->sinusoids + i * DPCRI_TIME_WIDTH);
}

static void forward(denoiser_learning *l) {
    dpcr_diffusion *d = l->d;
    const dpcri_net *net = &d->net;
    const int64_t W = d->options.hidden, D = d->options.depth, classes = d->options.classes;
    dpcri_dense_forward(net, 0, l->rows, l->sinusoids, NULL, 0, l->time[0], l->time_slope[0]);
    dpcri_dense_forward(net, 1, l->rows, l->time[0], NULL, 0, l->time[1], l->time_slope[1]);
    dpcri_dense_forward(net, 2, l->rows, l->time[1], NULL, 0, l->s, NULL);
    for (int64_t i = 0; classes && i < l->rows; i++) {
        const float *column = net->values + net->layers[3].weight + (l->labels[i] < 0 ? classes : l->labels[i]);
        for (int64_t q = 0; q < d->shifts; q++) l->s[i * d->shifts + q] += column[q * (classes + 1)];
    }
    const float *h = l->x;
    for (int64_t k = 0; k < D; k++) {
        dpcri_dense_forward(net, d->first + (int)k, l->rows, h, l->s + k * W, d->shifts, l->h[k], l->slope[k]);
        h = l->h[k];
    }
    dpcri_dense_forward(net, d->first + (int)D, l->rows, h, NULL, 0, l->m, NULL);
}

// m becomes the gradient of the loss.
static void judge_row(void *argument, int64_t i) {
    denoiser_learning *l = argument;
    const int64_t w = l->d->options.width;
    const float scale = (float)(2 / ((double)l->rows * (double)w));
    double loss = 0;
    for (int64_t k = i * w; k < (i + 1) * w; k++) {
        const float r = l->m[k] - l->target[k];
        loss += (double)r * r;
        l->m[k] = scale * r;
    }
    l->losses[i] = loss / (double)w;
}

static float *ones(denoiser_learning *l, int64_t width) {
    for (int64_t i = 0; i < l->rows * width; i++) l->ones[i] = 1;
    return l->ones;
}

// The class table's gradient: the shifts' gradients of the rows that have it, rows in order. W lies [shifts][classes +
// 1].
static void back_classes(denoiser_learning *l) {
    const dpcr_diffusion *d = l->d;
    const int64_t classes = d->options.classes, columns = classes + 1;
    const dpcri_dense *table = &d->net.layers[3];
    float *gradient = d->net.gradients + table->weight;
    memset(gradient, 0, (size_t)((columns + 1) * d->shifts) * sizeof *gradient);  // its bias is never used
    for (int64_t i = 0; i < l->rows; i++) {
        const int64_t c = l->labels[i] < 0 ? classes : l->labels[i];
        for (int64_t q = 0; q < d->shifts; q++) gradient[q * columns + c] += l->ds[i * d->shifts + q];
    }
}

static void backward(denoiser_learning *l) {
    dpcr_diffusion *d = l->d;
    const dpcri_net *net = &d->net;
    const int64_t W = d->options.hidden, D = d->options.depth;
    dpcri_dense_backward(net, d->first + (int)D, l->rows, l->h[D - 1], ones(l, d->options.width), l->m, l->g);
    for (int64_t k = D - 1; k >= 0; k--) {
        dpcri_dense_backward(net, d->first + (int)k, l->rows, k ? l->h[k - 1] : l->x, l->slope[k], l->g,
                             k ? l->g : NULL);
        for (int64_t i = 0; i < l->rows; i++)
            memcpy(l->ds + i * d->shifts + k * W, l->slope[k] + i * W, (size_t)W * sizeof(float));
    }
    // The shift takes the layers' bias: what forward gives as init stands in its place.
    for (int64_t k = 0; k < D; k++) {
        const dpcri_dense *layer = &net->layers[d->first + k];
        memset(net->gradients + layer->weight + layer->in * layer->out, 0, (size_t)layer->out * sizeof(float));
    }
    if (d->options.classes) back_classes(l);
    dpcri_dense_backward(net, 2, l->rows, l->time[1], ones(l, d->shifts), l->ds, l->g_time[0]);
    dpcri_dense_backward(net, 1, l->rows, l->time[0], l->time_slope[1], l->g_time[0], l->g_time[1]);
    dpcri_dense_backward(net, 0, l->rows, l->sinusoids, l->time_slope[0], l->g_time[1], NULL);
}

static dpcr_status gradients(void *user, const dpcri_batch *batch, double *loss, dpcr_error *error) {
    denoiser_learning *l = user;
    (void)error;
    l->batch = batch;
    dpcri_parallel(l->d->context, l->rows, draw_row, l);
    forward(l);
    dpcri_parallel(l->d->context, l->rows, judge_row, l);
    for (int64_t i = 0; i < l->rows; i++) *loss += l->losses[i];
    *loss /= (double)l->rows;
    backward(l);
    return DPCR_OK;
}

static dpcr_status put(void *user, const float *values, dpcri_bundle *bundle, dpcr_error *error) {
    return dpcri_diffusion_put(((denoiser_learning *)user)->d, values, bundle, error);
}

static dpcr_status encode_all(denoiser_learning *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_autoencoder *a = l->d->autoencoder;
    float *x = NULL;
    enum { ROWS = DPCRI_NET_ROWS };
    if (!a) return DPCR_OK;
    DPCR_TRY(take(l, l->data->count, a->options.latent, &l->codes, error));
    DPCR_TRY(take(l, ROWS, a->pixels, &x, error));
    for (int64_t i = 0; i < l->data->count; i += ROWS) {
        const int64_t rows = l->data->count - i < ROWS ? l->data->count - i : ROWS;
        for (int64_t p = 0; p < rows * a->pixels; p++) x[p] = (float)l->data->images[i * a->pixels + p] / 255;
        DPCR_TRY(dpcr_autoencoder_encode(a, rows, x, l->codes + i * a->options.latent, error));
    }
done:
    dpcri_free(l->d->context, x);
    return status;
}

static dpcr_status take_all(denoiser_learning *l, dpcr_error *error) {
    dpcr_status status;
    const dpcr_diffusion_options *o = &l->d->options;
    const int64_t rows = l->rows, shifts = l->d->shifts, most = shifts > o->width ? shifts : o->width;
    float **const wide[] = {&l->x, &l->target, &l->m};
    float **const timed[] = {&l->sinusoids,     &l->time[0],   &l->time[1],  &l->time_slope[0],
                             &l->time_slope[1], &l->g_time[0], &l->g_time[1]};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) DPCR_TRY(take(l, rows, o->width, wide[i], error));
    for (size_t i = 0; i < sizeof timed / sizeof *timed; i++)
        DPCR_TRY(take(l, rows, DPCRI_TIME_WIDTH, timed[i], error));
    DPCR_TRY(take(l, rows, shifts, &l->s, error));
    DPCR_TRY(take(l, rows, shifts, &l->ds, error));
    DPCR_TRY(take(l, rows, most, &l->ones, error));
    DPCR_TRY(take(l, rows, o->hidden, &l->g, error));
    for (int64_t k = 0; k < o->depth; k++) {
        DPCR_TRY(take(l, rows, o->hidden, &l->h[k], error));
        DPCR_TRY(take(l, rows, o->hidden, &l->slope[k], error));
    }
    l->abar = dpcri_alloc(l->d->context, (size_t)o->noise.steps * sizeof *l->abar);
    l->times = dpcri_alloc(l->d->context, (size_t)rows * sizeof *l->times);
    l->losses = dpcri_alloc(l->d->context, (size_t)rows * sizeof *l->losses);
    l->labels = dpcri_alloc(l->d->context, (size_t)rows * sizeof *l->labels);
    if (!l->abar || !l->times || !l->losses || !l->labels)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for a batch of %lld", (long long)rows));
done:
    return status;
}

static void free_all(denoiser_learning *l) {
    dpcr_context *context = l->d->context;
    void *const owned[] = {
        l->codes,   l->abar,    l->times,         l->labels,        l->x,         l->target,    l->m, l->sinusoids,
        l->time[0], l->time[1], l->time_slope[0], l->time_slope[1], l->g_time[0], l->g_time[1], l->s, l->ds,
        l->g,       l->ones,    l->losses};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) dpcri_free(context, owned[i]);
    for (int k = 0; k < DPCRI_MOST_DEPTH; k++) dpcri_free(context, l->h[k]), dpcri_free(context, l->slope[k]);
}

static dpcr_status check(const dpcr_diffusion *d, const dpcr_dataset *data, const dpcr_learn_options *options,
                         dpcr_error *error) {
    const int64_t pixels = dpcr_diffusion_pixels(&d->options);
    const dpcr_status status = dpcri_learn_check(data, options, d->options.rows, d->options.cols, pixels, error);
    if (status != DPCR_OK) return status;
    for (int64_t i = 0; d->options.classes && i < data->count; i++)
        if (data->labels[i] >= d->options.classes)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "learn: label %lld is %d, wanted less than %lld",
                              (long long)i, (int)data->labels[i], (long long)d->options.classes);
    return DPCR_OK;
}

dpcr_status dpcr_diffusion_train(dpcr_diffusion *d, const dpcr_dataset *data, const dpcr_learn_options *options,
                                 dpcr_learn_state *last, dpcr_error *error) {
    dpcr_status status;
    if (last) *last = (dpcr_learn_state){0};
    if (!d || !data || !options) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "learn: model, data or options is NULL");
    status = check(d, data, options, error);
    if (status != DPCR_OK) return status;
    denoiser_learning l = {.d = d,
                           .data = data,
                           .seed = options->seed,
                           .drop = dpcri_learn_drop(options),
                           .rows = options->batch > 0 && options->batch <= data->count ? options->batch : 1};
    const dpcri_subject subject = {.kind = "denoiser", .net = &d->net, .user = &l, .gradients = gradients, .put = put};
    DPCR_TRY(dpcri_net_train(&d->net, l.rows, error));
    DPCR_TRY(take_all(&l, error));
    dpcri_noise_fill(&d->options.noise, NULL, l.abar);
    DPCR_TRY(encode_all(&l, error));
    status = dpcri_learn(&subject, data, options, last, error);
    dpcri_diffusion_refresh(d);  // stopped or not, the numbers have changed
done:
    free_all(&l);
    return status;
}
