// SPDX-License-Identifier: MIT
// solve linear and recurrent networks on a device: the numbers go there, the chain is solved, the states come back.
// With
// --device auto, of linear chains: whether that would be faster than staying, by the rates of both.
#include <string.h>

#include "solve.h"

static size_t bytes_of(const dpcr_array *array) {
    return (size_t)cli_array_count(array) * dpcr_dtype_size(array->dtype);
}

bool cli_linear_in_one_pass(const dpcr_transition *t) {
    enum { CHIP_WIDTH = 16 };
    const int64_t mixes = t->structure == DPCR_DENSE ? t->rows : t->structure == DPCR_BLOCK ? t->block : 1;
    return mixes <= CHIP_WIDTH && t->structure != DPCR_CSR;
}

dpcr_status cli_linear_fits(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b, const dpcr_array *z0,
                            dpcr_device device, dpcr_error *error) {
    dpcr_device_info info = {.size = sizeof info};
    const dpcr_status status = dpcr_device_describe(device, &info, error);
    const size_t bytes = bytes_of(a) + bytes_of(b) + (z0 ? bytes_of(z0) : 0) + dpcr_chain_plan_workspace(plan);
    if (status != DPCR_OK || bytes <= info.free_bytes) return status;
    error->status = DPCR_ERROR_MEMORY;
    snprintf(error->text, sizeof error->text, "%zu bytes are needed on the device, %zu are free", bytes,
             (size_t)info.free_bytes);
    return DPCR_ERROR_MEMORY;
}

// Measured rates of both against the least that the processor could take: the loop shared out over all threads.
bool cli_linear_pays(const cli_linear *s, dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_array *a,
                     const dpcr_array *b) {
    dpcr_device_rates rates = {.size = sizeof rates};
    dpcr_machine machine = {.size = sizeof machine};
    dpcr_ranks_model loop = {.size = sizeof loop, .ranks = 1, .cores = 1};
    dpcr_error error = {0};
    if (!cli_linear_in_one_pass(&shape->transition)) {
        cli_device_decide(
            "cpu: what csr transitions, and those wider than 16, take on devices is not measured; --device cuda asks "
            "for one");
        return false;
    }
    if (dpcr_device_measure(s->common.device, &rates, &error) != DPCR_OK ||
        dpcr_context_machine(context, &machine, &error) != DPCR_OK) {
        cli_device_decide("cpu: %.300s", error.text);
        return false;
    }
    loop.bandwidth = loop.memory = machine.bandwidth;
    if (dpcr_chain_predict(shape, &loop, &error) != DPCR_OK) {
        cli_device_decide("cpu: %.300s", error.text);
        return false;
    }
    const double in = (double)bytes_of(a) + (double)bytes_of(b), out = (double)bytes_of(b);
    const double there = in / rates.to_device + out / rates.to_host, work = (in + out) / rates.copy + 2 * rates.launch;
    const double here = loop.loop / (machine.threads > 1 ? machine.threads : 1);
    const bool pays = there + work < here;
    cli_device_decide("%s: there %.3g us and %.3g us of transfers, here %.3g us at best", pays ? "cuda:0" : "cpu",
                      1e6 * work, 1e6 * there, 1e6 * here);
    return pays;
}

dpcr_status cli_send(dpcr_device device, const dpcr_array *from, void *stream, cli_moved *to, dpcr_error *error) {
    *to = (cli_moved){.array = *from, .bytes = bytes_of(from)};
    to->array.data = NULL;
    to->array.device = device;
    const dpcr_status status = dpcr_device_allocate(device, to->bytes, &to->array.data, error);
    if (status != DPCR_OK) return status;
    return dpcr_device_copy(device, to->array.data, from->device, from->data, to->bytes, stream, error);
}

int cli_linear_on_device(const cli_linear *s, const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                         const dpcr_array *z0, cli_device_times *times) {
    const dpcr_device device = s->common.device, host = {.type = DPCR_HOST};
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    cli_moved on[3] = {0};
    void *workspace = NULL, *stream = NULL;
    dpcr_error error = {0};
    const double start = cli_now();
    dpcr_status status = dpcr_stream_create(device, &stream, &error);
    if (status == DPCR_OK) status = cli_send(device, a, stream, &on[0], &error);
    if (status == DPCR_OK) status = cli_send(device, b, stream, &on[1], &error);
    if (status == DPCR_OK && z0) status = cli_send(device, z0, stream, &on[2], &error);
    if (status == DPCR_OK) status = dpcr_device_allocate(device, bytes, &workspace, &error);
    if (status == DPCR_OK) status = dpcr_stream_wait(device, stream, &error);
    times->to_device = cli_now() - start;
    // The states take the place of b, as on the host.
    if (status == DPCR_OK)
        status = dpcr_chain_enqueue(plan, &on[0].array, &on[1].array, z0 ? &on[2].array : NULL, &on[1].array, workspace,
                                    bytes, stream, &error);
    if (status == DPCR_OK) status = dpcr_stream_wait(device, stream, &error);
    times->solve = cli_now() - start - times->to_device;
    if (status == DPCR_OK)
        status = dpcr_device_copy(host, b->data, device, on[1].array.data, on[1].bytes, stream, &error);
    if (status == DPCR_OK) status = dpcr_stream_wait(device, stream, &error);
    times->to_host = cli_now() - start - times->to_device - times->solve;
    for (int i = 0; i < 3; i++) dpcr_device_release(device, on[i].array.data);
    dpcr_device_release(device, workspace);
    dpcr_stream_destroy(device, stream);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}

// ---- recurrent networks ----

dpcr_status cli_bring(dpcr_device device, const cli_moved *from, const dpcr_array *to, void *stream,
                      dpcr_error *error) {
    const dpcr_device host = {.type = DPCR_HOST};
    return from->array.data ? dpcr_device_copy(host, to->data, device, from->array.data, from->bytes, stream, error)
                            : DPCR_OK;
}

// The lengths of a packed batch, and the resets, lie there too.
static dpcr_status send_bytes(dpcr_device device, const void *from, size_t bytes, void *stream, void **to,
                              dpcr_error *error) {
    const dpcr_device host = {.type = DPCR_HOST};
    if (!from) return DPCR_OK;
    const dpcr_status status = dpcr_device_allocate(device, bytes, to, error);
    return status == DPCR_OK ? dpcr_device_copy(device, *to, host, from, bytes, stream, error) : status;
}

// Of no steps the device writes nothing: what comes in goes out.
static void pass_on(const dpcr_array *from, const dpcr_array *to) {
    if (from->data && to->data) memcpy(to->data, from->data, bytes_of(from));
}

int cli_recurrent_on_device(dpcr_device device, dpcr_recurrent *network, const dpcr_recurrent_plan *plan,
                            const dpcr_recurrent_pass *pass, const dpcr_recurrent_gradients *gradients,
                            dpcr_solve_report *reports, dpcr_solve_report *back_reports, cli_device_times *times) {
    enum { THETA, X, H0, C0, GIVEN_Y, GIVEN_H, GIVEN_C, Y, HT, CT, D_THETA, D_X, D_H0, D_C0, ALL };
    const size_t bytes = dpcr_recurrent_plan_workspace(plan);
    const dpcr_recurrent_gradients none = {0}, *const g = gradients ? gradients : &none;
    const dpcr_dtype dtype = dpcr_recurrent_get_options(network)->dtype;
    int64_t count = 0;
    void *theta = dpcr_recurrent_vector(network, &count);
    void *const back = gradients ? dpcr_recurrent_gradient_vector(network) : NULL;
    const dpcr_array vector = dpcr_array_make(theta, dtype, 1, &count), sums = dpcr_array_make(back, dtype, 1, &count);
    const dpcr_array *const here[ALL] = {&vector,  &pass->x,  &pass->h0, &pass->c0, &g->y, &g->ht, &g->ct,
                                         &pass->y, &pass->ht, &pass->ct, &sums,     &g->x, &g->h0, &g->c0};
    cli_moved on[ALL] = {0};
    void *workspace = NULL, *stream = NULL, *lengths = NULL, *resets = NULL;
    dpcr_error error = {0};
    const double start = cli_now();
    dpcr_status status = dpcr_stream_create(device, &stream, &error);
    for (int i = 0; i < ALL && status == DPCR_OK; i++)
        if (here[i]->data || here[i]->ndim == 3)  // of no steps or sequences there is no data
            status = cli_send(device, here[i], stream, &on[i], &error);
    const size_t rows = (size_t)pass->x.shape[1], steps = (size_t)pass->x.shape[0];
    if (status == DPCR_OK)
        status = send_bytes(device, pass->lengths, rows * sizeof *pass->lengths, stream, &lengths, &error);
    if (status == DPCR_OK) status = send_bytes(device, pass->resets, steps * rows, stream, &resets, &error);
    if (status == DPCR_OK) status = dpcr_device_allocate(device, bytes, &workspace, &error);
    if (status == DPCR_OK) status = dpcr_stream_wait(device, stream, &error);
    times->to_device = cli_now() - start;
    const dpcr_recurrent_pass there = {.size = sizeof there,
                                       .x = on[X].array,
                                       .h0 = on[H0].array,
                                       .c0 = on[C0].array,
                                       .lengths = lengths,
                                       .resets = resets,
                                       .y = on[Y].array,
                                       .ht = on[HT].array,
                                       .ct = on[CT].array};
    const dpcr_recurrent_gradients theirs = {.size = sizeof theirs,
                                             .y = on[GIVEN_Y].array,
                                             .ht = on[GIVEN_H].array,
                                             .ct = on[GIVEN_C].array,
                                             .x = on[D_X].array,
                                             .h0 = on[D_H0].array,
                                             .c0 = on[D_C0].array};
    if (status == DPCR_OK)
        status = dpcr_recurrent_enqueue(plan, &on[THETA].array, &there, workspace, bytes, stream, &error);
    if (status == DPCR_OK) status = dpcr_recurrent_collect(plan, workspace, bytes, stream, reports, &error);
    times->solve = cli_now() - start - times->to_device;
    if (status == DPCR_OK && gradients)
        status = dpcr_recurrent_enqueue_backward(plan, &on[THETA].array, &there, &theirs, &on[D_THETA].array, workspace,
                                                 bytes, stream, &error);
    if (status == DPCR_OK && gradients)
        status = dpcr_recurrent_collect_backward(plan, workspace, bytes, stream, back_reports, &error);
    if (gradients) times->back = cli_now() - start - times->to_device - times->solve;
    for (int i = Y; i < ALL && status == DPCR_OK; i++) status = cli_bring(device, &on[i], here[i], stream, &error);
    if (status == DPCR_OK) status = dpcr_stream_wait(device, stream, &error);
    if (steps == 0) {
        pass_on(&pass->h0, &pass->ht), pass_on(&pass->c0, &pass->ct);
        pass_on(&g->ht, &g->h0), pass_on(&g->ct, &g->c0);
    }
    times->to_host = cli_now() - start - times->to_device - times->solve - times->back;
    for (int i = 0; i < ALL; i++) dpcr_device_release(device, on[i].array.data);
    dpcr_device_release(device, lengths);
    dpcr_device_release(device, resets);
    dpcr_device_release(device, workspace);
    dpcr_stream_destroy(device, stream);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_COMPUTING);
}
