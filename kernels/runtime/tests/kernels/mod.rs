//! Folders with a plan, its weights and compiled kernels, as the compiler would leave them.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// The compiled kernels, built once a process.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/kernels.cpp");
        let compiler = Command::new("c++")
            .args(["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&path)
            .arg(&source)
            .output()
            .expect("the system has a C++ compiler");
        assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
        (folder, path)
    });
    path
}

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Small integers, so that sums are exact in any order.
pub(crate) fn values(length: usize, seed: usize) -> Vec<f32> {
    (0..length).map(|at| ((at * 13 + seed * 7 + at / 5) % 17) as f32 - 8.0).collect()
}

/// Views floats as bytes, aligned as floats are.
pub(crate) fn as_bytes(values: &[f32]) -> &[u8] {
    // SAFETY: any float is four initialised bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(crate) fn as_bytes_mut(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: as above, and any four bytes are a float.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Writes `plan.json`, the weights and `kernels/kernels.so` into a new folder.
pub(crate) fn write_folder(plan: &Value, weights: &[(&str, &[f32])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("kernels")).unwrap();
    std::fs::copy(library(), folder.path().join("kernels/kernels.so")).unwrap();
    std::fs::write(folder.path().join("plan.json"), serde_json::to_vec_pretty(plan).unwrap()).unwrap();
    if !weights.is_empty() {
        let bytes: HashMap<&str, Vec<u8>> = weights.iter().map(|(name, values)| (*name, bytes_of(values))).collect();
        let views = weights
            .iter()
            .map(|(name, values)| (*name, TensorView::new(Dtype::F32, vec![values.len()], &bytes[name]).unwrap()));
        safetensors::serialize_to_file(views, None, &folder.path().join("weights.safetensors")).unwrap();
    }
    folder
}

pub(crate) fn kernel(
    symbol: &str,
    reads: &[u32],
    writes: &[u32],
    sizes: &Value,
    grid: &Value,
    scratch: &Value,
) -> Value {
    json!({
        "step": "kernel", "module": 0, "symbol": symbol, "reads": reads, "writes": writes, "sizes": sizes, "grid": grid,
        "grain": 1, "scratch": scratch, "label": symbol,
    })
}

/// A plan that uses every kind of step and storage, over `x: f32[N, 4]` and `y: f32[N, 4]`:
/// `s = relu(x + y)`, `r = reverse of each row of s`, `h = r w` with `w: f32[4, 3]` stored transposed, and outputs
/// `sums = row sums of h`, `flat = s as [N*4]`, `x` itself, `w` transposed, `sums` again.
pub(crate) fn mixed_plan() -> Value {
    let port =
        |name: &str, shape: Value, buffer: u32| json!({"name": name, "dtype": "f32", "shape": shape, "buffer": buffer});
    json!({
        "version": 1, "name": "mixed", "target": "cpu",
        "inputs": [port("x", json!(["N", 4]), 0), port("y", json!(["N", 4]), 1)],
        "outputs": [
            port("sums", json!(["N"]), 8), port("flat", json!(["N*4"]), 9), port("x_again", json!(["N", 4]), 0),
            port("w_transposed", json!([3, 4]), 2), port("sums_again", json!(["N", 1]), 10),
        ],
        "buffers": [
            {"bytes": "N*16", "storage": "input", "index": 0},
            {"bytes": "N*16", "storage": "input", "index": 1},
            {"bytes": 48, "storage": "weight", "name": "w"},
            {"bytes": 48, "storage": "prepared"},
            {"bytes": "N*16", "storage": "arena"},
            {"bytes": "N*16", "storage": "alias", "of": 4},
            {"bytes": "N*16", "storage": "arena"},
            {"bytes": "N*12", "storage": "arena"},
            {"bytes": "N*4", "storage": "output", "index": 0},
            {"bytes": "N*16", "storage": "output", "index": 1},
            {"bytes": "N*4", "storage": "alias", "of": 8},
            {"bytes": 48, "storage": "prepared"},
        ],
        "modules": [{"file": "kernels/kernels.so", "hash": ""}],
        "prepare": [
            {"step": "copy", "from": 2, "to": 11},
            kernel("transpose", &[11], &[3], &json!([3, 4]), &json!(3), &json!(0)),
        ],
        "steps": [
            kernel("add_relu", &[0, 1], &[4], &json!([]), &json!("N*4"), &json!(0)),
            kernel("reverse_rows", &[5], &[6], &json!([4]), &json!("N"), &json!(16)),
            {
                "step": "gemm", "dtype": "f32", "m": "N", "n": 3, "k": 4, "batch": [], "label": "matmul",
                "a": {"buffer": 6, "row_stride": 4, "column_stride": 1, "batch_strides": []},
                "b": {"buffer": 3, "row_stride": 3, "column_stride": 1, "batch_strides": []},
                "c": {"buffer": 7, "row_stride": 3, "column_stride": 1, "batch_strides": []},
            },
            kernel("row_sum", &[7], &[8], &json!([3]), &json!("N"), &json!(0)),
            {"step": "copy", "from": 5, "to": 9},
        ],
    })
}

pub(crate) fn mixed_weights() -> Vec<f32> {
    values(12, 3)
}

/// What [`mixed_plan`] computes, straight from its definition.
pub(crate) fn mixed_reference(x: &[f32], y: &[f32], w_transposed: &[f32]) -> Vec<Vec<f32>> {
    let s: Vec<f32> = x.iter().zip(y).map(|(x, y)| (x + y).max(0.0)).collect();
    let sum_of_row = |row: &[f32]| -> f32 {
        (0..3).map(|column| (0..4).map(|i| row[3 - i] * w_transposed[column * 4 + i]).sum::<f32>()).sum()
    };
    let sums: Vec<f32> = s.chunks(4).map(sum_of_row).collect();
    vec![sums.clone(), s, x.to_vec(), w_transposed.to_vec(), sums]
}
