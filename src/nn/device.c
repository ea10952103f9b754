// SPDX-License-Identifier: MIT
// The callback `launch` of cells and stacks of layers: their form and the solver's arrays as the device's kernels want
// them.
#include <assert.h>

#include "kern/device.h"
#include "kern/nn_kernels.h"
#include "nn/device.h"
#include "rt/dev/device.h"

static_assert(DPCRI_DEVICE_ACTIVATIONS == (int)DPCRI_ACT_COUNT, "the same activations");

// Where an array's numbers lie, [steps][rows][w] or, step NULL, [rows][w]; NULL: it is absent.
static void *place(const dpcr_array *from, int64_t *step, int64_t *row) {
    if (!from) return NULL;
    *row = from->strides[from->ndim - 2];
    if (step) *step = from->strides[0];
    return from->data;
}

static dpcri_device_way way_of(int method) {
    return method == DPCR_METHOD_NEWTON    ? DPCRI_DEVICE_NEWTON
           : method == DPCR_METHOD_OVERLAP ? DPCRI_DEVICE_OVERLAP
                                           : DPCRI_DEVICE_LOOP;
}

static dpcri_device_cell cell_of(const dpcri_narrow *n, const dpcri_narrow_more *more, const dpcri_narrow_sums *sums,
                                 int64_t length, int64_t batch, const dpcr_launch *launch) {
    dpcri_device_cell cell = {.dtype = n->dtype,
                              .activation = n->activation,
                              .diagonal = n->diagonal,
                              .in_out = n->weight_in_out,
                              .residual = n->residual,
                              .scale = n->scale,
                              .length = length,
                              .rows = batch,
                              .w = n->width,
                              .weight = n->weight,
                              .weight_step = n->weight_step,
                              .x = n->bias,
                              .x_step = n->bias_step,
                              .x_row = n->bias_row,
                              .way = way_of(launch->method),
                              .chunk = launch->chunk,
                              .warm_up = launch->warm_up,
                              .atol = launch->atol,
                              .rtol = launch->rtol,
                              .max_sweeps = launch->max_sweeps,
                              .stop = launch->no_fallback,
                              .outcome = launch->outcome,
                              .backward = launch->backward,
                              .gradients = sums != NULL,
                              .share = launch->share != 0};
    cell.z0 = place(launch->z0, NULL, &cell.z0_row);
    cell.z = place(launch->z, &cell.z_step, &cell.z_row);
    cell.direct = place(launch->direct, &cell.direct_step, &cell.direct_row);
    cell.adjoint = place(launch->adjoint, &cell.adjoint_step, &cell.adjoint_row);
    cell.z0_adjoint = place(launch->dz0, NULL, &cell.z0_adjoint_row);
    if (more) cell.gamma = more->gamma, cell.beta = more->beta;
    if (more) cell.hidden = more->hidden, cell.weight2 = more->weight2, cell.x2 = more->bias2;
    if (!sums) return cell;
    cell.weight_gradient = sums->weight, cell.x_gradient = sums->bias;
    cell.gamma_gradient = sums->gamma, cell.beta_gradient = sums->beta;
    cell.weight2_gradient = sums->weight2, cell.x2_gradient = sums->bias2;
    return cell;
}

// Strips of 32 units that one of `blocks` makes, one after another.
static int64_t turns(int64_t units, int64_t blocks) { return (units + 32 * blocks - 1) / (32 * blocks); }

// How many blocks share a row, where that pays: as kern/cuda/layers_shared.h goes, and layers.h alone.
static dpcr_status choose_share(const dpcri_device_kernels *kernels, int id, const dpcri_device_cell *cell,
                                dpcr_launch *launch, dpcr_error *error) {
    const int64_t inner = cell->hidden > 0 ? cell->hidden : cell->w;
    int64_t blocks = 0;
    int whole = 0;
    launch->share = 0;
    launch->alone_seconds = launch->shared_seconds = 0;
    if (!kernels->cell_share || cell->diagonal) return DPCR_OK;
    const dpcr_status status = kernels->cell_share(id, cell, &blocks, &whole, error);
    if (status != DPCR_OK || blocks == 0) return status;
    const int64_t second = cell->hidden > 0 ? inner : 0;  // terms of a two-layer branch's other product
    const dpcri_device_step step = {
        .passes = cell->hidden > 0 ? 2 : 1,
        .terms = cell->w + second,
        .shared_terms = cell->w * turns(inner, blocks) + second * turns(cell->w, blocks),
        .bytes = (double)(cell->w * inner) * (cell->hidden > 0 ? 2 : 1) * (double)dpcr_dtype_size(cell->dtype),
        .whole = whole,
        .groups = (cell->rows + 7) / 8,
        .rows = cell->rows < 8 ? cell->rows : 8};
    launch->alone_seconds = dpcri_device_alone_seconds(&step, launch->bandwidth);
    launch->shared_seconds = dpcri_device_shared_seconds(&step, launch->barrier, launch->bandwidth);
    if (launch->shared_seconds < launch->alone_seconds) launch->share = blocks;
    return DPCR_OK;
}

dpcr_status dpcri_narrow_launch(const dpcri_narrow *n, const dpcri_narrow_more *more, const dpcri_narrow_sums *sums,
                                dpcr_device device, int64_t length, int64_t batch, dpcr_launch *launch,
                                dpcr_error *error) {
    const dpcri_device_kernels *kernels = NULL;
    dpcr_status status = DPCR_OK;
    if (launch->device.type != device.type || launch->device.id != device.id) {
        char there[32], here[32];
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "steps: a plan for %s, but their arrays lie on %s",
                          dpcri_device_text(launch->device, there, sizeof there),
                          dpcri_device_text(device, here, sizeof here));
    }
    DPCR_TRY(dpcri_kernels_of(device, "steps", &kernels, error));
    dpcri_device_cell cell = cell_of(n, more, sums, length, batch, launch);
    if (!launch->z) {
        DPCR_TRY(choose_share(kernels, device.id, &cell, launch, error));
        cell.share = launch->share != 0;
        launch->remembers = cell.residual;
    }
    if (!launch->z)
        DPCR_TRY(kernels->cell_workspace(device.id, &cell, &launch->bytes, error));
    else
        DPCR_TRY(kernels->cell(device.id, &cell, launch->workspace, launch->bytes, launch->stream, error));
done:
    return status;
}

dpcr_status dpcri_kernels_of(dpcr_device device, const char *call, const dpcri_device_kernels **kernels,
                             dpcr_error *error) {
    const dpcri_device_table *table = NULL;
    char text[32];
    const dpcr_status status = dpcri_device_ready(device, call, &table, error);
    if (status != DPCR_OK) return status;
    *kernels = dpcri_device_kernels_in(table->kernels);
    if (*kernels) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the backend of %s has no kernels of this library's", call,
                      dpcri_device_text(device, text, sizeof text));
}
