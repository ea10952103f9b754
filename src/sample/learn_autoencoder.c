// SPDX-License-Identifier: MIT
// An auto-encoder's loss and its gradients. Per picture x in 0..1, mean mu, log variance v, code z = mu + exp(v/2) xi:
//   loss = -sum x log y + (1 - x) log(1 - y)  +  weight/2 sum (mu^2 + exp(v) - 1 - v),   y = sigmoid(u)
//   dl/du = y - x;   dl/dmu = dl/dz + weight mu;   dl/dv = dl/dz xi exp(v/2)/2 + weight/2 (exp(v) - 1)
// The batch's loss is the mean over its pictures. Source: Kingma, Welling, arXiv 1312.6114.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sample/learn.h"
#include "sample/normals.h"

#define GATHERED "gathered"

typedef struct vae_learning {
    dpcr_autoencoder *a;
    const dpcr_dataset *data;
    uint64_t seed;
    double weight;
    int64_t rows, layers;
    float *x;                        // [rows][pixels]
    float *planes, *sums;            // [pixels a row]; scratch of convolutions' gradients
    float *y[DPCRI_NET_LAYERS];      // [rows][out] of each layer
    float *slope[DPCRI_NET_LAYERS];  // [rows][out]
    float *z, *xi, *g[2];            // [rows][latent], [rows][latent], [rows][widest]
    double *losses;                  // [rows]
    const dpcri_batch *batch;
    const dpcri_conv_library *library;       // NULL: gathered
    dpcri_conv_run *runs[DPCRI_NET_LAYERS];  // its layers, or NULL
    dpcr_tensors file, *resumed;             // the checkpoint, where the choice of these asked it; else NULL
} vae_learning;

static dpcr_status take(vae_learning *l, int64_t width, float **place, dpcr_error *error) {
    // whole pieces, for a library's convolutions
    const int64_t rows = (l->rows + DPCRI_CONV_PICTURES - 1) / DPCRI_CONV_PICTURES * DPCRI_CONV_PICTURES;
    *place = dpcri_alloc_zero(l->a->context, (size_t)(rows * width) * sizeof(float));
    return *place ? DPCR_OK
                  : dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for %lld rows", (long long)l->rows);
}

static void read_row(void *argument, int64_t i) {
    vae_learning *l = argument;
    const int64_t pixels = l->a->pixels, latent = l->a->options.latent;
    const uint8_t *from = l->data->images + l->batch->order[i] * pixels;
    float *planes = l->planes + i * pixels;
    for (int64_t p = 0; p < pixels; p++) planes[p] = (float)from[p] / 255;
    dpcri_autoencoder_inner(l->a, planes, l->x + i * pixels);
    dpcri_normals_f32(l->seed, DPCRI_STREAM_DENOISER | DPCRI_LEARN_CODE, (uint64_t)(l->batch->step * l->rows + i),
                      latent, l->xi + i * latent);
}

// z, and for the way back: y of the encoder's last layer holds (mu, v).
static void draw_code(vae_learning *l) {
    const int64_t latent = l->a->options.latent;
    const float *code = l->y[l->a->encoder - 1];
    for (int64_t i = 0; i < l->rows; i++)
        for (int64_t k = 0; k < latent; k++)
            l->z[i * latent + k] =
                code[i * 2 * latent + k] + expf(0.5f * code[(i * 2 + 1) * latent + k]) * l->xi[i * latent + k];
}

// The loss of picture i; g of the last layer's u.
static void judge_row(void *argument, int64_t i) {
    vae_learning *l = argument;
    const int64_t pixels = l->a->pixels, latent = l->a->options.latent;
    const float *y = l->y[l->layers - 1] + i * pixels, *x = l->x + i * pixels;
    const float *code = l->y[l->a->encoder - 1] + i * 2 * latent;
    float *g = l->g[0] + i * pixels;
    const float least = 1e-7f, most = 1 - 1e-7f;
    double loss = 0;
    for (int64_t p = 0; p < pixels; p++) {
        const float inside = y[p] < least ? least : y[p] > most ? most : y[p];  // NaN stays NaN, and shows in the loss
        loss -= (double)(x[p] * logf(inside) + (1 - x[p]) * logf(1 - inside));
        g[p] = (y[p] - x[p]) / (float)l->rows;
    }
    for (int64_t k = 0; k < latent; k++) {
        const double mu = code[k], v = code[latent + k];
        loss += 0.5 * l->weight * (mu * mu + exp(v) - 1 - v);
    }
    l->losses[i] = loss;
}

// g of the code [rows][latent] to g of the encoder's output [rows][2 latent].
static void back_code(vae_learning *l, const float *dz, float *g) {
    const int64_t latent = l->a->options.latent;
    const float *code = l->y[l->a->encoder - 1], weight = (float)(l->weight / (double)l->rows);
    for (int64_t i = 0; i < l->rows; i++)
        for (int64_t k = 0; k < latent; k++) {
            const float mu = code[i * 2 * latent + k], v = code[(i * 2 + 1) * latent + k], d = dz[i * latent + k];
            g[i * 2 * latent + k] = d + weight * mu;
            g[(i * 2 + 1) * latent + k] =
                d * l->xi[i * latent + k] * expf(0.5f * v) * 0.5f + 0.5f * weight * (expf(v) - 1);
        }
}

static dpcr_status forward(vae_learning *l, int i, const float *x, dpcr_error *error) {
    if (l->runs[i]) return l->library->forward(l->runs[i], x, l->y[i], l->slope[i], error);
    dpcri_conv_forward(&l->a->net, i, l->rows, x, l->a->scratch, l->y[i], l->slope[i]);
    return DPCR_OK;
}

static dpcr_status backward(vae_learning *l, int i, const float *x, const float *dy, float *dx, dpcr_error *error) {
    if (l->runs[i]) return l->library->backward(l->runs[i], x, l->slope[i], dy, dx, error);
    dpcri_conv_backward(&l->a->net, i, l->rows, x, l->slope[i], dy, dx, l->a->scratch, l->sums);
    return DPCR_OK;
}

static dpcr_status gradients(void *user, const dpcri_batch *batch, double *loss, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    vae_learning *l = user;
    dpcri_net *net = &l->a->net;
    int at = 0;
    l->batch = batch;
    dpcri_parallel(net->context, l->rows, read_row, l);
    for (int i = 0; i < l->layers; i++) {
        if (i == l->a->encoder) draw_code(l);
        DPCR_TRY(forward(l, i, i == 0 ? l->x : i == l->a->encoder ? l->z : l->y[i - 1], error));
    }
    dpcri_parallel(net->context, l->rows, judge_row, l);
    for (int64_t i = 0; i < l->rows; i++) *loss += l->losses[i];
    *loss /= (double)l->rows;
    for (int i = (int)l->layers - 1; i >= 0; i--) {
        const float *x = i == 0 ? l->x : i == l->a->encoder ? l->z : l->y[i - 1];
        float *slope = l->slope[i];
        // of the last layer's u the gradient is known: its slope is part of it
        for (int64_t k = 0; i == l->layers - 1 && k < l->rows * l->a->pixels; k++) slope[k] = 1;
        DPCR_TRY(backward(l, i, x, l->g[at], i ? l->g[1 - at] : NULL, error));
        at = 1 - at;
        if (i != l->a->encoder) continue;
        back_code(l, l->g[at], l->g[1 - at]);
        at = 1 - at;
    }
done:
    return status;
}

// ---- whose convolutions ----

// What a checkpoint was trained with; of before there was a choice: gathered ones.
static dpcr_status name_in(vae_learning *l, const char *path, bool *gathered, bool *same, char *text, size_t bytes,
                           dpcr_error *error) {
    l->resumed = &l->file;
    const dpcr_status status = dpcri_bundle_read(l->a->context, path, l->resumed, error);
    const char *found = dpcr_tensors_metadata(l->resumed, DPCRI_LEARN_CONVOLUTIONS);
    *gathered = !found || !strcmp(found, GATHERED);
    *same = found && l->library && !strcmp(found, l->library->name);
    snprintf(text, bytes, "%.60s", found ? found : GATHERED);
    return status;
}

static dpcr_status choose_convolutions(vae_learning *l, const dpcr_learn_options *o, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t pictures = DPCRI_CONV_PICTURES, whole = (l->rows + pictures - 1) / pictures * pictures;
    char text[64];
    bool gathered = 3 * l->rows < 2 * whole, same = false;
    if (!l->a->options.convolutional || o->convolution == DPCR_CONVOLUTION_GATHERED) return DPCR_OK;
    l->library = dpcri_conv_library_find();
    if (o->convolution == DPCR_CONVOLUTION_ONEDNN) {
        if (l->library) return DPCR_OK;
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "learn: convolutions by onednn: this build or machine has none (libdnnl of version 2, at "
                          "least AVX2); wanted gathered");
    }
    if (o->resume) {
        DPCR_TRY(name_in(l, o->resume, &gathered, &same, text, sizeof text, error));
        if (!gathered && !same)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                                "learn: resume from %s: its convolutions were by %s, here there are gathered ones%s%s; "
                                "name which to go on with, and other roundings",
                                o->resume, text, l->library ? " and " : "", l->library ? l->library->name : ""));
    }
    if (gathered) l->library = NULL;
done:
    return status;
}

static dpcr_status make_convolutions(vae_learning *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int i = 0; l->library && i < l->layers; i++)
        if (l->a->net.layers[i].gather) DPCR_TRY(l->library->create(&l->a->net, i, l->rows, &l->runs[i], error));
done:
    return status;
}

static dpcr_status put(void *user, const float *values, dpcri_bundle *bundle, dpcr_error *error) {
    return dpcri_autoencoder_put(((vae_learning *)user)->a, values, bundle, error);
}

// Mean and deviation of the codes' means over the first pictures.
static void measure_codes(void *user) {
    vae_learning *l = user;
    dpcr_autoencoder *a = l->a;
    const int64_t latent = a->options.latent, most = l->data->count < 20000 ? l->data->count : 20000;
    double *sums = l->losses;  // room enough: see the caller
    memset(sums, 0, (size_t)(2 * latent) * sizeof *sums);
    for (int64_t k = 0; k < latent; k++) a->mean[k] = 0, a->deviation[k] = 1;
    for (int64_t first = 0; first < most; first += l->rows) {
        const int64_t rows = most - first < l->rows ? most - first : l->rows;
        for (int64_t i = 0; i < rows * a->pixels; i++)
            l->planes[i] = (float)l->data->images[first * a->pixels + i] / 255;
        dpcr_autoencoder_encode(a, rows, l->planes, l->z, NULL);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < latent; k++) {
                const double z = l->z[i * latent + k];
                sums[k] += z;
                sums[latent + k] += z * z;
            }
    }
    for (int64_t k = 0; k < latent; k++) {
        const double mean = sums[k] / (double)most, variance = sums[latent + k] / (double)most - mean * mean;
        a->mean[k] = (float)mean;
        a->deviation[k] = variance > 1e-12 ? (float)sqrt(variance) : 1;
    }
}

dpcr_status dpcr_autoencoder_train(dpcr_autoencoder *a, const dpcr_dataset *data, const dpcr_learn_options *options,
                                   dpcr_learn_state *last, dpcr_error *error) {
    dpcr_status status;
    if (last) *last = (dpcr_learn_state){0};
    if (!a || !data || !options) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "learn: model, data or options is NULL");
    status = dpcri_learn_check(data, options, a->options.rows, a->options.cols, a->pixels, error);
    if (status != DPCR_OK) return status;
    if ((unsigned)options->convolution > DPCR_CONVOLUTION_ONEDNN)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "learn: convolution is %d, wanted a named one",
                          (int)options->convolution);
    vae_learning l = {.a = a,
                      .data = data,
                      .seed = options->seed,
                      .weight = dpcri_learn_weight(options),
                      .rows = options->batch > 0 && options->batch <= data->count ? options->batch : 1,
                      .layers = a->net.count};
    dpcri_subject subject = {
        .kind = "vae", .net = &a->net, .user = &l, .gradients = gradients, .put = put, .finish = measure_codes};
    const int64_t latent = a->options.latent;
    int64_t most = 0;
    for (int i = 0; i < l.layers; i++) {
        const int64_t own = (a->net.layers[i].in + 1) * a->net.layers[i].out;
        most = a->net.layers[i].gather && own > most ? own : most;
    }
    l.sums = dpcri_alloc_zero(a->context, (size_t)(most + 1) * sizeof *l.sums);
    if (!l.sums) return dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for gradients");
    DPCR_TRY(choose_convolutions(&l, options, error));
    if (a->options.convolutional) subject.convolutions = l.library ? l.library->name : GATHERED;
    subject.resumed = l.resumed;
    DPCR_TRY(dpcri_net_train(&a->net, l.rows, error));
    DPCR_TRY(make_convolutions(&l, error));
    DPCR_TRY(take(&l, a->pixels, &l.x, error));
    DPCR_TRY(take(&l, a->pixels, &l.planes, error));
    DPCR_TRY(take(&l, latent, &l.z, error));
    DPCR_TRY(take(&l, latent, &l.xi, error));
    for (int i = 0; i < 2; i++) DPCR_TRY(take(&l, a->widest, &l.g[i], error));
    for (int i = 0; i < l.layers; i++) {
        DPCR_TRY(take(&l, dpcri_layer_numbers(&a->net.layers[i]), &l.y[i], error));
        DPCR_TRY(take(&l, dpcri_layer_numbers(&a->net.layers[i]), &l.slope[i], error));
    }
    l.losses = dpcri_alloc_zero(a->context, (size_t)(l.rows + 2 * latent) * sizeof *l.losses);
    if (!l.losses) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "learn: no memory for the losses"));
    DPCR_TRY(dpcri_learn(&subject, data, options, last, error));
done:
    for (int i = 0; i < l.layers; i++)
        if (l.runs[i]) l.library->destroy(l.runs[i]);
    dpcr_tensors_free(a->context, &l.file);
    dpcri_free(a->context, l.losses);
    for (int i = 0; i < l.layers; i++) dpcri_free(a->context, l.y[i]), dpcri_free(a->context, l.slope[i]);
    for (int i = 0; i < 2; i++) dpcri_free(a->context, l.g[i]);
    dpcri_free(a->context, l.xi);
    dpcri_free(a->context, l.z);
    dpcri_free(a->context, l.x);
    dpcri_free(a->context, l.planes);
    dpcri_free(a->context, l.sums);
    return status;
}
