//! The figures for a reader.

use std::fmt::Write as _;

use super::{CONTROL, Contender, FORGED, Figures, Times, Verdict};
use forge_kernels::measure::FEWEST_BLOCKS;

/// A table with a line for each contender, then what it was measured on and what follows from it.
pub(super) fn render(figures: &Figures) -> String {
    let mut rows = vec![
        ["contender", "version", "ms a call [95 % CI]", "time / forged [95 % CI]", "max rel error", "agrees"]
            .map(str::to_owned),
    ];
    rows.extend(figures.contenders.iter().map(row));
    let mut out = format!("{}: {}\n", figures.model, inputs(figures));
    let _ = writeln!(
        out,
        "{}, {} of {} processors, {}, {} interleaved blocks, Python {}\n",
        figures.device.model, figures.device.threads, figures.processors, figures.date, figures.blocks, figures.python
    );
    write_aligned(&mut out, &rows);
    out.push('\n');
    for contender in figures.contenders.iter().filter(|c| !c.agrees) {
        let why = contender.disagreement.as_deref().unwrap_or("the outputs differ");
        let _ = writeln!(out, "{} was not timed: {why}.", contender.name);
    }
    out.push_str(&conclusion(figures));
    out
}

fn inputs(figures: &Figures) -> String {
    let texts: Vec<String> = figures.inputs.iter().map(|i| format!("{} {}{:?}", i.name, i.dtype, i.shape)).collect();
    texts.join(", ")
}

fn row(contender: &Contender) -> [String; 6] {
    let (time, ratio) = contender.times.as_ref().map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |t| {
            let ratio = if contender.name == FORGED { "1".to_owned() } else { ratio(t) };
            (format!("{} [{}, {}]", digits(t.median_ms), digits(t.ci_ms.0), digits(t.ci_ms.1)), ratio)
        },
    );
    [
        contender.name.clone(),
        contender.version.clone(),
        time,
        ratio,
        contender.max_relative_error.map_or_else(|| "-".to_owned(), |e| format!("{e:.1e}")),
        if contender.agrees { "yes" } else { "NO" }.to_owned(),
    ]
}

fn ratio(times: &Times) -> String {
    format!("{:.3} [{:.3}, {:.3}]", times.ratio_to_forged, times.ratio_ci.0, times.ratio_ci.1)
}

/// Four significant digits.
fn digits(value: f64) -> String {
    let places = if value >= 1000.0 { 0 } else { (3 - value.max(1e-6).log10().floor() as i32).clamp(0, 7) as usize };
    format!("{value:.places$}")
}

fn write_aligned(out: &mut String, rows: &[[String; 6]]) {
    let mut widths = [0; 6];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
}

/// Who is the fastest, and how forged does beside each of the others; or why nothing can be said.
fn conclusion(figures: &Figures) -> String {
    let mut out = String::new();
    let forged_ran = figures.contenders.iter().any(|c| c.name == FORGED && c.times.is_some());
    let _ = match figures.fastest.as_slice() {
        [] => Ok(()),
        [one] => writeln!(out, "Fastest: {one}."),
        several => writeln!(out, "Fastest: {}, with no certain difference between them.", several.join(" and ")),
    };
    for contender in figures.contenders.iter().filter(|c| forged_ran && c.name != FORGED && c.name != CONTROL) {
        let Some(times) = &contender.times else { continue };
        let text = match times.verdict {
            Verdict::ForgedFaster => format!("is {:.2}x as fast as", times.ratio_to_forged),
            Verdict::ForgedSlower => format!("takes {:.2}x the time of", 1.0 / times.ratio_to_forged),
            Verdict::Even => "is within noise of".to_owned(),
            Verdict::Unknown => continue,
        };
        let _ = writeln!(out, "forged {text} {}.", contender.name);
    }
    if forged_ran {
        let percent = figures.noise * 100.0;
        let _ =
            writeln!(out, "Noise: the forged model differs by up to {percent:.1} % from itself in another process.");
        if figures.blocks < FEWEST_BLOCKS {
            let _ = writeln!(out, "No verdict: fewer than {FEWEST_BLOCKS} blocks are too few to call anything faster.");
        }
    }
    if let (true, Some(busy)) = (figures.contended, figures.others_busy) {
        let _ = writeln!(
            out,
            "No verdict: other processes kept {busy:.1} of {} processors busy, from which runtimes whose threads spin suffer\n\
             more than others. Repeat this on a quiet machine.",
            figures.processors
        );
    }
    out
}
