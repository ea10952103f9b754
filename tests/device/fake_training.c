// SPDX-License-Identifier: MIT
// What the stand-in's training is made of besides chains, in the formulas' own order.
#include <string.h>

#include "base/random.h"
#include "fake_kernels.h"

#define DEFINE_UPDATE(name, T, root_of)                                                      \
    static void name(const dpcri_device_update *u) {                                         \
        T *p = u->parameters, *g = u->gradients, *m = u->first, *v = u->second;              \
        for (int64_t i = 0; i < u->count; i++) {                                             \
            const T x = u->adam ? (T)u->keep * p[i] : p[i];                                  \
            T d = g[i] + (T)u->decay * x;                                                    \
            if (u->adam) {                                                                   \
                m[i] = (u->from_gradient ? d : m[i]) + (T)u->pull * (d - m[i]);              \
                v[i] = (T)u->beta2 * v[i] + (T)u->rest2 * d * d;                             \
                p[i] = x - (T)u->step * m[i] / (root_of(v[i]) * (T)u->root + (T)u->epsilon); \
            } else {                                                                         \
                if (m) m[i] = d = (T)u->momentum * m[i] + d;                                 \
                p[i] = x - (T)u->rate * d;                                                   \
            }                                                                                \
            if (u->clear) g[i] = 0;                                                          \
        }                                                                                    \
    }
DEFINE_UPDATE(update_f32, float, sqrtf)
DEFINE_UPDATE(update_f64, double, sqrt)
#undef DEFINE_UPDATE

dpcr_status fake_update(int id, const dpcri_device_update *u, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    (u->dtype == DPCR_F32 ? update_f32 : update_f64)(u);
    return DPCR_OK;
}

// In the blocks and parts of kern/device.h, whose order is the bits.
static void add_squares(dpcr_dtype dtype, int64_t count, const void *gradients, double *sum) {
    const int64_t even = (count + DPCRI_CLIP_BLOCKS - 1) / DPCRI_CLIP_BLOCKS;
    const int64_t block = even < DPCRI_CLIP_LEAST ? DPCRI_CLIP_LEAST : even;
    for (int64_t from = 0; from < count; from += block) {
        double part[DPCRI_CLIP_PARTS] = {0}, of_block = 0;
        for (int64_t i = from; i < count && i < from + block; i++) {
            const double g = get(dtype, gradients, i);
            part[(i - from) % DPCRI_CLIP_PARTS] += g * g;
        }
        for (int j = 0; j < DPCRI_CLIP_PARTS; j++) of_block += part[j];
        *sum += of_block;
    }
}

static void scale(dpcr_dtype dtype, int64_t count, void *gradients, double factor) {
    for (int64_t i = 0; i < count; i++) {
        if (dtype == DPCR_F32)
            ((float *)gradients)[i] *= (float)factor;
        else
            ((double *)gradients)[i] *= factor;
    }
}

dpcr_status fake_clip(int id, const dpcri_device_clip *c, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    double sum = 0;
    add_squares(c->dtype, c->count, c->gradients, &sum);
    add_squares(c->dtype, c->more_count, c->more, &sum);
    c->sums[0] = sqrt(sum);
    const double factor = c->most / (c->sums[0] + 1e-6);
    if (factor >= 1 || isinf(c->most)) return DPCR_OK;
    scale(c->dtype, c->count, c->gradients, factor);
    scale(c->dtype, c->more_count, c->more, factor);
    return DPCR_OK;
}

dpcr_status fake_tie(int id, const dpcri_device_tie *t, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t l = t->tie; l < t->steps; l++)
        for (int64_t i = 0; i < t->each; i++) {
            const int64_t to = l % t->tie * t->each + i, from = l * t->each + i;
            put(t->dtype, t->gradients, to, get(t->dtype, t->gradients, to) + get(t->dtype, t->gradients, from));
        }
    for (int64_t l = t->tie; l < t->steps; l++)
        for (int64_t i = 0; i < t->each; i++)
            put(t->dtype, t->gradients, l * t->each + i, get(t->dtype, t->gradients, l % t->tie * t->each + i));
    return DPCR_OK;
}

dpcr_status fake_affine(int id, const dpcri_device_affine *a, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t u = 0; u < a->out; u++) {
            double sum = a->backward ? get(a->dtype, a->y, r * a->out + u) : get(a->dtype, a->bias, u);
            for (int64_t k = 0; k < a->in; k++) {
                const int64_t w = a->out_in ? u * a->in + k : k * a->out + u, x = r * a->in + k;
                if (!a->backward) sum += get(a->dtype, a->x, x) * get(a->dtype, a->weight, w);
                if (a->backward && a->dx)
                    put(a->dtype, a->dx, x, (u > 0 ? get(a->dtype, a->dx, x) : 0) + sum * get(a->dtype, a->weight, w));
                if (a->backward && a->weight_gradient)
                    put(a->dtype, a->weight_gradient, w,
                        get(a->dtype, a->weight_gradient, w) + sum * get(a->dtype, a->x, x));
            }
            if (!a->backward)
                put(a->dtype, a->y, r * a->out + u, sum);
            else if (a->bias_gradient)
                put(a->dtype, a->bias_gradient, u, get(a->dtype, a->bias_gradient, u) + sum);
        }
    return DPCR_OK;
}

dpcr_status fake_loss(int id, const dpcri_device_loss *l, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    l->told[0] = l->told[1] = 0;
    for (int64_t r = 0; r < l->rows; r++) {
        const int64_t row = r * l->classes;
        int64_t best = 0;
        double sum = 0;
        for (int64_t j = 1; j < l->classes; j++)
            if (get(l->dtype, l->logits, row + j) > get(l->dtype, l->logits, row + best)) best = j;
        const double max = get(l->dtype, l->logits, row + best);
        for (int64_t j = 0; j < l->classes; j++) sum += exp(get(l->dtype, l->logits, row + j) - max);
        l->told[0] += (max - get(l->dtype, l->logits, row + l->labels[r]) + log(sum)) / (double)l->rows;
        l->told[1] += best == l->labels[r];
        for (int64_t j = 0; l->dlogits && j < l->classes; j++)
            put(l->dtype, l->dlogits, row + j,
                (exp(get(l->dtype, l->logits, row + j) - max) / sum - (j == l->labels[r])) / (double)l->rows);
    }
    return DPCR_OK;
}

dpcr_status fake_shuffle(int id, const dpcri_device_shuffle *s, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t i = 0; i < s->count; i++) s->order[i] = i;
    for (int64_t i = 0; i + 1 < s->count; i++) {
        const int64_t j = i + (int64_t)dpcri_random_below(s->seed, s->stream, (uint64_t)i, (uint64_t)(s->count - i));
        const int64_t kept = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = kept;
    }
    return DPCR_OK;
}

dpcr_status fake_gather(int id, const dpcri_device_gather *g, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t r = 0; r < g->rows; r++) {
        const int64_t image = g->order ? g->order[g->first + r] : g->first + r;
        for (int64_t i = 0; i < g->pixels; i++)
            put(g->dtype, g->x, r * g->pixels + i, get(g->dtype, g->table, g->images[image * g->pixels + i]));
        g->y[r] = g->labels[image];
    }
    return DPCR_OK;
}

static int64_t steps_of(const int64_t *lengths, int64_t row, int64_t length) { return lengths ? lengths[row] : length; }

dpcr_status fake_sequences(int id, const dpcri_device_sequences *s, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t asked = s->first + r, at = asked < s->count ? asked : s->count - 1;
        const int64_t from = s->order ? s->order[at] : at;
        for (int64_t t = 0; t < s->length; t++)
            for (int64_t i = 0; i < s->features; i++)
                put(s->dtype, s->x, (t * s->rows + r) * s->features + i,
                    (double)s->data[(from * s->length + t) * s->features + i]);
        s->y[r] = s->labels[from];
        const int64_t parts = s->parts > 1 ? s->parts : 1;
        for (int64_t k = 0, begin = 0; s->steps && k < parts; k++) {
            const int64_t end = s->length - (parts - 1 - k) * s->part, left = s->lengths[from] - begin;
            s->steps[k * s->rows + r] = left < 0 ? 0 : left < end - begin ? left : end - begin;
            begin = end;
        }
    }
    return DPCR_OK;
}

dpcr_status fake_embedding(int id, const dpcri_device_embedding *e, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t n = 0; n < e->length * e->rows; n++) {
        if (!e->backward) {
            const uint8_t *const from = e->text + e->first + n % e->rows * e->stream + n / e->rows;
            e->indices[n] = from[0];
            e->labels[n] = from[1];
        }
        for (int64_t j = 0; j < e->width; j++) {
            const int64_t w = e->indices[n] * e->width + j, x = n * e->width + j;
            if (e->backward)
                add(e->dtype, e->weight_gradient, w, get(e->dtype, e->x, x));
            else
                put(e->dtype, e->x, x, get(e->dtype, e->weight, w));
        }
    }
    return DPCR_OK;
}

// The number of the states that number `n` of v is, of the last ones.
static int64_t state_of(const dpcri_device_readout *r, int64_t n) {
    const int64_t own = r->width / r->parts, row = n / r->width, part = n % r->width / own;
    return (part * r->rows + row) * own + n % own;
}

dpcr_status fake_readout(int id, const dpcri_device_readout *r, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t n = 0; n < r->rows * r->width; n++) {
        if (!r->mean && r->backward) put(r->dtype, r->states, state_of(r, n), get(r->dtype, r->v, n));
        if (!r->mean && !r->backward) put(r->dtype, r->v, n, get(r->dtype, r->states, state_of(r, n)));
        if (!r->mean) continue;
        const int64_t steps = steps_of(r->lengths, n / r->width, r->length);
        const double share = 1.0 / (double)(steps > 0 ? steps : 1);
        double sum = 0;
        for (int64_t t = 0; t < r->length; t++) {
            const int64_t at = t * r->rows * r->width + n;
            if (r->backward)
                put(r->dtype, r->states, at, t < steps ? share * get(r->dtype, r->v, n) : 0);
            else if (t < steps)
                sum += share * get(r->dtype, r->states, at);
        }
        if (!r->backward) put(r->dtype, r->v, n, sum);
    }
    return DPCR_OK;
}

dpcr_status fake_drop(int id, const dpcri_device_drop *d, void *stream, dpcr_error *error) {
    (void)id;
    (void)stream;
    (void)error;
    for (int64_t t = 0; t < d->length; t++)
        for (int64_t b = 0; b < d->rows; b++)
            for (int64_t i = 0; i < d->width; i++) {
                const int64_t at = (t * d->rows + b) * d->width + i;
                const double scale = d->dtype == DPCR_F32 ? (double)(float)d->scale : d->scale;
                uint32_t words[4];
                dpcri_random_block(d->seed, (uint64_t)t << 32 | (uint64_t)b, (uint64_t)i / 4, words);
                const bool kept = words[i % 4] >= d->below && scale != 0;
                put(d->dtype, d->to, at, kept ? get(d->dtype, d->from, at) * scale : 0);
            }
    return DPCR_OK;
}
