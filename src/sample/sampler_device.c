// SPDX-License-Identifier: MIT
// A sampler's loop on a device, each line a launch or some:
//   for l:  m = network(z_{l-1}, s(t_l));  guided: plain = network without a class
//           z_l = step(z_{l-1}, m, noise_l);   heun: m1 at z_l and its time, and the step's second half
// The network's numbers and the shifts of all steps' times, made by the host, are sent when the sampler is made, and
// the noise with them; states stay where the caller has them. Work and bits: kern/cuda/sampling.h.
#include "sample/sampler_device.h"

// ---- setting up ----

static dpcr_status take(dpcri_sampler_device *d, const char *what, int64_t a, int64_t b, int64_t c, const float *from,
                        float **place, dpcr_error *error) {
    void *taken = NULL;
    const dpcr_status status = dpcri_pieces_take(&d->memory, what, a, b, c, sizeof(float), from, &taken, error);
    *place = taken;
    return status;
}

// The host's memory of it is the caller's again once the stream has been waited for.
static dpcr_status send_shifts(const dpcr_sampler *s, dpcri_sampler_device *d, int reading, dpcr_error *error) {
    dpcr_status status;
    const int64_t L = s->chain.length, numbers = d->model->shifts;
    bool overflow = false;
    const size_t bytes = dpcri_bytes(L, numbers, sizeof(float), &overflow);
    float *all = overflow ? NULL : dpcri_alloc_zero(s->context, bytes);
    if (!all)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler: no memory for the shifts of %lld steps", (long long)L);
    for (int64_t l = 0; l < L; l++)
        if (reading == 0 || s->steps[l].twice)
            dpcri_diffusion_shift(d->model, reading ? s->steps[l].second.time : s->steps[l].first.time,
                                  all + l * numbers);
    status = take(d, "the steps' shifts", L, numbers, 1, all, &d->shifts[reading], error);
    if (d->memory.stream) {
        const dpcr_status waited = dpcr_stream_wait(d->memory.device, d->memory.stream, error);
        if (status == DPCR_OK) status = waited;
    }
    dpcri_free(s->context, all);
    return status;
}

static dpcr_status send_classes(const dpcr_sampler *s, dpcri_sampler_device *d, dpcr_error *error) {
    dpcr_status status;
    const dpcr_diffusion *m = d->model;
    const int64_t classes = m->options.classes;
    void *taken = NULL;
    int32_t *rows = NULL;
    if (!classes) return DPCR_OK;
    DPCR_TRY(take(d, "the classes", classes + 1, m->shifts, 1, m->class_shift, &d->classes, error));
    rows = dpcri_alloc_zero(s->context, (size_t)(s->batch + 1) * sizeof *rows);
    if (!rows)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler: no memory for %lld labels", (long long)s->batch));
    for (int64_t b = 0; b < s->batch; b++) {
        const int32_t label = m->labels && b < m->batch ? m->labels[b] : -1;
        rows[b] = label < 0 ? (int32_t)classes : label;
    }
    DPCR_TRY(dpcri_pieces_take(&d->memory, "the labels", s->batch, 1, 1, sizeof *rows, rows, &taken, error));
    d->labels = taken;
    DPCR_TRY(dpcr_stream_wait(d->memory.device, d->memory.stream, error));
done:
    dpcri_free(s->context, rows);
    return status;
}

static dpcri_device_factors factors_of(const dpcri_step *step) {
    return (dpcri_device_factors){.x0_x = step->first.x0_x,
                                  .x0_m = step->first.x0_m,
                                  .e_x = step->first.e_x,
                                  .e_m = step->first.e_m,
                                  .by_x = step->x,
                                  .by_x0 = step->x0,
                                  .by_e = step->e,
                                  .by_former = step->previous,
                                  .by_noise = step->noise,
                                  .then_x0_x = step->second.x0_x,
                                  .then_x0_m = step->second.x0_m,
                                  .then_x = step->then_x,
                                  .then_x0 = step->then_x0,
                                  .then_x1 = step->then_x1,
                                  .then_x01 = step->then_x01,
                                  .alpha = step->alpha,
                                  .sigma = step->sigma,
                                  .twice = step->twice};
}

// Sweeps take them there, of all steps.
static dpcr_status send_factors(const dpcr_sampler *s, dpcri_sampler_device *d, dpcr_error *error) {
    const int64_t L = s->chain.length;
    bool overflow = false;
    void *taken = NULL;
    const size_t bytes = dpcri_bytes(L, 1, sizeof(dpcri_device_factors), &overflow);
    dpcri_device_factors *all = overflow ? NULL : dpcri_alloc_zero(s->context, bytes);
    if (!all)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "sampler: no memory for the factors of %lld steps", (long long)L);
    for (int64_t l = 0; l < L; l++) all[l] = factors_of(&s->steps[l]);
    dpcr_status status = dpcri_pieces_take(&d->memory, "the steps' factors", L, 1, 1, sizeof *all, all, &taken, error);
    d->steps = taken;
    const dpcr_status waited = dpcr_stream_wait(d->memory.device, d->memory.stream, status == DPCR_OK ? error : NULL);
    if (status == DPCR_OK) status = waited;
    dpcri_free(s->context, all);
    return status;
}

static dpcr_status send(const dpcr_sampler *s, dpcri_sampler_device *d, dpcr_error *error) {
    dpcr_status status;
    const dpcr_diffusion *m = d->model;
    const int64_t B = s->batch, w = s->width, L = s->chain.length;
    void *taken = NULL;
    DPCR_TRY(take(d, "the network", m->net.parameters, 1, 1, m->net.values, &d->values, error));
    DPCR_TRY(send_shifts(s, d, 0, error));
    if (s->options.kind == DPCR_SAMPLER_HEUN) DPCR_TRY(send_shifts(s, d, 1, error));
    DPCR_TRY(send_classes(s, d, error));
    if (s->noise) DPCR_TRY(take(d, "the noise", L, B, w, s->noise, &d->noise, error));
    if (s->mask) {
        DPCR_TRY(dpcri_pieces_take(&d->memory, "the mask", w, 1, 1, 1, s->mask, &taken, error));
        d->mask = taken;
        DPCR_TRY(take(d, "what is known", B, w, 1, s->known, &d->known, error));
        DPCR_TRY(take(d, "the first noise", B, w, 1, s->start, &d->start, error));
    }
    DPCR_TRY(send_factors(s, d, error));
    const int readings = s->options.kind == DPCR_SAMPLER_HEUN ? 2 : 1;
    for (int i = 0; i < readings; i++) {
        DPCR_TRY(take(d, "predictions", B, w, 1, NULL, &d->own.m[i], error));
        if (d->guided) DPCR_TRY(take(d, "predictions", B, w, 1, NULL, &d->own.plain[i], error));
    }
    for (int i = 0; i < 2; i++) DPCR_TRY(take(d, "hidden layers", B, m->options.hidden, 1, NULL, &d->own.h[i], error));
done:
    return status;
}

dpcr_status dpcri_sampler_device_create(dpcr_sampler *s, dpcr_error *error) {
    static const char *const call = "sampler_create";
    dpcr_status status;
    const dpcr_diffusion *model = dpcri_diffusion_of(&s->denoiser);
    if (!model)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "%s: a denoiser of one's own on a device; those of dpcr_diffusion_denoiser work there", call);
    dpcri_sampler_device *d = s->there = dpcri_alloc_zero(s->context, sizeof *d);
    if (!d) return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for the sampler's device", call);
    dpcri_pieces *m = &d->memory;
    d->model = model;
    d->guided = dpcri_diffusion_guided(model);
    d->guidance = model->guidance;
    m->call = call;
    m->device = s->options.device;
    DPCR_TRY(dpcri_device_ready(m->device, call, &m->table, error));
    DPCR_TRY(dpcri_kernels_of(m->device, call, &d->kernels, error));
    DPCR_TRY(dpcr_stream_create(m->device, &m->stream, error));
    status = send(s, d, error);
    const dpcr_status waited = dpcr_stream_wait(m->device, m->stream, status == DPCR_OK ? error : NULL);
    if (status == DPCR_OK) status = waited;
done:
    return status;
}

void dpcri_sampler_device_destroy(dpcr_sampler *s) {
    dpcri_sampler_device *d = s->there;
    if (!d) return;
    dpcri_pieces_release(&d->memory);
    if (d->memory.stream) dpcr_stream_destroy(d->memory.device, d->memory.stream);
    dpcri_free(s->context, d);
    s->there = NULL;
}

// ---- evaluating ----

// Layer `index` of the network, counted from its first one; `last` of depth layers starts from its bias.
static dpcri_device_dense layer_of(const dpcr_sampler *s, int index, const float *shifts, bool classless) {
    const dpcri_sampler_device *d = s->there;
    const dpcr_diffusion *m = d->model;
    const dpcri_dense *layer = &m->net.layers[m->first + index];
    const bool last = index == m->options.depth;
    const int64_t W = m->options.hidden, classes = m->options.classes;
    dpcri_device_dense a = {.activation = layer->activation,
                            .residual = layer->residual,
                            .in = layer->in,
                            .out = layer->out,
                            .weight = d->values + layer->weight,
                            .bias = last ? d->values + layer->weight + layer->in * layer->out : shifts + index * W,
                            .bias_row = last ? 0 : m->shifts};
    if (last || !classes) return a;
    a.more = d->classes + index * W + (classless ? classes * m->shifts : 0);
    a.more_row = m->shifts;
    a.index = classless ? NULL : d->labels;
    return a;
}

// What the network says of the rows, to `to`; shifts are of the first step, or with a window of all.
static dpcr_status evaluate(const dpcr_sampler *s, const dpcri_sampler_rows *x, const float *shifts, bool classless,
                            float *const *h, float *to, void *stream, dpcr_error *error) {
    const dpcri_sampler_device *d = s->there;
    const int depth = (int)d->model->options.depth;
    const float *from = x->x;
    int64_t row = x->row;
    for (int i = 0; i <= depth; i++) {
        dpcri_device_dense a = layer_of(s, i, shifts, classless);
        a.rows = x->rows, a.window = x->window;
        a.path = x->path && i == 0;
        a.x = from, a.x_row = row;
        a.y = i == depth ? to : h[i % 2];
        a.y_row = a.out;
        const dpcr_status status = d->kernels->dense(d->memory.device.id, &a, stream, error);
        if (status != DPCR_OK) return status;
        from = a.y, row = a.out;
    }
    return DPCR_OK;
}

// What the network says of x at the steps' first or second times.
static dpcr_status predict(dpcr_sampler *s, int64_t l, int reading, const dpcri_sampler_rows *x,
                           const dpcri_sampler_space *space, void *stream, dpcr_error *error) {
    dpcr_status status;
    const dpcri_sampler_device *d = s->there;
    const float *shifts = d->shifts[reading] + l * d->model->shifts;
    s->calls++;
    DPCR_TRY(evaluate(s, x, shifts, false, space->h, space->m[reading], stream, error));
    if (d->guided) DPCR_TRY(evaluate(s, x, shifts, true, space->h, space->plain[reading], stream, error));
done:
    return status;
}

static dpcri_device_denoise denoise_of(const dpcr_sampler *s, const dpcri_sampler_rows *x,
                                       const dpcri_sampler_space *space, float *to, int64_t to_row) {
    const dpcri_sampler_device *d = s->there;
    dpcri_device_denoise a = {.rows = x->rows,
                              .width = s->width,
                              .clip = s->options.clip,
                              .steps = d->steps,
                              .guidance = (float)d->guidance,
                              .x = x->x,
                              .x_row = x->row,
                              .m = space->m[0],
                              .plain = space->plain[0],
                              .noise = d->noise,
                              .to = to,
                              .to_row = to_row,
                              .mask = d->mask,
                              .known = d->known,
                              .start = d->start,
                              .window = x->window};
    if (s->p) {  // a state is x and the former x0
        a.former = x->x + s->width, a.former_row = x->row;
        a.kept = to + s->width, a.kept_row = to_row;
    }
    return a;
}

// A step of the rows, or those of a window, its second half where any has one.
static dpcr_status run_steps(dpcr_sampler *s, int64_t l, const dpcri_sampler_rows *x, bool twice,
                             const dpcri_sampler_space *space, float *to, int64_t to_row, void *stream,
                             dpcr_error *error) {
    dpcr_status status;
    const dpcri_sampler_device *d = s->there;
    dpcri_device_denoise a = denoise_of(s, x, space, to, to_row);
    if (!x->window.count) {
        a.by = factors_of(&s->steps[l]);
        if (a.noise) a.noise += l * s->batch * s->width;
    }
    DPCR_TRY(predict(s, l, 0, x, space, stream, error));
    DPCR_TRY(d->kernels->denoise(d->memory.device.id, &a, stream, error));
    if (!twice) goto done;
    const dpcri_sampler_rows again = {.x = to, .row = to_row, .rows = x->rows, .window = x->window};
    DPCR_TRY(predict(s, l, 1, &again, space, stream, error));
    a.m1 = space->m[1], a.plain1 = space->plain[1];
    DPCR_TRY(d->kernels->denoise(d->memory.device.id, &a, stream, error));
done:
    return status;
}

dpcr_status dpcri_sampler_evaluate(dpcr_sampler *s, const dpcri_sampler_rows *x, const dpcri_sampler_space *space,
                                   float *to, void *stream, dpcr_error *error) {
    return run_steps(s, 0, x, s->options.kind == DPCR_SAMPLER_HEUN, space, to, s->chain.width, stream, error);
}

// ---- the loop ----

static dpcr_status run_loop(dpcr_sampler *s, const dpcr_launch *what, dpcr_error *error) {
    dpcr_status status;
    const dpcri_pieces *m = &s->there->memory;
    DPCR_TRY(
        m->table->fill(m->device.id, what->outcome, 0, (size_t)s->batch * sizeof *what->outcome, what->stream, error));
    dpcri_sampler_rows x = {.x = what->z0->data, .row = what->z0->strides[0], .rows = s->batch};
    for (int64_t l = 0; l < s->chain.length; l++) {
        const bool twice = s->steps[l].twice;
        float *const to = (float *)what->z->data + l * what->z->strides[0];
        s->rows += twice ? 2 * s->batch : s->batch;
        DPCR_TRY(run_steps(s, l, &x, twice, &s->there->own, to, what->z->strides[1], what->stream, error));
        x.x = to, x.row = what->z->strides[1];
    }
done:
    return status;
}

static dpcr_status check(const dpcr_sampler *s, const dpcr_launch *what, dpcr_error *error) {
    const dpcr_device device = s->there->memory.device;
    const int m = what->method;
    if (what->device.type != device.type || what->device.id != device.id)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: a plan of another device than the sampler's");
    if (what->backward || (m != DPCR_METHOD_SEQUENTIAL && m != DPCR_METHOD_PICARD && m != DPCR_METHOD_PARATAA))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "sampler: %s on a device; the loop (sequential), picard and parataa work there",
                          what->backward ? "a way back" : dpcr_method_name((dpcr_method)m));
    if (what->z && !what->z0) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "sampler: z0 is NULL, where it begins");
    return DPCR_OK;
}

dpcr_status dpcri_sampler_launch(void *user, dpcr_launch *what, dpcr_error *error) {
    dpcr_sampler *s = user;
    const dpcr_status status = check(s, what, error);
    if (status != DPCR_OK) return status;
    if (what->method != DPCR_METHOD_SEQUENTIAL) return dpcri_sampler_sweeps(s, what, error);
    if (what->z) return run_loop(s, what, error);
    what->bytes = 0;
    return DPCR_OK;
}
