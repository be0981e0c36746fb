//! The arrows between packages, held against the manifests.
//!
//! `forge-cc -> {forge-passes, forge-kernels} -> forge-ir`, `forge-kernels -> forge-runtime`; a package may also name what it
//! reaches by these arrows. What no arrow leads to is unknown to it: forge-ir knows nothing of ONNX, forge-runtime nothing
//! of graphs, and tract is known to forge-cc alone, and there to `src/oracle` alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each package, what it may name of the others, and what it must not name of the world.
const PACKAGES: [(&str, &[&str], &[&str]); 5] = [
    ("forge-cc", &["forge-passes", "forge-kernels", "forge-runtime", "forge-ir"], &[]),
    ("forge-passes", &["forge-ir"], &["prost", "tract-onnx", "libloading", "tokio", "clap"]),
    ("forge-kernels", &["forge-ir", "forge-runtime"], &["prost", "tract-onnx", "tokio", "clap"]),
    ("forge-ir", &[], &["prost", "tract-onnx", "libloading", "egg", "cudarc", "tokio", "clap"]),
    ("forge-runtime", &[], &["prost", "tract-onnx", "petgraph", "egg", "tokio", "clap"]),
];

/// Every (package, dependency) of the workspace, of every kind: normal, dev and build.
fn edges() -> BTreeSet<(String, String)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("the cargo that built this test starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a name is a string").to_owned();
    let mut edges = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("a list of packages") {
        for dependency in package["dependencies"].as_array().expect("a list of dependencies") {
            edges.insert((text(&package["name"]), text(&dependency["name"])));
        }
    }
    edges
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What of `edges` the table does not allow.
fn violations(edges: &BTreeSet<(String, String)>) -> Vec<String> {
    let mut found = Vec::new();
    for (package, dependency) in edges {
        let Some((_, allowed, forbidden)) = PACKAGES.iter().find(|(name, ..)| name == package) else {
            found.push(format!("{package} is not in the table"));
            continue;
        };
        let dependency = dependency.as_str();
        let ours = dependency.starts_with("forge-");
        if (ours && !allowed.contains(&dependency)) || forbidden.contains(&dependency) {
            found.push(format!("{package} names {dependency}"));
        }
    }
    found
}

#[test]
fn arrows_point_down() {
    let edges = edges();
    for (package, ..) in PACKAGES {
        assert!(edges.iter().any(|(name, _)| name == package), "{package} is not in the workspace, or names nothing");
    }
    assert_eq!(violations(&edges), Vec::<String>::new());
}

#[test]
fn an_arrow_that_points_up_is_found() {
    let real = edges();
    for (package, dependency) in [
        ("forge-passes", "forge-kernels"),
        ("forge-ir", "forge-passes"),
        ("forge-runtime", "forge-ir"),
        ("forge-kernels", "forge-cc"),
        ("forge-ir", "prost"),
        ("forge-extra", "serde"),
    ] {
        let mut planted = real.clone();
        planted.insert((package.into(), dependency.into()));
        assert_eq!(violations(&planted).len(), 1, "{package} -> {dependency}");
    }
}

#[test]
fn only_the_oracle_names_tract() {
    let mut naming = BTreeSet::new();
    for folder in ["src", "passes/src", "ir/src", "kernels/src", "kernels/runtime/src"] {
        for path in rust_files(&root().join(folder)) {
            if fs::read_to_string(&path).expect("sources are text").contains("tract_onnx") {
                naming.insert(path.strip_prefix(root()).expect("below the root").to_owned());
            }
        }
    }
    assert!(!naming.is_empty(), "the oracle is built on tract");
    assert!(naming.iter().all(|path| path.starts_with("src/oracle")), "{naming:?}");
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("a folder lists its entries").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
