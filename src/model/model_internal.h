// SPDX-License-Identifier: MIT
// The inside of a model, for the files of this folder.
#ifndef DPCRI_MODEL_INTERNAL_H
#define DPCRI_MODEL_INTERNAL_H

#include "deeppcr/data.h"
#include "deeppcr/model.h"
#include "nn/program.h"

typedef struct dpcri_metadata {
    char *key, *value;
    struct dpcri_metadata *next;
} dpcri_metadata;

struct dpcr_model {
    dpcr_context *context;
    dpcr_model_options options;  // every default filled in
    dpcri_program program;       // of one step
    char *parameters, *gradients;
    int64_t count;             // numbers in each
    int64_t encoder, head;     // offsets of W [inputs][w], b [w] and of W [w][outputs], b [outputs]; steps begin at 0
    dpcri_metadata *metadata;  // in the order of setting
};

// What is known of one parameter: its place and how it is initialised.
typedef struct dpcri_parameter {
    char name[64];
    int64_t offset;      // in the vectors
    int64_t rows, cols;  // PyTorch's shape; cols 0: one-dimensional
    int64_t fan_in;      // uniform in +-1/sqrt(fan_in); 0: constant
    double constant;
} dpcri_parameter;

// to += from
void dpcri_add_numbers(dpcr_dtype dtype, int64_t count, const void *from, void *to);
// Each tied set's first gradients, again its copies'.
void dpcri_model_copy_tied(dpcr_model *m);
// Of a vector of the model's form what is no tied step's copy: steps, then encoder and head; without ties all, and
// nothing.
void dpcri_model_own(const dpcr_model *m, void *vector, dpcr_array own[2]);
int64_t dpcri_model_parameters(const dpcr_model_options *options);
void dpcri_model_parameter(const dpcr_model *model, int64_t index, dpcri_parameter *parameter);
// Size in bytes of a number, and a place in one of the vectors.
static inline void *dpcri_model_at(const dpcr_model *model, char *vector, int64_t offset) {
    return vector + offset * (int64_t)model->program.kernels->element;
}

// The two halves of dpcr_model_head_backward, for those who make them at different times: dz [rows][w] is written; the
// head's gradients are added.
void dpcri_model_head_input(const dpcr_model *m, int64_t rows, dpcri_rows dlogits, dpcri_rows dz);
void dpcri_model_head_weight(const dpcr_model *m, int64_t rows, dpcri_rows z, dpcri_rows dlogits);

// dpcr_model_save with more tensors and strings beside the model's own, as a checkpoint has them. Loading ignores
// tensors that are no parameters and strings whose key begins with "deeppcr.".
dpcr_status dpcri_model_save_with(const dpcr_model *m, const char *path, const dpcr_tensors *extra, dpcr_error *error);

// dpcr_model_load of the tensors that were read from `path`.
dpcr_status dpcri_model_of_tensors(dpcr_context *context, const dpcr_tensors *tensors, const char *path,
                                   dpcr_model **model, dpcr_error *error);

// DPCR_ERROR_ARGUMENT unless array is [rows][cols] of the model's dtype on the host, rows strided, columns contiguous.
// rows < 0: any number, which *got receives.
dpcr_status dpcri_model_check_rows(const dpcr_model *model, const char *call, const char *what, const dpcr_array *array,
                                   int64_t rows, int64_t cols, int64_t *got, dpcr_error *error);

// The chain of a handle, from its next launch on, is that of layers first .. first + count - 1: as many as those of the
// steps that plans were made of.
void dpcri_device_model_span(dpcr_device_model *there, int64_t first, int64_t count);

#endif
