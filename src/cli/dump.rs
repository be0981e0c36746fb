//! `forge-cc dump`: a model as IR text.

use std::fmt::Write as _;

use forge_passes::regions::discover;

use super::args::DumpArgs;
use super::diagnostic::Diagnostic;
use crate::driver::fits_a_template;

pub(super) fn dump(args: &DumpArgs) -> Result<(), Diagnostic> {
    let graph = super::opt::read_graph(&args.model, &super::bindings(&args.shape)?)?;
    let graph = if args.optimized || args.regions { super::opt::default_passes(&graph)? } else { graph };
    let mut text = graph.to_text();
    if args.regions {
        for class in discover(&graph, &fits_a_template) {
            let _ = write!(text, "\n// region {}, {} times\n{}", class.hash, class.occurrences.len(), class.body);
        }
    }
    super::print(&text)
}
