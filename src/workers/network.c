// SPDX-License-Identifier: MIT
#include "workers/network.h"

#include <string.h>

#include "model/model_internal.h"
#include "train/loss.h"

// ---- groups ----

// Unit u ends a group where the parameters so far have reached the group's share, and where as many units are left as
// groups.
dpcr_status dpcri_groups_cut(dpcr_context *context, const dpcr_model *model, int64_t *groups, int64_t **first,
                             dpcr_error *error) {
    const int64_t units = dpcri_units_of(model), wanted = *groups < units ? *groups : units;
    const double each = (double)model->count / (double)wanted;
    int64_t *cut = dpcri_alloc(context, (size_t)(wanted + 1) * sizeof *cut);
    if (!cut) return dpcri_fail(error, DPCR_ERROR_MEMORY, "workers: no memory for %lld groups", (long long)wanted);
    double so_far = 0;
    int64_t made = 0;
    cut[0] = 0;
    for (int64_t u = 0; u < units; u++) {
        so_far += (double)dpcri_units_count(model, u, u + 1);
        const bool full = so_far >= each * (double)(made + 1) && made + 1 < wanted, scarce = units - u <= wanted - made;
        if (full || scarce || u + 1 == units) cut[++made] = u + 1;
    }
    *groups = made;
    *first = cut;
    return DPCR_OK;
}

size_t dpcri_model_bytes(const dpcr_model *model) { return (size_t)model->count * model->program.kernels->element; }

// ---- networks ----

dpcr_status dpcri_network_create(dpcri_network *n, dpcr_context *context, const dpcr_model *model, const int64_t *first,
                                 int64_t groups, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    *n = (dpcri_network){.context = context, .model = model, .first = first, .groups = groups};
    n->group = dpcri_alloc_zero(context, (size_t)groups * sizeof *n->group);
    if (!n->group) return dpcri_fail(error, DPCR_ERROR_MEMORY, "workers: no memory for %lld groups", (long long)groups);
    for (; n->made < groups; n->made++)
        DPCR_TRY(dpcri_stage_create(&n->group[n->made], context, model, first[n->made], first[n->made + 1], error));
done:
    return status;
}

void dpcri_network_destroy(dpcri_network *n) {
    if (!n->group) return;
    for (int64_t g = 0; g < n->made; g++) dpcri_stage_destroy(&n->group[g]);
    dpcri_free(n->context, n->group);
    *n = (dpcri_network){0};
}

void *dpcri_network_gradients(const dpcri_network *n, int64_t group) { return n->group[group].model->gradients; }

int64_t dpcri_network_first_step(const dpcri_network *n, int64_t group) {
    return n->first[group] > 0 ? n->first[group] - (n->model->options.inputs > 0) : 0;
}

// The gradient of a step, wherever it lies; *group begins at one at or before its own.
static char *gradient_of(const dpcri_network *n, int64_t step, int64_t *group) {
    while (step >= dpcri_network_first_step(n, *group) + n->group[*group].layers) ++*group;
    const size_t bytes = (size_t)n->model->program.parameters * n->group[*group].element;
    return n->group[*group].model->gradients + (size_t)(step - dpcri_network_first_step(n, *group)) * bytes;
}

void dpcri_network_tie(const dpcri_network *n) {
    const int64_t tie = n->model->options.tie, layers = n->model->options.layers, each = n->model->program.parameters;
    int64_t group = 0;
    for (int64_t l = tie; tie && l < layers; l++) {
        int64_t to = 0;
        const char *from = gradient_of(n, l, &group);
        dpcri_add_numbers(n->model->options.dtype, each, from, gradient_of(n, l % tie, &to));
    }
    group = 0;
    for (int64_t l = tie; tie && l < layers; l++) {
        int64_t from = 0;
        char *to = gradient_of(n, l, &group);
        memcpy(to, gradient_of(n, l % tie, &from), (size_t)each * n->group[0].element);
    }
}

// ---- minibatches ----

// From `memory` on (NULL: counts); false on overflow.
static bool lay(dpcri_minibatch *b, const dpcri_network *n, int64_t rows, char *memory, size_t *bytes) {
    *bytes = 0;
    for (int64_t g = 0; g < n->groups; g++) {
        size_t used = 0;
        if (!dpcri_stage_lay_out(&n->group[g], rows, 1, true, memory ? memory + *bytes : NULL, &b->kept[g], &used))
            return false;
        *bytes += used;
        if (*bytes > SIZE_MAX / 4) return false;
    }
    return true;
}

dpcr_status dpcri_minibatch_create(dpcri_minibatch *b, dpcr_context *context, const dpcri_network *n, int64_t most,
                                   dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    size_t bytes = 0;
    *b = (dpcri_minibatch){.context = context, .most = most};
    b->kept = dpcri_alloc_zero(context, (size_t)n->groups * sizeof *b->kept);
    b->labels = dpcri_alloc(context, (size_t)most + 1);
    if (!b->kept || !b->labels) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "workers: no memory for a minibatch"));
    if (!lay(b, n, most, NULL, &bytes))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "workers: the size of a minibatch does not fit"));
    b->memory = dpcri_alloc(context, bytes + 1);
    if (!b->memory)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "workers: no memory for a minibatch of %lld rows (%zu bytes)",
                            (long long)most, bytes));
done:
    return status;
}

void dpcri_minibatch_destroy(dpcri_minibatch *b) {
    if (!b->context) return;
    dpcri_free(b->context, b->memory);
    dpcri_free(b->context, b->labels);
    dpcri_free(b->context, b->kept);
    *b = (dpcri_minibatch){0};
}

void dpcri_minibatch_lay(dpcri_minibatch *b, const dpcri_network *n, int64_t rows) {
    size_t bytes;
    b->rows = rows;
    lay(b, n, rows, b->memory, &bytes);
}

char *dpcri_minibatch_input(const dpcri_minibatch *b, const dpcri_network *n) {
    return n->group[0].inputs ? b->kept[0].x : b->kept[0].z;
}

// ---- tasks ----

static size_t state_bytes(const dpcri_network *n, const dpcri_minibatch *b) {
    return (size_t)(b->rows * n->group[0].width) * n->group[0].element;
}

dpcr_status dpcri_network_forward(dpcri_network *n, dpcri_minibatch *b, int64_t g, dpcr_error *error) {
    if (g > 0) memcpy(b->kept[g].z, dpcri_stage_result(&n->group[g - 1], &b->kept[g - 1]), state_bytes(n, b));
    return dpcri_stage_forward(&n->group[g], &b->kept[g], error);
}

dpcr_status dpcri_network_input(dpcri_network *n, dpcri_minibatch *b, int64_t g, dpcr_error *error) {
    if (g + 1 < n->groups) memcpy(b->kept[g].dz, b->kept[g + 1].dx[0], state_bytes(n, b));
    return dpcri_stage_input(&n->group[g], &b->kept[g], 0, error);
}

dpcr_status dpcri_network_weight(dpcri_network *n, dpcri_minibatch *b, int64_t g, dpcr_error *error) {
    return dpcri_stage_weight(&n->group[g], &b->kept[g], error);
}

dpcr_status dpcri_network_loss(dpcri_network *n, dpcri_minibatch *b, int64_t whole, double *losses, int64_t *correct,
                               dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_stage *head = &n->group[n->groups - 1];
    const int64_t shape[] = {1, head->outputs};
    for (int64_t r = 0; r < b->rows; r++) {
        char *at = b->kept[n->groups - 1].logits + (size_t)(r * head->outputs) * head->element;
        const dpcr_array logits = dpcr_array_make(at, head->steps.dtype, 2, shape);
        losses[r] = 0;
        DPCR_TRY(dpcri_loss_cross_entropy_part(&logits, &b->labels[r], whole, &losses[r], &logits, correct, error));
    }
done:
    return status;
}
