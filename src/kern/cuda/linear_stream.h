// SPDX-License-Identifier: MIT
// Linear chains of widths 1 and 2 that lie in memory, one pass over it at its speed: z_m = A_m z_{m-1} + b_m.
//
// linear.h's fold over nodes at fixed places, with each number read once, into registers. What a step costs there is
// little; what has to be short is the time from a tile's loads to its stores, for on-chip memory over that time is the
// speed. A run is `items` steps of one column, a thread's. `teams` runs are a node of level 0, 32 nodes of a level one
// of the next. A tile is a block's work: 1, 2, 4 .. 32 columns of 32, 16 .. 1 nodes of level 0, so 32 teams threads.
//
//     load      each thread its run. Columns beside each other fill sectors of memory by themselves; fewer go through
//               shared memory, a warp's numbers at a time, so that neighbouring lanes read neighbouring numbers
//     reduce    the run, in order, to a summary (M, v): what it makes of a state, M z + v; the first warp makes the
//               nodes' of the runs' and announces them before it looks at others
//     look back the nodes to the left, of all levels together: wait, a flag a thread; read, and four nodes that lie
//               beside each other become a bundle; apply bundles and single nodes to z0, largest first. The last tile
//               of a node of a higher level makes that one of bundles too, before it waits for more
//     apply     the tile's nodes and runs to the left, then the run itself; store
//
// Only whole bundles and nodes are composed, each in one way; all else is applied to states in the order of steps. So
// bits are those of n, K, items and teams: not of who came first, nor of how many columns there are or a tile has.
//
// A tile waits for tiles of lower tickets only. Work a column and step: K^3 + 2 K^2, of which K^3 for K = 1 is one
// product. Memory: a, b and z once each, and (K^2 + K) / (items teams) numbers a step and column for nodes.
#ifndef DPCRI_CUDA_LINEAR_STREAM_H
#define DPCRI_CUDA_LINEAR_STREAM_H

#include "kern/cuda/linear.h"

namespace linear {

namespace stream {

constexpr int radix = 32, radix_log = 5;                     // nodes of a level in one of the next
constexpr int bundle = 4;                                    // nodes
constexpr int most_slots = radix / bundle - 1 + bundle - 1;  // bundles and single nodes to the left, of a level
constexpr int levels_at_most = 8;                            // 32^7 and more nodes would be more blocks than a grid has

template <int Items, int Teams>
struct geometry {
    static constexpr int items = Items, teams = Teams, node = Items * Teams, threads = radix * Teams;
};
// Some 40 KB of A and b, and little between runs (apart), leave room for four blocks on a multiprocessor, three where
// K = 2 in double.
template <class T, int K>
struct usual : geometry<(K == 1 ? 80 : 24) / (int)sizeof(T), 8> {};

// Columns of a tile at most: 64 bytes of b.
template <class T, int K>
constexpr int usual_group = 64 / (K * (int)sizeof(T));
// Columns that fill a sector.
template <class T, int K>
constexpr int direct_group = (32 + K * (int)sizeof(T) - 1) / (K * (int)sizeof(T));

template <class T, int K>
struct summary {
    T x[K * K + K];  // M row-major, then v
};

// `first`, and then `then`.
template <class T, int K>
SIMT summary<T, K> compose(const summary<T, K> &first, const summary<T, K> &then) {
    constexpr int E = K * K;
    summary<T, K> y;
    SIMT_UNROLL for (int i = 0; i < K; i++) {
        SIMT_UNROLL for (int j = 0; j < K; j++) {
            y.x[i * K + j] = then.x[i * K] * first.x[j];
            SIMT_UNROLL for (int k = 1; k < K; k++) y.x[i * K + j] =
                simt::fma(then.x[i * K + k], first.x[k * K + j], y.x[i * K + j]);
        }
        y.x[E + i] = then.x[E + i];
        SIMT_UNROLL for (int k = 0; k < K; k++) y.x[E + i] = simt::fma(then.x[i * K + k], first.x[E + k], y.x[E + i]);
    }
    return y;
}

template <class T, int K>
struct state {
    T x[K];
    SIMT void step(const summary<T, K> &s) {
        T y[K];
        SIMT_UNROLL for (int i = 0; i < K; i++) {
            y[i] = s.x[K * K + i];
            SIMT_UNROLL for (int j = 0; j < K; j++) y[i] = simt::fma(s.x[i * K + j], x[j], y[i]);
        }
        SIMT_UNROLL for (int i = 0; i < K; i++) x[i] = y[i];
    }
};

// What the launcher knows and the kernel wants to.
template <class T>
struct arguments_of {
    problem<T> p;
    bool wide_a, wide_b, wide_z;  // whole packs may go: numbers that follow each other, aligned
    int lowest;                   // level of nodes that tiles publish: 1 where a tile has 32 of level 0
    int slots;                    // of all levels
};

// Numbers of shared memory from one run to the next: packs, an odd number of them, so that lanes meet every bank once.
template <class T>
SIMT_BOTH constexpr int apart(int numbers) {
    constexpr int across = 16 / (int)sizeof(T);
    return numbers % across == 0 ? odd(numbers / across) * across : odd(numbers);
}

// Bytes of a block's shared memory; records are of K^2 + K numbers.
template <class T, int K, class S>
struct layout {
    static constexpr int record = (K * K + K) * (int)sizeof(T);
    static constexpr int a = 16;
    static constexpr int b = a + S::threads * apart<T>(S::items * K * K) * (int)sizeof(T);
    static constexpr int teams = b + S::threads * apart<T>(S::items * K) * (int)sizeof(T);
    static constexpr int nodes = teams + radix * (S::teams + 1) * record;
    static constexpr int bundles = nodes + radix * record;
    static constexpr int made = bundles + radix / bundle * record;
    SIMT_BOTH static int states(int group) { return made + (group * record + 15) / 16 * 16; }
    SIMT_BOTH static int slots_at(int group) { return states(group) + (group * K * (int)sizeof(T) + 15) / 16 * 16; }
    SIMT_BOTH static int bytes(int group, int slots) { return slots_at(group) + slots * group * record; }
};

// ---- the kernel ----

template <class T, int K, class S, bool Staged>
struct kernel {
    typedef arguments_of<T> arguments;
    typedef layout<T, K, S> at_byte;
    typedef simt::pack<T, 2> two;
    typedef summary<T, K> sum;
    static constexpr int E = K * K, N = E + K, across = 16 / (int)sizeof(T);
    static constexpr int most = S::threads, together = K * (int)sizeof(T) <= 8 ? 4 : 3;
    static_assert(simt::warp_size == radix && radix % E == 0 && N % 2 == 0, "widths 1 and 2");

    struct place {
        int group, shift, each;     // columns of a tile; nodes of level 0 of one
        int column, run;            // the thread's, in the tile
        int64_t tile, number;       // tile of the sequence, group of columns
        int columns;                // that are there
        simt::shared<two> records;  // of the whole memory
        simt::shared<T> states;
        // First record of
        SIMT static constexpr int record(int byte) { return byte / (int)sizeof(two); }
        SIMT int team(int r, int c) const {
            return record(at_byte::teams) + (((r + r / S::teams) << shift) + c) * (N / 2);
        }
        SIMT int node(int n, int c) const { return record(at_byte::nodes) + ((n << shift) + c) * (N / 2); }
        SIMT int bundle_of(int q, int c) const { return record(at_byte::bundles) + ((q << shift) + c) * (N / 2); }
        SIMT int made(int c) const { return record(at_byte::made) + c * (N / 2); }
        SIMT int slot(int level, int i, int c) const {
            return record(at_byte::slots_at(group)) + (((level * most_slots + i) << shift) + c) * (N / 2);
        }
        SIMT sum get(int at) const {
            sum s;
            SIMT_UNROLL for (int h = 0; h < N / 2; h++) {
                const two x = records.get(at + h);
                s.x[2 * h] = x.at[0];
                s.x[2 * h + 1] = x.at[1];
            }
            return s;
        }
        SIMT void put(int at, const sum &s) const {
            SIMT_UNROLL for (int h = 0; h < N / 2; h++) {
                two x;
                x.at[0] = s.x[2 * h];
                x.at[1] = s.x[2 * h + 1];
                records.set(at + h, x);
            }
        }
        SIMT int64_t first_step() const { return tile * each * S::node; }
    };

    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const simt::shared<uint32_t> drawn = me.template array<uint32_t>(0, 1);
        if (me.thread() == 0) drawn.set(0, me.ticket(p.ticket));
        me.barrier();
        const uint32_t ticket = drawn.get(0), groups = (uint32_t)p.groups;
        place at;
        at.group = p.group;
        at.shift = p.shift;
        at.each = radix >> p.shift;
        at.column = me.thread() & (p.group - 1);
        at.run = me.thread() >> p.shift;
        at.tile = ticket / groups;
        at.number = ticket % groups;
        const int64_t left = p.columns - at.number * p.group;
        at.columns = left < p.group ? (int)left : p.group;
        at.records = me.template array<two>(0, at_byte::bytes(p.group, a.slots) / (int)sizeof(two));
        at.states = me.template array<T>(at_byte::states(p.group), p.group * K);

        const state<T, K> z0 = start(me, p, at);  // on its way too
        sum item[S::items];
        if constexpr (Staged) {
            load_staged(me, a, at);
            get_items(me, p, at, item);
        } else {
            load_direct(me, a, at, item);
            put_items(me, p, at, item);
            transpose(p, item);
        }
        if (me.thread() < p.group) SIMT_UNROLL for (int i = 0; i < K; i++) at.states.set(at.column * K + i, z0.x[i]);
        sum own = item[0];
        SIMT_UNROLL for (int i = 1; i < S::items; i++) own = compose(own, item[i]);
        at.put(at.team(at.run, at.column), own);
        me.barrier();
        if (me.warp() == 0) make_nodes(me, a, at);
        look_back(me, a, at);
        get_items(me, p, at, item);
        apply(at, item);
        if constexpr (Staged)
            store_staged(me, a, at, item);
        else
            store_direct(me, a, at, item);
    }

    // ---- a, b and z ----

    struct offsets {
        int64_t a, b, z0, z;
    };
    SIMT static offsets of_column(const problem<T> &p, const place &at, int column) {
        const uint32_t c = (uint32_t)(at.number * p.group + column), parts = (uint32_t)p.parts;
        const int64_t row = c / parts, part = c % parts;
        return {row * p.a_row + part * p.a_part, row * p.b_row + part * K, row * p.z0_row + part * K,
                row * p.z_row + part * K};
    }

    // The state before the first step, of a column.
    SIMT static state<T, K> start(simt::lane &me, const problem<T> &p, const place &at) {
        state<T, K> z = {};
        if (p.z0 && me.thread() < at.columns) {
            const T *from = p.z0 + of_column(p, at, at.column).z0;
            SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = from[i];
        }
        return z;
    }

    // Of `most` steps from `first` on, how many there are.
    SIMT static int there(const problem<T> &p, int64_t first, int most_steps) {
        const int64_t left = p.length - first;
        return left < 0 ? 0 : left < most_steps ? (int)left : most_steps;
    }

    SIMT static void transpose(const problem<T> &p, sum (&item)[S::items]) {
        if constexpr (K > 1) {
            if (!p.transposed) return;
            SIMT_UNROLL for (int i = 0; i < S::items; i++) SIMT_UNROLL for (int r = 0; r < K; r++)
                SIMT_UNROLL for (int c = 0; c < r; c++) {
                const T x = item[i].x[r * K + c];
                item[i].x[r * K + c] = item[i].x[c * K + r];
                item[i].x[c * K + r] = x;
            }
        }
    }

    // Count numbers at `from`, by packs of Width.
    template <int Count, int Width>
    SIMT static void read(simt::lane &me, T *to, const T *from) {
        SIMT_UNROLL for (int h = 0; h < Count; h += Width) {
            const simt::pack<T, Width> x = me.template stream_load<Width>(from + h);
            SIMT_UNROLL for (int e = 0; e < Width; e++) to[h + e] = x.at[e];
        }
    }

    // Count numbers of each item from place `Begin` on; where `All`, of items 0 .. S::items - 1, else those of skip ..
    // count - 1.
    template <int Begin, int Count, int Width, bool All>
    SIMT static void read_items(simt::lane &me, sum (&item)[S::items], const T *from, int64_t step, int skip,
                                int count) {
        SIMT_UNROLL for (int i = 0; i < S::items; i++) {
            if (All || (i >= skip && i < count)) read<Count, Width>(me, item[i].x + Begin, from);
            from += step;
        }
    }
    template <int Begin, int Count, int Width>
    SIMT static void read_run(simt::lane &me, sum (&item)[S::items], const T *from, int64_t step, int skip, int count) {
        if (skip == 0 && count == S::items)
            read_items<Begin, Count, Width, true>(me, item, from, step, skip, count);
        else
            read_items<Begin, Count, Width, false>(me, item, from, step, skip, count);
    }

    static constexpr int pack_of_a = E == 1 ? 1 : across;  // E where a number has 4 bytes

    SIMT static void load_direct(simt::lane &me, const arguments &a, const place &at, sum (&item)[S::items]) {
        const problem<T> &p = a.p;
        const int64_t first = at.first_step() + at.run * S::items;
        const int count = at.column < at.columns ? there(p, first, S::items) : 0;
        const int skip = first == 0 && !p.z0 ? 1 : 0;
        const offsets o = of_column(p, at, at.column);
        if (skip != 0 || count < S::items || !p.a) {
            SIMT_UNROLL for (int i = 0; i < S::items; i++) {
                SIMT_UNROLL for (int e = 0; e < E; e++) item[i].x[e] =
                    T(e / K == e % K && !(i == 0 && skip == 1) ? 1 : 0);
                SIMT_UNROLL for (int e = E; e < N; e++) item[i].x[e] = T(0);
            }
        }
        if (p.a) {
            const T *from = p.a + o.a + first * p.a_step;
            if (K == 1 || !a.wide_a)
                read_run<0, E, 1>(me, item, from, p.a_step, skip, count);
            else
                read_run<0, E, pack_of_a>(me, item, from, p.a_step, skip, count);
        }
        const T *from = p.b + o.b + first * p.b_step;
        if (K == 1 || !a.wide_b)
            read_run<E, K, 1>(me, item, from, p.b_step, 0, count);
        else
            read_run<E, K, K>(me, item, from, p.b_step, 0, count);
    }

    template <int Width>
    SIMT static void write_run(simt::lane &me, const sum (&item)[S::items], T *to, int64_t step, int count) {
        SIMT_UNROLL for (int i = 0; i < S::items; i++) {
            if (i < count) SIMT_UNROLL for (int h = 0; h < K; h += Width) {
                    simt::pack<T, Width> x;
                    SIMT_UNROLL for (int e = 0; e < Width; e++) x.at[e] = item[i].x[E + h + e];
                    me.stream_store(to + h, x);
                }
            to += step;
        }
    }

    SIMT static void store_direct(simt::lane &me, const arguments &a, const place &at, const sum (&item)[S::items]) {
        const problem<T> &p = a.p;
        const int64_t first = at.first_step() + at.run * S::items;
        const int count = at.column < at.columns ? there(p, first, S::items) : 0;
        T *to = p.z + of_column(p, at, at.column).z + first * p.z_step;
        if (K == 1 || !a.wide_z)
            write_run<1>(me, item, to, p.z_step, count);
        else
            write_run<K>(me, item, to, p.z_step, count);
    }

    // A warp's numbers in shared memory, Each a step and column, run by run. In global memory, where columns and steps
    // follow each other, number f is e of column c at step s, f = (s group + c) Each + e. On the way between the two a
    // lane moves those of a stride of 32, or packs of them.
    template <int Each>
    struct staging {
        static constexpr int own = S::items * Each, pad = apart<T>(own);
        static constexpr bool packs = own % across == 0;
        simt::shared<T> numbers;
        simt::shared<simt::pack<T, across>> wide;
        int lane, group, shift, steps, count;  // steps of the warp, and how many are there
        int64_t first;

        SIMT staging(simt::lane &me, const problem<T> &p, const place &at, int byte)
            : lane(me.in_warp()), group(p.group), shift(p.shift), steps((radix >> p.shift) * S::items) {
            const int begin = byte + me.warp() * radix * pad * (int)sizeof(T);
            numbers = me.template array<T>(begin, radix * pad);
            if constexpr (packs) wide = me.template array<simt::pack<T, across>>(begin, radix * pad / across);
            first = at.first_step() + (int64_t)me.warp() * steps;
            count = there(p, first, steps);
        }
        SIMT bool whole(const place &at) const { return count == steps && at.columns == group; }
        SIMT int column(int f) const { return f / Each & (group - 1); }
        SIMT int step(int f) const { return f / Each >> shift; }
        SIMT int where(int f) const {
            const int s = step(f);
            return ((s / S::items << shift) + column(f)) * pad + s % S::items * Each + f % Each;
        }

        SIMT void set_run(const T (&x)[own]) const {
            if constexpr (packs) {
                SIMT_UNROLL for (int h = 0; h < own / across; h++) {
                    simt::pack<T, across> y;
                    SIMT_UNROLL for (int e = 0; e < across; e++) y.at[e] = x[h * across + e];
                    wide.set(lane * (pad / across) + h, y);
                }
            } else {
                SIMT_UNROLL for (int i = 0; i < own; i++) numbers.set(lane * pad + i, x[i]);
            }
        }
        SIMT void get_run(T (&x)[own]) const {
            if constexpr (packs) {
                SIMT_UNROLL for (int h = 0; h < own / across; h++) {
                    const simt::pack<T, across> y = wide.get(lane * (pad / across) + h);
                    SIMT_UNROLL for (int e = 0; e < across; e++) x[h * across + e] = y.at[e];
                }
            } else {
                SIMT_UNROLL for (int i = 0; i < own; i++) x[i] = numbers.get(lane * pad + i);
            }
        }
        // Does a pack's place follow from that of its first number?
        SIMT bool beside() const { return Each % across == 0 || group == 1; }

        SIMT void set_packs(const T (&x)[own]) const {
            SIMT_UNROLL for (int h = 0; h < own / across; h++) {
                const int f = (h * radix + lane) * across;
                if (beside()) {
                    simt::pack<T, across> y;
                    SIMT_UNROLL for (int e = 0; e < across; e++) y.at[e] = x[h * across + e];
                    wide.set(where(f) / across, y);
                } else {
                    SIMT_UNROLL for (int e = 0; e < across; e++) numbers.set(where(f + e), x[h * across + e]);
                }
            }
        }
        SIMT void get_packs(T (&x)[own]) const {
            SIMT_UNROLL for (int h = 0; h < own / across; h++) {
                const int f = (h * radix + lane) * across;
                if (beside()) {
                    const simt::pack<T, across> y = wide.get(where(f) / across);
                    SIMT_UNROLL for (int e = 0; e < across; e++) x[h * across + e] = y.at[e];
                } else {
                    SIMT_UNROLL for (int e = 0; e < across; e++) x[h * across + e] = numbers.get(where(f + e));
                }
            }
        }
        SIMT void set_singles(const T (&x)[own]) const {
            SIMT_UNROLL for (int i = 0; i < own; i++) numbers.set(where(i * radix + lane), x[i]);
        }
        SIMT void get_singles(T (&x)[own]) const {
            SIMT_UNROLL for (int i = 0; i < own; i++) x[i] = numbers.get(where(i * radix + lane));
        }

        SIMT void set_read(const T (&x)[own], bool as_packs) const {
            if constexpr (packs) {
                if (as_packs) return set_packs(x);
            }
            set_singles(x);
        }

        // Packs from `base`, the warp's first number, on.
        SIMT void read_packs(simt::lane &me, const T *base, T (&x)[own]) const {
            SIMT_UNROLL for (int h = 0; h < own / across; h++)
                read<across, across>(me, x + h * across, base + (h * radix + lane) * across);
        }
        // Single numbers, from that of step 0 of the lane's column on; what is not there is 0, or `other`.
        SIMT void read_singles(simt::lane &me, const T *base, int64_t by, bool mine, int skip, T other,
                               T (&x)[own]) const {
            const int inside = mine ? count : 0, s0 = step(lane);
            const int ahead = radix / Each >> shift;  // steps from one number to the next
            const T *from = base + s0 * by;
            SIMT_UNROLL for (int i = 0; i < own; i++) {
                const int s = s0 + i * ahead;
                x[i] = s < skip ? T(0) : other;
                if (s < inside && s >= skip) x[i] = me.template stream_load<1>(from).at[0];
                from += ahead * by;
            }
        }
        SIMT void write_packs(simt::lane &me, T *base, const T (&x)[own]) const {
            SIMT_UNROLL for (int h = 0; h < own / across; h++) {
                simt::pack<T, across> y;
                SIMT_UNROLL for (int e = 0; e < across; e++) y.at[e] = x[h * across + e];
                me.stream_store(base + (h * radix + lane) * across, y);
            }
        }
        SIMT void write_singles(simt::lane &me, T *base, int64_t by, bool mine, const T (&x)[own]) const {
            const int inside = mine ? count : 0, ahead = radix / Each >> shift, s0 = step(lane);
            T *to = base + s0 * by;
            SIMT_UNROLL for (int i = 0; i < own; i++) {
                simt::pack<T, 1> y;
                y.at[0] = x[i];
                if (s0 + i * ahead < inside) me.stream_store(to, y);
                to += ahead * by;
            }
        }
    };

    SIMT static staging<E> stage_of_a(simt::lane &me, const problem<T> &p, const place &at) {
        return staging<E>(me, p, at, at_byte::a);
    }
    SIMT static staging<K> stage_of_b(simt::lane &me, const problem<T> &p, const place &at) {
        return staging<K>(me, p, at, at_byte::b);
    }

    // The thread's run as memory has it. It waits in shared memory: registers are for those who look back.
    SIMT static void put_items(simt::lane &me, const problem<T> &p, const place &at, const sum (&item)[S::items]) {
        T x[S::items * E], y[S::items * K];
        SIMT_UNROLL for (int i = 0; i < S::items * E; i++) x[i] = item[i / E].x[i % E];
        SIMT_UNROLL for (int i = 0; i < S::items * K; i++) y[i] = item[i / K].x[E + i % K];
        stage_of_a(me, p, at).set_run(x);
        stage_of_b(me, p, at).set_run(y);
    }
    SIMT static void get_items(simt::lane &me, const problem<T> &p, const place &at, sum (&item)[S::items]) {
        T x[S::items * E], y[S::items * K];
        stage_of_a(me, p, at).get_run(x);
        stage_of_b(me, p, at).get_run(y);
        SIMT_UNROLL for (int i = 0; i < S::items * E; i++) item[i / E].x[i % E] = x[i];
        SIMT_UNROLL for (int i = 0; i < S::items * K; i++) item[i / K].x[E + i % K] = y[i];
        transpose(p, item);
    }

    SIMT static void load_staged(simt::lane &me, const arguments &a, const place &at) {
        const problem<T> &p = a.p;
        const staging<E> of_a = stage_of_a(me, p, at);
        const staging<K> of_b = stage_of_b(me, p, at);
        const int skip = of_a.first == 0 && !p.z0 ? 1 : 0;
        const bool packs_a = staging<E>::packs && a.wide_a && of_a.whole(at) && skip == 0;
        const bool packs_b = staging<K>::packs && a.wide_b && of_b.whole(at);
        T x[S::items * E] = {}, y[S::items * K] = {};
        if (packs_a) {
            of_a.read_packs(me, p.a + of_a.first * p.a_step, x);
        } else {
            const int c = of_a.column(of_a.lane), e = of_a.lane % E;
            const T *base = p.a ? p.a + of_column(p, at, c).a + of_a.first * p.a_step + e : nullptr;
            of_a.read_singles(me, base, p.a_step, p.a && c < at.columns, skip, T(e / K == e % K ? 1 : 0), x);
        }
        if (packs_b) {
            of_b.read_packs(me, p.b + of_b.first * p.b_step, y);
        } else {
            const int c = of_b.column(of_b.lane);
            const T *base = p.b + of_column(p, at, c).b + of_b.first * p.b_step + of_b.lane % K;
            of_b.read_singles(me, base, p.b_step, c < at.columns, 0, T(0), y);
        }
        of_a.set_read(x, packs_a);
        of_b.set_read(y, packs_b);
        me.warp_barrier();
    }

    SIMT static void store_staged(simt::lane &me, const arguments &a, const place &at, const sum (&item)[S::items]) {
        const problem<T> &p = a.p;
        const staging<K> of_z = stage_of_b(me, p, at);
        T y[S::items * K];
        SIMT_UNROLL for (int i = 0; i < S::items * K; i++) y[i] = item[i / K].x[E + i % K];
        of_z.set_run(y);
        me.warp_barrier();
        if constexpr (staging<K>::packs) {
            if (a.wide_z && of_z.whole(at)) {
                of_z.get_packs(y);
                of_z.write_packs(me, p.z + of_z.first * p.z_step, y);
                return;
            }
        }
        of_z.get_singles(y);
        const int c = of_z.column(of_z.lane);
        T *base = p.z + of_column(p, at, c).z + of_z.first * p.z_step + of_z.lane % K;
        of_z.write_singles(me, base, p.z_step, c < at.columns, y);
    }

    // ---- nodes ----

    SIMT static bool publishes(const problem<T> &p, const place &at) { return at.tile + 1 < p.tiles; }

    SIMT static int64_t node_of(const problem<T> &p, int level, int64_t index, int64_t number) {
        return (p.level_start[level] + index) * p.groups + number;
    }
    SIMT static two *numbers_of(const problem<T> &p, int64_t node, int column) {
        return reinterpret_cast<two *>(p.nodes) + ((node << p.shift) + column) * (N / 2);
    }
    // Nodes of level 0 that a tile publishes have one flag: that of the first.
    SIMT static uint32_t *flag_of(const problem<T> &p, const place &at, int level, int64_t index) {
        return p.flags + node_of(p, level, level == 0 ? index & ~(int64_t)(at.each - 1) : index, at.number);
    }

    // By the first warp: what its lanes `with` numbers have, nodes from `index` on.
    SIMT static void announce(simt::lane &me, const problem<T> &p, const place &at, int level, int64_t index, bool with,
                              const sum &s) {
        if (with) {
            two *to = numbers_of(p, node_of(p, level, index + (me.thread() >> p.shift), at.number), at.column);
            SIMT_UNROLL for (int h = 0; h < N / 2; h++) {
                two x;
                x.at[0] = s.x[2 * h];
                x.at[1] = s.x[2 * h + 1];
                me.peer_store(to + h, x);
            }
        }
        me.warp_barrier();
        if (me.thread() == 0) me.release(flag_of(p, at, level, index), 1);
    }

    // Four nodes beside each other.
    template <class Get>
    SIMT static sum bundle_up(const Get &node) {
        const sum left = compose(node(0), node(1));
        return compose(left, compose(node(2), node(3)));
    }

    // By the first warp, a lane a node of the tile and column, out of the runs' summaries.
    SIMT static void make_nodes(simt::lane &me, const arguments &a, const place &at) {
        const problem<T> &p = a.p;
        sum s = at.get(at.team(at.run * S::teams, at.column));
        SIMT_UNROLL for (int t = 1; t < S::teams; t++) s =
            compose(s, at.get(at.team(at.run * S::teams + t, at.column)));
        at.put(at.node(at.run, at.column), s);
        if (a.lowest == 0 && publishes(p, at))
            announce(me, p, at, 0, at.tile * at.each, true, s);
        else
            me.warp_barrier();
        if (at.run < at.each / bundle) {
            const auto own = [&](int i) { return at.get(at.node(at.run * bundle + i, at.column)); };
            at.put(at.bundle_of(at.run, at.column), bundle_up(own));
        }
        me.warp_barrier();
        if (a.lowest == 1 && publishes(p, at)) {
            const bool with = me.thread() == 0;
            if (with) {
                s = whole(at, 0, 0, radix);
                at.put(at.made(0), s);
            }
            announce(me, p, at, 1, at.tile, with, s);
        }
    }

    // Part i of a node of the level above: of its nodes of this level the tile made the last `own`, those to their left
    // are in slots of `level`, counted from the lowest.
    SIMT static sum part(const place &at, int level, int slot_level, int own, int i) {
        const int left = radix - own, full = left / bundle;
        if (i < full) return at.get(at.slot(slot_level, i, at.column));
        if (own >= bundle) return at.get(at.bundle_of(i - full, at.column));
        const int single = left % bundle;
        const auto last = [&](int k) {
            return at.get(k < single  ? at.slot(slot_level, full + k, at.column)
                          : level > 0 ? at.made(at.column)
                                      : at.node(k - single, at.column));
        };
        return bundle_up(last);
    }
    SIMT static sum whole(const place &at, int level, int slot_level, int own) {
        sum s = part(at, level, slot_level, own, 0), next = part(at, level, slot_level, own, 1);
        SIMT_ROLLED for (int i = 2; i < radix / bundle; i++) {
            const sum after = part(at, level, slot_level, own, i);
            s = compose(s, next);
            next = after;
        }
        return compose(s, next);
    }

    SIMT static sum peer_sum(simt::lane &me, const two *from) {
        sum s;
        SIMT_UNROLL for (int h = 0; h < N / 2; h++) {
            const two x = me.peer_load(from + h);
            s.x[2 * h] = x.at[0];
            s.x[2 * h + 1] = x.at[1];
        }
        return s;
    }

    // Nodes to the left of levels low .. high - 1 into slots, as soon as they are there; between barriers.
    SIMT static void fetch(simt::lane &me, const arguments &a, const place &at, int low, int high) {
        const problem<T> &p = a.p;
        const int64_t first = at.tile * at.each;
        // The first warp may still announce.
        for (int f = me.threads() - 1 - me.thread(); f < (high - low) * radix; f += me.threads()) {
            const int level = low + f / radix, i = f % radix;
            const int64_t end = first >> level * radix_log, begin = end & ~(int64_t)(radix - 1);
            if (begin + i < end) me.await(flag_of(p, at, level, begin + i), 1);
        }
        me.barrier();
        for (int f = me.thread(); f < (high - low) * (radix / bundle) << p.shift; f += me.threads()) {
            const int c = f & (p.group - 1), q = (f >> p.shift) % (radix / bundle);
            const int level = low + (f >> p.shift) / (radix / bundle);
            const int64_t end = first >> level * radix_log, begin = (end & ~(int64_t)(radix - 1)) + q * bundle;
            const int count = end - begin < bundle ? (int)(end - begin) : bundle;
            if (count <= 0) continue;
            const two *from = numbers_of(p, node_of(p, level, begin, at.number), c);
            const int64_t next = (p.groups << p.shift) * (N / 2);
            const int to = level - a.lowest;
            // All on their way together, or two where four would not fit into registers.
            constexpr bool in_pairs = N * sizeof(T) > 24;
            sum n[bundle];
            SIMT_UNROLL for (int i = 0; i < (in_pairs ? 2 : bundle); i++) if (i < count) n[i] =
                peer_sum(me, from + i * next);
            if (count == bundle) {
                const sum left = compose(n[0], n[1]);
                SIMT_UNROLL for (int i = 2; i < bundle && in_pairs; i++) n[i] = peer_sum(me, from + i * next);
                at.put(at.slot(to, q, c), compose(left, compose(n[2], n[3])));
            } else {
                at.put(at.slot(to, q, c), n[0]);
                if (count > 1) at.put(at.slot(to, q + 1, c), n[1]);
                if (count > 2) at.put(at.slot(to, q + 2, c), in_pairs ? peer_sum(me, from + 2 * next) : n[2]);
            }
        }
        me.barrier();
    }

    // Leaves the states that come into the tile in `states`.
    SIMT static void look_back(simt::lane &me, const arguments &a, const place &at) {
        const problem<T> &p = a.p;
        int level = a.lowest, own = a.lowest == 0 ? at.each : 1;
        int64_t end = at.tile * (a.lowest == 0 ? at.each : 1) + own;  // nodes of the level with the tile's
        SIMT_ROLLED for (;;) {
            const bool last = publishes(p, at) && level + 1 < p.levels && end % radix == 0;
            fetch(me, a, at, level, last ? level + 1 : p.levels);
            if (!last) break;
            end /= radix;
            if (me.warp() == 0) {
                const bool with = me.thread() < p.group;
                sum s = {};
                if (with) {
                    s = whole(at, level, level - a.lowest, own);
                    at.put(at.made(at.column), s);
                }
                announce(me, p, at, level + 1, end - 1, with, s);
            }
            level++;
            own = 1;
        }
        if (me.thread() < p.group) {
            state<T, K> z;
            SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = at.states.get(at.column * K + i);
            SIMT_ROLLED for (int l = p.levels - 1; l >= a.lowest; l--) {
                const int left = (int)(at.tile * at.each >> l * radix_log) & (radix - 1);
                fold(at, l - a.lowest, left / bundle + left % bundle, z);
            }
            SIMT_UNROLL for (int i = 0; i < K; i++) at.states.set(at.column * K + i, z.x[i]);
        }
        me.barrier();
    }

    // The first `count` slots of a level, a few on their way at a time.
    SIMT static void fold(const place &at, int level, int count, state<T, K> &z) {
        constexpr int few = K == 1 ? 5 : 2;
        static_assert(most_slots % few == 0, "no slot beyond");
        SIMT_ROLLED for (int i = 0; i < count; i += few) {
            sum s[few];
            SIMT_UNROLL for (int k = 0; k < few; k++) if (i + k < count) s[k] =
                at.get(at.slot(level, i + k, at.column));
            SIMT_UNROLL for (int k = 0; k < few; k++) if (i + k < count) z.step(s[k]);
        }
    }

    // ---- the run ----

    // The states take b's places.
    SIMT static void apply(const place &at, sum (&item)[S::items]) {
        const int node = at.run / S::teams, team = at.run % S::teams;
        state<T, K> z;
        SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = at.states.get(at.column * K + i);
        SIMT_ROLLED for (int q = 0; q < node / bundle; q++) z.step(at.get(at.bundle_of(q, at.column)));
        SIMT_ROLLED for (int n = node / bundle * bundle; n < node; n++) z.step(at.get(at.node(n, at.column)));
        SIMT_UNROLL for (int t = 0; t < S::teams - 1; t++) {
            state<T, K> y = z;
            y.step(at.get(at.team(node * S::teams + t, at.column)));
            SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = t < team ? y.x[i] : z.x[i];
        }
        SIMT_UNROLL for (int n = 0; n < S::items; n++) {
            z.step(item[n]);
            SIMT_UNROLL for (int i = 0; i < K; i++) item[n].x[E + i] = z.x[i];
        }
    }
};

}  // namespace stream

}  // namespace linear

#endif
