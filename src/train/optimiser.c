// SPDX-License-Identifier: MIT
// SGD with momentum, Adam (Kingma and Ba, arXiv 1412.6980), AdamW (Loshchilov and Hutter, arXiv 1711.05101), as
// PyTorch's torch.optim computes them. g gradient, p parameter, t number of the update from 1, eta_t the schedule's
// rate:
//
//   SGD     g += lambda p;  m = mu m + g (m = g at first);  p -= eta_t m
//   Adam    g += lambda p;                m = m + (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2
//   AdamW   p = (1 - eta_t lambda) p;     m, v alike
//           p -= eta_t / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//
// The scalars are formed in double and rounded once to the parameters' type; 1 - beta2 in single precision would be off
// by 5e-5 of itself. Work and memory: one pass over p, g, m, v. The pass is cut into blocks of fixed size, so the bits
// do not depend on threads.
#include "train/optimiser.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 1 << 14 };  // numbers a task: 256 KiB of four float arrays

static dpcr_status refuse(dpcr_error *error, const char *name, double got, const char *wanted) {
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "optimiser options: %s is %g, wanted %s", name, got, wanted);
}

// The comparisons are written so that NaN is refused.
static dpcr_status check(const dpcr_optimiser_options *o, dpcr_error *error) {
    if (o->kind != DPCR_SGD && o->kind != DPCR_ADAM && o->kind != DPCR_ADAMW)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "optimiser options: kind is %d, wanted DPCR_SGD, DPCR_ADAM or DPCR_ADAMW", (int)o->kind);
    if (!(o->rate >= 0 && isfinite(o->rate))) return refuse(error, "rate", o->rate, "0 or more");
    if (!(o->momentum >= 0 && isfinite(o->momentum))) return refuse(error, "momentum", o->momentum, "0 or more");
    if (!(o->beta1 >= 0 && o->beta1 < 1)) return refuse(error, "beta1", o->beta1, "0 <= beta1 < 1");
    if (!(o->beta2 >= 0 && o->beta2 < 1)) return refuse(error, "beta2", o->beta2, "0 <= beta2 < 1");
    if (!(o->epsilon >= 0 && isfinite(o->epsilon))) return refuse(error, "epsilon", o->epsilon, "0 or more");
    if (!(o->weight_decay >= 0 && isfinite(o->weight_decay)))
        return refuse(error, "weight_decay", o->weight_decay, "0 or more");
    if (o->warm_up < 0) return refuse(error, "warm_up", (double)o->warm_up, "0 or more steps");
    if (o->total < 0) return refuse(error, "total", (double)o->total, "0 (constant rate) or more steps");
    if (o->total > 0 && o->total < o->warm_up)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "optimiser options: total is %lld, wanted at least warm_up, %lld steps", (long long)o->total,
                          (long long)o->warm_up);
    return DPCR_OK;
}

dpcr_status dpcri_optimiser_options_fill(const dpcr_optimiser_options *options, dpcr_optimiser_options *filled,
                                         dpcr_error *error) {
    if (options->size < offsetof(dpcr_optimiser_options, total) + sizeof options->total)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "optimiser options: size is %zu, wanted sizeof(dpcr_optimiser_options), %zu", options->size,
                          sizeof *options);
    dpcr_optimiser_options given = {0};
    DPCRI_COPY_IN(given, options);
    *filled = given;
    filled->size = sizeof *filled;
    const dpcr_status room =
        dpcri_check_reserved("optimiser options", filled->reserved, sizeof filled->reserved, error);
    if (room != DPCR_OK) return room;
    if (filled->beta1 == 0) filled->beta1 = 0.9;
    if (filled->beta2 == 0) filled->beta2 = 0.999;
    if (filled->epsilon == 0) filled->epsilon = 1e-8;
    return check(filled, error);
}

// The bytes of one vector of the state.
static dpcr_status state_bytes(const dpcr_optimiser *o, size_t *bytes, dpcr_error *error) {
    bool overflow = false;
    *bytes = dpcri_bytes(o->count, (int64_t)dpcr_dtype_size(o->dtype), 1, &overflow);
    if (!overflow) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "optimiser_create: the size of %lld parameters does not fit",
                      (long long)o->count);
}

// One allocation each; *state stays NULL where this kind has none.
static dpcr_status make_state(dpcr_optimiser *o, bool wanted, void **state, dpcr_error *error) {
    size_t bytes = 0;
    if (!wanted || o->count == 0 || *state) return DPCR_OK;
    const dpcr_status status = state_bytes(o, &bytes, error);
    if (status != DPCR_OK) return status;
    *state = dpcri_alloc_zero(o->context, bytes);
    if (*state) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "optimiser: no memory for the state (%zu bytes)", bytes);
}

dpcr_status dpcri_optimiser_keep(dpcr_optimiser *o, dpcr_error *error) {
    const bool sgd = o->options.kind == DPCR_SGD;
    const dpcr_status status = make_state(o, !sgd || o->options.momentum > 0, &o->first, error);
    return status == DPCR_OK ? make_state(o, !sgd, &o->second, error) : status;
}

dpcr_status dpcri_optimiser_create(dpcr_context *context, const dpcr_optimiser_options *options, dpcr_dtype dtype,
                                   int64_t count, dpcr_optimiser **optimiser, dpcr_error *error) {
    dpcr_status status = dpcr_optimiser_create(context, options, dtype, count, optimiser, error);
    if (status == DPCR_OK) status = dpcri_optimiser_keep(*optimiser, error);
    if (status == DPCR_OK || !optimiser) return status;
    dpcr_optimiser_destroy(*optimiser);
    *optimiser = NULL;
    return status;
}

dpcr_status dpcr_optimiser_create(dpcr_context *context, const dpcr_optimiser_options *options, dpcr_dtype dtype,
                                  int64_t count, dpcr_optimiser **optimiser, dpcr_error *error) {
    dpcr_status status;
    dpcr_optimiser *made = NULL;
    dpcr_optimiser_options filled;
    size_t bytes = 0;
    if (optimiser) *optimiser = NULL;
    if (!context || !options || !optimiser)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "optimiser_create: context, options or the place for the result is NULL");
    if (dtype != DPCR_F32 && dtype != DPCR_F64)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "optimiser_create: dtype is %s, wanted float32 or float64",
                          dpcr_dtype_name(dtype));
    if (count < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "optimiser_create: count is %lld, wanted 0 or more",
                          (long long)count);
    DPCR_TRY(dpcri_optimiser_options_fill(options, &filled, error));
    made = dpcri_alloc_zero(context, sizeof *made);
    if (!made) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "optimiser_create: no memory for the optimiser"));
    *made = (dpcr_optimiser){.context = context, .options = filled, .dtype = dtype, .count = count};
    made->kernels = dpcri_train_kernels_get(dtype);
    DPCR_TRY(state_bytes(made, &bytes, error));
    *optimiser = made;
    made = NULL;
done:
    dpcr_optimiser_destroy(made);
    return status;
}

void dpcr_optimiser_destroy(dpcr_optimiser *optimiser) {
    if (!optimiser) return;
    dpcri_free(optimiser->context, optimiser->second);
    dpcri_free(optimiser->context, optimiser->first);
    dpcri_free(optimiser->context, optimiser);
}

double dpcr_optimiser_rate(const dpcr_optimiser *optimiser, int64_t step) {
    return optimiser ? dpcri_schedule_rate(&optimiser->options, step) : 0;
}

dpcri_sgd_update dpcri_optimiser_sgd(const dpcr_optimiser_options *o, double rate) {
    return (dpcri_sgd_update){.rate = rate, .momentum = o->momentum, .decay = o->weight_decay};
}

dpcri_adam_update dpcri_optimiser_adam(const dpcr_optimiser_options *o, double rate, int64_t step) {
    const bool decoupled = o->kind == DPCR_ADAMW;
    // torch.lerp goes from the gradient where the weight is a half or more: closer to it, the rounding is smaller.
    const bool from_gradient = 1 - o->beta1 >= 0.5;
    const double correction1 = 1 - pow(o->beta1, (double)step), correction2 = 1 - pow(o->beta2, (double)step);
    return (dpcri_adam_update){
        .keep = decoupled ? 1 - rate * o->weight_decay : 1,
        .decay = decoupled ? 0 : o->weight_decay,
        .pull = from_gradient ? -o->beta1 : 1 - o->beta1,
        .from_gradient = from_gradient,
        .beta2 = o->beta2,
        .rest2 = 1 - o->beta2,
        .step = rate / correction1,
        .root = 1 / sqrt(correction2),
        .epsilon = o->epsilon,
    };
}

typedef struct update_task {
    const dpcr_optimiser *o;
    unsigned char *p, *g;
    bool clear;
    dpcri_sgd_update sgd;
    dpcri_adam_update adam;
} update_task;

static void *at(void *base, size_t offset) { return base ? (unsigned char *)base + offset : NULL; }

static void update_block(void *argument, int64_t block) {
    const update_task *t = argument;
    const dpcr_optimiser *o = t->o;
    const int64_t from = block * BLOCK, left = o->count - from, n = left < BLOCK ? left : BLOCK;
    const size_t offset = (size_t)from * dpcr_dtype_size(o->dtype);
    if (o->options.kind == DPCR_SGD)
        o->kernels->sgd(n, t->p + offset, at(o->first, offset), t->g + offset, t->clear, &t->sgd);
    else
        o->kernels->adam(n, t->p + offset, at(o->first, offset), at(o->second, offset), t->g + offset, t->clear,
                         &t->adam);
}

void dpcri_optimiser_update(dpcr_optimiser *optimiser, void *parameters, void *gradients, bool clear) {
    const int64_t step = ++optimiser->step;
    const double rate = dpcri_schedule_rate(&optimiser->options, step);
    update_task task = {.o = optimiser, .p = parameters, .g = gradients, .clear = clear};
    if (optimiser->options.kind == DPCR_SGD)
        task.sgd = dpcri_optimiser_sgd(&optimiser->options, rate);
    else
        task.adam = dpcri_optimiser_adam(&optimiser->options, rate, step);
    dpcri_parallel(optimiser->context, (optimiser->count + BLOCK - 1) / BLOCK, update_block, &task);
}

dpcr_status dpcr_optimiser_step(dpcr_optimiser *optimiser, void *parameters, const void *gradients, dpcr_error *error) {
    if (!optimiser || (optimiser->count > 0 && (!parameters || !gradients)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "optimiser_step: optimiser, parameters or gradients are NULL");
    const dpcr_status status = dpcri_optimiser_keep(optimiser, error);
    if (status != DPCR_OK) return status;
    // Only read, as `clear` is false.
    dpcri_optimiser_update(optimiser, parameters, (void *)(uintptr_t)gradients, false);
    return DPCR_OK;
}

int64_t dpcr_optimiser_updates(const dpcr_optimiser *optimiser) { return optimiser ? optimiser->step : 0; }

dpcr_status dpcr_optimiser_state(dpcr_optimiser *optimiser, dpcr_array *first, dpcr_array *second, dpcr_error *error) {
    if (!optimiser || !first || !second)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "optimiser_state: optimiser, first or second is NULL");
    const dpcr_status status = dpcri_optimiser_keep(optimiser, error);
    if (status != DPCR_OK) return status;
    *first = dpcr_array_make(optimiser->first, optimiser->dtype, 1, &optimiser->count);
    *second = dpcr_array_make(optimiser->second, optimiser->dtype, 1, &optimiser->count);
    return DPCR_OK;
}

dpcr_status dpcr_optimiser_resume(dpcr_optimiser *optimiser, int64_t updates, dpcr_error *error) {
    if (!optimiser || updates < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "optimiser_resume: optimiser is NULL, or updates is %lld",
                          (long long)updates);
    optimiser->step = updates;
    return DPCR_OK;
}
