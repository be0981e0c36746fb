//! `--kernel FILE`: the user's own kernel as a candidate. It is judged like any other.
//!
//! The file is C++ for the system compiler; a comment holds the launch plan, as JSON in the form of [`LaunchPlan`]:
//!
//! ```cpp
//! /* forge-kernel
//! {
//!   "name": "my_relu",
//!   "launches": [
//!     {"launch": "kernel", "symbol": "my_relu", "reads": [{"input": 0}], "writes": [{"output": 0}],
//!      "sizes": ["N"], "grid": "8*N", "grain": 4096, "scratch": 0}
//!   ]
//! }
//! */
//! extern "C" void my_relu(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch) { ... }
//! ```
//!
//! `buffers` is what it reads, then what it writes; `[begin, end)` is a part of `[0, grid)`. Dimensions are numbers or expressions
//! of the region's symbols. Optional: `region`, the beginning of the hash of the one region that it is for (without it, every
//! region that it fits); `temporaries` and `packed`, bytes of buffers; `prepare`, launches that fill packed buffers from weights
//! once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use forge_ir::Dim;
use forge_kernels::candidate::{Candidate, Dialect, Launch, LaunchPlan, Origin, Slot};
use forge_kernels::codegen::cpp::PRELUDE;
use serde::Deserialize;

use super::Proposer;
use crate::search::lab::{Ask, Refusal, Refused, RegionTask, Survey};
use crate::search::tree::Offer;

const NAME: &str = "user";
const OPENING: &str = "/* forge-kernel";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    name: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    temporaries: Vec<Dim>,
    #[serde(default)]
    packed: Vec<Dim>,
    #[serde(default)]
    prepare: Vec<Launch>,
    launches: Vec<Launch>,
}

/// A kernel that a user wrote.
#[derive(Clone, PartialEq, Debug)]
pub struct UserKernel {
    /// Beginning of the hash of the region that it is for.
    region: Option<String>,
    candidate: Candidate,
}

/// What is wrong with a kernel file.
#[derive(Debug, thiserror::Error)]
pub enum UserKernelError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{file}: no launch plan; the file must hold a comment that begins with '{OPENING}' and holds the plan as JSON"
    )]
    NoHeader { file: String },
    #[error("{file}:{line}: the comment of the launch plan is not closed")]
    Open { file: String, line: usize },
    #[error("{file}:{line}: the launch plan does not read: {why}")]
    Header { file: String, line: usize, why: String },
    #[error("{file}: {why}")]
    Plan { file: String, why: String },
}

impl UserKernel {
    /// Reads a kernel file.
    ///
    /// # Errors
    /// If it cannot be read, or says what no region could fit.
    pub fn load(path: &Path) -> Result<UserKernel, UserKernelError> {
        let text =
            fs::read_to_string(path).map_err(|source| UserKernelError::Read { path: path.to_owned(), source })?;
        UserKernel::parse(&path.display().to_string(), &text)
    }

    /// Reads the text of a kernel file; `file` is its name in errors.
    ///
    /// # Errors
    /// If there is no launch plan, if it does not read, or says what no region could fit.
    pub fn parse(file: &str, text: &str) -> Result<UserKernel, UserKernelError> {
        let file = file.to_owned();
        let Some((before, rest)) = text.split_once(OPENING) else { return Err(UserKernelError::NoHeader { file }) };
        let first_line = before.matches('\n').count() + 1;
        let Some((json, _)) = rest.split_once("*/") else {
            return Err(UserKernelError::Open { file, line: first_line });
        };
        let header: Header = serde_json::from_str(json).map_err(|e| {
            let (line, why) = (first_line + e.line().saturating_sub(1), e.to_string());
            // The position within the comment says nothing to a reader of the file.
            let why = why.split(" at line ").next().unwrap_or(&why).to_owned();
            UserKernelError::Header { file: file.clone(), line, why }
        })?;
        let Header { name, region, temporaries, packed, prepare, launches } = header;
        let launch = LaunchPlan { temporaries, packed, prepare, launches };
        let plan = |why: String| UserKernelError::Plan { file: file.clone(), why };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
            return Err(plan(format!("the name '{name}' must consist of letters, digits, '_', '-' and '.'")));
        }
        if launch.launches.is_empty() {
            return Err(plan("'launches' is empty: nothing would compute the region".into()));
        }
        let code = [before, &rest[json.len()..]].concat();
        for symbol in symbols(&launch) {
            let identifier = symbol.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !identifier || symbol.is_empty() || symbol.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(plan(format!("the symbol '{symbol}' is no C identifier")));
            }
            if !words(&code).contains(symbol) {
                return Err(plan(format!("the source does not define the symbol '{symbol}'")));
            }
        }
        let includes = code.contains(PRELUDE.trim_end());
        let source = if includes { text.to_owned() } else { format!("{PRELUDE}{text}") };
        let origin = Origin { proposer: NAME.into(), strategy: name, parameters: Default::default(), parent: None };
        Ok(UserKernel { region, candidate: Candidate { dialect: Dialect::Cpp, source, launch, origin } })
    }

    /// Why the launch plan does not fit a region, if it does not.
    fn misfit(&self, region: &RegionTask) -> Option<String> {
        if let Some(wanted) = &self.region
            && !region.hash.starts_with(wanted.as_str())
        {
            return Some(format!("it is for the region {wanted}"));
        }
        let plan = &self.candidate.launch;
        let known = region.body.symbols();
        let mut used = BTreeSet::new();
        dims(plan).for_each(|dim| dim.symbols(&mut used));
        if let Some(symbol) = used.difference(&known).next() {
            return Some(format!("its dimensions name '{symbol}', which the region does not have"));
        }
        let mut check = Check { plan, region, read: BTreeSet::new(), written: BTreeSet::new() };
        let fault = plan.prepare.iter().find_map(|launch| check.launch(launch, true));
        let fault = fault.or_else(|| plan.launches.iter().find_map(|launch| check.launch(launch, false)));
        if fault.is_some() {
            return fault;
        }
        if let Some(i) = (0..region.body.outputs().len()).find(|i| !check.written.contains(&format!("output {i}"))) {
            return Some(format!("no launch writes output {i}"));
        }
        // The region depends on each of its inputs.
        let unread = (0..region.body.inputs().len()).find(|i| !check.read.contains(i));
        unread.map(|i| format!("no launch reads input {i}"))
    }
}

/// Follows a plan's launches in order.
struct Check<'a> {
    plan: &'a LaunchPlan,
    region: &'a RegionTask,
    /// Inputs.
    read: BTreeSet<usize>,
    written: BTreeSet<String>,
}

impl Check<'_> {
    /// What is wrong with a launch.
    fn launch(&mut self, launch: &Launch, preparing: bool) -> Option<String> {
        let (reads, writes) = match launch {
            Launch::Kernel { reads, writes, .. } => (reads.clone(), writes.clone()),
            Launch::Gemm { a, b, c, .. } => (vec![a.slot, b.slot], vec![c.slot]),
            Launch::Copy { from, to } => (vec![*from], vec![*to]),
        };
        let when = if preparing { "prepare" } else { "a launch" };
        for slot in reads.iter().chain(&writes) {
            let (kind, index, count) = self.place(*slot);
            if index >= count {
                return Some(format!("{when} names {kind} {index}; the region and the plan have {count}"));
            }
        }
        for slot in reads {
            let (kind, index, _) = self.place(slot);
            let fault = match slot {
                Slot::Input(i) if preparing && self.region.weight_inputs.get(i) != Some(&true) => {
                    Some("is not a weight at every occurrence")
                }
                Slot::Input(i) => {
                    self.read.insert(i);
                    None
                }
                _ if !self.written.contains(&format!("{kind} {index}")) => Some("was not written before"),
                _ => None,
            };
            if let Some(fault) = fault {
                return Some(format!("{when} reads {kind} {index}, which {fault}"));
            }
        }
        for slot in writes {
            let (kind, index, _) = self.place(slot);
            let allowed = match slot {
                Slot::Input(_) => false,
                Slot::Output(_) | Slot::Temporary(_) => !preparing,
                Slot::Packed(_) => preparing,
            };
            if !allowed {
                return Some(format!("{when} writes {kind} {index}"));
            }
            self.written.insert(format!("{kind} {index}"));
        }
        None
    }

    fn place(&self, slot: Slot) -> (&'static str, usize, usize) {
        match slot {
            Slot::Input(i) => ("input", i, self.region.body.inputs().len()),
            Slot::Output(i) => ("output", i, self.region.body.outputs().len()),
            Slot::Temporary(i) => ("temporary", i, self.plan.temporaries.len()),
            Slot::Packed(i) => ("packed", i, self.plan.packed.len()),
        }
    }
}

fn launches(plan: &LaunchPlan) -> impl Iterator<Item = &Launch> {
    plan.prepare.iter().chain(&plan.launches)
}

fn symbols(plan: &LaunchPlan) -> impl Iterator<Item = &str> {
    launches(plan).filter_map(|launch| match launch {
        Launch::Kernel { symbol, .. } => Some(symbol.as_str()),
        Launch::Gemm { .. } | Launch::Copy { .. } => None,
    })
}

fn dims(plan: &LaunchPlan) -> impl Iterator<Item = &Dim> {
    let of_launches = launches(plan).flat_map(|launch| match launch {
        Launch::Kernel { sizes, grid, grain, scratch, .. } => sizes.iter().chain([grid, grain, scratch]).collect(),
        Launch::Gemm { m, n, k, batch, a, b, c, .. } => {
            let strides = [a, b, c]
                .into_iter()
                .flat_map(|matrix| matrix.batch_strides.iter().chain([&matrix.row_stride, &matrix.column_stride]));
            [m, n, k].into_iter().chain(batch).chain(strides).collect()
        }
        Launch::Copy { .. } => Vec::new(),
    });
    plan.temporaries.iter().chain(&plan.packed).chain(of_launches)
}

fn words(code: &str) -> BTreeSet<&str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect()
}

/// Offers the users' kernels to the regions that they fit.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct UserKernels {
    kernels: Vec<UserKernel>,
}

/// Two kernels of one name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("two kernels are called '{0}'; the names must differ")]
pub struct SameName(pub String);

impl UserKernels {
    /// # Errors
    /// If two kernels have the same name.
    pub fn new(kernels: Vec<UserKernel>) -> Result<UserKernels, SameName> {
        let mut names = BTreeSet::new();
        for kernel in &kernels {
            if !names.insert(&kernel.candidate.origin.strategy) {
                return Err(SameName(kernel.candidate.origin.strategy.clone()));
            }
        }
        Ok(UserKernels { kernels })
    }
}

impl Proposer for UserKernels {
    fn name(&self) -> &'static str {
        NAME
    }

    fn survey(&mut self, region: &RegionTask) -> Survey {
        let mut survey = Survey::default();
        for kernel in &self.kernels {
            let strategy = format!("{NAME}/{}", kernel.candidate.origin.strategy);
            match kernel.misfit(region) {
                None => survey.offers.push(Offer { strategy, axes: Vec::new() }),
                Some(reason) => survey.refusals.push(Refusal { strategy, reason }),
            }
        }
        survey
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Vec<Candidate>, Refused> {
        let name = ask.strategy.split_once('/').map_or("", |(_, name)| name);
        match self.kernels.iter().find(|kernel| kernel.candidate.origin.strategy == name) {
            Some(kernel) => Ok(vec![kernel.candidate.clone()]),
            None => Err(Refused(format!("no kernel file is called '{name}'"))),
        }
    }
}
