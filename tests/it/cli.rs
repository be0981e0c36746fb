//! The main job and the other commands, through the binary.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use forge_cc::emit::manifest::Manifest;
use forge_cc::npy;

use crate::command::{assert_consistent, fixture, forge_cc, hashes, run, words};

/// What every output directory holds, beside kernels and headers.
const FILES: [&str; 11] = [
    "forged.py",
    "graph.forge",
    "journal/events.jsonl",
    "libforge_runtime.so",
    "manifest.json",
    "model.forged.onnx",
    "original.forge",
    "original.plan.json",
    "plan.json",
    "report.html",
    "weights.safetensors",
];

#[test]
fn a_build_writes_the_whole_directory_and_prints_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let model = fixture("digits/transformer.onnx");
    let built = run(words("{} -o {} -O2 --trials 4 --budget 20s --shape batch=3", &[&model, &out])).expect(0);

    let mut lines = built.stdout.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["region", "ops", "times", "tried", "accepted", "used", "rejected", "best"]);
    let total = lines.clone().find(|line| line.starts_with("total")).unwrap_or_else(|| panic!("{}", built.stdout));
    let report = Manifest::read(&out).unwrap().report;
    let tried: usize = report.regions.iter().map(|region| region.kernels.len()).sum();
    assert!((1..=4).contains(&tried), "{tried} kernels tried");
    let places: usize = report.regions.iter().map(|region| region.occurrences).sum();
    let figures: Vec<&str> = total.split_whitespace().take(5).collect();
    let expected = ["total", &report.regions.len().to_string(), "found", &places.to_string(), &tried.to_string()];
    assert_eq!(figures, expected, "{total}");
    for region in &report.regions {
        let line = lines.next().unwrap_or_default();
        assert!(line.starts_with(&region.hash[..8]), "{line}: expected region {}", region.hash);
    }
    let last = built.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("End to end: ") && last.contains("x [") && last.contains("at 95% confidence"), "{last}");
    assert!(last.contains("batch=3"), "{last}");

    let files = hashes(&out);
    for name in FILES {
        assert!(files.contains_key(Path::new(name)), "{name} is missing of {:?}", files.keys());
        assert!(fs::metadata(out.join(name)).unwrap().len() > 0, "{name} is empty");
    }
    assert_consistent(&out);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the output is left beside it");

    // Moved, with nothing left where it was built, it gives the same bits.
    let images = folder.path().join("images.npy");
    npy::write(&images, &first_images(3)).unwrap();
    let results = |directory: &Path, into: &str| {
        let into = folder.path().join(into);
        run(words("run {} --input {} --output {}", &[directory, &images, &into])).expect(0);
        fs::read(into.join("output_0.npy")).unwrap()
    };
    let here = results(&out, "here");
    let elsewhere = folder.path().join("some where").join("else");
    fs::create_dir(folder.path().join("some where")).unwrap();
    fs::rename(&out, &elsewhere).unwrap();
    assert_eq!(results(&elsewhere, "moved"), here);

    // Another batch is outside the guard of the forged plan; the unrewritten graph takes it.
    npy::write(&images, &first_images(5)).unwrap();
    let refused = run(words("run {} --input {} --output {}", &[&elsewhere, &images, folder.path()])).expect(2);
    assert_diagnostic(&refused.stderr, "a batch outside the guard");
    run(words("run {} --original --input {} --output {}", &[&elsewhere, &images, folder.path()])).expect(0);
    let scores = npy::read(&folder.path().join("output_0.npy")).unwrap();
    assert_eq!(scores.shape(), [5, 10]);
}

fn first_images(count: usize) -> forge_ir::Tensor {
    let images = npy::read(&fixture("digits/test_images.npy")).unwrap();
    let bytes = images.bytes().slice(..count * images.bytes().len() / images.shape()[0]);
    let shape = std::iter::once(count).chain(images.shape()[1..].iter().copied()).collect();
    forge_ir::Tensor::new(images.dtype(), shape, bytes).unwrap()
}

/// One screen that says what is wrong and what to do.
#[track_caller]
fn assert_diagnostic(stderr: &str, case: &str) {
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(lines.len() < 45, "{case}: {} lines", lines.len());
    assert!(lines.iter().any(|line| line.starts_with("error: ")), "{case}: no error:\n{stderr}");
    assert!(lines.iter().any(|line| line.starts_with(" help: ")), "{case}: no help:\n{stderr}");
    assert!(!stderr.contains("panicked"), "{case}:\n{stderr}");
}

#[test]
fn bad_input_is_explained_and_the_output_stays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let out = at("out");
    let cnn = fixture("digits/cnn.onnx");
    run(words("{} -o {} -O0", &[&cnn, &out])).expect(0);
    let before = hashes(&out);

    let whole = fs::read(&cnn).unwrap();
    let external = |name: &str, data: Option<&[u8]>| {
        let path = at(&format!("{name}.onnx"));
        fs::write(&path, external_model(&format!("{name}.data"))).unwrap();
        if let Some(data) = data {
            fs::write(at(&format!("{name}.data")), data).unwrap();
        }
        path
    };
    let file = |name: &str, bytes: &[u8]| {
        let path = at(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let models = [
        ("an empty file", file("empty.onnx", b"")),
        ("a cut file", file("cut.onnx", &whole[..whole.len() / 2])),
        ("a cut file, by one byte", file("cut_by_one.onnx", &whole[..whole.len() - 1])),
        ("JSON", file("model.json", b"{\"graph\": []}")),
        ("noise", file("noise.onnx", &noise(5000))),
        ("a pickle", file("model.pt", b"\x80\x04\x95\x10\x00\x00\x00")),
        ("no file", at("absent.onnx")),
        ("a folder", folder.path().to_owned()),
        ("missing external data", external("missing", None)),
        ("external data of 0 bytes", external("nothing", Some(b""))),
        ("external data that is too short", external("short", Some(&[0; 20]))),
    ];
    for (case, path) in models {
        let ended = run(words("{} -o {} -O1", &[&path, &out])).expect(2);
        assert_diagnostic(&ended.stderr, case);
        assert!(ended.stderr.contains(&*path.to_string_lossy()), "{case}: the file is not named:\n{}", ended.stderr);
        assert_eq!(hashes(&out), before, "{case}: the output directory was touched");
    }
    external("fits", Some(&[0; 64]));
    run(words("dump {}", &[&at("fits.onnx")])).expect(0);

    for (case, options) in [
        ("an unknown symbol", "--shape nope=3"),
        ("an empty batch", "--shape batch=0"),
        ("a negative batch", "--shape batch=-1"),
        ("a size that is no number", "--shape batch=many"),
        ("an unknown pass", "--stop-after nope"),
        ("an unknown level", "-O7"),
        ("a budget without sense", "--budget soon"),
        ("an unknown option", "--fast"),
    ] {
        let ended = run(words(&format!("{{}} -o {{}} {options}"), &[&cnn, &out])).expect(2);
        assert!(ended.stderr.starts_with("error: "), "{case}:\n{}", ended.stderr);
        assert!(ended.stderr.lines().count() < 45, "{case}");
        assert_eq!(hashes(&out), before, "{case}: the output directory was touched");
    }
    let fixed = fixture("models/gpt2_tiny/model.onnx");
    let ended = run(words("{} -o {} --shape batch=4", &[&fixed, &out])).expect(2);
    assert_diagnostic(&ended.stderr, "a shape for a model whose shapes are fixed");
    assert_eq!(hashes(&out), before);

    // A folder that is not ours is never replaced.
    let precious = at("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("thesis.txt"), "text").unwrap();
    let ended = run(words("{} -o {} -O0", &[&cnn, &precious])).expect(2);
    assert_diagnostic(&ended.stderr, "a folder of other files");
    assert_eq!(hashes(&precious).len(), 1);
}

/// Bytes without a pattern, always the same.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// x: f32[N, 4] -> x w, with w: f32[4, 4] in another file.
fn external_model(location: &str) -> Vec<u8> {
    use forge_cc::frontend::onnx::proto::{StringStringEntryProto, TensorProto};
    use prost::Message;
    const EXTERNAL: i32 = 1;
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let weight = TensorProto {
        name: "w".into(),
        data_type: 1,
        dims: vec![4, 4],
        data_location: EXTERNAL,
        external_data: vec![entry("location", location), entry("offset", "0"), entry("length", "64")],
        ..TensorProto::default()
    };
    let multiply = crate::onnx_build::node("MatMul", &["x", "w"], &["y"]);
    let x = crate::onnx_build::input("x", 1, &["N", "4"]);
    crate::onnx_build::model(20, vec![multiply], vec![x], &["y"], vec![weight]).encode_to_vec()
}

#[test]
fn bad_runs_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    run(words("{} -o {} -O0", &[&fixture("digits/cnn.onnx"), &out])).expect(0);
    let images = fixture("digits/test_images.npy");
    let empty = folder.path().join("empty.npy");
    fs::write(&empty, b"").unwrap();
    let results = folder.path().join("results");
    for (case, directory, input) in [
        ("no output directory", folder.path(), images.as_path()),
        ("no such directory", Path::new("no/such"), &images),
        ("labels for images", &out, &fixture("digits/test_labels.npy")),
        ("an empty array file", &out, &empty),
        ("a missing array file", &out, Path::new("absent.npy")),
        ("a batch outside the guard", &out, &images),
    ] {
        let ended = run(words("run {} --input {} --output {}", &[directory, input, &results])).expect(2);
        assert_diagnostic(&ended.stderr, case);
        assert!(!results.exists(), "{case}");
    }
    let ended = run(words("run {} --input {} --input {} --output {}", &[&out, &images, &images, &results])).expect(2);
    assert_diagnostic(&ended.stderr, "two inputs for one");
}

#[test]
fn dumps_and_passes_speak_the_same_text() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("models/gpt2_tiny/model.onnx");
    let dumped = run(words("dump {}", &[&model])).expect(0).stdout;
    let file = folder.path().join("gpt2.forge");
    fs::write(&file, &dumped).unwrap();
    // Read back and printed, it is the same text.
    assert_eq!(run(words("dump {}", &[&file])).expect(0).stdout, dumped);

    let silent = run(words("opt -p cse,dce {}", &[&file])).expect(0);
    assert_eq!(silent.stderr, "", "the graph between passes is printed on request");
    let asked = run(words("opt -p cse,dce --print-after cse {}", &[&file])).expect(0);
    assert_eq!((asked.stderr.matches("graph @").count(), &asked.stdout), (1, &silent.stdout));
    let once = silent.stdout;
    let ops = |text: &str| forge_ir::text::parse(text).unwrap().op_count();
    assert!(ops(&once) <= ops(&dumped) && ops(&once) > 0);
    fs::write(&file, &once).unwrap();
    assert_eq!(run(words("opt -p cse,dce {}", &[&file])).expect(0).stdout, once, "nothing is left to do");
    let optimised = run(words("opt {}", &[&file])).expect(0).stdout;
    assert!(ops(&optimised) < ops(&once), "{} ops, {} before", ops(&optimised), ops(&once));
    assert_eq!(run(words("dump --optimized {}", &[&model])).expect(0).stdout.matches("= attention(").count(), 2);
    assert!(run(words("dump --regions {}", &[&model])).expect(0).stdout.contains("// region "));

    let unknown = run(words("opt -p cse,nope {}", &[&file])).expect(2);
    assert_diagnostic(&unknown.stderr, "an unknown pass");
    assert!(unknown.stderr.contains("nope"), "{}", unknown.stderr);
    assert!(run(words("list passes", &[])).expect(0).stdout.lines().any(|line| line.starts_with("cse")));
    fs::write(&file, once.replacen("= ", "== ", 1)).unwrap();
    let misspelt = run(words("opt -p cse {}", &[&file])).expect(2);
    assert_diagnostic(&misspelt.stderr, "a misspelt IR file");
    assert!(misspelt.stderr.contains('^'), "no caret:\n{}", misspelt.stderr);
}

#[test]
fn json_is_all_that_goes_to_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let model = fixture("digits/cnn.onnx");
    let line = "{} -o {} -O2 --trials 1 --budget 10s --seed 5 --json --verify-each";
    let built = run(words(line, &[&model, &out])).expect(0);
    let printed: Manifest = serde_json::from_str(&built.stdout).unwrap();
    let written = Manifest::read(&out).unwrap();
    assert_eq!(printed.id, written.id);
    assert_eq!(printed.report, written.report);
    assert!(printed.report.end_to_end.is_some_and(|whole| whole.original_ms > 0.0 && whole.forged_ms > 0.0));
}

#[test]
fn an_interrupted_search_leaves_a_directory_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let model = fixture("digits/transformer.onnx");
    let mut child = forge_cc()
        .args(words("{} -o {} -O3 --budget 10m --shape batch=3", &[&model, &out]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let judged = lines.find(|line| line.starts_with("2 tried"));
    assert!(judged.is_some(), "the search ended before it was interrupted");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{rest:#?}");
    assert!(rest.iter().any(|line| line.starts_with("error: interrupted")), "{rest:#?}");
    assert!(rest.iter().any(|line| line.contains("--resume")), "{rest:#?}");
    assert_consistent(&out);
    let images = folder.path().join("images.npy");
    npy::write(&images, &first_images(3)).unwrap();
    run(words("run {} --input {} --output {}", &[&out, &images, folder.path()])).expect(0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "out, images.npy and output_0.npy");
}
