// SPDX-License-Identifier: MIT
// Linear attention (include/deeppcr/attention.h) of one head of one batch entry, by chunks of DPCRI_ATTENTION_CHUNK
// steps: what a chunk's steps do to one another are small triangular matrices, what the state does to them and they to
// it are products of matrices with the state, which is read and written once a chunk. Columns of v, o and the state
// are apart from one another, and so are their bits.
#ifndef DPCRI_ATTENTION_H
#define DPCRI_ATTENTION_H

#include "rt/rt.h"

enum {
    DPCRI_ATTENTION_CHUNK = 16,
    DPCRI_ATTENTION_WINDOW = 8  // chunks between two states that are kept
};

// Numbers by step and component, or of a state by row and column; strides in numbers. data NULL: there are none, or
// they are not wanted.
typedef struct dpcri_attention_array {
    void *data;
    int64_t step, part;
} dpcri_attention_array;

typedef struct dpcri_attention_run {
    int64_t keys, values, length;  // values: of this run's columns
    double scale;
    bool by_row;                                 // g has a number for every component of a key
    dpcri_attention_array q, k, v, g, beta, s0;  // g NULL: no decay; beta NULL: nothing is taken out of the state
    void *scratch;                               // forward_bytes or adjoint_bytes
    // [windows]: the state_numbers before every window, kept_step numbers apart. Forward writes them, or NULL; the
    // adjoint reads them.
    void *kept;
    int64_t kept_step;
    // Forward: o of data NULL makes states alone.
    dpcri_attention_array o, last;
    // The adjoint. gq and gk are added to where `adds`; else written.
    bool adds;
    dpcri_attention_array go, glast, gq, gk, gv, gg, gbeta, gs0;
} dpcri_attention_run;

typedef struct dpcri_attention_kernels {
    int64_t columns;  // columns of a state that are walked at once: slabs are multiples of it
    int64_t (*state_numbers)(int64_t keys, int64_t values);
    size_t (*forward_bytes)(int64_t keys, int64_t values);
    size_t (*adjoint_bytes)(int64_t keys, int64_t values);
    // begin, then forward over windows one after another up to the last, then end; the adjoint from the last one down.
    void (*forward_begin)(const dpcri_attention_run *run);
    void (*forward)(const dpcri_attention_run *run, int64_t first_window, int64_t end_window);
    void (*forward_end)(const dpcri_attention_run *run);
    void (*adjoint_begin)(const dpcri_attention_run *run);
    void (*adjoint)(const dpcri_attention_run *run, int64_t first_window, int64_t end_window);
    void (*adjoint_end)(const dpcri_attention_run *run);
} dpcri_attention_kernels;

// As dpcri_para_kernels_get and _at.
const dpcri_attention_kernels *dpcri_attention_kernels_get(dpcr_dtype dtype);
const dpcri_attention_kernels *dpcri_attention_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
