// SPDX-License-Identifier: MIT
// Linear chains of widths 1 and 2 that lie in memory, one pass over it at its speed: z_m = A_m z_{m-1} + b_m.
//
// linear.h's fold over nodes at fixed places, with each number read once. What a step costs there is little; what has
// to be short is the time from a tile's loads to its stores, for on-chip memory over that time is the speed. A run is
// `items` steps of one column, a thread's. `teams` runs are a node, 32 nodes a span. A tile is a block's work: 1, 2, 4
// .. 32 columns of 32, 16 .. 1 nodes, so 32 teams threads.
//
//     load      the tile into shared memory, a warp its runs together, so that neighbouring lanes read neighbouring
//               numbers: by copies that go on by themselves, of packs where those may go
//     reduce    each thread its run, in order, to a summary (M, v): what it makes of a state, M z + v; the first warp
//               makes the nodes' of the runs' and posts them, or the span's where the tile is one
//     look back the state at the span's start: that at the start of some octet of spans, put through the octets since,
//               one after the other, and then through spans; which octet's is known by then does not matter for the
//               bits. Tiles that are parts of a span put it through the nodes to their left too, and the last of them
//               posts the span's summary, before it waits
//     apply     the tile's nodes and runs to the left, then the run itself; the octet's last tile posts the state at
//               the octet's end; store. A block then takes the next tile that nobody has
//
// Only fixed pairs of nodes, pairs of those and so on up to spans are composed, and of spans up to octets; all else is
// applied to states in the order of steps. So bits are those of n, K, items and teams: not of who came first, nor of
// how many columns there are or a tile has.
//
// Between blocks summaries and states travel as letters: words of which each says by itself that it is there, so nobody
// waits for one thing to read another, and no store waits for those before it. A tile waits for tiles of lower tickets
// only, and its state is known one way there and back after the last of their summaries, of up to 256 spans.
//
// Work a column and step: K^3 + 2 K^2, of which K^3 for K = 1 is one product. Memory: a, b and z once each, and
// (K^2 + K) / (items teams) numbers a step and column for nodes where a tile is not a span.
#ifndef DPCRI_CUDA_LINEAR_STREAM_H
#define DPCRI_CUDA_LINEAR_STREAM_H

#include "kern/cuda/linear_stream_parts.h"

namespace linear {

namespace stream {

// Alone: tiles of one column.
template <class T, int K, class S, bool Alone>
struct kernel {
    typedef arguments_of<T> arguments;
    typedef simt::pack<T, 2> two;
    typedef summary<T, K> sum;
    typedef typename letter<T>::word word;
    static constexpr int E = K * K, N = E + K, across = 16 / (int)sizeof(T);
    static constexpr int most = S::threads, together = 2;
    static_assert(simt::warp_size == radix && radix % E == 0 && N % 2 == 0, "widths 1 and 2");

    struct place {
        layout bytes;
        int group, shift, each;     // columns of a tile; nodes of one
        int column, run;            // the thread's, in the tile
        int64_t tile, number;       // tile of the sequence, group of columns
        int columns;                // that are there
        simt::shared<two> records;  // of the whole memory
        simt::shared<T> states;
        // First record of
        SIMT static int place_of(int byte) { return byte / (int)sizeof(two); }
        SIMT int team(int r, int c) const {
            return place_of(bytes.teams) + (((r + r / S::teams) << shift) + c) * (N / 2);
        }
        SIMT int node(int n, int c) const { return place_of(bytes.nodes) + ((n << shift) + c) * (N / 2); }
        SIMT int bundle_of(int q, int c) const { return place_of(bytes.bundles) + ((q << shift) + c) * (N / 2); }
        SIMT int made(int c) const { return place_of(bytes.made) + c * (N / 2); }
        SIMT int slot(int i, int c) const { return place_of(bytes.slots) + ((i << shift) + c) * (N / 2); }
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
        SIMT state<T, K> get_state(int c) const {
            state<T, K> z;
            SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = states.get(c * K + i);
            return z;
        }
        SIMT void put_state(int c, const state<T, K> &z) const {
            SIMT_UNROLL for (int i = 0; i < K; i++) states.set(c * K + i, z.x[i]);
        }
        SIMT int64_t first_step() const { return tile * each * S::node; }
        SIMT int64_t span() const { return tile * each >> radix_log; }
        SIMT int left() const { return (int)(tile * each) & (radix - 1); }  // nodes in the span
        SIMT bool ends_span() const { return left() + each == radix; }
    };

    SIMT static void run(simt::lane &me, const arguments &a) {
        const problem<T> &p = a.p;
        const simt::shared<uint32_t> drawn = me.template array<uint32_t>(0, 1);
        const uint32_t groups = (uint32_t)p.groups;
        place at;
        at.bytes = a.at;
        at.group = Alone ? 1 : p.group;
        at.shift = Alone ? 0 : p.shift;
        at.each = radix >> at.shift;
        at.column = me.thread() & (at.group - 1);
        at.run = me.thread() >> at.shift;
        at.records = me.template array<two>(0, a.at.bytes / (int)sizeof(two));
        at.states = me.template array<T>(a.at.states, (at.group > S::teams ? at.group : S::teams) * K);
        uint32_t next = me.thread() == 0 ? me.ticket(p.ticket) + 1 : 0;  // all bits of the counter were set
        SIMT_ROLLED for (;;) {
            if (me.thread() == 0) {
                while (!may_load(me, a, at, next)) me.look_again();
                drawn.set(0, next);
            }
            me.barrier();
            const uint32_t ticket = drawn.get(0);
            if (ticket >= a.work) return;
            at.tile = ticket / groups;
            at.number = ticket % groups;
            const int64_t left = p.columns - at.number * at.group;
            at.columns = left < at.group ? (int)left : at.group;

            const staging<E> of_a(me, p, at, a.at.a);
            const staging<K> of_b(me, p, at, a.at.b);
            load(me, a, at, of_a, of_b);
            at.put(at.team(at.run, at.column), reduce(p, of_a, of_b));
            me.barrier();
            if (me.warp() == 0) make_nodes(me, a, at);
            if constexpr (Alone)
                look_back_alone(me, a, at);
            else
                look_back(me, a, at);
            me.barrier();
            if (me.thread() == 0) {
                if (Alone) post_end(me, a, at, at.get_state(0));
                next = me.ticket(p.ticket) + 1;  // it comes while the states are made
            }
            apply(p, at, of_a, of_b);
            store(me, a, at, of_b);
        }
    }

    // So that tiles come from memory one after the other, not all at a time, one waits until that `a.ahead` tickets
    // before has come; of a sequence's last nobody hears.
    SIMT static bool may_load(simt::lane &me, const arguments &a, const place &at, uint32_t ticket) {
        if (ticket >= a.work || ticket < a.ahead) return true;
        const uint32_t groups = (uint32_t)a.p.groups, tile = (ticket - a.ahead) / groups;
        const int64_t first = Alone ? tile : (int64_t)tile * at.each;
        const int64_t index = (first * groups + (ticket - a.ahead) % groups) << at.shift;
        return tile + 1 >= a.p.tiles || are_there(look(me, (Alone ? a.spans : a.nodes) + index * N));
    }

    // ---- a, b and z ----

    struct offsets {
        int64_t a, b, z0, z;
    };
    SIMT static offsets of_column(const problem<T> &p, const place &at, int column) {
        const uint32_t c = (uint32_t)(at.number * at.group + column), beside = (uint32_t)p.parts;
        const int64_t row = c / beside, part = c % beside;
        return {row * p.a_row + part * p.a_part, row * p.b_row + part * K, row * p.z0_row + part * K,
                row * p.z_row + part * K};
    }

    // The state before the first step, of a column.
    SIMT static state<T, K> start(const problem<T> &p, const place &at, int column) {
        state<T, K> z = {};
        if (p.z0 && column < at.columns) {
            const T *from = p.z0 + of_column(p, at, column).z0;
            SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = from[i];
        }
        return z;
    }

    // Of `most_steps` from `first` on, how many there are.
    SIMT static int there(const problem<T> &p, int64_t first, int most_steps) {
        const int64_t left = p.length - first;
        return left < 0 ? 0 : left < most_steps ? (int)left : most_steps;
    }

    // A warp's numbers, Each a step and column: number f of them is e of column c at step s, f = (s group + c) Each +
    // e, in that order run by run in shared memory. On the way between the two memories a lane moves those of a stride
    // of 32, or packs of them.
    template <int Each>
    struct staging {
        static constexpr int each_log = Each == 1 ? 0 : Each == 2 ? 1 : 2;
        static constexpr int own = S::items * Each;
        // Numbers lie here as they do there, where they go by packs.
        static constexpr bool flat = Alone && own % across == 0 && apart<T>(S::items, 1, Each) == own;
        simt::shared<T> numbers;
        int lane, group, shift;
        int wide_log, away, base;  // numbers of a step, their logarithm; from run to run; where the lane's run begins
        int steps, count;          // of the warp, and how many are there
        int64_t first;

        SIMT staging(simt::lane &me, const problem<T> &p, const place &at, int byte)
            : lane(me.opaque(me.in_warp())),
              group(at.group),
              shift(at.shift),
              wide_log(at.shift + each_log),
              away(apart<T>(S::items, at.group, Each)),
              steps((radix >> at.shift) * S::items) {
            const int runs = radix >> shift;
            numbers = me.template array<T>(byte + me.warp() * runs * away * (int)sizeof(T), runs * away);
            base = (lane >> shift) * away + (lane & (group - 1)) * Each;
            first = at.first_step() + (int64_t)me.warp() * steps;
            count = there(p, first, steps);
        }
        SIMT bool whole(const place &at) const { return count == steps && at.columns == group; }
        SIMT int column(int f) const { return f / Each & (group - 1); }
        SIMT int step(int f) const { return f >> wide_log; }
        SIMT int where(int f) const {
            const int s = step(f);
            return s / S::items * away + (s % S::items << wide_log) + (f & ((1 << wide_log) - 1));
        }
        // From step 0 of the tile's first column on.
        SIMT int64_t outside(int f, int64_t by) const { return step(f) * by + (f & ((1 << wide_log) - 1)); }

        // Packs to their places, where the lane need not wait for them.
        SIMT void copy_packs(simt::lane &me, const T *from, int64_t by) const {
            if constexpr (flat) {
                SIMT_UNROLL for (int h = 0; h < own / across; h++)
                    me.copy_async_wide(numbers, (h * radix + lane) * across, from + (h * radix + lane) * across);
            } else {
                SIMT_ROLLED for (int h = 0; h < own / across; h++) {
                    const int f = (h * radix + lane) * across;
                    me.copy_async_wide(numbers, where(f), from + outside(f, by));
                }
            }
        }
        SIMT void store_packs(simt::lane &me, T *to, int64_t by) const {
            if constexpr (flat) {
                SIMT_UNROLL for (int h = 0; h < own / across; h++) me.stream_store(
                    to + (h * radix + lane) * across, numbers.template get<across>((h * radix + lane) * across));
            } else {
                SIMT_ROLLED for (int h = 0; h < own / across; h++) {
                    const int f = (h * radix + lane) * across;
                    me.stream_store(to + outside(f, by), numbers.template get<across>(where(f)));
                }
            }
        }
        // Single numbers; base_of(column) is where step 0's stand, or NULL. Others become 0, or of the identity.
        template <class Base>
        SIMT void copy_singles(simt::lane &me, const Base &base_of, int64_t by, int skip, bool identity) const {
            const bool fixed = 1 << wide_log <= radix;  // then all the lane's are of one column
            const T *from = base_of(column(lane));
            SIMT_UNROLL_4 for (int i = 0; i < own; i++) {
                const int f = i * radix + lane, s = step(f), e = f % Each;
                if (!fixed) from = base_of(column(f));
                if (from && s < count && s >= skip)
                    me.copy_async(numbers, where(f), from + s * by + e);
                else
                    numbers.set(where(f), T(identity && s >= skip && e / K == e % K ? 1 : 0));
            }
        }
        template <class Base>
        SIMT void store_singles(simt::lane &me, const Base &base_of, int64_t by) const {
            const bool fixed = 1 << wide_log <= radix;
            T *to = base_of(column(lane));
            SIMT_UNROLL_4 for (int i = 0; i < own; i++) {
                const int f = i * radix + lane, s = step(f);
                if (!fixed) to = base_of(column(f));
                simt::pack<T, 1> x;
                x.at[0] = numbers.get(where(f));
                if (to && s < count) me.stream_store(to + s * by + f % Each, x);
            }
        }
        // Count numbers at `at`, by packs of Width.
        template <int Count, int Width>
        SIMT void get(int at, T *x) const {
            SIMT_UNROLL for (int h = 0; h < Count; h += Width) {
                const simt::pack<T, Width> y = numbers.template get<Width>(at + h);
                SIMT_UNROLL for (int e = 0; e < Width; e++) x[h + e] = y.at[e];
            }
        }
        template <int Count, int Width>
        SIMT void set(int at, const T *x) const {
            SIMT_UNROLL for (int h = 0; h < Count; h += Width) {
                simt::pack<T, Width> y;
                SIMT_UNROLL for (int e = 0; e < Width; e++) y.at[e] = x[h + e];
                numbers.set(at + h, y);
            }
        }
    };

    SIMT static void load(simt::lane &me, const arguments &a, const place &at, const staging<E> &of_a,
                          const staging<K> &of_b) {
        const problem<T> &p = a.p;
        const offsets first = of_column(p, at, 0);
        const int skip = of_a.first == 0 && !p.z0 ? 1 : 0;
        if (a.wide_a && of_a.whole(at) && skip == 0) {
            of_a.copy_packs(me, p.a + first.a + of_a.first * p.a_step, p.a_step);
        } else {
            const auto base = [&](int c) {
                return p.a && c < at.columns ? p.a + of_column(p, at, c).a + of_a.first * p.a_step : nullptr;
            };
            of_a.copy_singles(me, base, p.a_step, skip, true);
        }
        if (a.wide_b && of_b.whole(at)) {
            of_b.copy_packs(me, p.b + first.b + of_b.first * p.b_step, p.b_step);
        } else {
            const auto base = [&](int c) {
                return c < at.columns ? p.b + of_column(p, at, c).b + of_b.first * p.b_step : nullptr;
            };
            of_b.copy_singles(me, base, p.b_step, 0, false);
        }
        me.copy_wait();
        me.warp_barrier();
    }

    SIMT static void store(simt::lane &me, const arguments &a, const place &at, const staging<K> &of_z) {
        const problem<T> &p = a.p;
        me.warp_barrier();
        if (a.wide_z && of_z.whole(at)) {
            of_z.store_packs(me, p.z + of_column(p, at, 0).z + of_z.first * p.z_step, p.z_step);
        } else {
            const auto base = [&](int c) {
                return c < at.columns ? p.z + of_column(p, at, c).z + of_z.first * p.z_step : nullptr;
            };
            of_z.store_singles(me, base, p.z_step);
        }
    }

    // ---- the run, a part after the other ----

    // Steps of a part: of a single column those of a pack of b, where a run is whole packs.
    static constexpr bool by_packs = Alone && S::items * K % across == 0;
    static constexpr int in_part = by_packs && K < across ? across / K : 1;
    static constexpr int parts = S::items / in_part;
    static_assert(S::items % in_part == 0, "whole parts");
    // Numbers of b that lie aligned.
    static constexpr int wide_b = by_packs ? across : Alone ? 1 : K;
    static constexpr int wide_a = by_packs ? across : E < across ? E : across;

    SIMT static void get_part(const problem<T> &p, const staging<E> &of_a, const staging<K> &of_b, int part,
                              sum (&s)[in_part]) {
        T x[in_part * E], y[in_part * K];
        of_a.template get<in_part * E, wide_a>(of_a.base + (part * in_part << of_a.wide_log), x);
        of_b.template get<in_part * K, wide_b>(of_b.base + (part * in_part << of_b.wide_log), y);
        SIMT_UNROLL for (int i = 0; i < in_part; i++) {
            SIMT_UNROLL for (int e = 0; e < E; e++) s[i].x[e] = x[i * E + e];
            SIMT_UNROLL for (int e = 0; e < K; e++) s[i].x[E + e] = y[i * K + e];
            if (K > 1 && p.transposed) {
                const T x01 = s[i].x[1];
                s[i].x[1] = s[i].x[K];
                s[i].x[K] = x01;
            }
        }
    }

    SIMT static sum reduce(const problem<T> &p, const staging<E> &of_a, const staging<K> &of_b) {
        sum s[in_part];
        get_part(p, of_a, of_b, 0, s);
        sum own = s[0];
        SIMT_UNROLL for (int i = 1; i < in_part; i++) own = compose(own, s[i]);
        SIMT_UNROLL for (int h = 1; h < parts; h++) {
            get_part(p, of_a, of_b, h, s);
            SIMT_UNROLL for (int i = 0; i < in_part; i++) own = compose(own, s[i]);
        }
        return own;
    }

    // The states take b's places.
    SIMT static void apply(const problem<T> &p, const place &at, const staging<E> &of_a, const staging<K> &of_b) {
        state<T, K> z = start_of_run(at);
        SIMT_UNROLL for (int h = 0; h < parts; h++) {
            sum s[in_part];
            T states[in_part * K];
            get_part(p, of_a, of_b, h, s);
            SIMT_UNROLL for (int i = 0; i < in_part; i++) {
                z.step(s[i]);
                SIMT_UNROLL for (int e = 0; e < K; e++) states[i * K + e] = z.x[e];
            }
            of_b.template set<in_part * K, wide_b>(of_b.base + (h * in_part << of_b.wide_log), states);
        }
    }

    // What comes into the thread's run.
    SIMT static state<T, K> start_of_run(const place &at) {
        const int node = at.run / S::teams, team = at.run % S::teams;
        state<T, K> z = at.get_state(at.column);
        SIMT_ROLLED for (int q = 0; q < node / bundle; q++) z.step(at.get(at.bundle_of(q, at.column)));
        SIMT_ROLLED for (int n = node / bundle * bundle; n < node; n++) z.step(at.get(at.node(n, at.column)));
        SIMT_UNROLL for (int t = 0; t < S::teams - 1; t++) {
            state<T, K> y = z;
            y.step(at.get(at.team(node * S::teams + t, at.column)));
            SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = t < team ? y.x[i] : z.x[i];
        }
        return z;
    }

    // ---- nodes and spans ----

    SIMT static bool publishes(const arguments &a, const place &at) { return at.tile + 1 < a.p.tiles; }

    SIMT static int64_t index_of(const problem<T> &p, const place &at, int64_t i, int column) {
        return ((i * p.groups + at.number) << at.shift) + column;
    }

    SIMT static void post(simt::lane &me, word *to, const sum &s) {
        SIMT_UNROLL for (int i = 0; i < N; i++) me.post(to + i, written(s.x[i]));
    }
    SIMT static word *span_of(const arguments &a, const place &at, int64_t i, int column) {
        return a.spans + index_of(a.p, at, i, column) * N;
    }
    SIMT static word *end_of(const arguments &a, const place &at, int64_t i, int column) {
        return a.ends + index_of(a.p, at, i, column) * 2;
    }
    SIMT static word *node_of(const arguments &a, const place &at, int64_t i, int column) {
        return a.nodes + index_of(a.p, at, i, column) * N;
    }
    // The state at the octet's end, of that at the span's start, by its last span.
    SIMT static void post_end(simt::lane &me, const arguments &a, const place &at, state<T, K> z) {
        if (!publishes(a, at) || at.span() % octet != octet - 1) return;
        z.step(at.get(at.made(at.column)));
        word *to = end_of(a, at, at.span() / octet, at.column);
        SIMT_UNROLL for (int i = 0; i < 2; i++) me.post(to + i, written(z.x[i % K]));
    }

    // Two words of what blocks tell each other.
    typedef simt::pack<word, 2> words;
    SIMT static words look(simt::lane &me, const word *from) { return me.look(reinterpret_cast<const words *>(from)); }
    SIMT static bool are_there(const words &w) { return w.at[0] != (word)-1 && w.at[1] != (word)-1; }
    SIMT static state<T, K> state_in(const words &w) {
        state<T, K> z;
        SIMT_UNROLL for (int i = 0; i < K; i++) z.x[i] = number_in<T>(w.at[i]);
        return z;
    }

    // By the first warp, a lane a node of the tile and column, out of the runs' summaries.
    SIMT static void make_nodes(simt::lane &me, const arguments &a, const place &at) {
        sum s = at.get(at.team(at.run * S::teams, at.column));
        SIMT_UNROLL for (int t = 1; t < S::teams; t++) s =
            compose(s, at.get(at.team(at.run * S::teams + t, at.column)));
        at.put(at.node(at.run, at.column), s);
        if (!Alone && publishes(a, at)) post(me, node_of(a, at, at.tile * at.each + at.run, at.column), s);
        SIMT_ROLLED for (int d = 1; d < at.each; d *= 2) {
            sum right;
            SIMT_UNROLL for (int i = 0; i < N; i++) right.x[i] = me.shuffle_down(s.x[i], d << at.shift);
            s = compose(s, right);
            if (d == bundle / 2 && at.run % bundle == 0) at.put(at.bundle_of(at.run / bundle, at.column), s);
        }
        if constexpr (Alone) {
            if (me.thread() == 0 && publishes(a, at)) {
                post(me, span_of(a, at, at.span(), 0), s);
                at.put(at.made(0), s);
            }
        }
    }

    // Nodes from `from` on, `next` words apart, of which `count` are wanted, once they are there.
    template <int Most>
    SIMT static void await(simt::lane &me, const word *from, int64_t next, int count, sum (&s)[Most]) {
        words l[Most][N / 2];
        SIMT_UNROLL for (int i = 0; i < Most; i++) SIMT_UNROLL for (int h = 0; h < N / 2; h++) if (i < count) l[i][h] =
            look(me, from + i * next + 2 * h);
        SIMT_UNROLL for (int i = 0; i < Most; i++) SIMT_UNROLL for (int h = 0; h < N / 2; h++) if (i < count) {
            while (!are_there(l[i][h])) {
                l[i][h] = look(me, from + i * next + 2 * h);  // it may have come while another was awaited
                if (!are_there(l[i][h])) me.look_again();
            }
            s[i].x[2 * h] = number_in<T>(l[i][h].at[0]);
            s[i].x[2 * h + 1] = number_in<T>(l[i][h].at[1]);
        }
    }

    // ---- looking back: tiles that are spans ----

    // What a span makes of a state, if it has come.
    SIMT static bool has_come(simt::lane &me, const word *from, sum &s) {
        bool all = true;
        words w[N / 2];
        SIMT_UNROLL for (int h = 0; h < N / 2; h++) w[h] = look(me, from + 2 * h);
        SIMT_UNROLL for (int h = 0; h < N / 2; h++) {
            all = all && are_there(w[h]);
            s.x[2 * h] = number_in<T>(w[h].at[0]);
            s.x[2 * h + 1] = number_in<T>(w[h].at[1]);
        }
        return all;
    }

    // Octet j is that which begins 8 j spans before the tile's own does. A warp has four, a lane a span of them, and
    // lanes 0 .. 3 the states at the starts of the one before and of three of the four; the first warp has the tile's
    // own octet's spans too. Wanted are the nearest state that is known and all spans since. Only what is wanted and
    // was not there is looked at again: hundreds of blocks do so, at the same words.
    SIMT static void look_back_alone(simt::lane &me, const arguments &a, const place &at) {
        constexpr int each = simt::warp_size / octet, warps = S::teams < reach / each ? S::teams : reach / each;
        const int lane = me.in_warp(), first = me.warp() * each, j = first + 1 + lane / octet;
        const int64_t own = at.span() / octet;
        const int singles = (int)(at.span() % octet);
        const bool helps = me.warp() < warps, mine = helps && j <= own, single = me.warp() == 0 && lane < singles;
        const simt::shared<int32_t> heads = me.template array<int32_t>(at.bytes.heads, warps);
        bool have = false, have_single = false;
        sum s = {}, of_single = {};
        int nearest = reach;
        SIMT_ROLLED while (nearest == reach) {
            const int64_t before = own - first - lane;  // octets before the lane's state
            const bool asks = helps && lane < each && before > 0;
            words end;
            if (asks) end = look(me, end_of(a, at, before - 1, 0));
            if (mine && !have) have = has_come(me, span_of(a, at, (own - j) * octet + lane % octet, 0), s);
            if (single && !have_single) have_single = has_come(me, span_of(a, at, own * octet + lane, 0), of_single);
            const int found = me.first(helps && lane < each && (before == 0 || (before > 0 && are_there(end))));
            if (lane == found) at.put_state(me.warp(), before == 0 ? start(a.p, at, 0) : state_in(end));
            if (helps && lane == 0) heads.set(me.warp(), found < each ? first + found : reach);
            me.barrier();
            SIMT_UNROLL for (int w = warps - 1; w >= 0; w--) nearest = heads.get(w) < reach ? heads.get(w) : nearest;
            if (nearest < reach) break;
            me.look_again();
            me.barrier();
        }
        const bool wanted = mine && j <= nearest;
        SIMT_ROLLED while (me.any((wanted && !have) || (single && !have_single))) {
            if (wanted && !have) have = has_come(me, span_of(a, at, (own - j) * octet + lane % octet, 0), s);
            if (single && !have_single) have_single = has_come(me, span_of(a, at, own * octet + lane, 0), of_single);
            if (me.any((wanted && !have) || (single && !have_single))) me.look_again();
        }
        SIMT_UNROLL for (int d = 1; d < octet; d *= 2) {
            sum right;
            SIMT_UNROLL for (int i = 0; i < N; i++) right.x[i] = me.shuffle_down(s.x[i], d);
            s = compose(s, right);
        }
        if (wanted && lane % octet == 0) at.put(at.slot(j - 1, 0), s);
        if (single) at.put(at.slot(reach + lane, 0), of_single);
        me.barrier();
        if (me.thread() == 0) {
            state<T, K> z = at.get_state(nearest / each);
            fold(at, 0, nearest - 1, -1, nearest, z);
            fold(at, 0, reach, 1, singles, z);
            at.put_state(0, z);
        }
    }

    // `count` slots from `from` on, forwards or backwards, a few on their way at a time.
    SIMT static void fold(const place &at, int column, int from, int by, int count, state<T, K> &z) {
        constexpr int few = K == 1 ? 8 : sizeof(T) == 4 ? 4 : 2;
        SIMT_ROLLED for (int i = 0; i < count; i += few) {
            sum s[few];
            SIMT_UNROLL for (int k = 0; k < few; k++) if (i + k < count) s[k] =
                at.get(at.slot(from + by * (i + k), column));
            SIMT_UNROLL for (int k = 0; k < few; k++) if (i + k < count) z.step(s[k]);
        }
    }

    // ---- looking back: tiles that are parts of spans ----

    static constexpr int at_once = K == 1 ? 4 : 2;  // summaries under way: more would not fit into registers

    // The state at the span's start, of the thread's column.
    SIMT static state<T, K> entry(simt::lane &me, const arguments &a, const place &at) {
        const int64_t own = at.span() / octet, next = a.p.groups << at.shift;
        const word *ends = end_of(a, at, 0, at.column), *spans = span_of(a, at, 0, at.column);
        int64_t from = own;  // the octet whose start's state is known
        state<T, K> z = {};
        SIMT_ROLLED for (bool found = false; !found;) {
            words l[2];
            const int64_t nearest = from;
            SIMT_UNROLL for (int i = 0; i < 2; i++) if (nearest - i > 0) l[i] =
                look(me, ends + (nearest - i - 1) * next * 2);
            SIMT_UNROLL for (int i = 0; i < 2; i++) if (!found) {
                from = nearest - i;
                found = from == 0 || are_there(l[i]);
                if (found)
                    z = from == 0 ? start(a.p, at, at.column) : state_in(l[i]);
                else
                    from--;
            }
        }
        sum pair = {}, four = {};
        SIMT_ROLLED for (int64_t i = from * octet; i < at.span(); i += at_once) {
            const int64_t left = own * octet > i ? at_once : at.span() - i;
            const int count = left < at_once ? (int)left : at_once;
            sum s[at_once];
            await<at_once>(me, spans + i * next * N, next * N, count, s);
            if (i >= own * octet) {
                SIMT_UNROLL for (int k = 0; k < at_once; k++) if (k < count) z.step(s[k]);
            } else {
                const int at_octet = (int)(i % octet);
                SIMT_UNROLL for (int k = 0; k < at_once; k += 2) {
                    sum t = compose(s[k], s[k + 1]);
                    if ((at_octet + k) % 4 == 2) t = compose(pair, t);
                    if ((at_octet + k) == 6) z.step(compose(four, t));
                    if ((at_octet + k) % 4 == 0)
                        pair = t;
                    else
                        four = t;
                }
            }
        }
        return z;
    }

    // Four nodes beside each other.
    template <class Get>
    SIMT static sum bundle_up(const Get &node) {
        const sum left = compose(node(0), node(1));
        return compose(left, compose(node(2), node(3)));
    }

    // The span's nodes to the left into slots: bundles, then single ones; a barrier follows.
    SIMT static void fetch(simt::lane &me, const arguments &a, const place &at) {
        const problem<T> &p = a.p;
        const int left = at.left();
        const int64_t begin = at.tile * at.each - left, next = (p.groups << at.shift) * N;
        // The first warp has other things to do.
        const int helpers = me.threads() > simt::warp_size ? me.threads() - simt::warp_size : me.threads();
        for (int f = me.threads() - 1 - me.thread();
             f < (left + bundle - 1) / bundle << at.shift && me.thread() >= me.threads() - helpers; f += helpers) {
            const int c = f & (at.group - 1), q = f >> at.shift;
            const int count = left - q * bundle < bundle ? left - q * bundle : bundle;
            const word *from = node_of(a, at, begin + q * bundle, c);
            sum n[at_once], pair = {};
            SIMT_ROLLED for (int done = 0; done < count; done += at_once) {
                const int now = count - done < at_once ? count - done : at_once;
                await<at_once>(me, from + done * next, next, now, n);
                if (count < bundle) {
                    SIMT_UNROLL for (int i = 0; i < at_once; i++) if (i < now) at.put(at.slot(q + done + i, c), n[i]);
                    continue;
                }
                SIMT_UNROLL for (int i = 0; i < at_once; i += 2) {
                    const sum s = compose(n[i], n[i + 1]);
                    if (done + i > 0)
                        at.put(at.slot(q, c), compose(pair, s));
                    else
                        pair = s;
                }
            }
        }
    }

    // Bundle q of the span, whose last nodes are the tile's.
    SIMT static sum bundle_at(const place &at, int q) {
        const int left = radix - at.each, full = left / bundle, single = left % bundle;
        if (q < full) return at.get(at.slot(q, at.column));
        if (at.each >= bundle) return at.get(at.bundle_of(q - full, at.column));
        return bundle_up(
            [&](int k) { return at.get(k < single ? at.slot(full + k, at.column) : at.node(k - single, at.column)); });
    }
    // The span: pairs of bundles, pairs of those, and of those.
    SIMT static sum of_bundles(const place &at) {
        static_assert(radix / bundle == 8, "three of them");
        sum one = {}, couple = {}, four = {}, s = {};
        SIMT_ROLLED for (int q = 0; q < radix / bundle; q++) {
            s = bundle_at(at, q);
            if (q & 1) s = compose(one, s);
            if ((q & 3) == 3) s = compose(couple, s);
            if (q == 7) s = compose(four, s);
            if (!(q & 1))
                one = s;
            else if (!(q & 2))
                couple = s;
            else
                four = s;
        }
        return s;
    }

    // Leaves the states that come into the tile in `states`. The span's last tile posts its summary before it waits for
    // what is before the span; others look for both at a time.
    SIMT static void look_back(simt::lane &me, const arguments &a, const place &at) {
        const bool mine = me.thread() < at.group, ends = publishes(a, at) && at.ends_span();
        state<T, K> z = {};
        SIMT_ROLLED for (int turn = 0; turn < 2; turn++) {
            if (mine && turn == (ends ? 1 : 0)) z = entry(me, a, at);
            if (turn == 1) break;
            fetch(me, a, at);
            me.barrier();
            if (mine && ends) {
                const sum s = of_bundles(at);
                post(me, span_of(a, at, at.span(), at.column), s);
                at.put(at.made(at.column), s);
            }
        }
        if (!mine) return;
        if (ends) post_end(me, a, at, z);
        fold(at, at.column, 0, 1, at.left() / bundle + at.left() % bundle, z);
        at.put_state(at.column, z);
    }
};

}  // namespace stream

}  // namespace linear

#endif
