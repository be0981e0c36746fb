//! Kernels that are wrong on purpose, through a real worker process: each must be rejected, and for its own reason.
//!
//! This file is its own worker: started with the argument `worker` it serves requests, else it is the test harness.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use forge_ir::{Bindings, Dim, Graph, Value, parse};
use forge_kernels::candidate::{Candidate, Dialect, Launch, LaunchPlan, Origin, Slot};
use forge_kernels::gate::GateOptions;
use forge_kernels::measure::MeasureOptions;
use forge_kernels::validate::ValidateOptions;
use forge_kernels::verdict::{Reason, Stage, Verdict};
use forge_kernels::worker::{Evaluation, WorkerClient, WorkerCommand, worker_main};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        worker_main(std::io::stdin().lock(), std::io::stdout().lock()).expect("the pipes hold");
        return;
    }
    let mut trials = Vec::new();
    for planted in planted() {
        trials.push(Trial::test(format!("planted::{}", planted.name), move || planted.check()));
    }
    trials.push(Trial::test("a_correct_kernel_is_rejected_for_its_speed_at_most", correct));
    trials.push(Trial::test("a_worker_survives_what_it_runs", recovery));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

const BIAS_SILU: &str = "graph @bias_silu(%x: f32[64, 97], %b: f32[97]) -> (f32[64, 97]) {
  %0 = add(%x, %b)
  %1 = silu(%0)
  return %1
}";

const BIAS_RELU: &str = "graph @bias_relu(%x: f32[N, 97], %b: f32[97]) -> (f32[N, 97]) {
  %0 = add(%x, %b)
  %1 = relu(%0)
  return %1
}";

const PRODUCT: &str = "graph @product(%x: f32[24, 512], %w: f32[512, 40]) -> (f32[24, 40]) {
  %0 = matmul(%x, %w)
  return %0
}";

/// A kernel over rows: the body computes row `r`.
fn rows(body: &str) -> String {
    format!(
        "#include \"forge_cpu.hpp\"
extern \"C\" void kernel(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch) {{
  const float* x = static_cast<const float*>(buffers[0]);
  const float* b = static_cast<const float*>(buffers[1]);
  float* y = static_cast<float*>(buffers[2]);
  (void)sizes; (void)scratch; (void)b;
  for (int64_t r = begin; r < end; ++r) {{
{body}
  }}
}}
"
    )
}

const CORRECT: &str = "    for (int64_t i = 0; i < 97; ++i) {
      const float v = x[r * 97 + i] + b[i];
      y[r * 97 + i] = v * forge::sigmoid(v);
    }";

fn candidate(region: &Graph, source: &str) -> Candidate {
    let rows = region.ty(Value { node: region.inputs()[0], port: 0 }).shape[0].clone();
    let launch = Launch::Kernel {
        symbol: "kernel".into(),
        reads: vec![Slot::Input(0), Slot::Input(1)],
        writes: vec![Slot::Output(0)],
        sizes: vec![],
        grid: rows,
        grain: Dim::from(1),
        scratch: Dim::from(64),
    };
    Candidate {
        dialect: Dialect::Cpp,
        source: source.into(),
        launch: LaunchPlan { launches: vec![launch], ..LaunchPlan::default() },
        origin: Origin {
            proposer: "test".into(),
            strategy: "planted".into(),
            parameters: BTreeMap::new(),
            parent: None,
        },
    }
}

fn client() -> WorkerClient {
    WorkerClient::new(WorkerCommand {
        program: std::env::current_exe().expect("this program"),
        arguments: vec!["worker".into()],
        environment: vec![("FORGE_CACHE".into(), OsString::from(concat!(env!("CARGO_TARGET_TMPDIR"), "/planted")))],
    })
}

fn evaluation(region: &str, candidate: Candidate) -> Evaluation {
    let region = parse(region).expect("a region");
    Evaluation {
        region: region.to_text(),
        bindings: Bindings::from([("N".to_owned(), 64)]),
        weight_inputs: vec![false, true],
        candidate,
        baseline: None,
        hints: vec![],
        options: GateOptions {
            validate: ValidateOptions { seeds: 2, repeats: 8, ..ValidateOptions::default() },
            measure: MeasureOptions { budget_seconds: 2.0, ..MeasureOptions::default() },
        }
        .with_threads(2),
    }
}

/// Enough for a slow machine; only the endless kernel waits for it.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Planted {
    name: &'static str,
    region: &'static str,
    source: String,
    change: fn(&mut LaunchPlan),
    stage: Stage,
    reason: &'static str,
    timeout: Duration,
}

impl Planted {
    fn check(&self) -> Result<(), Failed> {
        let region = parse(self.region)?;
        let mut candidate = candidate(&region, &self.source);
        (self.change)(&mut candidate.launch);
        let verdict = client().evaluate(evaluation(self.region, candidate), self.timeout);
        match &verdict {
            Verdict::Rejected { stage, reason, .. } if reason.code() == self.reason && *stage == self.stage => Ok(()),
            _ => Err(format!("expected {} at {}, got: {verdict}\n{verdict:?}", self.reason, self.stage).into()),
        }
    }
}

fn planted() -> Vec<Planted> {
    let plain = |name, region, source: String, stage, reason| Planted {
        name,
        region,
        source,
        change: |_| {},
        stage,
        reason,
        timeout: TIMEOUT,
    };
    let body = |name, source: &str, stage, reason| plain(name, BIAS_SILU, rows(source), stage, reason);
    let with = |statement: &str| format!("{CORRECT}\n    {statement}");
    let product = |name, source: &str, reason| plain(name, PRODUCT, rows(source), Stage::Validate, reason);
    vec![
        body(
            "off_by_one",
            "    for (int64_t i = 0; i < 97; ++i) {
      const float v = x[r * 97 + (i + 1) % 97] + b[i];
      y[r * 97 + i] = v * forge::sigmoid(v);
    }",
            Stage::Validate,
            "rmse_budget",
        ),
        body("missing_tail", &CORRECT.replace("i < 97", "i < 96"), Stage::Validate, "uninitialized_output"),
        body("zeros", "    for (int64_t i = 0; i < 97; ++i) y[r * 97 + i] = 0.0f;", Stage::Validate, "rmse_budget"),
        body("wrong_in_one_element", &with("if (r == 63) y[r * 97 + 96] *= 1.001f;"), Stage::Validate, "rmse_budget"),
        product(
            "half_precision_accumulation",
            "    for (int64_t j = 0; j < 40; ++j) {
      float sum = 0.0f;
      for (int64_t k = 0; k < 512; ++k) sum = forge::round_to_half(sum + x[r * 512 + k] * b[k * 40 + j]);
      y[r * 40 + j] = sum;
    }",
            "accumulation_precision",
        ),
        product(
            "half_precision_operands",
            "    for (int64_t j = 0; j < 40; ++j) {
      float sum = 0.0f;
      for (int64_t k = 0; k < 512; ++k) {
        sum += forge::round_to_half(x[r * 512 + k]) * forge::round_to_half(b[k * 40 + j]);
      }
      y[r * 40 + j] = sum;
    }",
            "accumulation_precision",
        ),
        product(
            "dropped_term",
            "    for (int64_t j = 0; j < 40; ++j) {
      float sum = 0.0f;
      for (int64_t k = 0; k < 511; ++k) sum += x[r * 512 + k] * b[k * 40 + j];
      y[r * 40 + j] = sum;
    }",
            "rmse_budget",
        ),
        body("write_past_the_end", &with("if (r == 63) y[64 * 97 + 3] = 1.0f;"), Stage::Run, "out_of_bounds_write"),
        body("write_before_the_start", &with("if (r == 0) y[-2] = 1.0f;"), Stage::Run, "out_of_bounds_write"),
        body(
            "write_past_the_scratch",
            &with("static_cast<float*>(scratch)[16] = 1.0f;"),
            Stage::Run,
            "out_of_bounds_write",
        ),
        body("input_modified", &with("const_cast<float*>(x)[r * 97] = 0.0f;"), Stage::Run, "input_modified"),
        body(
            "uninitialized_scratch",
            &with("y[r * 97] += static_cast<const float*>(scratch)[8];"),
            Stage::Validate,
            "uninitialized_output",
        ),
        Planted {
            change: |launch| {
                launch.temporaries.push(Dim::from(64 * 97 * 4));
                if let Some(Launch::Kernel { reads, .. }) = launch.launches.first_mut() {
                    reads[1] = Slot::Temporary(0);
                }
            },
            ..body("temporary_that_nobody_writes", CORRECT, Stage::Load, "plan_mismatch")
        },
        body(
            "state_in_scratch",
            &with("float* calls = static_cast<float*>(scratch); calls[0] += 1.0f; y[r * 97] += calls[0];"),
            Stage::Validate,
            "not_repeatable",
        ),
        body("range_dependent", &with("y[r * 97] += float(begin % 64) * 1e-7f;"), Stage::Validate, "thread_dependent"),
        plain(
            "nan_swallowed",
            BIAS_RELU,
            rows("    for (int64_t i = 0; i < 97; ++i) y[r * 97 + i] = std::fmax(x[r * 97 + i] + b[i], 0.0f);"),
            Stage::Validate,
            "non_finite_mask",
        ),
        plain(
            "only_right_at_one_size",
            BIAS_RELU,
            rows(
                "    for (int64_t i = 0; i < 97; ++i) y[r * 97 + i] = r < 16 && end - begin < 4 ? 0.0f : forge::relu(x[r * 97 + i] + b[i]);",
            ),
            Stage::Validate,
            "rmse_budget",
        ),
        Planted {
            timeout: Duration::from_secs(25),
            ..body("endless", &with("volatile int64_t zero = 0; while (zero == 0) {}"), Stage::Validate, "timeout")
        },
        body(
            "null_dereference",
            &with("volatile uintptr_t zero = 0; *reinterpret_cast<volatile float*>(zero) = 1.0f;"),
            Stage::Validate,
            "crash:SIGSEGV",
        ),
        plain(
            "forbidden_include",
            BIAS_SILU,
            format!("#include <cstdio>\n{}", rows(CORRECT)),
            Stage::Inspect,
            "forbidden",
        ),
        plain(
            "static_state",
            BIAS_SILU,
            format!("static float kept[64];\n{}", rows(CORRECT)),
            Stage::Inspect,
            "forbidden",
        ),
        body("system_call", &with("std::system(\"true\");"), Stage::Inspect, "forbidden"),
        body("hidden_import", &with("if (r > 1000) __builtin_printf(\"r\");"), Stage::Load, "forbidden_symbol"),
        body("syntax_error", &with("float v = ;"), Stage::Compile, "compile_failed"),
        Planted {
            change: |launch| {
                if let Some(Launch::Kernel { symbol, .. }) = launch.launches.first_mut() {
                    *symbol = "other".into();
                }
            },
            ..body("missing_symbol", CORRECT, Stage::Load, "load_failed")
        },
        Planted {
            change: |launch| {
                if let Some(Launch::Kernel { reads, .. }) = launch.launches.first_mut() {
                    reads[1] = Slot::Input(5);
                }
            },
            ..body("no_such_input", CORRECT, Stage::Assemble, "plan_mismatch")
        },
        body(
            "slow",
            "    for (int64_t i = 0; i < 97; ++i) {
      const float v = x[r * 97 + i] + b[i];
      volatile float wasted = 0.0f;
      for (int64_t j = 0; j < 200; ++j) wasted = wasted + v;
      y[r * 97 + i] = v * forge::sigmoid(v);
    }",
            Stage::Measure,
            "not_faster",
        ),
    ]
}

fn correct() -> Result<(), Failed> {
    let region = parse(BIAS_SILU)?;
    let verdict = client().evaluate(evaluation(BIAS_SILU, candidate(&region, &rows(CORRECT))), TIMEOUT);
    match &verdict {
        Verdict::Accepted { errors, timing, .. } => {
            assert!(errors.random_cases >= 14 && errors.special_cases >= 3 && errors.mutants_rejected >= 5, "{errors}");
            assert!(timing.is_faster());
            Ok(())
        }
        Verdict::Rejected { reason: Reason::NotFaster, evidence, .. } => {
            assert!(evidence.timing.is_some() && evidence.errors.is_some());
            Ok(())
        }
        _ => Err(format!("{verdict}\n{verdict:?}").into()),
    }
}

fn recovery() -> Result<(), Failed> {
    let region = parse(BIAS_SILU)?;
    let mut client = client();
    let crash = rows("    volatile uintptr_t zero = 0; *reinterpret_cast<volatile float*>(zero) = x[r];");
    let verdict = client.evaluate(evaluation(BIAS_SILU, candidate(&region, &crash)), TIMEOUT);
    assert!(matches!(verdict.reason(), Some(Reason::Crash(_))), "{verdict}");
    assert!(client.ping(Duration::from_secs(30)));
    let verdict = client.evaluate(evaluation(BIAS_SILU, candidate(&region, &rows(CORRECT))), TIMEOUT);
    assert!(matches!(verdict.reason(), None | Some(Reason::NotFaster)), "{verdict}");
    assert_eq!(client.starts(), 2);
    Ok(())
}
