// SPDX-License-Identifier: MIT
// Linear chains on a device: the plan asks the backend's kernels what they serve and need, enqueue checks the arrays
// and hands them over. Of transitions that multiply on chip one scheme: chunks of a thread, a warp and a block, and
// look-back between blocks, in one pass over memory (work 2 applications and a composition a step, memory a + b + z
// once). Wider ones and csr: the loop, or chunks whose products are made side by side. The kernels: src/kern/cuda/.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "chain/plan.h"
#include "kern/device.h"
#include "rt/dev/device.h"

enum { FEW_STEPS = 64 };  // fewer go in order where there is a choice

bool dpcri_plan_on_device(const dpcr_chain_options *options) {
    return options->device.type != 0 && options->device.type != DPCR_HOST;
}

static const dpcri_device_kernels *kernels_of(const dpcr_chain_plan *plan) { return plan->table->kernels; }

static dpcri_device_linear form_of(const dpcr_chain_plan *plan) {
    const dpcr_transition *t = &plan->shape.transition;
    return (dpcri_device_linear){.structure = t->structure,
                                 .dtype = plan->shape.dtype,
                                 .transposed = plan->shape.transposed != 0,
                                 .length = plan->shape.length,
                                 .rows = plan->shape.batch,
                                 .w = t->rows,
                                 .block = t->block,
                                 .entries = t->structure == DPCR_CSR ? plan->values : 0,
                                 .in_order = plan->options.scheme == DPCR_SCHEME_SEQUENTIAL,
                                 .chunk = plan->options.chunk};
}

// A rule of shape: a product costs w times what a step in order does, in rates of one multiprocessor some w / 10 (a
// number from memory for ten multiply-adds), and chunks have all of them at work where a loop has one a sequence. What
// they make of a state is w^2 numbers each, of csr much beside a step's entries.
static bool chunks_pay(const dpcri_device_linear *c, int processors) {
    const double w = (double)dpcri_device_linear_mixes(c), columns = (double)c->rows * ((double)c->w / w);
    const double step = c->structure == DPCR_CSR ? (double)c->entries : w * w, length = (double)c->length;
    return c->length >= FEW_STEPS && columns * w < 10.0 * processors && 4 * w * w * sqrt(length) <= step * length;
}

// Which scheme, of those that the form has; AUTO's by the rule.
static void choose_scheme(dpcr_chain_plan *plan, const dpcr_device_info *info, const char *device) {
    dpcr_chain_options *o = &plan->options;
    const dpcri_device_linear form = form_of(plan);
    const bool wide = dpcri_device_linear_large(&form);
    if (o->scheme == DPCR_SCHEME_AUTO)
        o->scheme = !wide || chunks_pay(&form, info->processors) ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL;
    const char *how = !wide                              ? "chunked: in one pass over memory"
                      : o->scheme == DPCR_SCHEME_CHUNKED ? "chunked: products of chunks side by side"
                                                         : "sequential: the loop, sequences side by side,";
    snprintf(plan->sentence, sizeof plan->sentence, "%s on %s (%.100s)", how, device, info->name);
}

dpcr_status dpcri_plan_device(dpcr_chain_plan *plan, dpcr_error *error) {
    static const char *const function = "chain_plan";
    dpcr_chain_options *o = &plan->options;
    dpcr_device_info info = {.size = sizeof info};
    dpcr_status status = DPCR_OK;
    char text[32];
    if (o->scheme != DPCR_SCHEME_AUTO && o->scheme != DPCR_SCHEME_CHUNKED && o->scheme != DPCR_SCHEME_SEQUENTIAL)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %s on a device; auto, chunked and sequential work there",
                          function, dpcr_scheme_name(o->scheme));
    DPCR_TRY(dpcri_device_ready(o->device, function, &plan->table, error));
    DPCR_TRY(plan->table->describe(o->device.id, &info, error));
    dpcri_device_text(o->device, text, sizeof text);
    if (!dpcri_device_kernels_in(plan->table->kernels))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the backend of %s has no kernels of this library's",
                            function, text));
    choose_scheme(plan, &info, text);
    const dpcri_device_linear form = form_of(plan);
    const bool any = form.length > 0 && form.rows > 0;
    if (any) DPCR_TRY(kernels_of(plan)->linear_workspace(o->device.id, &form, &plan->workspace, error));
    if (any && form.structure == DPCR_CSR) DPCR_TRY(dpcri_plan_pattern(plan, error));
    o->size = sizeof *o;
    o->typical = NULL;
done:
    return status;
}

static dpcr_status check_workspace(const dpcr_chain_plan *plan, const char *function, const void *workspace,
                                   size_t bytes, dpcr_error *error) {
    if (bytes < plan->workspace || (!workspace && plan->workspace > 0))
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: a workspace of %zu bytes%s, wanted %zu on the device",
                          function, bytes, workspace ? "" : " at NULL", plan->workspace);
    if (plan->workspace > 0 && (uintptr_t)workspace % 256 != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the workspace lies %u bytes off, wanted 256-byte alignment",
                          function, (unsigned)((uintptr_t)workspace % 256));
    return DPCR_OK;
}

// A number that does not lie on its own size ends in a fault of the device, after which the process has it no more.
static dpcr_status check_aligned(const dpcri_wanted *w, const dpcri_view *view, dpcr_error *error) {
    const size_t off = (uintptr_t)view->data % dpcr_dtype_size(w->dtype);
    return off == 0
               ? DPCR_OK
               : dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s lies %zu bytes off, wanted whole numbers of %zu bytes",
                            w->function, w->name, off, dpcr_dtype_size(w->dtype));
}

static dpcr_status view_on_device(const dpcr_array *array, const dpcri_wanted *wanted, dpcri_view *view,
                                  dpcr_error *error) {
    const dpcr_status status = dpcri_view_of(array, wanted, view, error);
    return status == DPCR_OK ? check_aligned(wanted, view, error) : status;
}

dpcr_status dpcr_chain_enqueue(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                               const dpcr_array *z0, const dpcr_array *z, void *workspace, size_t workspace_bytes,
                               void *stream, dpcr_error *error) {
    static const char *const function = "chain_enqueue";
    dpcr_status status = DPCR_OK;
    dpcri_view va = {0}, vb = {0}, v0 = {0}, vz = {0};
    if (!plan) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: plan is NULL", function);
    if (!plan->table)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the plan is of the host, where chain_execute solves",
                          function);
    DPCR_TRY(check_workspace(plan, function, workspace, workspace_bytes, error));
    const int64_t w = plan->shape.transition.rows;
    dpcri_wanted wanted = dpcri_plan_wants(plan, function, "a", plan->shape.length, plan->values);
    wanted.device = plan->options.device;
    wanted.shareable = true;
    if (plan->values > 0) DPCR_TRY(view_on_device(a, &wanted, &va, error));
    wanted.shareable = false;
    wanted.values = w;
    wanted.name = "b";
    DPCR_TRY(view_on_device(b, &wanted, &vb, error));
    wanted.written = true;
    wanted.name = "z";
    DPCR_TRY(view_on_device(z, &wanted, &vz, error));
    if (z0 && plan->shape.transposed)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "%s: z0 was given to a transposed chain, which starts at b of the last step; add it there",
                            function));
    wanted = dpcri_plan_wants(plan, function, "z0", -1, w);
    wanted.device = plan->options.device;
    if (z0) DPCR_TRY(view_on_device(z0, &wanted, &v0, error));
    if (z0) DPCR_TRY(dpcri_check_start(function, z0, z, error));
    DPCR_TRY(dpcri_check_in_place(function, &vb, &vz, error));
    dpcri_device_linear chain = form_of(plan);
    if (chain.length == 0 || chain.rows == 0) return DPCR_OK;
    chain.a = va.data;
    chain.a_step = va.step;
    chain.a_row = va.row;
    chain.b = vb.data;
    chain.b_step = vb.step;
    chain.b_row = vb.row;
    chain.z0 = v0.data;
    chain.z0_row = v0.row;
    chain.z = vz.data;
    chain.z_step = vz.step;
    chain.z_row = vz.row;
    if (chain.structure == DPCR_CSR) {
        chain.offsets = plan->pattern;
        chain.columns = chain.offsets + w + 1;
        chain.places = chain.transposed ? chain.columns + chain.entries : NULL;
    }
    DPCR_TRY(kernels_of(plan)->linear(plan->options.device.id, &chain, workspace, workspace_bytes, stream, error));
done:
    return status;
}
