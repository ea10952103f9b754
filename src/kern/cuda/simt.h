// SPDX-License-Identifier: MIT
// The only way of our kernels to a device: who a lane is, shared memory, collectives, flags between blocks, copies that
// go on by themselves. Compiled by nvcc it is the device (simt_device.h); compiled by any C++17 compiler it is a
// simulator on the CPU (simt_host.h) that runs the same source, lanes as fibers in an order made to hurt, and stops at
// what a device would not forgive.
//
// A kernel is a type:
//
//     struct kernel {
//         typedef ... arguments;                  // plain data, passed by value
//         static constexpr int most = 256;        // threads of a block at most
//         static constexpr int together = 4;      // may be left out: blocks of a multiprocessor to make room for
//         SIMT static void run(simt::lane &me, const arguments &a);
//     };
//     int status = simt::launch<kernel>({blocks, threads, shared_bytes, cooperative}, stream, arguments);
//
// clang-format off
// lane:
//     thread() threads() block() blocks() in_warp() warp()
//     opaque(x)                     x, of which the compiler knows nothing: what is made of it is not kept from one turn
//                                   of a loop to the next
//     array<T>(byte, count)         count T of the block's shared memory from that byte on. What it holds at the start
//                                   is anything. Between one lane's set and another's get or set stands a barrier.
//                                   get(i) set(i, v); get<N>(i) set(i, pack): N numbers from i on, a pack, from a place
//                                   of its alignment on
//     load<N>(p) store(p, pack)     the same of global memory
//     barrier()                     of the block: every lane, at the same line
//     warp_barrier()                of the warp: every lane of it, at the same line; orders shared memory within it
//     shuffle(v, from) shuffle_up(v, n) shuffle_down(v, n) shuffle_xor(v, n) any(condition)
//     first(condition)              the warp's, full masks only; they order no memory. first: the first lane where it is
//                                   so, 32 where it is nowhere
//     ticket(counter)               one number for each that asks, ascending from what the counter held
//     raise(number, v)              number = max(number, v), whoever is first
//     publish(flag, v)              what this lane wrote, and what others wrote before the last barrier that it shared
//                                   with them, is seen by who finds v there with
//     acquire(flag)                 and by the lanes that then meet that one at a barrier
//     await(flag, v)                acquire until it gives v
//     release(flag, v)              as publish, by the store's own order alone
//     post(p, word)                 for who looks for it: it is seen whole, in no order with anything else
//     look(p)                       two words as they are by now
//     look_again()                  before a lane looks anew for what was not there
//     peer_load(p) peer_store(p, v) numbers, and packs, that other blocks write or read in the same launch
//     stream_load<N>(p) stream_store(p, v)
//                                   the same, and what is moved leaves caches before other things
//     grid_barrier()                all lanes of all blocks; of cooperative launches alone. What was written before it
//                                   is seen behind it, by plain loads and copies too
//     copy_async(array, i, p)       array[i] = *p, some time before copy_wait() of this lane returns; until then nobody
//                                   may touch array[i], and others not before a barrier after that
//     copy_async_wide(array, i, p)  the same of 16 bytes of numbers; both places lie on a multiple of 16
//     copy_close()                  what was asked for since the last close is a group
//     copy_wait_but(n)              all groups but the n last (0 to 7) have landed
//
// clang-format on
// Blocks start in any order, and only some of them at a time: one that waits for another must hold a later ticket.
#ifndef DPCRI_CUDA_SIMT_H
#define DPCRI_CUDA_SIMT_H

#include <cstddef>
#include <cstdint>

namespace simt {

constexpr int warp_size = 32;

// Numbers in 16 bytes: as many as one access takes.
template <class T>
constexpr int wide = 16 / (int)sizeof(T);

struct shape {
    int64_t blocks;
    int threads;  // of a block: a multiple of warp_size
    int64_t shared_bytes;
    bool cooperative;
};

// N numbers that go to and from memory together, 16 bytes at a time; an element of shared arrays too.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack {
    T at[N];
};

}  // namespace simt

#if defined(__CUDACC__)
#include "kern/cuda/simt_device.h"
#else
#include "kern/cuda/simt_host.h"
#endif

#endif
