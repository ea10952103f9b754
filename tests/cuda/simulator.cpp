// SPDX-License-Identifier: MIT
// What runs the lanes of simt_host.h: fibers, their collectives, shared memory's shadow, and who goes on.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "kern/cuda/simt.h"

namespace simt {

namespace host {

settings config;

enum class state { ready, spinning, at_warp, at_block, at_grid, done };
enum class collective { shuffle, vote, warp_barrier };

constexpr size_t stack_bytes = 64 << 10;
constexpr int value_bytes = 8;

// A copy that has not landed.
struct copy {
    int64_t byte;
    int bytes;
    const void *from;
};

struct fiber {
    void *stack_pointer = nullptr;
    unsigned char *stack = nullptr;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
    block *home = nullptr;
    struct warp *team = nullptr;
    int thread = 0;
    state is = state::ready;
    int line = 0;
    collective kind = collective::shuffle;
    int from = 0;
    unsigned char value[value_bytes] = {};
    unsigned char result[value_bytes] = {};
    int64_t seen = -1;   // how much had been posted when it first looked since it last waited; -1: it has not looked
    bool looks = false;  // waits to look again
    std::vector<copy> copies;
    std::vector<size_t> groups;  // how many of them had been asked for where each group was closed
};

struct warp {
    int waiting = 0, barred = 0, left = 0;  // lanes at a collective of the warp; at a barrier of block or grid; gone
    int line = 0;                           // of the collective that they wait at
    collective kind = collective::shuffle;
    int32_t met = 0;  // when its lanes last met at a barrier of it
};

// Who touched a number of shared memory last, and when, by the block's clock. read 0: nobody since it was written;
// reader_warp -1: lanes of several warps.
struct shadow {
    int32_t written = 0, read = 0;
    int16_t writer = -1, reader = -1;
    int8_t reader_warp = -1;
    bool readers = false, in_flight = false;
};

constexpr int granule = 4;  // bytes of shared memory that a shadow stands for

struct block {
    int64_t index = 0;
    int threads = 0, waiting = 0, done = 0, at_grid = 0;
    int line = 0;  // of the barrier that lanes wait at
    // Every barrier of the block or of one of its warps is a tick of the clock, which goes on from launch to launch:
    // what lies before `began` is a former launch's.
    int32_t clock = 0, began = 0, met = 0;  // met: when all lanes last met at a barrier
    std::vector<warp> warps;
    std::vector<std::unique_ptr<fiber>> lanes;
    std::vector<unsigned char> memory;
    std::vector<shadow> shadows;
};

struct grid {
    shape is = {};
    kernel_body *body = nullptr;
    const void *arguments = nullptr;
    std::vector<std::unique_ptr<block>> resident;
    std::vector<fiber *> ready, spinning;
    int64_t at_barrier = 0, left = 0, posted = 0;
    int line = 0;
    uint64_t random = 0;
    int policy = 0;
    size_t oldest = 0;
    fiber scheduler;
};

namespace {

grid *running = nullptr;
fiber *current = nullptr, *former = nullptr;
std::vector<std::unique_ptr<block>> spare;  // blocks of former launches, for their stacks

[[noreturn]] __attribute__((format(printf, 2, 3))) void stop_at(const fiber *at, const char *format, ...) {
    if (at)
        std::fprintf(stderr, "simt: block %lld, thread %d, line %d: ", (long long)at->home->index, at->thread,
                     at->line);
    va_list list;
    va_start(list, format);
    std::vfprintf(stderr, format, list);
    va_end(list);
    std::fputc('\n', stderr);
    std::abort();
}

uint64_t draw(grid &g) {  // splitmix64
    uint64_t x = g.random += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// ---- fibers ----

#if defined(__x86_64__)
// Leaves the registers that a call keeps on this stack, its top in *from, and goes on with those on the stack `to`.
__attribute__((naked, noinline)) void swap_stacks(void ** /* from */, void * /* to */) {
    __asm__(
        "pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
        "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
        "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}
#endif

// From one fiber to another.
void change(fiber *from, fiber *to) {
    config.switches++;
    former = from;
    current = to;
#if defined(__x86_64__)
    swap_stacks(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->context, &to->context);
#endif
}

fiber *next(grid &g);
void leave(fiber *f);

void start() {
    running->body(running->arguments);
    fiber *f = current;
    leave(f);
    change(f, &running->scheduler);
    std::abort();
}

void prepare(fiber *f) {
    if (!f->stack) {
        void *memory =
            mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) stop_at(nullptr, "simt: no memory for stacks");
        f->stack = static_cast<unsigned char *>(memory);
    }
#if defined(__x86_64__)
    void **top = reinterpret_cast<void **>(f->stack + stack_bytes);
    *--top = nullptr;  // where start would return to
    void (*const entry)() = start;
    std::memcpy(--top, &entry, sizeof entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f->stack_pointer = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = stack_bytes;
    f->context.uc_link = nullptr;
    makecontext(&f->context, start, 0);
#endif
}

// ---- collectives ----

void wake(fiber *f) {
    f->is = state::ready;
    running->ready.push_back(f);
}

void wake_spinning() {
    grid &g = *running;
    for (fiber *f : g.spinning) wake(f);
    g.spinning.clear();
}
// Lanes of the warp that were about to look again do so where another of its lanes waits for them.
void wake_warp(const fiber *f) {
    std::vector<fiber *> &all = running->spinning;
    for (size_t i = all.size(); i-- > 0;) {
        fiber *other = all[i];
        if (!other->looks || other->home != f->home || other->thread / warp_size != f->thread / warp_size) continue;
        all.erase(all.begin() + (long)i);
        wake(other);
    }
}

// Whoever is next goes on, at the scheduler's word: that is asked only where nobody can.
void yield(fiber *f) {
    fiber *to = next(*running);
    if (to != f) change(f, to ? to : &running->scheduler);
}

// This lane waits as `how`; comes back when somebody has woken it.
void wait(fiber *f, state how) {
    f->is = how;
    yield(f);
}

// Another lane may go on here.
void pause(fiber *f) {
    wake(f);
    yield(f);
}

warp &warp_of(fiber *f) { return *f->team; }

void meet_warp(fiber *f, collective kind, int line) {
    block &b = *f->home;
    warp &w = warp_of(f);
    f->line = line;
    const int first = f->thread / warp_size * warp_size;
    if (w.left > 0) stop_at(f, "divergent collective: %d lanes of the warp have left", w.left);
    if (w.barred > 0) stop_at(f, "divergent collective: %d lanes of the warp wait at a barrier", w.barred);
    if (w.waiting > 0 && (w.line != line || w.kind != kind))
        stop_at(f, "divergent collective: %d lanes of the warp wait at line %d", w.waiting, w.line);
    w.line = line;
    w.kind = kind;
    if (++w.waiting < warp_size) {
        wake_warp(f);
        return wait(f, state::at_warp);
    }
    w.waiting = 0;
    if (kind == collective::warp_barrier) w.met = ++b.clock;
    uint32_t votes = 0;
    for (int i = 0; i < warp_size && kind == collective::vote; i++)
        votes |= (uint32_t)b.lanes[(size_t)(first + i)]->value[0] << i;
    for (int i = 0; i < warp_size; i++) {
        fiber &other = *b.lanes[(size_t)(first + i)];
        if (kind == collective::vote) std::memcpy(other.result, &votes, sizeof votes);
        if (kind == collective::shuffle)
            std::memcpy(other.result, b.lanes[(size_t)(first + other.from)]->value, value_bytes);
    }
    for (int i = 0; i < warp_size; i++)
        if (first + i != f->thread) wake(b.lanes[(size_t)(first + i)].get());
    pause(f);
}

// Checks that go with every barrier of more than a warp.
void check_barrier(fiber *f) {
    const warp &w = warp_of(f);
    const block &b = *f->home;
    if (w.waiting > 0)
        stop_at(f, "divergent collective: a barrier, and %d lanes of the warp wait at line %d", w.waiting, w.line);
    if (b.done > 0) stop_at(f, "barrier that %d lanes never reach: they have left", b.done);
    if (b.waiting + b.at_grid > 0 && b.line != f->line)
        stop_at(f, "divergent barrier: %d lanes wait at line %d", b.waiting + b.at_grid, b.line);
}

void pass(block &b, const fiber *but) {
    b.waiting = b.at_grid = 0;
    b.met = ++b.clock;
    for (warp &w : b.warps) w.barred = 0;
    for (const auto &other : b.lanes)
        if (other.get() != but) wake(other.get());
}

void meet_block(fiber *f, int line) {
    block &b = *f->home;
    f->line = line;
    check_barrier(f);
    b.line = line;
    warp_of(f).barred++;
    if (++b.waiting < b.threads) return wait(f, state::at_block);
    pass(b, f);
    pause(f);
}

void meet_grid(fiber *f, int line) {
    grid &g = *running;
    f->line = line;
    if (!g.is.cooperative) stop_at(f, "grid barrier in a launch that is not cooperative");
    if (g.left > 0) stop_at(f, "grid barrier that %lld lanes never reach: they have left", (long long)g.left);
    if (g.at_barrier > 0 && g.line != line) stop_at(f, "divergent grid barrier: others wait at line %d", g.line);
    check_barrier(f);
    f->home->line = g.line = line;
    f->home->at_grid++;
    warp_of(f).barred++;
    if (++g.at_barrier < g.is.blocks * g.is.threads) return wait(f, state::at_grid);
    g.at_barrier = 0;
    for (const auto &b : g.resident) pass(*b, f);
    pause(f);
}

void leave(fiber *f) {
    block &b = *f->home;
    if (!f->copies.empty()) stop_at(f, "a lane leaves while copies of its are under way");
    if (warp_of(f).waiting > 0)
        stop_at(f, "divergent collective: a lane leaves, and others of its warp wait at line %d", warp_of(f).line);
    if (b.waiting > 0) stop_at(f, "a lane leaves while others wait at a barrier, line %d", b.line);
    if (running->at_barrier > 0) stop_at(f, "a lane leaves while others wait at the grid's barrier");
    f->groups.clear();
    f->is = state::done;
    warp_of(f).left++;
    running->left++;
    b.done++;
}

// ---- shared memory ----

// Has everything that the writer did at that time come to what this lane does now?
bool before(const fiber *f, const shadow &s) {
    if (s.written < f->home->met || s.writer == f->thread) return true;
    return s.writer / warp_size == f->thread / warp_size && s.written < f->team->met;
}

[[noreturn]] __attribute__((noinline)) void stop_reader(const fiber *f, int64_t byte, const shadow &s) {
    if (s.in_flight) stop_at(f, "shared byte %lld is read while a copy to it is under way", (long long)byte);
    if (s.written < f->home->began)
        stop_at(f, "shared byte %lld is read, and nothing was written there", (long long)byte);
    stop_at(f, "race: shared byte %lld is read without a barrier after thread %d wrote it", (long long)byte, s.writer);
}

void note_read(const fiber *f, int64_t byte, int bytes) {
    block &b = *f->home;
    const int w = f->thread / warp_size;
    for (shadow *i = &b.shadows[(size_t)(byte / granule)], *end = i + bytes / granule; i < end; i++) {
        shadow &s = *i;
        if (s.in_flight || s.written < b.began || !before(f, s)) stop_reader(f, byte, s);
        if (s.read < b.met) {
            s.reader = (int16_t)f->thread, s.reader_warp = (int8_t)w, s.readers = false;
        } else if (s.reader != f->thread || s.readers) {
            s.readers = true;
            if (s.reader_warp != w) s.reader_warp = -1;
        }
        s.read = b.clock;
    }
}

void note_write(const fiber *f, int64_t byte, int bytes, bool landing) {
    block &b = *f->home;
    const int w = f->thread / warp_size;
    for (shadow *i = &b.shadows[(size_t)(byte / granule)], *end = i + bytes / granule; i < end; i++) {
        shadow &s = *i;
        if (s.in_flight && !landing)
            stop_at(f, "shared byte %lld is written while a copy to it is under way", (long long)byte);
        if (s.written >= b.began && !before(f, s))
            stop_at(f, "race: shared byte %lld is written without a barrier after thread %d wrote it", (long long)byte,
                    s.writer);
        if (s.read >= b.met) {
            const bool own = !s.readers && s.reader == f->thread;
            const bool ordered = s.reader_warp == w && s.read < f->team->met;
            if (!own && !ordered)
                stop_at(f, "race: shared byte %lld is written without a barrier after thread %d%s read it",
                        (long long)byte, s.reader, s.readers ? " and others" : "");
        }
        s.writer = (int16_t)f->thread;
        s.written = b.clock;
        s.read = 0;
    }
}

// ---- the scheduler ----

fiber *next(grid &g) {
    if (g.oldest >= g.ready.size()) g.ready.clear(), g.oldest = 0;
    if (g.ready.empty()) return nullptr;
    fiber *f = nullptr;
    if (g.policy == 0) {  // who came last
        f = g.ready.back();
        g.ready.pop_back();
    } else if (g.policy == 1) {  // who came first
        f = g.ready[g.oldest++];
        if (g.oldest > 4096) g.ready.erase(g.ready.begin(), g.ready.begin() + (long)g.oldest), g.oldest = 0;
    } else {  // anybody
        const size_t i = (size_t)(draw(g) % g.ready.size());
        f = g.ready[i];
        g.ready[i] = g.ready.back();
        g.ready.pop_back();
    }
    return f;
}

void admit(grid &g, int64_t index) {
    std::unique_ptr<block> b;
    for (size_t i = spare.size(); i-- > 0 && !b;)
        if (spare[i]->lanes.size() == (size_t)g.is.threads) {
            b = std::move(spare[i]);
            spare.erase(spare.begin() + (long)i);
        }
    if (!b) {
        b.reset(new block);
        for (int i = 0; i < g.is.threads; i++) b->lanes.emplace_back(new fiber);
    }
    b->index = index;
    b->threads = g.is.threads;
    b->waiting = b->done = b->at_grid = 0;
    if (b->clock > INT32_MAX / 2) b->shadows.clear(), b->clock = 0;
    b->began = b->met = ++b->clock;
    b->warps.assign((size_t)(g.is.threads / warp_size), warp());
    b->memory.resize((size_t)g.is.shared_bytes);
    b->shadows.resize((size_t)(g.is.shared_bytes / granule + 1));
    for (int i = 0; i < g.is.threads; i++) {
        fiber *f = b->lanes[(size_t)i].get();
        f->home = b.get();
        f->thread = i;
        f->team = &b->warps[(size_t)(i / warp_size)];
        f->line = 0;
        f->seen = -1;
        prepare(f);
        wake(f);
    }
    g.resident.push_back(std::move(b));
}

[[noreturn]] void stuck(const grid &g) {
    for (const auto &b : g.resident)
        for (const auto &f : b->lanes)
            if (f->is != state::done)
                stop_at(f.get(), "deadlock: no resident lane can go on; this one %s",
                        f->is == state::spinning ? "waits for a flag" : "waits for others of its block");
    stop_at(nullptr, "simt: deadlock");
}

void run(grid &g) {
    std::vector<int64_t> order((size_t)g.is.blocks);
    for (size_t i = 0; i < order.size(); i++) order[i] = (int64_t)i;
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[(size_t)(draw(g) % i)]);
    const int64_t most = g.is.cooperative ? g.is.blocks : config.resident > 0 ? config.resident : 1;
    size_t admitted = 0;
    while (admitted < order.size() || !g.resident.empty()) {
        while ((int64_t)g.resident.size() < most && admitted < order.size()) admit(g, order[admitted++]);
        fiber *f = next(g);
        if (!f) stuck(g);
        change(&g.scheduler, f);
        f = former;  // who left, or found nobody to go on
        if (f->is != state::done || f->home->done < f->home->threads) continue;
        for (size_t i = 0; i < g.resident.size(); i++)
            if (g.resident[i].get() == f->home) {
                spare.push_back(std::move(g.resident[i]));
                g.resident.erase(g.resident.begin() + (long)i);
                break;
            }
    }
}

}  // namespace

// ---- what kernels ask for ----

block *own_array(int64_t byte, int count, int64_t size) {
    block *home = current->home;
    const int64_t end = byte + (int64_t)count * size;
    if (byte < 0 || byte % size != 0 || end > (int64_t)home->memory.size())
        stop_at(current, "shared array of bytes %lld to %lld of %lld", (long long)byte, (long long)end,
                (long long)home->memory.size());
    return home;
}

int64_t place(int64_t byte, int count, int i, int64_t size) {
    if (i < 0 || i >= count) stop_at(current, "shared array of %d: place %d", count, i);
    return byte + (int64_t)i * size;
}

// A copy of a known size is an instruction, of another a call.
static void copy_number(void *to, const void *from, size_t bytes) {
    switch (bytes) {
        case 4: std::memcpy(to, from, 4); break;
        case 8: std::memcpy(to, from, 8); break;
        case 16: std::memcpy(to, from, 16); break;
        default: std::memcpy(to, from, bytes);
    }
}

void shuffle(void *value, size_t size, int from, int line) {
    fiber *f = current;
    f->line = line;
    if (from < 0 || from >= warp_size) stop_at(f, "shuffle from lane %d", from);
    f->from = from;
    copy_number(f->value, value, size);
    meet_warp(f, collective::shuffle, line);
    copy_number(value, f->result, size);
}

void copy_async(block *home, int64_t byte, const void *from, int size, int line) {
    fiber *f = current;
    f->line = line;
    note_write(f, byte, size, false);
    for (int64_t g = byte / granule; g < (byte + size) / granule; g++) home->shadows[(size_t)g].in_flight = true;
    f->copies.push_back({byte, size, from});
}

void copy_close() {
    fiber *f = current;
    f->groups.push_back(f->copies.size());
}

// The first `count` copies land.
static void land(fiber *f, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const copy &c = f->copies[i];
        note_write(f, c.byte, c.bytes, true);
        copy_number(f->home->memory.data() + c.byte, c.from, (size_t)c.bytes);
        for (int64_t g = c.byte / granule; g < (c.byte + c.bytes) / granule; g++)
            f->home->shadows[(size_t)g].in_flight = false;
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + (long)count);
    for (size_t &g : f->groups) g = g > count ? g - count : 0;
}

void copy_wait_but(int groups, int line) {
    fiber *f = current;
    f->line = line;
    if (groups < 0 || groups > 7) stop_at(f, "a wait for all but %d groups", groups);
    pause(f);
    if (f->groups.size() <= (size_t)groups) return;
    const size_t landed = f->groups.size() - (size_t)groups;
    land(f, f->groups[landed - 1]);
    f->groups.erase(f->groups.begin(), f->groups.begin() + (long)landed);
}

void check_aligned(int64_t byte, size_t alignment, int line) {
    current->line = line;
    if ((uint64_t)byte % alignment != 0)
        stop_at(current, "numbers at once, from a byte between multiples of %d on", (int)alignment);
}

void read_shared(const block *home, int64_t byte, void *to, int bytes) {
    note_read(current, byte, bytes);
    copy_number(to, home->memory.data() + byte, (size_t)bytes);
}

void write_shared(block *home, int64_t byte, const void *from, int bytes) {
    note_write(current, byte, bytes, false);
    copy_number(home->memory.data() + byte, from, (size_t)bytes);
}

enum { refused_shape = 9, refused_shared = 1, refused_cooperative = 720 };  // cudaError_t's numbers

int launch(const shape &s, int most, kernel_body *body, const void *arguments) {
    if (s.blocks < 1 || s.blocks > INT32_MAX || s.threads < 1 || s.threads > most || s.threads % warp_size != 0)
        return refused_shape;
    if (s.shared_bytes > config.shared_bytes) return refused_shared;
    if (s.cooperative && s.blocks > config.cooperative_blocks) return refused_cooperative;
    grid g;
    g.is = s;
    g.random = config.seed * 0x2545f4914f6cdd1du;
    g.policy = (int)(config.seed % 3);
    g.arguments = arguments;
    g.body = body;
    running = &g;
    run(g);
    running = nullptr;
    return 0;
}

}  // namespace host

template <class T>
T shared<T>::get(int i) const {
    T value;
    host::read_shared(home, host::place(byte, count, i, (int64_t)sizeof(T)), &value, (int)sizeof(T));
    return value;
}

template <class T>
void shared<T>::set(int i, T value) const {
    host::write_shared(home, host::place(byte, count, i, (int64_t)sizeof(T)), &value, (int)sizeof(T));
}

template struct shared<float>;
template struct shared<double>;
template struct shared<int32_t>;
template struct shared<uint32_t>;
template struct shared<int64_t>;
template struct shared<pack<float, 2>>;
template struct shared<pack<float, 4>>;
template struct shared<pack<uint32_t, 2>>;
template struct shared<pack<uint32_t, 4>>;
template struct shared<pack<double, 2>>;

int lane::thread() const { return host::current->thread; }
int lane::threads() const { return host::running->is.threads; }
int lane::in_warp() const { return thread() % warp_size; }
int lane::warp() const { return thread() / warp_size; }
int64_t lane::block() const { return host::current->home->index; }
int64_t lane::blocks() const { return host::running->is.blocks; }

void lane::barrier(int line) { host::meet_block(host::current, line); }
void lane::warp_barrier(int line) { host::meet_warp(host::current, host::collective::warp_barrier, line); }
void lane::grid_barrier(int line) { host::meet_grid(host::current, line); }

bool lane::any(bool condition, int line) { return first(condition, line) < warp_size; }

int lane::first(bool condition, int line) {
    host::fiber *f = host::current;
    f->value[0] = condition;
    host::meet_warp(f, host::collective::vote, line);
    uint32_t votes = 0;
    std::memcpy(&votes, f->result, sizeof votes);
    return votes ? __builtin_ctz(votes) : warp_size;
}

uint32_t lane::ticket(uint32_t *counter, int line) {
    host::current->line = line;
    const uint32_t mine = (*counter)++;
    host::wake_spinning();
    host::pause(host::current);
    return mine;
}

void lane::publish(uint32_t *flag, uint32_t value, int line) {
    host::current->line = line;
    host::pause(host::current);  // late
    *flag = value;
    host::wake_spinning();
}

uint32_t lane::acquire(const uint32_t *flag, int line) {
    host::current->line = line;
    host::pause(host::current);
    return *flag;
}

void host::post(void *to, const void *from, size_t size, int line) {
    current->line = line;
    pause(current);
    std::memcpy(to, from, size);
    running->posted++;
    wake_spinning();
}

void host::looked() {
    if (current->seen < 0) current->seen = running->posted;
}

// Others may have posted between the lane's first look and this: then it does not wait for more.
void lane::look_again(int line) {
    host::fiber *f = host::current;
    const bool news = f->seen < host::running->posted || host::warp_of(f).waiting > 0;
    f->line = line;
    f->seen = -1;
    if (news) return host::pause(f);
    f->looks = true;
    host::running->spinning.push_back(f);
    host::wait(f, host::state::spinning);
    f->looks = false;
}

void lane::await(const uint32_t *flag, uint32_t value, int line) {
    host::fiber *f = host::current;
    f->line = line;
    while (*flag != value) {
        host::running->spinning.push_back(f);
        host::wait(f, host::state::spinning);
    }
}

void lane::raise(uint32_t *to, uint32_t value, int line) {
    host::current->line = line;
    host::pause(host::current);
    if (*to < value) *to = value;
    host::wake_spinning();
}

void lane::copy_wait(int line) {
    host::fiber *f = host::current;
    f->line = line;
    host::pause(f);
    host::land(f, f->copies.size());
    f->groups.clear();
}

}  // namespace simt
