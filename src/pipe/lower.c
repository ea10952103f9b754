// SPDX-License-Identifier: MIT
// From compute rows to rows with messages, as torch.distributed.pipelining orders them. Go round the ranks; a turn
// takes at most the first action of a rank's row. F(s,i) is ready when F(s-1,i) or its receive stands already in this
// rank's new row, I and B likewise from stage s+1, everything else at once. A ready action is appended, its send right
// after it, and the receive to the end of the peer's new row in the same moment: so messages between two ranks are
// received in the order in which they are sent, and a receive never stands before something that its sender waits for.
#include "pipe/pipe.h"

enum { PLACED_F = 1, PLACED_I = 2, GOT_F = 4, GOT_B = 8 };

typedef struct lowering {
    const dpcr_schedule *from;
    dpcr_schedule *to;
    uint8_t *placed;    // [stages][microbatches]
    int32_t *rank_of;   // [stages]
    int64_t *position;  // [ranks] in from
    int64_t *used;      // [ranks] end of the new row so far, in to->actions
} lowering;

static uint8_t *placed(const lowering *w, int64_t stage, int64_t i) {
    return &w->placed[dpcri_cell(w->from, stage, i)];
}

static bool is_ready(const lowering *w, const dpcr_action *a) {
    const int64_t s = a->stage, i = a->microbatch;
    if (a->task == DPCR_TASK_F) {
        if (dpcri_begins_chain(w->from, s) || *placed(w, s, i) & GOT_F) return true;
        return w->rank_of[s - 1] == w->rank_of[s] && *placed(w, s - 1, i) & PLACED_F;
    }
    if (a->task != DPCR_TASK_I && a->task != DPCR_TASK_B) return true;
    if (dpcri_ends_chain(w->from, s) || *placed(w, s, i) & GOT_B) return true;
    return w->rank_of[s + 1] == w->rank_of[s] && *placed(w, s + 1, i) & PLACED_I;
}

static void append(lowering *w, int64_t rank, dpcr_action a) { w->to->actions[w->used[rank]++] = a; }

static void mark(const lowering *w, const dpcr_action *a) {
    uint8_t *p = placed(w, a->stage, a->microbatch);
    if (a->task == DPCR_TASK_F) *p |= PLACED_F;
    if (a->task == DPCR_TASK_I || a->task == DPCR_TASK_B) *p |= PLACED_I;
}

static void send(lowering *w, const dpcr_action *a) {
    const bool forward = a->task == DPCR_TASK_F;
    if (!forward && a->task != DPCR_TASK_I && a->task != DPCR_TASK_B) return;
    if (forward ? dpcri_ends_chain(w->from, a->stage) : dpcri_begins_chain(w->from, a->stage)) return;
    const int32_t to = a->stage + (forward ? 1 : -1);
    if (w->rank_of[to] == w->rank_of[a->stage]) return;
    append(w, w->rank_of[a->stage],
           (dpcr_action){.stage = a->stage,
                         .microbatch = a->microbatch,
                         .task = (uint8_t)(forward ? DPCR_TASK_SEND_F : DPCR_TASK_SEND_B)});
    append(w, w->rank_of[to],
           (dpcr_action){.stage = to,
                         .microbatch = a->microbatch,
                         .task = (uint8_t)(forward ? DPCR_TASK_RECV_F : DPCR_TASK_RECV_B)});
    *placed(w, to, a->microbatch) |= forward ? GOT_F : GOT_B;
}

static bool joins(const dpcr_action *a, const dpcr_action *b) {
    return a->task == DPCR_TASK_I && !a->part && b->task == DPCR_TASK_W && a->stage == b->stage &&
           a->microbatch == b->microbatch;
}

// One turn of a rank; false: its first action has to wait.
static bool turn(lowering *w, int64_t rank) {
    const dpcr_action *a = &w->from->actions[w->position[rank]];
    const bool last = w->position[rank] + 1 == w->from->first[rank + 1];
    if (!is_ready(w, a) || (a->paired && !is_ready(w, a + 1))) return false;
    const int count = a->paired ? 2 : 1;
    dpcr_action both[2] = {*a, a->paired ? a[1] : *a};
    int taken = count;
    if (!last && !a->paired && joins(a, a + 1)) {
        both[0].task = DPCR_TASK_B;
        taken = 2;
    }
    for (int k = 0; k < count; k++) append(w, rank, both[k]);
    for (int k = 0; k < count; k++) mark(w, &both[k]);
    for (int k = 0; k < count; k++) send(w, &both[k]);
    w->position[rank] += taken;
    return true;
}

static bool run(lowering *w) {
    for (bool left = true; left;) {
        bool moved = false;
        left = false;
        for (int64_t r = 0; r < w->from->ranks; r++) {
            if (w->position[r] == w->from->first[r + 1]) continue;
            left = true;
            moved = turn(w, r) || moved;
        }
        if (left && !moved) return false;
    }
    return true;
}

// Rows were given the room that they could need at most; close the gaps.
static void close_gaps(lowering *w) {
    dpcr_schedule *to = w->to;
    int64_t end = 0;
    for (int64_t r = 0; r < to->ranks; r++) {
        const int64_t begin = to->first[r];
        to->first[r] = end;
        for (int64_t n = begin; n < w->used[r]; n++) to->actions[end++] = to->actions[n];
    }
    to->first[to->ranks] = end;
}

// An action has at most one send and one receive beside it.
static dpcr_status start(dpcr_context *context, lowering *w, dpcr_error *error) {
    const dpcr_schedule *from = w->from;
    dpcr_status status;
    DPCR_TRY(dpcri_schedule_alloc(context, from->ranks, from->stages, from->microbatches, 3 * from->first[from->ranks],
                                  w->to, error));
    w->to->chains = from->chains;
    w->to->semantics = from->semantics;
    w->to->accumulate = from->accumulate;
    for (int64_t s = 0; s < from->stages; s++) w->to->delay[s] = from->delay[s];
    w->placed = dpcri_alloc_zero(context, (size_t)(from->stages * from->microbatches));
    w->rank_of = dpcri_alloc(context, (size_t)from->stages * sizeof *w->rank_of);
    w->position = dpcri_alloc(context, (size_t)from->ranks * sizeof *w->position);
    w->used = dpcri_alloc(context, (size_t)from->ranks * sizeof *w->used);
    if (!w->placed || !w->rank_of || !w->position || !w->used)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory to lower it"));
    for (int64_t r = 0; r < from->ranks; r++) {
        w->position[r] = from->first[r];
        w->used[r] = w->to->first[r] = 3 * from->first[r];
        for (int64_t n = from->first[r]; n < from->first[r + 1]; n++) w->rank_of[from->actions[n].stage] = (int32_t)r;
    }
done:
    return status;
}

dpcr_status dpcr_schedule_lower(dpcr_context *context, const dpcr_schedule *schedule, dpcr_schedule *lowered,
                                dpcr_error *error) {
    if (lowered) *lowered = (dpcr_schedule){0};
    if (!context || !schedule || !lowered)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule_lower: context, schedule or lowered is NULL");
    dpcr_status status;
    lowering w = {.from = schedule, .to = lowered};
    DPCR_TRY(dpcr_schedule_validate(context, schedule, 0, error));
    if (schedule->semantics == DPCR_DELAYED)
        DPCR_TRY(
            dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                       "lower: in such a schedule a stage's tasks may lie on several ranks; there is no notation for "
                       "what moves"));
    for (int64_t n = 0; n < schedule->first[schedule->ranks]; n++)
        if (schedule->actions[n].task >= DPCR_TASK_SEND_F || schedule->actions[n].part)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "lower: the schedule has messages or halves already"));
    DPCR_TRY(start(context, &w, error));
    if (!run(&w)) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "lower: the rows wait for each other"));
    close_gaps(&w);
done:
    if (status != DPCR_OK) dpcr_schedule_free(context, lowered);
    dpcri_free(context, w.placed);
    dpcri_free(context, w.rank_of);
    dpcri_free(context, w.position);
    dpcri_free(context, w.used);
    return status;
}
