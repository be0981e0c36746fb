//! The tables of the scan: what is admitted, and what is not.

#[rustfmt::skip]
pub(super) const INCLUDES: &[&str] = &[
    "\"forge_cpu.hpp\"", "\"forge_gemm.hpp\"", "<algorithm>", "<array>", "<cfloat>", "<climits>", "<cmath>", "<cstddef>",
    "<cstdint>", "<cstring>", "<immintrin.h>", "<limits>", "<tuple>", "<type_traits>", "<utility>",
];

pub(super) const PRAGMAS: &[&str] =
    &["once", "GCC unroll", "GCC ivdep", "clang loop", "omp simd", "unroll", "STDC FP_CONTRACT"];

#[rustfmt::skip]
pub(super) const ATTRIBUTES: &[&str] = &[
    "always_inline", "noinline", "aligned", "vector_size", "may_alias", "const", "pure", "hot", "flatten", "unused",
    "maybe_unused", "nodiscard", "likely", "unlikely", "fallthrough", "gnu",
];

/// Whole words that are refused, grouped by what they would give a kernel.
#[rustfmt::skip]
pub(super) const NAMES: &[&str] = &[
    // Machine code and code elsewhere.
    "asm", "__asm", "__asm__", "dlopen", "dlsym", "dlmopen", "syscall", "__builtin_apply", "__builtin_return",
    "__builtin_return_address", "__builtin_frame_address", "__builtin_extract_return_addr", "__builtin_longjmp",
    "__builtin_setjmp", "__builtin_trap",
    // Processes and the system.
    "system", "popen", "fork", "vfork", "clone", "execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe",
    "posix_spawn", "kill", "raise", "signal", "sigaction", "ptrace", "prctl", "getenv", "secure_getenv", "setenv", "putenv",
    "environ", "exit", "_exit", "_Exit", "quick_exit", "abort", "atexit", "terminate", "setjmp", "longjmp", "sigsetjmp",
    "siglongjmp", "swapcontext", "makecontext",
    // Files, memory maps and sockets.
    "fopen", "freopen", "fdopen", "open", "openat", "creat", "read", "write", "pread", "pwrite", "close", "unlink", "rename",
    "ioctl", "mmap", "munmap", "mprotect", "mremap", "shm_open", "memfd_create", "socket", "connect", "bind", "listen",
    "accept", "send", "recv", "sendto", "recvfrom", "printf", "fprintf", "puts", "fputs", "fwrite", "fread", "cout", "cerr",
    "fstream", "ifstream", "ofstream", "filesystem",
    // Threads and anything that lets calls see each other.
    "thread", "jthread", "async", "future", "promise", "mutex", "condition_variable", "atomic", "atomic_ref", "call_once",
    "thread_local", "__thread", "_Thread_local", "omp_get_thread_num", "omp_set_num_threads",
    // Clocks and chance.
    "chrono", "time", "clock", "clock_gettime", "gettimeofday", "nanosleep", "usleep", "sleep", "rand", "srand", "random",
    "drand48", "random_device", "__rdtsc", "_rdtsc", "__rdtscp", "__builtin_ia32_rdtsc", "__builtin_ia32_rdtscp",
    "__builtin_readcyclecounter", "__TIME__", "__DATE__", "__TIMESTAMP__", "__FILE__", "__COUNTER__",
    // Floating-point modes of the whole thread.
    "fesetround", "fesetenv", "feenableexcept", "_mm_setcsr", "__builtin_ia32_ldmxcsr", "_MM_SET_FLUSH_ZERO_MODE",
    "_MM_SET_DENORMALS_ZERO_MODE", "_MM_SET_ROUNDING_MODE",
    // Allocation: temporaries and scratch are given.
    "malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "free", "alloca", "__builtin_alloca", "new", "delete",
    "vector", "string", "unique_ptr", "shared_ptr", "function",
    // Exceptions would cross a C boundary.
    "throw", "try", "catch", "typeid", "dynamic_cast",
];

/// Of [`NAMES`], those that are also good names for a local variable: refused where they are called or qualified.
#[rustfmt::skip]
pub(super) const COMMON_WORDS: &[&str] = &[
    "accept", "async", "bind", "clock", "clone", "close", "connect", "exit", "free", "function", "future", "kill", "listen",
    "open", "promise", "raise", "random", "read", "recv", "rename", "send", "signal", "sleep", "string", "thread", "time",
    "vector", "write",
];

/// Prefixes of names that reach other threads or the random source.
pub(super) const NAME_PREFIXES: &[&str] =
    &["__atomic_", "__sync_", "atomic_", "pthread_", "_rdrand", "_rdseed", "__builtin_ia32_rdrand"];
