// SPDX-License-Identifier: MIT
// What a backend's module offers beside memory and streams: whole solves as launches. Each call checks what it serves,
// puts its launches into the caller's stream and returns: nothing waits, nothing is allocated, nothing of the arrays is
// looked at on the host. All pointers are of the device.
#ifndef DPCRI_KERN_DEVICE_H
#define DPCRI_KERN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "deeppcr/device.h"
#include "deeppcr/transition.h"

// z_l = A_l z_{l-1} + b_l, l = 0..length-1, or z_l = A_{l+1}^T z_{l+1} + b_l from the last step: `rows` sequences of
// width w. Strides in elements, 0 shares; the last dimension is contiguous.
typedef struct dpcri_device_linear {
    dpcr_structure structure;
    dpcr_dtype dtype;
    int transposed;
    int64_t length, rows, w, block;
    const void *a;  // [length][rows][values]; NULL for zero and identity
    int64_t a_step, a_row;
    const void *b;
    int64_t b_step, b_row;
    const void *z0;  // [rows][w] or NULL: zero, and the first transition is not read; not with transposed
    int64_t z0_row;
    void *z;  // may be b, with the same strides
    int64_t z_step, z_row;
    // Of csr, and of what is wider than fits on chip: step by step, or, in_order 0, products of chunks of so many steps
    // side by side; chunk 0: from the length alone.
    int in_order;
    int64_t chunk;
    // csr: the entries of row i of op(A), op the transpose where the chain is transposed, are offsets[i] ..
    // offsets[i+1] - 1, in ascending columns; the value of one is number places[e] of a transition (NULL: e). On the
    // device; `entries` of them.
    const int32_t *offsets, *columns, *places;
    int64_t entries;
} dpcri_device_linear;

enum { DPCRI_DEVICE_CHIP_WIDTH = 16 };  // dense transitions and blocks up to this width multiply on chip

// Width of what mixes in a step.
static inline int64_t dpcri_device_linear_mixes(const dpcri_device_linear *c) {
    return c->structure == DPCR_DENSE || c->structure == DPCR_CSR ? c->w : c->structure == DPCR_BLOCK ? c->block : 1;
}

// Is a chain one that goes by the loop or by products of chunks, not in one pass?
static inline int dpcri_device_linear_large(const dpcri_device_linear *c) {
    return c->structure == DPCR_CSR || dpcri_device_linear_mixes(c) > DPCRI_DEVICE_CHIP_WIDTH;
}

// Why no kernel serves such a chain so far, in words that name what would work; NULL: one does.
static inline const char *dpcri_device_linear_refusal(const dpcri_device_linear *c) {
    if (c->structure < DPCR_ZERO || c->structure > DPCR_CSR) return "no structure of transitions";
    if (c->structure == DPCR_CSR && c->entries > INT32_MAX) return "csr of up to 2^31 - 1 entries works there";
    if (c->in_order && !dpcri_device_linear_large(c))
        return "the loop is of csr, and of dense transitions and blocks wider than 16 there; others go in one pass, by "
               "chunked";
    return 0;
}

typedef enum dpcri_device_way {
    DPCRI_DEVICE_LOOP,     // from first to last
    DPCRI_DEVICE_OVERLAP,  // chunks, each after a warm-up; boundaries checked in the same launch
    DPCRI_DEVICE_NEWTON    // all sweeps and the stopping rule in one launch
} dpcri_device_way;

enum { DPCRI_DEVICE_ACTIVATIONS = 6 };  // identity, ReLU, tanh, sigmoid, GELU, SiLU: kern/nn_kernels.h

// u = W_l z_{l-1} + x_l, z_l = act(u) or z_{l-1} + scale act(u): `rows` sequences of width w (kern/narrow.h), and with
// `backward` the transposed chain at the states in z: adjoint_l = direct_l + J_{l+1}^T adjoint_{l+1} from the last
// step, z0_adjoint = J_0^T adjoint_0. A stack of layers is such a chain whose every step has a W of its own.
typedef struct dpcri_device_cell {
    dpcr_dtype dtype;
    int activation;  // DPCRI_ACT_IDENTITY, ..., below DPCRI_DEVICE_ACTIVATIONS
    int diagonal, residual;
    int in_out;  // W lies as [in][out], else as [out][in]; not of a diagonal
    double scale;
    int64_t length, rows, w;
    const void *weight;
    int64_t weight_step;  // 0: one W for all steps
    const void *x;
    int64_t x_step, x_row;
    // Two-layer branches, `hidden` wide inside, 0: none: W is [w][hidden], or [hidden][w] where W is not in_out, and
    // z_l = W2 act(u) + x2, or z_{l-1} + scale that; W2 [hidden][w] or [w][hidden]. Dense, not by newton.
    int64_t hidden;
    const void *weight2, *x2;  // a step's weight_step and x_step behind the one before's
    // Of normalised layers u becomes (u - mean) r gamma + beta before act, mean and r = 1 / sqrt(variance + 1e-5) of
    // the row's units: [w] each, or [hidden], a step's x_step behind the one before's. NULL: none. Dense, not by
    // newton.
    const void *gamma, *beta;
    const void *z0;  // or NULL: zeros
    int64_t z0_row;
    void *z;
    int64_t z_step, z_row;
    dpcri_device_way way;
    int64_t chunk, warm_up;  // overlap; 0: from the length alone
    // overlap: boundary defects |d| <= atol + rtol |z|; both 0: bit for bit the loop's states but for the sign of a 0.
    // newton: |z - f(z_before)| and the last correction <= atol + rtol |z|, for every step before the one that is
    // called the first open one.
    double atol, rtol;
    int max_sweeps;                // 0: overlap 3, newton 16; from the first open step on it is then finished in order,
    int stop;                      // or, not 0, left as it is
    dpcr_device_outcome *outcome;  // [rows], or NULL
    int backward;                  // one pass over the states, whatever the way: nothing above but the arrays is read
    const void *direct;
    int64_t direct_step, direct_row;
    void *adjoint;  // may be direct, with the same strides
    int64_t adjoint_step, adjoint_row;
    void *z0_adjoint;  // or NULL
    int64_t z0_adjoint_row;
    // Going back through dense steps with a W and an x each of their own, x_row 0: onto what is there the gradients of
    // W, and of x summed over the rows, that lie as W and x do, and of gamma and beta likewise. Each may be NULL.
    int gradients;
    int share;  // dense, by the loop, and going back: blocks may share a row's units; the bits are one block's
    void *weight_gradient, *x_gradient, *gamma_gradient, *beta_gradient, *weight2_gradient, *x2_gradient;
} dpcri_device_cell;

// Why no kernel serves such a cell so far, in words that name what would work; NULL: one does.
static inline const char *dpcri_device_cell_refusal(const dpcri_device_cell *c) {
    const int shared = c->weight_step == 0 || c->x_step == 0 || c->x_row != 0;
    if (c->dtype != DPCR_F32 && c->dtype != DPCR_F64) return "cells of float32 and float64 work there";
    if (c->activation < 0 || c->activation >= DPCRI_DEVICE_ACTIVATIONS)
        return "identity, ReLU, tanh, sigmoid, GELU and SiLU work there";
    if (c->length > UINT32_MAX) return "chains of up to 2^32 - 1 steps work there";
    if (c->gamma && (c->diagonal || c->way == DPCRI_DEVICE_NEWTON))
        return "normalised layers are dense there, and go by the loop and by overlap";
    if (c->hidden && (c->diagonal || c->way == DPCRI_DEVICE_NEWTON))
        return "two-layer branches are dense there, and go by the loop and by overlap";
    return c->backward && c->gradients && (c->diagonal || shared)
               ? "gradients of parameters are of dense layers with weights and biases of their own there"
               : 0;
}

// The kinds of dpcr_recurrent_kind that there are kernels for.
typedef enum dpcri_device_gates {
    DPCRI_DEVICE_RNN_TANH,
    DPCRI_DEVICE_RNN_RELU,
    DPCRI_DEVICE_GRU,
    DPCRI_DEVICE_LSTM,
    // Units do not mix (kern/para.h): w_hh is [3 H], of minGRU nothing, and there is no b_hh.
    DPCRI_DEVICE_PARAGRU,
    DPCRI_DEVICE_PARALSTM,
    DPCRI_DEVICE_MINGRU
} dpcri_device_gates;

// One layer and direction of a recurrent network (deeppcr/recurrent.h) over `rows` sequences, steps in the order in
// which it runs: against time, with negative strides. Weights and biases are contiguous.
typedef struct dpcri_device_recurrent {
    dpcr_dtype dtype;
    dpcri_device_gates gates;
    int64_t length, rows, inputs, hidden;
    const void *w_ih, *w_hh, *b_ih, *b_hh;  // [G H][I], [G H][H], [G H] or NULL
    int64_t projected;                      // of an LSTM, not 0: h = W_hr (o tanh c) is so many numbers, P: in what
    const void *w_hr;                       // follows P stands for H but for c, and W_hh is [G H][P]; [P][H]
    int coupled, peepholes;                 // of an LSTM: f = 1 - i; c goes into i, f and o
    int reset_before;                       // of a GRU: n = tanh(x_n + W_n (r h) + b_n)
    double clip;  // not 0, of kinds whose units mix: what goes into a gate's function, and an LSTM's c before its tanh,
                  // is cut to -clip..clip
    const void *peephole;  // [2 H] of ParaLSTM; p_i, p_f, p_o [3 H] of an LSTM with peepholes
    const void *x;         // [length][rows][inputs]
    int64_t x_step, x_row;
    const void *h0, *c0;  // [rows][H] contiguous, or NULL: zeros
    void *y;              // [length][rows][H]
    int64_t y_step, y_row;
    void *ht, *ct;                // [rows][H] contiguous, or NULL
    int packed;                   // not 0: sequences have lengths of their own, and y is 0 beyond
    const int64_t *lengths;       // [rows] of the device, within 0..length
    int parted;                   // not 0: with some steps new sequences begin
    const unsigned char *resets;  // [length][rows] of the device, by time: not 0 where one begins (deeppcr/recurrent.h)
    int against;                  // the strides run against time: of a shorter sequence the last steps count
    void *kept;                   // [length][rows][H]: c after each step, for the way back; or NULL
    dpcri_device_way way;
    int64_t chunk, warm_up;  // from here on as of a cell
    double atol, rtol;
    int max_sweeps, stop;
    int share;  // of RNN, GRU and LSTM: W_hh may stay on chip, spread over the blocks; the bits are the same
    dpcr_device_outcome *outcome;  // [rows]
    // The way back: x, h0, c0, y and kept are those of the way forward, and only read. With the gradients of y, ht and
    // ct those of all that is not NULL: dx, which may add to what is there, dh0, dc0, and onto what is there those of
    // weights and biases. Tolerances are of the largest number among those at which a sequence's chunks start; `stop`
    // is unread. After newton it goes by a scan where units do not mix, and nothing of the solve's rules is read; else
    // by overlap.
    int backward;
    const void *dy;  // [length][rows][H], or NULL
    int64_t dy_step, dy_row;
    const void *dht, *dct;  // [rows][H] contiguous, or NULL
    void *dx;               // [length][rows][inputs], or NULL
    int64_t dx_step, dx_row;
    int dx_adds;
    void *dh0, *dc0;  // [rows][H] contiguous, or NULL
    void *dw_ih, *dw_hh, *db_ih, *db_hh, *dpeephole, *dw_hr;
} dpcri_device_recurrent;

// Why no kernel serves such a layer so far, in words that name what would work; NULL: one does.
static inline const char *dpcri_device_recurrent_refusal(const dpcri_device_recurrent *c) {
    const int apart = c->gates >= DPCRI_DEVICE_PARAGRU;
    const int cell = c->gates <= DPCRI_DEVICE_RNN_RELU && !c->packed && !c->parted && !(c->clip > 0);
    if (c->way == DPCRI_DEVICE_NEWTON && !c->backward && !cell && !apart)
        return "newton is of paragru, paralstm and mingru there, and of rnn and rnn-relu of full length, without "
               "resets and clip; the loop and overlap are of all";
    return c->length <= UINT32_MAX ? NULL : "chains of up to 2^32 - 1 steps work there";
}

// One update of an optimiser, the scalars as kern/train_kernels.h has them: SGD's rate, momentum, decay, or with `adam`
// keep .. epsilon and decay. `clear`: the gradients are 0 afterwards.
typedef struct dpcri_device_update {
    dpcr_dtype dtype;
    int adam, from_gradient, clear;
    int64_t count;
    void *parameters, *gradients, *first, *second;  // first, second: NULL where the kind has none
    double rate, momentum, decay;
    double keep, pull, beta2, rest2, step, root, epsilon;
} dpcri_device_update;

// Sums of squares, here and there: at most BLOCKS blocks of the same size, of LEAST numbers or more; number j of a
// block in part j mod PARTS; then parts and blocks in order.
enum { DPCRI_CLIP_BLOCKS = 256, DPCRI_CLIP_LEAST = 1 << 14, DPCRI_CLIP_PARTS = 16 };

// Gradients scaled to a norm of at most `most` (train/clip.c), `more` too, of another vector, where more_count is not
// 0. sums [1 + DPCRI_CLIP_BLOCKS], of two vectors [1 + 2 DPCRI_CLIP_BLOCKS]: the norm before, then what it is made of.
typedef struct dpcri_device_clip {
    dpcr_dtype dtype;
    int64_t count;
    void *gradients;
    double most;
    double *sums;
    int64_t more_count;
    void *more;
} dpcri_device_clip;

// Tied steps' gradients (model/model.c): `steps` records of `each` numbers, of which those of k, k + tie, k + 2 tie, ..
// all become the sum of theirs in this order, k = 0 .. tie - 1.
typedef struct dpcri_device_tie {
    dpcr_dtype dtype;
    int64_t steps, each, tie;
    void *gradients;
} dpcri_device_tie;

// Encoder and head (model/ends.c): y = x W + b, W [in][out], or, `out_in`, [out][in] (train/sequence_pass.c), b [out],
// x [rows][in], y [rows][out], all contiguous. With `backward` y holds dy, which is only read: dx, where it is not
// NULL, is written, and onto what is there come the gradients of W and b where they are not NULL. Sums begin with what
// is there, or b, or 0, and run in order.
typedef struct dpcri_device_affine {
    dpcr_dtype dtype;
    int backward, out_in;
    int64_t rows, in, out;
    const void *weight, *bias, *x;
    void *y, *dx, *weight_gradient, *bias_gradient;
} dpcri_device_affine;

// The mean cross-entropy of a batch (train/loss.c) and how many rows are right. All labels are below `classes`. Rows
// are added up in order; where `block` is not 0, so many of them first, and these sums in order.
typedef struct dpcri_device_loss {
    dpcr_dtype dtype;
    int64_t rows, classes;
    const void *logits;
    const uint8_t *labels;
    void *dlogits;  // the gradient; may be logits; NULL: none
    double *parts;  // [rows][2], by row: its loss, and 1 where it is right
    double *told;   // [2]: the mean, and their number
    int64_t block;
} dpcri_device_loss;

// order [count] = the permutation of train/batches.h for this stream of the generator.
typedef struct dpcri_device_shuffle {
    uint64_t seed, stream;
    int64_t count;
    int64_t *order;
    uint32_t *marks;  // [count], anything at first
} dpcri_device_shuffle;

// Rows of a batch, normalised: x[r][:] = table[images[order[first + r]][:]], y[r] = its label; order NULL: as they lie.
typedef struct dpcri_device_gather {
    dpcr_dtype dtype;
    int64_t first, rows, pixels;
    const uint8_t *images, *labels;
    const int64_t *order;
    const void *table;  // [256]
    void *x;
    uint8_t *y;
} dpcri_device_gather;

// A batch of labelled sequences, step by step: x[t][r][:] = data[s][t][:] with its label and number of steps, s =
// order[first + r] (order NULL: first + r); beyond `count` the last one again.
typedef struct dpcri_device_sequences {
    dpcr_dtype dtype;  // of x
    int64_t first, rows, count, length, features;
    const float *data;  // [count][length][features]
    const uint8_t *labels;
    const int64_t *lengths, *order;  // [count]
    void *x;                         // [length][rows][features]
    uint8_t *y;                      // [rows]
    int64_t *steps;                  // [rows], or NULL: not wanted
    // Or [parts][rows], of parts of `part` steps, counted from the end, so that the first may have fewer: how many of
    // its own a sequence has in each. parts 0: one, the whole.
    int64_t parts, part;
} dpcri_device_sequences;

// A piece of a text as `rows` streams side by side through an embedding: index[t][r] = text[first + r stream + t],
// labels the symbols that follow, x[t][r][:] = weight[index[t][r]][:]. With `backward` x holds its gradient, and that
// and the indices are only read: onto weight_gradient comes each symbol's sum, by ascending t and r.
typedef struct dpcri_device_embedding {
    dpcr_dtype dtype;
    int backward;
    int64_t first, rows, length, stream, symbols, width;
    const uint8_t *text;  // each below `symbols`
    const void *weight;   // [symbols][width]
    void *x;              // [length][rows][width]
    uint8_t *indices, *labels;
    void *weight_gradient;
} dpcri_device_embedding;

// What the head of a sequence model reads, v [rows][width]: the last states of `parts` directions side by side, states
// [parts][rows][width / parts]; or, with `mean`, the mean of states [length][rows][width] over each sequence's steps.
// With `backward` v holds its gradient, and the states' is written, zeros beyond a sequence's end.
typedef struct dpcri_device_readout {
    dpcr_dtype dtype;
    int mean, backward;
    int64_t length, rows, width, parts;
    const int64_t *lengths;  // [rows], or NULL: all `length`
    void *states, *v;
} dpcri_device_readout;

// Dropout (model/recurrent_dropout.c): to[t][b][i] = from[t][b][i] scale, or 0 where the number's word of the
// generator, with this seed, is below `below`, or the scale is 0. `to` may be `from`.
typedef struct dpcri_device_drop {
    dpcr_dtype dtype;
    int64_t length, rows, width;  // length and rows below 2^32
    uint64_t seed, below;
    double scale;
    const void *from;
    void *to;
} dpcri_device_drop;

// Where a sequence of a chain that is solved by sweeps stands (solve/sweeps.c), all zeros at first.
typedef struct dpcri_device_progress {
    int64_t front;   // steps before it are locked
    int64_t exact;   // steps before it are known to have the loop's bits
    int64_t filled;  // steps that have had a guess
    int64_t work;    // evaluations
    int64_t locked;  // the front when it ended, before any finishing in order
    double residual;
    int32_t sweeps, ended;  // dpcri_device_ended
} dpcri_device_progress;

enum {
    DPCRI_DEVICE_AT_WORK,
    DPCRI_DEVICE_LOCKED,     // to the end
    DPCRI_DEVICE_SPENT,      // the budget; its front is then what is exact, but with no_fallback
    DPCRI_DEVICE_NOT_FINITE  // the chain itself leaves the finite numbers; its front is then what is exact
};

// Rows of several steps: of each of `count` sequences, who[i], the steps front + first .. of its window. Row r is step
// front + first + r / count of who[r % count], and is none where the window or the chain has ended before it.
typedef struct dpcri_device_window {
    int64_t count;  // 0: rows are as they lie
    int64_t first, most, length, batch;
    const int32_t *who;                   // [count]
    const dpcri_device_progress *places;  // [batch]
} dpcri_device_window;

// A layer of a denoiser over rows that may lie apart (sample/dense.h), in float: u = x W^T + b, to b of row r comes
// more[index[r]], where there is more (index NULL: its first row);  y = act(u), or, `residual`, x + act(u). y is not x.
// With a window b is that of the row's step, bias_row further each, and index is by sequence; with `path` too x is
// [steps][batch][x_row].
typedef struct dpcri_device_dense {
    int activation, residual, path;
    int64_t rows, in, out;
    const float *weight, *bias;  // [out][in], [out]
    int64_t bias_row;
    const float *more;  // [.][out] with more_row between rows, or NULL
    int64_t more_row;
    const int32_t *index;
    const float *x;
    int64_t x_row;
    float *y;
    int64_t y_row;
    dpcri_device_window window;
} dpcri_device_dense;

// What a denoising step is made of (sample/sample.h): x0 = x0_x x + x0_m m, cut to [-clip, clip] where clip > 0, e
// alike, uncut; and the factors of what is added up.
typedef struct dpcri_device_factors {
    double x0_x, x0_m, e_x, e_m;
    double by_x, by_x0, by_e, by_former, by_noise;
    double then_x0_x, then_x0_m, then_x, then_x0, then_x1, then_x01;
    double alpha, sigma;
    int64_t twice;
} dpcri_device_factors;

// A denoising step of rows of `width` numbers, in double on numbers of float: m, or plain + guidance (m - plain), says
// of x what x0 and e are, and `to` becomes the sum of x, x0, e, the former x0 and the noise, each by its factor. With
// m1, said of what stands in `to`, that is put together of x, x0 and both at `to`, where the step is `twice`. Then
// known places, where there is a mask, are alpha known + sigma start, unless the step's second half is still to come.
// With a window each row takes its own step's factors, steps[], and x, former and noise are [steps][batch][..].
typedef struct dpcri_device_denoise {
    int64_t rows, width;
    double clip;
    dpcri_device_factors by;            // without a window
    const dpcri_device_factors *steps;  // [length]
    float guidance;
    const float *x;
    int64_t x_row;
    const float *m, *plain, *m1, *plain1, *noise;  // [rows][width]; each but m may be NULL
    const float *former;                           // or NULL
    int64_t former_row;
    float *to;
    int64_t to_row;
    float *kept;  // gets x0, or NULL
    int64_t kept_row;
    const uint8_t *mask;         // [width], or NULL
    const float *known, *start;  // [rows][width], with a mask; [batch][width] with a window
    dpcri_device_window window;
} dpcri_device_denoise;

// Numbers moved: to[l][b][:] = from[l][b][:], `from` NULL: zeros. Distances in numbers.
typedef struct dpcri_device_move {
    int64_t steps, rows, width;
    const float *from;
    int64_t from_step, from_row;
    float *to;
    int64_t to_step, to_row;
} dpcri_device_move;

// What parataa remembers of a sequence's sweeps (solve/parataa.c), all zeros at first: steps old_lo .. old_hi - 1 were
// in the last window, and difference q is of steps lo[q] .. hi[q] - 1.
typedef struct dpcri_device_past {
    int64_t old_lo, old_hi, lo[3], hi[3], count;
} dpcri_device_past;

// What follows the evaluation of a window in a sweep of picard (solve/sweeps.c) or parataa, in its operations and the
// loop's order: residuals, their sums along the window, the states that follow, what is locked, and the guess of what
// comes in.
typedef struct dpcri_device_sweep {
    dpcri_device_window window;  // first 0; `places` are written
    int64_t width;
    int in_order;  // the front takes its f and goes on by one: nothing else
    double atol, rtol;
    const double *scale;  // [length], or NULL: of the tolerances
    int mean;             // locked by the mean square of corrections
    int guess;            // what comes into the window copies the last state before it
    int max_sweeps, no_fallback;
    float *path;      // [length + 1][batch][width], from the start on
    const float *f;   // [rows][width], of the window's rows
    float *r;         // the same: scratch
    uint32_t *flags;  // [rows]: scratch
    // Parataa in picard's place: sweeps that are mixed, 1 to 4; 0: picard. r and flags are not looked at then.
    int mixed;
    int64_t order;         // steps substituted into each other
    const double *slopes;  // [length], or NULL: 1
    double *change;        // [rows][width]: scratch
    double *sums;          // [rows][12]: scratch
    dpcri_device_past *past;
    float *past_z, *past_r;  // [batch][mixed - 1][most][width], by step modulo most
    float *old_z, *old_r;    // [batch][most][width]
} dpcri_device_sweep;

typedef struct dpcri_device_kernels {
    size_t size;  // sizeof(dpcri_device_kernels) of the module's headers
    // Bytes of device memory, 256-byte aligned, that a solve of this form (pointers and strides unread, but for whether
    // there is a gamma) takes.
    // DPCR_ERROR_UNSUPPORTED, in words that name what would work, where no kernel serves it.
    dpcr_status (*linear_workspace)(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error);
    // The same bits from run to run on one device.
    dpcr_status (*linear)(int id, const dpcri_device_linear *chain, void *workspace, size_t bytes, void *stream,
                          dpcr_error *error);
    dpcr_status (*cell_workspace)(int id, const dpcri_device_cell *cell, size_t *bytes, dpcr_error *error);
    dpcr_status (*cell)(int id, const dpcri_device_cell *cell, void *workspace, size_t bytes, void *stream,
                        dpcr_error *error);
    // How many blocks of the device share the units of a cell's rows with `share`; 0: none, one has all. *whole: not 0
    // where a block that has all takes a layer's weights as one tile.
    dpcr_status (*cell_share)(int id, const dpcri_device_cell *cell, int64_t *blocks, int *whole, dpcr_error *error);
    dpcr_status (*recurrent_workspace)(int id, const dpcri_device_recurrent *layer, size_t *bytes, dpcr_error *error);
    dpcr_status (*recurrent)(int id, const dpcri_device_recurrent *layer, void *workspace, size_t bytes, void *stream,
                             dpcr_error *error);
    // Over how many blocks of the device W_hh stays on chip with `share`; 0: it goes past them.
    dpcr_status (*recurrent_share)(int id, const dpcri_device_recurrent *layer, int64_t *blocks, dpcr_error *error);
    // The host's bits.
    dpcr_status (*update)(int id, const dpcri_device_update *update, void *stream, dpcr_error *error);
    dpcr_status (*clip)(int id, const dpcri_device_clip *clip, void *stream, dpcr_error *error);
    dpcr_status (*tie)(int id, const dpcri_device_tie *tie, void *stream, dpcr_error *error);
    // The host's bits, as far as exp and log are the host's.
    dpcr_status (*affine)(int id, const dpcri_device_affine *affine, void *stream, dpcr_error *error);
    dpcr_status (*loss)(int id, const dpcri_device_loss *loss, void *stream, dpcr_error *error);
    dpcr_status (*shuffle)(int id, const dpcri_device_shuffle *shuffle, void *stream, dpcr_error *error);
    dpcr_status (*gather)(int id, const dpcri_device_gather *gather, void *stream, dpcr_error *error);
    dpcr_status (*sequences)(int id, const dpcri_device_sequences *sequences, void *stream, dpcr_error *error);
    dpcr_status (*embedding)(int id, const dpcri_device_embedding *embedding, void *stream, dpcr_error *error);
    dpcr_status (*readout)(int id, const dpcri_device_readout *readout, void *stream, dpcr_error *error);
    dpcr_status (*drop)(int id, const dpcri_device_drop *drop, void *stream, dpcr_error *error);
    dpcr_status (*dense)(int id, const dpcri_device_dense *dense, void *stream, dpcr_error *error);
    dpcr_status (*denoise)(int id, const dpcri_device_denoise *denoise, void *stream, dpcr_error *error);
    dpcr_status (*move)(int id, const dpcri_device_move *move, void *stream, dpcr_error *error);
    dpcr_status (*sweep)(int id, const dpcri_device_sweep *sweep, void *stream, dpcr_error *error);
    // A block a multiprocessor, all of which meet `count` times, in one launch.
    dpcr_status (*barriers)(int id, int64_t count, void *stream, dpcr_error *error);
} dpcri_device_kernels;

// What a module's table holds; NULL: nothing, or what was built from other sources.
static inline const dpcri_device_kernels *dpcri_device_kernels_in(const void *table_kernels) {
    const dpcri_device_kernels *const k = (const dpcri_device_kernels *)table_kernels;
    return k && k->size == sizeof *k ? k : NULL;
}

#endif
