// SPDX-License-Identifier: MIT
// Learning rate by update: linear warm-up, then half a cosine down to 0 (Loshchilov and Hutter, arXiv 1608.03983,
// without restarts). After a warm-up of W updates of a whole of N, update t (from 1) uses
//   0                                                   t < 1
//   rate t / W                                          1 <= t <= W
//   rate (1 + cos(pi (t - 1 - W) / (N - W))) / 2        W < t <= N     so the first one after the warm-up is at the
//   peak 0                                                   t > N
// which is PyTorch's CosineAnnealingLR with T_max = N - W, one scheduler step an update. N = 0: constant after the
// warm-up.
#include <math.h>

#include "train/optimiser.h"

double dpcri_schedule_rate(const dpcr_optimiser_options *options, int64_t step) {
    const double pi = 3.14159265358979323846;
    const int64_t warm_up = options->warm_up, total = options->total;
    if (step < 1) return 0;
    if (step <= warm_up) return options->rate * (double)step / (double)warm_up;
    if (total == 0) return options->rate;
    if (step > total) return 0;
    return options->rate * (1 + cos(pi * (double)(step - 1 - warm_up) / (double)(total - warm_up))) / 2;
}
