// SPDX-License-Identifier: MIT
// Batches on a device, of images that lie there as bytes: the order of an epoch, and a batch's rows, normalised.
//
// The order is train/batches.c's: for i ascending, order[i] and order[j] change places, j = i + a number below count -
// i of the counter-based generator (base/random.h), which anybody can make by itself. Swaps that share no place may go
// at once, so one block takes a window of swaps and goes in rounds: each that is left marks its two places, the
// earliest one's mark stays, and who finds both of its own marked by itself swaps. What is later waits for what is
// earlier wherever they meet, so the permutation is the loop's, whoever is first. Source: Shun, Gu, Blelloch, Fineman,
// Gibbons, "Sequential random permutation, list contraction and tree contraction are highly parallel", SODA 2015:
// O(log n) rounds. Work 3 count numbers; 4 bytes a place for the marks.
#ifndef DPCRI_CUDA_BATCHES_H
#define DPCRI_CUDA_BATCHES_H

#include "kern/cuda/launch.h"
#include "kern/cuda/random.h"

namespace batches {

struct shuffle {
    typedef dpcri_device_shuffle arguments;
    static constexpr int threads = 256, most = threads, Q = 4, warps = threads / simt::warp_size;
    static constexpr int64_t window = Q * threads;

    // Marks are 0 between rounds: the earlier a swap of the window, the higher its mark.
    SIMT static void round(simt::lane &me, const arguments &a, const int64_t (&from)[Q], const int64_t (&to)[Q],
                           const uint32_t (&mark)[Q], bool (&open)[Q]) {
        bool first[Q];
        SIMT_UNROLL for (int q = 0; q < Q; q++) if (open[q]) {
            me.raise(a.marks + from[q], mark[q]);
            me.raise(a.marks + to[q], mark[q]);
        }
        me.barrier();
        SIMT_UNROLL for (int q = 0; q < Q; q++) {
            first[q] =
                open[q] && me.peer_load(a.marks + from[q]) == mark[q] && me.peer_load(a.marks + to[q]) == mark[q];
            if (!first[q]) continue;
            const int64_t kept = a.order[from[q]];
            a.order[from[q]] = a.order[to[q]];
            a.order[to[q]] = kept;
        }
        me.barrier();  // all have looked
        SIMT_UNROLL for (int q = 0; q < Q; q++) if (open[q]) {
            me.peer_store(a.marks + from[q], 0u);
            me.peer_store(a.marks + to[q], 0u);
            open[q] = !first[q];
        }
    }

    SIMT static void run(simt::lane &me, const arguments &a) {
        const simt::shared<uint32_t> left = me.array<uint32_t>(0, warps);
        for (int64_t i = me.thread(); i < a.count; i += threads) a.order[i] = i;
        me.barrier();
        for (int64_t first = 0; first + 1 < a.count; first += window) {
            int64_t from[Q], to[Q];
            uint32_t mark[Q];
            bool open[Q];
            SIMT_UNROLL for (int q = 0; q < Q; q++) {
                const int64_t place = q * threads + me.thread();
                from[q] = first + place;
                open[q] = from[q] + 1 < a.count;
                mark[q] = (uint32_t)(window - place);
                to[q] = open[q] ? from[q] + (int64_t)generator::below(a.seed, a.stream, (uint64_t)from[q],
                                                                      (uint64_t)(a.count - from[q]))
                                : 0;
            }
            for (bool more = true; more;) {
                round(me, a, from, to, mark, open);
                bool some = false;
                SIMT_UNROLL for (int q = 0; q < Q; q++) some = some || open[q];
                const bool any = me.any(some);
                if (me.in_warp() == 0) left.set(me.warp(), any ? 1u : 0u);
                me.barrier();
                more = false;
                for (int w = 0; w < warps; w++) more = more || left.get(w) != 0;
            }
        }
    }
};

template <class T>
struct gather {
    typedef dpcri_device_gather arguments;
    static constexpr int threads = 256, most = threads;
    SIMT static void run(simt::lane &me, const arguments &a) {
        const T *table = static_cast<const T *>(a.table);
        T *x = static_cast<T *>(a.x);
        const int64_t count = a.rows * a.pixels, step = me.blocks() * threads;
        for (int64_t n = me.block() * threads + me.thread(); n < count; n += step) {
            const int64_t row = n / a.pixels, image = a.order ? a.order[a.first + row] : a.first + row;
            x[n] = table[a.images[image * a.pixels + n % a.pixels]];
            if (n % a.pixels == 0) a.y[row] = a.labels[image];
        }
    }
};

}  // namespace batches

#endif
