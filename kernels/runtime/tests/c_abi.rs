//! The header and the shared library agree: a C program compiled against one runs a plan through the other.

mod kernels;

use std::path::PathBuf;
use std::process::Command;

use forge_runtime::Status;
use kernels::{mixed_plan, mixed_reference, mixed_weights, values, write_folder};

/// The folder of the shared library that cargo built with this test.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let mut folders = test.ancestors().skip(1).take(2);
    let holds = |folder: &&std::path::Path| folder.join("libforge_runtime.so").is_file();
    folders.find(holds).expect("cargo built libforge_runtime.so").to_owned()
}

fn compile_and_run(folder: &std::path::Path, source: &str) -> String {
    let program = folder.join("program");
    let text = folder.join("program.c");
    std::fs::write(&text, source).unwrap();
    let libraries = library_folder();
    let compiler = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(&text)
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", libraries.display()))
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-lforge_runtime")
        .output()
        .unwrap();
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    let run = Command::new(&program).arg(folder).output().unwrap();
    assert!(run.status.success(), "{}\n{}", run.status, String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn a_c_program_runs_a_plan() {
    let folder = write_folder(&mixed_plan(), &[("w", &mixed_weights())]);
    let list = |values: &[f32]| values.iter().map(|value| format!("{value:?}f")).collect::<Vec<_>>().join(", ");
    let (x, y) = (values(20, 1), values(20, 2));
    let expected = mixed_reference(&x, &y, &mixed_weights());
    let source = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "forge_runtime.h"

#define CHECK(condition) \
    do { if (!(condition)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, forge_last_error()); exit(1); } } while (0)

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(forge_abi_version() == FORGE_ABI_VERSION);
    forge_handle *plan = NULL;
    CHECK(forge_open(arguments[1], "absent.json", 2, &plan) == FORGE_IO && plan == NULL);
    CHECK(strstr(forge_last_error(), "absent.json") != NULL);
    CHECK(forge_open(NULL, "plan.json", 2, &plan) == FORGE_ARGUMENT);
    CHECK(forge_open(arguments[1], "plan.json", -1, &plan) == FORGE_ARGUMENT);
    CHECK(forge_open(arguments[1], "plan.json", 2, NULL) == FORGE_ARGUMENT);
    CHECK(forge_open(arguments[1], "plan.json", 2, &plan) == FORGE_OK && plan != NULL);

    int32_t ranks[] = {2, 2};
    int64_t dims[] = {5, 4, 5, 4};
    int64_t out[16];
    const int64_t want[] = {5, 20, 5, 4, 3, 4, 5, 1};
    CHECK(forge_output_shapes(plan, 2, ranks, dims, out, 16) == FORGE_OK);
    CHECK(memcmp(out, want, sizeof want) == 0);
    CHECK(forge_output_shapes(plan, 2, ranks, dims, out, 7) == FORGE_ARGUMENT);
    CHECK(forge_output_shapes(plan, 1, ranks, dims, out, 16) == FORGE_SHAPE);
    CHECK(forge_output_shapes(NULL, 2, ranks, dims, out, 16) == FORGE_ARGUMENT);
    CHECK(forge_output_shapes(plan, 2, NULL, dims, out, 16) == FORGE_ARGUMENT);
    int64_t wrong[] = {5, 4, 6, 4};
    CHECK(forge_output_shapes(plan, 2, ranks, wrong, out, 16) == FORGE_SHAPE);
    CHECK(strcmp(forge_last_error(), "input 'y' axis 0: expected N = 5, got 6") == 0);

    float x[] = {@X@}, y[] = {@Y@};
    const float sums[] = {@SUMS@}, flat[] = {@FLAT@}, w[] = {@W@};
    float got_sums[5], got_flat[20], got_x[20], got_w[12], got_sums_again[5];
    const void *inputs[] = {x, y};
    void *outputs[] = {got_sums, got_flat, got_x, got_w, got_sums_again};
    for (int round = 0; round < 3; round++) {
        memset(got_sums, 0xff, sizeof got_sums);
        CHECK(forge_run(plan, inputs, ranks, dims, outputs) == FORGE_OK);
        CHECK(memcmp(got_sums, sums, sizeof sums) == 0 && memcmp(got_flat, flat, sizeof flat) == 0);
        CHECK(memcmp(got_x, x, sizeof x) == 0 && memcmp(got_w, w, sizeof w) == 0);
        CHECK(memcmp(got_sums_again, sums, sizeof sums) == 0);
    }
    CHECK(forge_run(plan, NULL, ranks, dims, outputs) == FORGE_ARGUMENT);
    CHECK(forge_run(plan, inputs, ranks, NULL, outputs) == FORGE_ARGUMENT);
    CHECK(forge_run(plan, inputs, ranks, wrong, outputs) == FORGE_SHAPE);
    const void *missing[] = {x, NULL};
    CHECK(forge_run(plan, missing, ranks, dims, outputs) == FORGE_ARGUMENT);
    const void *shifted[] = {(const char *)x + 1, y};
    CHECK(forge_run(plan, shifted, ranks, dims, outputs) == FORGE_ARGUMENT);
    int32_t bad_ranks[] = {2, -1};
    CHECK(forge_run(plan, inputs, bad_ranks, dims, outputs) == FORGE_ARGUMENT);
    bad_ranks[1] = 3;
    CHECK(forge_run(plan, inputs, bad_ranks, dims, outputs) == FORGE_SHAPE);

    /* Blocks without bytes may be null. */
    int64_t none[] = {0, 4, 0, 4};
    const void *no_inputs[] = {NULL, NULL};
    void *one_output[] = {NULL, NULL, NULL, got_w, NULL};
    CHECK(forge_run(plan, no_inputs, ranks, none, one_output) == FORGE_OK);

    CHECK(forge_close(plan) == FORGE_OK);
    CHECK(forge_close(NULL) == FORGE_OK);
    puts("done");
    return 0;
}
"#;
    let source = source
        .replace("@X@", &list(&x))
        .replace("@Y@", &list(&y))
        .replace("@SUMS@", &list(&expected[0]))
        .replace("@FLAT@", &list(&expected[1]))
        .replace("@W@", &list(&expected[3]));
    assert_eq!(compile_and_run(folder.path(), &source), "done\n");
}

/// The header's status codes are the runtime's, by name and number.
#[test]
fn the_header_lists_every_status() {
    let header = include_str!("../include/forge_runtime.h");
    let statuses = [
        Status::Ok,
        Status::Argument,
        Status::Io,
        Status::Plan,
        Status::Module,
        Status::Weight,
        Status::Shape,
        Status::Memory,
        Status::Guard,
        Status::Internal,
    ];
    for status in statuses {
        let line = format!("FORGE_{} = {}", format!("{status:?}").to_uppercase(), status as i32);
        assert!(header.contains(&line), "the header lacks {line}");
    }
    assert!(header.contains(&format!("#define FORGE_ABI_VERSION {}\n", forge_runtime::c_api::ABI_VERSION)));
    assert_eq!(header.matches("    FORGE_").count(), statuses.len());
}
