use super::*;
use crate::compile::LIBRARY;

const SIGNATURE: &str = "extern \"C\" void f(void* const* b, const int64_t* s, int64_t i, int64_t e, void* t)";

fn kind(source: &str) -> Option<Forbidden> {
    inspect(source).err().map(|f| f.kind)
}

fn in_body(statement: &str) -> String {
    format!("#include \"forge_cpu.hpp\"\n{SIGNATURE} {{\n  {statement}\n}}\n")
}

#[test]
fn kernels_as_people_write_them_pass() {
    let source = r#"
#include "forge_gemm.hpp"
#include <cmath>
#define TILE 8
#define CLAMP(x, lo, hi) \
  ((x) < (lo) ? (lo) : (x))
// system("rm") in a comment; static int x;
/* fopen */
namespace {
constexpr int kBlock = 64;
const float table[2] = {1.0f, 2.0f};
static constexpr float kScale = 1.0e-5f;
using vec8 = float __attribute__((vector_size(32)));
typedef float vec4 __attribute__((vector_size(16), aligned(4)));
struct Tile { float value[TILE]; static float twice(float x) { return 2 * x; } };
struct alignas(64) Wide { float v[16]; };
enum class Mode { kFast, kSlow };
template <int N, class T> static inline __attribute__((always_inline)) T sum(const T* x) {
  T total = T(0);
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) total += x[i];
  return total;
}
inline struct Tile make(float x) { Tile t = {}; t.value[0] = x; return t; }
}  // namespace
static float helper(float x) noexcept { return x > 1'000.0f ? 0x1p-3f : x; }
extern "C" {
void g(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch) {
  static const float constants[4] = {1, 2, 3, 4};
  auto square = [](float x) { return x * x; };
  [[maybe_unused]] const char* name = "a \"quoted\" // string; system";
  for (int64_t r = begin; r < end; ++r) static_cast<float*>(buffers[1])[r] = square(constants[r & 3]) + helper('a');
}
}
"#;
    assert_eq!(inspect(source), Ok(()));
    for (name, text) in LIBRARY {
        // The device headers themselves hold nothing that a candidate may not, their `#pragma once` included.
        assert_eq!(inspect(text), Ok(()), "{name}");
    }
}

#[test]
fn includes_and_directives_are_a_list() {
    for source in ["#include <cstdio>\n", "#include \"/etc/passwd\"\n", "#  include<thread>\n", "#include MACRO\n"] {
        assert_eq!(kind(source), Some(Forbidden::Include), "{source}");
    }
    for source in ["#pragma GCC optimize(\"fast-math\")\n", "#import <x>\n", "#define P(a, b) a##b\n", "#line 3\n"] {
        assert_eq!(kind(source), Some(Forbidden::Directive), "{source}");
    }
    assert_eq!(kind("#define RUN system\n"), Some(Forbidden::Name));
    assert_eq!(kind("#define KEEP static int kept\n"), Some(Forbidden::State));
    assert_eq!(inspect("\n\n#include <cstdio>\n").unwrap_err().line, 3);
}

#[test]
fn names_that_no_kernel_needs() {
    for statement in [
        "asm(\"\");",
        "__asm__ volatile(\"syscall\");",
        "std::system(\"x\");",
        "fopen(\"x\", \"r\");",
        "auto p = dlopen(0, 0);",
        "std::thread t;",
        "float* p = new float[4];",
        "auto p = malloc(4);",
        "throw 1;",
        "std::mutex m;",
        "__atomic_fetch_add(p, 1, 0);",
        "pthread_mutex_lock(p);",
        "auto t = __rdtsc();",
        "thread_local int x;",
        "_mm_setcsr(0x8040);",
    ] {
        assert_eq!(kind(&in_body(statement)), Some(Forbidden::Name), "{statement}");
    }
    // Parts of longer names are other names.
    assert_eq!(kind(&in_body("int reader = 0, timer = 1, opened = 2, systems = 3;")), None);
    assert_eq!(kind(&in_body("float signal = 1, read = signal, time = read;")), None);
    assert_eq!(kind(&in_body("std::vector<float> x;")), Some(Forbidden::Name));
    assert_eq!(kind(&in_body("read(0, b, 1);")), Some(Forbidden::Name));
}

#[test]
fn attributes_are_a_list() {
    for source in [
        "__attribute__((constructor)) static void f() {}\n",
        "__attribute__((optimize(\"fast-math\"))) static void f() {}\n",
        "__attribute__((__constructor__)) static void f() {}\n",
        "[[gnu::constructor]] static void f() {}\n",
        "static __attribute__((aligned(8), section(\"x\"))) void f() {}\n",
    ] {
        assert_eq!(kind(source), Some(Forbidden::Attribute), "{source}");
    }
}

#[test]
fn nothing_outlives_a_call() {
    for source in [
        "int counter = 0;\n",
        "float cache[1024];\n",
        "static float cache[1024];\n",
        "static float cache(0);\n",
        "namespace a { namespace b { int counter; } }\n",
        "struct State { int calls; } state;\n",
        "struct State { static inline int calls = 0; };\n",
        "const float* kept = nullptr;\n",
        "extern int elsewhere;\n",
        "extern \"C\" int puts2(const char*);\n",
        "int declared(int);\n",
        "template <class T> T shared_value = T(0);\n",
        "auto kept = [](int x) { return x; };\n",
        "extern \"C\" { int counter; }\n",
    ] {
        assert_eq!(kind(source), Some(Forbidden::State), "{source}");
    }
    for statement in ["static int calls = 0;", "static const float* last = nullptr;", "extern float elsewhere[];"] {
        assert_eq!(kind(&in_body(statement)), Some(Forbidden::State), "{statement}");
    }
}

#[test]
fn text_that_hides_things() {
    for source in [
        "%:include <cstdio>\n",
        "??=include <cstdio>\n",
        "// comment \\\nint x;\n",
        "const char* x = R\"(raw)\";\n",
        "int \\\nx;\n",
        "/* open",
        "const char* x = \"open\n",
        "int \u{430} = 0;\n",
        "int x\0;\n",
    ] {
        assert_eq!(kind(source), Some(Forbidden::Text), "{source:?}");
    }
    assert_eq!(kind("// \u{430} in a comment\n"), None);
}

#[test]
fn findings_read_as_sentences() {
    assert_eq!(
        inspect("\nint counter = 0;\n").unwrap_err().to_string(),
        "line 2: `int counter = .. ; ..` at namespace scope: a kernel keeps no state and defines all that it calls"
    );
    assert_eq!(inspect(&in_body("abort();")).unwrap_err().to_string(), "line 3: `abort` is not admitted in a kernel");
}
