//! `forge-cc run`: an output directory on .npy files, without Python.

use std::fmt::Write as _;

use forge_ir::{DType, Tensor};
use forge_runtime::{Executable, Options};

use super::args::RunArgs;
use super::diagnostic::{Diagnostic, Exit};
use crate::emit::manifest::Manifest;
use crate::npy;

pub(super) fn run(args: &RunArgs) -> Result<(), Diagnostic> {
    let manifest = Manifest::read(&args.directory).map_err(|e| {
        Diagnostic::new(Exit::Input, e)
            .with_help("give the output directory of a build: forge-cc MODEL -o OUT, then forge-cc run OUT ..")
    })?;
    let plan = if args.original { &manifest.plans.original } else { &manifest.plans.forged };
    let options = Options { threads: super::threads(args.threads), poison: false, guard: false };
    let executable =
        Executable::load(&args.directory, &plan.file, options).map_err(|e| Diagnostic::new(Exit::Failure, e))?;
    let ports = &executable.plan().inputs;
    if ports.len() != args.inputs.len() {
        let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
        let what =
            format!("the model takes {} inputs ({}), {} given", ports.len(), names.join(", "), args.inputs.len());
        return Err(Diagnostic::new(Exit::Input, what).with_help("one --input FILE.npy per input, in this order"));
    }
    let mut inputs: Vec<(Tensor, Vec<i64>)> = Vec::new();
    for (path, port) in args.inputs.iter().zip(ports) {
        let tensor = npy::read(path).map_err(|e| {
            Diagnostic::new(Exit::Input, e).with_help("inputs are arrays as numpy.save writes them, one file each")
        })?;
        if tensor.dtype().name() != port.dtype {
            let what = format!(
                "{}: input '{}' is {}, the file holds {}",
                path.display(),
                port.name,
                port.dtype,
                tensor.dtype()
            );
            let help = "give the inputs in the model's order, and convert them with numpy's .astype()";
            return Err(Diagnostic::new(Exit::Input, what).with_help(help));
        }
        let shape = tensor.shape().iter().map(|d| *d as i64).collect();
        inputs.push((tensor, shape));
    }
    let shapes: Vec<&[i64]> = inputs.iter().map(|(_, s)| s.as_slice()).collect();
    let outputs = executable.output_shapes(&shapes).map_err(|e| {
        Diagnostic::new(Exit::Input, e)
            .with_help("--original runs the unrewritten graph, which takes every size that the model does")
    })?;
    let mut memory: Vec<Vec<u8>> = Vec::new();
    let mut types = Vec::new();
    for (shape, port) in outputs.iter().zip(&executable.plan().outputs) {
        let dtype = DType::from_name(&port.dtype)
            .ok_or_else(|| Diagnostic::new(Exit::Failure, format!("output '{}' has an unknown dtype", port.name)))?;
        let shape: Vec<usize> = shape.iter().map(|d| usize::try_from(*d).unwrap_or(0)).collect();
        memory.push(vec![0; shape.iter().product::<usize>() * dtype.size()]);
        types.push((port.name.clone(), dtype, shape));
    }
    let arguments: Vec<(&[u8], &[i64])> = inputs.iter().map(|(t, s)| (&t.bytes()[..], s.as_slice())).collect();
    let mut slices: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
    let failed = |e: forge_runtime::RuntimeError| Diagnostic::new(Exit::Failure, e);
    let mut text = String::new();
    if args.profile {
        // The first call plans the arena and warms the caches; the second is the one that counts.
        executable.run(&arguments, &mut slices).map_err(failed)?;
        let steps = executable.run_profiled(&arguments, &mut slices).map_err(failed)?;
        let total: u64 = steps.iter().map(|s| s.nanoseconds).sum();
        for step in &steps {
            let share = 100.0 * step.nanoseconds as f64 / total.max(1) as f64;
            let _ = writeln!(text, "{:>10.1} us {share:>5.1} %  {}", step.nanoseconds as f64 / 1e3, step.label);
        }
        let _ = writeln!(text, "{:>10.1} us in all", total as f64 / 1e3);
    } else {
        executable.run(&arguments, &mut slices).map_err(failed)?;
    }
    std::fs::create_dir_all(&args.output)
        .map_err(|e| Diagnostic::new(Exit::Input, format!("{}: {e}", args.output.display())))?;
    for (at, (bytes, (name, dtype, shape))) in memory.into_iter().zip(types).enumerate() {
        let path = args.output.join(format!("output_{at}.npy"));
        let tensor = Tensor::new(dtype, shape, bytes)
            .ok_or_else(|| Diagnostic::new(Exit::Failure, format!("output '{name}' has another size")))?;
        npy::write(&path, &tensor).map_err(|e| Diagnostic::new(Exit::Failure, format!("{}: {e}", path.display())))?;
        let _ = writeln!(text, "{} <- {name}: {}", path.display(), tensor.ty());
    }
    super::print(&text)
}
