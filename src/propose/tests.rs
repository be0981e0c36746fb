use forge_kernels::templates::{TEMPLATES, default_point};

use super::template::Templates;
use super::user::{UserKernel, UserKernels};
use super::{Proposer, Proposers};
use crate::search::lab::{Ask, RegionTask};

fn task(text: &str, weight_inputs: Vec<bool>) -> RegionTask {
    let body = forge_ir::parse(text).unwrap();
    RegionTask {
        hash: body.canonical_hash().to_string(),
        body,
        weight_inputs,
        occurrences: 1,
        baseline_ns: None,
        estimated_share: 0.5,
        headroom: None,
    }
}

fn matmul_gelu() -> RegionTask {
    let text = "graph @region(%x: f32[N, 64], %w: f32[64, 128], %b: f32[128]) -> (f32[N, 128]) {
  %0 = matmul(%x, %w) : f32[N, 128]
  %1 = add(%0, %b) : f32[N, 128]
  %2 = relu(%1) : f32[N, 128]
  return %2
}
";
    task(text, vec![false, true, true])
}

fn relu() -> RegionTask {
    task("graph @region(%x: f32[N, 8]) -> (f32[N, 8]) {\n  %0 = relu(%x) : f32[N, 8]\n  return %0\n}\n", vec![false])
}

const KERNEL: &str = r#"// A relu.
/* forge-kernel
{
  "name": "my_relu",
  "launches": [
    {"launch": "kernel", "symbol": "my_relu", "reads": [{"input": 0}], "writes": [{"output": 0}],
     "sizes": [], "grid": "8*N", "grain": 4096, "scratch": 0}
  ]
}
*/
extern "C" void my_relu(void* const* buffers, const int64_t*, int64_t begin, int64_t end, void*) {
  const float* x = static_cast<const float*>(buffers[0]);
  float* y = static_cast<float*>(buffers[1]);
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}
"#;

#[test]
fn every_template_is_offered_or_refused_with_a_reason() {
    for task in [matmul_gelu(), relu()] {
        let survey = Templates.survey(&task);
        assert_eq!(survey.offers.len() + survey.refusals.len(), TEMPLATES.len());
        assert!(survey.refusals.iter().all(|refusal| !refusal.reason.is_empty()));
    }
    let survey = Templates.survey(&matmul_gelu());
    assert_eq!(survey.offers[0].strategy, "template/matmul_epilogue");
    assert!(survey.refusals.iter().any(|refusal| refusal.strategy == "template/attention"));
}

#[test]
fn an_offer_is_kept() {
    let mut proposers = Proposers::new(vec![Box::new(Templates)]);
    let region = matmul_gelu();
    for offer in proposers.survey(&region).offers {
        let parameters = default_point(&offer.axes);
        let ask = Ask { region: &region, strategy: &offer.strategy, parameters: parameters.clone(), parent: None };
        let candidates = proposers.propose(&ask).unwrap();
        assert_eq!(candidates.len(), 1);
        assert_eq!(candidates[0].origin.parameters, parameters);
        assert_eq!(candidates[0].hash(), proposers.propose(&ask).unwrap()[0].hash(), "equal asks, equal answers");
    }
    let ask = |strategy| Ask { region: &region, strategy, parameters: Default::default(), parent: None };
    assert!(proposers.propose(&ask("oracle/x")).unwrap_err().to_string().contains("'oracle'"));
    assert!(proposers.propose(&ask("template/x")).unwrap_err().to_string().contains("template/x"));
    assert!(proposers.propose(&ask("template/matmul_epilogue")).is_err(), "a point without parameters");
}

#[test]
fn a_users_kernel_comes_first_where_it_fits() {
    let kernel = UserKernel::parse("relu.cpp", KERNEL).unwrap();
    let users = UserKernels::new(vec![kernel.clone()]).unwrap();
    assert!(UserKernels::new(vec![kernel.clone(), kernel]).is_err());
    let mut proposers = Proposers::new(vec![Box::new(users), Box::new(Templates)]);
    let region = relu();
    let survey = proposers.survey(&region);
    assert_eq!((survey.offers[0].strategy.as_str(), survey.offers[0].axes.len()), ("user/my_relu", 0));
    let ask = Ask { region: &region, strategy: "user/my_relu", parameters: Default::default(), parent: None };
    let candidate = proposers.propose(&ask).unwrap().remove(0);
    assert_eq!(candidate.title(), "user/my_relu{}");
    assert!(candidate.source.starts_with("#include \"forge_cpu.hpp\"\n"));
    forge_kernels::assemble::assemble_candidate(&region.body, &region.weight_inputs, &candidate).unwrap();

    let refusals = proposers.survey(&matmul_gelu()).refusals;
    assert_eq!(
        (refusals[0].strategy.as_str(), refusals[0].reason.as_str()),
        ("user/my_relu", "no launch reads input 1")
    );
}

type Edit<'a> = &'a dyn Fn(&str) -> String;

/// The refusal of an edited kernel by a region.
fn refusal(edit: Edit<'_>, region: &RegionTask) -> String {
    let kernel = UserKernel::parse("relu.cpp", &edit(KERNEL)).unwrap();
    let survey = UserKernels::new(vec![kernel]).unwrap().survey(region);
    assert!(survey.offers.is_empty());
    survey.refusals[0].reason.clone()
}

#[test]
fn a_misfit_is_explained() {
    let region = relu();
    let cases: [(Edit<'_>, &str); 8] = [
        (&|k| k.replace("\"8*N\"", "\"8*M\""), "its dimensions name 'M', which the region does not have"),
        (&|k| k.replace("{\"input\": 0}", "{\"input\": 1}"), "a launch names input 1; the region and the plan have 1"),
        (
            &|k| k.replace("[{\"input\": 0}]", "[{\"temporary\": 0}]"),
            "a launch names temporary 0; the region and the plan have 0",
        ),
        (&|k| k.replace("[{\"output\": 0}]", "[]"), "no launch writes output 0"),
        (&|k| k.replace("[{\"output\": 0}]", "[{\"input\": 0}]"), "a launch writes input 0"),
        (
            &|k| k.replace("[{\"input\": 0}]", "[{\"output\": 0}]"),
            "a launch reads output 0, which was not written before",
        ),
        (
            &|k| k.replace("\"name\": \"my_relu\",", "\"name\": \"my_relu\", \"region\": \"zz\","),
            "it is for the region zz",
        ),
        (
            &|k| {
                let prepare = "\"packed\": [64], \"prepare\": [{\"launch\": \"copy\", \"from\": {\"input\": 0}, \"to\": {\"packed\": 0}}],";
                k.replace("\"launches\": [", &format!("{prepare} \"launches\": ["))
            },
            "prepare reads input 0, which is not a weight at every occurrence",
        ),
    ];
    for (edit, expected) in cases {
        assert_eq!(refusal(edit, &region), expected);
    }
}

#[test]
fn a_faulty_file_is_explained_with_its_line() {
    let cases: [(String, &str); 7] = [
        (
            "int x;".into(),
            "relu.cpp: no launch plan; the file must hold a comment that begins with '/* forge-kernel' and holds the plan as JSON",
        ),
        (KERNEL.replace("*/", ""), "relu.cpp:2: the comment of the launch plan is not closed"),
        (
            KERNEL.replace("\"my_relu\",\n  \"launches\"", "\"my_relu\"\n  \"launches\""),
            "relu.cpp:5: the launch plan does not read: expected `,` or `}`",
        ),
        (
            KERNEL.replace("\"name\"", "\"nam\""),
            "relu.cpp:4: the launch plan does not read: unknown field `nam`, expected one of `name`, `region`, `temporaries`, `packed`, `prepare`, `launches`",
        ),
        (
            KERNEL.replace("\"name\": \"my_relu\"", "\"name\": \"my relu\""),
            "relu.cpp: the name 'my relu' must consist of letters, digits, '_', '-' and '.'",
        ),
        (KERNEL.replace("void my_relu", "void relu"), "relu.cpp: the source does not define the symbol 'my_relu'"),
        (
            KERNEL.replace("\"8*N\"", "\"8*\""),
            "relu.cpp:8: the launch plan does not read: dimension '8*': expected a number or a symbol at offset 2",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(UserKernel::parse("relu.cpp", &text).unwrap_err().to_string(), expected);
    }
}
