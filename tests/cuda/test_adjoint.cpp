// SPDX-License-Identifier: MIT
// The way back through narrow cells on the CPU: the adjoint loop, in higher precision, over every kind of cell and
// across borders of tiles; bit for bit what the linear kernel makes of Jacobians that were written out.
#include "cell_case.h"
#include "kern/cuda/linear.h"

namespace {

long double slope_of(int activation, long double y) {
    switch (activation) {
        case DPCRI_CUDA_IDENTITY: return 1;
        case DPCRI_CUDA_RELU: return y > 0 ? 1 : 0;
        case DPCRI_CUDA_TANH: return 1 - y * y;
        default: return y - y * y;
    }
}

// J_ij of step l, sequence r: by the states, with act(u) from the step itself where there is a residual.
template <class T>
long double jacobian(const cell_case<T> &c, int64_t l, int64_t r, int64_t i, int64_t j) {
    const int64_t w = c.width, size = c.diagonal ? w : w * w;
    const T *weight = &c.weight[(size_t)(c.own ? l * size : 0)];
    if (c.diagonal && i != j) return 0;
    long double y = c.z[(size_t)((l * c.batch + r) * w + i)];
    if (c.scale != 0) {
        const long double before = l > 0 ? c.z[(size_t)(((l - 1) * c.batch + r) * w + i)] : c.z0[(size_t)(r * w + i)];
        y = (y - before) / (long double)c.scale;
    }
    const long double d = slope_of(c.activation, y) * (c.diagonal ? weight[i] : weight[i * w + j]);
    return c.scale != 0 ? (long double)c.scale * d + (i == j) : d;
}

template <class T>
void matches(int64_t width, int64_t length, int64_t batch, bool diagonal, bool own, double scale, int activation,
             uint64_t seed) {
    cell_case<T> c(width, length, batch, diagonal, own, 0.9 / (double)(diagonal ? 1 : width), 1);
    c.scale = scale;
    c.activation = activation;
    (void)c.loop();
    const std::vector<T> states = c.z;
    std::vector<T> direct(states.size()), out(states.size(), T(NAN)), start(c.z0.size(), T(NAN));
    for (T &v : direct) v = (T)random_signed();
    dpcri_device_cell a = c.arguments(DPCRI_DEVICE_LOOP);
    a.backward = 1;
    c.z = states;
    const bool in_place = seed % 2 == 1;
    if (in_place) out = direct;
    a.direct = in_place ? out.data() : direct.data();
    a.adjoint = out.data();
    a.z0_adjoint = start.data();
    a.direct_step = a.adjoint_step = batch * width;
    a.direct_row = a.adjoint_row = a.z0_adjoint_row = width;
    std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(a), 0xff);
    order(seed, 1 + (int)(seed % 4));
    assert_int_equal(dpcri_cuda_cell_run(a, workspace.data(), workspace.size() - 1, nullptr), DPCRI_CUDA_WORKSPACE);
    assert_int_equal(dpcri_cuda_cell_run(a, workspace.data(), workspace.size(), nullptr), DPCRI_CUDA_OK);
    // From y - z_before, rounding of the states is divided by the scale.
    const double bound = (sizeof(T) == 4 ? 2e-5 : 1e-13) * (scale != 0 ? 20 / scale : 1);
    std::vector<long double> g((size_t)width), next((size_t)width);
    for (int64_t r = 0; r < batch; r++)
        for (int64_t l = length - 1; l >= -1; l--) {
            for (int64_t i = 0; i < width; i++) {
                long double sum = l >= 0 ? direct[(size_t)((l * batch + r) * width + i)] : 0;
                for (int64_t j = 0; j < width && l < length - 1; j++) sum += jacobian(c, l + 1, r, j, i) * g[(size_t)j];
                next[(size_t)i] = sum;
                const T got = l >= 0 ? out[(size_t)((l * batch + r) * width + i)] : start[(size_t)(r * width + i)];
                if (!(std::fabs((double)(got - sum)) <= bound * (1 + std::fabs((double)sum))))
                    fail_msg("width %d length %d scale %g activation %d: step %d: %g, not %g", (int)width, (int)length,
                             scale, activation, (int)l, (double)got, (double)sum);
            }
            g = next;
        }
}

void adjoint_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const int64_t width : {1, 2, 4, 5})
        for (const int64_t length : {1, 2, 127, 600})
            for (const double scale : {0.0, 0.25}) {
                if (length == 600 && width > 2) continue;
                const int activation = (int)(seed % 4);
                matches<float>(width, length, 1 + (int64_t)(seed % 2), width == 5, seed % 3 == 0, scale, activation,
                               seed);
                matches<double>(width, length, 1 + (int64_t)(seed % 3), width == 5, seed % 3 == 1, scale, activation,
                                seed + 1);
                seed++;
            }
    matches<float>(4, 300, 2, false, true, 0, DPCRI_CUDA_TANH, 5);
}

// Of width 4: chains of widths 1 and 2 whose numbers lie in memory have a kernel of their own (linear_stream.h).
void made_jacobians_are_the_written_ones(void **) {
    cell_case<float> c(4, 600, 3, false, true, 0.5, 1);
    (void)c.loop();
    const std::vector<float> states = c.z;
    std::vector<float> direct(states.size()), out(states.size()), want(states.size()), written(states.size() * 4);
    for (float &v : direct) v = (float)random_signed();
    dpcri_device_cell a = c.arguments(DPCRI_DEVICE_LOOP);
    a.backward = 1;
    c.z = states;
    a.direct = direct.data();
    a.adjoint = out.data();
    a.direct_step = a.adjoint_step = 12;
    a.direct_row = a.adjoint_row = 4;
    std::vector<unsigned char> workspace(dpcri_cuda_cell_workspace(a), 0xff);
    order(3, 3);
    assert_int_equal(dpcri_cuda_cell_run(a, workspace.data(), workspace.size(), nullptr), DPCRI_CUDA_OK);
    for (int64_t l = 0; l < 600; l++)
        for (int64_t r = 0; r < 3; r++)
            for (int64_t i = 0; i < 4; i++)
                for (int64_t j = 0; j < 4; j++) {
                    const float y = states[(size_t)((l * 3 + r) * 4 + i)];
                    written[(size_t)((l * 3 + r) * 16 + i * 4 + j)] =
                        simt::fma(-y, y, 1.0f) * c.weight[(size_t)(l * 16 + i * 4 + j)];
                }
    dpcri_device_linear b = {};
    b.dtype = DPCR_F32;
    b.structure = DPCR_DENSE;
    b.transposed = 1;
    b.length = 600, b.rows = 3, b.w = 4;
    b.a = written.data(), b.a_step = 48, b.a_row = 16;
    b.b = direct.data(), b.b_step = 12, b.b_row = 4;
    b.z = want.data(), b.z_step = 12, b.z_row = 4;
    std::vector<unsigned char> more(dpcri_cuda_chain_workspace(b), 0xff);
    order(4, 2);
    assert_int_equal(dpcri_cuda_chain_run(b, more.data(), more.size(), nullptr), DPCRI_CUDA_OK);
    assert_memory_equal(want.data(), out.data(), want.size() * sizeof(float));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(adjoint_is_the_loop),
        cmocka_unit_test(made_jacobians_are_the_written_ones),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
