//! The Python scripts of `tests/python`, run as parts of tests.

use std::path::Path;
use std::process::Command;

/// Standard output of `tests/python/SCRIPT ARGUMENT`, under the Python that `FORGE_PYTHON` names.
///
/// # Panics
/// If that Python lacks what the script needs: a test that cannot run has not passed.
pub(crate) fn script(script: &str, argument: &Path) -> String {
    let python = std::env::var("FORGE_PYTHON").unwrap_or_else(|_| "python3".into());
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let output = Command::new(&python).arg(scripts.join(script)).arg(argument).output();
    let output = output.unwrap_or_else(|e| panic!("cannot start '{python}': {e}; set FORGE_PYTHON to a Python 3.10+"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{script} failed under '{python}' (this test needs Python with onnx and onnxruntime: install them with\n  \
         {python} -m pip install -r {}\nor set FORGE_PYTHON to a Python that has them):\n{stderr}",
        scripts.join("requirements.txt").display()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
