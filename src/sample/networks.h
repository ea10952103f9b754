// SPDX-License-Identifier: MIT
// The inside of auto-encoders and denoisers: nets, tables, work memory, files.
#ifndef DPCRI_NETWORKS_H
#define DPCRI_NETWORKS_H

#include "sample/convolution.h"
#include "sample/sample.h"

enum { DPCRI_TIME_WIDTH = 128, DPCRI_NET_ROWS = 256, DPCRI_MOST_WIDTH = 1 << 14, DPCRI_MOST_DEPTH = 16 };

struct dpcr_autoencoder {
    dpcr_context *context;
    dpcr_autoencoder_options options;
    int64_t pixels, channels;
    dpcri_net net;            // encoder's layers, then the decoder's
    int encoder;              // layers
    float *mean, *deviation;  // [latent]: of the codes of the training pictures
    float *work[2];           // [DPCRI_NET_ROWS][widest]
    float *scratch;           // of convolutions, twice
    int64_t widest;
};

// Numbers that a layer gives of a picture.
static inline int64_t dpcri_layer_numbers(const dpcri_dense *d) {
    return d->gather ? d->gather->out_places * d->out : d->out;
}
// A picture's planes to what the layers take: of convolutions, all channels of a place together. And back.
void dpcri_autoencoder_inner(const dpcr_autoencoder *a, const float *planes, float *inner);
void dpcri_autoencoder_outer(const dpcr_autoencoder *a, const float *inner, float *planes);

struct dpcr_diffusion {
    dpcr_context *context;
    dpcr_diffusion_options options;  // every default filled in
    dpcr_autoencoder *autoencoder;
    dpcri_net net;         // time.0, time.1, shift, [class,] in, hidden.1 ..., out
    int first;             // the layer "in"
    int64_t shifts;        // depth hidden
    float *shift;          // [T][shifts]: s(t) of every trained time
    float *class_shift;    // [classes + 1][shifts], the last for none
    float *in_transposed;  // [width][hidden], for Jacobians
    // the condition
    int32_t *labels;
    int64_t batch;
    double guidance;
    // work memory
    float *s;                // [rows][shifts]
    float *h[2], *slope;     // [rows][hidden]
    dpcri_stack *stack;      // of few rows
    float *plain, *plain_j;  // what the class-free half of a guided row says
};

// s(t) for `rows` times, class apart. scratch: [3][rows][DPCRI_TIME_WIDTH]
void dpcri_diffusion_time(const dpcr_diffusion *model, int64_t rows, const double *times, float *scratch, float *s);
// sinusoids(t) [DPCRI_TIME_WIDTH]
void dpcri_sinusoids(double time, float *out);
// s(t) of one time, the table's or made, class apart.
void dpcri_diffusion_shift(const dpcr_diffusion *model, double time, float *s);
// The model whose denoiser this is; NULL: another's.
dpcr_diffusion *dpcri_diffusion_of(const dpcr_denoiser *denoiser);
bool dpcri_diffusion_guided(const dpcr_diffusion *model);
// After every change of the numbers: packed weights and tables.
void dpcri_diffusion_refresh(dpcr_diffusion *model);

// ---- files: tensors and strings, to which a training run adds its own ----

typedef struct dpcri_bundle {
    dpcr_context *context;
    dpcr_tensors tensors;  // arrays are views, names and strings owned
    int64_t capacity, strings;
} dpcri_bundle;

dpcr_status dpcri_bundle_create(dpcri_bundle *bundle, dpcr_context *context, dpcr_error *error);
void dpcri_bundle_destroy(dpcri_bundle *bundle);
dpcr_status dpcri_bundle_array(dpcri_bundle *bundle, const char *name, dpcr_dtype dtype, int64_t count,
                               const void *data, dpcr_error *error);
dpcr_status dpcri_bundle_text(dpcri_bundle *bundle, const char *key, const char *value, dpcr_error *error);
dpcr_status dpcri_bundle_int(dpcri_bundle *bundle, const char *key, int64_t value, dpcr_error *error);
dpcr_status dpcri_bundle_real(dpcri_bundle *bundle, const char *key, double value, dpcr_error *error);
// What dpcr_safetensors_write_summed wrote of a bundle; DPCR_ERROR_FORMAT where the sum is not the file's, of tensors
// that none of ours has too. The caller frees the tensors, after a failure too.
dpcr_status dpcri_bundle_read(dpcr_context *context, const char *path, dpcr_tensors *tensors, dpcr_error *error);

// Strings of a file that was read; what lacks or is no such number: DPCR_ERROR_FORMAT.
dpcr_status dpcri_bundle_get_int(const dpcr_tensors *tensors, const char *path, const char *key, int64_t low,
                                 int64_t high, int64_t *value, dpcr_error *error);
dpcr_status dpcri_bundle_get_real(const dpcr_tensors *tensors, const char *path, const char *key, double *value,
                                  dpcr_error *error);
const dpcr_tensor *dpcri_bundle_find(const dpcr_tensors *tensors, const char *name, int64_t count);

// The parts of a model, with `values` in place of its own numbers (NULL: its own).
dpcr_status dpcri_autoencoder_put(const dpcr_autoencoder *a, const float *values, dpcri_bundle *bundle,
                                  dpcr_error *error);
dpcr_status dpcri_diffusion_put(const dpcr_diffusion *model, const float *values, dpcri_bundle *bundle,
                                dpcr_error *error);
dpcr_status dpcri_autoencoder_get(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                  dpcr_autoencoder **autoencoder, dpcr_error *error);
dpcr_status dpcri_diffusion_get(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                dpcr_diffusion **model, dpcr_error *error);

#endif
