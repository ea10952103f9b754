// SPDX-License-Identifier: MIT
// The loop side by side: where AUTO takes the loop and threads would idle, the chain's own data are asked whether it
// forgets its start. Two starts at four places run until they agree bit for bit; if they do so soon, chunks of the loop
// overlap by a little more than that many steps (overlap.c), which checks every boundary and has the loop's bits
// whatever was seen here. Work of a look: 8 m applications, m steps to agreement, at most a twentieth of the loop's.
#include "chain/forgets.h"

#include <string.h>

#include "chain/flow.h"

enum {
    PLACES = 4,
    LOOK = 32,             // steps between two comparisons
    LEAST_LENGTH = 8192,   // below, starting threads costs what they win
    MOST_BYTES = 64 << 20  // of states: overlap keeps a copy where a chain is solved in place
};

bool dpcri_chain_may_overlap(const dpcr_chain_shape *shape, int threads, dpcr_chain_options *options) {
    const dpcr_transition *t = &shape->transition;
    const size_t real = dpcr_dtype_size(shape->dtype);
    // Steps that wait, of blocks or elements too few to be shared out as they are (sequential.c). Dense ones are
    // composed.
    const int64_t part = dpcri_part_width(dpcri_kernel_form(t), t->block, real);
    if (threads < 2 || shape->dtype == DPCR_U32 || shape->batch != 1 || part == 0 || t->rows >= 2 * part ||
        t->structure <= DPCR_IDENTITY || shape->length < LEAST_LENGTH ||
        shape->length > MOST_BYTES / (t->rows * (int64_t)real))
        return false;
    *options = (dpcr_chain_options){
        .size = sizeof *options, .scheme = DPCR_SCHEME_OVERLAP, .chunk = dpcri_chain_overlap_chunk(shape->length, 1)};
    dpcri_chain_defaults(t, shape->length, shape->batch, options);
    return true;
}

// LOOK steps from step `at` of every place, from x [PLACES][w]; y [PLACES][LOOK][w], of which the last steps become x.
static void run_places(const dpcri_flow *f, int64_t apart, int64_t at, void *x, void *y) {
    dpcri_span span = dpcri_flow_span(f, LOOK, PLACES);
    span.a = dpcri_at(f, f->a, at * f->a_step);
    span.a_step = f->a_step;
    span.a_row = apart * f->a_step;
    span.r = dpcri_at(f, f->b, at * f->b_step);
    span.r_step = f->b_step;
    span.r_row = apart * f->b_step;
    span.x = x;
    span.x_row = f->w;
    span.y = y;
    span.y_step = f->w;
    span.y_row = LOOK * f->w;
    dpcri_flow_serial(f, &span);
    dpcri_span keep = dpcri_flow_span(f, 1, PLACES);
    keep.r = dpcri_at(f, y, (LOOK - 1) * f->w);
    keep.r_row = LOOK * f->w;
    keep.y = x;
    keep.y_row = f->w;
    dpcri_flow_copy(f, &keep);
}

void dpcri_chain_forgets(dpcr_context *context, const dpcri_linear *chain, void *workspace,
                         dpcr_chain_options *options) {
    const dpcri_flow f = dpcri_flow_of(context, chain);
    dpcri_arena arena = {.base = workspace, .size = SIZE_MAX};
    void *x = dpcri_flow_take(&f, &arena, PLACES, 1, f.w), *other = dpcri_flow_take(&f, &arena, PLACES, 1, f.w);
    void *y = dpcri_flow_take(&f, &arena, PLACES, LOOK, f.w);
    const size_t bytes = (size_t)(PLACES * f.w) * f.size;
    // Places from step 1 on: the first transition is not read without z0.
    const int64_t apart = (f.n - 1) / PLACES, most = f.n / (20 * 2 * PLACES);
    memset(x, 0, bytes);
    for (int64_t i = 0; i < PLACES * f.w; i++)
        if (f.size == sizeof(double))
            ((double *)other)[i] = i % 2 ? -1 : 1;
        else
            ((float *)other)[i] = i % 2 ? -1 : 1;
    for (int64_t m = 0; m + LOOK <= most; m += LOOK) {
        run_places(&f, apart, 1 + m, x, y);
        run_places(&f, apart, 1 + m, other, y);
        if (memcmp(x, other, bytes) != 0) continue;
        options->scheme = DPCR_SCHEME_OVERLAP;
        options->warm_up = m + LOOK + (m + LOOK) / 4;
        options->chunk = dpcri_chain_overlap_chunk(f.n, options->warm_up);
        options->tolerance = 0;
        options->max_sweeps = 3;
        return;
    }
}
