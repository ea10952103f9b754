// SPDX-License-Identifier: MIT
// Tied steps over stages. Every stage has copies of its own, whose gradients are those of the untied network; the sum
// of a set runs through the stages in order,
//     sum_k = (..(g_k + g_{k+T}) + g_{k+2T}) + ..        k = 0 .. T-1, as dpcr_model_tie_gradients forms it
// and goes back from the last one to all ranks, where it takes every copy's place: equal copies, equal gradients and
// equal optimisers stay equal. One vector of T steps travels from owner to owner and then from the last to all.
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor.h"

int64_t dpcri_share_first_step(const dpcri_rank *rank, const dpcri_share *share) {
    return share->first_unit > 0 ? share->first_unit - (rank->model->options.inputs > 0) : 0;
}

static int64_t owner_of(const dpcri_rank *rank, int64_t stage) {
    return rank->table->where[DPCRI_AT_W][dpcri_cell(rank->table->schedule, stage, 0)];
}

typedef struct tied {
    dpcri_rank *rank;
    int64_t begin, end;  // stages of the chain
    size_t step, bytes;  // of one step, of the T sums
    char *sums;
} tied;

static int64_t tag_of(const tied *t, int64_t stage, int part) {
    return dpcri_tag(t->rank, DPCRI_MESSAGE_TWIN, stage, 1, part);
}

static void add_stage(const tied *t, const dpcri_share *share) {
    const char *g = dpcr_model_gradient_vector(share->layers.model);
    const int64_t first = dpcri_share_first_step(t->rank, share), tie = t->rank->model->options.tie;
    for (int64_t l = 0; l < share->layers.layers; l++) {
        char *sum = t->sums + (size_t)((first + l) % tie) * t->step;
        if (first + l < tie)
            memcpy(sum, g + (size_t)l * t->step, t->step);
        else
            dpcri_add_numbers(share->layers.steps.dtype, share->layers.model->program.parameters,
                              g + (size_t)l * t->step, sum);
    }
}

// A rank takes its stages in order, so whoever waits does so for a stage before.
static dpcr_status sum_up(const tied *t, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_rank *rank = t->rank;
    for (int64_t stage = t->begin; stage < t->end; stage++) {
        if (owner_of(rank, stage) != rank->index) continue;
        const int64_t before = stage > t->begin ? owner_of(rank, stage - 1) : rank->index;
        if (before != rank->index)
            DPCR_TRY(dpcri_receive(rank->comm, before, tag_of(t, stage, 0), t->sums, t->bytes, error));
        add_stage(t, dpcri_rank_share(rank, stage));
        const int64_t after = stage + 1 < t->end ? owner_of(rank, stage + 1) : rank->index;
        if (after != rank->index)
            DPCR_TRY(dpcri_send(rank->comm, after, tag_of(t, stage + 1, 0), t->sums, t->bytes, error));
    }
done:
    return status;
}

static bool owns_some(const tied *t, int64_t rank) {
    for (int64_t stage = t->begin; stage < t->end; stage++)
        if (owner_of(t->rank, stage) == rank) return true;
    return false;
}

static dpcr_status hand_out(const tied *t, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_rank *rank = t->rank;
    const int64_t last = owner_of(rank, t->end - 1), tie = rank->model->options.tie;
    for (int64_t r = 0; last == rank->index && r < rank->comm->ranks; r++)
        if (r != last && owns_some(t, r))
            DPCR_TRY(dpcri_send(rank->comm, r, tag_of(t, t->begin, 1), t->sums, t->bytes, error));
    if (last != rank->index)
        DPCR_TRY(dpcri_receive(rank->comm, last, tag_of(t, t->begin, 1), t->sums, t->bytes, error));
    for (int64_t stage = t->begin; stage < t->end; stage++) {
        if (owner_of(rank, stage) != rank->index) continue;
        const dpcri_share *share = dpcri_rank_share(rank, stage);
        const int64_t first = dpcri_share_first_step(rank, share);
        char *g = dpcr_model_gradient_vector(share->layers.model);
        for (int64_t l = 0; l < share->layers.layers; l++)
            memcpy(g + (size_t)l * t->step, t->sums + (size_t)((first + l) % tie) * t->step, t->step);
    }
done:
    return status;
}

dpcr_status dpcri_rank_tie(dpcri_rank *rank, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_schedule *s = rank->table->schedule;
    const int64_t chain = dpcri_chain_stages(s), sets = rank->model->options.tie;
    tied t = {.rank = rank, .step = (size_t)rank->model->program.parameters * rank->model->program.kernels->element};
    t.bytes = (size_t)sets * t.step;
    t.sums = dpcri_alloc_zero(rank->context, t.bytes + 1);
    if (!t.sums) return dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for the sums of tied weights");
    for (t.begin = 0; t.begin < s->stages; t.begin = t.end) {  // both chains of DualPipe, whose copies have sums alike
        t.end = t.begin + chain;
        if (!owns_some(&t, rank->index)) continue;
        DPCR_TRY(sum_up(&t, error));
        DPCR_TRY(hand_out(&t, error));
    }
done:
    dpcri_free(rank->context, t.sums);
    return status;
}
