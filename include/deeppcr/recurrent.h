// SPDX-License-Identifier: MIT
// Recurrent networks with PyTorch's semantics, gate order and parameter names: torch.nn.RNN, GRU and LSTM, and kinds
// whose units do not mix (ParaGRU, ParaLSTM, minGRU), stacked and bidirectional, over padded batches of sequences. Each
// layer and direction is a chain over time, z = (h) or, of an LSTM, (h, c), solved by any method of solve.h:
//
//   for l in layers, for d in directions:
//     state = h0[l D + d]
//     for t in 0..T-1 (d = 1: T-1..0):
//       state = cell(W_ih x_t + b_ih, W_hh h + b_hh, state)
//       y_t[d H .. d H + H - 1] = h
//     hT[l D + d] = h
//     x of the next layer = y
//
//   RNN   h' = tanh(u), or ReLU                        u = W_ih x + b_ih + W_hh h + b_hh
//   GRU   gates r, z, n:  n = tanh(x_n + r u_n),  h' = (1 - z) n + z h
//   LSTM  gates i, f, g, o:  c' = f c + i g,  h' = o tanh(c')
//
// and in variants, those of ONNX and PyTorch's proj_size:
//
//   GRU, reset_before   n = tanh(x_n + W_n (r h))      the reset gate before the product (linear_before_reset = 0)
//   LSTM, peepholes     i and f get p_i c and p_f c besides, o gets p_o c'
//   LSTM, input_forget  f = 1 - i
//   LSTM, projection    h' = W_hr (o tanh(c')), of P numbers: proj_size
//   clip                what goes into a function (of an LSTM also c' into its tanh, as ONNX's text has it and ONNX
//                       Runtime does not do) is cut to -clip..clip
//   reverse             the only direction runs from T-1 to 0
//
// Kinds whose units do not mix, so that every method has Jacobians that are diagonal or 2 x 2 blocks, at any width;
// x_z, ... stand for the rows of W_ih x + b_ih, a and C for vectors, products by element:
//
//   ParaGRU   z = s(x_z + a_z h), r = s(x_r + a_r h), q = tanh(x_q + a_q r h),   h' = (1 - z) h + z q
//   ParaLSTM  f = s(x_f + a_f h + C_f c), z = tanh(x_z + a_z h),  c' = f c + (1 - f) z,
//             o = s(x_o + a_o h + C_o c'),  h' = o tanh(c')
//   minGRU    z = s(x_z), q = x_q,   h' = (1 - z) h + z q:  a gated linear recurrence
//
// s, the sigmoid, is known to digits of its own, however closed a gate is. Of a GRU's r and z, which are added to and
// not multiplied with, it is 1/2 + tanh(u/2)/2, within 2 eps of 1; on a device of all.
//
// Source of the formulas: the documentation of torch.nn; ParaRNN (arXiv 2510.21450); minGRU (arXiv 2410.01201);
// derivatives in docs/math/recurrent.md.
#ifndef DEEPPCR_RECURRENT_H
#define DEEPPCR_RECURRENT_H

#include "solve.h"
#include "transport.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_recurrent_kind {
    DPCR_RNN_TANH = 1,
    DPCR_RNN_RELU,
    DPCR_GRU,
    DPCR_LSTM,
    DPCR_PARAGRU,
    DPCR_PARALSTM,
    DPCR_MINGRU
} dpcr_recurrent_kind;

// "rnn", "rnn-relu", "gru", "lstm", "paragru", "paralstm", "mingru".
DPCR_API const char *dpcr_recurrent_kind_name(dpcr_recurrent_kind kind);
DPCR_API dpcr_status dpcr_recurrent_kind_find(const char *name, dpcr_recurrent_kind *kind, dpcr_error *error);
// Non-zero where the state is h and c: lstm and paralstm. What is said of an LSTM's c below holds for both.
DPCR_API int dpcr_recurrent_kind_has_cell(dpcr_recurrent_kind kind);

typedef struct dpcr_recurrent_options {
    size_t size;  // sizeof(dpcr_recurrent_options) of the caller
    dpcr_recurrent_kind kind;
    dpcr_dtype dtype;        // 0: DPCR_F32
    int64_t inputs, hidden;  // I >= 1, H in 1..16384
    int64_t layers;          // 1..4096; 0: 1
    int bidirectional;       // D = 2 directions instead of 1
    int no_bias;             // PyTorch's bias=False
    uint64_t seed;           // of the initialisation: PyTorch's default, U(-1/sqrt(H), 1/sqrt(H)), counter-based; where
                    // units do not mix, W_ih and b_ih of I inputs U(-1/sqrt(I), 1/sqrt(I)), a and C U(-1/2, 1/2)
    int64_t projection;    // LSTM: P in 1..H-1, the numbers of h; 0: H. Below, H of h, y and W_hh's columns is then P
    int reverse;           // not with bidirectional
    int reset_before;      // GRU
    int peepholes;         // LSTM
    int input_forget;      // LSTM
    double clip;           // finite, >= 0 and no less than the dtype has; 0: none
    uint64_t reserved[4];  // 0: room of fields to come, for these options lie within others
} dpcr_recurrent_options;

typedef struct dpcr_recurrent dpcr_recurrent;

DPCR_API dpcr_status dpcr_recurrent_create(dpcr_context *context, const dpcr_recurrent_options *options,
                                           dpcr_recurrent **network, dpcr_error *error);
DPCR_API void dpcr_recurrent_destroy(dpcr_recurrent *network);
// The options with every default filled in.
DPCR_API const dpcr_recurrent_options *dpcr_recurrent_get_options(const dpcr_recurrent *network);

// Parameters by PyTorch's names and shapes, layer by layer, the reverse direction after the forward one:
// "weight_ih_l{l}{_reverse}" [gates H][I, or D H], "weight_hh_l..." [gates H][H], "bias_ih_l..." and "bias_hh_l..."
// [gates H]; of a projection also "weight_hr_l..." [P][H], of peepholes "weight_ch_l..." [3 H], p_i, p_f, p_o. Where
// units do not mix the gates are z, r, q (ParaGRU), f, z, o (ParaLSTM), z, q (minGRU); "weight_hh_l..." is a [3 H]
// (none of minGRU), "peephole_l..." C_f, C_o [2 H] of a ParaLSTM, and there is no bias_hh. Views, contiguous, into the
// network's own memory, valid until destroy. `name` (64 bytes have room for any), `parameter`, `gradient` may each be
// NULL.
DPCR_API int64_t dpcr_recurrent_parameter_count(const dpcr_recurrent *network);
DPCR_API dpcr_status dpcr_recurrent_parameter(const dpcr_recurrent *network, int64_t index, char *name,
                                              size_t name_bytes, dpcr_array *parameter, dpcr_array *gradient,
                                              dpcr_error *error);
// All parameters, and all gradients, as one vector each of `count` numbers in that order, for optimisers.
DPCR_API void *dpcr_recurrent_vector(dpcr_recurrent *network, int64_t *count);
DPCR_API void *dpcr_recurrent_gradient_vector(dpcr_recurrent *network);
DPCR_API void dpcr_recurrent_zero_gradients(dpcr_recurrent *network);
// Copies parameters from arrays of the caller's: tensors[i] the contiguous numbers of parameter i, for i <
// parameter_count; one that is NULL stays as it is.
DPCR_API void dpcr_recurrent_set_parameters(dpcr_recurrent *network, const void *const *tensors);
// Copies the gradients out likewise: tensors[i] is written with that of parameter i, unless it is NULL.
DPCR_API void dpcr_recurrent_get_gradients(const dpcr_recurrent *network, void *const *tensors);

// safetensors as PyTorch's state_dict() gives it. The tensors say what network it is: kind by the rows of weight_hh
// against its columns, layers, directions, widths, biases and dtype by names and shapes. Whether an RNN's function is
// tanh or ReLU, and that a file without weight_hh is a minGRU, they do not say: the metadata "deeppcr.recurrent" does,
// a name of a kind, and where there is none `kind` (0: tanh); otherwise both are only checked, and what contradicts the
// tensors or names no kind is refused. What else shapes cannot say stands in the metadata too, as save and
// dpcr_onnx_read_recurrent write it: "onnx.direction" "reverse", "onnx.linear_before_reset" "0", "onnx.input_forget"
// "1", "onnx.clip" a number. What does not fit together: DPCR_ERROR_FORMAT naming the tensor; so is a tensor of these
// names that the network of the others has not, as where a layer misses one of its own. `prefix` stands before every
// name ("rnn." for instance, at most 255 bytes; NULL: nothing); tensors of other names are ignored.
DPCR_API dpcr_status dpcr_recurrent_load(dpcr_context *context, const char *path, const char *prefix,
                                         dpcr_recurrent_kind kind, dpcr_recurrent **network, dpcr_error *error);
DPCR_API dpcr_status dpcr_recurrent_save(const dpcr_recurrent *network, const char *path, dpcr_error *error);

// ---- running it ----

// What one pass reads and writes. D directions, N = layers D. All arrays in the network's dtype, on the host,
// contiguous. What is written overlaps nothing else, nor lengths, resets and the network's own vectors, or the call is
// refused; but ht may be h0, and ct c0, where the plan is not for training (of ranks: without gradients). Nobody looks
// whether tape and workspace lie apart, which they have to.
typedef struct dpcr_recurrent_pass {
    size_t size;             // sizeof(dpcr_recurrent_pass) of the caller
    dpcr_array x;            // [T][B][I]
    dpcr_array h0, c0;       // [N][B][H] or data NULL: zeros; c0 of an LSTM only ([N][B][H] also with a projection)
    const int64_t *lengths;  // [B] in 0..T, or NULL: all T. Past its end a sequence's y is 0, and its last state stays;
                             // the reverse direction begins at its end. By the loop, and by overlap without
                             // tolerances, equal, bit for bit, to the sequences run apart; other ways cut by T. What
                             // is past the ends takes little time, the least where lengths fall from row to row
    dpcr_array y;            // [T][B][D H]
    dpcr_array ht, ct;       // [N][B][H] or data NULL: not wanted; ct of an LSTM only
    // [T][B] or NULL: not 0 where a new sequence begins with step t of row b: the state before it is zero (not h0, also
    // at t = 0), and nothing goes back through it; against time, the state that comes from there to step t - 1 is zero.
    // y and what goes back by step are equal, bit for bit, to the sequences run apart; the backward schemes that
    // compose (pcr, blelloch, chunked) multiply by zeros there: equal to round-off, and what is not finite goes through
    const unsigned char *resets;
    uint64_t dropout_seed, dropout_call;  // what the masks of dropout follow from: the call's number, say
} dpcr_recurrent_pass;

// Where the gradients of a pass come from and go to; each may have data NULL. Those written overlap neither one another
// nor what is read, x, h0, c0 and y of the pass among it, or the call is refused.
typedef struct dpcr_recurrent_gradients {
    size_t size;        // sizeof(dpcr_recurrent_gradients) of the caller
    dpcr_array y;       // [T][B][D H]: of the outputs, given
    dpcr_array ht, ct;  // [N][B][H]: of the last states, given
    dpcr_array x;       // [T][B][I]: of the inputs, written
    dpcr_array h0, c0;  // [N][B][H]: of the initial states, written
} dpcr_recurrent_gradients;

typedef struct dpcr_recurrent_plan dpcr_recurrent_plan;

typedef struct dpcr_recurrent_plan_options {
    size_t size;            // sizeof(dpcr_recurrent_plan_options) of the caller
    int64_t length, batch;  // T >= 0, B >= 0
    int training;           // a backward pass will follow: execute leaves a tape
    int packed;             // passes may have lengths
    int frozen;             // the parameters do not change while the plan lives: they are laid out once, not each time
    // Method and its options for every layer; size 0: the loop. What is left open (AUTO; backward 0) is decided over
    // `sample`. Methods that want Jacobians (newton, shooting, ...) need a state of at most 128 numbers: H, of an LSTM
    // 2 H, or P + H; any where units do not mix. memory_limit is of a method's own memory; of up to four sequences
    // whose inputs have 4 MB of weights (where units do not mix, of any) the inputs' products are made ahead of the
    // steps, in up to 256 MB (or as much as they take) of workspace, but not where the workspace would be more than the
    // limit. Same bits. DPCR_GUESS_GIVEN is refused: states lie in the workspace
    dpcr_solve_options solve;
    const dpcr_recurrent_pass *sample;  // a typical x (and h0, c0, lengths), where the planner tries the chains; read
                                        // by plan_create alone; NULL: what is open is the loop
    int resets;                         // passes may have resets
    double dropout;  // 0..1, training: each number of y of a layer below the last is 0 for the next layer with this
                     // probability, else divided by 1 - dropout: torch.nn's, with masks of our own. A number's depends
                     // on (dropout_seed, dropout_call, layer, t, b, its place in y) alone
    int recompute;   // training: the tape holds states only, and backward makes of them again what the gates were, for
                     // about two more forward passes: a step and direction keeps H numbers (of an LSTM 3 H, and of a
                     // last layer the less that lie in the pass's y) instead of 5 H (LSTM 7 H). Same bits, but where
                     // overlap joins chunks within a tolerance: a tape holds what their own starts gave
} dpcr_recurrent_plan_options;

// The network must outlive the plan. A plan serves one call at a time.
DPCR_API dpcr_status dpcr_recurrent_plan_create(const dpcr_recurrent *network,
                                                const dpcr_recurrent_plan_options *options, dpcr_recurrent_plan **plan,
                                                dpcr_error *error);
DPCR_API void dpcr_recurrent_plan_destroy(dpcr_recurrent_plan *plan);
// What was chosen for a layer and direction (index l D + d): its plan, for sentence, method and candidates.
DPCR_API const dpcr_solve_plan *dpcr_recurrent_plan_chain(const dpcr_recurrent_plan *plan, int64_t index);

// Bytes of 64-byte aligned host memory: the workspace of a call; and, training, the tape that execute leaves for
// backward.
DPCR_API size_t dpcr_recurrent_plan_workspace(const dpcr_recurrent_plan *plan);
DPCR_API size_t dpcr_recurrent_plan_tape(const dpcr_recurrent_plan *plan);

// Runs the network. tape NULL unless the plan is for training. reports: [N] or NULL, one a layer and direction, each
// with its `size` set, the same. DPCR_OK also for chains that did not converge with no_fallback: read the reports.
DPCR_API dpcr_status dpcr_recurrent_execute(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass, void *tape,
                                            void *workspace, size_t workspace_bytes, dpcr_solve_report *reports,
                                            dpcr_error *error);

// Adds the parameters' gradients into the network's, and writes those of inputs and initial states. pass and tape as
// execute left them, but for ht and ct, which are not looked at; the tape is used up. Not twice at once for one
// network.
DPCR_API dpcr_status dpcr_recurrent_backward(dpcr_recurrent_plan *plan, const dpcr_recurrent_pass *pass,
                                             const dpcr_recurrent_gradients *gradients, void *tape, void *workspace,
                                             size_t workspace_bytes, dpcr_solve_report *reports, dpcr_error *error);

// ---- on a device ----
//
// A plan with the option solve.device a CUDA device is one for the calls below; any kind, of the variants reset_before,
// peepholes, input_forget, projection and clip, both ways, by the loop or by overlap (method; AUTO: overlap where there
// are few sequences), forward paragru, paralstm and mingru, and rnn and rnn-relu without lengths, resets and clip, by
// newton too; dropout with the host's masks. Of its chains (dpcr_recurrent_plan_chain) there are none;
// dpcr_recurrent_plan_workspace is bytes of the device's memory, 256-byte aligned. There is no tape: a plan for
// training leaves in the workspace what the way back reads, and each pass whose way back is still to come has one of
// its own. An RNN of 1, 2 or 4 units adds up in another order where a pass has lengths or resets than where it has
// neither, so its sequences there are those run apart to round-off, or bit for bit where these are given lengths too.

// Puts dpcr_recurrent_execute's pass into the stream and returns: waits for nothing, allocates nothing. parameters
// [count] are dpcr_recurrent_vector's numbers on the device; pass's arrays lie there too, and its lengths and resets. A
// plan of length 0 writes nothing, ht and ct included.
DPCR_API dpcr_status dpcr_recurrent_enqueue(const dpcr_recurrent_plan *plan, const dpcr_array *parameters,
                                            const dpcr_recurrent_pass *pass, void *workspace, size_t workspace_bytes,
                                            void *stream, dpcr_error *error);
// Puts dpcr_recurrent_backward's pass into the stream and returns. pass and workspace as enqueue left them, but for ht
// and ct, which are not looked at; gradients' arrays and parameter_gradients [count] (or NULL: not wanted), onto which
// the parameters' are added, on the device. Back by the loop where the method is the loop, else by overlapped chunks
// with boundaries judged by the largest gradient at them; what is open is always finished in order. Sums over steps and
// sequences are in an order that the shape alone says.
DPCR_API dpcr_status dpcr_recurrent_enqueue_backward(const dpcr_recurrent_plan *plan, const dpcr_array *parameters,
                                                     const dpcr_recurrent_pass *pass,
                                                     const dpcr_recurrent_gradients *gradients,
                                                     const dpcr_array *parameter_gradients, void *workspace,
                                                     size_t workspace_bytes, void *stream, dpcr_error *error);
// Wait for the stream; reports [N] or NULL, as dpcr_solve_collect: of the pass forward, and of the one back.
DPCR_API dpcr_status dpcr_recurrent_collect(const dpcr_recurrent_plan *plan, const void *workspace,
                                            size_t workspace_bytes, void *stream, dpcr_solve_report *reports,
                                            dpcr_error *error);
DPCR_API dpcr_status dpcr_recurrent_collect_backward(const dpcr_recurrent_plan *plan, const void *workspace,
                                                     size_t workspace_bytes, void *stream, dpcr_solve_report *reports,
                                                     dpcr_error *error);

// ---- sequences over ranks ----

typedef struct dpcr_recurrent_ranks {
    size_t size;                      // sizeof(dpcr_recurrent_ranks) of the caller
    const dpcr_transport *transport;  // this rank's end
    double deadline;                  // seconds that a rank waits for another; 0: 60
    // Of the boundaries atol, rtol (default DPCR_TOLERANCE_...; negative: 0, bit for bit), warm_up (64) and max_sweeps
    // (3); within a rank the method and what it reads. no_fallback: where the boundaries or a rank's own steps do not
    // converge, DPCR_ERROR_UNSUPPORTED. memory_limit: of each workspace and each tape of a rank's layer, else
    // DPCR_ERROR_MEMORY. Size 0: the loop.
    dpcr_solve_options solve;
    int recompute;  // as in dpcr_recurrent_plan_options
} dpcr_recurrent_ranks;

// dpcr_recurrent_execute, and with `gradients` dpcr_recurrent_backward after it, of sequences whose steps are spread
// over ranks: rank r holds consecutive ones, after those of the ranks below it. All ranks make this call with the same
// network, h0, c0, lengths (of the whole sequences) and gradients->ht, ct, else DPCR_ERROR_ARGUMENT; x, y and resets
// are of the rank's own steps, pass->x.shape[0] >= 0 of them, and so are gradients->y and gradients->x. Each layer and
// direction is overlapped: every rank starts from a run-up over its neighbour's last warm_up steps, whose inputs it is
// sent, and boundaries are exchanged and checked as overlap does its chunks'; backward likewise. ht, ct, gradients->ht,
// ct, h0, c0 and the parameters' gradients (added, summed in the ranks' order) are those of the whole sequences, on
// every rank. `reports` and `back_reports` [N] or NULL: method overlap, sweeps over the ranks, the worst of what the
// boundaries and the ranks' own steps came to (residual: of the boundaries' defects too), reason EXACT where tolerances
// are 0. Then y is, bit for bit, the loop's (methods within a rank that are not the loop or overlap keep to their own
// tolerance). Not with dropout. Failures are every rank's. Allocates.
DPCR_API dpcr_status dpcr_recurrent_distributed(dpcr_recurrent *network, const dpcr_recurrent_ranks *options,
                                                const dpcr_recurrent_pass *pass,
                                                const dpcr_recurrent_gradients *gradients, dpcr_solve_report *reports,
                                                dpcr_solve_report *back_reports, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
