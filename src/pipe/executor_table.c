// SPDX-License-Identifier: MIT
// Where each task of a schedule runs, and which rows a microbatch holds.
#include "pipe/executor.h"

static int place_of(const dpcr_action *a) {
    switch ((dpcr_task)a->task) {
        case DPCR_TASK_F: return DPCRI_AT_F;
        case DPCR_TASK_I: return a->part == 2 ? DPCRI_AT_I2 : DPCRI_AT_I;
        case DPCR_TASK_B: return DPCRI_AT_I;
        case DPCR_TASK_W: return DPCRI_AT_W;
        default: return -1;
    }
}

static void find_places(dpcri_table *t) {
    const dpcr_schedule *s = t->schedule;
    for (int64_t r = 0; r < s->ranks; r++)
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++) {
            const dpcr_action *a = &s->actions[n];
            const int64_t cell = dpcri_cell(s, a->stage, a->microbatch);
            const int place = place_of(a);
            if (place < 0) {
                t->lowered = true;
                continue;
            }
            t->where[place][cell] = (int32_t)r;
            if (a->task == DPCR_TASK_B) t->where[DPCRI_AT_W][cell] = (int32_t)r;
            if (place == DPCRI_AT_I && !a->part) t->where[DPCRI_AT_I2][cell] = (int32_t)r;
            if (a->part) t->halves[a->stage] = 1, t->halved = true;
        }
}

// A stage's I is whole everywhere or halved everywhere, so that its memory has one layout; and its tasks of a kind lie
// on one rank, so that its weights have one owner.
static dpcr_status check_places(const dpcri_table *t, dpcr_error *error) {
    const dpcr_schedule *s = t->schedule;
    for (int64_t n = 0; n < s->first[s->ranks]; n++) {
        const dpcr_action *a = &s->actions[n];
        if ((a->task == DPCR_TASK_I && !a->part && t->halves[a->stage]) ||
            (a->task == DPCR_TASK_B && t->halves[a->stage]))
            return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                              "pipeline: stage %d has its I in halves for some microbatches and whole for others",
                              (int)a->stage);
        const int place = place_of(a);
        if (place >= 0 &&
            t->where[place][dpcri_cell(s, a->stage, a->microbatch)] != t->where[place][dpcri_cell(s, a->stage, 0)])
            return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                              "pipeline: stage %d has the %s of its microbatches on several ranks", (int)a->stage,
                              dpcr_task_name((dpcr_task)a->task));
    }
    return DPCR_OK;
}

dpcr_status dpcri_table_create(dpcr_context *context, const dpcr_schedule *schedule, dpcri_table *table,
                               dpcr_error *error) {
    dpcr_status status;
    *table = (dpcri_table){.schedule = schedule};
    DPCR_TRY(dpcr_schedule_validate(context, schedule, 0, error));
    const bool synchronous = schedule->semantics == DPCR_SYNCHRONOUS;
    if (!synchronous && (schedule->chains > 1 || schedule->microbatches % schedule->accumulate != 0))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "pipeline: %lld microbatches make no whole number of updates of %lld each",
                            (long long)schedule->microbatches, (long long)schedule->accumulate));
    table->microbatches = schedule->microbatches * schedule->chains;
    table->updates = synchronous ? 1 : schedule->microbatches / schedule->accumulate;
    const size_t cells = (size_t)(schedule->stages * schedule->microbatches);
    table->halves = dpcri_alloc_zero(context, (size_t)schedule->stages);
    for (int p = 0; p < DPCRI_PLACES; p++) {
        table->where[p] = dpcri_alloc_zero(context, cells * sizeof(int32_t));
        if (!table->where[p] || !table->halves)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for the places of %zu tasks", cells));
    }
    find_places(table);
    if (table->lowered && schedule->semantics == DPCR_DELAYED)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "pipeline: sends and receives in a schedule whose stages may lie on several ranks each"));
    DPCR_TRY(check_places(table, error));
done:
    if (status != DPCR_OK) dpcri_table_destroy(context, table);
    return status;
}

void dpcri_table_destroy(dpcr_context *context, dpcri_table *table) {
    dpcri_free(context, table->halves);
    for (int p = 0; p < DPCRI_PLACES; p++) dpcri_free(context, table->where[p]);
    *table = (dpcri_table){0};
}

// Piece k of n of `rows` rows from `first` on, as even as whole rows allow.
static dpcri_extent piece(int64_t first, int64_t rows, int64_t k, int64_t n) {
    const int64_t each = rows / n, more = rows % n;
    return (dpcri_extent){.first = first + k * each + (k < more ? k : more), .rows = each + (k < more), .batch = rows};
}

dpcri_extent dpcri_table_extent(const dpcri_table *table, const dpcri_rows_source *source, int64_t global) {
    if (table->schedule->semantics == DPCR_SYNCHRONOUS) return piece(0, source->rows, global, table->microbatches);
    const int64_t each = table->schedule->accumulate, first = global / each * source->batch;
    const int64_t left = source->rows - first, rows = left < source->batch ? left : source->batch;
    return piece(first, rows, global % each, each);
}
