// SPDX-License-Identifier: MIT
// Training by several workers that each have the whole network: data-parallel, SWAP, and layer-wise asynchronous.
// All run the loop (train->solve only says what a checkpoint keeps), each worker on one thread.
#ifndef DEEPPCR_WORKERS_H
#define DEEPPCR_WORKERS_H

#include "pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dpcr_workers_options {
    size_t size;      // sizeof(dpcr_workers_options) of the caller
    int64_t workers;  // 1..4096; with a transport 1..2^31 - 1
    double deadline;  // seconds that a worker waits for another, as dpcr_pipeline_options.deadline; 0: 60
    int64_t groups;   // pieces of the network in which gradients travel, or are applied; 0: our choice. Data-parallel
                      // results do not depend on it
    const dpcr_transport *transport;  // this process is one worker, the others are elsewhere; NULL: threads
} dpcr_workers_options;

typedef struct dpcr_workers_figures {
    size_t size;        // sizeof(dpcr_workers_figures) of the caller
    int64_t updates;    // of this call
    int64_t groups;     // pieces of the network
    double waited;      // seconds an update that worker 0 waited for others, mean
    double staleness;   // layer-wise: mean number of updates that a gradient's forward pass had not seen
    int64_t stalest;    // layer-wise: the largest
    double gap;         // layer-wise: mean number of updates between a gradient's forward pass and its way back
    int64_t together;   // SWAP: epochs of the first phase, those before a resume included
    double seconds[3];  // SWAP: together, apart, averaging
} dpcr_workers_figures;

// dpcr_train with each minibatch's rows over the workers, worker k rows k n / K .. (k + 1) n / K - 1 of n:
//   all:  forward, loss, input gradients of my rows
//   for group of the network, last to first:  weight gradient = (the sum of workers 0 .. k - 1) + my rows in order
// so a sum travels from worker to worker while the next group is made, and has the order of rows that one process has:
// parameters, losses and checkpoints are dpcr_train's by the loop (DPCR_METHOD_SEQUENTIAL, DPCR_SCHEME_SEQUENTIAL) to
// the bit, for any number of workers; with train->clip a pipeline's, and dpcr_train's but for the norm's last bits,
// which is summed layer by layer here. Each sends and receives the gradient twice, and makes every update.
//
// Checkpoints, requests to stop and failures are as dpcr_train_pipeline's, a transport too: any number of workers, a
// pipeline or dpcr_train goes on from any of them. `last`, `figures` may be NULL.
DPCR_API dpcr_status dpcr_train_data_parallel(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                              const dpcr_train_options *train, const dpcr_workers_options *workers,
                                              dpcr_train_state *last, dpcr_workers_figures *figures, dpcr_error *error);

// ---- SWAP: stochastic weight averaging in parallel (arXiv 2001.02312) ----

typedef enum dpcr_swap_moment {
    DPCR_SWAP_TOGETHER = 0,  // the first phase has ended: its network
    DPCR_SWAP_APART,         // what worker `worker` made of it alone, each in turn
    DPCR_SWAP_AVERAGED       // the mean of these. Statistics of the data that a network keeps beside its weights are to
                             // be made anew here; networks of this library have none (layer_norm's are a row's own)
} dpcr_swap_moment;

typedef struct dpcr_swap_options {
    size_t size;                       // sizeof(dpcr_swap_options) of the caller
    double accuracy;                   // training accuracy of an epoch that ends the first phase; 0: train->epochs do
    int64_t epochs, batch;             // of a worker alone, >= 1
    dpcr_optimiser_options optimiser;  // of a worker alone, from the start; its size is not read, total may be -1
    // Called by worker 0 with that network in the caller's model, which it may change only when it is the average;
    // non-zero: stop, with DPCR_ERROR_CANCELLED. Once the workers are done their mean is made and saved all the same,
    // and the average is saved before the call and after it. May be NULL.
    int (*moment)(void *user, dpcr_swap_moment moment, int64_t worker, dpcr_model *model);
    void *moment_user;
} dpcr_swap_options;

//   dpcr_train_data_parallel for train->epochs, or until an epoch's accuracy is reached
//   for each worker k at once:  dpcr_train (by the loop) with its own options and seed train->seed + 1 + k
//   model = mean over the workers, summed in their order in double
// The same bits by threads and processes. Progress tells worker 0's second phase after the first's steps. train->save
// holds the first phase's checkpoints and, in the end, the averaged network alone; a run that was stopped or killed
// while its workers were apart is resumed from where they parted, and makes the same network.
DPCR_API dpcr_status dpcr_train_swap(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                     const dpcr_train_options *train, const dpcr_workers_options *workers,
                                     const dpcr_swap_options *swap, dpcr_train_state *last,
                                     dpcr_workers_figures *figures, dpcr_error *error);

// ---- layer-wise asynchronous updates (PD-ASGD, arXiv 2410.05985) ----

typedef struct dpcr_layerwise_options {
    size_t size;                  // sizeof(dpcr_layerwise_options) of the caller
    int64_t forwards, backwards;  // threads that only go forward, and only back, at most 4096 each; 0: 1
    int64_t ahead;                // minibatches under way at most; 0: as many as threads
    int64_t groups;               // pieces of the network that are updated by themselves; 0: a unit each, at most 16
    int64_t segment;              // updates, after which nothing is under way; 0: 256
    double deadline;              // seconds that a thread waits for another; 0: 60
    int free_running;             // no clock: updates come as they come. Another result every time
} dpcr_layerwise_options;

// Forward and backward passes on threads of their own over one set of weights, each group of the network updated as
// soon as its gradient exists, no weights kept: a gradient is formed with the activations of older weights than those
// that its errors go back through. Minibatch t goes forward on thread t mod forwards, back on thread t mod backwards.
//
// By a clock (the default) every read and every update has its place in the order of a machine whose threads take a
// tick for a group's forward pass, a tick for its input gradient and a tick for its weight gradient with the update:
//
//   F(t) = max(F(t - 1), F(t - forwards) + groups, B(t - ahead) + 2 groups)        first ticks of minibatch t
//   B(t) = max(B(t - 1), B(t - backwards) + 2 groups, F(t) + groups)               forward, and back
//   group g is read at tick F(t) + g and, for both gradients, at B(t) + 2 (groups - 1 - g), and updated at the end of
//   the tick after
//
// so that the network is, bit for bit, that of one thread that does the same in that order, on any machine. A segment
// begins with the clock at 0. Threads wait for each other, not for time: a machine may be faster or slower than the
// clock. free_running takes a lock for a group at a time instead, and nothing else.
//
// Checkpoints are those of dpcr_train_pipeline's asynchronous schedules: between segments. Networks with tied steps are
// refused: a set's gradient is there only when all of its steps have theirs; so is train->clip, for the whole gradient
// never is there at once.
DPCR_API dpcr_status dpcr_train_layerwise(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                          const dpcr_train_options *train, const dpcr_layerwise_options *layerwise,
                                          dpcr_train_state *last, dpcr_workers_figures *figures, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
