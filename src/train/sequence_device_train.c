// SPDX-License-Identifier: MIT
// What training keeps on a device besides a pass: parameters and the optimisers' state, sent there when a run begins
// and brought home for checkpoints, and the updates.
#include "train/optimiser.h"
#include "train/sequence_device.h"

static dpcr_status take_state(dpcri_sequence_device *d, int i, bool wanted, dpcr_array *state, dpcr_error *error) {
    void *taken = NULL;
    const dpcr_array *like = &d->parameters[i];
    if (!wanted) return DPCR_OK;
    const dpcr_status status = dpcri_pieces_take(&d->memory, "the optimiser's state", like->shape[0], 1, 1,
                                                 d->model->kernels->element, NULL, &taken, error);
    *state = *like;
    state->data = taken;
    return status;
}

dpcr_status dpcri_sequence_device_keep(dpcri_sequence_device *d, dpcr_optimiser *network, dpcr_optimiser *ends,
                                       double clip, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    void *taken = NULL;
    d->optimisers[0] = network;
    d->optimisers[1] = ends;
    d->clip = clip;
    for (int i = 0; i < DPCRI_SEQUENCE_VECTORS; i++) {
        DPCR_TRY(take_state(d, i, d->optimisers[i]->first != NULL, &d->first[i], error));
        DPCR_TRY(take_state(d, i, d->optimisers[i]->second != NULL, &d->second[i], error));
    }
    if (clip > 0)
        DPCR_TRY(dpcri_pieces_take(&d->memory, "clipping", 1 + DPCRI_SEQUENCE_VECTORS * DPCRI_CLIP_BLOCKS, 1, 1,
                                   sizeof *d->sums, NULL, &taken, error));
    d->sums = taken;
done:
    return status;
}

dpcr_status dpcri_sequence_device_move(dpcri_sequence_device *d, dpcri_direction direction, void *h, void *c,
                                       dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_pieces *m = &d->memory;
    const size_t element = d->model->kernels->element;
    const int64_t rows = d->model->chains * d->shape.batch;
    struct pair {
        void *there, *home;
        int64_t numbers;
    } pairs[3 * DPCRI_SEQUENCE_VECTORS + 2];
    int count = 0;
    for (int i = 0; i < DPCRI_SEQUENCE_VECTORS; i++) {
        const int64_t numbers = d->parameters[i].shape[0];
        void *const own = i == 0 ? dpcr_recurrent_vector(d->model->network, NULL) : (void *)d->model->parameters;
        pairs[count++] = (struct pair){d->parameters[i].data, own, numbers};
        pairs[count++] = (struct pair){d->first[i].data, d->optimisers[i]->first, numbers};
        pairs[count++] = (struct pair){d->second[i].data, d->optimisers[i]->second, numbers};
    }
    pairs[count++] = (struct pair){d->h[d->turn], h, rows * d->model->projected};
    pairs[count++] = (struct pair){d->c[d->turn], c, rows * d->model->options.network.hidden};
    for (int i = 0; i < count; i++) {
        const struct pair *p = &pairs[i];
        const bool there = direction == DPCRI_TO_DEVICE;
        if (!p->there || !p->home || p->numbers == 0) continue;
        DPCR_TRY(m->table->copy(m->device.id, there ? p->there : p->home, there ? p->home : p->there,
                                (size_t)p->numbers * element, direction, m->stream, error));
    }
    DPCR_TRY(dpcr_stream_wait(m->device, m->stream, error));
done:
    return status;
}

static dpcr_status clip(const dpcri_sequence_device *d, dpcr_error *error) {
    const dpcri_device_clip c = {.dtype = dpcri_sequence_dtype(d->model),
                                 .count = d->gradients[0].shape[0],
                                 .gradients = d->gradients[0].data,
                                 .most = d->clip,
                                 .sums = d->sums,
                                 .more_count = d->gradients[1].shape[0],
                                 .more = d->gradients[1].data};
    return d->sums ? d->kernels->clip(d->memory.device.id, &c, d->memory.stream, error) : DPCR_OK;
}

dpcr_status dpcri_sequence_device_update(dpcri_sequence_device *d, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(clip(d, error));
    for (int i = 0; i < DPCRI_SEQUENCE_VECTORS; i++)
        DPCR_TRY(dpcr_optimiser_enqueue(d->optimisers[i], &d->parameters[i], &d->gradients[i],
                                        d->first[i].data ? &d->first[i] : NULL,
                                        d->second[i].data ? &d->second[i] : NULL, 1, d->memory.stream, error));
    if (d->h[d->turn]) d->turn = 1 - d->turn;
done:
    return status;
}
