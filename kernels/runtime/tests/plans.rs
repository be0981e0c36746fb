//! Whole plans, with kernels compiled from C++: results, shapes, errors, guards, concurrency.

mod kernels;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use forge_runtime::{Executable, Options, RuntimeError};
use kernels::{
    as_bytes, as_bytes_mut, bytes_of, kernel, mixed_plan, mixed_reference, mixed_weights, values, write_folder,
};
use serde_json::{Value, json};

fn options(threads: usize) -> Options {
    Options { threads, ..Options::default() }
}

/// Runs the mixed plan on `rows` rows and compares every output.
fn check_mixed(executable: &Executable, rows: usize, seed: usize) {
    let (x, y) = (values(rows * 4, seed), values(rows * 4, seed + 1));
    let shape = [rows as i64, 4];
    let mut outputs = [vec![0.5; rows], vec![0.5; rows * 4], vec![0.5; rows * 4], vec![0.5; 12], vec![0.5; rows]];
    let mut blocks: Vec<&mut [u8]> = outputs.iter_mut().map(|output| as_bytes_mut(output)).collect();
    executable.run(&[(as_bytes(&x), &shape), (as_bytes(&y), &shape)], &mut blocks).unwrap();
    assert_eq!(outputs.to_vec(), mixed_reference(&x, &y, &mixed_weights()), "{rows} rows");
}

fn mixed_folder() -> tempfile::TempDir {
    write_folder(&mixed_plan(), &[("w", &mixed_weights()), ("unused", &[1.0])])
}

#[test]
fn every_kind_of_step_and_storage() {
    let folder = mixed_folder();
    for threads in [1, 3] {
        for (poison, guard) in [(false, false), (true, false), (false, true), (true, true)] {
            let executable = Executable::load(folder.path(), "plan.json", Options { threads, poison, guard }).unwrap();
            assert_eq!(executable.threads(), threads);
            for (seed, rows) in [5, 1, 0, 1000, 5, 333].into_iter().enumerate() {
                check_mixed(&executable, rows, seed);
            }
        }
    }
}

#[test]
fn the_arena_reuses_memory() {
    let executable = Executable::load(mixed_folder().path(), "plan.json", options(1)).unwrap();
    // s (read by the last step), r and h are never alive with fewer than two of them; all three together at the GEMM.
    assert_eq!(executable.arena_bytes(&[&[1024, 4], &[1024, 4]]).unwrap(), 1024 * (16 + 16 + 12));
    let mut plan = mixed_plan();
    // Without the last use of s, h takes its place.
    plan["steps"][4]["from"] = json!(0);
    let executable = Executable::load(write_folder(&plan, &[("w", &mixed_weights())]).path(), "plan.json", options(1));
    assert_eq!(executable.unwrap().arena_bytes(&[&[1024, 4], &[1024, 4]]).unwrap(), 1024 * (16 + 16));
}

#[test]
fn a_moved_folder_still_loads() {
    let folder = mixed_folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = elsewhere.path().join("moved");
    std::fs::rename(folder.path(), &moved).unwrap();
    let executable = Executable::load(&moved, "plan.json", options(2)).unwrap();
    // And once loaded, it needs its files no more.
    std::fs::remove_dir_all(&moved).unwrap();
    check_mixed(&executable, 7, 0);
}

#[test]
fn a_plan_and_weights_from_memory() {
    let plan: forge_runtime::plan::Plan = serde_json::from_value(mixed_plan()).unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<forge_runtime::plan::Plan>(&text).unwrap(), plan);
    let folder = mixed_folder();
    std::fs::remove_file(folder.path().join("weights.safetensors")).unwrap();
    // At every alignment.
    for shift in 0..8 {
        let mut bytes = vec![0u8; shift];
        bytes.extend(bytes_of(&mixed_weights()));
        let weights = HashMap::from([("w".to_owned(), Bytes::from(bytes).slice(shift..))]);
        let executable = Executable::new(plan.clone(), &weights, folder.path(), options(2)).unwrap();
        check_mixed(&executable, 9, shift);
    }
}

#[test]
fn calls_from_several_threads() {
    let executable = Executable::load(mixed_folder().path(), "plan.json", options(2)).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let executable = Arc::clone(&executable);
            scope.spawn(move || {
                for round in 0..60 {
                    // More shapes than are kept, and some that all callers use at once.
                    let rows = if round % 3 == 0 { 50 } else { caller * 7 + round % 11 };
                    check_mixed(&executable, rows, caller * 100 + round);
                }
            });
        }
    });
}

#[test]
fn profiles_name_every_step() {
    let executable = Executable::load(mixed_folder().path(), "plan.json", options(2)).unwrap();
    let (x, shape) = (values(40, 0), [10, 4]);
    let mut outputs = [vec![0f32; 10], vec![0f32; 40], vec![0f32; 40], vec![0f32; 12], vec![0f32; 10]];
    let mut blocks: Vec<&mut [u8]> = outputs.iter_mut().map(|output| as_bytes_mut(output)).collect();
    let profile = executable.run_profiled(&[(as_bytes(&x), &shape), (as_bytes(&x), &shape)], &mut blocks).unwrap();
    let labels: Vec<&str> = profile.iter().map(|step| step.label.as_str()).collect();
    let steps = ["add_relu", "reverse_rows", "matmul", "row_sum", "copy"];
    let returns = ["return x_again", "return w_transposed", "return sums_again"];
    assert_eq!(labels, [&steps[..], &returns[..]].concat());
    assert!(profile.iter().map(|step| step.nanoseconds).sum::<u64>() > 0);
    assert_eq!(outputs.to_vec(), mixed_reference(&x, &x, &mixed_weights()));
}

#[test]
fn shapes_are_checked_and_named() {
    let executable = Executable::load(mixed_folder().path(), "plan.json", options(1)).unwrap();
    let shapes = executable.output_shapes(&[&[6, 4], &[6, 4]]).unwrap();
    assert_eq!(shapes, [vec![6], vec![24], vec![6, 4], vec![3, 4], vec![6, 1]]);
    for (shapes, message) in [
        (vec![&[6, 4][..]], "the plan has 2 inputs, got 1"),
        (vec![&[6, 4], &[6]], "input 'y' has rank 2, got rank 1"),
        (vec![&[6, 5], &[6, 4]], "input 'x' axis 1: expected 4, got 5"),
        (vec![&[6, 4], &[7, 4]], "input 'y' axis 0: expected N = 6, got 7"),
        (vec![&[-1, 4], &[-1, 4]], "input 'x' axis 0: expected a size of at least 0, got -1"),
        (vec![&[i64::MAX, 4], &[i64::MAX, 4]], "shape of output 'flat': size 'N*4' overflows 64 bits"),
    ] {
        assert_eq!(executable.output_shapes(&shapes).unwrap_err().to_string(), message);
    }
    let mut plan = mixed_plan();
    plan["inputs"][1]["shape"] = json!(["N - 1 + 1", "max(N, 4)"]);
    plan["buffers"][1]["bytes"] = json!("N*max(N, 4)*4");
    plan["steps"].as_array_mut().unwrap()[0] = kernel("add_relu", &[0, 0], &[4], &json!([]), &json!("N*4"), &json!(0));
    let executable = Executable::load(write_folder(&plan, &[("w", &mixed_weights())]).path(), "plan.json", options(1));
    let executable = executable.unwrap();
    assert!(executable.output_shapes(&[&[6, 4], &[6, 6]]).is_ok());
    let error = executable.output_shapes(&[&[6, 4], &[6, 4]]).unwrap_err();
    assert_eq!(error.to_string(), "input 'y' axis 1: expected max(N, 4) = 6, got 4");
}

#[test]
fn blocks_are_checked_and_named() {
    let executable = Executable::load(mixed_folder().path(), "plan.json", options(1)).unwrap();
    let (x, shape) = (values(16, 0), [4i64, 4]);
    let mut outputs = [vec![0f32; 4], vec![0f32; 16], vec![0f32; 16], vec![0f32; 12], vec![0f32; 4]];
    let mut run = |x: &[u8], cut: usize| {
        let mut blocks: Vec<&mut [u8]> = outputs.iter_mut().map(|output| as_bytes_mut(output)).collect();
        let last = blocks.pop().unwrap();
        let length = last.len();
        blocks.push(&mut last[..length - cut]);
        executable
            .run(&[(x, &shape), (as_bytes(&values(16, 1)), &shape)], &mut blocks)
            .map_err(|error| error.to_string())
    };
    run(as_bytes(&x), 0).unwrap();
    assert_eq!(run(&as_bytes(&x)[..60], 0).unwrap_err(), "input 'x': expected 64 bytes, got 60");
    assert_eq!(run(as_bytes(&x), 4).unwrap_err(), "output 'sums_again': expected 16 bytes, got 12");
    let long = values(17, 0);
    assert_eq!(run(&as_bytes(&long)[1..65], 0).unwrap_err(), "input 'x' is not aligned to 4 bytes");
    let error = executable.run(&[], &mut []).unwrap_err().to_string();
    assert_eq!(error, "the plan has 2 inputs, got 0");
}

/// `a: f32[8] -> b: f32[8]` by `symbol`, with a detour through the arena.
fn breaker_plan(symbol: &str) -> Value {
    json!({
        "version": 1, "name": "breaker", "target": "cpu",
        "inputs": [{"name": "a", "dtype": "f32", "shape": [8], "buffer": 0}],
        "outputs": [{"name": "b", "dtype": "f32", "shape": [8], "buffer": 3}],
        "buffers": [
            {"bytes": 32, "storage": "input", "index": 0},
            {"bytes": 32, "storage": "arena"},
            {"bytes": 32, "storage": "arena"},
            {"bytes": 32, "storage": "output", "index": 0},
        ],
        "modules": [{"file": "kernels/kernels.so", "hash": ""}],
        "prepare": [],
        "steps": [
            kernel("well_behaved", &[0], &[1], &json!([8]), &json!(8), &json!(0)),
            kernel(symbol, &[1], &[2], &json!([8]), &json!(8), &json!(16)),
            kernel("well_behaved", &[2], &[3], &json!([8]), &json!(8), &json!(0)),
        ],
    })
}

fn run_breaker(plan: &Value, options: Options) -> Result<Vec<f32>, RuntimeError> {
    let executable = Executable::load(write_folder(plan, &[]).path(), "plan.json", options).unwrap();
    let mut output = [0f32; 8];
    let input = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    executable.run(&[(as_bytes(&input), &[8])], &mut [as_bytes_mut(&mut output)])?;
    assert_eq!(input, [1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    Ok(output.to_vec())
}

#[test]
fn guards_name_the_step_that_broke_a_rule() {
    for threads in [1, 2] {
        let guard = Options { threads, guard: true, poison: false };
        let whole = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        assert_eq!(run_breaker(&breaker_plan("well_behaved"), guard).unwrap(), whole);
        for (symbol, what) in [
            ("writes_past_end", "wrote out of bounds: at byte 32 of buffer 2, which has 32 bytes"),
            ("writes_before_start", "wrote out of bounds: at byte -4 of buffer 2, which has 32 bytes"),
            ("writes_its_input", "changed buffer 1, which it does not write"),
            ("overruns_scratch", "wrote out of bounds: at byte 16 of its scratch, which has 16 bytes"),
        ] {
            let error = run_breaker(&breaker_plan(symbol), guard).unwrap_err().to_string();
            // Floats are written little-endian: the first byte that differs may be any of the four.
            let prefix = what.split_once(" at byte").map_or(what, |(prefix, _)| prefix);
            assert!(error.starts_with(&format!("step 1 ({symbol}) {prefix}")), "{error}");
            assert_eq!(error, format!("step 1 ({symbol}) {what}"));
        }
        // The last step writes an output, which has bands of its own.
        let mut plan = breaker_plan("well_behaved");
        plan["steps"][2]["symbol"] = json!("writes_past_end");
        let error = run_breaker(&plan, guard).unwrap_err().to_string();
        assert!(error.starts_with("step 2 (well_behaved) wrote out of bounds: at byte 32 of buffer 3"), "{error}");
    }
}

#[test]
fn poison_shows_what_was_not_written() {
    for guard in [false, true] {
        let poison = Options { threads: 2, poison: true, guard };
        let output = run_breaker(&breaker_plan("forgets_elements"), poison).unwrap();
        for (at, value) in output.iter().enumerate() {
            assert_eq!(value.is_nan(), at % 2 == 1, "element {at} is {value}");
        }
        let mut plan = breaker_plan("well_behaved");
        plan["steps"][2]["symbol"] = json!("forgets_elements");
        assert!(run_breaker(&plan, poison).unwrap()[1].is_nan());
    }
}

fn load_error(plan: &Value, weights: &[(&str, &[f32])]) -> String {
    let folder = write_folder(plan, weights);
    let error = Executable::load(folder.path(), "plan.json", options(1)).err().expect("the plan was accepted");
    error.to_string().replace(&folder.path().display().to_string(), "FOLDER")
}

#[test]
fn what_is_missing_or_changed_is_named() {
    let weights = mixed_weights();
    let good: &[(&str, &[f32])] = &[("w", &weights)];
    let with = |pointer: &str, value: Value| {
        let mut plan = mixed_plan();
        *plan.pointer_mut(pointer).unwrap() = value;
        plan
    };
    for (plan, message) in [
        (with("/version", json!(2)), "the plan has version 2; this runtime reads version 1"),
        (with("/target", json!("cuda")), "the plan is for target 'cuda'; this runtime executes 'cpu'"),
        (
            with("/steps/0/reads/1", json!(99)),
            "malformed plan: step 0 (add_relu) names buffer 99, which does not exist",
        ),
        (
            with("/steps/0/reads/1", json!(6)),
            "malformed plan: step 0 (add_relu) reads buffer 6, which has not been written yet",
        ),
        (
            with("/steps/0/writes/0", json!(1)),
            "malformed plan: step 0 (add_relu) writes buffer 1, which is read only there",
        ),
        (
            with("/steps/1/writes/0", json!(4)),
            "malformed plan: step 1 (reverse_rows) uses buffer 4 twice, and writes it",
        ),
        (
            with("/steps/0/grid", json!("M*4")),
            "malformed plan: size 'M*4' names symbol 'M', which is no dimension of an input",
        ),
        (
            with("/prepare/1/reads/0", json!(0)),
            "malformed plan: prepare step 1 (transpose) reads buffer 0, which belongs to a call",
        ),
        (with("/buffers/5/of", json!(5)), "malformed plan: buffer 5 is an alias of itself"),
        (
            with("/modules/0/file", json!("../kernels.so")),
            "malformed plan: module '../kernels.so' is not a path inside the plan's folder",
        ),
        (with("/inputs/0/dtype", json!("f33")), "malformed plan: input 'x' has unknown dtype 'f33'"),
        (with("/steps/4/to", json!(8)), "malformed plan: no step writes output 'flat'"),
    ] {
        assert_eq!(load_error(&plan, good), message);
    }
    assert_eq!(load_error(&with("/buffers/2/bytes", json!(52)), good), "weight 'w': the plan expects 52 bytes, got 48");
    assert!(load_error(&mixed_plan(), &[("v", &weights)]).starts_with("weight 'w': FOLDER/weights.safetensors: "));
    assert!(load_error(&mixed_plan(), &[]).starts_with("cannot read FOLDER/weights.safetensors: "));
    let error = load_error(&with("/steps/0/symbol", json!("add_gelu")), good);
    assert!(error.starts_with("kernel module FOLDER/kernels/kernels.so: no symbol 'add_gelu': "), "{error}");
    let error = load_error(&with("/modules/0/file", json!("kernels/other.so")), good);
    assert!(error.starts_with("kernel module FOLDER/kernels/other.so: "), "{error}");
    let hash = blake3::hash(&std::fs::read(kernels::library()).unwrap()).to_hex();
    let plan = with("/modules/0/hash", json!(hash.as_str()));
    assert!(Executable::load(write_folder(&plan, good).path(), "plan.json", options(1)).is_ok());
    let error = load_error(&with("/modules/0/hash", json!("00")), good);
    assert_eq!(error, format!("kernel module FOLDER/kernels/kernels.so: its hash is {hash}, the plan expects 00"));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Executable::load(empty.path(), "plan.json", options(1)), Err(RuntimeError::Io { .. })));
    std::fs::write(empty.path().join("plan.json"), "{").unwrap();
    assert!(matches!(Executable::load(empty.path(), "plan.json", options(1)), Err(RuntimeError::Syntax { .. })));
}

#[test]
fn products_stay_inside_their_buffers() {
    let with = |pointer: &str, value: Value| {
        let mut plan = mixed_plan();
        *plan.pointer_mut(pointer).unwrap() = value;
        let folder = write_folder(&plan, &[("w", &mixed_weights())]);
        let executable = Executable::load(folder.path(), "plan.json", options(1)).unwrap();
        executable.arena_bytes(&[&[5, 4], &[5, 4]]).unwrap_err().to_string()
    };
    let error = with("/steps/2/a/row_stride", json!(5));
    assert_eq!(error, "malformed plan: step 2 (matmul): a reaches 96 bytes of a buffer of 80");
    let error = with("/steps/2/c/row_stride", json!(0));
    assert_eq!(error, "malformed plan: step 2 (matmul): c has a zero stride");
    let error = with("/steps/2/k", json!(i64::MAX));
    assert_eq!(error, "malformed plan: step 2 (matmul): a reaches too many bytes of a buffer of 80");
    let error = with("/buffers/7/bytes", json!("N*12 - 61"));
    assert_eq!(error, "malformed plan: buffer 7: size 'N*12 - 61' is -1, which is negative");
    let error = with("/buffers/9/bytes", json!("N*20"));
    assert!(error.ends_with("does not fill its buffer of 100 bytes"), "{error}");
}

/// Every value in `plan` by its path.
fn pointers(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| pointers(item, &format!("{at}/{i}"), into));
        }
        Value::Object(fields) => fields.iter().for_each(|(key, field)| pointers(field, &format!("{at}/{key}"), into)),
        _ => {}
    }
}

/// Replaces every value of a plan by many others: each result loads or is refused, with a message, and so are its shapes.
#[test]
fn no_malformed_plan_panics() {
    let mut plan = mixed_plan();
    // A kernel with arbitrary sizes may do anything, so none runs at load.
    plan["prepare"] = json!([{"step": "copy", "from": 2, "to": 11}, {"step": "copy", "from": 11, "to": 3}]);
    let folder = write_folder(&plan, &[("w", &mixed_weights())]);
    let weights = HashMap::from([("w".to_owned(), Bytes::from(bytes_of(&mixed_weights())))]);
    let mut paths = Vec::new();
    pointers(&plan, "", &mut paths);
    let substitutes = [
        json!(0),
        json!(1),
        json!(-1),
        json!(5),
        json!(1_000_000),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(1u64 << 40),
        json!("N"),
        json!("M"),
        json!("N*"),
        json!("floordiv(N, N - 5)"),
        json!("N*9223372036854775807"),
        json!(""),
        json!("0 - N"),
        json!(null),
        json!([]),
        json!([0]),
        json!({}),
        json!(1.5),
        json!(true),
    ];
    let (mut loaded, mut refused) = (0, 0);
    for path in &paths {
        for substitute in &substitutes {
            let mut changed = plan.clone();
            *changed.pointer_mut(path).unwrap() = substitute.clone();
            let Ok(parsed) = serde_json::from_value(changed) else {
                refused += 1;
                continue;
            };
            match Executable::new(parsed, &weights, folder.path(), options(2)) {
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
                Ok(executable) => {
                    loaded += 1;
                    for rows in [0, 5, i64::MAX] {
                        let shapes: [&[i64]; 2] = [&[rows, 4], &[rows, 4]];
                        let _ =
                            executable.output_shapes(&shapes).map_err(|error| assert!(!error.to_string().is_empty()));
                        let _ = executable.arena_bytes(&shapes).map_err(|error| assert!(!error.to_string().is_empty()));
                    }
                }
            }
        }
    }
    // Both happen, or the test tests nothing.
    assert!(loaded > 100 && refused > 1000, "{loaded} loaded, {refused} refused");
}

#[test]
fn damaged_text_is_refused() {
    let plan = mixed_plan();
    let folder = write_folder(&breaker_plan("well_behaved"), &[("w", &mixed_weights())]);
    let text = serde_json::to_string(&plan).unwrap();
    let path = folder.path().join("damaged.json");
    // A plan that loads would run its prepare steps, with damaged sizes: let one symbol be missing instead.
    let text = text.replace("\"transpose\"", "\"missing\"");
    for at in (0..text.len()).step_by(7) {
        for byte in [b'0', b'"', b'}', b'-', 0xff] {
            let mut damaged = text.clone().into_bytes();
            damaged[at] = byte;
            std::fs::write(&path, &damaged).unwrap();
            assert!(Executable::load(folder.path(), "damaged.json", options(1)).is_err());
        }
        std::fs::write(&path, &text[..at]).unwrap();
        assert!(matches!(
            Executable::load(folder.path(), "damaged.json", options(1)),
            Err(RuntimeError::Syntax { .. })
        ));
    }
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    std::fs::write(&path, deep).unwrap();
    assert!(Executable::load(folder.path(), "damaged.json", options(1)).is_err());
}
