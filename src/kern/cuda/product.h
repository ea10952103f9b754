// SPDX-License-Identifier: MIT
// Large products on a device: what a tile of c = start + a b takes, of operands in either order, for plain launches.
//
// A block makes a tile; a thread M x N of its sums, in quads of 4 x 4, which stay in registers. Slices of both operands
// go through shared memory, k by k, in two buffers by turns: while one is multiplied with, the next one is on its way
// to registers. So a slice costs one barrier, and a number k a thread (M + N) / 4 reads of four numbers for M N
// multiply-adds: of 8 x 8, 4 for 64.
//
// A sum begins where its start is and takes k in order, one fma each, whatever the tile: shapes of tiles differ in
// speed alone, and the launcher takes the one whose tiles keep most multiprocessors at work.
#ifndef DPCRI_CUDA_PRODUCT_H
#define DPCRI_CUDA_PRODUCT_H

#include <type_traits>

#include "kern/cuda/shapes.h"
#include "kern/cuda/simt.h"

namespace product {

// Warps of 4 x 8 lanes, Tall x Wide of them; slices of Depth numbers k.
template <int Rows, int Columns, int Tall, int Wide, int Depth>
struct shape {
    static constexpr int M = Rows, N = Columns, depth = Depth, threads = Tall * Wide * simt::warp_size;
    static constexpr bool packed = M * N >= 64;  // registers are to leave room for two blocks a multiprocessor
    static constexpr int beside = Tall * Wide < 4 ? 4 / (Tall * Wide) : 1;  // blocks that a multiprocessor does at once
    static constexpr int rows = Tall * 4 * M, columns = Wide * 8 * N;       // of a tile
    // In shared memory: a's slice, [depth][tall], then b's, [depth][wide]. 4 numbers more than there are, so that what
    // is turned on its way there meets different banks.
    static constexpr int tall = rows + 4, wide = columns + 4, slice = depth * (tall + wide);
    static_assert(M % 4 == 0 && N % 4 == 0 && depth % 8 == 0, "quads, and pairs of them");

    template <class T>
    static constexpr int64_t shared_bytes() {
        return 2 * (int64_t)slice * (int64_t)sizeof(T);
    }
    // Of the tile: row of sum i, column of sum j of this thread.
    SIMT static int row(const simt::lane &me, int i) {
        return me.warp() / Wide * 4 * M + i / 4 * 16 + me.in_warp() / 8 * 4 + i % 4;
    }
    SIMT static int column(const simt::lane &me, int j) {
        return me.warp() % Wide * 8 * N + j / 4 * 32 + me.in_warp() % 8 * 4 + j % 4;
    }
};

// ---- operands: lines of numbers side by side; a product sums along them, or down them ----

template <class T, bool Along>
struct operand {
    static constexpr bool along = Along;
    int64_t lines, wide;  // of numbers; numbers of each
    bool quads;           // number 0 of each line lies at a multiple of 16 bytes, and so where each fourth one lies
    SIMT int64_t lie(int64_t c) const { return c; }  // where number c of a line lies
    SIMT T value(T v) const { return v; }  // what it counts as, of 0 a 0; asked for once the slice before is done with
};

// Lines `stride` apart; from NULL on missing ones.
template <class T, bool Along>
struct matrix : operand<T, Along> {
    const T *from;
    int64_t stride;
    typedef const T *place;
    struct pace {
        int64_t by;
    };
    SIMT pace pace_of(int64_t by) const { return {from ? by * stride : 0}; }
    SIMT place start(int64_t n) const { return from ? from + n * stride : nullptr; }
    SIMT static void go(place &line, const pace &p) { line += p.by; }
    SIMT static const T *at(place line) { return line; }
    SIMT matrix(const T *numbers, int64_t apart, const operand<T, Along> &o)
        : operand<T, Along>(o), from(numbers), stride(apart) {}
};

// Lines of steps of sequences: line n is step n / rows of sequence n % rows. At: at(l, row), NULL where a line is
// missing, which counts as zeros.
template <class T, bool Along, class At>
struct steps : operand<T, Along> {
    At of;
    int64_t rows;
    struct place {
        int64_t l, row;
    };
    struct pace {
        int64_t whole, rest;
    };
    SIMT pace pace_of(int64_t by) const { return {by / rows, by % rows}; }
    SIMT place start(int64_t n) const { return {n / rows, n % rows}; }
    SIMT void go(place &n, const pace &p) const {
        n.l += p.whole, n.row += p.rest;
        if (n.row >= rows) n.row -= rows, n.l++;
    }
    SIMT const T *at(const place &n) const { return of.at(n.l, n.row); }
    SIMT steps(const At &lines_at, int64_t each, const operand<T, Along> &o)
        : operand<T, Along>(o), of(lines_at), rows(each) {}
};

// Are numbers at from + stride i, for all i, at multiples of 16 bytes?
template <class T>
SIMT_BOTH bool in_quads(const T *from, int64_t stride) {
    return reinterpret_cast<uintptr_t>(from) % 16 == 0 && stride * (int64_t)sizeof(T) % 16 == 0;
}

// ---- a slice of an operand: global memory, registers, shared memory ----

// `count` lines of the tile from `first` on, `depth` numbers of each a slice.
template <class T, int threads, int count, int depth, class Operand, bool along = Operand::along>
struct slices {
    static constexpr int quads = count * depth / 4, mine = (quads + threads - 1) / threads, stride = count + 4;
    static constexpr int lines = 2 * count > threads ? 2 * count / threads : 1;  // of this thread
    const Operand &of;
    const int thread;
    const T *from[lines];

    SIMT slices(simt::lane &me, const Operand &o, int64_t first, int64_t) : of(o), thread(me.thread()) {
        SIMT_UNROLL for (int v = 0; v < lines; v++) {
            const int64_t n = first + line(v);
            from[v] = n < of.lines ? of.at(of.start(n)) : nullptr;
        }
    }
    // Two quads of 16 lines a warp: sectors of global memory whole, banks of shared memory once each.
    SIMT int line(int v) const { return (thread + v * threads) / 2 % count; }
    SIMT int beside(int v) const { return (thread + v * threads) % 2 * 4 + (thread + v * threads) / (2 * count) * 8; }
    SIMT bool has(int v) const { return quads % threads == 0 || thread + v * threads < quads; }

    // The slice from k on, of those before `end`.
    SIMT void load(int64_t k, int64_t end, int64_t, T (&to)[mine][4]) const {
        SIMT_UNROLL for (int v = 0; v < mine; v++) {
            const T *const line = from[v % lines];
            const int64_t c = k + beside(v);
            SIMT_UNROLL for (int j = 0; j < 4; j++) to[v][j] = 0;
            if (!has(v) || !line) continue;
            if (of.quads && c + 4 <= end) {
                const simt::pack<T, 4> four = simt::load<4>(line + of.lie(c));
                SIMT_UNROLL for (int j = 0; j < 4; j++) to[v][j] = four.at[j];
            } else {
                SIMT_UNROLL for (int j = 0; j < 4; j++) if (c + j < end) to[v][j] = line[of.lie(c + j)];
            }
        }
    }
    SIMT void set(const simt::shared<T> &s, int base, const T (&from_here)[mine][4]) const {
        SIMT_UNROLL for (int v = 0; v < mine; v++) if (has(v)) SIMT_UNROLL for (int j = 0; j < 4; j++)
            s.set(base + (beside(v) + j) * stride + line(v), of.value(from_here[v][j]));
    }
};

// `depth` lines a slice, `count` numbers of each from `first` on.
template <class T, int threads, int count, int depth, class Operand>
struct slices<T, threads, count, depth, Operand, false> {
    static constexpr int quads = count * depth / 4, mine = (quads + threads - 1) / threads, stride = count + 4;
    const Operand &of;
    const int thread;
    int64_t offset;  // of the thread's quad in each line
    int there;       // numbers of it
    typename Operand::place place[mine];
    typename Operand::pace pace;

    SIMT slices(simt::lane &me, const Operand &o, int64_t number, int64_t k)
        : of(o), thread(me.thread()), offset(o.lie(number + beside())), pace(o.pace_of(depth)) {
        const int64_t left = o.wide - number - beside();
        there = left < 0 ? 0 : left < 4 ? (int)left : 4;
        SIMT_UNROLL for (int v = 0; v < mine; v++) place[v] = of.start(k + line(v));
    }
    SIMT int line(int v) const { return (thread + v * threads) / (count / 4); }
    SIMT int beside() const { return thread % (count / 4) * 4; }
    SIMT bool has(int v) const { return quads % threads == 0 || thread + v * threads < quads; }

    SIMT void load(int64_t k, int64_t end, int64_t number, T (&to)[mine][4]) {
        SIMT_UNROLL for (int v = 0; v < mine; v++) {
            const T *const line = has(v) && there > 0 && k + this->line(v) < end ? of.at(place[v]) : nullptr;
            of.go(place[v], pace);
            SIMT_UNROLL for (int j = 0; j < 4; j++) to[v][j] = 0;
            if (!line) continue;
            if (of.quads && there == 4) {
                const simt::pack<T, 4> four = simt::load<4>(line + offset);
                SIMT_UNROLL for (int j = 0; j < 4; j++) to[v][j] = four.at[j];
            } else {
                SIMT_UNROLL for (int j = 0; j < 4; j++) if (j < there) to[v][j] = line[of.lie(number + beside() + j)];
            }
        }
    }
    SIMT void set(const simt::shared<T> &s, int base, const T (&from_here)[mine][4]) const {
        SIMT_UNROLL for (int v = 0; v < mine; v++) if (has(v)) {
            simt::pack<T, 4> four;
            SIMT_UNROLL for (int j = 0; j < 4; j++) four.at[j] = of.value(from_here[v][j]);
            s.set(base + line(v) * stride + beside(), four);
        }
    }
};

// ---- a tile ----

// What a slice's numbers at `number`, a thread's quads `apart` numbers from each other, are.
template <class T, int Count>
SIMT void read(const simt::shared<T> &s, int number, int apart, T (&to)[Count]) {
    SIMT_UNROLL for (int q = 0; q < Count; q += 4) {
        const simt::pack<T, 4> four = s.template get<4>(number + q / 4 * apart);
        SIMT_UNROLL for (int j = 0; j < 4; j++) to[q + j] = four.at[j];
    }
}

template <class T, class S>
SIMT void multiply(simt::lane &me, const simt::shared<T> &s, int base, T (&sum)[S::M][S::N]) {
    const int a = base + S::row(me, 0), b = base + S::depth * S::tall + S::column(me, 0);
    T x[2][S::M], y[2][S::N];
    read<T, S::M>(s, a, 16, x[0]);
    read<T, S::N>(s, b, 32, y[0]);
    SIMT_UNROLL for (int k = 0; k < S::depth; k++) {
        if (k + 1 < S::depth) {
            read<T, S::M>(s, a + (k + 1) * S::tall, 16, x[(k + 1) % 2]);
            read<T, S::N>(s, b + (k + 1) * S::wide, 32, y[(k + 1) % 2]);
        }
        SIMT_UNROLL for (int i = 0; i < S::M; i++) SIMT_UNROLL for (int j = 0; j < S::N; j++) sum[i][j] =
            simt::fma(y[k % 2][j], x[k % 2][i], sum[i][j]);
    }
}

struct nothing {
    template <class T>
    SIMT void operator()(const simt::shared<T> &, int, int) const {}
};

// sum += numbers first <= k < end of a's rows from `row` on times those of b's columns from `column` on. `beside`:
// done with each slice too, where a's and where b's numbers begin; each k's are `tall` and `wide` apart. Operands that
// are summed along their lines begin at k = 0, or at quads.
template <class T, class S, class A, class B, class Beside = nothing>
SIMT void add(simt::lane &me, const A &a, int64_t row, const B &b, int64_t column, int64_t first, int64_t end,
              T (&sum)[S::M][S::N], const Beside &beside = Beside()) {
    typedef slices<T, S::threads, S::rows, S::depth, A> of_a;
    typedef slices<T, S::threads, S::columns, S::depth, B> of_b;
    constexpr int after_a = S::depth * S::tall;
    if (first >= end) return;
    const simt::shared<T> s = me.template array<T>(0, 2 * S::slice);
    of_a from_a(me, a, row, first);
    of_b from_b(me, b, column, first);
    T next_a[of_a::mine][4], next_b[of_b::mine][4];
    from_a.load(first, end, row, next_a);
    from_b.load(first, end, column, next_b);
    from_a.set(s, 0, next_a);  // the tile before ended with a barrier
    from_b.set(s, after_a, next_b);
    me.barrier();
    int base = 0;
    SIMT_ROLLED for (int64_t k = first; k < end; k += S::depth) {
        const bool more = k + S::depth < end;
        if (more) {
            from_a.load(k + S::depth, end, row, next_a);
            from_b.load(k + S::depth, end, column, next_b);
        }
        multiply<T, S>(me, s, base, sum);
        beside(s, base, base + after_a);
        base = S::slice - base;  // read before the last barrier
        if (more) {
            from_a.set(s, base, next_a);
            from_b.set(s, base + after_a, next_b);
        }
        me.barrier();
    }
}

// visit(row, numbers) of each of a thread's rows of the tile, row by row: what is done with numbers in the end is
// large, and registers have no index, so the next row comes to where the first one was.
template <class S, class T, class Visit>
SIMT void each_row(simt::lane &me, T (&sum)[S::M][S::N], const Visit &visit) {
    SIMT_ROLLED for (int i = 0; i < S::M; i++) {
        visit(S::row(me, i), sum[0]);
        SIMT_UNROLL for (int n = 0; n + 1 < S::M; n++) SIMT_UNROLL for (int j = 0; j < S::N; j++) sum[n][j] =
            sum[n + 1][j];
    }
}

// Up to 4 numbers side by side; none counts as zeros.
template <class T>
SIMT void take(const T *from, int64_t left, bool quads, T (&to)[4]) {
    SIMT_UNROLL for (int j = 0; j < 4; j++) to[j] = 0;
    if (quads && left >= 4) {
        const simt::pack<T, 4> four = simt::load<4>(from);
        SIMT_UNROLL for (int j = 0; j < 4; j++) to[j] = four.at[j];
    } else {
        SIMT_UNROLL for (int j = 0; j < 4; j++) if (j < left) to[j] = from[j];
    }
}
template <class T>
SIMT void give(T *to, int64_t left, bool quads, const T (&from)[4]) {
    if (quads && left >= 4) {
        simt::pack<T, 4> four;
        SIMT_UNROLL for (int j = 0; j < 4; j++) four.at[j] = from[j];
        simt::store(to, four);
    } else {
        SIMT_UNROLL for (int j = 0; j < 4; j++) if (j < left) to[j] = from[j];
    }
}

// ---- the launcher ----

typedef shape<4, 4, 4, 2, 16> medium;  // 64 x 64
template <class T>
struct shapes {
    typedef shape<8, 8, 4, 2, 8> large;   // 128 x 128
    typedef shape<4, 4, 1, 4, 8> low;     // 16 x 128
    typedef shape<8, 4, 1, 1, 16> small;  // 32 x 32
};
template <>
struct shapes<double> {  // whose numbers take two registers
    typedef medium large;
    typedef shape<4, 4, 1, 2, 8> low;     // 16 x 64
    typedef shape<4, 4, 1, 1, 16> small;  // 16 x 32
};

constexpr int64_t multiprocessors = 132;  // that tiles are dealt out to: of an H100; others are as right

template <class S>
int64_t tiles_of(int64_t tall, int64_t wide, int64_t times) {
    return ::shapes::over(tall, S::rows) * ::shapes::over(wide, S::columns) * times;
}

// `times` products of tall x wide numbers in tiles of S: what the multiprocessor with most of them takes, where a
// number of a tile takes `each`.
template <class S>
double cost_of(int64_t tall, int64_t wide, int64_t times, double each) {
    const int64_t turns = ::shapes::over(tiles_of<S>(tall, wide, times), multiprocessors * S::beside);
    return (double)(turns * S::beside) * each * S::rows * S::columns;
}

template <class Kernel>
struct together_twice : Kernel {
    static constexpr int together = 2;
};

// Use: a struct with `task` and kernel<S>, whose arguments that is, of S::threads, whose tiles are dealt out by number.
template <class Use, class T, class S>
int launch_shape(int64_t tall, int64_t wide, int64_t times, const typename Use::task &a, void *stream) {
    const int64_t blocks = ::shapes::blocks_of(tiles_of<S>(tall, wide, times));
    typedef typename Use::template kernel<S> plain;
    typedef typename std::conditional<S::packed, together_twice<plain>, plain>::type kernel;
    return simt::launch<kernel>({blocks, S::threads, S::template shared_bytes<T>(), false}, stream, a);
}

template <class Use, class T>
int launch(int64_t tall, int64_t wide, int64_t times, const typename Use::task &a, void *stream) {
    typedef typename shapes<T>::large large;
    typedef typename shapes<T>::low low;
    typedef typename shapes<T>::small small;
    const double of_large = cost_of<large>(tall, wide, times, sizeof(T) == 4 ? 1.0 : 1.3);
    const double of_medium = cost_of<medium>(tall, wide, times, 1.3), of_low = cost_of<low>(tall, wide, times, 1.6);
    const double of_small = cost_of<small>(tall, wide, times, 1.7);
    if (of_small < of_low && of_small < of_medium && of_small < of_large)
        return launch_shape<Use, T, small>(tall, wide, times, a, stream);
    if (of_low < of_medium && of_low < of_large) return launch_shape<Use, T, low>(tall, wide, times, a, stream);
    return of_medium < of_large ? launch_shape<Use, T, medium>(tall, wide, times, a, stream)
                                : launch_shape<Use, T, large>(tall, wide, times, a, stream);
}

}  // namespace product

#endif
