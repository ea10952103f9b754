// SPDX-License-Identifier: MIT
// Allocations of C++ between fences, so that a plain run sees a kernel leave its arrays: what is large ends where a
// page begins that must not be touched, and what lies around each array has the bits of NaN, which a read carries into
// results and a write changes, found when the array is freed. A freed page is gone. Alignment stays that of operator
// new. Not seen: a read of the filler that leads to nothing; arrays of malloc, or of a type with an alignment of its
// own.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr size_t zone = 64, most_mapped = 16000;  // a process has some 65000 mappings, here two each
constexpr int filler = 0xff;

// Where an array's memory begins; the filler follows up to the array, but for how far the head is, which stands among
// it.
constexpr size_t told = 32;  // before the array
struct head {
    size_t bytes, memory;  // the array's; all memory's, where it is mapped, else 0
};

size_t mapped = 0;  // tests start no threads

size_t page_bytes() {
    static const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

[[noreturn]] void stop(const char *what, const void *array, size_t bytes) {
    std::fprintf(stderr, "fences: %s the array of %zu bytes at %p\n", what, bytes, array);
    std::abort();
}

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// The filler after the array: up to the fence, or a zone.
size_t after(const head *h) { return rounded(h->bytes, 16) - h->bytes + (h->memory ? 0 : zone); }

bool filled(const unsigned char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (from[i] != filler) return false;
    return true;
}

void *fenced(size_t bytes) noexcept {
    char *memory;
    if (bytes > PTRDIFF_MAX / 2) return nullptr;
    const size_t kept = rounded(bytes, 16);
    head h = {bytes, 0};
    size_t before = zone;
    if (bytes >= 512 && mapped < most_mapped) {
        const size_t page = page_bytes(), inside = rounded(zone + kept, page);
        h.memory = inside + page;
        before = inside - kept;
        void *got = mmap(nullptr, h.memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED) return nullptr;
        memory = static_cast<char *>(got);
        if (mprotect(memory + inside, page, PROT_NONE) != 0) stop("no fence for", got, bytes);
        mapped++;
    } else if (!(memory = static_cast<char *>(std::malloc(before + kept + zone)))) {
        return nullptr;
    }
    std::memcpy(memory, &h, sizeof h);
    std::memset(memory + sizeof h, filler, before - sizeof h);
    char *array = memory + before;
    std::memset(array + bytes, filler, after(&h));
    std::memcpy(array - told, &before, sizeof before);
    return array;
}

void release(void *of) noexcept {
    if (!of) return;
    unsigned char *array = static_cast<unsigned char *>(of);
    size_t before;
    std::memcpy(&before, array - told, sizeof before);
    if (before < zone || before >= zone + 2 * page_bytes()) stop("something was written before", of, 0);
    head h;
    std::memcpy(&h, array - before, sizeof h);
    if (!filled(array - before + sizeof h, before - sizeof h - told) ||
        !filled(array - told + sizeof before, told - sizeof before))
        stop("something was written before", of, h.bytes);
    if (!filled(array + h.bytes, after(&h))) stop("something was written after", of, h.bytes);
    if (!h.memory) return std::free(array - before);
    mapped--;
    munmap(array - before, h.memory);
}

void *fenced_or_thrown(size_t bytes) {
    void *array = fenced(bytes);
    if (!array) throw std::bad_alloc();
    return array;
}

}  // namespace

void *operator new(size_t bytes) { return fenced_or_thrown(bytes); }
void *operator new[](size_t bytes) { return fenced_or_thrown(bytes); }
void *operator new(size_t bytes, const std::nothrow_t &) noexcept { return fenced(bytes); }
void *operator new[](size_t bytes, const std::nothrow_t &) noexcept { return fenced(bytes); }
void operator delete(void *array) noexcept { release(array); }
void operator delete[](void *array) noexcept { release(array); }
void operator delete(void *array, size_t) noexcept { release(array); }
void operator delete[](void *array, size_t) noexcept { release(array); }
void operator delete(void *array, const std::nothrow_t &) noexcept { release(array); }
void operator delete[](void *array, const std::nothrow_t &) noexcept { release(array); }
