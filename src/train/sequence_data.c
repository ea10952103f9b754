// SPDX-License-Identifier: MIT
// The data of sequence models: what is refused of them, and batches of labelled sequences, step by step.
#include <string.h>

#include "rt/rt.h"
#include "train/sequence.h"

dpcr_status dpcri_sequence_check_data(const char *call, const dpcr_sequence *m, const dpcr_sequence_data *data,
                                      dpcr_error *error) {
    const dpcr_sequence_options *o = &m->options;
    if (data->size < sizeof *data)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: data.size is %zu, wanted sizeof(dpcr_sequence_data)", call,
                          data->size);
    if (data->text) {
        if (o->readout != DPCR_READOUT_EACH || !o->symbols || o->outputs != o->symbols || o->network.bidirectional ||
            o->network.reverse)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "%s: a text wants a model with the readout each, symbols and as many outputs, and a "
                              "network that runs forward alone",
                              call);
        for (int64_t i = 0; i < data->count; i++)
            if (data->text[i] >= o->symbols)
                return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                  "%s: symbol %lld of the text is %d, wanted less than %lld", call, (long long)i,
                                  data->text[i], (long long)o->symbols);
        return DPCR_OK;
    }
    if (!data->read || data->count < 1 || data->longest < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: no sequences: wanted count, longest >= 1 and read", call);
    if (o->readout == DPCR_READOUT_EACH || o->symbols)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: labelled sequences want a model of vectors with the readout last or mean", call);
    if (data->features != o->network.inputs)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the data have %lld numbers a step, wanted %lld", call,
                          (long long)data->features, (long long)o->network.inputs);
    return DPCR_OK;
}

void dpcri_sequence_read(const dpcr_sequence_data *data, int64_t index, float *x, int64_t *length, uint8_t *label) {
    const int64_t T = data->longest;
    *length = T;
    memset(x, 0, (size_t)(T * data->features) * sizeof *x);
    data->read(data->user, index, x, length, label);
    *length = *length < 1 ? 1 : *length > T ? T : *length;
}

typedef struct gathering {
    const dpcri_sequence_pass *pass;
    const dpcr_sequence_data *data;
    const int64_t *order;  // NULL: in their own
    int64_t first;
    float *rows;  // [B][longest][features]
} gathering;

static void gather_row(void *argument, int64_t b) {
    const gathering *g = argument;
    const dpcri_sequence_pass *p = g->pass;
    const int64_t at = g->first + b < g->data->count ? g->first + b : g->data->count - 1;
    const int64_t T = g->data->longest, I = g->data->features, B = p->shape.batch;
    float *from = g->rows + b * T * I;
    int64_t length;
    dpcri_sequence_read(g->data, g->order ? g->order[at] : at, from, &length, &p->labels[b]);
    if (p->lengths) p->lengths[b] = length;
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < I; i++) {
            const int64_t to = (t * B + b) * I + i;
            if (dpcri_sequence_dtype(p->model) == DPCR_F64)
                ((double *)p->x)[to] = from[t * I + i];
            else
                ((float *)p->x)[to] = from[t * I + i];
        }
}

dpcr_status dpcri_sequence_gather(const char *call, dpcri_sequence_pass *p, const dpcr_sequence_data *data,
                                  const int64_t *order, int64_t first, dpcr_error *error) {
    const int64_t B = p->shape.batch;
    bool overflow = false;
    const size_t bytes = dpcri_bytes(data->longest, data->features, B * (int64_t)sizeof(float), &overflow);
    float *rows = overflow ? NULL : dpcri_alloc(p->context, bytes);
    if (!rows) return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for a batch (%zu bytes)", call, bytes);
    gathering g = {.pass = p, .data = data, .order = order, .first = first, .rows = rows};
    dpcri_parallel(p->context, B, gather_row, &g);
    dpcri_free(p->context, rows);
    for (int64_t b = 0; b < B; b++)
        if (p->labels[b] >= p->model->options.outputs)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: label of row %lld is %d, wanted less than %lld", call,
                              (long long)b, p->labels[b], (long long)p->model->options.outputs);
    return DPCR_OK;
}
