//! The output directory: complete, replaced as a whole, or left as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forge_cc::emit::host::Cpu;
use forge_cc::emit::manifest::{KernelBuild, Manifest, SymbolRange};
use forge_cc::emit::report::{EndToEnd, KernelReport, Outcome, Ratio, RegionReport, Report};
use forge_cc::emit::{EmitError, Kernel, Output, PlannedGraph, check_target, emit};
use forge_ir::{BinaryOp, DType, Dim, Graph, Loc, Op, Tensor, TensorType};
use forge_kernels::assemble::assemble;
use forge_kernels::compile::{Cache, Compiler, LIBRARY};
use forge_runtime::exec::{Executable, Options};
use forge_runtime::plan::{Buffer, BufferId, KernelStep, Module, PLAN_VERSION, Plan, Port, Step, Storage};
use forge_runtime::size::Size;
use safetensors::SafeTensors;

const SCALE: [f32; 4] = [1.0, 2.0, 3.0, 4.0];
const BIAS: f32 = 0.5;
const SOURCE: &str = "#include \"forge_cpu.hpp\"\nextern \"C\" void scale_add() {}\n";

/// `y = x * scale + bias` over [batch, 4], with files for one kernel and the runtime.
struct Scene {
    folder: tempfile::TempDir,
    graph: Graph,
    plan: Plan,
    weights: BTreeMap<String, Tensor>,
    report: Report,
    library: PathBuf,
    runtime: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("0123abcd.so");
        fs::write(&library, b"kernel code").unwrap();
        let runtime = folder.path().join("libforge_runtime.so");
        fs::write(&runtime, b"runtime code").unwrap();
        let weights = BTreeMap::from([
            ("scale".to_owned(), Tensor::from_slice(&[4], &SCALE)),
            ("bias".to_owned(), Tensor::from_slice(&[4], &[BIAS; 4])),
        ]);
        Scene { folder, graph: graph(&weights), plan: plan(), weights, report: report(), library, runtime }
    }

    /// Where the output goes: alone in its parent, so that left-overs are seen.
    fn target(&self) -> PathBuf {
        self.folder.path().join("outputs").join("out")
    }

    fn kernels(&self) -> [Kernel<'_>; 1] {
        [Kernel { library: &self.library, source: SOURCE }]
    }

    fn output<'a>(&'a self, kernels: &'a [Kernel<'a>]) -> Output<'a> {
        let planned = PlannedGraph { graph: &self.graph, plan: &self.plan, weights: &self.weights };
        Output {
            name: "scale_add",
            forged: planned,
            original: planned,
            kernels,
            kernel_build: KernelBuild {
                compiler: "c++".into(),
                compiler_version: "c++ 12.2.0".into(),
                flags: vec!["-O3".into(), "-march=native".into()],
            },
            kernel_headers: &[("forge_cpu.hpp", "#pragma once\n")],
            cpu: Cpu {
                arch: "x86_64".into(),
                model: "Test CPU".into(),
                isa: vec!["avx2".into()],
                flags_hash: "00".into(),
            },
            runtime_library: &self.runtime,
            symbols: BTreeMap::from([(
                "batch".to_owned(),
                SymbolRange { min: Some(1), max: Some(64), typical: Some(8) },
            )]),
            input_values: BTreeMap::new(),
            onnx: Some(b"onnx bytes"),
            report: &self.report,
            journal: None,
        }
    }

    fn emit(&self) -> Result<Manifest, EmitError> {
        emit(&self.output(&self.kernels()), &self.target(), false)
    }

    /// Names beside the output, which tell of unfinished work.
    fn siblings(&self) -> Vec<String> {
        let names = fs::read_dir(self.target().parent().unwrap()).unwrap();
        names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

fn graph(weights: &BTreeMap<String, Tensor>) -> Graph {
    let mut graph = Graph::new("scale_add");
    let x = graph.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("batch"), Dim::from(4)]));
    let [scale, bias] = ["scale", "bias"].map(|name| graph.add_weight(name, weights[name].clone()));
    let scaled = graph.add(Op::Binary(BinaryOp::Mul), &[x, scale], Loc::default()).unwrap();
    let y = graph.add(Op::Binary(BinaryOp::Add), &[scaled, bias], Loc::default()).unwrap();
    graph.set_outputs(vec![("y".to_owned(), y)]);
    graph
}

fn plan() -> Plan {
    let size = |text: &str| Size::parse(text).unwrap();
    let port = |name: &str, buffer| Port {
        name: name.into(),
        dtype: "f32".into(),
        shape: vec![size("batch"), Size::from(4)],
        buffer: BufferId(buffer),
    };
    let weight = |name: &str| Buffer { bytes: Size::from(16), storage: Storage::Weight { name: name.into() } };
    Plan {
        version: PLAN_VERSION,
        name: "scale_add".into(),
        target: "cpu".into(),
        inputs: vec![port("x", 0)],
        outputs: vec![port("y", 3)],
        buffers: vec![
            Buffer { bytes: size("batch*16"), storage: Storage::Input { index: 0 } },
            weight("scale"),
            weight("bias"),
            Buffer { bytes: size("batch*16"), storage: Storage::Output { index: 0 } },
        ],
        // As in a search: the library lies in some cache.
        modules: vec![Module { file: "cache/0123abcd.so".into(), hash: String::new() }],
        prepare: vec![],
        steps: vec![Step::Kernel(KernelStep {
            module: 0,
            symbol: "scale_add".into(),
            reads: vec![BufferId(0), BufferId(1), BufferId(2)],
            writes: vec![BufferId(3)],
            sizes: vec![size("batch")],
            grid: size("batch"),
            grain: Size::from(1),
            scratch: Size::from(0),
            label: "mul, add".into(),
        })],
    }
}

fn report() -> Report {
    let ratio = Ratio { value: 1.5, low: 1.4, high: 1.6 };
    let kernel = |hash: &str, title: &str, outcome| KernelReport { hash: hash.into(), title: title.into(), outcome };
    Report {
        regions: vec![RegionReport {
            hash: "feedc0de00000000".into(),
            summary: "mul, add".into(),
            occurrences: 3,
            kernels: vec![
                kernel("0123abcd", "template/rowwise{}", Outcome::Accepted { ratio, used: true, unused_because: None }),
                kernel(
                    "4567cdef",
                    "user/<script>{}",
                    Outcome::Rejected {
                        stage: "validate".into(),
                        reason: "mismatch".into(),
                        detail: "at [0, 3]: 1 & not 2".into(),
                    },
                ),
            ],
        }],
        end_to_end: Some(EndToEnd {
            ratio,
            confidence: 0.95,
            original_ms: 3.0,
            forged_ms: 2.0,
            pairs: 20,
            threads: 2,
            sizes: BTreeMap::from([("batch".into(), 8)]),
        }),
    }
}

/// Every file below `folder`, with its bytes.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn the_directory_is_complete_and_the_manifest_true() {
    let scene = Scene::new();
    let manifest = scene.emit().unwrap();
    let files = contents(&scene.target());
    let names: BTreeSet<&str> = files.keys().map(String::as_str).collect();
    let expected = BTreeSet::from([
        "forged.py",
        "graph.forge",
        "kernels/0123abcd.cpp",
        "kernels/0123abcd.so",
        "kernels/include/forge_cpu.hpp",
        "libforge_runtime.so",
        "manifest.json",
        "model.forged.onnx",
        "original.forge",
        "original.plan.json",
        "plan.json",
        "report.html",
        "weights.safetensors",
    ]);
    assert_eq!(names, expected);
    assert_eq!(Manifest::read(&scene.target()).unwrap(), manifest);
    assert_eq!(manifest.files.len(), files.len() - 1);
    for entry in &manifest.files {
        let bytes = &files[&entry.path];
        assert_eq!((entry.bytes, &entry.blake3), (bytes.len() as u64, &blake3::hash(bytes).to_hex().to_string()));
    }
    let plan: Plan = serde_json::from_slice(&files["plan.json"]).unwrap();
    assert_eq!(plan.modules[0].file, "kernels/0123abcd.so");
    assert_eq!(plan.modules[0].hash, blake3::hash(b"kernel code").to_hex().to_string());
    assert_eq!(Plan { modules: scene.plan.modules.clone(), ..plan }, scene.plan);
    let text = String::from_utf8(files["graph.forge"].clone()).unwrap();
    assert_eq!(forge_ir::parse(&text).unwrap().to_string(), scene.graph.to_string());
    // As any directory that the user makes, not as the private folder that it was written in.
    let ordinary = scene.folder.path().join("ordinary");
    fs::create_dir(&ordinary).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&scene.target()), mode(&ordinary));
    assert_eq!(scene.siblings(), ["out"]);
}

#[test]
fn weights_of_one_name_are_kept_apart_if_they_differ() {
    let scene = Scene::new();
    let mut weights = scene.weights.clone();
    let other = Tensor::from_slice(&[4], &[9f32; 4]);
    weights.insert("bias".to_owned(), other.clone());
    // The first choice of a new name is taken.
    weights.insert("original.bias".to_owned(), Tensor::scalar(1f32));
    let kernels = scene.kernels();
    let output = scene.output(&kernels);
    let original = PlannedGraph { weights: &weights, ..output.original };
    emit(&Output { original, ..output }, &scene.target(), false).unwrap();
    let files = contents(&scene.target());
    let names = |file: &str| -> Vec<String> {
        let plan: Plan = serde_json::from_slice(&files[file]).unwrap();
        let weight = |buffer: Buffer| match buffer.storage {
            Storage::Weight { name } => Some(name),
            _ => None,
        };
        plan.buffers.into_iter().filter_map(weight).collect()
    };
    assert_eq!(names("plan.json"), ["scale", "bias"]);
    assert_eq!(names("original.plan.json"), ["scale", "original.bias_"]);
    let file = SafeTensors::deserialize(&files["weights.safetensors"]).unwrap();
    for (name, tensor) in
        [("scale", &scene.weights["scale"]), ("bias", &scene.weights["bias"]), ("original.bias_", &other)]
    {
        assert_eq!(file.tensor(name).unwrap().data(), &tensor.bytes()[..], "{name}");
    }
}

/// A graph assembled and compiled as the driver does, emitted, moved, and run by the runtime from its new place.
#[test]
fn the_runtime_executes_what_was_emitted() {
    let scene = Scene::new();
    let assembled = assemble(&scene.graph, &|_| None).unwrap();
    let cache = Cache::new(scene.folder.path().join("cache"));
    let compiler = Compiler::detect().unwrap();
    let objects: Vec<_> = assembled.sources.iter().map(|source| compiler.compile(source, &cache).unwrap()).collect();
    let mut plan = assembled.plan.clone();
    plan.modules = objects.iter().map(|object| Module { file: object.file(), hash: object.hash.clone() }).collect();
    let built = || objects.iter().zip(&assembled.sources);
    // Both plans name the same libraries.
    let kernels: Vec<Kernel<'_>> =
        built().chain(built()).map(|(object, source)| Kernel { library: &object.path, source }).collect();
    let planned = PlannedGraph { graph: &scene.graph, plan: &plan, weights: &assembled.weights };
    let output = Output {
        forged: planned,
        original: planned,
        kernel_build: KernelBuild::of(&compiler),
        kernel_headers: LIBRARY,
        ..scene.output(&kernels)
    };
    emit(&output, &scene.target(), false).unwrap();
    let moved = scene.folder.path().join("moved");
    fs::rename(scene.target(), &moved).unwrap();
    fs::remove_dir_all(cache.folder()).unwrap();

    let x: Vec<f32> = (0u8..12).map(f32::from).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let wanted: Vec<f32> = x.iter().zip(SCALE.iter().cycle()).map(|(v, scale)| v * scale + BIAS).collect();
    for file in ["plan.json", "original.plan.json"] {
        let executable = Executable::load(&moved, file, Options { threads: 1, ..Options::default() }).unwrap();
        let mut y = vec![0u8; bytes.len()];
        executable.run(&[(&bytes, &[3, 4])], &mut [&mut y]).unwrap();
        let got: Vec<f32> = y.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
        assert_eq!(got, wanted, "{file}");
    }
}

#[test]
fn what_people_read_first() {
    let scene = Scene::new();
    scene.emit().unwrap();
    let files = contents(&scene.target());
    let text = |name: &str| String::from_utf8(files[name].clone()).unwrap();
    let loader = text("forged.py");
    let version = format!("forge-cc {}", env!("CARGO_PKG_VERSION"));
    let loader = loader.replace(&version, "forge-cc VERSION");
    let docstring: Vec<&str> = loader.split_inclusive("\"\"\"").take(2).collect();
    insta::assert_snapshot!("forged_docstring", docstring.concat());
    insta::with_settings!({filters => vec![(r#""(blake3|id)": "[0-9a-f]+""#, r#""$1": "HASH""#), (r#""bytes": \d+"#, r#""bytes": 0"#), (r#""tool_version": ".*""#, r#""tool_version": "VERSION""#)]}, {
        insta::assert_snapshot!("manifest", text("manifest.json"));
    });
    insta::with_settings!({filters => vec![(r"(?s)<style>.*</style>", "<style></style>"), (r"(<td>forge-cc</td><td colspan=.2.>)[0-9.]+", "${1}VERSION")]}, {
        insta::assert_snapshot!("report_html", text("report.html"));
    });
}

#[test]
fn an_earlier_output_is_replaced_as_a_whole() {
    let scene = Scene::new();
    let first = scene.emit().unwrap();
    fs::write(scene.target().join("stray.txt"), "left by someone").unwrap();
    let kernels = scene.kernels();
    let output = Output { name: "second", onnx: None, ..scene.output(&kernels) };
    emit(&output, &scene.target(), false).unwrap();
    let second = Manifest::read(&scene.target()).unwrap();
    assert_eq!((second.name.as_str(), &second.id), ("second", &first.id));
    let files = contents(&scene.target());
    assert!(!files.contains_key("stray.txt") && !files.contains_key("model.forged.onnx"));
    assert_eq!(scene.siblings(), ["out"]);
}

#[test]
fn a_reader_never_sees_half_a_directory() {
    let scene = Scene::new();
    scene.emit().unwrap();
    let done = AtomicBool::new(false);
    let target = scene.target();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                Manifest::read(&target).unwrap();
                reads += 1;
            }
            reads
        });
        for _ in 0..50 {
            scene.emit().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}

#[test]
fn other_directories_are_refused_and_untouched() {
    let scene = Scene::new();
    let target = scene.target();
    fs::create_dir_all(&target).unwrap();
    check_target(&target, false).unwrap();
    fs::write(target.join("thesis.tex"), "years of work").unwrap();
    // Someone else's manifest does not make it ours.
    fs::write(target.join("manifest.json"), r#"{"tool": "other", "version": 1}"#).unwrap();
    let before = contents(&target);
    let error = scene.emit().unwrap_err();
    assert!(matches!(error, EmitError::Occupied { .. }), "{error}");
    assert!(error.help().unwrap().contains("--force"));
    assert!(matches!(check_target(&target, false), Err(EmitError::Occupied { .. })));
    assert_eq!(contents(&target), before);
    emit(&scene.output(&scene.kernels()), &target, true).unwrap();
    assert!(!contents(&target).contains_key("thesis.tex"));
    assert_eq!(scene.siblings(), ["out"]);
}

#[test]
fn places_that_cannot_be_replaced_are_refused_even_with_force() {
    let scene = Scene::new();
    let file = scene.folder.path().join("file");
    fs::write(&file, "text").unwrap();
    let kernels = scene.kernels();
    let error = emit(&scene.output(&kernels), &file, true).unwrap_err();
    assert!(matches!(error, EmitError::NotADirectory { .. }), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    for holds_us in [".", "..", "/"] {
        let error = emit(&scene.output(&kernels), Path::new(holds_us), true).unwrap_err();
        assert!(matches!(error, EmitError::InUse { .. }), "{holds_us}: {error}");
    }
}

#[test]
fn a_failure_at_any_point_leaves_the_previous_output() {
    let scene = Scene::new();
    scene.emit().unwrap();
    let before = contents(&scene.target());
    let missing = scene.folder.path().join("missing");
    let (absent, good) = (missing.join("0123abcd.so"), scene.library.clone());
    let odd = scene.folder.path().join("a b.so");
    fs::copy(&good, &odd).unwrap();
    let kernel = |library| Kernel { library, source: SOURCE };
    let (no_library, odd_name) = ([kernel(&absent)], [kernel(&good), kernel(&odd)]);
    let unlike = Kernel { source: "int other;", ..kernel(&good) };
    let (twice, kernels) = ([kernel(&good), unlike], [kernel(&good)]);
    let other = Plan { modules: vec![Module { file: "ffff.so".into(), hash: String::new() }], ..scene.plan.clone() };
    let stale = Plan { modules: vec![Module { file: "0123abcd.so".into(), hash: "00".into() }], ..scene.plan.clone() };
    let bias =
        |tensor: Tensor| [scene.weights.clone(), BTreeMap::from([("bias".to_owned(), tensor)])].into_iter().flatten();
    let short: BTreeMap<String, Tensor> = bias(Tensor::from_slice(&[3], &[0f32; 3])).collect();
    let none: BTreeMap<String, Tensor> = short.clone().into_iter().filter(|(name, _)| name != "bias").collect();
    let reserved: BTreeMap<String, Tensor> =
        scene.weights.clone().into_iter().chain([("__metadata__".to_owned(), Tensor::scalar(1f32))]).collect();
    let output = || scene.output(&kernels);
    let planned = |plan| PlannedGraph { graph: &scene.graph, plan, weights: &scene.weights };
    let weighted = |weights| PlannedGraph { graph: &scene.graph, plan: &scene.plan, weights };
    let failures: Vec<(&str, Output<'_>)> = vec![
        ("missing", Output { kernels: &no_library, ..output() }),
        ("plain word", Output { kernels: &odd_name, ..output() }),
        ("shares its name", Output { kernels: &twice, ..output() }),
        ("ffff.so", Output { forged: planned(&other), ..output() }),
        ("its hash is another", Output { original: planned(&stale), ..output() }),
        ("'bias' of 16 bytes; there is one of 12 bytes", Output { forged: weighted(&short), ..output() }),
        ("'bias' of 16 bytes; there is none", Output { original: weighted(&none), ..output() }),
        ("'__metadata__' is reserved", Output { forged: weighted(&reserved), ..output() }),
        ("missing", Output { runtime_library: &missing, ..output() }),
        ("Is a directory", Output { runtime_library: scene.folder.path(), ..output() }),
        ("missing", Output { journal: Some(&missing), ..output() }),
        // Two files of one name: a write that fails in the middle.
        ("write", Output { kernel_headers: &[("x.hpp", ""), ("x.hpp", "")], ..output() }),
    ];
    for (index, (wanted, output)) in failures.iter().enumerate() {
        let error = emit(output, &scene.target(), true).unwrap_err();
        assert!(error.to_string().contains(wanted), "{index}: {error}");
        assert_eq!(contents(&scene.target()), before, "{index}");
        assert_eq!(scene.siblings(), ["out"], "{index}");
    }
}

#[test]
fn a_first_emit_that_fails_leaves_nothing() {
    let scene = Scene::new();
    let kernels = scene.kernels();
    let forged = PlannedGraph { weights: &BTreeMap::new(), ..scene.output(&kernels).forged };
    emit(&Output { forged, ..scene.output(&kernels) }, &scene.target(), false).unwrap_err();
    assert!(scene.siblings().is_empty());
}

#[test]
fn a_journal_in_the_directory_stays_the_same_file() {
    let scene = Scene::new();
    let journal = scene.target().join("journal");
    fs::create_dir_all(journal.join("older")).unwrap();
    fs::write(journal.join("older/events.jsonl"), "{}\n").unwrap();
    let events = journal.join("events.jsonl");
    let mut writer = fs::File::create(&events).unwrap();
    writer.write_all(b"{\"event\": 1}\n").unwrap();
    let inode = fs::metadata(&events).unwrap().ino();
    // What a search leaves before anything is emitted counts as ours.
    check_target(&scene.target(), false).unwrap();
    let kernels = scene.kernels();
    let manifest = emit(&Output { journal: Some(&journal), ..scene.output(&kernels) }, &scene.target(), false).unwrap();
    writer.write_all(b"{\"event\": 2}\n").unwrap();
    assert_eq!(fs::metadata(&events).unwrap().ino(), inode);
    assert_eq!(fs::read_to_string(&events).unwrap(), "{\"event\": 1}\n{\"event\": 2}\n");
    assert_eq!(fs::read_to_string(journal.join("older/events.jsonl")).unwrap(), "{}\n");
    assert!(manifest.files.iter().all(|file| !file.path.starts_with("journal")));
}

#[test]
fn a_journal_from_elsewhere_is_copied() {
    let scene = Scene::new();
    let journal = scene.folder.path().join("logs");
    fs::create_dir(&journal).unwrap();
    fs::write(journal.join("events.jsonl"), "{}\n").unwrap();
    let kernels = scene.kernels();
    emit(&Output { journal: Some(&journal), ..scene.output(&kernels) }, &scene.target(), false).unwrap();
    let copy = scene.target().join("journal/events.jsonl");
    assert_eq!(fs::read_to_string(&copy).unwrap(), "{}\n");
    assert_ne!(fs::metadata(copy).unwrap().ino(), fs::metadata(journal.join("events.jsonl")).unwrap().ino());
}

#[test]
fn a_link_stays_a_link() {
    let scene = Scene::new();
    scene.emit().unwrap();
    let link = scene.folder.path().join("latest");
    symlink(scene.target(), &link).unwrap();
    let kernels = scene.kernels();
    emit(&Output { name: "second", ..scene.output(&kernels) }, &link, false).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(Manifest::read(&scene.target()).unwrap().name, "second");
}

#[test]
fn a_manifest_of_another_version_is_told() {
    let scene = Scene::new();
    scene.emit().unwrap();
    let path = scene.target().join("manifest.json");
    for (text, wanted) in [
        (r#"{"tool": "forge-cc", "version": 99}"#, "version 99"),
        (r#"{"tool": "other", "version": 1}"#, "'other'"),
        ("{", "EOF"),
        (r#"{"tool": "forge-cc", "version": 1}"#, "missing field"),
    ] {
        fs::write(&path, text).unwrap();
        let error = Manifest::read(&scene.target()).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
        assert!(error.help().is_some());
    }
}
