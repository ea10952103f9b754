// SPDX-License-Identifier: MIT
// The sums of a layer 8 wide and deep where the kernels say `eights`, by their definition in kern/nn_kernels.h.
#ifndef EIGHTS_H
#define EIGHTS_H

#include <math.h>
#include <stdint.h>

// u = z W + b for each row.
static inline void eights(int64_t rows, const float *z, int64_t z_row, const float *w, const float *b, float *u,
                          int64_t u_row) {
    for (int64_t r = 0; r < rows; r++, z += z_row, u += u_row)
        for (int j = 0; j < 8; j++) {
            float term[8];
            for (int k = 2; k < 8; k++) term[k] = w[8 * k + j] * z[k];
            const float even = fmaf(w[j], z[0], b[j]), odd = fmaf(w[8 + j], z[1], 0);
            u[j] = ((even + term[2]) + (term[4] + term[6])) + ((odd + term[3]) + (term[5] + term[7]));
        }
}

#endif
