// SPDX-License-Identifier: MIT
// Which table of recurrent kernels serves a dtype at a level, and how large packed weights are.
#include "kern/gates.h"

#include <string.h>

#include "base/base.h"
#include "kern/levels.h"

const int dpcri_gates_count[DPCRI_GATES_ALL] = {1, 3, 4, 3, 3, 2},
          dpcri_gates_tape[DPCRI_GATES_ALL] = {1, 4, 4, 4, 3, 2},
          dpcri_gates_state[DPCRI_GATES_ALL] = {1, 1, 2, 1, 2, 1};

DPCRI_KERNEL_TABLES(gates)

bool dpcri_gates_packed(const dpcri_gates_kernels *k, dpcri_gates_kind kind, int64_t width, int64_t *forward,
                        int64_t *backward) {
    const int64_t gates = dpcri_gates_count[kind], units = (width + k->units - 1) / k->units * k->units;
    int64_t numbers;
    if (!dpcri_mul(width, gates, &numbers)) return false;
    return dpcri_mul(numbers, units, forward) && dpcri_mul(numbers, units, backward);
}

void dpcri_gates_pack(const dpcri_gates_kernels *k, const dpcri_nn_kernels *nn, dpcri_gates_kind kind, int64_t H,
                      const void *weight, void *forward, void *backward) {
    const int64_t gates = dpcri_gates_count[kind], units = k->units, e = (int64_t)k->element;
    const char *w = weight;
    const int64_t tile = H * gates * units * e;
    for (int64_t unit = 0, at = 0; unit < H; unit += units, at += tile) {
        const int64_t rows = H - unit < units ? H - unit : units;
        if (forward && rows < units) memset((char *)forward + at, 0, (size_t)tile);
        for (int64_t q = 0; forward && q < gates; q++)
            nn->transpose(rows, H, w + (q * H + unit) * H * e, H, (char *)forward + at + q * units * e, gates * units);
        if (backward && rows < units) memset((char *)backward + at, 0, (size_t)tile);
        for (int64_t j = 0; backward && j < gates * H; j++)
            memcpy((char *)backward + at + j * units * e, w + (j * H + unit) * e, (size_t)(rows * e));
    }
}

static int64_t whole(const dpcri_gates_kernels *k, int64_t numbers) {
    return (numbers + k->units - 1) / k->units * k->units;
}

bool dpcri_gates_packed_matrix(const dpcri_gates_kernels *k, int64_t rows, int64_t columns, int64_t *forward,
                               int64_t *backward) {
    return dpcri_mul(whole(k, rows), columns, forward) && dpcri_mul(whole(k, columns), rows, backward);
}

void dpcri_gates_pack_matrix(const dpcri_gates_kernels *k, const dpcri_nn_kernels *nn, int64_t rows, int64_t columns,
                             const void *weight, void *forward, void *backward) {
    const int64_t units = k->units, e = (int64_t)k->element;
    const char *w = weight;
    char *to = forward, *back = backward;
    if (to) memset(to, 0, (size_t)(whole(k, rows) * columns * e));
    for (int64_t unit = 0; to && unit < rows; unit += units, to += columns * units * e)
        nn->transpose(rows - unit < units ? rows - unit : units, columns, w + unit * columns * e, columns, to, units);
    if (back) memset(back, 0, (size_t)(whole(k, columns) * rows * e));
    for (int64_t unit = 0; back && unit < columns; unit += units)
        for (int64_t j = 0; j < rows; j++, back += units * e)
            memcpy(back, w + (j * columns + unit) * e, (size_t)((columns - unit < units ? columns - unit : units) * e));
}

// Rows of W_hh that are multiplied by h: of a GRU that resets before, n's are multiplied by r h, later.
static int64_t first_rows(const dpcri_gates *g) {
    return g->variant.reset_before ? 2 * g->width : dpcri_gates_count[g->kind] * g->width;
}

bool dpcri_gates_packed_variant(const dpcri_gates_kernels *k, const dpcri_gates *g, int64_t *forward,
                                int64_t *backward) {
    const int64_t rows = dpcri_gates_count[g->kind] * g->width, first = first_rows(g);
    int64_t later = 0, unused;
    if (!dpcri_gates_packed_matrix(k, rows, dpcri_gates_outputs(g), forward, backward)) return false;
    return dpcri_gates_packed_matrix(k, first, dpcri_gates_outputs(g), forward, &unused) &&
           dpcri_gates_packed_matrix(k, rows - first, g->width, &later, &unused) && dpcri_add(*forward, later, forward);
}

void dpcri_gates_pack_variant(const dpcri_gates_kernels *k, const dpcri_nn_kernels *nn, const dpcri_gates *g,
                              const void *weight, void *forward, void *backward) {
    const int64_t rows = dpcri_gates_count[g->kind] * g->width, first = first_rows(g), e = (int64_t)k->element;
    const int64_t columns = dpcri_gates_outputs(g);
    dpcri_gates_pack_matrix(k, nn, first, columns, weight, forward, NULL);
    if (forward && first < rows)
        dpcri_gates_pack_matrix(k, nn, rows - first, columns, (const char *)weight + first * columns * e,
                                (char *)forward + whole(k, first) * columns * e, NULL);
    dpcri_gates_pack_matrix(k, nn, rows, columns, weight, NULL, backward);
}
