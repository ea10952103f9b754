// SPDX-License-Identifier: MIT
// The launcher of adjoint.h, by width.
#ifndef DPCRI_CUDA_ADJOINT_RUN_H
#define DPCRI_CUDA_ADJOINT_RUN_H

#include "kern/cuda/adjoint.h"
#include "kern/cuda/cells_run.h"

namespace cells {

template <class T>
size_t backward_widths<T>::workspace(const dpcri_device_cell &a, int k) {
    const problem<T> p = problem_of<T>(a, k);
    return k == 1   ? backward_workspace<T, 1, linear::usual<T, 1>>(p, a)
           : k == 2 ? backward_workspace<T, 2, linear::usual<T, 2>>(p, a)
                    : backward_workspace<T, 4, linear::usual<T, 4>>(p, a);
}

template <class T>
int backward_widths<T>::run(const dpcri_device_cell &a, int k, void *workspace, void *stream) {
    const problem<T> p = problem_of<T>(a, k);
    return k == 1   ? run_backward<T, 1, linear::usual<T, 1>>(p, a, workspace, stream)
           : k == 2 ? run_backward<T, 2, linear::usual<T, 2>>(p, a, workspace, stream)
                    : run_backward<T, 4, linear::usual<T, 4>>(p, a, workspace, stream);
}

}  // namespace cells

#endif
