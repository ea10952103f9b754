// SPDX-License-Identifier: MIT
// The launchers of src/kern/cuda/launch.h on the CPU, with the kernels as a device gets them, against src/chain's loop:
// structures, widths, types, both directions, shared transitions, in place; refusals; workspaces that end where they
// say.
#include "kern/cuda/linear.h"
#include "kern/cuda/linear_stream_run.h"
#include "launch_case.h"

namespace {

const kind kinds[] = {
    {DPCR_ZERO, 3, 0},   {DPCR_IDENTITY, 5, 0}, {DPCR_SCALAR, 4, 0}, {DPCR_DIAGONAL, 1, 0}, {DPCR_DIAGONAL, 9, 0},
    {DPCR_BLOCK, 6, 1},  {DPCR_BLOCK, 8, 2},    {DPCR_BLOCK, 6, 3},  {DPCR_BLOCK, 8, 4},    {DPCR_DENSE, 1, 0},
    {DPCR_DENSE, 2, 0},  {DPCR_DENSE, 3, 0},    {DPCR_DENSE, 4, 0},  {DPCR_DENSE, 5, 0},    {DPCR_DENSE, 6, 0},
    {DPCR_DENSE, 7, 0},  {DPCR_DENSE, 8, 0},    {DPCR_DENSE, 9, 0},  {DPCR_DENSE, 10, 0},   {DPCR_DENSE, 11, 0},
    {DPCR_DENSE, 12, 0}, {DPCR_DENSE, 13, 0},   {DPCR_DENSE, 14, 0}, {DPCR_DENSE, 15, 0},   {DPCR_DENSE, 16, 0},
};

// Steps of a tile of that structure, as the kernels have them: borders lie at its multiples.
template <class T>
int64_t tile_of_type(int64_t w) {
    namespace stream = linear::stream;
    return w == 1   ? stream::usual<T, 1>::node * stream::radix / 4  // of four columns
           : w == 2 ? stream::usual<T, 2>::node * stream::radix / 4
           : w <= 4 ? linear::usual<T, 4>::steps
           : w <= 8 ? linear::usual<T, 8>::steps
                    : linear::usual<T, 16>::steps;
}

int64_t tile_of(const kind &k, dpcr_dtype dtype) {
    const int64_t w = k.structure == DPCR_DENSE ? k.width : k.structure == DPCR_BLOCK ? k.block : 1;
    return dtype == DPCR_F64 ? tile_of_type<double>(w) : tile_of_type<float>(w);
}

void every_structure_is_the_loop(void **) {
    uint64_t seed = 0;
    for (const kind &k : kinds)
        for (const dpcr_dtype dtype : {DPCR_U32, DPCR_F32, DPCR_F64})
            for (const int64_t length : {int64_t(1), tile_of(k, dtype) - 1, 2 * tile_of(k, dtype) + 3}) {
                const bool transposed = seed % 2 == 0;
                fixture f(k, dtype, length, 1 + (int64_t)(seed % 3), transposed, seed % 5 == 4, seed % 7 == 6,
                          seed % 4 > 1);
                f.solve(seed % 3 == 0, seed);
                f.assert_loop();
                seed++;
            }
}

void nodes_of_nodes_are_the_loop(void **) {
    // R tiles and more: a node's summary, and what stands beyond it.
    const struct {
        kind k;
        int64_t length;
    } cases[] = {{{DPCR_DENSE, 9, 0}, 32 * 8 * 8 + 40},
                 {{DPCR_DENSE, 5, 0}, 64 * 16 + 70},
                 {{DPCR_BLOCK, 2, 2}, linear::stream::usual<uint32_t, 2>::node * 32 * 33 + 300},
                 {{DPCR_DIAGONAL, 16, 0}, linear::stream::usual<uint32_t, 1>::node * 33 + 30}};
    for (const auto &c : cases)
        for (const bool transposed : {false, true}) {
            fixture f(c.k, DPCR_U32, c.length, 1, transposed, false, false, true);
            f.solve(false, (uint64_t)c.length + transposed);
            f.assert_loop();
        }
}

void what_cannot_be_is_refused(void **) {
    fixture f({DPCR_DENSE, 4, 0}, DPCR_F32, 300, 2, false, false, false, true);
    const dpcri_device_linear good = f.arguments(false);
    const size_t bytes = dpcri_cuda_chain_workspace(good);
    std::vector<unsigned char> workspace(bytes);
    const auto run = [&](dpcri_device_linear c, size_t n) {
        return dpcri_cuda_chain_run(c, workspace.data(), n, nullptr);
    };
    assert_int_equal(run(good, bytes), DPCRI_CUDA_OK);
    assert_int_equal(run(good, bytes - 1), DPCRI_CUDA_WORKSPACE);
    dpcri_device_linear c = good;
    c.length = -1;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_ARGUMENT);
    c = good, c.a = nullptr;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_ARGUMENT);
    c = good, c.z = nullptr;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_ARGUMENT);
    c = good, c.in_order = 1;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_UNSUPPORTED);
    assert_int_equal(dpcri_cuda_chain_workspace(c), 0);
    c = good, c.chunk = -1;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_ARGUMENT);
    c = good, c.structure = DPCR_CSR;  // without a pattern
    assert_int_equal(run(c, SIZE_MAX), DPCRI_CUDA_ARGUMENT);
    c = good, c.structure = DPCR_STRUCTURE_COUNT;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_UNSUPPORTED);
    c = good, c.structure = DPCR_BLOCK, c.block = 3;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_UNSUPPORTED);
    c = good, c.dtype = (dpcr_dtype)0;
    assert_int_equal(run(c, bytes), DPCRI_CUDA_UNSUPPORTED);
    // A workspace that no number holds.
    c = good, c.length = 1, c.rows = INT64_MAX / 256;
    assert_int_equal(dpcri_cuda_chain_fits(c), DPCRI_CUDA_SIZE);
    assert_int_equal(run(c, SIZE_MAX), DPCRI_CUDA_SIZE);
    // More columns, or tiles, than a launch has are refused before there is a workspace, as they are with one.
    c = good, c.structure = DPCR_DIAGONAL, c.w = 1, c.length = 1;
    const struct {
        int64_t room, most, more;
    } launches[] = {{227 << 10, (INT64_C(1) << 32) - 64, INT64_C(1) << 32},  // by linear_stream.h, and by linear.h
                    {64 << 10, INT64_C(1) << 32, INT64_C(1) << 36}};
    for (const auto &l : launches) {
        const device other(8, l.room);
        c.rows = l.most;
        assert_int_equal(dpcri_cuda_chain_fits(c), DPCRI_CUDA_OK);
        c.rows = l.more;
        assert_int_equal(dpcri_cuda_chain_fits(c), DPCRI_CUDA_UNSUPPORTED);
        assert_int_equal(run(c, SIZE_MAX), DPCRI_CUDA_UNSUPPORTED);
    }
    c = good, c.length = 0;
    assert_int_equal(run(c, 0), DPCRI_CUDA_OK);
    c = good, c.rows = 0;
    assert_int_equal(run(c, 0), DPCRI_CUDA_OK);
}

// One that lanes do not all reach would stop the simulator.
void barriers_of_all_blocks(void **) {
    for (const int64_t count : {0, 1, 5}) {
        order((uint64_t)count, 2);
        assert_int_equal(dpcri_cuda_barriers_run(count, nullptr), DPCRI_CUDA_OK);
    }
    const int together = simt::host::config.cooperative_blocks;
    simt::host::config.cooperative_blocks = 0;
    assert_int_equal(dpcri_cuda_barriers_run(1, nullptr), DPCRI_CUDA_UNSUPPORTED);
    simt::host::config.cooperative_blocks = together;
    simt::host::config.room_error = 46;
    assert_int_equal(dpcri_cuda_barriers_run(1, nullptr), 46);
    simt::host::config.room_error = 0;
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_structure_is_the_loop),
        cmocka_unit_test(nodes_of_nodes_are_the_loop),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(barriers_of_all_blocks),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
