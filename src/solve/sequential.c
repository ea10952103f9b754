// SPDX-License-Identifier: MIT
// The loop, z_l = f_l(z_{l-1}): one lane of L steps. Sequences are independent, so blocks of rows run side by side.
#include <string.h>

#include "solve/solve_internal.h"

typedef struct loop_job {
    dpcri_run *run;
    int64_t from, to, row, rows, block;
    _Atomic int code;
} loop_job;

static void loop_rows(void *argument, int64_t task) {
    loop_job *job = argument;
    dpcri_run *run = job->run;
    const dpcr_steps *steps = &run->plan->steps;
    const int64_t row = dpcri_block_begin(steps, job->from, job->to, job->row, job->rows, job->block, task);
    const int64_t rows = dpcri_block_begin(steps, job->from, job->to, job->row, job->rows, job->block, task + 1) - row;
    if (rows == 0) return;
    const dpcr_array in = dpcri_inputs(&run->t, job->from, 1, row, rows);
    const dpcr_array out = dpcri_outputs(&run->t, job->from, job->to - job->from, row, rows);
    const dpcr_array states = dpcri_as_steps(&out);
    const dpcr_span span = dpcri_span(job->from, 1, 1, job->to - job->from, row, rows);
    dpcr_array tape, tape_steps;
    if (run->tape) {
        tape = dpcri_slice(run->tape, job->from, job->to - job->from, row, rows);
        tape_steps = dpcri_as_steps(&tape);
    }
    const int code = dpcri_advance(steps, &span, &in, &states, NULL, run->tape ? &tape_steps : NULL);
    if (code < 0) job->code = code;
}

dpcr_status dpcri_run_loop(dpcri_run *run, int64_t from, int64_t to, int64_t row, int64_t rows) {
    loop_job job = {.run = run, .row = row, .rows = rows, .block = run->plan->row_block};
    const int64_t tasks = rows > 0 ? (rows + job.block - 1) / job.block : 0;
    const double flops = (double)rows * run->plan->steps.flops;
    dpcri_pace pace;
    dpcri_pace_begin(&pace, run->plan, (double)rows, to - from);
    for (job.from = from; job.from < to && rows > 0; job.from = job.to) {
        job.to = job.from + dpcri_pace_stretch(&pace, to - job.from);
        dpcri_for_tasks(run->plan, (double)(job.to - job.from) * flops, tasks, loop_rows, &job);
        run->report->evaluations += (job.to - job.from) * rows;
        if (job.code != 0 || job.to == to) break;
        if (dpcri_pace_over(&pace, job.to - job.from) && dpcri_cancelled(run->plan->context))
            return dpcri_fail_stopped(run->error, "solve");
    }
    return dpcri_callback_status(run, "advance", job.code);
}

dpcr_status dpcri_solve_sequential(dpcri_run *run) {
    const dpcr_steps *steps = &run->plan->steps;
    for (int64_t b = 0; b < steps->batch; b++) {
        run->reason[b] = DPCR_REASON_SEQUENTIAL;
        run->locked[b] = steps->length;
        run->sweeps[b] = 0;
    }
    return dpcri_run_loop(run, 0, steps->length, 0, steps->batch);
}

// From the last step that is known to have the loop's bits, not from the last locked one: a chain that amplifies would
// turn the tolerance of a locked state into an error of its own size.
dpcr_status dpcri_finish_in_order(dpcri_run *run, dpcr_reason reason) {
    const int64_t length = run->plan->steps.length, batch = run->plan->steps.batch;
    for (int64_t b = 0; b < batch;) {
        if (run->front[b] >= length) {
            b++;
            continue;
        }
        int64_t end = b + 1;  // adjacent sequences that start at the same step go together
        while (end < batch && run->front[end] < length && run->exact[end] == run->exact[b]) end++;
        const int64_t from = run->exact[b];
        for (int64_t i = b; i < end; i++) {
            run->locked[i] = run->front[i];
            if (run->reason[i] == 0) run->reason[i] = (int)reason;
            run->front[i] = length;
        }
        const dpcr_status status = dpcri_run_loop(run, from, length, b, end - b);
        if (status != DPCR_OK) return status;
        b = end;
    }
    return DPCR_OK;
}
