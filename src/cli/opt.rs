//! `forge-cc opt`: passes over an IR file.

use std::path::Path;

use forge_ir::{Bindings, Graph};
use forge_passes::{Context, Manager, Pipeline, PrintAfter};

use super::args::OptArgs;
use super::diagnostic::{Diagnostic, Exit};
use crate::frontend;

pub(super) fn opt(args: &OptArgs) -> Result<(), Diagnostic> {
    let settings = super::build::settings(&args.settings)?;
    let mut graph = read_graph(&args.file, &super::bindings(&args.shape)?)?;
    let text = args.passes.as_deref().unwrap_or(forge_passes::DEFAULT_PIPELINE);
    let pipeline: Pipeline = text.parse().map_err(|e| {
        Diagnostic::new(Exit::Input, e)
            .with_help("passes are separated by commas; `forge-cc list passes` names them all")
    })?;
    let every: Vec<String> = if args.settings.print_after_all {
        pipeline.steps.iter().map(|s| s.pass.name.to_owned()).collect()
    } else {
        args.settings.print_after.clone()
    };
    // A printer without names prints after every pass.
    let wanted = !every.is_empty();
    let mut printer = PrintAfter { passes: every, out: std::io::stderr() };
    let mut manager = Manager::new(Context::default()).with_settings(settings);
    if wanted {
        manager = manager.with_observer(&mut printer);
    }
    let report = manager.run(&mut graph, &pipeline).map_err(|e| Diagnostic::new(Exit::Failure, e))?;
    if args.settings.pass_timing {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), report.to_string().as_bytes());
    }
    super::print(&graph.to_text())
}

/// A graph from a model, an IR file or an output directory, with its sizes bound where they are given.
pub(super) fn read_graph(path: &Path, bindings: &Bindings) -> Result<Graph, Diagnostic> {
    if path.is_dir() {
        return read_graph(&path.join("graph.forge"), bindings);
    }
    if path.extension().is_some_and(|e| e == "forge") {
        let text = std::fs::read_to_string(path).map_err(|e| {
            Diagnostic::new(Exit::Input, format!("{}: {e}", path.display()))
                .with_help("give a file that `forge-cc dump MODEL` printed")
        })?;
        let graph = forge_ir::text::parse(&text).map_err(|e| {
            let rendered = e.render(&path.display().to_string());
            Diagnostic::new(Exit::Input, rendered.strip_prefix("error: ").unwrap_or(&rendered))
                .with_help("`forge-cc dump MODEL` prints a graph as it should look; one file holds one graph")
        })?;
        return graph.specialize(bindings).map_err(|e| {
            Diagnostic::new(Exit::Input, format!("{}: the sizes do not fit: {e}", path.display()))
                .with_help("sizes are given as --shape NAME=SIZE,..; the graph's first line names the symbols")
        });
    }
    let options = frontend::Options { shape: bindings.clone(), structure_only: false };
    frontend::load(path, &options).map(|imported| imported.graph).map_err(|e| {
        let help = e.help();
        Diagnostic::new(Exit::Input, e).with_help(help)
    })
}

/// The graph after the default pipeline.
pub(super) fn default_passes(graph: &Graph) -> Result<Graph, Diagnostic> {
    let mut graph = graph.clone();
    let pipeline: Pipeline =
        forge_passes::DEFAULT_PIPELINE.parse().map_err(|e| Diagnostic::new(Exit::Failure, format!("{e}")))?;
    Manager::new(Context::default()).run(&mut graph, &pipeline).map_err(|e| Diagnostic::new(Exit::Failure, e))?;
    Ok(graph)
}
