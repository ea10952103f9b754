// SPDX-License-Identifier: MIT
// Linear chains: z_l = A_l z_{l-1} + b_l, l = 0..L-1, and the transposed chain, by several schemes with the same
// result: where a product of transitions loses what the states keep, such as of A = diag(0.9, 5) whose second component
// is never driven, the loop goes on from there. Where z is b, which chunked then no longer has, it refuses instead.
//
// Indices count from 0: step l maps z_{l-1} to z_l, and z_{-1} is the initial state z0. So arrays hold the L states
// that come out, [L][B][w], and z0 is [B][w].
#ifndef DEEPPCR_CHAIN_H
#define DEEPPCR_CHAIN_H

#include "device.h"
#include "transition.h"
#include "transport.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_scheme {
    DPCR_SCHEME_AUTO = 0,
    DPCR_SCHEME_SEQUENTIAL,  // the loop
    DPCR_SCHEME_PCR,         // parallel cyclic reduction: ceil(log2 L) levels, L log2 L compositions
    DPCR_SCHEME_BLELLOCH,    // work-efficient tree, vector first; `levels` limits it (0 is the loop)
    DPCR_SCHEME_CHUNKED,     // two levels: serial inside chunks, a scan over their summaries, mat-vec sweep back
    DPCR_SCHEME_OVERLAP,     // chunks with a warm-up run side by side, boundaries checked; for chains that forget
    DPCR_SCHEME_COUNT
} dpcr_scheme;

// Names as in the command line: "auto", "sequential", "pcr", "blelloch", "chunked", "overlap".
DPCR_API const char *dpcr_scheme_name(dpcr_scheme scheme);
DPCR_API dpcr_status dpcr_scheme_find(const char *name, dpcr_scheme *scheme, dpcr_error *error);

// How AUTO is decided, for linear and for nonlinear chains. Each first looks whether the context's wisdom knows the
// answer. MEASURE runs every candidate in turn on the whole chain while the plan is made, and takes the memory that
// this needs; where it is refused that, it falls back to ESTIMATE.
typedef enum dpcr_planning {
    DPCR_PLANNING_ESTIMATE = 0,  // from the cost model
    DPCR_PLANNING_MEASURE,       // the candidates are timed, and the winner is remembered in the context's wisdom
    DPCR_PLANNING_WISDOM,        // from wisdom alone: DPCR_ERROR_UNSUPPORTED where it does not know
    DPCR_PLANNING_COUNT
} dpcr_planning;

// "estimate", "measure", "wisdom".
DPCR_API const char *dpcr_planning_name(dpcr_planning planning);
DPCR_API dpcr_status dpcr_planning_find(const char *name, dpcr_planning *planning, dpcr_error *error);

typedef struct dpcr_chain_shape {
    size_t size;     // sizeof(dpcr_chain_shape) of the caller: room for widths that differ from step to step
    int64_t length;  // L >= 0
    int64_t batch;   // B >= 0
    dpcr_transition transition;  // square; csr has one pattern for all steps, which has to outlive the plan, and goes
                                 // by sequential (AUTO is that) and overlap
    dpcr_dtype dtype;
    int transposed;  // non-zero: z_l = A_{l+1}^T z_{l+1} + b_l from the last step; z_{L-1} = b_{L-1} (+ z0 is refused)
} dpcr_chain_shape;

// Zero in a field means the default.
typedef struct dpcr_chain_options {
    size_t size;  // sizeof(dpcr_chain_options) of the caller
    dpcr_scheme scheme;
    int64_t chunk;     // chunked, overlap: steps a chunk. Default: from the shape alone, never from the threads
    int levels;        // blelloch: tree levels + 1; 0: no limit, 1: the loop
    int64_t warm_up;   // overlap: steps that a chunk runs before it stores; default 64
    double tolerance;  // overlap, also of AUTO: allowed boundary defect |d| <= tolerance max(1, |z|), of dense chains
                       // by the largest of z; default 0: bit for bit the loop's result (of AUTO but for wide dense
                       // chains: see chain_plan_create)
    int max_sweeps;    // overlap: sweeps before the rest is finished in order; default 3
    dpcr_planning planning;     // how AUTO is decided
    double planning_seconds;    // MEASURE: budget; default 1
    const dpcr_array *typical;  // MEASURE: transitions like those to come, as execute's `a`, read by plan_create alone.
                                // Without them overlap is no candidate: whether a chain forgets lies in them. What was
                                // measured is known again for the same ones
    dpcr_device device;  // where it runs; all zeros: the host. On a device dpcr_chain_enqueue solves, in one pass over
                         // memory (scheme chunked; AUTO is that), or, of csr and of dense transitions and blocks
                         // wider than 16, by products of chunks (chunked, `chunk`) or in order (sequential); others are
                         // refused. A csr chain's pattern, one for all steps, is sent when the plan is made
} dpcr_chain_options;

typedef struct dpcr_chain_plan dpcr_chain_plan;

typedef struct dpcr_chain_report {
    size_t size;            // sizeof(dpcr_chain_report) of the caller
    dpcr_scheme scheme;     // the scheme that ran
    int sweeps;             // overlap: sweeps over the chunks, else 1
    int64_t finished_from;  // step, counted along the recurrence, from which it was finished in order: overlap, whose
                            // chunks did not join, or chunked, pcr and blelloch, whose products overflowed,
                            // underflowed or rounded by more than the states bear; else L
    int64_t compositions;   // transition products formed, over all sequences
    int64_t applications;   // transition-vector products formed; what is looked at and finished in order not counted
    int64_t depth;          // dependent steps on the longest path
    double seconds;
} dpcr_chain_report;

// Plans a solve. Immutable afterwards and shareable between threads. Refuses (DPCR_ERROR_UNSUPPORTED) what cannot work.
// DPCR_SCHEME_AUTO chooses from the cost model and dpcr_chain_plan_sentence tells why. Where it chooses without having
// seen data and threads would idle, or a dense chain or one of a few blocks is better off, execute looks at the chain's
// numbers and runs the loop in overlapped chunks if they forget their start, and the report says so: the loop's bits
// (but for a NaN's own), or, of dense chains wider than 4, chunks whose every component joins within 8 roundings of the
// sum |A_ij z_j| + |b_i| that it is, as far as the loop's own may be off.
// What AUTO takes depends on the context's threads, or on the machine that dpcr_context_set_machine described, for
// which it is estimated alone (else DPCR_ERROR_UNSUPPORTED), and where arrays do not lie step by step the loop may take
// the place of chunks; a named scheme has the same bits for any number of threads and any strides.
DPCR_API dpcr_status dpcr_chain_plan_create(dpcr_context *context, const dpcr_chain_shape *shape,
                                            const dpcr_chain_options *options, dpcr_chain_plan **plan,
                                            dpcr_error *error);
DPCR_API void dpcr_chain_plan_destroy(dpcr_chain_plan *plan);
DPCR_API dpcr_scheme dpcr_chain_plan_scheme(const dpcr_chain_plan *plan);
DPCR_API const char *dpcr_chain_plan_sentence(const dpcr_chain_plan *plan);
// Every option as the plan uses it: a plan made with these gives the same bits, unless AUTO's execute took another
// scheme (the report's): overlapped chunks, where it found the numbers to forget, of w <= 4 the loop's bits, of wider
// dense chains joined within 8 roundings; or the loop, where arrays do not lie step by step.
DPCR_API const dpcr_chain_options *dpcr_chain_plan_options(const dpcr_chain_plan *plan);

// Bytes of workspace that each of the executes below needs: 64-byte aligned host memory, or, where the plan is of a
// device, memory there (dpcr_device_allocate).
DPCR_API size_t dpcr_chain_plan_workspace(const dpcr_chain_plan *plan);

// Seconds that an execute by the plan's scheme is reckoned to take on the context's threads, or on the machine that
// dpcr_context_set_machine described when the plan was made, from the cost model by which AUTO chooses, and no less
// than its bytes take where the memory's rate is known (dpcr_context_machine); of overlap where the chain forgets
// within its warm-up. 0: of no steps, or on a device.
DPCR_API double dpcr_chain_plan_seconds(const dpcr_chain_plan *plan);

// A way to run the chain that MEASURE timed.
typedef struct dpcr_chain_candidate {
    size_t size;  // sizeof(dpcr_chain_candidate) of the caller
    dpcr_scheme scheme;
    int64_t chunk, warm_up;  // steps; 0 where the scheme has none
    double seconds;          // predicted, as dpcr_chain_plan_seconds
    double measured;         // median of what was timed
    size_t workspace;        // bytes
} dpcr_chain_candidate;

// What was timed while the plan was made: the one that was chosen, then the others, the fastest first; index 0, 1, ...
// False (0) past the last, and where nothing was timed.
DPCR_API int dpcr_chain_plan_candidate(const dpcr_chain_plan *plan, int64_t index, dpcr_chain_candidate *candidate);

// Solves the chain:  z = z0; for l in 0..L-1: z = A_l z + b_l; store z_l        (or the transposed loop, from the last
// step)
//   a   [L][B][values]; shape[0] and shape[1] may be 1, or the stride 0, to share over steps or sequences; NULL for
//   zero and identity b   [L][B][w], read only        z0  [B][w] or NULL: zero        z  [L][B][w], written; may be b
//   itself, wholly
// Where products lose what the states keep and z is b, chunked ends in DPCR_ERROR_UNSUPPORTED, and z is not to be used;
// dense transitions and blocks wider than 512, whose rounding is not followed, are refused so in doubt.
// z overlaps neither a nor z0 (refused where z0 lies on a row of z). Without z0 the first state is b of that step, and
// its transition is not read (it may be NaN). Row strides are free, the last dimension is contiguous. NaN stays in its
// own sequence. `workspace` may be NULL when 0 bytes are needed; one workspace serves one execute at a time. `report`
// may be NULL. Allocates nothing.
DPCR_API dpcr_status dpcr_chain_execute(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                                        const dpcr_array *z0, const dpcr_array *z, void *workspace,
                                        size_t workspace_bytes, dpcr_chain_report *report, dpcr_error *error);

// The same on the device of the plan: puts the solve into `stream` (the backend's own, such as a cudaStream_t; NULL:
// the default one) and returns. All arrays and the workspace lie on that device and stay as they are until the stream
// has been waited for (dpcr_stream_wait, or the caller's own means), which also tells what failed there. Nothing is
// copied, allocated or waited for; a launch that fails leaves DPCR_ERROR_DEVICE and a usable plan. Float results are
// the host's to rounding, uint32 ones to the bit; the same bits from run to run on one device.
// docs/gpu.md.
DPCR_API dpcr_status dpcr_chain_enqueue(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                                        const dpcr_array *z0, const dpcr_array *z, void *workspace,
                                        size_t workspace_bytes, void *stream, dpcr_error *error);

// Forward derivative of an untransposed chain along (da, db, dz0), at its solution z:
//   dz_l = A_l dz_{l-1} + da_l z_{l-1} + db_l. Any of da, db, dz0 may be NULL (zero). dz [L][B][w] must not overlap
//   inputs. Solved in dz, by the loop where products lose states. Here and in vjp: csr plans, and transposed ones, are
//   DPCR_ERROR_UNSUPPORTED.
DPCR_API dpcr_status dpcr_chain_jvp(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *z0,
                                    const dpcr_array *z, const dpcr_array *da, const dpcr_array *db,
                                    const dpcr_array *dz0, const dpcr_array *dz, void *workspace,
                                    size_t workspace_bytes, dpcr_error *error);

// Reverse derivative of an untransposed chain at its solution z, given g_l = dLoss/dz_l (direct part):
//   lambda_l = g_l + A_{l+1}^T lambda_{l+1};   db_l = lambda_l;   da_l = lambda_l z_{l-1}^T in A's structure;   dz0 =
//   A_0^T lambda_0
// da [L][B][values] (one value array a step and sequence even where A is shared: the caller sums), db [L][B][w], dz0
// [B][w]; da and dz0 may be NULL, db may not (it holds lambda) and may be g itself, with the same refusal.
DPCR_API dpcr_status dpcr_chain_vjp(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *z0,
                                    const dpcr_array *z, const dpcr_array *g, const dpcr_array *da,
                                    const dpcr_array *db, const dpcr_array *dz0, void *workspace,
                                    size_t workspace_bytes, dpcr_error *error);

// ---- chains over ranks ----

// How the summaries of the ranks come together.
typedef enum dpcr_scan {
    DPCR_SCAN_MESSAGES = 0,  // by messages of ours, ceil(log2 ranks) rounds: the same bits on every transport
    DPCR_SCAN_TRANSPORT,     // by the transport's own exscan (MPI_Exscan); its order of products is its own
    DPCR_SCAN_COUNT
} dpcr_scan;

typedef struct dpcr_distributed_options {
    size_t size;                      // sizeof(dpcr_distributed_options) of the caller
    const dpcr_transport *transport;  // this rank's end
    dpcr_scan scan;
    int64_t chunk;       // steps of a piece of a rank's range that runs beside others; 0: from its length
    dpcr_scheme scheme;  // AUTO, SEQUENTIAL: the loop, else another, for the ranks that go through their range once
    double deadline;     // seconds that a rank waits for another; 0: 60
} dpcr_distributed_options;

typedef struct dpcr_distributed_report {
    size_t size;             // sizeof(dpcr_distributed_report) of the caller
    int64_t length, first;   // of the whole chain; the first step of this rank's range
    int64_t compositions;    // products formed, by all ranks
    int64_t applications;    // transition-vector products formed, by all ranks
    int64_t depth;           // dependent steps on the longest path, a round of the scan counted as one
    double seconds;          // of this rank: all
    double seconds_reduce;   // its range to a summary
    double seconds_scan;     // the scan, waiting for others included
    double seconds_apply;    // the states
    size_t workspace_bytes;  // that this rank took from its context
    size_t summary_bytes;    // of a summary: what a message holds
    int64_t finished_from;   // as of dpcr_chain_report, over all ranks: from where ranks, or a range's chunks, ran in
                             // order as a product left the finite numbers or lost what the states keep; else the
                             // length
} dpcr_distributed_report;

// The chain of dpcr_chain_execute, transposed or not, whose steps are spread over ranks: rank r holds consecutive ones,
// after those of the ranks below it, shape->length >= 0 of them. All ranks make this call, with shapes that differ in
// length alone; a, b and z are of the rank's own range, as in dpcr_chain_execute. Each rank reduces its range to what
// it makes of a state (composed transition and offset), an exclusive scan gives it the state that comes in, and it runs
// its states from there. One rank alone runs `scheme`.
//   z0    [B][w] or NULL, looked at on rank 0 alone, not with transposed
//   in    [B][w] or NULL: where the state that came from the ranks below goes (0 where these have no steps and z0 is
//         not given, and on rank 0): z_{first-1}, or transposed A_{end}^T z_{end}, `end` one past the range
//   out   [B][w] or NULL: what goes out of it: its last state, or transposed A_first^T z_first; on rank 0 dz0
// float results depend on the number of ranks and their lengths, not on threads or transport (nor on timing); uint32
// ones on nothing: they are the loop's. Structures that compose; csr is refused. Work of a rank about
// (compose + 2 apply) a step, of the first one apply. Failures, of arguments too, are every rank's. Allocates from the
// context. Where a product leaves the finite numbers, or loses what the states keep, ranges and ranks run in order from
// there on, as the loop does; where z is b on a rank that would have to, which has overwritten it, every rank ends in
// DPCR_ERROR_UNSUPPORTED, and z is not to be used.
// Source: two-level scans, ParaRNN (arXiv 2510.21450); derivation: docs/math/chunked.md, docs/ranks.md.
DPCR_API dpcr_status dpcr_chain_distributed(dpcr_context *context, const dpcr_chain_shape *shape,
                                            const dpcr_distributed_options *options, const dpcr_array *a,
                                            const dpcr_array *b, const dpcr_array *z0, const dpcr_array *z,
                                            const dpcr_array *in, const dpcr_array *out,
                                            dpcr_distributed_report *report, dpcr_error *error);

// What a chain over ranks would take, from the planner's cost model.
typedef struct dpcr_ranks_model {
    size_t size;       // sizeof(dpcr_ranks_model) of the caller
    int64_t ranks;     // P >= 1
    int64_t cores;     // ranks that run side by side, the others take turns; 0: all of them
    double latency;    // seconds of a message; 0: 2e-6
    double bandwidth;  // bytes a second of a link; 0: 1e10
    double memory;     // bytes a second that a rank moves beyond its caches; 0: 1e10
    double cache;      // bytes of a rank's caches; 0: 3e7
    int64_t warm_up;   // of overlap; 0: 64
    // Out, seconds:
    double loop;                  // one rank's loop over the whole chain
    double reduce, scan, apply;   // the phases of dpcr_chain_distributed
    double distributed, overlap;  // all of it; and by overlap over ranks, where the chain forgets within warm_up
} dpcr_ranks_model;

// shape->length is the whole chain's, cut evenly. Assumes a core a rank at the rates of auto.c (one AVX-512 core) and
// of memory, a scan by messages of ours, and no rank late for another's sake.
DPCR_API dpcr_status dpcr_chain_predict(const dpcr_chain_shape *shape, dpcr_ranks_model *model, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
