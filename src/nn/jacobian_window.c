// SPDX-License-Identifier: MIT
// Rows of A for a window that slides over an image: input (a,y,x) reaches output (j,u,v) where the window at (u,v)
// covers it, by the weight
//
//   W[j][a][ky][kx],   ky d = y + p - u s,   0 <= ky < kernel,   columns alike                    docs/math/bppsa.md
//
// so the rows u that reach y are those from ceil((y + p - (kernel-1) d) / s) to floor((y + p) / s) with a whole ky.
#include <inttypes.h>

#include "nn/jacobian.h"

// The outputs [lo, hi] of one dimension that may reach input y.
static void reach(const dpcri_window2d *w, int d, int64_t y, int64_t *lo, int64_t *hi) {
    const int64_t far = y + w->padding[d] - (w->kernel[d] - 1) * w->dilation[d], s = w->stride[d];
    *lo = far <= 0 ? 0 : (far + s - 1) / s;
    *hi = (y + w->padding[d]) / s;
    if (*hi > w->out[d] - 1) *hi = w->out[d] - 1;
}

// The kernel's place by which output u reaches input y; -1 between two places.
static int64_t tap(const dpcri_window2d *w, int d, int64_t y, int64_t u) {
    const int64_t distance = y + w->padding[d] - u * w->stride[d];
    return distance % w->dilation[d] == 0 ? distance / w->dilation[d] : -1;
}

int64_t dpcri_window_row(const dpcri_window2d *w, const unsigned char *kept, int64_t row, int32_t *columns,
                         int32_t *sources) {
    const int64_t area = w->in[0] * w->in[1], a = row / area, y = row % area / w->in[1], x = row % w->in[1],
                  in_group = w->in_channels / w->groups, out_group = w->out_channels / w->groups;
    int64_t top = 0, bottom = 0, left = 0, right = 0, count = 0;
    reach(w, 0, y, &top, &bottom);
    reach(w, 1, x, &left, &right);
    for (int64_t j = a / in_group * out_group; j < (a / in_group + 1) * out_group; j++)
        for (int64_t u = top; u <= bottom; u++) {
            const int64_t ky = tap(w, 0, y, u);
            for (int64_t v = left; ky >= 0 && v <= right; v++) {
                const int64_t kx = tap(w, 1, x, v);
                if (kx < 0) continue;
                const int64_t weight = ((j * in_group + a % in_group) * w->kernel[0] + ky) * w->kernel[1] + kx;
                if (kept && !kept[weight]) continue;
                if (columns) {
                    columns[count] = (int32_t)((j * w->out[0] + u) * w->out[1] + v);
                    sources[count] = (int32_t)weight;
                }
                count++;
            }
        }
    return count;
}

static bool product_fits(int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t product = 0;
    return dpcri_mul(a, b, &product) && dpcri_mul(product, c, &product) && dpcri_mul(product, d, &product) &&
           product <= INT32_MAX;
}

dpcr_status dpcri_window_prepare(const char *function, dpcri_window2d *w, dpcr_error *error) {
    const int64_t large = INT32_MAX;
    if (w->in_channels <= 0 || w->out_channels <= 0 || w->groups <= 0 || w->in_channels % w->groups != 0 ||
        w->out_channels % w->groups != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: %" PRId64 " to %" PRId64 " channels in %" PRId64
                          " groups, wanted positive numbers that the groups divide",
                          function, w->in_channels, w->out_channels, w->groups);
    for (int d = 0; d < 2; d++) {
        if (w->in[d] <= 0 || w->kernel[d] <= 0 || w->stride[d] <= 0 || w->padding[d] < 0 || w->dilation[d] <= 0 ||
            w->in[d] > large || w->kernel[d] > large || w->stride[d] > large || w->padding[d] > large ||
            w->dilation[d] > large)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "%s: image %" PRId64 ", kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64
                              ", dilation %" PRId64 ", wanted positive numbers (padding: or 0) below 2^31",
                              function, w->in[d], w->kernel[d], w->stride[d], w->padding[d], w->dilation[d]);
        const int64_t reached = (w->kernel[d] - 1) * w->dilation[d] + 1, padded = w->in[d] + 2 * w->padding[d];
        if (reached > padded)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "%s: a kernel that reaches over %" PRId64 " of %" PRId64 ", padding included", function,
                              reached, padded);
        w->out[d] = (padded - reached) / w->stride[d] + 1;
    }
    if (!product_fits(w->in_channels, w->in[0], w->in[1], 1) ||
        !product_fits(w->out_channels, w->out[0], w->out[1], 1) ||
        !product_fits(w->in_channels / w->groups, w->out_channels, w->kernel[0], w->kernel[1]))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: more than 2^31 inputs, outputs or weights", function);
    return DPCR_OK;
}
