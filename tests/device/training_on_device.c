// SPDX-License-Identifier: MIT
// An optimiser's updates, gradients clipped by their norm and those of tied steps on a device, against the host's: to
// the bit.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "on_device.h"

static void same(const moved *m, const void *wanted, const char *what) {
    from_device(m->got, m->device.data, m->bytes);
    if (memcmp(m->got, wanted, m->bytes) != 0) fail_msg("%s: other bits than the host's", what);
}

static void update(const dpcr_optimiser_options *options, dpcr_dtype dtype, int64_t count) {
    moved p = make_moved(dtype, 1, &count, 1, 1), g = make_moved(dtype, 1, &count, 2, 1),
          m = make_moved(dtype, 1, &count, 3, 0), v = make_moved(dtype, 1, &count, 4, 0);
    dpcr_optimiser *here_too = NULL, *moving = NULL;
    dpcr_array first, second;
    dpcr_error error = {0};
    ok(dpcr_optimiser_create(context, options, dtype, count, &here_too, &error), &error);
    ok(dpcr_optimiser_create(context, options, dtype, count, &moving, &error), &error);
    ok(dpcr_optimiser_state(here_too, &first, &second, &error), &error);
    for (int i = 0; i < 3; i++) {
        ok(dpcr_optimiser_step(here_too, p.host.data, g.host.data, &error), &error);
        ok(dpcr_optimiser_enqueue(moving, &p.device, &g.device, first.data ? &m.device : NULL,
                                  second.data ? &v.device : NULL, i == 2, NULL, &error),
           &error);
        same(&p, p.host.data, "parameters");
        if (first.data) same(&m, first.data, "first");
        if (second.data) same(&v, second.data, "second");
    }
    memset(g.host.data, 0, g.bytes);
    same(&g, g.host.data, "cleared gradients");
    assert_int_equal(dpcr_optimiser_updates(moving), 3);
    dpcr_optimiser_destroy(here_too);
    dpcr_optimiser_destroy(moving);
    moved *const all[] = {&p, &g, &m, &v};
    for (int i = 0; i < 4; i++) free_moved(all[i]);
}

void updates_as_on_the_host(void **state) {
    (void)state;
    const dpcr_optimiser_options options[] = {
        {.size = sizeof options[0], .kind = DPCR_SGD, .rate = 0.1},
        {.size = sizeof options[0], .kind = DPCR_SGD, .rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
        {.size = sizeof options[0], .kind = DPCR_ADAM, .rate = 0.01, .weight_decay = 0.01, .warm_up = 2, .total = 5},
        {.size = sizeof options[0], .kind = DPCR_ADAM, .rate = 0.01, .beta1 = 0.3},
        {.size = sizeof options[0], .kind = DPCR_ADAMW, .rate = 0.01, .weight_decay = 0.1}};
    for (int i = 0; i < 5; i++) {
        update(&options[i], i % 2 ? DPCR_F64 : DPCR_F32, 1003);
        update(&options[i], i % 2 ? DPCR_F32 : DPCR_F64, 1);
    }
}

static void clip(dpcr_dtype dtype, int64_t count, double most) {
    moved g = make_moved(dtype, 1, &count, 7, 1);
    dpcr_error error = {0};
    double norm = 0, got = 0;
    void *workspace = to_device(NULL, DPCR_CLIP_BYTES);
    ok(dpcr_gradients_clip_norm(context, &g.host, 1, most, &norm, &error), &error);
    ok(dpcr_gradients_clip_enqueue(&g.device, most, workspace, DPCR_CLIP_BYTES, NULL, &error), &error);
    from_device(&got, workspace, sizeof got);
    if (got != norm) fail_msg("norm %.17g, on the host %.17g", got, norm);
    same(&g, g.host.data, "gradients");
    free_moved(&g);
    dpcr_device_release(there, workspace);
}

void clipping_as_on_the_host(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        const double most = i == 0 ? INFINITY : i == 1 ? 1e9 : i == 2 ? 0.5 : 0;
        clip(DPCR_F32, 5, most);
        clip(DPCR_F64, 40007, most);
        clip(DPCR_F32, 0, most);
    }
}

static void tie(const dpcr_model_options *options) {
    dpcr_model *model = NULL;
    dpcr_error error = {0};
    int64_t count = 0;
    ok(dpcr_model_create(context, options, &model, &error), &error);
    (void)dpcr_model_vector(model, &count);
    moved g = make_moved(options->dtype, 1, &count, 11, 1);
    memcpy(dpcr_model_gradient_vector(model), g.host.data, g.bytes);
    dpcr_model_tie_gradients(model);
    ok(dpcr_model_tie_gradients_enqueue(model, &g.device, NULL, &error), &error);
    same(&g, dpcr_model_gradient_vector(model), "tied gradients");
    free_moved(&g);
    dpcr_model_destroy(model);
}

void ties_as_on_the_host(void **state) {
    (void)state;
    for (int64_t layers = 0; layers < 50; layers = 2 * layers + 1)
        for (int64_t t = 0; t < 4; t++)
            tie(&(dpcr_model_options){.size = sizeof(dpcr_model_options),
                                      .architecture = t % 2 ? DPCR_MLP : DPCR_RESNET,
                                      .dtype = t < 2 ? DPCR_F32 : DPCR_F64,
                                      .inputs = 4,
                                      .outputs = 3,
                                      .layers = layers,
                                      .width = 5 + layers,
                                      .tie = t});
}

static void assert_refused(const char *words, dpcr_status got, const dpcr_error *error) {
    if (got != DPCR_ERROR_ARGUMENT || !strstr(error->text, words)) fail_msg("status %d, \"%s\"", got, error->text);
}

void training_that_is_refused(void **state) {
    (void)state;
    const int64_t count = 6;
    const dpcr_optimiser_options options = {.size = sizeof options, .kind = DPCR_SGD, .rate = 0.1};
    moved p = make_moved(DPCR_F32, 1, &count, 1, 1), g = make_moved(DPCR_F32, 1, &count, 2, 1);
    dpcr_optimiser *o = NULL;
    dpcr_error error = {0};
    ok(dpcr_optimiser_create(context, &options, DPCR_F32, count, &o, &error), &error);
#define REFUSED(words, call) assert_refused(words, call, &error)
    REFUSED("on the host", dpcr_optimiser_enqueue(o, &p.host, &g.device, NULL, NULL, 0, NULL, &error));
    REFUSED("gradients", dpcr_optimiser_enqueue(o, &p.device, &g.host, NULL, NULL, 0, NULL, &error));
    REFUSED("has none", dpcr_optimiser_enqueue(o, &p.device, &g.device, &g.device, NULL, 0, NULL, &error));
    REFUSED("on the host", dpcr_gradients_clip_enqueue(&g.host, 1, g.device.data, 4096, NULL, &error));
    dpcr_model_options tied = {.size = sizeof tied, .architecture = DPCR_RESNET, .layers = 3, .width = 5, .tie = 1};
    dpcr_model *model = NULL;
    ok(dpcr_model_create(context, &tied, &model, &error), &error);
    REFUSED("on the host", dpcr_model_tie_gradients_enqueue(model, &g.host, NULL, &error));
    REFUSED("gradients", dpcr_model_tie_gradients_enqueue(model, &g.device, NULL, &error));
    REFUSED("wanted", dpcr_model_tie_gradients_enqueue(NULL, &g.device, NULL, &error));
    dpcr_model_destroy(model);
    REFUSED("most is", dpcr_gradients_clip_enqueue(&g.device, NAN, g.device.data, 4096, NULL, &error));
#undef REFUSED
    assert_int_equal(dpcr_gradients_clip_enqueue(&g.device, 1, NULL, 0, NULL, &error), DPCR_ERROR_MEMORY);
    assert_int_equal(dpcr_optimiser_updates(o), 0);
    dpcr_optimiser_destroy(o);
    free_moved(&p);
    free_moved(&g);
}
