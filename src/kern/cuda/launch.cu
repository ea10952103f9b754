// SPDX-License-Identifier: MIT
// From the arguments of launch.h to the kernels' instances.
#include "kern/cuda/launch.h"
#include "kern/cuda/adjoint.h"
#include "kern/cuda/cells_run.h"
#include "kern/cuda/gates_back_run.h"
#include "kern/cuda/layers_run.h"
#include "kern/cuda/linear_large_run.h"
#include "kern/cuda/linear_widths.h"
#include "kern/cuda/para_back_run.h"
#include "kern/cuda/para_run.h"
#include "kern/cuda/shapes.h"

extern template struct cells::widths<float>;
extern template struct cells::widths<double>;
extern template struct cells::backward_widths<float>;
extern template struct cells::backward_widths<double>;
extern template struct gates::kinds<float>;
extern template struct gates::kinds<double>;
extern template struct gates::back_kinds<float>;
extern template struct gates::back_kinds<double>;
extern template struct gates::para_kinds<float>;
extern template struct gates::para_kinds<double>;
extern template struct gates::para_back_kinds<float>;
extern template struct gates::para_back_kinds<double>;
extern template struct layers::kinds<float>;
extern template struct layers::kinds<double>;
extern template struct large::kinds<float>;
extern template struct large::kinds<double>;
extern template struct large::kinds<uint32_t>;

DPCRI_LINEAR_NARROW(extern, float);
DPCRI_LINEAR_NARROW(extern, double);
DPCRI_LINEAR_NARROW(extern, uint32_t);
DPCRI_LINEAR_WIDE(extern, float);
DPCRI_LINEAR_WIDE(extern, double);
DPCRI_LINEAR_WIDE(extern, uint32_t);

namespace {

// Of rows of float, twice, in the 227 KB that a block has at most; sizes that are products of it stay within int64_t.
constexpr int64_t widest = (227 << 10) / (2 * sizeof(float));

// Width k of what mixes.
template <class T>
linear::problem<T> problem_of(const dpcri_device_linear &c, int k) {
    linear::problem<T> p = {};
    shapes::lay_out<T>(c, &p);
    p.parts = c.w / k;
    p.columns = c.rows * p.parts;
    if (c.structure == DPCR_IDENTITY) p.a = nullptr;
    p.a_part = c.structure == DPCR_SCALAR ? 0 : k * k;
    return p;
}

// z = b: what a chain of zeros is, whatever z was.
template <class T>
struct copy {
    typedef linear::problem<T> arguments;
    static constexpr int most = 256;
    SIMT static void run(simt::lane &me, const arguments &p) {
        const int64_t all = p.length * p.columns;
        for (int64_t i = me.block() * me.threads() + me.thread(); i < all; i += me.blocks() * me.threads()) {
            const int64_t m = i / p.columns, row = i % p.columns / p.parts, part = i % p.parts;
            p.z[m * p.z_step + row * p.z_row + part] = p.b[m * p.b_step + row * p.b_row + part];
        }
    }
};

// Of one that goes in one pass and has transitions.
template <class T>
linear::sizes sizes_of(const dpcri_device_linear &c) {
    const int k = (int)dpcri_device_linear_mixes(&c);
    linear::problem<T> p = problem_of<T>(c, k);
    return k <= 8 ? linear::widths<T, 1, 8>::plan(k, &p) : linear::widths<T, 9, 16>::plan(k, &p);
}

template <class T>
size_t workspace_of(const dpcri_device_linear &c) {
    if (c.structure == DPCR_ZERO) return 0;
    return dpcri_device_linear_large(&c) ? large::kinds<T>::workspace(c) : sizes_of<T>(c).bytes;
}

template <class T>
int fits_of(const dpcri_device_linear &c) {
    if (dpcri_device_linear_large(&c)) return large::kinds<T>::fits(c);
    return c.structure == DPCR_ZERO || sizes_of<T>(c).fits ? DPCRI_CUDA_OK : DPCRI_CUDA_UNSUPPORTED;
}

template <class T>
int run_chain(const dpcri_device_linear &c, void *workspace, void *stream) {
    if (dpcri_device_linear_large(&c)) return large::kinds<T>::run(c, workspace, stream);
    const int k = (int)dpcri_device_linear_mixes(&c);
    const linear::problem<T> p = problem_of<T>(c, k);
    int status = 0;
    if (c.structure == DPCR_ZERO) {
        const int64_t blocks = shapes::streaming_blocks(p.length * p.columns, copy<T>::most);
        status = simt::launch<copy<T>>({blocks, copy<T>::most, 0, false}, stream, p);
    } else {
        status = k <= 8 ? linear::widths<T, 1, 8>::run(k, p, workspace, stream)
                        : linear::widths<T, 9, 16>::run(k, p, workspace, stream);
    }
    return status < 0 ? DPCRI_CUDA_UNSUPPORTED : status;
}

// Of what multiplies on chip a step and column takes less than 64 (K^2 + K) bytes of workspace.
bool fits(const dpcri_device_linear &c, int64_t k) {
    int64_t columns = 0, steps = 0, bytes = 0;
    return !__builtin_mul_overflow(c.rows, c.w / k, &columns) && !__builtin_mul_overflow(columns, c.length, &steps) &&
           !__builtin_mul_overflow(steps, 64 * (k * k + k), &bytes);
}

int check(const dpcri_device_linear &c) {
    if (c.length < 0 || c.rows < 0 || c.w < 1 || c.chunk < 0 || c.entries < 0) return DPCRI_CUDA_ARGUMENT;
    if (c.dtype != DPCR_F32 && c.dtype != DPCR_F64 && c.dtype != DPCR_U32) return DPCRI_CUDA_UNSUPPORTED;
    const int64_t k = dpcri_device_linear_mixes(&c);
    if (dpcri_device_linear_refusal(&c) || k < 1 || c.w % k != 0) return DPCRI_CUDA_UNSUPPORTED;
    if (k > widest) return DPCRI_CUDA_WIDTH;
    return dpcri_device_linear_large(&c) || fits(c, k) ? DPCRI_CUDA_OK : DPCRI_CUDA_SIZE;
}

}  // namespace

int dpcri_cuda_chain_fits(dpcri_device_linear c) {
    const int status = check(c);
    if (status != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0) return status;
    return c.dtype == DPCR_F32 ? fits_of<float>(c) : c.dtype == DPCR_F64 ? fits_of<double>(c) : fits_of<uint32_t>(c);
}

size_t dpcri_cuda_chain_workspace(dpcri_device_linear c) {
    if (check(c) != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0) return 0;
    return c.dtype == DPCR_F32   ? workspace_of<float>(c)
           : c.dtype == DPCR_F64 ? workspace_of<double>(c)
                                 : workspace_of<uint32_t>(c);
}

int dpcri_cuda_chain_run(dpcri_device_linear c, void *workspace, size_t bytes, void *stream) {
    const int status = check(c);
    if (status != DPCRI_CUDA_OK) return status;
    if (c.length == 0 || c.rows == 0) return DPCRI_CUDA_OK;
    const bool has_a = c.structure != DPCR_ZERO && c.structure != DPCR_IDENTITY;
    const bool csr = c.structure == DPCR_CSR, empty = csr && c.entries == 0;
    if (!c.b || !c.z || (has_a && !c.a && !empty)) return DPCRI_CUDA_ARGUMENT;
    if (csr && (!c.offsets || (!c.columns && !empty))) return DPCRI_CUDA_ARGUMENT;
    const size_t wanted = dpcri_cuda_chain_workspace(c);
    if (bytes < wanted) return DPCRI_CUDA_WORKSPACE;
    if (wanted > 0 && !workspace) return DPCRI_CUDA_ARGUMENT;
    return c.dtype == DPCR_F32   ? run_chain<float>(c, workspace, stream)
           : c.dtype == DPCR_F64 ? run_chain<double>(c, workspace, stream)
                                 : run_chain<uint32_t>(c, workspace, stream);
}

namespace {

// Width of the columns of a cell; dense ones of any other, normalised ones and two-layer branches go by layers.h.
int column_of(const dpcri_device_cell &c) { return c.diagonal ? 1 : (int)c.w; }
bool wide(const dpcri_device_cell &c) {
    return c.gamma || c.hidden > 0 || (!c.diagonal && c.w != 1 && c.w != 2 && c.w != 4);
}

// Of what a solve keeps a number of the states takes less than 64 bytes in all.
bool fits(const dpcri_device_cell &c) {
    const int64_t states = c.hidden > c.w ? c.hidden : c.w;
    int64_t rows = 0, numbers = 0, bytes = 0;
    return !__builtin_mul_overflow(c.length, c.rows, &rows) && !__builtin_mul_overflow(rows, states, &numbers) &&
           !__builtin_mul_overflow(numbers, 64, &bytes);
}

int check(const dpcri_device_cell &c) {
    if (c.length < 0 || c.rows < 0 || c.w < 1 || c.hidden < 0 || c.chunk < 0 || c.warm_up < 0 || c.max_sweeps < 0)
        return DPCRI_CUDA_ARGUMENT;
    if (!(c.atol >= 0) || !(c.rtol >= 0)) return DPCRI_CUDA_ARGUMENT;
    if (dpcri_device_cell_refusal(&c)) return DPCRI_CUDA_UNSUPPORTED;
    if (wide(c) && (c.w > widest || c.hidden > widest)) return DPCRI_CUDA_WIDTH;
    return fits(c) ? DPCRI_CUDA_OK : DPCRI_CUDA_SIZE;
}

template <class T>
size_t workspace_of(const dpcri_device_cell &c) {
    if (wide(c)) return layers::kinds<T>::workspace(c);
    if (!c.backward) return cells::widths<T>::workspace(c, column_of(c));
    const size_t own = cells::backward_widths<T>::workspace(c, column_of(c));
    return c.gradients ? cells::pages(own) + layers::kinds<T>::gradients_workspace(c) : own;
}

template <class T>
int run_cell(const dpcri_device_cell &c, void *workspace, void *stream) {
    if (wide(c)) return layers::kinds<T>::run(c, workspace, stream);
    if (!c.backward) return cells::widths<T>::run(c, column_of(c), workspace, stream);
    const int status = cells::backward_widths<T>::run(c, column_of(c), workspace, stream);
    if (status != 0 || !c.gradients) return status;
    const size_t own = cells::pages(cells::backward_widths<T>::workspace(c, column_of(c)));
    return layers::kinds<T>::run_gradients(c, static_cast<unsigned char *>(workspace) + own, stream);
}

}  // namespace

size_t dpcri_cuda_cell_workspace(dpcri_device_cell c) {
    if (check(c) != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0) return 0;
    return c.dtype == DPCR_F32 ? workspace_of<float>(c) : workspace_of<double>(c);
}

int dpcri_cuda_cell_fits(dpcri_device_cell c) {
    const int status = check(c);
    if (status != DPCRI_CUDA_OK || !wide(c) || c.length == 0 || c.rows == 0) return status;
    const int fits = c.dtype == DPCR_F32 ? layers::kinds<float>::fits(c) : layers::kinds<double>::fits(c);
    return fits == -1 ? DPCRI_CUDA_UNSUPPORTED : fits;  // layers_run.h's: no cooperative launch
}

int dpcri_cuda_cell_share(dpcri_device_cell c, int64_t *blocks, int *whole) {
    *blocks = *whole = 0;
    if (check(c) != DPCRI_CUDA_OK || !wide(c) || c.length == 0 || c.rows == 0) return DPCRI_CUDA_OK;
    if (!c.backward && c.way != DPCRI_DEVICE_LOOP) return DPCRI_CUDA_OK;
    return c.dtype == DPCR_F32 ? layers::kinds<float>::share(c, blocks, whole)
                               : layers::kinds<double>::share(c, blocks, whole);
}

dpcri_cuda_together dpcri_cuda_cell_together(dpcri_device_cell c) {
    const bool newton = c.way == DPCRI_DEVICE_NEWTON && !c.backward;
    if (check(c) != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0 || !newton || wide(c)) return {0, 0};
    return c.dtype == DPCR_F32 ? cells::widths<float>::together(c, column_of(c))
                               : cells::widths<double>::together(c, column_of(c));
}

int dpcri_cuda_cell_run(dpcri_device_cell c, void *workspace, size_t bytes, void *stream) {
    const int status = check(c);
    if (status != DPCRI_CUDA_OK) return status;
    if (c.length == 0 || c.rows == 0) return DPCRI_CUDA_OK;
    if (!c.weight || !c.x || !c.z || (c.backward && (!c.direct || !c.adjoint)) || !c.gamma != !c.beta ||
        (c.hidden > 0 && (!c.weight2 || !c.x2)))
        return DPCRI_CUDA_ARGUMENT;
    const size_t wanted = dpcri_cuda_cell_workspace(c);
    if (bytes < wanted) return DPCRI_CUDA_WORKSPACE;
    if (wanted > 0 && !workspace) return DPCRI_CUDA_ARGUMENT;
    const int ran =
        c.dtype == DPCR_F32 ? run_cell<float>(c, workspace, stream) : run_cell<double>(c, workspace, stream);
    return ran == -1 ? DPCRI_CUDA_UNSUPPORTED : ran;  // cells_run.h's: no cooperative launch
}

namespace {

struct barriers {
    typedef int64_t arguments;
    static constexpr int most = 256;
    SIMT static void run(simt::lane &me, const arguments &count) {
        for (int64_t n = 0; n < count; n++) me.grid_barrier();
    }
};

}  // namespace

int dpcri_cuda_barriers_run(int64_t count, void *stream) {
    int64_t room = 0;
    const int status = simt::room_of_block(&room);
    if (status != 0) return status;
    const int64_t blocks = simt::cooperative_blocks<barriers>(barriers::most, room);  // one has all of the room
    if (blocks < 1) return DPCRI_CUDA_UNSUPPORTED;
    return simt::launch<barriers>({blocks, barriers::most, room, true}, stream, count);
}

namespace {

int check(const dpcri_device_recurrent &c) {
    if (c.length < 0 || c.rows < 0 || c.inputs < 1 || c.hidden < 1 || c.chunk < 0 || c.warm_up < 0 || c.max_sweeps < 0)
        return DPCRI_CUDA_ARGUMENT;
    if (!(c.atol >= 0) || !(c.rtol >= 0)) return DPCRI_CUDA_ARGUMENT;
    if (c.dtype != DPCR_F32 && c.dtype != DPCR_F64) return DPCRI_CUDA_UNSUPPORTED;
    if (c.gates < DPCRI_DEVICE_RNN_TANH || c.gates > DPCRI_DEVICE_MINGRU) return DPCRI_CUDA_UNSUPPORTED;
    if (((c.coupled || c.peepholes) && c.gates != DPCRI_DEVICE_LSTM) || (c.reset_before && c.gates != DPCRI_DEVICE_GRU))
        return DPCRI_CUDA_UNSUPPORTED;
    if (!(c.clip >= 0) || (c.clip > 0 && c.gates > DPCRI_DEVICE_LSTM)) return DPCRI_CUDA_UNSUPPORTED;
    if (c.projected && (c.gates != DPCRI_DEVICE_LSTM || c.projected < 0)) return DPCRI_CUDA_UNSUPPORTED;
    return dpcri_device_recurrent_refusal(&c) ? DPCRI_CUDA_UNSUPPORTED : DPCRI_CUDA_OK;
}

}  // namespace

namespace {

template <class T>
size_t workspace_of(const dpcri_device_recurrent &c) {
    if (gates::apart(c))
        return c.backward ? gates::para_back_kinds<T>::workspace(c) : gates::para_kinds<T>::workspace(c);
    return c.backward ? gates::back_kinds<T>::workspace(c) : gates::kinds<T>::workspace(c);
}

template <class T>
int run_layer(const dpcri_device_recurrent &c, void *workspace, void *stream) {
    if (gates::apart(c))
        return c.backward ? gates::para_back_kinds<T>::run(c, workspace, stream)
                          : gates::para_kinds<T>::run(c, workspace, stream);
    return c.backward ? gates::back_kinds<T>::run(c, workspace, stream) : gates::kinds<T>::run(c, workspace, stream);
}

}  // namespace

size_t dpcri_cuda_recurrent_workspace(dpcri_device_recurrent c) {
    if (check(c) != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0) return 0;
    return c.dtype == DPCR_F32 ? workspace_of<float>(c) : workspace_of<double>(c);
}

namespace {

// A layer by newton: cells whose units do not mix, or a narrow RNN, which goes by the cells' kernels; a wide one's
// windows do not hang on the device.
template <class T>
dpcri_cuda_together together_of(const dpcri_device_recurrent &c) {
    if (!gates::apart(c) && !gates::narrow(c)) return {0, 0};
    return gates::apart(c) ? gates::para_kinds<T>::together(c)
                           : cells::widths<T>::together(gates::cell_of<T>(c, nullptr), (int)c.hidden);
}

}  // namespace

dpcri_cuda_together dpcri_cuda_recurrent_together(dpcri_device_recurrent c) {
    const bool newton = c.way == DPCRI_DEVICE_NEWTON && !c.backward;
    if (check(c) != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0 || !newton) return {0, 0};
    return c.dtype == DPCR_F32 ? together_of<float>(c) : together_of<double>(c);
}

int dpcri_cuda_recurrent_share(dpcri_device_recurrent c, int64_t *blocks) {
    *blocks = 0;
    if (check(c) != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0 || gates::apart(c)) return DPCRI_CUDA_OK;
    if (c.backward)
        return c.dtype == DPCR_F32 ? gates::back_kinds<float>::share(c, blocks)
                                   : gates::back_kinds<double>::share(c, blocks);
    return c.dtype == DPCR_F32 ? gates::kinds<float>::share(c, blocks) : gates::kinds<double>::share(c, blocks);
}

int dpcri_cuda_recurrent_fits(dpcri_device_recurrent c) {
    const int status = check(c);
    if (status != DPCRI_CUDA_OK || c.length == 0 || c.rows == 0 || gates::apart(c) || c.backward) return status;
    const int fits = c.dtype == DPCR_F32 ? gates::kinds<float>::fits(c) : gates::kinds<double>::fits(c);
    return fits == -1 ? DPCRI_CUDA_UNSUPPORTED : fits;
}

int dpcri_cuda_recurrent_run(dpcri_device_recurrent c, void *workspace, size_t bytes, void *stream) {
    const int status = check(c);
    if (status != DPCRI_CUDA_OK) return status;
    if (c.length == 0 || c.rows == 0) return DPCRI_CUDA_OK;
    if (!c.w_ih || !c.x || !c.y || (c.packed && !c.lengths) || (c.parted && !c.resets) || !workspace)
        return DPCRI_CUDA_ARGUMENT;
    if (!c.w_hh && c.gates != DPCRI_DEVICE_MINGRU) return DPCRI_CUDA_ARGUMENT;
    if (!c.peephole && (c.gates == DPCRI_DEVICE_PARALSTM || c.peepholes)) return DPCRI_CUDA_ARGUMENT;
    const bool cell = c.gates == DPCRI_DEVICE_LSTM || c.gates == DPCRI_DEVICE_PARALSTM;
    if (c.backward && cell && !c.kept) return DPCRI_CUDA_ARGUMENT;
    const int64_t step = c.y_step < 0 ? -c.y_step : c.y_step;
    if (c.projected && (!c.w_hr || (c.length > 1 && step != c.rows * c.y_row))) return DPCRI_CUDA_ARGUMENT;
    if (bytes < dpcri_cuda_recurrent_workspace(c)) return DPCRI_CUDA_WORKSPACE;
    const int ran =
        c.dtype == DPCR_F32 ? run_layer<float>(c, workspace, stream) : run_layer<double>(c, workspace, stream);
    return ran == -1 ? DPCRI_CUDA_UNSUPPORTED : ran;
}
