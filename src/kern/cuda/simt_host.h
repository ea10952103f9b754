// SPDX-License-Identifier: MIT
// simt.h on the CPU: every lane is a fiber on one thread, and a scheduler decides who goes on. Between two calls of
// simt.h a lane runs undisturbed; at each one another may go on, in an order that settings::seed fixes: whoever came
// last, who came first, or anybody. `resident` blocks are there at a time, taken from the grid in random order.
//
// Stops the program, with block, thread and line, where
//     lanes of a warp or a block meet at different lines, or one has left while others wait for it
//     numbers that go at once lie at another byte than multiples of their alignment
//     a number in shared memory is read or overwritten without a barrier after another lane's access, read while a
//     copy to it is under way, or read though nothing was written there
//     no resident lane can go on
//     a grid barrier stands in a plain launch
//
// It proves logic, not memory order: global memory is seen in the order of the program here.
//
// Kernels' sources see declarations alone: what runs them is compiled once (tests/cuda/simulator.cpp).
#ifndef DPCRI_CUDA_SIMT_HOST_H
#define DPCRI_CUDA_SIMT_HOST_H

#include <cstring>
#include <type_traits>

#define SIMT inline
#define SIMT_CALLED inline
#define SIMT_BOTH inline
#define SIMT_UNROLL
#define SIMT_UNROLL_4
#define SIMT_ROLLED

namespace simt {

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline double exp(double x) { return __builtin_exp(x); }
inline double log(double x) { return __builtin_log(x); }
inline uint32_t fma(uint32_t a, uint32_t b, uint32_t c) { return a * b + c; }

namespace host {

// What the next launches run under.
struct settings {
    uint64_t seed = 1;
    int resident = 4;            // blocks at a time; cooperative launches have all of theirs
    int cooperative_blocks = 8;  // of a cooperative launch at most
    int64_t shared_bytes = 227 << 10;
    int room_error = 0;    // of the question how many those are
    int64_t switches = 0;  // counted: what a test costs
};
extern settings config;

struct block;

// Of the block that runs: where `count` numbers of `size` bytes begin in its shared memory.
block *own_array(int64_t byte, int count, int64_t size);
// Byte of number i.
int64_t place(int64_t byte, int count, int i, int64_t size);

// Of `size` bytes, from any lane of the warp.
void shuffle(void *value, size_t size, int from, int line);
// Number `byte` of a shared array will be what stands at `from`.
void copy_async(block *home, int64_t byte, const void *from, int size, int line);
// Stops unless a byte, of shared memory or an address, is a multiple of `alignment`.
void check_aligned(int64_t byte, size_t alignment, int line);
template <class P>
void check_aligned(const void *p, int line) {
    check_aligned((int64_t) reinterpret_cast<intptr_t>(p), alignof(P), line);
}
// Of the block that runs, `bytes` from `byte` on.
void read_shared(const block *home, int64_t byte, void *to, int bytes);
void write_shared(block *home, int64_t byte, const void *from, int bytes);

void copy_close();
void copy_wait_but(int groups, int line);
// The lane has seen what was posted so far.
void looked();
// A word for who waits, late.
void post(void *to, const void *from, size_t size, int line);

typedef void kernel_body(const void *arguments);
int launch(const shape &s, int most, kernel_body *body, const void *arguments);

}  // namespace host

// Compiled for float, double, int32_t, uint32_t and int64_t, and packs of 8 and 16 bytes.
template <class T>
struct shared {
    host::block *home;
    int64_t byte;
    int count;

    T get(int i) const;
    void set(int i, T value) const;
    template <int N>
    pack<T, N> get(int i, int line = __builtin_LINE()) const {
        pack<T, N> value;
        host::read_shared(home, place_of<N>(i, line), value.at, (int)sizeof value.at);
        return value;
    }
    template <int N>
    void set(int i, const pack<T, N> &value, int line = __builtin_LINE()) const {
        host::write_shared(home, place_of<N>(i, line), value.at, (int)sizeof value.at);
    }
    template <int N>
    int64_t place_of(int i, int line) const {
        const int64_t first = host::place(byte, count, i, (int64_t)sizeof(T));
        (void)host::place(byte, count, i + N - 1, (int64_t)sizeof(T));
        host::check_aligned(first, alignof(pack<T, N>), line);
        return first;
    }
};

template <int N, class T>
inline pack<T, N> load(const T *from, int line = __builtin_LINE()) {
    pack<T, N> value;
    host::check_aligned<pack<T, N>>(from, line);
    std::memcpy(value.at, from, sizeof value.at);
    return value;
}
template <class T, int N>
inline void store(T *to, const pack<T, N> &value, int line = __builtin_LINE()) {
    host::check_aligned<pack<T, N>>(to, line);
    std::memcpy(to, value.at, sizeof value.at);
}

struct lane {
    int thread() const;
    int threads() const;
    int in_warp() const;
    int warp() const;
    int64_t block() const;
    int64_t blocks() const;
    int opaque(int x) const { return x; }

    template <class T>
    shared<T> array(int64_t byte, int count) const {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
        return shared<T>{host::own_array(byte, count, (int64_t)sizeof(T)), byte, count};
    }

    void barrier(int line = __builtin_LINE());
    void warp_barrier(int line = __builtin_LINE());
    template <class T>
    T shuffle(T value, int from, int line = __builtin_LINE()) {
        static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a number");
        host::shuffle(&value, sizeof(T), from, line);
        return value;
    }
    template <class T>
    T shuffle_up(T value, int n, int line = __builtin_LINE()) {
        return shuffle(value, in_warp() - n >= 0 ? in_warp() - n : in_warp(), line);
    }
    template <class T>
    T shuffle_down(T value, int n, int line = __builtin_LINE()) {
        return shuffle(value, in_warp() + n < warp_size ? in_warp() + n : in_warp(), line);
    }
    template <class T>
    T shuffle_xor(T value, int n, int line = __builtin_LINE()) {
        return shuffle(value, in_warp() ^ n, line);
    }
    bool any(bool condition, int line = __builtin_LINE());
    int first(bool condition, int line = __builtin_LINE());

    uint32_t ticket(uint32_t *counter, int line = __builtin_LINE());
    void publish(uint32_t *flag, uint32_t value, int line = __builtin_LINE());
    void release(uint32_t *flag, uint32_t value, int line = __builtin_LINE()) { publish(flag, value, line); }
    uint32_t acquire(const uint32_t *flag, int line = __builtin_LINE());
    void await(const uint32_t *flag, uint32_t value, int line = __builtin_LINE());
    void raise(uint32_t *to, uint32_t value, int line = __builtin_LINE());
    template <class W>
    void post(W *to, W value, int line = __builtin_LINE()) {
        host::check_aligned<W>(to, line);
        host::post(to, &value, sizeof(W), line);
    }
    template <class W>
    pack<W, 2> look(const pack<W, 2> *from, int line = __builtin_LINE()) {
        host::check_aligned<pack<W, 2>>(from, line);
        host::looked();
        return *from;
    }
    void look_again(int line = __builtin_LINE());
    template <class T>
    T peer_load(const T *from) {
        return *from;
    }
    template <class T>
    void peer_store(T *to, T value) {
        *to = value;
    }
    template <class T, int N>
    pack<T, N> peer_load(const pack<T, N> *from, int line = __builtin_LINE()) {
        host::check_aligned<pack<T, N>>(from, line);
        return *from;
    }
    template <class T, int N>
    void peer_store(pack<T, N> *to, pack<T, N> value, int line = __builtin_LINE()) {
        host::check_aligned<pack<T, N>>(to, line);
        *to = value;
    }
    template <int N, class T>
    pack<T, N> stream_load(const T *from, int line = __builtin_LINE()) {
        return load<N>(from, line);
    }
    template <int N, class T>
    void stream_store(T *to, pack<T, N> value, int line = __builtin_LINE()) {
        store(to, value, line);
    }

    void grid_barrier(int line = __builtin_LINE());

    // What is copied is what stands there when it lands, at the wait; until then nobody may look at the place.
    template <class T>
    void copy_async(const shared<T> &to, int i, const T *from, int line = __builtin_LINE()) {
        host::copy_async(to.home, host::place(to.byte, to.count, i, (int64_t)sizeof(T)), from, (int)sizeof(T), line);
    }
    template <class T>
    void copy_async_wide(const shared<T> &to, int i, const T *from, int line = __builtin_LINE()) {
        (void)to.template place_of<wide<T>>(i, line);
        host::check_aligned<pack<T, wide<T>>>(from, line);
        for (int k = 0; k < wide<T>; k++) copy_async(to, i + k, from + k, line);
    }
    void copy_close() { host::copy_close(); }
    void copy_wait_but(int groups, int line = __builtin_LINE()) { host::copy_wait_but(groups, line); }
    void copy_wait(int line = __builtin_LINE());
};

template <class K>
inline int launch(shape s, void *stream, typename K::arguments a) {
    (void)stream;
    static_assert(std::is_trivially_copyable<typename K::arguments>::value, "arguments are plain data");
    return host::launch(
        s, K::most,
        [](const void *arguments) {
            lane me;
            K::run(me, *static_cast<const typename K::arguments *>(arguments));
        },
        &a);
}

inline int room_of_block(int64_t *bytes) {
    *bytes = host::config.shared_bytes;
    return host::config.room_error;
}

template <class K>
inline int64_t side_by_side(int threads, int64_t shared_bytes) {
    return threads > K::most || shared_bytes > host::config.shared_bytes ? 0 : host::config.cooperative_blocks;
}
template <class K>
inline int64_t cooperative_blocks(int threads, int64_t shared_bytes) {
    return side_by_side<K>(threads, shared_bytes);
}

inline int fill(void *memory, int byte, size_t bytes, void *stream) {
    (void)stream;
    std::memset(memory, byte, bytes);
    return 0;
}
inline int clear(void *memory, size_t bytes, void *stream) { return fill(memory, 0, bytes, stream); }

}  // namespace simt

#endif
