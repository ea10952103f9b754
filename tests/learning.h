// SPDX-License-Identifier: MIT
// What the tests of networks of diffusion share: options, gradients against differences of the loss.
#ifndef LEARNING_H
#define LEARNING_H

#include "sample/learn.h"
#include "sampling.h"
#include "training.h"

// Numbers everywhere, the last layer's too: so that no gradient is 0.
static inline void stir(dpcri_net *net) {
    for (int64_t i = 0; i < net->parameters; i++) net->values[i] += 0.1f * sinf(1.7f * (float)i);
    dpcri_net_pack(net);
}

static inline dpcr_learn_options learn_options(int64_t epochs, int64_t batch) {
    return (dpcr_learn_options){.size = sizeof(dpcr_learn_options),
                                .epochs = epochs,
                                .batch = batch,
                                .seed = 4,
                                .optimiser = {.kind = DPCR_ADAMW, .rate = 3e-3, .total = -1}};
}

// ---- gradients: one step of plain descent at a rate shows them ----

typedef struct descent {
    dpcri_net *net;
    int (*train)(void *model, const dpcr_dataset *data, const dpcr_learn_options *options, double *loss);
    void *model;
    const dpcr_dataset *data;
    dpcr_convolution convolution;
} descent;

static inline int train_denoiser(void *model, const dpcr_dataset *data, const dpcr_learn_options *options,
                                 double *loss) {
    dpcr_learn_state last;
    const dpcr_status status = dpcr_diffusion_train(model, data, options, &last, NULL);
    *loss = last.loss;
    return status == DPCR_OK;
}

static inline int train_vae(void *model, const dpcr_dataset *data, const dpcr_learn_options *options, double *loss) {
    dpcr_learn_state last;
    const dpcr_status status = dpcr_autoencoder_train(model, data, options, &last, NULL);
    *loss = last.loss;
    return status == DPCR_OK;
}

// The loss of the one batch at the values given; a rate of 0 leaves them.
static inline double loss_at(const descent *d, const float *values) {
    dpcr_learn_options options = learn_options(1, d->data->count);
    double loss = 0;
    options.convolution = d->convolution;
    options.optimiser = (dpcr_optimiser_options){.kind = DPCR_SGD, .rate = 0};
    memcpy(d->net->values, values, (size_t)d->net->parameters * sizeof *values);
    dpcri_net_pack(d->net);
    assert_true(d->train(d->model, d->data, &options, &loss));
    return loss;
}

static inline void check_gradients(const descent *d) {
    const int64_t n = d->net->parameters;
    float *values = malloc((size_t)n * sizeof *values), *moved = malloc((size_t)n * sizeof *moved);
    float *gradient = malloc((size_t)n * sizeof *gradient);
    memcpy(values, d->net->values, (size_t)n * sizeof *values);
    loss_at(d, values);
    memcpy(gradient, d->net->gradients, (size_t)n * sizeof *gradient);
    for (int layer = 0; layer < d->net->count; layer++) {  // along the gradient of each layer
        const dpcri_dense *part = &d->net->layers[layer];
        double square = 0;
        for (int64_t i = part->weight; i < part->weight + (part->in + 1) * part->out; i++)
            square += (double)gradient[i] * gradient[i];
        assert_true(square > 1e-12);
        const double step = 2e-2 / sqrt(square);
        double loss[2];
        for (int side = 0; side < 2; side++) {
            memcpy(moved, values, (size_t)n * sizeof *values);
            for (int64_t i = part->weight; i < part->weight + (part->in + 1) * part->out; i++)
                moved[i] += (float)((side ? step : -step) * gradient[i]);
            loss[side] = loss_at(d, moved);
        }
        const double slope = (loss[1] - loss[0]) / (2 * step);
        if (!(fabs(slope - square) < 0.02 * square))
            fail_msg("layer %s: along its gradient %g, wanted %g", part->name, slope, square);
    }
    free(values), free(moved), free(gradient);
}

#endif
