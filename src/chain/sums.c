// SPDX-License-Identifier: MIT
#include "chain/sums.h"

#include <assert.h>

typedef struct split {
    dpcri_sum_axis kept[DPCRI_SUM_AXES], summed[DPCRI_SUM_AXES];
    int keeps, sums;
} split;

// total: over `sums` axes; place: what lies under `keeps` kept ones.
#define DEFINE_SUM(T, name)                                                                                      \
    static double total_##name(const T *x, const dpcri_sum_axis *axis, int sums) {                               \
        double sum = 0;                                                                                          \
        if (sums == 0) return (double)*x;                                                                        \
        for (int64_t i = 0; i < axis->extent; i++)                                                               \
            sum += sums == 1 ? (double)x[i * axis->from] : total_##name(x + i * axis->from, axis + 1, sums - 1); \
        return sum;                                                                                              \
    }                                                                                                            \
    static void place_##name(const T *x, T *y, const split *s, const dpcri_sum_axis *axis, int keeps) {          \
        if (keeps == 0) *y = (T)total_##name(x, s->summed, s->sums);                                             \
        for (int64_t i = 0; keeps > 0 && i < axis->extent; i++)                                                  \
            place_##name(x + i * axis->from, y + i * axis->to, s, axis + 1, keeps - 1);                          \
    }
DEFINE_SUM(float, f32)
DEFINE_SUM(double, f64)
#undef DEFINE_SUM

void dpcri_sum_over(dpcr_dtype dtype, const void *from, void *to, const dpcri_sum_axis *axes, int count) {
    split s = {.keeps = 0};
    bool empty = false;
    assert(count <= DPCRI_SUM_AXES);
    for (int i = 0; i < count; i++) empty = empty || axes[i].extent == 0;
    for (int i = 0; i < count; i++) {
        if (axes[i].extent == 1) continue;
        if (axes[i].to == 0)
            s.summed[s.sums++] = axes[i];
        else
            s.kept[s.keeps++] = (dpcri_sum_axis){axes[i].extent, empty ? 0 : axes[i].from, axes[i].to};
    }
    if (dtype == DPCR_F32)
        place_f32(from, to, &s, s.kept, s.keeps);
    else
        place_f64(from, to, &s, s.kept, s.keeps);
}
