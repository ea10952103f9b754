// SPDX-License-Identifier: MIT
// The samplers' own methods: names, options, arguments.
#include "sample/sweeping.h"

#include <string.h>

static const char *const names[] = {"parareal", "parataa"};

const char *dpcr_sampling_method_name(dpcr_sampling_method method) {
    return method >= DPCR_SAMPLING_PARAREAL && method <= DPCR_SAMPLING_PARATAA ? names[method - 1] : "unknown";
}

dpcr_status dpcr_sampling_method_find(const char *name, dpcr_sampling_method *method, dpcr_error *error) {
    for (int i = 0; name && method && i < 2; i++)
        if (!strcmp(name, names[i])) {
            *method = (dpcr_sampling_method)(i + 1);
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampling method is \"%s\", wanted parareal or parataa",
                      name ? name : "");
}

dpcr_status dpcri_sweeping_run(dpcr_sampler *sampler, int64_t first, int64_t lanes, int64_t stride, int64_t steps,
                               const void *in, int64_t in_stride, void *states, void *last, int64_t out_stride,
                               const unsigned char *active, dpcr_error *error) {
    const dpcr_steps *chain = &sampler->chain;
    const int64_t B = chain->batch, w = chain->width;
    dpcr_array from = dpcr_array_make((void *)(uintptr_t)in, chain->dtype, 3, (const int64_t[]){lanes, B, w});
    dpcr_array all = dpcr_array_make(states, chain->dtype, 4, (const int64_t[]){lanes, steps, B, w});
    dpcr_array end = dpcr_array_make(last, chain->dtype, 3, (const int64_t[]){lanes, B, w});
    from.strides[0] = in_stride;
    all.strides[0] = end.strides[0] = out_stride;
    const dpcr_span span = {.size = sizeof span,
                            .first = first,
                            .lanes = lanes,
                            .stride = stride,
                            .steps = steps,
                            .rows = B,
                            .active = active,
                            .device = {DPCR_HOST, 0}};
    const int code = chain->advance(chain->user, &span, &from, states ? &all : NULL, last ? &end : NULL, NULL);
    if (!code) return DPCR_OK;
    return dpcri_fail_code(error, DPCR_ERROR_CALLBACK, code, "sampler_solve: the denoiser aborted with code %d", code);
}

void dpcri_sweeping_done(dpcri_sweeping *s, int64_t b, dpcr_reason reason) {
    s->active[b] = 0;
    if (reason == DPCR_REASON_FALLBACK || s->reason == DPCR_REASON_EXACT) s->reason = reason;
}

bool dpcri_sweeping_any(const dpcri_sweeping *s) {
    for (int64_t b = 0; b < s->batch; b++)
        if (s->active[b]) return true;
    return false;
}

static dpcr_status fill_options(dpcri_sweeping *s, const dpcr_sampling_options *given) {
    dpcr_sampling_options *o = &s->options;
    const int64_t L = s->length;
    if (given->size < sizeof *given)
        return dpcri_fail(s->error, DPCR_ERROR_ARGUMENT, "sampler_solve: options.size is %zu, wanted %zu", given->size,
                          sizeof *given);
    *o = *given;
    if (o->tolerance == 0) o->tolerance = 1e-3;
    if (o->tolerance < 0) o->tolerance = 0;
    if (o->block == 0) o->block = (int64_t)ceil(sqrt((double)L));
    if (o->window == 0 || o->window > L) o->window = L;
    if (o->order == 0 || o->order > L) o->order = L;
    if (o->memory == 0) o->memory = 2;
    if (o->max_sweeps == 0) o->max_sweeps = 100;
    if (o->method != DPCR_SAMPLING_PARAREAL && o->method != DPCR_SAMPLING_PARATAA)
        return dpcri_fail(s->error, DPCR_ERROR_ARGUMENT, "sampler_solve: method is %d, wanted parareal or parataa",
                          (int)o->method);
    if (!(o->tolerance >= 0) || o->block < 1 || o->window < 1 || o->order < 1 || o->memory < 1 || o->memory > 4 ||
        o->max_sweeps < 1)
        return dpcri_fail(
            s->error, DPCR_ERROR_ARGUMENT,
            "sampler_solve: tolerance %g, block %lld, window %lld, order %lld, memory %lld, max_sweeps %d; "
            "wanted 1 or more, memory at most 4",
            o->tolerance, (long long)o->block, (long long)o->window, (long long)o->order, (long long)o->memory,
            o->max_sweeps);
    return DPCR_OK;
}

static bool fits(const dpcr_array *array, dpcr_dtype dtype, int32_t ndim, const int64_t *shape) {
    const dpcr_array wanted = dpcr_array_make(NULL, dtype, ndim, shape);
    bool good = array && array->data && array->dtype == dtype && array->ndim == ndim && array->device.type == DPCR_HOST;
    for (int32_t d = 0; good && d < ndim; d++)
        good = array->shape[d] == shape[d] && (array->strides[d] == wanted.strides[d] || shape[d] == 1);
    return good;
}

dpcr_status dpcr_sampler_solve(dpcr_sampler *sampler, const dpcr_sampling_options *options, const dpcr_array *z0,
                               const dpcr_array *z, dpcr_solve_report *report, dpcr_error *error) {
    dpcr_status status;
    dpcri_sweeping s = {.error = error};
    if (!sampler || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler_solve: sampler or options is NULL");
    const dpcr_steps *chain = &sampler->chain;
    const int64_t shape[3] = {chain->length, chain->batch, chain->width};
    const double began = dpcri_seconds();
    s = (dpcri_sweeping){.sampler = sampler,
                         .length = chain->length,
                         .batch = chain->batch,
                         .width = chain->width,
                         .dtype = chain->dtype,
                         .reason = DPCR_REASON_EXACT,
                         .error = error};
    DPCR_TRY(fill_options(&s, options));
    if (!fits(z0, chain->dtype, 2, shape + 1) || !fits(z, chain->dtype, 3, shape))
        DPCR_TRY(dpcri_fail(
            error, DPCR_ERROR_ARGUMENT, "sampler_solve: z0 or z is not contiguous %s [%lld][%lld] and [%lld] of that",
            dpcr_dtype_name(chain->dtype), (long long)chain->batch, (long long)chain->width, (long long)chain->length));
    s.z0 = *z0;
    s.z = *z;
    s.active = dpcri_alloc(sampler->context, (size_t)(s.batch > 0 ? s.batch : 1));
    if (!s.active) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler_solve: no memory for the sequences"));
    memset(s.active, 1, (size_t)s.batch);
    if (chain->batch > 0)
        DPCR_TRY(s.options.method == DPCR_SAMPLING_PARAREAL ? dpcri_solve_parareal(&s) : dpcri_solve_parataa(&s));
    if (report && report->size >= offsetof(dpcr_solve_report, seconds_evaluate)) {
        report->reason = s.reason;
        report->sweeps = s.sweeps;
        report->residual = s.residual;
        report->error_estimate = -1;
        report->seconds = dpcri_seconds() - began;
    }
done:
    if (sampler) dpcri_free(sampler->context, s.active);
    return status;
}
