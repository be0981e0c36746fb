use super::*;

fn timing(name: &str, seconds: impl IntoIterator<Item = f64>) -> Timing {
    Timing {
        name: name.into(),
        version: "some 1.0".into(),
        error: Some(2.5e-7),
        agrees: true,
        why: None,
        repeats: 5,
        seconds: seconds.into_iter().collect(),
    }
}

/// 30 blocks around `seconds`, with a drift that all contenders share.
fn around(seconds: f64) -> impl Iterator<Item = f64> {
    (0..30).map(move |i| seconds * (1.0 + f64::from(i) * 0.01 + f64::from(i * 7 % 5) * 0.001))
}

fn all(contenders: Vec<Timing>) -> Figures {
    beside(contenders, 0.05)
}

fn beside(contenders: Vec<Timing>, others_busy: f64) -> Figures {
    let timings = Timings {
        contenders,
        inputs: vec![Input { name: "x".into(), dtype: "float32".into(), shape: vec![1, 128] }],
        python: "3.12.3".into(),
        processors: 2,
        others_busy: Some(others_busy),
    };
    let device = Device { model: "Some Processor".into(), threads: 2 };
    figures(timings, "toy", device, rfc3339(1_769_904_000), vec!["forge-cc".into(), "bench".into()])
}

fn usual() -> Vec<Timing> {
    vec![
        timing("unrewritten", around(0.02)),
        timing(FORGED, around(0.01)),
        timing(CONTROL, around(0.01002)),
        timing("onnxruntime", around(0.008)),
        timing("torch eager", around(0.01005)),
    ]
}

fn verdict_of(figures: &Figures, name: &str) -> Verdict {
    figures.contenders.iter().find(|c| c.name == name).unwrap().times.as_ref().unwrap().verdict
}

#[test]
fn says_who_is_faster_by_how_much() {
    let figures = all(usual());
    let unrewritten = figures.contenders[0].times.as_ref().unwrap();
    assert!((unrewritten.ratio_to_forged - 2.0).abs() < 1e-9);
    assert!(unrewritten.ratio_ci.1 - unrewritten.ratio_ci.0 < 1e-9, "the drift that all share cancels");
    assert_eq!(verdict_of(&figures, "unrewritten"), Verdict::ForgedFaster);
    assert_eq!(verdict_of(&figures, "onnxruntime"), Verdict::ForgedSlower);
    assert_eq!(verdict_of(&figures, "torch eager"), Verdict::Even);
    assert_eq!(figures.fastest, ["onnxruntime"]);
    assert!((figures.noise - 0.002).abs() < 1e-9);
}

#[test]
fn the_table_reads_well() {
    let mut contenders = usual();
    contenders.push(Timing {
        agrees: false,
        error: None,
        why: Some("output 0 has shape [2], not [3]".into()),
        ..timing("someone else", [])
    });
    insta::assert_snapshot!(table::render(&all(contenders)));
}

#[test]
fn noise_raises_the_bar() {
    let mut contenders = usual();
    contenders[2] = timing(CONTROL, around(0.013));
    let figures = all(contenders);
    assert!((figures.noise - 0.3).abs() < 1e-9);
    assert_eq!(verdict_of(&figures, "onnxruntime"), Verdict::Even);
    assert_eq!(figures.fastest, ["onnxruntime", FORGED, "torch eager"]);
}

#[test]
fn few_blocks_prove_nothing() {
    let mut contenders = usual();
    for contender in &mut contenders {
        contender.seconds.truncate(FEWEST_BLOCKS - 1);
    }
    let figures = all(contenders);
    assert_eq!(verdict_of(&figures, "unrewritten"), Verdict::Unknown);
    assert!(figures.fastest.is_empty());
    assert!(table::render(&figures).contains("too few"));
}

#[test]
fn a_busy_machine_proves_nothing() {
    let figures = beside(usual(), 1.4);
    assert!(figures.contended && figures.fastest.is_empty());
    assert_eq!(verdict_of(&figures, "unrewritten"), Verdict::Unknown);
    let text = table::render(&figures);
    assert!(text.contains("kept 1.4 of 2 processors busy") && !text.contains("Fastest"), "{text}");
}

/// What runs on processors that the threads leave free is in nobody's way.
#[test]
fn spare_processors_may_be_busy() {
    let timings = Timings {
        contenders: usual(),
        inputs: Vec::new(),
        python: "3.12.3".into(),
        processors: 8,
        others_busy: Some(5.5),
    };
    let device = Device { model: "Some Processor".into(), threads: 2 };
    assert!(!figures(timings, "toy", device, String::new(), Vec::new()).contended);
}

/// The unrewritten model alone agrees with itself: there is nothing to compare, and no NaN in the file.
#[test]
fn a_wrong_forged_model_is_not_compared() {
    let mut contenders = usual();
    for contender in &mut contenders[1..] {
        contender.agrees = false;
        contender.seconds.clear();
    }
    let figures = all(contenders);
    let json = serde_json::to_value(&figures).unwrap();
    assert!(json["contenders"][1]["times"].is_null());
    assert!(json["contenders"][0]["times"]["ratio_to_forged"].is_number() && json["noise"].is_number());
    let text = table::render(&figures);
    assert!(!text.contains("NaN") && !text.contains("as fast as"), "{text}");
}

#[test]
fn answers_are_told_apart() {
    let failed = r#"{"error": "no module named torch", "install": ["torch"]}"#;
    assert!(matches!(serde_json::from_str(failed).unwrap(), Answer::Failed { install, .. } if install == ["torch"]));
    let timed = r#"{"contenders": [{"name": "forged", "version": "v", "error": 0.0, "agrees": true, "why": null,
        "repeats": 3, "seconds": [0.5]}], "inputs": [], "python": "3.12", "processors": 2, "others_busy": null}"#;
    assert!(matches!(serde_json::from_str(timed).unwrap(), Answer::Timed(t) if t.contenders[0].seconds == [0.5]));
}

#[test]
fn failures_say_what_to_install() {
    let stderr = (0..50).map(|i| format!("line {i}\n")).collect::<String>();
    let diagnostic = failure("no module named torch", &stderr, &["torch".into()], Path::new("python3"));
    assert_eq!(diagnostic.exit, Exit::Environment);
    assert!(diagnostic.help.unwrap().starts_with("python3 -m pip install torch\n"));
    assert!(diagnostic.what.starts_with("no module named torch\nline 30\n") && diagnostic.what.ends_with("line 49"));
    assert_eq!(failure("wrong shape", "", &[], Path::new("python3")).exit, Exit::Failure);
}

#[test]
fn dates() {
    // `date -u -d @N +%FT%TZ`
    assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
    assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
    assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(rfc3339(1_709_251_199), "2024-02-29T23:59:59Z");
    assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
}

/// `bench OUT` under a "Python" that is a shell script.
fn run_under(script: &str) -> Result<Timings, Diagnostic> {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python");
    // Renamed into place after closing: a file that another thread's child still holds open for writing can't be executed.
    let partial = folder.path().join("partial");
    std::fs::write(&partial, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&partial, &python).unwrap();
    time(&arguments(folder.path(), &python), 2)
}

fn arguments(directory: &Path, python: &Path) -> BenchArgs {
    BenchArgs {
        directory: directory.to_owned(),
        onnx: None,
        eager: None,
        inputs: Vec::new(),
        python: python.to_owned(),
        threads: None,
        blocks: 40,
        json: None,
    }
}

#[test]
fn the_request_reaches_the_script_and_its_answer_comes_back() {
    let answer = r#"{"contenders": [], "inputs": [], "python": "3.12", "processors": 2, "others_busy": null}"#;
    let script = format!(
        r#"grep -q '"onnx":null,"eager":null,"inputs":\[\],"threads":2,"blocks":40' || exit 9
           grep -q 'Reads a request' "$1" || exit 8
           echo '{answer}'"#
    );
    assert_eq!(run_under(&script).map(|t| t.python).map_err(|d| d.render()), Ok("3.12".to_owned()));
}

#[test]
fn failures_of_the_script_come_with_its_own_words() {
    let died = run_under("cat > /dev/null; echo 'Fatal: no arguments' >&2; exit 3").err().unwrap();
    assert_eq!(died.exit, Exit::Failure);
    assert!(died.what.contains("exit status: 3") && died.what.ends_with("Fatal: no arguments"), "{}", died.what);
    let missing = run_under(r#"cat > /dev/null; echo '{"error": "no numpy", "install": ["numpy"]}'"#).err().unwrap();
    assert_eq!((missing.exit, missing.what.as_str()), (Exit::Environment, "no numpy"));
    let nowhere = time(&arguments(Path::new("/"), Path::new("/no/such/python")), 2).err().unwrap();
    assert_eq!(nowhere.exit, Exit::Environment);
    assert!(nowhere.help.unwrap().contains("FORGE_PYTHON"));
}

#[test]
fn missing_files_are_input_errors() {
    let mut args = arguments(Path::new("/"), Path::new("python3"));
    args.onnx = Some(PathBuf::from("/no/such/model.onnx"));
    let diagnostic = time(&args, 2).err().unwrap();
    assert_eq!(diagnostic.exit, Exit::Input);
    assert!(diagnostic.what.starts_with("/no/such/model.onnx: "));
}
