//! Evaluation in a process of its own: JSON lines over stdin and stdout, a deadline, a new process after a death.
//!
//! A candidate is code that someone else wrote. It runs where it can take nothing with it: the worker has no secrets in its
//! environment and answers on a pipe that the parent reads under a deadline. [`worker_main`] is the inside, [`WorkerClient`] the
//! outside.

mod client;

use std::any::Any;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use forge_ir::Bindings;
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::compile::Cache;
use crate::gate::{Bench, GateOptions, Task};
use crate::validate::Hint;
use crate::verdict::{Reason, Stage, Verdict};
pub use client::{WorkerClient, WorkerCommand};

/// One line from the parent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    #[serde(flatten)]
    pub kind: RequestKind,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RequestKind {
    Ping,
    Evaluate(Box<Evaluation>),
}

/// A [`Task`] as data. Weights and activations are made from the options' seed on the other side, never sent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Evaluation {
    /// In text form.
    pub region: String,
    /// The shapes to time at.
    #[serde(default)]
    pub bindings: Bindings,
    pub weight_inputs: Vec<bool>,
    pub candidate: Candidate,
    #[serde(default)]
    pub baseline: Option<Candidate>,
    #[serde(default)]
    pub hints: Vec<Option<Hint>>,
    #[serde(default)]
    pub options: GateOptions,
}

/// One line from the worker. A `Verdict` or an `Error` ends a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Response {
    pub id: u64,
    #[serde(flatten)]
    pub kind: ResponseKind,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ResponseKind {
    Pong,
    /// The evaluation enters a stage: what is known if it never leaves it.
    Stage {
        stage: Stage,
    },
    Verdict {
        verdict: Box<Verdict>,
    },
    /// The request can't be understood.
    Error {
        message: String,
    },
}

/// Serves requests until the input ends. Kernels are compiled into the default cache of this process's environment.
///
/// # Errors
/// If the pipes break.
pub fn worker_main(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut bench: Option<Bench> = None;
    for line in input.lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let request: Request = match serde_json::from_str(&line) {
            Ok(request) => request,
            Err(error) => {
                // The id may still be readable.
                let id = serde_json::from_str::<serde_json::Value>(&line).ok().and_then(|v| v.get("id")?.as_u64());
                respond(&mut output, id.unwrap_or(0), ResponseKind::Error { message: error.to_string() })?;
                continue;
            }
        };
        let kind = match request.kind {
            RequestKind::Ping => ResponseKind::Pong,
            RequestKind::Evaluate(evaluation) => {
                let mut progress = |stage| {
                    // If the parent is gone, the next write says so.
                    let _ = respond(&mut output, request.id, ResponseKind::Stage { stage });
                };
                let verdict = match ready(&mut bench) {
                    Ok(bench) => evaluate(bench, &evaluation, &mut progress),
                    Err(message) => failed(message),
                };
                if verdict.reason() == Some(Reason::WorkerFailed) {
                    // Whatever broke may have left something broken.
                    bench = None;
                }
                ResponseKind::Verdict { verdict: Box::new(verdict) }
            }
        };
        respond(&mut output, request.id, kind)?;
    }
    Ok(())
}

fn respond(output: &mut impl Write, id: u64, kind: ResponseKind) -> io::Result<()> {
    // Plain data serialises; one write a line, so that a death leaves no half.
    let mut line = serde_json::to_vec(&Response { id, kind })?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

fn failed(message: impl Into<String>) -> Verdict {
    Verdict::rejected(Stage::Inspect, Reason::WorkerFailed, message)
}

fn ready(bench: &mut Option<Bench>) -> Result<&mut Bench, String> {
    if bench.is_none() {
        let folder =
            Cache::default_dir(&|name| std::env::var_os(name)).ok_or("no cache folder: set FORGE_CACHE or HOME")?;
        *bench = Some(Bench::detect(Cache::new(folder)).map_err(|e| e.to_string())?);
    }
    bench.as_mut().ok_or_else(|| "no bench".to_owned())
}

fn evaluate(bench: &mut Bench, evaluation: &Evaluation, progress: &mut dyn FnMut(Stage)) -> Verdict {
    let region = match forge_ir::parse(&evaluation.region) {
        Ok(region) => region,
        Err(error) => return failed(format!("the region does not parse: {error}")),
    };
    let task = Task {
        region: &region,
        bindings: &evaluation.bindings,
        weight_inputs: &evaluation.weight_inputs,
        candidate: &evaluation.candidate,
        baseline: evaluation.baseline.as_ref(),
        hints: &evaluation.hints,
        given: &[],
        captured: &[],
        options: &evaluation.options,
    };
    // A bug of ours ends one evaluation, not the search.
    catch_unwind(AssertUnwindSafe(|| bench.evaluate(&task, progress)))
        .unwrap_or_else(|panic| failed(panic_text(&*panic)))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the worker panicked: {}", text.unwrap_or("without a message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(input: &str) -> Vec<Response> {
        let mut output = Vec::new();
        worker_main(input.as_bytes(), &mut output).unwrap();
        String::from_utf8(output).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    #[test]
    fn requests_are_answered_in_order() {
        let answers = talk(
            "{\"id\": 1, \"kind\": \"ping\"}\n\nnonsense\n{\"id\": 7, \"kind\": \"dance\"}\n{\"id\": 8, \"kind\": \"ping\"}\n",
        );
        assert_eq!(answers[0], Response { id: 1, kind: ResponseKind::Pong });
        assert!(matches!(&answers[1], Response { id: 0, kind: ResponseKind::Error { .. } }));
        assert!(
            matches!(&answers[2], Response { id: 7, kind: ResponseKind::Error { message } } if message.contains("dance"))
        );
        assert_eq!(answers[3], Response { id: 8, kind: ResponseKind::Pong });
    }

    #[test]
    fn messages_read_back() {
        let response = Response {
            id: 3,
            kind: ResponseKind::Verdict { verdict: Box::new(Verdict::rejected(Stage::Run, Reason::Timeout, "")) },
        };
        let text = serde_json::to_string(&response).unwrap();
        assert!(text.starts_with(
            r#"{"id":3,"kind":"verdict","verdict":{"verdict":"rejected","stage":"run","reason":"timeout""#
        ));
        assert_eq!(serde_json::from_str::<Response>(&text).unwrap(), response);
    }
}
