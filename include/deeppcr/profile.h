// SPDX-License-Identifier: MIT
// Profiles of networks layer by layer, and their partition into pipeline stages: PipeDream's dynamic program with
// replication, and the sums that give a schedule its costs.
#ifndef DEEPPCR_PROFILE_H
#define DEEPPCR_PROFILE_H

#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

// A chain of layers. Times in any one unit, the same for all.
typedef struct dpcr_profile {
    int64_t layers;
    char **names;              // [layers], owned like all below
    double *forward;           // [layers]
    double *input;             // [layers] gradient of the input; 0 for a first layer, which needs none
    double *weight;            // [layers] gradient of the weights
    double *activation_bytes;  // [layers] of the layer's result
    double *parameter_bytes;   // [layers]
} dpcr_profile;

DPCR_API void dpcr_profile_free(dpcr_context *context, dpcr_profile *profile);

// Reads JSON, {"layers": [{"name": "conv1", "forward": 1.5, "input": 1.5, "weight": 1.5, "activation_bytes": 1e6,
// "parameter_bytes": 4e4}, ..]} (name and bytes may be missing), or PipeDream's graph.txt (told by its first
// character), whose nodes are taken in topological order, without those named Input, and whose backward time is split
// evenly over I and W. Anything else, and times or bytes above 1e100: DPCR_ERROR_FORMAT with the line or layer. Control
// characters of names become question marks. *profile is the caller's.
DPCR_API dpcr_status dpcr_profile_read(dpcr_context *context, const char *text, size_t bytes, dpcr_profile *profile,
                                       dpcr_error *error);

// A profile built from the layers' shapes, 224 x 224 images, one of them, float32: times are millions of multiply-adds.
// Names: vgg16, resnet18, resnet50, alexnet; equal-N: N layers of time 1. The unit of work is a convolution or
// a fully connected layer; ResNet's shortcut convolutions count with the last layer of their block.
DPCR_API dpcr_status dpcr_profile_model(dpcr_context *context, const char *name, dpcr_profile *profile,
                                        dpcr_error *error);

// ---- partition ----

typedef struct dpcr_partition_options {
    size_t size;  // sizeof(dpcr_partition_options) of the caller
    int64_t ranks;
    double bandwidth;  // bytes a unit of time; 0: unlimited
    int straight;      // no replication
    int transfers;     // count activations and errors between stages as time
    int fewer;         // leave ranks out where that is faster
} dpcr_partition_options;

typedef struct dpcr_partition {
    int64_t stages, ranks;  // ranks that are used
    int64_t *first;         // [stages + 1] stage s is layers first[s] .. first[s + 1]
    int64_t *replicas;      // [stages]
    double period;          // of the slowest stage: time a minibatch
    double bytes;           // activations and errors between stages, a minibatch
    double weight_bytes;    // all-reduce of replicated stages, a minibatch
} dpcr_partition;

// PipeDream's dynamic program (SOSP 2019): with T, |w| and |out| the sums over layers i..j and b the bandwidth,
//     one stage on n ranks      A(0,j,n) = (T(0..j) + 4 (n-1) |w| / (b n)) / n
//     or split after k          A(0,j,n) = min over k, n' of max(A(0,k,n-n'), one stage k+1..j on n', transfers)
//     transfers (where asked)   2 |out_k| / (b n'), and 2 |out_j| / (b n') unless j is the last layer
// O(layers^2 ranks^2), of at most 4096 layers and ranks. Times and bytes below 0: DPCR_ERROR_ARGUMENT. *partition is
// the caller's.
DPCR_API dpcr_status dpcr_partition_pipedream(dpcr_context *context, const dpcr_profile *profile,
                                              const dpcr_partition_options *options, dpcr_partition *partition,
                                              dpcr_error *error);
DPCR_API void dpcr_partition_free(dpcr_context *context, dpcr_partition *partition);

// The layers of each stage summed up: times and parameters added, activations of the last layer. `first` [stages + 1].
DPCR_API dpcr_status dpcr_profile_group(dpcr_context *context, const dpcr_profile *profile, const int64_t *first,
                                        int64_t stages, dpcr_profile *grouped, dpcr_error *error);
// The costs that a schedule of one stage a layer has; they point into the profile.
DPCR_API dpcr_schedule_costs dpcr_profile_costs(const dpcr_profile *profile);

#ifdef __cplusplus
}
#endif
#endif
