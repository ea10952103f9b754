// SPDX-License-Identifier: MIT
// Linear chains on a device in one pass over memory: z_m = A_m z_{m-1} + b_m, m = 0 .. n-1, states of width K. Widths 1
// and 2 whose numbers lie in memory go by linear_stream.h, but for 2 in double, where a block has room for its tiles.
//
// Columns (sequences, components of an elementwise chain, blocks of a block-diagonal one) mix with no others. A tile is
// `teams` x `items` steps of `group` columns and one block's work:
//
//     copy      A and b of the tile into shared memory, op(A) where the chain is transposed; the only read of them
//     reduce    each team its items, in order, to a summary (M, v): what they make of a state, M z + v
//     scan      the teams' summaries (Hillis and Steele), which ends with the tile's
//     publish   the tile's summary; the last tile of R = teams ones folds their summaries by the same scan and
//     publishes
//               that too, and so on: nodes of a tree over tiles, R^level tiles each
//     look back the state that comes in: z0, through the nodes to the left, largest first
//     apply     each team its items from the state that its summary's neighbour makes of that; store
//
// The look-back waits for summaries of fixed nodes, never for a neighbour's state, so nothing is folded in the order of
// arrival: the bits are those of n, K and the shape below. It reads at most (R - 1) levels nodes, levels =
// log_R(tiles), and no tile waits for a chain of others: a node's publisher waits for R - 1 nodes of the level below.
// Blocks take tiles by ticket, so what a tile waits for belongs to blocks that have started.
//
// Work a column and step: K^3 + 2 K^2, of which K^3 for K = 1 is one product. Memory: a, b and z once each, and
// (K^2 + K) / (teams items) of their size for the nodes. Weighed against others in docs/design.md; source: decoupled
// look-back, Merrill and Garland 2016; the fold over fixed nodes is ours.
#ifndef DPCRI_CUDA_LINEAR_H
#define DPCRI_CUDA_LINEAR_H

#include "kern/cuda/simt.h"

namespace linear {

constexpr int most_levels = 16;  // a node of the last is of 4^15 tiles at least, and there are less than 2^31

// `lanes` lanes of a team share the K + 1 columns of a summary.
template <int Items, int Teams, int Lanes>
struct geometry {
    static constexpr int items = Items, teams = Teams, lanes = Lanes, steps = Items * Teams;
};

// The geometry of width K: tiles that leave room for several blocks on a multiprocessor, and fit into 64 KB of shared
// memory, which every device from compute capability 7.5 on has.
template <class T, int K>
constexpr int usual_items = K > 4 && K <= 8 && sizeof(T) == 8 ? 3 : 4;
template <class T, int K>
constexpr int usual_teams = K <= 4           ? 32
                            : K <= 8         ? 16
                            : sizeof(T) == 8 ? 4
                                             : 8;
template <int K>
constexpr int usual_lanes = K <= 4   ? 1
                            : K <= 8 ? 4
                                     : 8;
template <class T, int K>
struct usual : geometry<usual_items<T, K>, usual_teams<T, K>, usual_lanes<K>> {};
template <class T>
struct usual<T, 1> : geometry<8, 64, 1> {};
template <class T>
struct usual<T, 2> : geometry<8, 32, 1> {};

// Columns of a tile at most, which no bits depend on: a sector of memory of those that lie beside each other.
template <class T, int K>
constexpr int usual_group() {
    return K == 1   ? (int)(32 / sizeof(T))
           : K == 2 ? (int)(16 / sizeof(T))
           : K == 3 ? 2
           : K == 4 ? (int)(8 / sizeof(T))
                    : 1;
}
constexpr int64_t usual_shared = 64 << 10;

template <class T>
struct problem {
    int64_t length, columns, parts;  // parts: columns of a sequence, one after the other
    bool transposed;
    const T *a;  // NULL: the identity
    int64_t a_step, a_row, a_part;
    const T *b;
    int64_t b_step, b_row;
    const T *z0;  // or NULL: z_0 = b_0, and A_0 is not read
    int64_t z0_row;
    T *z;
    int64_t z_step, z_row;
    int group, shift;  // columns of a tile, 1 << shift
    int64_t groups, tiles;
    uint32_t *ticket, *flags;  // zero when the launch begins
    T *nodes;
    int64_t level_start[most_levels];  // first node of a level
    int levels;
};

// ---- sizes, the same for the launcher and for the kernel ----

SIMT_BOTH constexpr int odd(int n) { return n | 1; }

// Numbers of a column's part of a tile with `each` a step: teams are an odd distance apart, and neighbouring columns so
// that a warp that writes step by step meets every bank once.
template <class S>
SIMT_BOTH int region(int each, int group) {
    const int plain = S::teams * odd(S::items * each);
    return group == 1 ? plain : plain + (32 / group - plain % 32 + 32) % 32;
}

template <class S, int K>
struct layout {
    int group, a, b, summaries, states, ends;  // first number of each; `ends`: how many there are
    SIMT_BOTH static layout of(int group) {
        layout l = {};
        const int summary = odd(K * K + K);
        l.group = group;
        l.a = 0;
        l.b = l.a + group * region<S>(K * K, group);
        l.summaries = l.b + group * region<S>(K, group);
        l.states = l.summaries + 3 * group * S::teams * summary;
        l.ends = l.states + group * (S::teams + 2) * K;
        return l;
    }
    // Offsets of the columns and the ticket lie before the numbers.
    SIMT_BOTH int64_t head() const { return 16 + 32 * (int64_t)group; }
    SIMT_BOTH int64_t bytes(int number) const { return head() + (int64_t)ends * number; }
};

template <class S>
SIMT_BOTH int threads_of(int group) {
    const int n = group * S::teams * S::lanes;
    return (n + simt::warp_size - 1) / simt::warp_size * simt::warp_size;
}

// Fills levels, level_start; returns the number of nodes of one group.
template <class S, class T>
inline int64_t plan_nodes(problem<T> *p) {
    int64_t nodes = 0, count = p->tiles;
    p->levels = 0;
    while (p->levels < most_levels && (p->levels == 0 || count > 0)) {
        p->level_start[p->levels++] = nodes;
        nodes += count;
        count /= S::teams;
    }
    return nodes;
}

// ---- the kernel ----

// Where a tile's transitions come from: from memory, or made on the way into shared memory and never written out. Such
// a source has `made` true and transition(arguments, column, m, a): A_m before any transposition, not asked for m = 0
// without z0. Where `fused` is true too it makes the offsets, offset(arguments, column, m, b), and the states go to it
// and not to memory: take(lane, arguments, column, m, z), once for each column and m.
struct stored {
    static constexpr bool made = false, fused = false;
    struct arguments {};
};

template <class T, int K, class S, int Group, class Source = stored>
struct kernel {
    struct arguments {
        problem<T> p;
        typename Source::arguments source;
    };
    static constexpr int E = K * K, N = E + K, summary = odd(N), Q = S::lanes;
    static constexpr int C = (K + Q) / Q;         // columns of a summary that a lane has
    static constexpr int rows = (K + Q - 1) / Q;  // rows of a state that a lane has
    static constexpr int most = (Group * S::teams * Q + simt::warp_size - 1) / simt::warp_size * simt::warp_size;

    struct place {
        int group, g, t, q;
        int a_column, b_column;  // from one column to the next
        bool active;
        layout<S, K> at;
        simt::shared<T> numbers;
        simt::shared<int64_t> offsets;  // [group][4]: of a, b, z0, z

        SIMT int a(int column, int team, int item, int e) const {
            return at.a + column * a_column + team * odd(S::items * E) + item * E + e;
        }
        SIMT int b(int column, int team, int item, int i) const {
            return at.b + column * b_column + team * odd(S::items * K) + item * K + i;
        }
        // Of buffer 0, 1 or 2. Matrix row-major, then the offset.
        SIMT int s(int buffer, int column, int team) const {
            return at.summaries + ((buffer * group + column) * S::teams + team) * summary;
        }
        SIMT int incoming(int column, int which) const { return at.states + (column * 2 + which) * K; }
        SIMT int start(int column, int team) const { return at.states + (group * 2 + column * S::teams + team) * K; }
    };

    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        place at;
        at.group = p.group;
        at.at = layout<S, K>::of(p.group);
        at.a_column = region<S>(E, p.group);
        at.b_column = region<S>(K, p.group);
        at.q = me.thread() % Q;
        at.t = me.thread() / Q % S::teams;
        at.g = me.thread() / (Q * S::teams);
        at.active = at.g < p.group;
        at.offsets = me.template array<int64_t>(16, 4 * p.group);
        at.numbers = me.template array<T>(at.at.head(), at.at.ends);

        const simt::shared<uint32_t> drawn = me.template array<uint32_t>(0, 1);
        if (me.thread() == 0) drawn.set(0, me.ticket(p.ticket));
        me.barrier();
        const int64_t ticket = drawn.get(0);
        const int64_t tile = ticket / p.groups, group = ticket % p.groups;

        load(me, a, at, tile, group);
        T x[C][K];
        reduce(at, x);
        put(at, 0, x);
        me.barrier();
        const int done = scan(me, at, 0, 1, x);
        const int other = (done + 1) % 3, third = (done + 2) % 3;
        publish(me, p, at, tile, group, done, other, third, x);
        look_back(me, p, at, tile, group, other);
        apply(me, at, done);
        me.barrier();
        if constexpr (Source::fused)
            give(me, a, at, tile * S::steps, group);
        else
            store(me, p, at, tile, group);
    }

    SIMT static void load(simt::lane &me, const arguments &a, const place &at, int64_t tile, int64_t group) {
        const problem<T> &p = a.p;
        if (me.thread() < p.group) {
            const int64_t column = group * p.group + me.thread();
            const int64_t row = column / p.parts, part = column % p.parts;
            at.offsets.set(me.thread() * 4, row * p.a_row + part * p.a_part);
            at.offsets.set(me.thread() * 4 + 1, row * p.b_row + part * K);
            at.offsets.set(me.thread() * 4 + 2, row * p.z0_row + part * K);
            at.offsets.set(me.thread() * 4 + 3, row * p.z_row + part * K);
        }
        me.barrier();
        const int columns = columns_of(p, group);
        const int64_t first = tile * S::steps;
        if constexpr (Source::made)
            make(me, a, at, first, group);
        else
            copy(me, p, at, first, columns);
        if constexpr (!Source::fused) copy_offsets(me, p, at, first, columns);
        me.copy_wait();
        me.barrier();
    }

    // The tile's transitions from memory.
    SIMT static void copy(simt::lane &me, const problem<T> &p, const place &at, int64_t first, int columns) {
        const int threads = me.threads();
        for (int i = me.thread(); i < S::steps * p.group * E; i += threads) {
            const int e = i % E, g = i / E & (p.group - 1), s = i / E >> p.shift;
            const int to = at.a(g, s / S::items, s % S::items, p.transposed ? e % K * K + e / K : e);
            const int64_t m = first + s;
            const bool there = m < p.length && g < columns;
            if (there && m == 0 && !p.z0)
                at.numbers.set(to, T(0));
            else if (there && p.a)
                me.copy_async(at.numbers, to, p.a + at.offsets.get(g * 4) + m * p.a_step + e);
            else
                at.numbers.set(to, T(e / K == e % K ? 1 : 0));
        }
    }

    SIMT static void copy_offsets(simt::lane &me, const problem<T> &p, const place &at, int64_t first, int columns) {
        for (int i = me.thread(); i < S::steps * p.group * K; i += me.threads()) {
            const int e = i % K, g = i / K & (p.group - 1), s = i / K >> p.shift;
            const int to = at.b(g, s / S::items, s % S::items, e);
            if (first + s < p.length && g < columns)
                me.copy_async(at.numbers, to, p.b + at.offsets.get(g * 4 + 1) + (first + s) * p.b_step + e);
            else
                at.numbers.set(to, T(0));
        }
    }

    // Made here, a step and column a lane.
    SIMT static void make(simt::lane &me, const arguments &a, const place &at, int64_t first, int64_t group) {
        const problem<T> &p = a.p;
        const int columns = columns_of(p, group);
        for (int i = me.thread(); i < S::steps * p.group; i += me.threads()) {
            const int g = i & (p.group - 1), s = i >> p.shift;
            const int64_t m = first + s;
            const bool there = m < p.length && g < columns, asked = there && (m > 0 || p.z0);
            T j[E];
            SIMT_UNROLL for (int e = 0; e < E; e++) j[e] = T(e / K == e % K && !there ? 1 : 0);
            if (asked) Source::transition(a.source, group * p.group + g, m, j);
            SIMT_UNROLL for (int e = 0; e < E; e++)
                at.numbers.set(at.a(g, s / S::items, s % S::items, p.transposed ? e % K * K + e / K : e), j[e]);
            if constexpr (Source::fused) {
                T b[K] = {};
                if (there) Source::offset(a.source, group * p.group + g, m, b);
                SIMT_UNROLL for (int e = 0; e < K; e++) at.numbers.set(at.b(g, s / S::items, s % S::items, e), b[e]);
            }
        }
    }

    SIMT static int columns_of(const problem<T> &p, int64_t group) {
        const int64_t left = p.columns - group * p.group;
        return left < p.group ? (int)left : p.group;
    }

    // Column c of the lane's: x = M x, + v where it is the offset's. M, v from place m on: [K][K], offset at `v`.
    SIMT static void multiply(const place &at, int m, int v, T (&x)[C][K]) {
        T y[C][K];
        SIMT_UNROLL for (int i = 0; i < K; i++) {
            const T vi = at.numbers.get(v + i);
            SIMT_UNROLL for (int c = 0; c < C; c++) y[c][i] = at.q + c * Q == K ? vi : T(0);
            SIMT_UNROLL for (int j = 0; j < K; j++) {
                const T mij = at.numbers.get(m + i * K + j);
                SIMT_UNROLL for (int c = 0; c < C; c++) y[c][i] = simt::fma(mij, x[c][j], y[c][i]);
            }
        }
        SIMT_UNROLL for (int c = 0; c < C; c++) SIMT_UNROLL for (int i = 0; i < K; i++) x[c][i] = y[c][i];
    }

    // The lane's columns of the summary at m, offset at v.
    SIMT static void get(const place &at, int m, int v, T (&x)[C][K]) {
        SIMT_UNROLL for (int c = 0; c < C; c++) {
            const int column = at.q + c * Q;
            SIMT_UNROLL for (int i = 0; i < K; i++) x[c][i] = column < K    ? at.numbers.get(m + i * K + column)
                                                              : column == K ? at.numbers.get(v + i)
                                                                            : T(0);
        }
    }

    SIMT static void put(const place &at, int buffer, const T (&x)[C][K]) {
        if (!at.active) return;
        const int s = at.s(buffer, at.g, at.t);
        SIMT_UNROLL for (int c = 0; c < C; c++) {
            const int column = at.q + c * Q;
            SIMT_UNROLL for (int i = 0; i < K; i++) if (column <= K)
                at.numbers.set(column < K ? s + i * K + column : s + E + i, x[c][i]);
        }
    }

    SIMT static void reduce(const place &at, T (&x)[C][K]) {
        if (!at.active) return;
        get(at, at.a(at.g, at.t, 0, 0), at.b(at.g, at.t, 0, 0), x);
        SIMT_ROLLED for (int i = 1; i < S::items; i++) multiply(at, at.a(at.g, at.t, i, 0), at.b(at.g, at.t, i, 0), x);
    }

    // The summaries in buffer `from` become those of everything up to them; uses buffer `to` too. Returns where they
    // are.
    SIMT static int scan(simt::lane &me, const place &at, int from, int to, T (&x)[C][K]) {
        SIMT_ROLLED for (int s = 1; s < S::teams; s *= 2) {
            if (at.active) {
                const int own = at.s(from, at.g, at.t);
                if (at.t >= s) {
                    const int left = at.s(from, at.g, at.t - s);
                    get(at, left, left + E, x);
                    multiply(at, own, own + E, x);
                } else {
                    get(at, own, own + E, x);
                }
                put(at, to, x);
            }
            me.barrier();
            const int was = from;
            from = to;
            to = was;
        }
        return from;
    }

    SIMT static int64_t node(const problem<T> &p, int level, int64_t index, int64_t group) {
        return (p.level_start[level] + index) * p.groups + group;
    }

    // The last summary in `buffer` is that of a node.
    SIMT static void announce(simt::lane &me, const problem<T> &p, const place &at, int64_t which, int buffer) {
        T *to = p.nodes + which * p.group * N;
        for (int i = me.thread(); i < p.group * N; i += me.threads())
            me.peer_store(to + i, at.numbers.get(at.s(buffer, i / N, S::teams - 1) + i % N));
        me.barrier();
        if (me.thread() == 0) me.publish(p.flags + which, 1);
    }

    // Nodes index .. index + count - 1 of a level into a buffer, as soon as they are there.
    SIMT static void fetch(simt::lane &me, const problem<T> &p, const place &at, int level, int64_t index, int count,
                           int64_t group, int buffer) {
        for (int i = me.thread(); i < count; i += me.threads()) me.await(p.flags + node(p, level, index + i, group), 1);
        me.barrier();
        for (int i = me.thread(); i < count * p.group * N; i += me.threads()) {
            const int e = i % N, g = i / N & (p.group - 1), t = i / N >> p.shift;
            const T *from = p.nodes + node(p, level, index + t, group) * p.group * N + g * N + e;
            at.numbers.set(at.s(buffer, g, t) + e, me.peer_load(from));
        }
        me.barrier();
    }

    SIMT static void publish(simt::lane &me, const problem<T> &p, const place &at, int64_t tile, int64_t group, int own,
                             int free, int free_too, T (&x)[C][K]) {
        if (tile == p.tiles - 1) return;
        announce(me, p, at, node(p, 0, tile, group), own);
        int64_t index = tile + 1;  // tiles up to this one, in nodes of the level below
        for (int level = 1; level < p.levels && index % S::teams == 0; level++) {
            fetch(me, p, at, level - 1, index - S::teams, S::teams, group, free);
            const int done = scan(me, at, free, free_too, x);
            index /= S::teams;
            announce(me, p, at, node(p, level, index - 1, group), done);
        }
    }

    // Row r of M z + v, M and v from place m on, z from place z on.
    SIMT static T row_of(const place &at, int m, int v, int z, int r) {
        T sum = at.numbers.get(v + r);
        SIMT_UNROLL for (int j = 0; j < K; j++) sum =
            simt::fma(at.numbers.get(m + r * K + j), at.numbers.get(z + j), sum);
        return sum;
    }

    // z = M z + v by one lane.
    SIMT static void step(const place &at, int m, int v, T (&z)[K]) {
        T y[K];
        SIMT_UNROLL for (int i = 0; i < K; i++) {
            y[i] = at.numbers.get(v + i);
            SIMT_UNROLL for (int j = 0; j < K; j++) y[i] = simt::fma(at.numbers.get(m + i * K + j), z[j], y[i]);
        }
        SIMT_UNROLL for (int i = 0; i < K; i++) z[i] = y[i];
    }

    // z = M z + v by the lanes of a team, from place `from` to place `to`, which others may read after a warp's
    // barrier.
    SIMT static void step_of_team(const place &at, int m, int v, int from, int to) {
        SIMT_UNROLL for (int r = 0; r < rows; r++) {
            const int i = at.q + r * Q;
            if (i < K) at.numbers.set(to + i, row_of(at, m, v, from, i));
        }
    }

    // Nodes 0 .. count - 1 of a buffer, in order, on the state that comes in.
    SIMT static void fold(simt::lane &me, const place &at, int buffer, int count) {
        const bool mine = at.active && at.t == 0;
        if constexpr (Q == 1) {
            if (!mine) return;
            T z[K];
            SIMT_UNROLL for (int i = 0; i < K; i++) z[i] = at.numbers.get(at.incoming(at.g, 0) + i);
            SIMT_ROLLED for (int n = 0; n < count; n++) step(at, at.s(buffer, at.g, n), at.s(buffer, at.g, n) + E, z);
            SIMT_UNROLL for (int i = 0; i < K; i++) at.numbers.set(at.incoming(at.g, 0) + i, z[i]);
        } else {
            for (int n = 0; n < count; n++) {
                const int s = at.s(buffer, at.g, n);
                if (mine) step_of_team(at, s, s + E, at.incoming(at.g, n % 2), at.incoming(at.g, 1 - n % 2));
                me.warp_barrier();
            }
            if (mine && count % 2 == 1) SIMT_UNROLL for (int r = 0; r < rows; r++) {
                    const int i = at.q + r * Q;
                    if (i < K) at.numbers.set(at.incoming(at.g, 0) + i, at.numbers.get(at.incoming(at.g, 1) + i));
                }
        }
    }

    // Leaves the state that comes into the tile in incoming(g, 0).
    SIMT static void look_back(simt::lane &me, const problem<T> &p, const place &at, int64_t tile, int64_t group,
                               int buffer) {
        const int columns = columns_of(p, group);
        for (int i = me.thread(); i < p.group * K; i += me.threads()) {
            const int g = i / K, e = i % K;
            const bool given = p.z0 && g < columns;
            at.numbers.set(at.incoming(g, 0) + e, given ? p.z0[at.offsets.get(g * 4 + 2) + e] : T(0));
        }
        me.barrier();
        for (int level = p.levels - 1; level >= 0; level--) {
            int64_t size = 1;
            for (int l = 0; l < level; l++) size *= S::teams;
            const int64_t end = tile / size, begin = end / S::teams * S::teams;
            if (begin == end) continue;
            fetch(me, p, at, level, begin, (int)(end - begin), group, buffer);
            fold(me, at, buffer, (int)(end - begin));
            me.barrier();
        }
    }

    // The states take b's places.
    SIMT static void apply(simt::lane &me, const place &at, int buffer) {
        const int in = at.incoming(at.g, 0), s = at.s(buffer, at.g, at.t - 1);
        if constexpr (Q == 1) {
            if (!at.active) return;
            T z[K];
            SIMT_UNROLL for (int i = 0; i < K; i++) z[i] = at.numbers.get(in + i);
            if (at.t > 0) step(at, s, s + E, z);
            SIMT_ROLLED for (int n = 0; n < S::items; n++) {
                const int b = at.b(at.g, at.t, n, 0);
                step(at, at.a(at.g, at.t, n, 0), b, z);
                SIMT_UNROLL for (int i = 0; i < K; i++) at.numbers.set(b + i, z[i]);
            }
        } else {
            int z = in;
            if (at.active && at.t > 0) {
                z = at.start(at.g, at.t);
                step_of_team(at, s, s + E, in, z);
            }
            me.warp_barrier();
            SIMT_ROLLED for (int n = 0; n < S::items; n++) {
                const int b = at.b(at.g, at.t, n, 0);
                if (at.active) step_of_team(at, at.a(at.g, at.t, n, 0), b, z, b);
                me.warp_barrier();
                z = b;
            }
        }
    }

    // The states to who takes them, a step and column a lane.
    SIMT static void give(simt::lane &me, const arguments &a, const place &at, int64_t first, int64_t group) {
        const problem<T> &p = a.p;
        const int columns = columns_of(p, group);
        for (int i = me.thread(); i < S::steps * p.group; i += me.threads()) {
            const int g = i & (p.group - 1), s = i >> p.shift;
            if (first + s >= p.length || g >= columns) continue;
            T z[K];
            SIMT_UNROLL for (int e = 0; e < K; e++) z[e] = at.numbers.get(at.b(g, s / S::items, s % S::items, e));
            Source::take(me, a.source, group * p.group + g, first + s, z);
        }
    }

    SIMT static void store(simt::lane &me, const problem<T> &p, const place &at, int64_t tile, int64_t group) {
        const int columns = columns_of(p, group);
        for (int i = me.thread(); i < S::steps * p.group * K; i += me.threads()) {
            const int e = i % K, g = i / K & (p.group - 1), s = i / K >> p.shift;
            const int64_t m = tile * S::steps + s;
            if (m < p.length && g < columns)
                p.z[at.offsets.get(g * 4 + 3) + m * p.z_step + e] =
                    at.numbers.get(at.b(g, s / S::items, s % S::items, e));
        }
    }
};

// ---- the launcher ----

constexpr size_t page = 256;

struct sizes {
    size_t cleared, bytes;  // ticket and flags; all
    int64_t blocks;
    bool fits;  // into one launch
};

// Group is the most columns of a tile. Fills what the caller of the chain does not know.
template <class T, int K, class S, int Group>
inline sizes plan(problem<T> *p) {
    p->group = 1;
    p->shift = 0;
    while (p->group < Group && p->group < p->columns) p->group *= 2, p->shift++;
    p->groups = (p->columns + p->group - 1) / p->group;
    p->tiles = (p->length + S::steps - 1) / S::steps;
    const int64_t nodes = plan_nodes<S>(p) * p->groups;
    sizes s;
    s.blocks = p->tiles * p->groups;
    s.fits = s.blocks <= INT32_MAX;
    s.cleared = (((size_t)nodes + 1) * sizeof(uint32_t) + page - 1) / page * page;
    s.bytes = s.cleared + (size_t)nodes * (size_t)(p->group * (K * K + K)) * sizeof(T);
    return s;
}

// p->length and p->columns are positive. Status as simt::launch's, -1 where the grid would be too large.
template <class T, int K, class S, int Group, class Source = stored>
inline int run(problem<T> p, void *workspace, void *stream, typename Source::arguments source = {}) {
    typedef kernel<T, K, S, Group, Source> k;
    const sizes s = plan<T, K, S, Group>(&p);
    if (!s.fits) return -1;
    p.ticket = static_cast<uint32_t *>(workspace);
    p.flags = p.ticket + 1;
    p.nodes = reinterpret_cast<T *>(static_cast<unsigned char *>(workspace) + s.cleared);
    const int status = simt::clear(workspace, s.cleared, stream);
    if (status != 0) return status;
    const int64_t shared = layout<S, K>::of(p.group).bytes((int)sizeof(T));
    if (shared > usual_shared) return -1;
    return simt::launch<k>({s.blocks, threads_of<S>(p.group), shared, false}, stream, typename k::arguments{p, source});
}

}  // namespace linear

#endif
