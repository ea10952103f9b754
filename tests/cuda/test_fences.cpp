// SPDX-License-Identifier: MIT
// The fences around what the tests of the device's kernels allocate (fences.cpp) find what they are there for.
#include "cuda_testing.h"

namespace {

// Does `body`, in a process of its own, touch a page that it must not?
bool faults(const std::function<void()> &body) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        body();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

constexpr int counts[] = {1, 2, 3, 7, 64, 127, 128, 129, 1000, 1024, 5000};

volatile float sink;

void test_writes(void **) {
    for (int n : counts)
        for (int at : {-1, -2, -6, -8, n}) {
            const auto write = [=] {
                std::vector<float> x((size_t)n);
                volatile float *p = x.data();
                p[at] = 1;
            };
            if (at == n && n >= 128 && n % 4 == 0)  // a page begins there
                assert_true(faults(write));
            else
                assert_stops(write, "fences: something was written ");
        }
}

void test_reads(void **) {
    for (int n : counts) {
        std::vector<float> x((size_t)n, 1.f);
        const volatile float *p = x.data();
        for (int at : {-1, -2, -3, -4, n, n + 1, n + 3})
            if (at < 0 || n < 128 || (n % 4 && at < (n + 3) / 4 * 4)) assert_true(p[at] != p[at]);
        if (n < 128) continue;
        for (int at : {(n + 3) / 4 * 4, n + 100, n + 1000}) assert_true(faults([&] { sink = p[at]; }));
    }
}

void test_freed(void **) {
    assert_true(faults([] {
        std::vector<double> x(1000);
        const volatile uintptr_t at = (uintptr_t)x.data();
        std::vector<double>().swap(x);
        sink = (float)*(const volatile double *)(at + 5 * sizeof(double));
    }));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_writes),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_freed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
