// SPDX-License-Identifier: MIT
// simt.h on a CUDA device.
#ifndef DPCRI_CUDA_SIMT_DEVICE_H
#define DPCRI_CUDA_SIMT_DEVICE_H

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <type_traits>

#define SIMT __device__ __forceinline__
#define SIMT_CALLED __device__ __noinline__
#define SIMT_BOTH __host__ __device__ __forceinline__
#define SIMT_UNROLL _Pragma("unroll")
#define SIMT_UNROLL_4 _Pragma("unroll 4")
#define SIMT_ROLLED _Pragma("unroll 1")

extern __shared__ __align__(16) unsigned char dpcri_simt_shared[];

namespace simt {

SIMT float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
SIMT double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
SIMT float sqrt(float x) { return __fsqrt_rn(x); }
SIMT double sqrt(double x) { return __dsqrt_rn(x); }
SIMT double exp(double x) { return ::exp(x); }
SIMT double log(double x) { return ::log(x); }
SIMT uint32_t fma(uint32_t a, uint32_t b, uint32_t c) { return a * b + c; }

// A pack as one access has it.
template <size_t Bytes>
struct word;
template <>
struct word<4> {
    typedef unsigned type;
};
template <>
struct word<8> {
    typedef uint2 type;
};
template <>
struct word<16> {
    typedef uint4 type;
};
template <class T, int N, class W>
SIMT pack<T, N> as_pack(W bits) {
    pack<T, N> p;
    memcpy(&p, &bits, sizeof p);
    return p;
}
template <class W, class P>
SIMT W as_word(P p) {
    W bits;
    memcpy(&bits, &p, sizeof bits);
    return bits;
}

template <int N, class T>
SIMT pack<T, N> load(const T *from) {
    return *reinterpret_cast<const pack<T, N> *>(from);
}
template <class T, int N>
SIMT void store(T *to, const pack<T, N> &value) {
    *reinterpret_cast<pack<T, N> *>(to) = value;
}

template <class T>
struct shared {
    T *data;
    SIMT T get(int i) const { return data[i]; }
    SIMT void set(int i, T value) const { data[i] = value; }
    template <int N>
    SIMT pack<T, N> get(int i) const {
        return load<N>(data + i);
    }
    template <int N>
    SIMT void set(int i, const pack<T, N> &value) const {
        store(data + i, value);
    }
};

struct lane {
    SIMT int thread() const { return (int)threadIdx.x; }
    SIMT int threads() const { return (int)blockDim.x; }
    SIMT int in_warp() const { return (int)(threadIdx.x % warp_size); }
    SIMT int warp() const { return (int)(threadIdx.x / warp_size); }
    SIMT int64_t block() const { return blockIdx.x; }
    SIMT int64_t blocks() const { return gridDim.x; }
    SIMT int opaque(int x) const {
        asm volatile("" : "+r"(x));
        return x;
    }

    template <class T>
    SIMT shared<T> array(int64_t byte, int count) const {
        (void)count;
        return shared<T>{reinterpret_cast<T *>(dpcri_simt_shared + byte)};
    }

    SIMT void barrier() { __syncthreads(); }
    SIMT void warp_barrier() { __syncwarp(); }
    template <class T>
    SIMT T shuffle(T value, int from) {
        return __shfl_sync(0xffffffffu, value, from);
    }
    template <class T>
    SIMT T shuffle_up(T value, int n) {
        return __shfl_up_sync(0xffffffffu, value, (unsigned)n);
    }
    template <class T>
    SIMT T shuffle_down(T value, int n) {
        return __shfl_down_sync(0xffffffffu, value, (unsigned)n);
    }
    template <class T>
    SIMT T shuffle_xor(T value, int n) {
        return __shfl_xor_sync(0xffffffffu, value, n);
    }
    SIMT bool any(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }

    SIMT int first(bool condition) {
        const unsigned votes = __ballot_sync(0xffffffffu, condition);
        return votes ? __ffs((int)votes) - 1 : warp_size;
    }

    SIMT uint32_t ticket(uint32_t *counter) { return atomicAdd(counter, 1u); }
    SIMT void raise(uint32_t *to, uint32_t value) { atomicMax(to, value); }
    SIMT void publish(uint32_t *flag, uint32_t value) {
        __threadfence();  // cumulative by itself; the store's release says it again
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
    }
    SIMT void release(uint32_t *flag, uint32_t value) {
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
    }
    SIMT uint32_t acquire(const uint32_t *flag) {
        uint32_t value;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
        return value;
    }
    SIMT void await(const uint32_t *flag, uint32_t value) {
        while (acquire(flag) != value) __nanosleep(20);
    }
    SIMT void post(uint32_t *to, uint32_t v) {
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
    }
    SIMT void post(uint64_t *to, uint64_t v) {
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
    }
    SIMT pack<uint32_t, 2> look(const pack<uint32_t, 2> *from) {
        pack<uint32_t, 2> v;
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v.at[0]), "=r"(v.at[1])
                     : "l"(from)
                     : "memory");
        return v;
    }
    SIMT pack<uint64_t, 2> look(const pack<uint64_t, 2> *from) {
        pack<uint64_t, 2> v;
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(v.at[0]), "=l"(v.at[1])
                     : "l"(from)
                     : "memory");
        return v;
    }
    SIMT void look_again() { __nanosleep(20); }
    // Past the first-level caches, which do not see what other multiprocessors write.
    template <class T>
    SIMT T peer_load(const T *from) {
        return __ldcg(from);
    }
    template <class T>
    SIMT void peer_store(T *to, T value) {
        __stcg(to, value);
    }

    template <class T, int N>
    SIMT pack<T, N> peer_load(const pack<T, N> *from) {
        typedef typename word<sizeof(pack<T, N>)>::type bits;
        return as_pack<T, N>(__ldcg(reinterpret_cast<const bits *>(from)));
    }
    template <class T, int N>
    SIMT void peer_store(pack<T, N> *to, pack<T, N> value) {
        typedef typename word<sizeof(pack<T, N>)>::type bits;
        __stcg(reinterpret_cast<bits *>(to), as_word<bits>(value));
    }
    template <int N, class T>
    SIMT pack<T, N> stream_load(const T *from) {
        typedef typename word<sizeof(pack<T, N>)>::type bits;
        return as_pack<T, N>(__ldcs(reinterpret_cast<const bits *>(from)));
    }
    template <int N, class T>
    SIMT void stream_store(T *to, pack<T, N> value) {
        typedef typename word<sizeof(pack<T, N>)>::type bits;
        __stcs(reinterpret_cast<bits *>(to), as_word<bits>(value));
    }

    SIMT void grid_barrier() { cooperative_groups::this_grid().sync(); }

    template <class T>
    SIMT void copy_async(const shared<T> &to, int i, const T *from) {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "one number at a time");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        const unsigned place = (unsigned)__cvta_generic_to_shared(to.data + i);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(sizeof(T)) : "memory");
#else
        to.data[i] = *from;
#endif
    }
    template <class T>
    SIMT void copy_async_wide(const shared<T> &to, int i, const T *from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        const unsigned place = (unsigned)__cvta_generic_to_shared(to.data + i);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
#else
        *reinterpret_cast<uint4 *>(to.data + i) = *reinterpret_cast<const uint4 *>(from);
#endif
    }
    SIMT void copy_close() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }
    SIMT void copy_wait_but(int groups) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        switch (groups) {  // the instruction takes a constant
            case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
            case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
            case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
            case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
            case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
            case 6: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
            case 7: asm volatile("cp.async.wait_group 7;" ::: "memory"); break;
            default: asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
#else
        (void)groups;
#endif
    }
    SIMT void copy_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    }
};

template <class K, class = void>
struct resident {
    static constexpr int blocks = 0;  // as if nothing were said
};
template <class K>
struct resident<K, std::void_t<decltype(K::together)>> {
    static constexpr int blocks = K::together;
};

template <class K>
__global__ void __launch_bounds__(K::most, resident<K>::blocks) entry(const typename K::arguments a) {
    lane me;
    K::run(me, a);
}
template <class K>
__global__ void __launch_bounds__(K::most, K::together) entry_together(const typename K::arguments a) {
    lane me;
    K::run(me, a);
}

// A bound of one block is not none: registers become other ones.
template <class K, class = void>
struct entries {
    static auto of() { return entry<K>; }
};
template <class K>
struct entries<K, decltype((void)K::together)> {
    static auto of() { return entry_together<K>; }
};

// Bytes of shared memory that a block of the current device has at most.
inline int room_of_block(int64_t *bytes) {
    int device = 0, room = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) (void)cudaGetLastError();
    *bytes = room;
    return (int)error;
}

// More than 48 KB of shared memory has to be asked for: all that there is, whatever this launch wants, since the
// kernel's next one, on another thread, may want more.
template <class K>
inline cudaError_t allow(int64_t shared_bytes) {
    int64_t room = 0;
    if (shared_bytes <= 48 << 10) return cudaSuccess;
    const int error = room_of_block(&room);
    if (error != 0) return (cudaError_t)error;
    if (shared_bytes > room) return cudaErrorInvalidValue;
    return cudaFuncSetAttribute(entries<K>::of(), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room);
}

// Kernels whose blocks are to lie together want the first-level cache's room for their shared memory: a hint.
template <class K>
inline cudaError_t prefer() {
    return resident<K>::blocks == 0
               ? cudaSuccess
               : cudaFuncSetAttribute(entries<K>::of(), cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared);
}

template <class K>
inline int launch(shape s, void *stream, typename K::arguments a) {
    cudaError_t error = allow<K>(s.shared_bytes);
    if (error == cudaSuccess) error = prefer<K>();
    void *arguments[] = {&a};
    const dim3 blocks((unsigned)s.blocks), threads((unsigned)s.threads);
    if (error == cudaSuccess)
        error = s.cooperative ? cudaLaunchCooperativeKernel(entries<K>::of(), blocks, threads, arguments,
                                                            (size_t)s.shared_bytes, static_cast<cudaStream_t>(stream))
                              : cudaLaunchKernel(entries<K>::of(), blocks, threads, arguments, (size_t)s.shared_bytes,
                                                 static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) (void)cudaGetLastError();  // a refused launch leaves the context usable
    return (int)error;
}

// Blocks that the current device has room for at a time; 0 where it does not say.
template <class K>
inline int64_t side_by_side(int threads, int64_t shared_bytes) {
    int device = 0, processors = 0, each = 0;
    const bool known =
        cudaGetDevice(&device) == cudaSuccess && allow<K>(shared_bytes) == cudaSuccess && prefer<K>() == cudaSuccess &&
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, entries<K>::of(), threads, (size_t)shared_bytes) ==
            cudaSuccess;
    if (!known) (void)cudaGetLastError();
    return known ? (int64_t)processors * each : 0;
}

// Blocks of a cooperative launch at most; 0 where the device refuses them.
template <class K>
inline int64_t cooperative_blocks(int threads, int64_t shared_bytes) {
    int device = 0, served = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&served, cudaDevAttrCooperativeLaunch, device) == cudaSuccess;
    if (!known) (void)cudaGetLastError();
    return known && served != 0 ? side_by_side<K>(threads, shared_bytes) : 0;
}

// Bytes of one value before what follows on the stream.
inline int fill(void *memory, int byte, size_t bytes, void *stream) {
    const cudaError_t error = cudaMemsetAsync(memory, byte, bytes, static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) (void)cudaGetLastError();
    return (int)error;
}
inline int clear(void *memory, size_t bytes, void *stream) { return fill(memory, 0, bytes, stream); }

}  // namespace simt

#endif
