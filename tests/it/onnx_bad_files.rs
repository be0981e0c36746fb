//! Files that are no model, or a damaged one: an error that says what to do, never a panic.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use forge_cc::frontend::onnx::proto::{
    FunctionProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
};
use forge_cc::frontend::{Fault, ImportError, Options, load, load_bytes};
use forge_ir::Bindings;
use prost::Message;

use crate::onnx_build::{f32s, i64s, import, import_with, input, model, node, raw_tensor, with_int, with_ints};

fn load_default(path: &Path) -> Result<forge_cc::frontend::Imported, ImportError> {
    load(path, &Options::default())
}

/// The faults of a model that must be refused, as text, each with a help.
fn faults(model: &ModelProto) -> Vec<String> {
    let error = import(model).expect_err("the model should be refused");
    assert!(!error.faults().is_empty(), "{error}");
    error
        .faults()
        .iter()
        .map(|fault| {
            assert!(!fault.help().is_empty());
            fault.to_string()
        })
        .collect()
}

fn one_fault(model: &ModelProto) -> String {
    let mut all = faults(model);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// x: f32[N, 4] -> relu(x w + b), w 4x3.
fn small_model() -> ModelProto {
    model(
        20,
        vec![node("Gemm", &["x", "w", "b"], &["h"]), node("Relu", &["h"], &["y"])],
        vec![input("x", 1, &["N", "4"])],
        &["y"],
        vec![f32s("w", &[4, 3], &[0.5; 12]), f32s("b", &[3], &[1.0, 2.0, 3.0])],
    )
}

#[test]
fn other_kinds_of_file_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, name) in [
        (&b""[..], "an empty file"),
        (b"{\"graph_module\": {}}", "JSON"),
        (b"PK\x03\x04rest of a zip archive", "zip archive"),
        (b"\x89HDF\r\n\x1a\n0000", "HDF5"),
        (b"\x80\x04\x95\x10\x00", "pickle"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b"# My model\nsome notes", "plain text"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    ] {
        let path = folder.path().join("model.onnx");
        fs::write(&path, bytes).unwrap();
        let error = load_default(&path).unwrap_err();
        assert!(matches!(error, ImportError::Format { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(!error.help().is_empty());
    }
    let missing = load_default(&folder.path().join("absent.onnx")).unwrap_err();
    assert!(matches!(missing, ImportError::Read { .. }));
    assert_eq!(missing.help(), "check the path");
    assert!(matches!(load_default(folder.path()).unwrap_err(), ImportError::Read { .. }));
}

#[test]
fn a_cut_or_flipped_model_never_panics() {
    let bytes = small_model().encode_to_vec();
    let read = |bytes: Vec<u8>| load_bytes(Path::new("cut.onnx"), Bytes::from(bytes), &Options::default());
    assert!(read(bytes.clone()).is_ok());
    for length in 0..bytes.len() {
        assert!(read(bytes[..length].to_vec()).is_err(), "cut to {length} bytes of {}", bytes.len());
    }
    let mut refused = 0;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            refused += usize::from(read(flipped).is_err());
        }
    }
    assert!(refused > bytes.len(), "most flips outside names and data are noticed: {refused}");
}

#[test]
fn a_flipped_fixture_never_panics() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/llama_tiny_op23/model.onnx");
    let whole = fs::read(&path).unwrap();
    // The graph's nodes come first; weights later are data. A stride coprime to the field sizes visits all kinds.
    for at in (0..whole.len().min(60_000)).step_by(211) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let _ = load_bytes(&path, Bytes::from(flipped), &Options::default());
    }
    for length in (0..whole.len()).step_by(9973) {
        let cut = load_bytes(&path, Bytes::copy_from_slice(&whole[..length]), &Options::default());
        assert!(cut.is_err());
    }
}

#[test]
fn weights_must_fill_their_shape() {
    let mut model = small_model();
    let graph = model.graph.as_mut().unwrap();
    graph.initializer[0].dims = vec![4, 4];
    assert_eq!(one_fault(&model), "tensor 'w': f32[4, 4] needs 64 bytes of data, the file has 48");

    let with_weight = |tensor: TensorProto| {
        let mut model = small_model();
        model.graph.as_mut().unwrap().initializer[0] = tensor;
        one_fault(&model)
    };
    assert!(with_weight(raw_tensor("w", 1, &[4, 3], vec![])).contains("needs 48 bytes of data, the file has 0"));
    assert!(with_weight(raw_tensor("w", 1, &[4, -3], vec![])).contains("negative size -3"));
    assert!(with_weight(raw_tensor("w", 1, &[i64::MAX, 8], vec![])).contains("more elements than any file"));
    assert!(with_weight(raw_tensor("w", 8, &[4, 3], vec![])).contains("STRING is not supported"));
    assert!(with_weight(raw_tensor("w", 99, &[4, 3], vec![])).contains("number 99 is not supported"));
    let typed = TensorProto {
        name: "w".into(),
        data_type: 1,
        dims: vec![4, 3],
        float_data: vec![0.0; 11],
        ..TensorProto::default()
    };
    assert!(with_weight(typed).contains("needs 12 elements of f32, the file has 11"));
}

fn external(location: &str, offset: &str, length: &str) -> TensorProto {
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    TensorProto {
        name: "w".into(),
        data_type: 1,
        dims: vec![4, 3],
        data_location: 1,
        external_data: vec![entry("location", location), entry("offset", offset), entry("length", length)],
        ..TensorProto::default()
    }
}

#[test]
fn external_data_stay_beside_the_model() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("model");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("weights.bin"), vec![0u8; 64]).unwrap();
    fs::write(outer.path().join("secret.bin"), vec![0u8; 64]).unwrap();
    let absolute = outer.path().join("secret.bin").to_str().unwrap().to_owned();
    let path = folder.join("model.onnx");
    let read = |tensor: TensorProto, structure_only: bool| {
        let mut model = small_model();
        model.graph.as_mut().unwrap().initializer[0] = tensor;
        fs::write(&path, model.encode_to_vec()).unwrap();
        load(&path, &Options { structure_only, ..Options::default() })
    };
    assert!(read(external("weights.bin", "16", "48"), false).is_ok());
    assert!(read(external("./weights.bin", "0", "48"), false).is_ok());
    let mut cases = vec![
        (external("weights.bin", "17", "48"), "has 64 bytes, but the tensor's 48 bytes start at 17"),
        (external("weights.bin", "0", "44"), "needs 48 bytes, but its external data entry says length 44"),
        (external("weights.bin", "-1", "48"), "offset '-1' is no number"),
        (external("absent.bin", "0", "48"), "does not exist"),
        (external("../secret.bin", "0", "48"), "leads outside the model's folder"),
        (external("a/../../secret.bin", "0", "48"), "leads outside the model's folder"),
        (external("..\\secret.bin", "0", "48"), "leads outside the model's folder"),
        (external(&absolute, "0", "48"), "leads outside the model's folder"),
        (external("", "0", "48"), "no location is given"),
    ];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outer.path().join("secret.bin"), folder.join("link.bin")).unwrap();
        cases.push((external("link.bin", "0", "48"), "leads outside the model's folder"));
    }
    for (tensor, expected) in cases {
        let error = read(tensor, false).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    // A graph without its weights is still a graph.
    let structure = read(external("absent.bin", "0", "48"), true).unwrap().graph;
    assert!(forge_ir::interp::run(&structure, &[], forge_ir::interp::Mode::Native).is_err());
    assert!(read(external("../secret.bin", "0", "48"), true).is_err());
}

#[test]
fn every_refusal_is_listed_at_once() {
    let mut foreign = node("Relu", &["x"], &["a"]);
    foreign.domain = "my.ns".into();
    let mut renamed = node("RenamedOp", &["a"], &["b"]);
    renamed.name = String::new();
    let mut model = model(
        19,
        vec![
            foreign,
            renamed,
            node("Gelu", &["b"], &["c"]),
            node("Unique", &["c"], &["d"]),
            node("StringSplit", &["d"], &["e"]),
            node("Relu", &["x"], &["f"]),
        ],
        vec![input("x", 1, &["N"])],
        &["e", "f"],
        vec![],
    );
    model.opset_import.push(OperatorSetIdProto { domain: "my.ns".into(), version: 1 });
    let all = faults(&model);
    assert_eq!(
        all,
        [
            "node '/Relu' (Relu): operator my.ns::Relu (opset 1) is not supported",
            "node #1 (RenamedOp -> 'b'): operator ai.onnx::RenamedOp (opset 19) is not supported",
            "node '/Gelu' (Gelu): operator ai.onnx::Gelu (opset 19) is not supported at this opset: we know it at \
             opsets 20 to 26",
            "node '/Unique' (Unique): operator ai.onnx::Unique (opset 19) is not supported",
            "node '/StringSplit' (StringSplit): operator ai.onnx::StringSplit (opset 19) is not supported",
        ]
    );
    let error = import(&model).unwrap_err();
    assert!(error.to_string().contains("5 things in this model cannot be taken"));
    assert!(error.help().contains("masked"), "{}", error.help());
}

#[test]
fn names_and_order_are_checked() {
    let x = || vec![input("x", 1, &["2"])];
    let undefined = model(20, vec![node("Add", &["x", "ghost"], &["y"])], x(), &["y"], vec![]);
    assert!(one_fault(&undefined).contains("its input 'ghost' is not defined anywhere"));

    let cycle = model(20, vec![node("Add", &["x", "b"], &["a"]), node("Neg", &["a"], &["b"])], x(), &["b"], vec![]);
    assert!(one_fault(&cycle).contains("the graph has a cycle: node '/Add' (Add), node '/Neg' (Neg)"));

    let twice = model(20, vec![node("Neg", &["x"], &["y"]), node("Abs", &["x"], &["y"])], x(), &["y"], vec![]);
    assert!(one_fault(&twice).contains("its output 'y' is already an output of node '/Neg' (Neg)"));

    let shadow = model(20, vec![node("Neg", &["x"], &["x"])], x(), &["x"], vec![]);
    assert!(one_fault(&shadow).contains("its output 'x' is already a graph input"));

    let no_output = model(20, vec![node("Neg", &["x"], &["y"])], x(), &["z"], vec![]);
    assert!(one_fault(&no_output).contains("output 'z': is not defined"));

    let inputs = vec![input("x", 1, &["2"]), input("x", 1, &["2"])];
    let same_inputs = model(20, vec![node("Neg", &["x"], &["y"])], inputs, &["y"], vec![]);
    assert!(one_fault(&same_inputs).contains("input 'x': is listed twice"));

    // Any order of nodes is fine, though the standard asks for a sorted one.
    let unsorted = model(20, vec![node("Neg", &["a"], &["y"]), node("Abs", &["x"], &["a"])], x(), &["y"], vec![]);
    assert!(import(&unsorted).is_ok());
}

#[test]
fn inputs_must_be_typed_tensors() {
    let with = |value| model(20, vec![node("Neg", &["x"], &["y"])], vec![value], &["y"], vec![]);
    assert!(one_fault(&with(input("x", 8, &["2"]))).contains("element type STRING is not supported"));
    assert!(one_fault(&with(input("x", 1, &["-7"]))).contains("dim 0 is -7"));
    assert!(one_fault(&with(input("x", 1, &["9223372036854775807"]))).contains("dim 0 is 9223372036854775807"));
    let mut untyped = input("x", 1, &[]);
    untyped.r#type = None;
    assert!(one_fault(&with(untyped)).contains("has no type"));
    let empty = import(&with(input("x", 1, &["0", "3"]))).unwrap().graph;
    let x = forge_ir::Tensor::from_slice::<f32>(&[0, 3], &[]);
    let y = forge_ir::interp::run(&empty, &[x], forge_ir::interp::Mode::Native).unwrap();
    assert_eq!(y[0].shape(), [0, 3]);
}

#[test]
fn shapes_that_depend_on_data_are_refused_by_node() {
    let data_dependent = model(
        20,
        vec![node("Reshape", &["x", "target"], &["y"])],
        vec![input("x", 1, &["N"]), input("target", 7, &["2"])],
        &["y"],
        vec![],
    );
    let fault = one_fault(&data_dependent);
    assert!(fault.starts_with("node '/Reshape' (Reshape): its target shape must be known at import"), "{fault}");
}

#[test]
fn rules_of_operators_are_checked() {
    let x = || vec![input("x", 1, &["2", "3"])];
    let one = |node, initializers| one_fault(&model(20, vec![node], x(), &["y"], initializers));
    assert!(one(with_int(node("Softmax", &["x"], &["y"]), "axis", 5), vec![]).contains("axis 5 is out of range"));
    assert!(one(with_ints(node("Transpose", &["x"], &["y"]), "perm", &[0, 0]), vec![]).contains("permutation"));
    assert!(
        one(with_ints(node("Softmax", &["x"], &["y"]), "axis", &[1]), vec![]).contains("'axis' should be an integer")
    );
    assert!(one(with_int(node("Relu", &["x"], &["y"]), "alpha", 1), vec![]).contains("attribute 'alpha' is not known"));
    assert!(one(node("MatMul", &["x", "x"], &["y"]), vec![]).contains("contracts 3 with 2"));
    assert!(one(node("MatMul", &["x"], &["y"]), vec![]).contains("input 1 is missing"));
    let target = i64s("t", &[2], &[4, -5]);
    assert!(one(node("Reshape", &["x", "t"], &["y"]), vec![target]).contains("the dim -5"));
    let step = [i64s("s", &[1], &[0]), i64s("e", &[1], &[2]), i64s("a", &[1], &[0]), i64s("p", &[1], &[0])];
    assert!(one(node("Slice", &["x", "s", "e", "a", "p"], &["y"]), step.to_vec()).contains("its step is 0"));
}

#[test]
fn functions_that_never_end_are_refused() {
    let call = |name: &str, input: &str, output: &str| {
        let mut call = node(name, &[input], &[output]);
        call.domain = "local".into();
        call
    };
    let function = |name: &str, body: Vec<_>| FunctionProto {
        name: name.into(),
        domain: "local".into(),
        input: vec!["i".into()],
        output: vec!["o".into()],
        node: body,
        opset_import: vec![
            OperatorSetIdProto { domain: String::new(), version: 20 },
            OperatorSetIdProto { domain: "local".into(), version: 1 },
        ],
        ..FunctionProto::default()
    };
    let mut recursive = model(20, vec![call("f", "x", "y")], vec![input("x", 1, &["2"])], &["y"], vec![]);
    recursive.functions = vec![function("f", vec![call("f", "i", "o")])];
    assert!(faults(&recursive)[0].contains("calls itself"));

    // Each function calls the next one 8 times: 8^24 nodes from a few kilobytes.
    let mut laughs = model(20, vec![call("f0", "x", "y")], vec![input("x", 1, &["2"])], &["y"], vec![]);
    for level in 0..24 {
        let next = format!("f{}", level + 1);
        let mut body: Vec<_> = (0..8)
            .map(|i| {
                let from = if i == 0 { "i".to_owned() } else { format!("t{i}") };
                let to = if i == 7 { "o".to_owned() } else { format!("t{}", i + 1) };
                if level == 23 { node("Neg", &[&from], &[&to]) } else { call(&next, &from, &to) }
            })
            .collect();
        body.truncate(8);
        laughs.functions.push(function(&format!("f{level}"), body));
    }
    assert!(faults(&laughs).iter().any(|f| f.contains("once its functions are inlined")));
}

#[test]
fn shape_bindings_are_checked() {
    let model = model(
        20,
        vec![node("Add", &["x", "z"], &["y"])],
        vec![input("x", 1, &["batch", "4"]), input("z", 1, &["", "4"])],
        &["y"],
        vec![],
    );
    let bind = |name: &str, value| {
        import_with(&model, &Options { shape: Bindings::from([(name.into(), value)]), ..Options::default() })
    };
    let types = |name: &str, value| -> Vec<String> {
        let graph = bind(name, value).unwrap().graph;
        graph.inputs().iter().map(|id| graph.node(*id).outputs[0].to_string()).collect()
    };
    assert_eq!(types("batch", 3), ["f32[3, 4]", "f32[z_dim0, 4]"]);
    assert_eq!(types("x_dim0", 3), ["f32[3, 4]", "f32[z_dim0, 4]"]);
    assert_eq!(types("z_dim0", 3), ["f32[batch, 4]", "f32[3, 4]"]);
    assert_eq!(types("x_dim1", 4), ["f32[batch, 4]", "f32[z_dim0, 4]"], "a fixed dim may be stated");
    for (name, value, message) in [
        ("seq", 3, "the model has no such dim"),
        ("x_dim1", 5, "this dim is fixed to 4"),
        ("batch", 0, "at least 1"),
        ("batch", -1, "at least 1"),
        ("batch", i64::MAX, "at most 2^40"),
    ] {
        let error = bind(name, value).unwrap_err();
        assert!(matches!(error.faults(), [Fault::Binding { .. }]), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    assert_eq!(bind("seq", 3).unwrap_err().help(), "the model's symbolic dims are: batch, z_dim0");
}
