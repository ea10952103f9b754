// SPDX-License-Identifier: MIT
// The inside of a recurrent network and its plans, for the files of this folder.
#ifndef DPCRI_RECURRENT_INTERNAL_H
#define DPCRI_RECURRENT_INTERNAL_H

#include "deeppcr/data.h"
#include "deeppcr/recurrent.h"
#include "nn/recurrent.h"

struct dpcr_recurrent {
    dpcr_context *context;
    dpcr_recurrent_options options;  // every default filled in
    dpcri_gates_kind gates;
    dpcri_gates cell;            // its kind, widths and variant, without weights
    int64_t directions, chains;  // D, and N = layers D
    size_t element;              // bytes
    char *parameters, *gradients;
    int64_t count;  // numbers in each
};

typedef enum dpcri_recurrent_tensor {
    DPCRI_WEIGHT_IH,
    DPCRI_WEIGHT_HH,
    DPCRI_BIAS_IH,
    DPCRI_BIAS_HH,
    DPCRI_WEIGHT_HR,
    DPCRI_WEIGHT_CH,
    DPCRI_PEEPHOLE,
    DPCRI_RECURRENT_TENSORS
} dpcri_recurrent_tensor;

// dpcr_recurrent_load of the tensors that were read from `path`; prefix as there, and short enough.
dpcr_status dpcri_recurrent_of_tensors(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                       const char *prefix, dpcr_recurrent_kind kind, dpcr_recurrent **network,
                                       dpcr_error *error);

// Offset in the vectors of a tensor of layer and direction `chain`; -1: the network has none.
int64_t dpcri_recurrent_offset(const dpcr_recurrent *network, int64_t chain, dpcri_recurrent_tensor which);
// Width of what goes into the layer of `chain`.
int64_t dpcri_recurrent_inputs(const dpcr_recurrent *network, int64_t chain);

// Numbers of a chain's h and state, of y, and of a tape's step.
static inline int64_t dpcri_recurrent_h(const dpcr_recurrent *n) { return dpcri_gates_outputs(&n->cell); }
static inline int64_t dpcri_recurrent_w(const dpcr_recurrent *n) { return dpcri_gates_states(&n->cell); }
static inline int64_t dpcri_recurrent_y(const dpcr_recurrent *n) { return n->directions * dpcri_recurrent_h(n); }
static inline int64_t dpcri_recurrent_taped(const dpcr_recurrent *n) { return dpcri_gates_tapes(&n->cell); }

static inline void *dpcri_recurrent_at(const dpcr_recurrent *n, char *vector, int64_t offset) {
    return offset < 0 ? NULL : vector + offset * (int64_t)n->element;
}

// Pieces of the tape (or, not training, of the workspace) of one layer and direction; NULL: not kept.
typedef struct dpcri_recurrent_kept {
    void *gates;   // [T][B][tape]
    void *states;  // [T][B][w]: z, where it does not lie in y
} dpcri_recurrent_kept;

struct dpcr_recurrent_plan {
    const dpcr_recurrent *network;
    dpcr_context *context;
    dpcr_recurrent_plan_options options;  // sample NULL; on the host length 0 where batch is: nobody's steps
    int64_t length;                       // as asked for
    dpcri_recurrent *layers;    // [chains]; they are pointed to a call's arrays, so a plan serves one call at a time
    dpcr_solve_plan **chains;   // [chains]
    char *packed;               // what the layers' weights are laid out in
    bool adjoints;              // for training, also while chains are only tried
    bool laid_out_back;         // and for going back
    bool laid_out;              // frozen: packed is filled
    void **outputs, **dropped;  // room for a space's pointers
    dpcri_recurrent_kept *kept;
    // Of a device; else NULL: its kernels, bytes of its memory (a layer's kernels', all), and why this method.
    const struct dpcri_device_kernels *kernels;
    size_t kernel_bytes, device_bytes;
    int sweeps_back;  // max_sweeps as asked for, 0: the kernels' own, for the way back may be another method's
    char sentence[480];
};

// Fills these in, and what was left open in options.solve.
dpcr_status dpcri_recurrent_plan_device(dpcr_recurrent_plan *plan, dpcr_error *error);
// Of the chains' reports the worst reason, as the batches of one solve have it, and the largest residual. Either may be
// NULL.
void dpcri_recurrent_worst(const dpcr_solve_report *reports, int64_t chains, dpcr_reason *reason, double *residual);

// Pieces of workspace and tape. One function counts and carves.
typedef struct dpcri_recurrent_space {
    void **outputs;              // [layers]: y of the layers below the last, [T][B][D H]
    void **dropped;              // [layers]: the same after dropout; NULL: as it is
    dpcri_recurrent_kept *kept;  // [chains]
    void *products;              // [T][B][gates]: of the chain at work, where they are made ahead
    void *reversed;              // [T][B][I or D H]: x of a packed batch, each sequence from its end
    void *direct;                // backward: [T][B][w], and [T][B][I or D H] of what goes back reversed
    void *back_reversed;
    void *outer[2];        // backward: gradients of y of the layers below, by turns, [T][B][D H]
    void *initial, *last;  // [B][w]
    void *initial_back;
    unsigned char *marks;  // [T][B]: resets in a chain's order
    void *zeros, *before;  // of resets: [w]; backward: [T][B][w], the states that went in
    void *e;               // backward, recompute: the gates' gradients of some steps
    // backward, by blocks of sequences: e, x and the states that went in of a window, [blocks][window][rows][...], and
    // sums of a chain's gradients [blocks][its parameters], NULL where one block is all of a packed batch; all NULL:
    // not by blocks
    void *block_e, *block_x, *block_before, *block_sums;
    void *solve;
    size_t solve_bytes;
} dpcri_recurrent_space;

// Steps of e that a recomputing backward pass holds: what lies in cache.
int64_t dpcri_recurrent_window(const dpcr_recurrent_plan *plan);

// Blocks of sequences whose gradients a chain sums apart, 1: it does not; steps of a window then, and numbers of its
// parameters.
int64_t dpcri_recurrent_blocks(const dpcr_recurrent_plan *plan, int64_t chain);
// Where the layer's blocks begin, of sequences of these lengths; NULL: all are whole.
void dpcri_recurrent_divide(const dpcr_recurrent_plan *plan, int64_t chain, const int64_t *lengths);
// Whether a chain that has one copies of the rows that go on what its sums read: of a packed batch.
bool dpcri_recurrent_gathers(const dpcr_recurrent_plan *plan);
int64_t dpcri_recurrent_block_window(const dpcr_recurrent_plan *plan, int64_t chain);
int64_t dpcri_recurrent_own_parameters(const dpcr_recurrent *network, int64_t chain);

// Where the numbers of chain c lie when it runs over x: forward, reversed by strides, or, packed, reversed as a copy.
typedef struct dpcri_recurrent_flow {
    bool reverse;     // against time
    bool copied;      // reverse and packed: x, z and tape are in the chain's own order
    bool in_outputs;  // z lies in y
} dpcri_recurrent_flow;

dpcri_recurrent_flow dpcri_recurrent_flow_of(const dpcr_recurrent_plan *plan, int64_t chain);

// The tape of a plan for training; the workspace of execute or of backward. The pointers of `space` are the plan's.
void dpcri_recurrent_carve_tape(const dpcr_recurrent_plan *plan, dpcri_arena *arena, dpcri_recurrent_space *space);
void dpcri_recurrent_carve_workspace(const dpcr_recurrent_plan *plan, bool backward, dpcri_arena *arena,
                                     dpcri_recurrent_space *space);

// Those pieces of the latter that the sums of one chain want, which has a plan, without recompute.
void dpcri_recurrent_carve_sums(const dpcr_recurrent_plan *plan, int64_t chain, dpcri_arena *arena,
                                dpcri_recurrent_space *space);

// The pieces of a call, carved out of the caller's memory; and that this and the pass's arrays are what the plan wants.
dpcr_status dpcri_recurrent_open(dpcr_recurrent_plan *plan, const char *call, const dpcr_recurrent_pass *pass,
                                 void *tape, void *workspace, size_t workspace_bytes, bool backward,
                                 dpcri_recurrent_space *space, dpcr_error *error);
dpcr_status dpcri_recurrent_check_array(const dpcr_recurrent_plan *plan, const char *call, const char *name,
                                        const dpcr_array *array, bool optional, const int64_t shape[3],
                                        dpcr_error *error);
// Refuses what is written, y, ht and ct of the pass or, given gradients, x, h0 and c0 of theirs, where it shares memory
// with anything that the call reads or writes besides; but where the pass is not for training, ht may be h0, and ct c0.
// All have been checked for shape.
dpcr_status dpcri_recurrent_check_apart(const char *call, const dpcr_recurrent *network,
                                        const dpcr_recurrent_pass *pass, const dpcr_recurrent_gradients *gradients,
                                        bool training, dpcr_error *error);
// Lays the weights of all layers out for the kernels, unless they are frozen and lie there; those of a forward pass
// serve the backward one after it, which needs W_hh in another order besides.
void dpcri_recurrent_lay_out(dpcr_recurrent_plan *plan);
void dpcri_recurrent_lay_out_back(dpcr_recurrent_plan *plan);

// The solve's options as their size says them, the rest 0, and of this library's size; 0: the loop's, nothing is done.
// DPCR_ERROR_ARGUMENT where they do not even hold a method.
dpcr_status dpcri_recurrent_solve_options(const char *call, dpcr_solve_options *solve, dpcr_error *error);

// The pass with what its size leaves out, and going back without its last states, which may be gone; false: there is
// none.
bool dpcri_recurrent_take_pass(const dpcr_recurrent_pass *given, bool backward, dpcr_recurrent_pass *pass);

// The masks over y of `layer` in a pass: a word of the generator below `below` drops its number, the others are times
// scale. False: the plan has no dropout.
typedef struct dpcri_recurrent_mask {
    uint64_t seed, below;
    double scale;  // 0: none is kept
} dpcri_recurrent_mask;

bool dpcri_recurrent_mask_of(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, int64_t layer,
                             dpcri_recurrent_mask *mask);

// to = from, some numbers dropped and the others scaled, of y of `layer` [T][B][D H]; to may be from. Nothing where the
// plan has no dropout.
void dpcri_recurrent_drop(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, int64_t layer,
                          const void *from, void *to);

// The chain's callbacks, those that the plan's passes call.
void dpcri_recurrent_plan_steps(const dpcr_recurrent_plan *plan, int64_t chain, dpcr_steps *steps);

// Plans chain after chain, each over what the loop made of the ones below from `options.sample`.
dpcr_status dpcri_recurrent_sample(dpcr_recurrent_plan *plan, const dpcr_solve_options *options, dpcr_error *error);

// What a chain is planned over, which its layer's products_user points to meanwhile; and what trials of its ways back
// take in its place (dpcr_steps.rehearse, rehearsed).
typedef struct dpcri_recurrent_stage {
    const dpcr_recurrent_plan *plan;
    const dpcr_recurrent_pass *pass;
    const dpcri_recurrent_space *space;
    int64_t chain;
} dpcri_recurrent_stage;
void *dpcri_recurrent_rehearse(void *layer, const dpcr_rehearsal *tried);
void dpcri_recurrent_rehearsed(void *stand_in);

// Rows of a layer's input: the pass's x, or y of the layer below. And of y of a layer.
dpcri_grid dpcri_recurrent_input(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                 const dpcri_recurrent_space *space, int64_t chain);
dpcri_grid dpcri_recurrent_output(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                  const dpcri_recurrent_space *space, int64_t layer);
// Whether a chain goes back by its adjoint loop, in order or in chunks.
bool dpcri_recurrent_back_by_loop(const dpcr_recurrent_plan *plan, int64_t chain);
// Points the layer of `chain` to its input (copied reversed where the flow says so) and to the pass's lengths.
void dpcri_recurrent_feed(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                          const dpcri_recurrent_space *space, int64_t chain);
// Where units do not mix, most of the work is the input's product, and methods of sweeps would make it once a sweep: it
// is made for all steps at once, over the context's threads, into the space. Nothing happens where it is not wanted.
// DPCR_ERROR_CANCELLED: the caller stopped `call` meanwhile.
dpcr_status dpcri_recurrent_multiply(dpcr_recurrent_plan *plan, const dpcri_recurrent_space *space, int64_t chain,
                                     const char *call, dpcr_error *error);
// The chain's z [T][B][w], and its tape, data NULL: none.
dpcr_array dpcri_recurrent_states(const dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                  const dpcri_recurrent_space *space, int64_t chain);
dpcr_array dpcri_recurrent_tape(const dpcr_recurrent_plan *plan, const dpcri_recurrent_space *space, int64_t chain);

// [T][B][width] of numbers whose grid is given, in the chain's order: against time where `reverse`.
dpcr_array dpcri_recurrent_view(const dpcr_recurrent_plan *plan, dpcri_grid grid, int64_t width, bool reverse);

// to[t][b] = from[t][b], or from[end - 1 - t][b] where `turn`, for t < end = lengths[b] (NULL: T), and 0 beyond. Rows
// of `width` numbers; `from` may be `to` where nothing is turned.
void dpcri_recurrent_copy(const dpcr_recurrent_plan *plan, const int64_t *lengths, int64_t width, dpcri_grid from,
                          dpcri_grid to, bool turn);

// The same of h alone, H numbers a row, `from` states.
void dpcri_recurrent_copy_hidden(const dpcr_recurrent_plan *plan, const int64_t *lengths, dpcri_grid from,
                                 dpcri_grid to, bool turn);
// Into states: h, and 0 for c.
void dpcri_recurrent_spread_hidden(const dpcr_recurrent_plan *plan, const int64_t *lengths, dpcri_grid from,
                                   dpcri_grid to, bool turn);

// Where h (part 0) and c (part 1) of a state lie: number i of them at offset + i stride.
typedef struct dpcri_recurrent_part_place {
    int64_t offset, stride;
} dpcri_recurrent_part_place;
dpcri_recurrent_part_place dpcri_recurrent_place(const dpcr_recurrent_plan *plan, int part);

// [B][w] of h and, of an LSTM, c of a chain, from arrays [N][B][H] (data NULL: zeros); and from [B][w] into those (data
// NULL: not wanted).
void dpcri_recurrent_join(const dpcr_recurrent_plan *plan, int64_t chain, const dpcr_array *h, const dpcr_array *c,
                          void *to);
void dpcri_recurrent_part(const dpcr_recurrent_plan *plan, int64_t chain, dpcri_grid from, const dpcr_array *h,
                          const dpcr_array *c);
// The same of each sequence's last state, z_(lengths - 1) of the chain's steps z, first where it has none. Past its end
// a chain only carries that state on, which chunks side by side do within the tolerance.
void dpcri_recurrent_part_last(const dpcr_recurrent_plan *plan, int64_t chain, const int64_t *lengths, dpcri_grid z,
                               dpcri_grid first, const dpcr_array *h, const dpcr_array *c);

#endif
