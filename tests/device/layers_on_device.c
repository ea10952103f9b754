// SPDX-License-Identifier: MIT
// Stacks of layers on a device: states, adjoints and the parameters' gradients against the host's, by every method that
// there is for their width, and what is refused.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../sampled.h"
#include "on_device.h"
#include "rt/wisdom.h"

typedef struct layers_job {
    dpcr_model_options options;
    int64_t batch;
    dpcr_method method;
} layers_job;

static dpcr_model *make_model(const dpcr_model_options *options) {
    dpcr_model *model = NULL;
    dpcr_error error = {0};
    ok(dpcr_model_create(context, options, &model, &error), &error);
    return model;
}

static dpcr_solve_plan *make_plan(const dpcr_steps *steps, dpcr_method method, dpcr_scheme backward,
                                  dpcr_device device) {
    const dpcr_solve_options options = {
        .size = sizeof options, .method = method, .backward = backward, .device = device};
    dpcr_solve_plan *plan = NULL;
    dpcr_error error = {0};
    ok(dpcr_solve_plan_create(context, steps, &options, &plan, &error), &error);
    return plan;
}

// A vector of the model's, and its place on the device; what was there first stays the caller's.
static moved move_vector(void *vector, dpcr_dtype dtype, int64_t count) {
    moved m = make_moved(dtype, 1, &count, 1, 0);
    memcpy(m.host.data, vector, m.bytes);
    dpcr_device_release(there, m.device.data);
    m.device.data = to_device(vector, m.bytes);
    return m;
}

static void solve_layers(const layers_job *job) {
    if (left_out()) return;
    const dpcr_model_options *o = &job->options;
    const int64_t states[3] = {o->layers, job->batch, o->width};
    const double near = o->dtype == DPCR_F64 ? 1e-8 : 3e-4;
    int64_t count = 0;
    dpcr_error error = {0};
    dpcr_model *model = make_model(o);
    void *const vector = dpcr_model_vector(model, &count), *const sums = dpcr_model_gradient_vector(model);
    moved z0 = make_moved(o->dtype, 2, states + 1, 5, 1), z = make_moved(o->dtype, 3, states, 6, 1),
          direct = make_moved(o->dtype, 3, states, 7, 1), lambda = make_moved(o->dtype, 3, states, 8, 1),
          dz0 = make_moved(o->dtype, 2, states + 1, 9, 1), theta = move_vector(vector, o->dtype, count),
          gradient = move_vector(sums, o->dtype, count);
    // On the host.
    dpcr_steps steps = {.size = sizeof steps};
    ok(dpcr_model_steps(model, job->batch, &steps, &error), &error);
    dpcr_solve_plan *plan = make_plan(&steps, DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL, here);
    const size_t host_bytes = dpcr_solve_plan_workspace(plan);
    void *host_workspace = aligned_alloc(64, (host_bytes + 127) / 64 * 64);
    ok(dpcr_solve_execute(plan, &z0.host, &z.host, NULL, host_workspace, host_bytes, NULL, &error), &error);
    ok(dpcr_solve_backward(plan, &z0.host, &z.host, NULL, &direct.host, NULL, &lambda.host, &dz0.host, host_workspace,
                           host_bytes, NULL, &error),
       &error);
    memcpy(gradient.host.data, sums, gradient.bytes);
    dpcr_solve_plan_destroy(plan);
    // There.
    dpcr_device_model *chain = NULL;
    ok(dpcr_device_model_create(model, job->batch, &theta.device, &gradient.device, &chain, &error), &error);
    ok(dpcr_device_model_steps(chain, &steps, &error), &error);
    plan = make_plan(&steps, job->method, DPCR_SCHEME_AUTO, there);
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    void *workspace = to_device(NULL, bytes);
    dpcr_solve_report report = {.size = sizeof report};
    ok(dpcr_solve_enqueue(plan, &z0.device, &z.device, workspace, bytes, NULL, &error), &error);
    ok(dpcr_solve_collect(plan, workspace, bytes, NULL, &report, &error), &error);
    assert_true(report.reason > 0 && report.method == dpcr_solve_plan_method(plan));
    assert_true(job->method == DPCR_METHOD_AUTO || report.method == job->method);
    assert_near(&z, near, "states");
    ok(dpcr_solve_enqueue_backward(plan, &z0.device, &z.device, &direct.device, &lambda.device, &dz0.device, workspace,
                                   bytes, NULL, &error),
       &error);
    assert_near(&lambda, 10 * near, "lambda");
    assert_near(&dz0, 10 * near, "dz0");
    assert_near(&gradient, 10 * near, "gradients");
    dpcr_solve_plan_destroy(plan);
    dpcr_device_model_destroy(chain);
    dpcr_model_destroy(model);
    moved *const all[] = {&z0, &z, &direct, &lambda, &dz0, &theta, &gradient};
    for (int i = 0; i < 7; i++) free_moved(all[i]);
    free(host_workspace);
    dpcr_device_release(there, workspace);
}

void layers_as_on_the_host(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 2, 4, 3, 16, 64, 100}, lengths[] = {1, 9, 70}, batches[] = {1, 5, 40};
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO, DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP,
                                          DPCR_METHOD_NEWTON};
    static const dpcr_activation activations[] = {DPCR_ACT_TANH, DPCR_ACT_SIGMOID, DPCR_ACT_GELU, DPCR_ACT_SILU};
    int n = 0;
    for (int w = 0; w < 7; w++)
        for (int l = 0; l < 3; l++)
            for (int m = 0; m < 4; m++, n++) {
                if (TESTS_SANITIZED && (w + l + m) % 3 != 1) continue;
                solve_layers(&(layers_job){.batch = batches[n % 3],
                                           .method = methods[m],
                                           .options = {.size = sizeof(dpcr_model_options),
                                                       .architecture = n % 2 ? DPCR_RESNET : DPCR_MLP,
                                                       .dtype = n % 5 ? DPCR_F32 : DPCR_F64,
                                                       .inputs = n % 4 ? 0 : 3,
                                                       .layers = lengths[l],
                                                       .width = widths[w],
                                                       .activation = activations[n / 3 % 4],
                                                       .seed = 7}});
            }
    for (int w = 0; w < 7; w++)
        for (int l = 0; l < 3; l++, n++) {
            if (TESTS_SANITIZED && (w + 2 * l) % 3 != 1) continue;
            solve_layers(&(layers_job){.batch = batches[(w + l) % 3],
                                       .method = methods[l],
                                       .options = {.size = sizeof(dpcr_model_options),
                                                   .architecture = w % 2 ? DPCR_RESNET : DPCR_MLP,
                                                   .dtype = l % 2 ? DPCR_F32 : DPCR_F64,
                                                   .layers = lengths[l],
                                                   .width = widths[w],
                                                   .activation = activations[(w + l) % 4],
                                                   .layer_norm = 1,
                                                   .seed = 9}});
        }
    for (int w = 0; w < 7; w++)
        for (int l = 0; l < 3; l++, n++) {
            if (TESTS_SANITIZED && (w + 2 * l) % 3 != 1) continue;
            solve_layers(&(layers_job){.batch = batches[(w + l) % 3],
                                       .method = methods[l],
                                       .options = {.size = sizeof(dpcr_model_options),
                                                   .architecture = DPCR_RESNET,
                                                   .dtype = l % 2 ? DPCR_F32 : DPCR_F64,
                                                   .layers = lengths[l],
                                                   .width = widths[w],
                                                   .hidden = widths[(w + 3 * l) % 7],
                                                   .activation = activations[(w + l) % 4],
                                                   .branch = DPCR_BRANCH_TWO_LAYER,
                                                   .layer_norm = w % 2,
                                                   .seed = 11}});
        }
    // AUTO is left to the loop where chunks would pay but have no kernel.
    solve_layers(&(layers_job){.batch = 1,
                               .options = {.size = sizeof(dpcr_model_options),
                                           .architecture = DPCR_MLP,
                                           .dtype = DPCR_F32,
                                           .layers = 600,
                                           .width = 6,
                                           .activation = DPCR_ACT_TANH}});
}

// What a barrier of the device's blocks takes is what the context believes, so that a plan shares units or does not;
// the states and adjoints are the same to the bit.
void units_that_blocks_share(void **state) {
    (void)state;
    static const char *const words[] = {"a block a row or few", "a row's units shared by "};
    const dpcr_model_options o = {.size = sizeof o,
                                  .architecture = DPCR_RESNET,
                                  .dtype = DPCR_F32,
                                  .layers = 5,
                                  .width = 200,
                                  .activation = DPCR_ACT_TANH,
                                  .layer_norm = 1,
                                  .seed = 3};
    const int64_t states[3] = {o.layers, 3, o.width};
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    int64_t count = 0;
    char key[DPCRI_WISDOM_KEY];
    ok(dpcr_device_describe(there, &info, &error), &error);
    snprintf(key, sizeof key, "device %.100s %d.%d barrier", info.name, info.major, info.minor);
    dpcr_model *model = make_model(&o);
    void *const vector = dpcr_model_vector(model, &count);
    moved z0 = make_moved(o.dtype, 2, states + 1, 5, 1), z = make_moved(o.dtype, 3, states, 6, 1),
          direct = make_moved(o.dtype, 3, states, 7, 1), lambda = make_moved(o.dtype, 3, states, 8, 1),
          theta = move_vector(vector, o.dtype, count);
    dpcr_device_model *chain = NULL;
    dpcr_steps steps = {.size = sizeof steps};
    ok(dpcr_device_model_create(model, states[1], &theta.device, NULL, &chain, &error), &error);
    ok(dpcr_device_model_steps(chain, &steps, &error), &error);
    for (int shared = 0; shared < 2; shared++) {
        assert_true(dpcri_wisdom_set(context, key, shared ? "1e-12" : "0.5"));
        dpcr_solve_plan *plan = make_plan(&steps, DPCR_METHOD_AUTO, DPCR_SCHEME_AUTO, there);
        const char *const sentence = dpcr_solve_plan_sentence(plan);
        if (!strstr(sentence, words[shared])) fail_msg("%s", sentence);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = to_device(NULL, bytes);
        ok(dpcr_solve_enqueue(plan, &z0.device, &z.device, workspace, bytes, NULL, &error), &error);
        ok(dpcr_solve_enqueue_backward(plan, &z0.device, &z.device, &direct.device, &lambda.device, NULL, workspace,
                                       bytes, NULL, &error),
           &error);
        ok(dpcr_stream_wait(there, NULL, &error), &error);
        if (shared) {
            assert_near(&z, 0, "states");
            assert_near(&lambda, 0, "lambda");
        }
        from_device(z.host.data, z.device.data, z.bytes);
        from_device(lambda.host.data, lambda.device.data, lambda.bytes);
        dpcr_solve_plan_destroy(plan);
        dpcr_device_release(there, workspace);
    }
    dpcr_wisdom_forget(context);
    dpcr_device_model_destroy(chain);
    dpcr_model_destroy(model);
    moved *const all[] = {&z0, &z, &direct, &lambda, &theta};
    for (int i = 0; i < 5; i++) free_moved(all[i]);
}

static void assert_refused(dpcr_status wanted, const char *words, dpcr_status got, const dpcr_error *error) {
    if (got != wanted || !strstr(error->text, words)) fail_msg("status %d, \"%s\"", got, error->text);
}

void layers_that_are_refused(void **state) {
    (void)state;
    dpcr_model_options o = {.size = sizeof o, .architecture = DPCR_RESNET, .layers = 3, .width = 5};
    dpcr_error error = {0};
    dpcr_device_model *chain = NULL;
    int64_t count = 0;
    dpcr_model *model = make_model(&o);
    void *const vector = dpcr_model_vector(model, &count);
    moved theta = move_vector(vector, DPCR_F32, count);
    dpcr_array array = theta.device;
#define REFUSED(status, words, call) assert_refused(status, words, call, &error)
    array.shape[0]--;
    REFUSED(DPCR_ERROR_ARGUMENT, "parameters", dpcr_device_model_create(model, 2, &array, NULL, &chain, &error));
    REFUSED(DPCR_ERROR_ARGUMENT, "float32 on the host, wanted [90] float32 on cuda:",
            dpcr_device_model_create(model, 2, &theta.device, &theta.host, &chain, &error));
    array = theta.device, array.strides[0] = 2;
    REFUSED(DPCR_ERROR_ARGUMENT, "float32, 2 apart in the last dimension, wanted",
            dpcr_device_model_create(model, 2, &array, NULL, &chain, &error));
    array = theta.device, array.data = NULL;
    REFUSED(DPCR_ERROR_ARGUMENT, "float32 at NULL, wanted",
            dpcr_device_model_create(model, 2, &array, NULL, &chain, &error));
    REFUSED(DPCR_ERROR_ARGUMENT, "on the host", dpcr_device_model_create(model, 2, &theta.host, NULL, &chain, &error));
    REFUSED(DPCR_ERROR_ARGUMENT, "batch", dpcr_device_model_create(model, -1, &theta.device, NULL, &chain, &error));
    ok(dpcr_device_model_create(model, 2, &theta.device, NULL, &chain, &error), &error);
    dpcr_steps steps;  // an older caller's, after which it keeps something else
    memset(&steps, 0x55, sizeof steps);
    steps.size = offsetof(dpcr_steps, identity);
    const dpcr_steps kept = steps;
    ok(dpcr_device_model_steps(chain, &steps, &error), &error);
    if (steps.size != kept.size || steps.batch != 2 ||
        memcmp((char *)&steps + kept.size, (const char *)&kept + kept.size, sizeof steps - kept.size) != 0)
        fail_msg("what lies behind older steps was written");
    steps.size--;
    REFUSED(DPCR_ERROR_ARGUMENT, "size", dpcr_device_model_steps(chain, &steps, &error));
    steps.size = sizeof steps;
    ok(dpcr_device_model_steps(chain, &steps, &error), &error);
    const dpcr_solve_options options = {.size = sizeof options, .method = DPCR_METHOD_NEWTON, .device = there};
    dpcr_solve_plan *plan = NULL;
    dpcr_device_model_destroy(chain);
    dpcr_model_destroy(model);
    static const char *const words[] = {"normalised layers are dense there, and go by the loop",
                                        "two-layer branches are dense there, and go by the loop"};
    for (int two = 0; two < 2; two++) {
        o = (dpcr_model_options){
            .size = sizeof o, .architecture = DPCR_RESNET, .layers = 3, .width = 2, .layer_norm = !two, .branch = two};
        model = make_model(&o);
        (void)dpcr_model_vector(model, &count);
        moved own = make_moved(DPCR_F32, 1, &count, 1, 1);
        ok(dpcr_device_model_create(model, 2, &own.device, NULL, &chain, &error), &error);
        ok(dpcr_device_model_steps(chain, &steps, &error), &error);
        REFUSED(DPCR_ERROR_UNSUPPORTED, words[two], dpcr_solve_plan_create(context, &steps, &options, &plan, &error));
        dpcr_device_model_destroy(chain);
        dpcr_model_destroy(model);
        free_moved(&own);
    }
#undef REFUSED
    free_moved(&theta);
}
