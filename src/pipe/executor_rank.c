// SPDX-License-Identifier: MIT
// A rank's run of its row. Each action takes what it needs, waiting where another rank makes it, computes, and gives
// its result on: into the memory of the next stage where that is here, else as a message. Sends never wait, and rows of
// a valid schedule never wait for each other, so a rank waits only for work that is under way.
//
// Results travel from F(s) to F(s+1) and from I(s) to I(s-1). Where tasks of a stage lie on several ranks (LayerPipe),
// what F keeps goes to the ranks of I and W as well, and the error to both: W then makes the adjoint states itself,
// which for a stage of one layer is none of the work.
#include <string.h>

#include "pipe/executor.h"

dpcri_share *dpcri_rank_share(const dpcri_rank *rank, int64_t stage) {
    return rank->share_of[stage] < 0 ? NULL : &rank->shares[rank->share_of[stage]];
}

static int64_t where(const dpcri_rank *rank, dpcri_place place, int64_t stage, int64_t i) {
    return rank->table->where[place][dpcri_cell(rank->table->schedule, stage, i)];
}

// ---- slots: the memory of one microbatch of a stage ----

static size_t state_bytes(const dpcri_share *share, int64_t rows) {
    return (size_t)(rows * share->layers.width) * share->layers.element;
}

// What a rehearsal computes with: small numbers of both signs, none of them slow.
static void fill_plausible(char *memory, size_t bytes, size_t element) {
    for (size_t i = 0; i < bytes / element; i++) {
        const double value = ((double)(i * 2654435761u % 1024) - 511.5) / 1024;
        if (element == 8)
            ((double *)memory)[i] = value;
        else
            ((float *)memory)[i] = (float)value;
    }
}

static dpcr_status new_memory(const dpcri_rank *rank, const dpcri_share *share, size_t bytes, char **memory,
                              dpcr_error *error) {
    *memory = dpcri_alloc(rank->context, bytes ? bytes : 1);
    if (!*memory)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for a microbatch of stage %lld (%zu bytes)",
                          (long long)share->stage, bytes);
    if (rank->dry) fill_plausible(*memory, bytes, share->layers.element);
    return DPCR_OK;
}

static dpcr_status new_slot(dpcri_rank *rank, dpcri_share *share, int32_t *index, dpcr_error *error) {
    if (share->free_count) {
        *index = share->free_slots[--share->free_count];
        return DPCR_OK;
    }
    const dpcr_status status = new_memory(rank, share, share->slot_bytes, &share->slot[share->slots].memory, error);
    if (status == DPCR_OK) *index = (int32_t)share->slots++;
    return status;
}

static dpcr_status open_slot(dpcri_rank *rank, int64_t stage, int64_t i, dpcri_held **slot, dpcr_error *error) {
    dpcri_share *share = dpcri_rank_share(rank, stage);
    int32_t *index = &share->slot_of[i];
    if (*index >= 0) {
        *slot = &share->slot[*index];
        return DPCR_OK;
    }
    const dpcr_status status = new_slot(rank, share, index, error);
    if (status != DPCR_OK) return status;
    *slot = &share->slot[*index];
    char *memory = (*slot)->memory;
    size_t bytes;
    **slot = (dpcri_held){.memory = memory, .left = share->uses[i]};
    const int64_t rows = dpcri_table_extent(rank->table, rank->source, dpcri_table_global(rank->table, stage, i)).rows;
    dpcri_stage_lay_out(&share->layers, rows, rank->table->halves[stage] ? 2 : 1, share->turns,
                        share->recomputes ? NULL : memory, &(*slot)->kept, &bytes);
    (*slot)->input = share->recomputes ? memory : (*slot)->kept.z;
    return DPCR_OK;
}

// Recomputing: memory for all but the input, if the microbatch has none.
static dpcr_status borrow_inner(const dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, dpcr_error *error) {
    size_t bytes;
    dpcr_status status = DPCR_OK;
    if (!share->recomputes || slot->inner) return DPCR_OK;
    if (share->free_inners) {
        slot->inner = share->inner[--share->free_inners];
    } else {
        DPCR_TRY(new_memory(rank, share, share->inner_bytes, &slot->inner, error));
        share->inners++;
    }
    dpcri_stage_lay_out(&share->layers, slot->kept.rows, slot->kept.parts, share->turns, slot->inner, &slot->kept,
                        &bytes);
done:
    return status;
}

static void give_inner_back(dpcri_share *share, dpcri_held *slot) {
    if (slot->inner) share->inner[share->free_inners++] = slot->inner;
    slot->inner = NULL;
    slot->has_forward = false;
}

static void close_slot(dpcri_share *share, int64_t i) {
    dpcri_held *slot = &share->slot[share->slot_of[i]];
    if (--slot->left > 0) return;
    give_inner_back(share, slot);
    share->free_slots[share->free_count++] = share->slot_of[i];
    share->slot_of[i] = -1;
}

double dpcri_rank_activation_bytes(const dpcri_rank *rank) {
    double sum = 0;
    for (int64_t k = 0; k < rank->share_count; k++) {
        const dpcri_share *share = &rank->shares[k];
        sum += (double)share->slots * (double)share->slot_bytes + (double)share->inners * (double)share->inner_bytes;
    }
    return sum;
}

// Room for the largest microbatch of the run's source.
static dpcr_status size_slots(dpcri_rank *rank, dpcri_share *share, dpcr_error *error) {
    int64_t rows = 0;
    const int64_t m = rank->table->schedule->microbatches;
    for (int64_t i = 0; i < m; i++) {
        const int64_t n =
            dpcri_table_extent(rank->table, rank->source, dpcri_table_global(rank->table, share->stage, i)).rows;
        rows = n > rows ? n : rows;
    }
    if (rows <= share->rows) return DPCR_OK;
    dpcri_kept kept;
    const int parts = rank->table->halves[share->stage] ? 2 : 1;
    for (int64_t k = 0; k < share->slots; k++) dpcri_free(rank->context, share->slot[k].memory);
    for (int64_t k = 0; k < share->free_inners; k++) dpcri_free(rank->context, share->inner[k]);
    share->slots = share->free_count = share->inners = share->free_inners = 0;
    share->rows = rows;
    if (dpcri_stage_lay_out(&share->layers, rows, parts, share->turns, NULL, &kept, &share->slot_bytes)) {
        if (!share->recomputes) return DPCR_OK;
        share->inner_bytes = share->slot_bytes;
        share->slot_bytes = dpcri_begins_chain(rank->table->schedule, share->stage) ? 0 : state_bytes(share, rows);
        return DPCR_OK;
    }
    return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "pipeline: %lld rows of stage %lld do not fit", (long long)rows,
                      (long long)share->stage);
}

// ---- messages ----

static dpcr_status get(dpcri_rank *rank, dpcri_kind kind, int64_t from, int64_t stage, int64_t i, int part, void *to,
                       size_t bytes, dpcr_error *error) {
    static const char *const names[DPCRI_MESSAGES] = {"the activation", "what F keeps", "the error",
                                                      "the weights",    "the gradient", "an answer"};
    dpcr_error why = {0};
    if (rank->dry) return DPCR_OK;
    const dpcr_status status = dpcri_receive(rank->comm, from, dpcri_tag(rank, kind, stage, i, part), to, bytes, &why);
    if (status == DPCR_OK) return status;
    if (status != DPCR_ERROR_SYSTEM) return dpcri_fail_code(error, status, why.code, "%s", why.text);
    return dpcri_fail_code(error, status, why.code, "pipeline: stage %lld waits for %s of microbatch %lld: %.300s",
                           (long long)stage, names[kind], (long long)i, why.text);
}

static dpcr_status put(dpcri_rank *rank, dpcri_kind kind, int64_t to, int64_t stage, int64_t i, int part,
                       const void *data, size_t bytes, dpcr_error *error) {
    if (rank->dry) return DPCR_OK;
    return dpcri_send(rank->comm, to, dpcri_tag(rank, kind, stage, i, part), data, bytes, error);
}

static dpcr_status take_activation(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i,
                                   dpcr_error *error) {
    if (slot->has_act || dpcri_begins_chain(rank->table->schedule, share->stage)) return DPCR_OK;
    slot->has_act = true;
    return get(rank, DPCRI_MESSAGE_ACT, where(rank, DPCRI_AT_F, share->stage - 1, i), share->stage, i, 0, slot->input,
               state_bytes(share, slot->kept.rows), error);
}

// What F left, for I or W on another rank.
static dpcr_status take_kept(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, dpcr_error *error) {
    const int64_t from = where(rank, DPCRI_AT_F, share->stage, i);
    if (slot->has_kept || from == rank->index) return DPCR_OK;
    slot->has_kept = true;
    return get(rank, DPCRI_MESSAGE_KEPT, from, share->stage, i, 0, slot->memory, slot->kept.forward_bytes, error);
}

static dpcr_status take_error(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t stage = share->stage, rows = slot->kept.rows;
    if (slot->has_dz || dpcri_ends_chain(rank->table->schedule, stage)) return DPCR_OK;
    DPCR_TRY(borrow_inner(rank, share, slot, error));
    const int parts = rank->table->halves[stage + 1] ? 2 : 1;
    for (int p = 0; p < parts; p++) {
        const int64_t from = where(rank, p ? DPCRI_AT_I2 : DPCRI_AT_I, stage + 1, i);
        const int64_t row = p ? rows / 2 : 0, n = parts == 1 ? rows : p ? rows - rows / 2 : rows / 2;
        if (from == rank->index) continue;  // it is there already
        DPCR_TRY(get(rank, DPCRI_MESSAGE_ERROR, from, stage, i, p, slot->kept.dz + state_bytes(share, row),
                     state_bytes(share, n), error));
    }
    slot->has_dz = true;
done:
    return status;
}

// F's result to F of the next stage; into its memory where that is on this rank.
static dpcr_status give_activation(dpcri_rank *rank, dpcri_share *share, const dpcri_held *slot, int64_t i, bool local,
                                   dpcr_error *error) {
    dpcr_status status;
    dpcri_held *next;
    if (dpcri_ends_chain(rank->table->schedule, share->stage)) return DPCR_OK;
    const int64_t stage = share->stage + 1, to = where(rank, DPCRI_AT_F, stage, i);
    const char *result = dpcri_stage_result(&share->layers, &slot->kept);
    const size_t bytes = state_bytes(share, slot->kept.rows);
    if ((to == rank->index) != local) return DPCR_OK;
    if (!local) return put(rank, DPCRI_MESSAGE_ACT, to, stage, i, 0, result, bytes, error);
    DPCR_TRY(open_slot(rank, stage, i, &next, error));
    memcpy(next->input, result, bytes);
    next->has_act = true;
done:
    return status;
}

// The ranks but `self` that run I or W of a stage's microbatch, each once.
static int ranks_of(const dpcri_rank *rank, int64_t stage, int64_t i, int64_t self, int64_t to[DPCRI_PLACES]) {
    int count = 0;
    for (int p = DPCRI_AT_I; p < DPCRI_PLACES; p++) {
        const int64_t r = where(rank, (dpcri_place)p, stage, i);
        bool known = r == self;
        for (int k = 0; k < count; k++) known = known || to[k] == r;
        if (!known) to[count++] = r;
    }
    return count;
}

static dpcr_status give_kept(dpcri_rank *rank, const dpcri_share *share, const dpcri_held *slot, int64_t i,
                             dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    int64_t to[DPCRI_PLACES];
    const int count = ranks_of(rank, share->stage, i, rank->index, to);
    for (int k = 0; k < count; k++)
        DPCR_TRY(
            put(rank, DPCRI_MESSAGE_KEPT, to[k], share->stage, i, 0, slot->memory, slot->kept.forward_bytes, error));
done:
    return status;
}

// A part of I's result to the ranks of the stage before.
static dpcr_status give_error(dpcri_rank *rank, const dpcri_share *share, const dpcri_held *slot, int64_t i, int part,
                              bool local, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_held *before;
    if (dpcri_begins_chain(rank->table->schedule, share->stage)) return DPCR_OK;
    const int64_t stage = share->stage - 1;
    int64_t to[DPCRI_PLACES];
    const size_t bytes = state_bytes(share, slot->kept.part_rows[part]);
    const int count = ranks_of(rank, stage, i, -1, to);
    for (int k = 0; k < count; k++) {
        if ((to[k] == rank->index) != local) continue;
        if (!local) {
            DPCR_TRY(put(rank, DPCRI_MESSAGE_ERROR, to[k], stage, i, part, slot->kept.dx[part], bytes, error));
            continue;
        }
        DPCR_TRY(open_slot(rank, stage, i, &before, error));
        DPCR_TRY(borrow_inner(rank, dpcri_rank_share(rank, stage), before, error));
        memcpy(before->kept.dz + (part ? state_bytes(share, slot->kept.part_rows[0]) : 0), slot->kept.dx[part], bytes);
        before->has_dz = slot->kept.parts == 1;
    }
done:
    return status;
}

// ---- tasks ----

static void fetch(const dpcri_rank *rank, const dpcri_share *share, const dpcri_held *slot, dpcri_extent extent) {
    const bool begins = dpcri_begins_chain(rank->table->schedule, share->stage);
    void *x = !begins ? NULL : share->layers.inputs ? slot->kept.x : slot->kept.z;
    if (extent.rows && (x || share->layers.outputs))
        rank->source->get(rank->source->user, extent.first, extent.rows, x,
                          share->layers.outputs ? rank->labels : NULL);
}

// The stage's layers over a microbatch whose input is there; its loss into *loss.
static dpcr_status run_forward(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, double *loss,
                               int64_t *correct, dpcr_error *error) {
    dpcr_status status;
    const int64_t global = dpcri_table_global(rank->table, share->stage, i);
    const dpcri_extent extent = dpcri_table_extent(rank->table, rank->source, global);
    DPCR_TRY(borrow_inner(rank, share, slot, error));
    if (share->recomputes && !dpcri_begins_chain(rank->table->schedule, share->stage))
        memcpy(slot->kept.z, slot->input, state_bytes(share, slot->kept.rows));
    fetch(rank, share, slot, extent);
    DPCR_TRY(dpcri_stage_forward(&share->layers, &slot->kept, error));
    if (share->layers.outputs)
        DPCR_TRY(dpcri_stage_loss(&share->layers, &slot->kept, rank->labels, extent.batch, loss, correct, error));
    slot->has_forward = true;
done:
    return status;
}

// The row says itself when F's result goes to another rank.
static bool is_sent_later(const dpcri_rank *rank, int64_t stage, int64_t i) {
    return rank->table->lowered && !dpcri_ends_chain(rank->table->schedule, stage) &&
           where(rank, DPCRI_AT_F, stage + 1, i) != rank->index;
}

// Recomputing: F once more for I or W, whose loss is known already.
static dpcr_status run_again(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, dpcr_error *error) {
    double loss = 0;
    int64_t correct = 0;
    if (!share->recomputes || slot->has_forward) return DPCR_OK;
    return run_forward(rank, share, slot, i, &loss, &correct, error);
}

static dpcr_status do_forward(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, double *start,
                              double *stop, dpcr_error *error) {
    dpcr_status status;
    const int chain = (int)(share->stage / dpcri_chain_stages(rank->table->schedule));
    DPCR_TRY(take_activation(rank, share, slot, i, error));
    DPCR_TRY(dpcri_share_use_version(rank, share, i, error));
    *start = dpcri_seconds();
    DPCR_TRY(run_forward(rank, share, slot, i, &rank->loss[chain], &rank->correct[chain], error));
    DPCR_TRY(give_kept(rank, share, slot, i, error));
    DPCR_TRY(give_activation(rank, share, slot, i, true, error));
    if (!rank->table->lowered) DPCR_TRY(give_activation(rank, share, slot, i, false, error));
    if (share->again[i] && !is_sent_later(rank, share->stage, i)) give_inner_back(share, slot);
    *stop = dpcri_seconds();
done:
    return status;
}

static dpcr_status do_input(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, int part, double *start,
                            double *stop, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(borrow_inner(rank, share, slot, error));
    DPCR_TRY(take_kept(rank, share, slot, i, error));
    DPCR_TRY(take_error(rank, share, slot, i, error));
    DPCR_TRY(dpcri_share_use_version(rank, share, i, error));
    *start = dpcri_seconds();
    DPCR_TRY(run_again(rank, share, slot, i, error));
    DPCR_TRY(dpcri_stage_input(&share->layers, &slot->kept, part, error));
    slot->has_adjoints[part] = true;
    DPCR_TRY(give_error(rank, share, slot, i, part, true, error));
    if (!rank->table->lowered) DPCR_TRY(give_error(rank, share, slot, i, part, false, error));
    *stop = dpcri_seconds();
done:
    return status;
}

static dpcr_status do_weight(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, double *start,
                             double *stop, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(borrow_inner(rank, share, slot, error));
    DPCR_TRY(take_kept(rank, share, slot, i, error));
    DPCR_TRY(take_error(rank, share, slot, i, error));
    DPCR_TRY(dpcri_share_use_version(rank, share, i, error));
    *start = dpcri_seconds();
    DPCR_TRY(run_again(rank, share, slot, i, error));
    for (int part = 0; part < slot->kept.parts; part++)
        if (!slot->has_adjoints[part]) DPCR_TRY(dpcri_stage_adjoints(&share->layers, &slot->kept, part, error));
    DPCR_TRY(dpcri_stage_weight(&share->layers, &slot->kept, error));
    rank->weighed = dpcri_seconds();
    DPCR_TRY(dpcri_share_update(rank, share, i, error));
    *stop = dpcri_seconds();
done:
    return status;
}

// I and W in one: the error goes on between them.
static dpcr_status do_both(dpcri_rank *rank, dpcri_share *share, dpcri_held *slot, int64_t i, double *start,
                           double *stop, dpcr_error *error) {
    dpcr_status status;
    double between;
    DPCR_TRY(do_input(rank, share, slot, i, 0, start, stop, error));
    rank->passed_on = *stop;
    DPCR_TRY(do_weight(rank, share, slot, i, &between, stop, error));
done:
    return status;
}

dpcr_status dpcri_rank_action(dpcri_rank *rank, const dpcr_action *a, double *start, double *stop, dpcr_error *error) {
    dpcr_status status;
    dpcri_share *share = dpcri_rank_share(rank, a->stage);
    const int64_t i = a->microbatch;
    dpcri_held *slot;
    *start = *stop = dpcri_seconds();
    DPCR_TRY(open_slot(rank, a->stage, i, &slot, error));
    switch ((dpcr_task)a->task) {
        case DPCR_TASK_F: DPCR_TRY(do_forward(rank, share, slot, i, start, stop, error)); break;
        case DPCR_TASK_I: DPCR_TRY(do_input(rank, share, slot, i, a->part == 2, start, stop, error)); break;
        case DPCR_TASK_W: DPCR_TRY(do_weight(rank, share, slot, i, start, stop, error)); break;
        case DPCR_TASK_B: DPCR_TRY(do_both(rank, share, slot, i, start, stop, error)); break;
        case DPCR_TASK_SEND_F:
            DPCR_TRY(give_activation(rank, share, slot, i, false, error));
            if (share->again[i]) give_inner_back(share, slot);
            break;
        case DPCR_TASK_RECV_F: DPCR_TRY(take_activation(rank, share, slot, i, error)); break;
        case DPCR_TASK_SEND_B:
            for (int part = 0; part < slot->kept.parts; part++)
                DPCR_TRY(give_error(rank, share, slot, i, part, false, error));
            break;
        case DPCR_TASK_RECV_B: DPCR_TRY(take_error(rank, share, slot, i, error)); break;
        default: break;
    }
    close_slot(share, i);
done:
    return status;
}

dpcr_status dpcri_rank_start(dpcri_rank *rank, const dpcri_rows_source *source, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    rank->source = source;
    rank->loss[0] = rank->loss[1] = rank->busy = rank->norm = 0;
    rank->correct[0] = rank->correct[1] = 0;
    for (int64_t k = 0; k < rank->share_count; k++) {
        dpcri_share *share = &rank->shares[k];
        DPCR_TRY(size_slots(rank, share, error));
        dpcri_share_restart(share);
        if (!share->optimiser) dpcr_model_zero_gradients(share->layers.model);
        if (share->layers.outputs && share->rows > rank->label_room) {
            dpcri_free(rank->context, rank->labels);
            rank->label_room = share->rows;
            rank->labels = dpcri_alloc(rank->context, (size_t)share->rows);
            if (!rank->labels) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for labels"));
        }
    }
done:
    return status;
}

dpcr_status dpcri_rank_run(dpcri_rank *rank, const dpcri_rows_source *source, dpcr_error *error) {
    dpcr_status status;
    const dpcr_schedule *s = rank->table->schedule;
    const int64_t row = s->first[rank->index], count = s->first[rank->index + 1] - row;
    double start, stop;
    if (dpcri_tag(rank, DPCRI_MESSAGES, s->stages, s->microbatches, DPCRI_PARTS) > rank->comm->largest_tag)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "pipeline: %lld stages of %lld microbatches are more messages than the transport can name; "
                          "wanted shorter segments",
                          (long long)s->stages, (long long)s->microbatches);
    DPCR_TRY(dpcri_rank_start(rank, source, error));
    for (int64_t n = 0; n < count; n++) {
        DPCR_TRY(dpcri_rank_action(rank, &s->actions[row + n], &start, &stop, error));
        if (n == 0) rank->began = start;
        rank->busy += stop - start;
        if (rank->times) rank->times[2 * n] = start, rank->times[2 * n + 1] = stop;
    }
    for (int64_t k = 0; k < rank->share_count; k++) DPCR_TRY(dpcri_share_catch_up(rank, &rank->shares[k], error));
    const double updates = dpcri_seconds();
    if (s->semantics == DPCR_SYNCHRONOUS) DPCR_TRY(dpcri_rank_update(rank, error));
    rank->ended = dpcri_seconds();
    rank->busy += rank->ended - updates;
    if (count == 0) rank->began = rank->ended;
done:
    return status;
}
