// SPDX-License-Identifier: MIT
// Steps of recurrent cells with full recurrent weights, one table a dtype and instruction set level. A strand is one
// sequence, or one chunk of it, that runs beside others: hidden units lie in the lanes of vectors, so a call reads the
// weights once for all its strands, step by step. With u = W_hh h, gate after gate in PyTorch's order, and x the
// input's part (W_ih input + b_ih + b_hh; of a GRU's n without b_hn, which is `bias`), s the sigmoid:
//
//   RNN   h' = act(x + u)                                                              act: ReLU or tanh
//   GRU   r = s(x_r + u_r), z = s(x_z + u_z), m = u_n + bias, n = tanh(x_n + r m),  h' = n + z (h - n)
//   LSTM  i = s(x_i + u_i), f = s(x_f + u_f), g = tanh(x_g + u_g), o = s(x_o + u_o),  c' = f c + i g,  h' = o tanh(c')
//
// State: h, of an LSTM h then c. Tape: RNN act'(x + u); GRU r, z, m, n; LSTM i, f, g, o; each H numbers. Going back, e
// stands for the gradients of what the gates' functions got, in the tape's order (of a GRU: of x_r + u_r, x_z + u_z, m,
// and x_n + r m).
//
// A variant (dpcri_gates_variant) has what these lack, by steps of its own outside the tiles (gates_variant.inc):
//
//   clip                what goes into a gate's function, and an LSTM's c' before its tanh, is cut to -clip..clip
//   GRU, reset before   n = tanh(x_n + W_n (r h)), biases all in x                     tape r, z, r h, n
//   LSTM, peepholes     i and f get p_i c and p_f c, o gets p_o c'
//   LSTM, coupled       f = 1 - i                                                      e_f = 0
//   LSTM, projection    h' = W_hr s, s = o tanh(c'); h and W_hh's columns have P numbers
//
// Its tape has more numbers behind these: of a projection s [H] and room for the gradient of h' [P], both filled going
// back; of clip, GRU and LSTM, a 1 or 0 for each gate's function, whether what went in was not cut.
//
// Order of every sum: k ascending, one fma a term; of RNN and GRU and going back even and odd k apart; of more than
// 256 terms as many by themselves, block after block. So the bits of a strand depend neither on its place nor on what
// runs beside it. An LSTM's sigmoid is exact beside its own size, a GRU's (1 + tanh(u / 2)) / 2
// to an absolute error.
#ifndef DPCRI_GATES_H
#define DPCRI_GATES_H

#include "kern/nn_kernels.h"

typedef enum dpcri_gates_kind {
    DPCRI_GATES_RNN,
    DPCRI_GATES_GRU,
    DPCRI_GATES_LSTM,
    DPCRI_GATES_KINDS,
    // Kinds whose units do not mix; their steps are in para.h.
    DPCRI_PARA_GRU = DPCRI_GATES_KINDS,
    DPCRI_PARA_LSTM,
    DPCRI_PARA_LINEAR,
    DPCRI_GATES_ALL
} dpcri_gates_kind;

static inline bool dpcri_gates_apart(dpcri_gates_kind kind) { return kind >= DPCRI_GATES_KINDS; }

// Strands that may go by single steps (advance_step).
enum { DPCRI_GATES_FEW = 4 };

// Gates with weights of their own, numbers of a strand's tape in units of H, and of its state.
enum { DPCRI_GATES_MOST = 4 };
extern const int dpcri_gates_count[DPCRI_GATES_ALL], dpcri_gates_tape[DPCRI_GATES_ALL],
    dpcri_gates_state[DPCRI_GATES_ALL];

typedef struct dpcri_gates_variant {
    double clip;            // 0: none
    bool reset_before;      // GRU
    bool coupled;           // LSTM
    bool peepholes;         // LSTM
    int64_t projection;     // LSTM: P; 0: none
    const void *peephole;   // p_i, p_f, p_o [3][H]
    const void *project;    // W_hr as dpcri_gates_pack_matrix laid it
    const void *unproject;  // the same for the way back
} dpcri_gates_variant;

typedef struct dpcri_gates {
    dpcr_context *context;  // scratch that does not fit the stack comes from its allocator
    dpcri_gates_kind kind;
    int activation;        // RNN: DPCRI_ACT_RELU or DPCRI_ACT_TANH
    int64_t width;         // H
    const void *forward;   // W_hh as `pack` laid it; of a variant as dpcri_gates_pack_variant did
    const void *backward;  // the same for the way back
    const void *bias;      // GRU: b_hn [H]
    bool varied;
    dpcri_gates_variant variant;  // where varied
    // Units at work, from a multiple of the kernels' units to one or to H; 0, 0: all. Heeded by the kernels of units
    // that do not mix and by advance_step and adjoint_step.
    int64_t from, to;
} dpcri_gates;

// Numbers of h, of a strand's state, of its tape.
static inline int64_t dpcri_gates_outputs(const dpcri_gates *g) {
    return g->varied && g->variant.projection ? g->variant.projection : g->width;
}
static inline int64_t dpcri_gates_states(const dpcri_gates *g) {
    return dpcri_gates_outputs(g) + (dpcri_gates_state[g->kind] - 1) * g->width;
}
static inline int64_t dpcri_gates_tapes(const dpcri_gates *g) {
    const int64_t H = g->width, P = g->varied ? g->variant.projection : 0;
    const bool cut = g->varied && g->variant.clip > 0 && g->kind != DPCRI_GATES_RNN;
    return (dpcri_gates_tape[g->kind] + (cut ? dpcri_gates_count[g->kind] : 0)) * H + (P ? H + P : 0);
}

// Steps before which a strand's state counts as zero, however it was: row r's step s where at[s step + r] is not 0.
typedef struct dpcri_marks {
    const unsigned char *at;  // NULL: none
    int64_t step;
    const void *zeros;  // [state] zeros
} dpcri_marks;

// Every strand through all steps. input [lanes][steps][rows] with gates x H numbers, in and last [lanes][rows], states
// and tape [lanes][steps][rows]; states, last and tape may be NULL; last may be `in`. hidden [lanes][steps][rows]:
// where a plain LSTM's h goes besides, or NULL. ends (or NULL) [rows]: row r's step first + lane stride + k >= ends[r]
// leaves the state as it is (its tape is 0).
typedef struct dpcri_gates_forward {
    int64_t lanes, steps, rows;
    dpcri_grid input, in, states, last, tape, hidden;
    // Another thread writes rows that lie in the same page: processors fetch ahead of what they write into each other's
    // rows, and a step took up to twice as long. So what is written goes past the caches, states in blocks of steps.
    bool beside;
    const int64_t *ends;
    int64_t first, stride;
    dpcri_marks resets;  // by the same numbers of steps as ends
} dpcri_gates_forward;

// From the last step down:  g += direct;  kept = g;  e;  g = what goes through beside the gates + e W_hh;  first_out =
// g in [lanes][steps][rows]: the states that go in. direct, kept, e and first_out may be NULL; kept may be direct, e
// the tape, first_out last. Past a row's end g stays as it is, direct is not read, and e is 0. gates_only: no product
// and no first_out; for the e of states whose adjoint is known (last, steps = 1).
typedef struct dpcri_gates_adjoint {
    int64_t lanes, steps, rows;
    dpcri_grid in, tape, direct, kept, e, last, first_out;
    const int64_t *ends;
    int64_t first, stride;
    bool gates_only;
    bool direct_is_h;  // direct has h's numbers alone: of an LSTM nothing comes in at c
    dpcri_marks resets;
} dpcri_gates_adjoint;

typedef struct dpcri_gates_kernels {
    size_t element;  // bytes
    int64_t units;   // hidden units of a packed tile: the lanes of a vector
    // False: scratch memory was refused, and nothing was written that counts.
    bool (*advance)(const dpcri_gates *gates, const dpcri_gates_forward *run);
    bool (*adjoint)(const dpcri_gates *gates, const dpcri_gates_adjoint *run);
    // Step k of `advance` for units from .. to - 1 of up to DPCRI_GATES_FEW strands; calls for other units may run
    // beside it. All units must be through step k - 1. Of plain kinds, without ends and resets; `last` is not written.
    // turns: [2][strands][state] where run->states.data is NULL.
    void (*advance_step)(const dpcri_gates *gates, const dpcri_gates_forward *run, int64_t k, void *turns);
    // The same of `adjoint`, k from steps - 1 down to -1, by which first_out, which must be there, is whole; all units
    // must be through k + 1. Not gates_only. turns: [2][strands][tape] where run->e.data is NULL.
    void (*adjoint_step)(const dpcri_gates *gates, const dpcri_gates_adjoint *run, int64_t k, void *turns);
    // to[step][row] = from[step][row], rows of `width` numbers side by side in `from`: past the caches, where every row
    // begins with a vector and ends with one.
    void (*put)(int64_t steps, int64_t rows, int64_t width, const void *from, const dpcri_grid *to);
} dpcri_gates_kernels;

// Numbers of a packed W_hh, a multiple of 16; false: too many.
bool dpcri_gates_packed(const dpcri_gates_kernels *kernels, dpcri_gates_kind kind, int64_t width, int64_t *forward,
                        int64_t *backward);

// Packed weights from W_hh [gates H][H], row-major, numbers as many as dpcri_gates_packed says; forward or backward may
// be NULL. A tile is a vector of hidden units: forward [tile][k < H][gate][units], backward [tile][j < gates H][units],
// zeros beyond H. nn: of the same dtype.
void dpcri_gates_pack(const dpcri_gates_kernels *kernels, const dpcri_nn_kernels *nn, dpcri_gates_kind kind,
                      int64_t width, const void *weight, void *forward, void *backward);

// The same of a variant, W_hh [gates H][h's numbers].
bool dpcri_gates_packed_variant(const dpcri_gates_kernels *kernels, const dpcri_gates *gates, int64_t *forward,
                                int64_t *backward);
void dpcri_gates_pack_variant(const dpcri_gates_kernels *kernels, const dpcri_nn_kernels *nn, const dpcri_gates *gates,
                              const void *weight, void *forward, void *backward);
// A [rows][columns] for y += A x: in tiles of a vector of rows, [tile][columns][units]; and for y += A^T x, in tiles of
// columns, [tile][rows][units]. Either may be NULL; numbers as many as dpcri_gates_packed_matrix says.
bool dpcri_gates_packed_matrix(const dpcri_gates_kernels *kernels, int64_t rows, int64_t columns, int64_t *forward,
                               int64_t *backward);
void dpcri_gates_pack_matrix(const dpcri_gates_kernels *kernels, const dpcri_nn_kernels *nn, int64_t rows,
                             int64_t columns, const void *weight, void *forward, void *backward);

// The table of the level in force; NULL for other dtypes than float and double. And of one level, NULL where this build
// or this CPU lacks it.
const dpcri_gates_kernels *dpcri_gates_kernels_get(dpcr_dtype dtype);
const dpcri_gates_kernels *dpcri_gates_kernels_at(dpcri_isa level, dpcr_dtype dtype);

#endif
