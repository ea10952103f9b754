// SPDX-License-Identifier: MIT
// The launchers as the library calls them: what they do not serve is refused in words, on the device that is asked for,
// and their codes become statuses.
#include "kern/cuda/adapter.h"

#include "kern/cuda/launch.h"
#include "rt/dev/cuda/runtime.h"

// Statuses of a launcher's codes.
static dpcr_status told(int id, int code, size_t bytes, const char *what, dpcr_error *error) {
    switch (code) {
        case DPCRI_CUDA_OK: return DPCR_OK;
        case DPCRI_CUDA_UNSUPPORTED:
            return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED,
                              "cuda:%d: the device takes no cooperative launch as large as %s wants", id, what);
        case DPCRI_CUDA_WORKSPACE:
            return dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: a workspace of %zu bytes is too small", id, bytes);
        case DPCRI_CUDA_ARGUMENT:
            return dpcri_tell(error, DPCR_ERROR_ARGUMENT, "cuda:%d: %s with wrong arguments", id, what);
        default: return dpcri_cuda_fail(id, code, what, error);
    }
}

// ---- linear chains ----

static dpcr_status check_linear(int id, const dpcri_device_linear *c, dpcr_error *error) {
    const char *const refusal = dpcri_device_linear_refusal(c);
    return refusal ? dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id, refusal) : DPCR_OK;
}

static dpcr_status told_of_linear(int id, const dpcri_device_linear *c, int code, size_t bytes, dpcr_error *error) {
    const long long length = c->length, rows = c->rows, w = dpcri_device_linear_mixes(c);
    switch (code) {
        case DPCRI_CUDA_UNSUPPORTED:
            return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED,
                              "cuda:%d: no kernel for %lld steps of %lld sequences in one launch", id, length, rows);
        case DPCRI_CUDA_WIDTH:
            return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s of width %lld does not fit on chip%s", id,
                              c->in_order ? "a state" : "a strip of products", w,
                              c->in_order ? "" : "; sequential wants less");
        case DPCRI_CUDA_SIZE:
            return dpcri_tell(error, DPCR_ERROR_OVERFLOW,
                              "cuda:%d: products of %lld steps of %lld sequences of width %lld do not fit", id, length,
                              rows, w);
        default: return told(id, code, bytes, "a linear chain's launch", error);
    }
}

// Asked of the device that it is for: what a block has room for is its own.
static dpcr_status linear_workspace(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error) {
    int before = 0;
    *bytes = 0;
    const dpcr_status status = check_linear(id, chain, error);
    if (status != DPCR_OK) return status;
    const int code = dpcri_cuda_enter(id, &before);
    if (code != 0) return dpcri_cuda_fail(id, code, "cannot be used", error);
    const int fits = dpcri_cuda_chain_fits(*chain);
    if (fits == DPCRI_CUDA_OK) *bytes = dpcri_cuda_chain_workspace(*chain);
    dpcri_cuda_leave(id, before);
    return told_of_linear(id, chain, fits, 0, error);
}

static dpcr_status linear(int id, const dpcri_device_linear *chain, void *workspace, size_t bytes, void *stream,
                          dpcr_error *error) {
    int before = 0;
    const dpcr_status status = check_linear(id, chain, error);
    if (status != DPCR_OK) return status;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_chain_run(*chain, workspace, bytes, stream);
        dpcri_cuda_leave(id, before);
    }
    return told_of_linear(id, chain, code, bytes, error);
}

// ---- cells ----

static dpcr_status check_cell(int id, const dpcri_device_cell *c, dpcr_error *error) {
    const char *const refusal = dpcri_device_cell_refusal(c);
    return refusal ? dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id, refusal) : DPCR_OK;
}

// A device with less room than newton's windows want is told before a plan is made.
static dpcr_status check_together(int id, dpcri_cuda_together blocks, dpcr_error *error) {
    if (blocks.room >= blocks.wanted) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED,
                      "cuda:%d: newton wants %lld blocks at once, the device takes %lld; the loop and overlap work", id,
                      (long long)blocks.wanted, (long long)blocks.room);
}

static dpcr_status told_of_cell(int id, const dpcri_device_cell *c, int code, size_t bytes, dpcr_error *error) {
    if (code == DPCRI_CUDA_SIZE)
        return dpcri_tell(error, DPCR_ERROR_OVERFLOW, "cuda:%d: %lld steps of %lld rows of width %lld do not fit", id,
                          (long long)c->length, (long long)c->rows, (long long)c->w);
    if (code != DPCRI_CUDA_WIDTH) return told(id, code, bytes, "a cell's launch", error);
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: a row of width %lld does not fit on chip", id,
                      (long long)c->w);
}

// Asked of the device that it is for: how many blocks go together is its own.
static dpcr_status cell_workspace(int id, const dpcri_device_cell *cell, size_t *bytes, dpcr_error *error) {
    const dpcri_cuda_together none = {0};
    int before = 0;
    *bytes = 0;
    const dpcr_status status = check_cell(id, cell, error);
    if (status != DPCR_OK) return status;
    const int code = dpcri_cuda_enter(id, &before);
    if (code != 0) return dpcri_cuda_fail(id, code, "cannot be used", error);
    const int fits = dpcri_cuda_cell_fits(*cell);
    const dpcri_cuda_together blocks = fits == DPCRI_CUDA_OK ? dpcri_cuda_cell_together(*cell) : none;
    if (fits == DPCRI_CUDA_OK) *bytes = dpcri_cuda_cell_workspace(*cell);
    dpcri_cuda_leave(id, before);
    return fits == DPCRI_CUDA_OK ? check_together(id, blocks, error) : told_of_cell(id, cell, fits, 0, error);
}

static dpcr_status cell_share(int id, const dpcri_device_cell *cell, int64_t *blocks, int *whole, dpcr_error *error) {
    int before = 0;
    *blocks = *whole = 0;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_cell_share(*cell, blocks, whole);
        dpcri_cuda_leave(id, before);
    }
    return told_of_cell(id, cell, code, 0, error);
}

static dpcr_status cell(int id, const dpcri_device_cell *given, void *workspace, size_t bytes, void *stream,
                        dpcr_error *error) {
    int before = 0;
    const dpcr_status status = check_cell(id, given, error);
    if (status != DPCR_OK) return status;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_cell_run(*given, workspace, bytes, stream);
        dpcri_cuda_leave(id, before);
    }
    return told_of_cell(id, given, code, bytes, error);
}

// ---- recurrent networks ----

static dpcr_status check_recurrent(int id, const dpcri_device_recurrent *layer, dpcr_error *error) {
    const char *const refusal = dpcri_device_recurrent_refusal(layer);
    return refusal ? dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: %s", id, refusal) : DPCR_OK;
}

static dpcr_status told_of_recurrent(int id, const dpcri_device_recurrent *c, int code, size_t bytes,
                                     dpcr_error *error) {
    if (code != DPCRI_CUDA_WIDTH) return told(id, code, bytes, "a recurrent layer's launch", error);
    return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED,
                      "cuda:%d: newton's products of %lld units do not fit on chip; the loop and overlap work", id,
                      (long long)c->hidden);
}

static dpcr_status recurrent_workspace(int id, const dpcri_device_recurrent *layer, size_t *bytes, dpcr_error *error) {
    int before = 0;
    *bytes = 0;
    const dpcr_status status = check_recurrent(id, layer, error);
    if (status != DPCR_OK) return status;
    const int code = dpcri_cuda_enter(id, &before);
    if (code != 0) return dpcri_cuda_fail(id, code, "cannot be used", error);
    const dpcri_cuda_together none = {0};
    const int fits = dpcri_cuda_recurrent_fits(*layer);
    const dpcri_cuda_together blocks = fits == DPCRI_CUDA_OK ? dpcri_cuda_recurrent_together(*layer) : none;
    if (fits == DPCRI_CUDA_OK) *bytes = dpcri_cuda_recurrent_workspace(*layer);
    dpcri_cuda_leave(id, before);
    return fits == DPCRI_CUDA_OK ? check_together(id, blocks, error) : told_of_recurrent(id, layer, fits, 0, error);
}

static dpcr_status recurrent(int id, const dpcri_device_recurrent *layer, void *workspace, size_t bytes, void *stream,
                             dpcr_error *error) {
    int before = 0;
    const dpcr_status status = check_recurrent(id, layer, error);
    if (status != DPCR_OK) return status;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_recurrent_run(*layer, workspace, bytes, stream);
        dpcri_cuda_leave(id, before);
    }
    return told_of_recurrent(id, layer, code, bytes, error);
}

static dpcr_status recurrent_share(int id, const dpcri_device_recurrent *layer, int64_t *blocks, dpcr_error *error) {
    int before = 0;
    *blocks = 0;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_recurrent_share(*layer, blocks);
        dpcri_cuda_leave(id, before);
    }
    return told(id, code, 0, "a recurrent layer", error);
}

// ---- training ----

#define DEFINE_CALL(name, form, what)                                                     \
    static dpcr_status name(int id, const form *given, void *stream, dpcr_error *error) { \
        int before = 0;                                                                   \
        int code = dpcri_cuda_enter(id, &before);                                         \
        if (code == 0) {                                                                  \
            code = dpcri_cuda_##name##_run(*given, stream);                               \
            dpcri_cuda_leave(id, before);                                                 \
        }                                                                                 \
        return told(id, code, 0, what, error);                                            \
    }
DEFINE_CALL(update, dpcri_device_update, "an update's launch")
DEFINE_CALL(clip, dpcri_device_clip, "a clipping's launch")
DEFINE_CALL(tie, dpcri_device_tie, "a launch over tied steps")
DEFINE_CALL(affine, dpcri_device_affine, "an encoder's or a head's launch")
DEFINE_CALL(loss, dpcri_device_loss, "a loss's launch")
DEFINE_CALL(shuffle, dpcri_device_shuffle, "a shuffle's launch")
DEFINE_CALL(gather, dpcri_device_gather, "a batch's launch")
DEFINE_CALL(sequences, dpcri_device_sequences, "a batch's launch")
DEFINE_CALL(embedding, dpcri_device_embedding, "an embedding's launch")
DEFINE_CALL(readout, dpcri_device_readout, "a readout's launch")
DEFINE_CALL(drop, dpcri_device_drop, "a dropout's launch")
DEFINE_CALL(dense, dpcri_device_dense, "a denoiser's launch")
DEFINE_CALL(denoise, dpcri_device_denoise, "a denoising step's launch")
DEFINE_CALL(move, dpcri_device_move, "a launch that moves states")
DEFINE_CALL(sweep, dpcri_device_sweep, "a sweep's launch")
#undef DEFINE_CALL

static dpcr_status barriers(int id, int64_t count, void *stream, dpcr_error *error) {
    int before = 0;
    int code = dpcri_cuda_enter(id, &before);
    if (code == 0) {
        code = dpcri_cuda_barriers_run(count, stream);
        dpcri_cuda_leave(id, before);
    }
    return told(id, code, 0, "a launch of barriers", error);
}

const dpcri_device_kernels dpcri_cuda_kernels = {.size = sizeof dpcri_cuda_kernels,
                                                 .linear_workspace = linear_workspace,
                                                 .linear = linear,
                                                 .cell_workspace = cell_workspace,
                                                 .cell = cell,
                                                 .cell_share = cell_share,
                                                 .recurrent_workspace = recurrent_workspace,
                                                 .recurrent = recurrent,
                                                 .recurrent_share = recurrent_share,
                                                 .update = update,
                                                 .clip = clip,
                                                 .tie = tie,
                                                 .affine = affine,
                                                 .loss = loss,
                                                 .shuffle = shuffle,
                                                 .gather = gather,
                                                 .sequences = sequences,
                                                 .embedding = embedding,
                                                 .readout = readout,
                                                 .drop = drop,
                                                 .dense = dense,
                                                 .denoise = denoise,
                                                 .move = move,
                                                 .sweep = sweep,
                                                 .barriers = barriers};
