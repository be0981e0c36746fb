// Kernels of the tests: void symbol(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch)
#include <cstdint>

namespace {
const float* in(void* const* buffers, int at) { return static_cast<const float*>(buffers[at]); }
float* out(void* const* buffers, int at) { return static_cast<float*>(buffers[at]); }
}  // namespace

#define KERNEL(name) \
    extern "C" void name(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch)

// (a, b) -> max(a + b, 0), by element.
KERNEL(add_relu) {
    (void)sizes, (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        float sum = in(buffers, 0)[i] + in(buffers, 1)[i];
        out(buffers, 2)[i] = sum > 0 ? sum : 0;
    }
}

// a[rows, sizes[0]] -> sums of rows, by row.
KERNEL(row_sum) {
    (void)scratch;
    for (int64_t row = begin; row < end; row++) {
        float sum = 0;
        for (int64_t i = 0; i < sizes[0]; i++) sum += in(buffers, 0)[row * sizes[0] + i];
        out(buffers, 1)[row] = sum;
    }
}

// a[sizes[0], sizes[1]] -> its transpose, by row of a.
KERNEL(transpose) {
    (void)scratch;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < sizes[1]; i++) out(buffers, 1)[i * sizes[0] + row] = in(buffers, 0)[row * sizes[1] + i];
}

// a[rows, sizes[0]] -> each row reversed, through scratch of one row, by row.
KERNEL(reverse_rows) {
    float* row_copy = static_cast<float*>(scratch);
    for (int64_t row = begin; row < end; row++) {
        for (int64_t i = 0; i < sizes[0]; i++) row_copy[i] = in(buffers, 0)[row * sizes[0] + i];
        for (int64_t i = 0; i < sizes[0]; i++) out(buffers, 1)[row * sizes[0] + i] = row_copy[sizes[0] - 1 - i];
    }
}

// Rule breakers: copy a to b by element, and break one rule.
#define BREAKER(name, harm)                                                                \
    KERNEL(name) {                                                                         \
        (void)sizes, (void)scratch;                                                        \
        for (int64_t i = begin; i < end; i++) out(buffers, 1)[i] = in(buffers, 0)[i];      \
        harm;                                                                              \
    }

BREAKER(well_behaved, (void)0)
BREAKER(writes_past_end, if (end == sizes[0]) out(buffers, 1)[end] = 1)
BREAKER(writes_before_start, if (begin == 0) out(buffers, 1)[-1] = 1)
BREAKER(writes_its_input, if (begin == 0) const_cast<float*>(in(buffers, 0))[0] += 1)
BREAKER(overruns_scratch, static_cast<float*>(scratch)[4] = 1)

// Copies only elements of even index.
KERNEL(forgets_elements) {
    (void)sizes, (void)scratch;
    for (int64_t i = begin; i < end; i++)
        if (i % 2 == 0) out(buffers, 1)[i] = in(buffers, 0)[i];
}
