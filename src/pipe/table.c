// SPDX-License-Identifier: MIT
// Schedules as text, PyTorch's notation: a line a rank, cells apart by commas (deeppcr/schedule.h has the cells). Reads
// twice: once to count and check, once to fill.
#include "pipe/pipe.h"

#include <stdio.h>
#include <string.h>

enum { MOST_NUMBER = INT32_MAX / 4 };

typedef struct reader {
    const char *text, *at, *end;
    const char *cell;      // where the cell began
    int64_t line, column;  // from 1; column counts cells
    dpcr_notation notation;
    int64_t ranks;                          // lines, a last one without an end only where it has an action
    int64_t actions, stages, microbatches;  // as far as seen
    dpcr_schedule *fill;                    // NULL in the first pass
    dpcr_error *error;
} reader;

static dpcr_status wrong(const reader *r, const char *wanted) {
    char cell[40];
    size_t n = 0;
    for (const char *c = r->cell; c < r->end && *c != ',' && *c != '\n' && n < sizeof cell - 1; c++)
        cell[n++] = (unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f ? '?' : *c;
    cell[n] = 0;
    return dpcri_fail(r->error, DPCR_ERROR_FORMAT, "schedule: line %lld, cell %lld '%s': wanted %s", (long long)r->line,
                      (long long)r->column, cell, wanted);
}

static bool peek(const reader *r, char c) { return r->at < r->end && *r->at == c; }

static bool take(reader *r, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || strncmp(r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

static dpcr_status read_number(reader *r, const char *what, int32_t *number) {
    int64_t value = 0;
    if (r->at == r->end || *r->at < '0' || *r->at > '9') return wrong(r, what);
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        value = 10 * value + (*r->at++ - '0');
        if (value > MOST_NUMBER) return wrong(r, "numbers below 536870912");
    }
    *number = (int32_t)value;
    return DPCR_OK;
}

static bool read_task(reader *r, uint8_t *task) {
    // Longer words first: SEND_F before none, BW before B.
    static const struct {
        const char *word;
        dpcr_task task;
    } words[2][8] = {{{"SEND_F", DPCR_TASK_SEND_F},
                      {"RECV_F", DPCR_TASK_RECV_F},
                      {"SEND_B", DPCR_TASK_SEND_B},
                      {"RECV_B", DPCR_TASK_RECV_B},
                      {"F", DPCR_TASK_F},
                      {"I", DPCR_TASK_I},
                      {"W", DPCR_TASK_W},
                      {"B", DPCR_TASK_B}},
                     {{"SEND_F", DPCR_TASK_SEND_F},
                      {"RECV_F", DPCR_TASK_RECV_F},
                      {"SEND_B", DPCR_TASK_SEND_B},
                      {"RECV_B", DPCR_TASK_RECV_B},
                      {"F", DPCR_TASK_F},
                      {"BW", DPCR_TASK_B},
                      {"W", DPCR_TASK_W},
                      {"B", DPCR_TASK_I}}};
    for (int k = 0; k < 8; k++) {
        if (!take(r, words[r->notation][k].word)) continue;
        *task = (uint8_t)words[r->notation][k].task;
        return true;
    }
    return false;
}

static dpcr_status read_action(reader *r, dpcr_action *action) {
    *action = (dpcr_action){0};
    dpcr_status status = read_number(r, "a stage, then F, I, W, B, SEND_F, RECV_F, SEND_B or RECV_B", &action->stage);
    if (status != DPCR_OK) return status;
    if (!read_task(r, &action->task)) return wrong(r, "F, I, W, B, SEND_F, RECV_F, SEND_B or RECV_B after the stage");
    status = read_number(r, "a microbatch at its end", &action->microbatch);
    if (status != DPCR_OK || !peek(r, '.')) return status;
    r->at++;
    const bool half = action->task == DPCR_TASK_I && (peek(r, '1') || peek(r, '2'));
    if (!half) return wrong(r, "a half only of I: .1 or .2");
    action->part = (uint8_t)(*r->at++ - '0');
    return DPCR_OK;
}

static void add(reader *r, const dpcr_action *a) {
    if (r->fill) r->fill->actions[r->actions] = *a;
    r->actions++;
    r->ranks = r->line;
    if (a->stage >= r->stages) r->stages = a->stage + 1;
    if (a->microbatch >= r->microbatches) r->microbatches = a->microbatch + 1;
}

// (aFx;bBy)OVERLAP_F_B
static dpcr_status read_pair(reader *r) {
    dpcr_action f, b;
    r->at++;
    dpcr_status status = read_action(r, &f);
    if (status != DPCR_OK) return status;
    if (!peek(r, ';')) return wrong(r, "a pair (aFx;bBy)OVERLAP_F_B");
    r->at++;
    status = read_action(r, &b);
    if (status != DPCR_OK) return status;
    if (!take(r, ")OVERLAP_F_B") || f.task != DPCR_TASK_F || (b.task != DPCR_TASK_B && b.task != DPCR_TASK_I))
        return wrong(r, "a pair (aFx;bBy)OVERLAP_F_B");
    f.paired = 1;
    add(r, &f);
    add(r, &b);
    return DPCR_OK;
}

static void skip_spaces(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

static dpcr_status read_cell(reader *r) {
    dpcr_action action;
    dpcr_status status = DPCR_OK;
    skip_spaces(r);
    r->cell = r->at;
    if (r->at == r->end || *r->at == ',' || *r->at == '\n') return DPCR_OK;  // a bubble
    if (*r->at == '(') {
        status = read_pair(r);
    } else {
        status = read_action(r, &action);
        if (status == DPCR_OK) add(r, &action);
    }
    if (status != DPCR_OK) return status;
    skip_spaces(r);
    if (r->at < r->end && *r->at != ',' && *r->at != '\n') return wrong(r, "a comma or the end of the line after it");
    return DPCR_OK;
}

static dpcr_status read_rows(reader *r) {
    r->at = r->text;
    r->ranks = r->actions = r->line = 0;
    while (r->at < r->end) {
        r->line++;
        for (r->column = 1;; r->column++) {
            const dpcr_status status = read_cell(r);
            if (status != DPCR_OK) return status;
            if (!peek(r, ',')) break;
            r->at++;
        }
        if (r->at < r->end) {  // a whole line is a rank, idle or not
            r->at++;
            r->ranks = r->line;
        }
        if (r->fill && r->line <= r->fill->ranks) r->fill->first[r->line] = r->actions;
    }
    return DPCR_OK;
}

static dpcr_status check_sizes(const reader *r, const dpcr_schedule *like) {
    const int64_t chains = like ? like->chains : 1;
    if (r->actions == 0) return dpcri_fail(r->error, DPCR_ERROR_FORMAT, "schedule: no actions in it");
    // Every stage has its own F of every microbatch, so a table with more cells than actions cannot be whole; and only
    // whole ones are given memory by the cell.
    if (r->stages > r->actions || r->microbatches > r->actions / r->stages)
        return dpcri_fail(r->error, DPCR_ERROR_FORMAT,
                          "schedule: %lld actions for %lld stages and %lld microbatches: some have none",
                          (long long)r->actions, (long long)r->stages, (long long)r->microbatches);
    if (chains < 1 || r->stages % chains != 0)
        return dpcri_fail(r->error, DPCR_ERROR_FORMAT, "schedule: %lld stages do not make %lld chains",
                          (long long)r->stages, (long long)chains);
    return DPCR_OK;
}

dpcr_status dpcr_schedule_read(dpcr_context *context, const char *text, size_t bytes, dpcr_notation notation,
                               const dpcr_schedule *like, dpcr_schedule *schedule, dpcr_error *error) {
    if (schedule) *schedule = (dpcr_schedule){0};
    if (!context || !text || !schedule || (notation != DPCR_NOTATION_NEW && notation != DPCR_NOTATION_OLD))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "schedule_read: context, text or schedule is NULL, or no such notation");
    reader r = {.text = text, .end = text + bytes, .notation = notation, .error = error};
    dpcr_status status;
    DPCR_TRY(read_rows(&r));
    DPCR_TRY(check_sizes(&r, like));
    DPCR_TRY(dpcri_schedule_alloc(context, r.ranks, r.stages, r.microbatches, r.actions, schedule, error));
    r.fill = schedule;
    DPCR_TRY(read_rows(&r));
    if (like) {
        schedule->chains = like->chains;
        schedule->semantics = like->semantics;
        if (like->semantics != DPCR_SYNCHRONOUS && like->accumulate > 0) schedule->accumulate = like->accumulate;
        if (like->delay && like->stages == schedule->stages)
            memcpy(schedule->delay, like->delay, (size_t)like->stages * sizeof *like->delay);
    }
done:
    return status;
}

// ---- writing ----

const char *dpcr_action_text(const dpcr_action *a, char *text, size_t bytes) {
    if (!text) return "";
    if (bytes) text[0] = 0;
    if (!a) return text;
    const int used =
        snprintf(text, bytes, "%d%s%d", (int)a->stage, dpcr_task_name((dpcr_task)a->task), (int)a->microbatch);
    if (a->part && used > 0 && (size_t)used < bytes) snprintf(text + used, bytes - (size_t)used, ".%d", (int)a->part);
    return text;
}

static int write_action(char *to, size_t room, const dpcr_action *a, dpcr_notation notation) {
    const char *name = dpcr_task_name((dpcr_task)a->task);
    if (notation == DPCR_NOTATION_OLD && a->task == DPCR_TASK_I) name = "B";
    if (notation == DPCR_NOTATION_OLD && a->task == DPCR_TASK_B) name = "BW";
    const int used = snprintf(to, room, "%d%s%d", (int)a->stage, name, (int)a->microbatch);
    return a->part ? used + snprintf(to + used, room - (size_t)used, ".%d", (int)a->part) : used;
}

enum { MOST_CELL = 48 };  // of one action, with its share of a pair's brackets and the comma

dpcr_status dpcr_schedule_write(dpcr_context *context, const dpcr_schedule *schedule, dpcr_notation notation,
                                char **text, size_t *bytes, dpcr_error *error) {
    if (!context || !schedule || !text || !bytes || !schedule->first || !schedule->actions || schedule->ranks < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "schedule_write: context, schedule, its arrays, text or bytes is NULL, or it has no ranks");
    const dpcr_schedule *s = schedule;
    const size_t room = (size_t)s->first[s->ranks] * MOST_CELL + (size_t)s->ranks + 1;
    char *to = *text = dpcri_alloc(context, room);
    if (!to) return dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory for %zu characters", room);
    for (int64_t r = 0; r < s->ranks; r++) {
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++) {
            const dpcr_action *a = &s->actions[n];
            const bool pair = a->paired && n + 1 < s->first[r + 1];
            if (n > s->first[r]) *to++ = ',';
            if (pair) *to++ = '(';
            to += write_action(to, MOST_CELL, a, notation);
            if (!pair) continue;
            *to++ = ';';
            to += write_action(to, MOST_CELL, a + 1, notation);
            to += snprintf(to, MOST_CELL, ")OVERLAP_F_B");
            n++;
        }
        *to++ = '\n';
    }
    *to = 0;
    *bytes = (size_t)(to - *text);
    return DPCR_OK;
}

void dpcr_schedule_text_free(dpcr_context *context, char *text) { dpcri_free(context, text); }
