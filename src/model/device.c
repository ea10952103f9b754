// SPDX-License-Identifier: MIT
// The steps of a model on a device: a chain of cells, each with weights of its own as they lie in the vector, and
// gradients that lie as those do.
#include "base/checksum.h"
#include "deeppcr/model.h"
#include "model/model_internal.h"
#include "nn/device.h"

struct dpcr_device_model {
    dpcr_context *context;
    dpcr_device device;
    const dpcr_model *model;
    char *parameters, *gradients;  // the vectors; gradients NULL: not summed
    int64_t length, batch;
    dpcri_narrow chain;
    dpcri_narrow_more more;
    dpcri_narrow_sums sums;
    bool summed;
    uint64_t identity;  // of the form
};

static dpcr_status check(const dpcr_model *m, int64_t batch, const dpcr_array *parameters, const dpcr_array *gradients,
                         dpcr_error *error) {
    static const char *const call = "device_model_create";
    if (!m || !parameters)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a model and its parameters are wanted", call);
    const dpcr_model_options *o = &m->options;
    if (batch < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: batch is %lld, wanted >= 0", call, (long long)batch);
    if (parameters->device.type == 0 || parameters->device.type == DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: the parameters lie on the host, where dpcr_model_steps gives the chain", call);
    dpcr_status status =
        dpcri_check_array_on(call, "parameters", parameters, o->dtype, parameters->device, 1, &m->count, error);
    if (status == DPCR_OK && gradients && gradients->data)
        status = dpcri_check_array_on(call, "gradients", gradients, o->dtype, parameters->device, 1, &m->count, error);
    return status;
}

// Of a number below 0: NULL.
static void *at(const dpcr_model *m, void *vector, int64_t number) {
    if (number < 0) return NULL;
    return (char *)vector + number * (int64_t)dpcr_dtype_size(m->options.dtype);
}

// What the shape does not tell, and a measurement of one network not of another.
static uint64_t identity_of(const dpcr_model_options *o) {
    const double form[] = {o->architecture, o->activation, o->branch, o->layer_norm != 0, o->scale};
    return dpcri_checksum(DPCRI_CHECKSUM, form, sizeof form);
}

dpcr_status dpcr_device_model_create(const dpcr_model *m, int64_t batch, const dpcr_array *parameters,
                                     const dpcr_array *gradients, dpcr_device_model **there, dpcr_error *error) {
    if (!there) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_model_create: no place for the handle given");
    *there = NULL;
    const dpcr_status status = check(m, batch, parameters, gradients, error);
    if (status != DPCR_OK) return status;
    dpcr_device_model *d = dpcri_alloc_zero(m->context, sizeof *d);
    if (!d)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "device_model_create: no memory for the handle (%zu bytes)",
                          sizeof *d);
    *d = (dpcr_device_model){.context = m->context,
                             .device = parameters->device,
                             .model = m,
                             .parameters = parameters->data,
                             .gradients = gradients ? gradients->data : NULL,
                             .batch = batch,
                             .summed = gradients && gradients->data,
                             .identity = identity_of(&m->options)};
    dpcri_device_model_span(d, 0, m->options.layers);
    *there = d;
    return DPCR_OK;
}

void dpcri_device_model_span(dpcr_device_model *d, int64_t first, int64_t count) {
    const dpcr_model *m = d->model;
    const dpcri_program *p = &m->program;
    const dpcri_nn_layer *const second = m->options.branch == DPCR_BRANCH_TWO_LAYER ? &p->layers[p->count - 1] : NULL;
    const int64_t step = first * p->parameters, inner = p->layers[0].out, bias = step + p->layers[0].in * inner;
    const int64_t norm = m->options.layer_norm ? step + p->layers[1].parameters : -1;
    const int64_t after = second ? step + second->parameters : -1,
                  bias2 = second ? after + second->in * second->out : -1;
    d->length = count;
    dpcri_program_narrow(p, at(m, d->parameters, step), &d->chain);
    d->chain.bias = at(m, d->parameters, bias);
    d->chain.activation = p->layers[norm < 0 ? 1 : 2].activation;
    d->more = (dpcri_narrow_more){.gamma = at(m, d->parameters, norm),
                                  .beta = at(m, d->parameters, norm < 0 ? -1 : norm + inner),
                                  .hidden = second ? inner : 0,
                                  .weight2 = at(m, d->parameters, after),
                                  .bias2 = at(m, d->parameters, bias2)};
    if (!d->summed) return;
    d->sums = (dpcri_narrow_sums){.weight = at(m, d->gradients, step),
                                  .bias = at(m, d->gradients, bias),
                                  .gamma = at(m, d->gradients, norm),
                                  .beta = at(m, d->gradients, norm < 0 ? -1 : norm + inner),
                                  .weight2 = at(m, d->gradients, after),
                                  .bias2 = at(m, d->gradients, bias2)};
}

dpcr_status dpcr_model_tie_gradients_enqueue(const dpcr_model *m, const dpcr_array *gradients, void *stream,
                                             dpcr_error *error) {
    static const char *const call = "model_tie_gradients_enqueue";
    const dpcri_device_kernels *kernels = NULL;
    dpcr_status status = DPCR_OK;
    if (!m || !gradients) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a model and gradients are wanted", call);
    const dpcr_device device = gradients->device;
    if (device.type == 0 || device.type == DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the gradients lie on the host, where model_tie_gradients is",
                          call);
    DPCR_TRY(dpcri_check_array_on(call, "gradients", gradients, m->options.dtype, device, 1, &m->count, error));
    DPCR_TRY(dpcri_kernels_of(device, call, &kernels, error));
    if (!m->options.tie) goto done;
    const dpcri_device_tie tie = {.dtype = m->options.dtype,
                                  .steps = m->options.layers,
                                  .each = m->program.parameters,
                                  .tie = m->options.tie,
                                  .gradients = gradients->data};
    status = kernels->tie(device.id, &tie, stream, error);
done:
    return status;
}

void dpcr_device_model_destroy(dpcr_device_model *d) {
    if (d) dpcri_free(d->context, d);
}

static dpcr_status launch(void *user, dpcr_launch *what, dpcr_error *error) {
    const dpcr_device_model *d = user;
    return dpcri_narrow_launch(&d->chain, &d->more, d->summed ? &d->sums : NULL, d->device, d->length, d->batch, what,
                               error);
}

dpcr_status dpcr_device_model_steps(const dpcr_device_model *d, dpcr_steps *steps, dpcr_error *error) {
    if (!d || !steps || steps->size < offsetof(dpcr_steps, identity))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device_model_steps: wanted a handle and steps with their size");
    const double w = (double)d->chain.width, h = (double)d->more.hidden;
    const dpcr_steps all = {.user = (void *)(uintptr_t)d,
                            .length = d->length,
                            .batch = d->batch,
                            .width = d->chain.width,
                            .dtype = d->chain.dtype,
                            .concurrent = 1,
                            .jacobian = dpcr_transition_square(DPCR_DENSE, d->chain.width, 0),
                            .flops = h > 0 ? 4 * w * h : 2 * w * w,
                            .jacobian_flops = h > 0 ? 2 * w * w * h : w * w,
                            .launch = launch,
                            .identity = d->identity};
    dpcri_copy_out(steps, &all, sizeof all);
    return DPCR_OK;
}
