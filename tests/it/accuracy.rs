//! Models trained on digits classify every test image as they did before they were compiled.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use forge_cc::driver::{fits_a_template, load_model};
use forge_cc::emit::{FORGED_PLAN, JOURNAL_FOLDER, ORIGINAL_PLAN};
use forge_cc::npy;
use forge_cc::search::journal;
use forge_ir::{Bindings, DType, Graph, Op, Region, Tensor};
use forge_kernels::assemble::assemble;
use forge_kernels::build;
use forge_kernels::candidate::Candidate;
use forge_kernels::compile::{Cache, Compiler};
use forge_kernels::verdict::{Reason, Verdict};
use forge_passes::regions::discover;
use forge_passes::{Context, DEFAULT_PIPELINE, Manager, Pipeline};
use forge_runtime::{Executable, Options};

use crate::command::{cache_folder, fixture, run, words};

/// Divides the number of test images.
const BATCH: usize = 18;
const CLASSES: usize = 10;

#[test]
fn the_cnn_is_as_accurate_as_before() {
    accuracy_is_kept("cnn");
}

#[test]
fn the_transformer_is_as_accurate_as_before() {
    accuracy_is_kept("transformer");
}

fn accuracy_is_kept(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let model = fixture(&format!("digits/{name}.onnx"));
    let line = format!("{{}} -o {{}} -O2 --budget 40s --shape batch={BATCH}");
    run(words(&line, &[&model, &out])).expect(0);

    let images = npy::read(&fixture("digits/test_images.npy")).unwrap();
    let batches = batches(&images, folder.path());
    assert_eq!(batches.len() * BATCH, images.shape()[0], "every image is in a batch");
    let expected = predictions_by_command(&out, &batches, &["--original"]);
    let accuracy: serde_json::Value =
        serde_json::from_slice(&fs::read(fixture("digits/accuracy.json")).unwrap()).unwrap();
    assert_eq!(accuracy[name]["of"], expected.len());
    assert_eq!(accuracy[name]["correct"], correct(&expected), "PyTorch's figure, by the unrewritten plan");
    // What ships is what was measured to be faster on this machine.
    assert_eq!(predictions_by_command(&out, &batches, &[]), expected, "the forged plan");

    // Whether a kernel is faster is up to the machine; that it is right is not. So, all that passed validation at once.
    let loaded = |plan: &str| Executable::load(&out, plan, options()).unwrap();
    for plan in [FORGED_PLAN, ORIGINAL_PLAN] {
        assert_eq!(predictions(&loaded(plan), &images), expected, "{plan} in this process");
    }
    let (kernels, executable) = with_every_valid_kernel(&model, &out);
    assert!(kernels > 0, "no kernel passed validation");
    assert_eq!(predictions(&executable, &images), expected, "with {kernels} kernels");
}

/// The images as files of `BATCH` each.
fn batches(images: &Tensor, folder: &Path) -> Vec<PathBuf> {
    let shape: Vec<usize> = std::iter::once(BATCH).chain(images.shape()[1..].iter().copied()).collect();
    let bytes = shape.iter().product::<usize>() * images.dtype().size();
    let mut paths = Vec::new();
    for (at, start) in (0..images.bytes().len()).step_by(bytes).enumerate() {
        let path = folder.join(format!("batch_{at}.npy"));
        let batch = images.bytes().slice(start..start + bytes);
        npy::write(&path, &Tensor::new(images.dtype(), shape.clone(), batch).unwrap()).unwrap();
        paths.push(path);
    }
    paths
}

/// By `forge-cc run`, a process per batch.
fn predictions_by_command(directory: &Path, batches: &[PathBuf], options: &[&str]) -> Vec<usize> {
    let results = tempfile::tempdir().unwrap();
    let mut classes = Vec::new();
    for batch in batches {
        let mut line = words("run {} --input {} --output {}", &[directory, batch, results.path()]);
        line.extend(options.iter().map(Into::into));
        run(line).expect(0);
        let scores = npy::read(&results.path().join("output_0.npy")).unwrap();
        assert_eq!((scores.dtype(), scores.shape()), (DType::F32, &[BATCH, CLASSES][..]));
        classes.extend(largest(scores.bytes()));
    }
    classes
}

fn predictions(executable: &Executable, images: &Tensor) -> Vec<usize> {
    let shape: Vec<i64> =
        std::iter::once(BATCH).chain(images.shape()[1..].iter().copied()).map(|size| size as i64).collect();
    let bytes = images.bytes().len() / images.shape()[0] * BATCH;
    let mut classes = Vec::new();
    for batch in images.bytes().chunks_exact(bytes) {
        let mut scores = vec![0; BATCH * CLASSES * size_of::<f32>()];
        executable.run(&[(batch, &shape)], &mut [&mut scores]).unwrap();
        classes.extend(largest(&scores));
    }
    classes
}

/// The class with the highest score, row by row.
fn largest(scores: &[u8]) -> Vec<usize> {
    let scores: Vec<f32> = scores.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(scores.iter().all(|score| score.is_finite()));
    let argmax = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    scores.chunks_exact(CLASSES).map(argmax).collect()
}

fn correct(classes: &[usize]) -> usize {
    let labels = npy::read(&fixture("digits/test_labels.npy")).unwrap();
    assert_eq!((labels.dtype(), labels.shape()), (DType::I64, &[classes.len()][..]));
    let labels = labels.bytes().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
    labels.zip(classes).filter(|(label, class)| *label == **class as i64).count()
}

fn options() -> Options {
    Options { threads: 2, poison: false, guard: false }
}

/// The rewritten model with a kernel in every region for which the build's journal has one that computes what it should, faster
/// or not; and how many regions these are.
fn with_every_valid_kernel(model: &Path, out: &Path) -> (usize, std::sync::Arc<Executable>) {
    let journal = out.join(JOURNAL_FOLDER);
    let mut valid: BTreeMap<String, Candidate> = BTreeMap::new();
    for candidate in journal::read(&journal).unwrap().state.candidates.values() {
        let computes_it = match &candidate.verdict {
            Some(Verdict::Accepted { .. }) => true,
            Some(Verdict::Rejected { reason, .. }) => *reason == Reason::NotFaster,
            None => false,
        };
        if computes_it {
            let kept = journal::load_candidate(&journal, &candidate.hash).unwrap();
            valid.insert(candidate.region.clone(), kept);
        }
    }
    let mut graph: Graph = load_model(model, &Bindings::from([("batch".to_owned(), BATCH as i64)])).unwrap().bound;
    let pipeline: Pipeline = DEFAULT_PIPELINE.parse().unwrap();
    Manager::new(Context::default()).run(&mut graph, &pipeline).unwrap();
    let mut by_kernel: HashMap<String, Candidate> = HashMap::new();
    for class in discover(&graph.clone(), &fits_a_template) {
        let Some(candidate) = valid.get(&class.hash) else { continue };
        by_kernel.insert(candidate.hash(), candidate.clone());
        for occurrence in &class.occurrences {
            let nodes: BTreeSet<_> = occurrence.nodes().iter().copied().filter(|n| graph.contains(*n)).collect();
            let patch = Region::new(&graph, nodes).unwrap().fuse_patch(&graph, candidate.hash());
            graph.apply(&patch).unwrap();
        }
    }
    let assembled = assemble(&graph, &|node| match graph.op(node) {
        Op::Fused(fused) => by_kernel.get(&fused.kernel).cloned(),
        _ => None,
    })
    .unwrap();
    let compiler = Compiler::detect().unwrap();
    let executable = build::load(&assembled, &compiler, &Cache::new(cache_folder()), options()).unwrap();
    (valid.len(), executable)
}
