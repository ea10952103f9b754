// SPDX-License-Identifier: MIT
// A linear chain by the launchers of src/kern/cuda/launch.h, over the simulator, against src/chain's loop.
#ifndef TESTS_CUDA_LAUNCH_CASE_H
#define TESTS_CUDA_LAUNCH_CASE_H

#include "cuda_testing.h"
#include "deeppcr/deeppcr.h"
#include "kern/cuda/launch.h"

namespace {

dpcr_context *context;

struct kind {
    dpcr_structure structure;
    int64_t width, block;
};

struct fixture {
    dpcr_transition t;
    dpcr_dtype dtype;
    int64_t length, batch, values;
    bool transposed, shared_steps, shared_rows;
    bool in_order = false;
    int64_t chunk = 0;
    std::vector<uint64_t> a, b, z0, z, want;  // room for any type, aligned for all
    dpcr_array va, vb, v0, vz;

    // Small signed integers and transitions of few ones keep floating point exact, so every fold gives the loop's bits.
    void number(void *base, int64_t i, bool transition) {
        const int value = transition ? (int)(random_bits() % 3) - 1 : (int)(random_bits() % 7) - 3;
        if (dtype == DPCR_F32)
            static_cast<float *>(base)[i] = (float)value;
        else if (dtype == DPCR_F64)
            static_cast<double *>(base)[i] = value;
        else
            static_cast<uint32_t *>(base)[i] = (uint32_t)random_bits();
    }

    // A signed permutation: what floating point does exactly, however it is folded.
    void permutation(int64_t at) {
        const int64_t k = t.structure == DPCR_DENSE ? t.rows : t.structure == DPCR_BLOCK ? t.block : 1;
        for (int64_t i = 0; i < values; i++) {
            const int64_t row = i / k % k, column = i % k;
            const bool one = k == 1 || (row + 1 + at) % k == column;
            const int sign = random_bits() & 1 ? 1 : -1;
            if (dtype == DPCR_F32)
                reinterpret_cast<float *>(a.data())[at + i] = (float)(one ? sign : 0);
            else if (dtype == DPCR_F64)
                reinterpret_cast<double *>(a.data())[at + i] = one ? sign : 0;
            else
                number(a.data(), at + i, true);
        }
    }

    fixture(kind k, dpcr_dtype d, int64_t l, int64_t rows, bool back, bool share_steps, bool share_rows, bool start)
        : t(dpcr_transition_square(k.structure, k.width, k.block)),
          dtype(d),
          length(l),
          batch(rows),
          values(dpcr_transition_values(&t)),
          transposed(back),
          shared_steps(share_steps),
          shared_rows(share_rows) {
        const int64_t w = t.rows, steps = share_steps ? 1 : l, sequences = share_rows ? 1 : rows;
        const auto room = [&](int64_t n) { return (size_t)((n * (int64_t)dpcr_dtype_size(d) + 7) / 8); };
        a.resize(room(steps * sequences * values));
        b.resize(room(l * rows * w));
        z.resize(b.size());
        want.resize(b.size());
        for (int64_t i = 0; i < steps * sequences; i++) permutation(i * values);
        for (int64_t i = 0; i < l * rows * w; i++) number(b.data(), i, false);
        const int64_t as[] = {steps, sequences, values}, zs[] = {l, rows, w}, starts[] = {rows, w};
        va = dpcr_array_make(a.data(), d, 3, as);
        vb = dpcr_array_make(b.data(), d, 3, zs);
        vz = dpcr_array_make(want.data(), d, 3, zs);
        if (start && !back) {
            z0.resize(room(rows * w));
            for (int64_t i = 0; i < rows * w; i++) number(z0.data(), i, false);
            v0 = dpcr_array_make(z0.data(), d, 2, starts);
        }
    }

    void by_loop() {
        dpcr_chain_shape shape = {};
        shape.size = sizeof shape;
        shape.length = length;
        shape.batch = batch;
        shape.transition = t;
        shape.dtype = dtype;
        shape.transposed = transposed;
        dpcr_chain_options options = {};
        options.size = sizeof options;
        options.scheme = DPCR_SCHEME_SEQUENTIAL;
        dpcr_chain_plan *plan = nullptr;
        dpcr_error error = {};
        if (dpcr_chain_plan_create(context, &shape, &options, &plan, &error) != DPCR_OK) fail_msg("%s", error.text);
        const bool has_a = values > 0;
        if (dpcr_chain_execute(plan, has_a ? &va : nullptr, &vb, z0.empty() ? nullptr : &v0, &vz, nullptr, 0, nullptr,
                               &error) != DPCR_OK)
            fail_msg("%s", error.text);
        dpcr_chain_plan_destroy(plan);
    }

    dpcri_device_linear arguments(bool in_place) {
        const int64_t w = t.rows, state = batch * w;
        const int64_t rows = shared_rows ? 1 : batch;
        dpcri_device_linear c = {};
        c.dtype = dtype;
        c.structure = t.structure;
        c.transposed = transposed;
        c.length = length;
        c.rows = batch;
        c.w = w;
        c.block = t.block;
        c.in_order = in_order;
        c.chunk = chunk;
        c.a_step = shared_steps ? 0 : rows * values;
        c.a_row = shared_rows ? 0 : values;
        c.b_row = c.z_row = c.z0_row = w;
        c.b_step = c.z_step = state;
        unsigned char *pa = reinterpret_cast<unsigned char *>(a.data()),
                      *pb = reinterpret_cast<unsigned char *>(b.data()),
                      *pz = reinterpret_cast<unsigned char *>(z.data());
        if (in_place) std::memcpy(pz, pb, b.size() * 8), pb = pz;
        c.a = values > 0 ? pa : nullptr;
        c.b = pb;
        c.z = pz;
        c.z0 = z0.empty() ? nullptr : z0.data();
        return c;
    }

    void solve(bool in_place, uint64_t seed) {
        std::memset(z.data(), 0xff, z.size() * 8);
        const dpcri_device_linear c = arguments(in_place);
        std::vector<unsigned char> workspace(dpcri_cuda_chain_workspace(c), 0xff);
        order(seed, 1 + (int)(seed % 5));
        const int status = dpcri_cuda_chain_run(c, workspace.data(), workspace.size(), nullptr);
        if (status != DPCRI_CUDA_OK) fail_msg("status %d", status);
    }

    void assert_loop() {
        by_loop();
        for (int64_t i = 0; i < length * batch * t.rows; i++) {
            const bool same =
                dtype == DPCR_F32 ? reinterpret_cast<float *>(z.data())[i] == reinterpret_cast<float *>(want.data())[i]
                : dtype == DPCR_F64
                    ? reinterpret_cast<double *>(z.data())[i] == reinterpret_cast<double *>(want.data())[i]
                    : reinterpret_cast<uint32_t *>(z.data())[i] == reinterpret_cast<uint32_t *>(want.data())[i];
            if (!same)
                fail_msg("%s %s w %d k %d L %d B %d%s%s%s: number %d", dpcr_structure_name(t.structure),
                         dpcr_dtype_name(dtype), (int)t.rows, (int)t.block, (int)length, (int)batch,
                         transposed ? " transposed" : "", shared_steps ? " shared steps" : "",
                         shared_rows ? " shared rows" : "", (int)i);
        }
    }
};

inline int open_context(void **) {
    dpcr_context_options options = {};
    options.size = sizeof options;
    options.threads = 1;
    return dpcr_context_create(&options, &context, nullptr) == DPCR_OK ? 0 : 1;
}

inline int close_context(void **) {
    dpcr_context_destroy(context);
    return 0;
}

}  // namespace

#endif
