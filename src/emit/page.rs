//! `report.html`: the [`Report`] as one page without scripts or outside files.

use std::fmt::{self, Display, Write};

use super::manifest::Manifest;
use super::report::{KernelReport, Outcome, RegionReport, short};

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2024; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .7rem; vertical-align: top; }
th { border-bottom: 2px solid #c5ccd3; } td { border-bottom: 1px solid #e4e8ec; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.detail { white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
.accepted { color: #0a6b3d; } .rejected { color: #a3261b; }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #e3e6e8; } th { border-color: #4a525a; } td { border-color: #2b3238; }
  .accepted { color: #5fd39b; } .rejected { color: #ff8a7d; }
}
";

/// The page.
pub(crate) fn page(manifest: &Manifest) -> String {
    let mut html = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut html, manifest);
    html
}

fn write_page(out: &mut String, manifest: &Manifest) -> fmt::Result {
    let name = Escaped(&manifest.name);
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width\">")?;
    writeln!(out, "<title>{name} - forge-cc</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>")?;
    let report = &manifest.report;
    writeln!(out, "<p>{}</p>", Escaped(&report.end_to_end_text()))?;

    writeln!(out, "<h2>Model</h2>\n<table>")?;
    for (kind, ports) in [("input", &manifest.plans.forged.inputs), ("output", &manifest.plans.forged.outputs)] {
        for port in ports {
            let (port_name, type_text) = (Escaped(&port.name), port.type_text());
            writeln!(out, "<tr><td>{kind}</td><td>{port_name}</td><td><code>{}</code></td></tr>", Escaped(&type_text))?;
        }
    }
    let compiler = &manifest.kernels.build;
    for (key, value) in [
        ("target", manifest.target.as_str()),
        ("processor", &manifest.cpu.model),
        ("compiler", &format!("{} ({})", compiler.compiler, compiler.compiler_version)),
        ("flags", &compiler.flags.join(" ")),
        ("forge-cc", &manifest.tool_version),
    ] {
        writeln!(out, "<tr><td>{key}</td><td colspan=\"2\">{}</td></tr>", Escaped(value))?;
    }
    writeln!(out, "</table>")?;

    let counts = report.counts();
    writeln!(out, "<h2>Regions</h2>")?;
    writeln!(
        out,
        "<p>{} regions; {} kernels tried, {} accepted, {} used, {} rejected.</p>",
        report.regions.len(),
        counts.tried,
        counts.accepted,
        counts.used,
        counts.rejections()
    )?;
    if !report.regions.is_empty() {
        writeln!(
            out,
            "<table>\n<tr><th>region</th><th>ops</th><th>times</th><th>tried</th><th>accepted</th><th>used</th></tr>"
        )?;
        for region in &report.regions {
            write_region_row(out, region)?;
        }
        writeln!(out, "</table>")?;
    }
    if !counts.rejected.is_empty() {
        writeln!(out, "<h2>Rejections</h2>\n<table>\n<tr><th>reason</th><th>kernels</th></tr>")?;
        for (reason, count) in &counts.rejected {
            writeln!(out, "<tr><td>{}</td><td class=\"number\">{count}</td></tr>", Escaped(reason))?;
        }
        writeln!(out, "</table>")?;
    }
    for region in &report.regions {
        write_kernels(out, region)?;
    }
    writeln!(out, "</body>\n</html>")
}

fn write_region_row(out: &mut String, region: &RegionReport) -> fmt::Result {
    let counts = region.counts();
    let id = Escaped(short(&region.hash));
    write!(out, "<tr><td><a href=\"#{id}\"><code>{id}</code></a></td><td>{}</td>", Escaped(&region.summary))?;
    for number in [region.occurrences, counts.tried, counts.accepted, counts.used] {
        write!(out, "<td class=\"number\">{number}</td>")?;
    }
    writeln!(out, "</tr>")
}

fn write_kernels(out: &mut String, region: &RegionReport) -> fmt::Result {
    let id = Escaped(short(&region.hash));
    writeln!(out, "<h2 id=\"{id}\">Region <code>{id}</code>: {}</h2>", Escaped(&region.summary))?;
    if region.kernels.is_empty() {
        return writeln!(out, "<p>No kernel was tried.</p>");
    }
    writeln!(out, "<table>\n<tr><th>kernel</th><th>proposed by</th><th>verdict</th><th>why</th></tr>")?;
    for KernelReport { hash, title, outcome } in &region.kernels {
        write!(out, "<tr><td><code>{}</code></td><td>{}</td>", Escaped(short(hash)), Escaped(title))?;
        match outcome {
            Outcome::Accepted { ratio, used, unused_because } => {
                let used = match (used, unused_because) {
                    (true, _) => "used".to_owned(),
                    (false, Some(why)) => format!("not used: {why}"),
                    (false, None) => "not used".to_owned(),
                };
                writeln!(out, "<td class=\"accepted\">accepted</td><td>{ratio}, {}</td></tr>", Escaped(&used))?;
            }
            Outcome::Rejected { stage, reason, detail } => {
                let [stage, reason, detail] = [stage, reason, detail].map(|text| Escaped(text));
                writeln!(
                    out,
                    "<td class=\"rejected\">rejected</td><td class=\"detail\">{stage}: {reason}: {detail}</td></tr>"
                )?;
            }
        }
    }
    writeln!(out, "</table>")
}

/// Text in HTML, in elements or quoted attributes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
