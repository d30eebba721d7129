//! The frame of an HTML page that loads nothing.

use std::fmt::Write;

use crate::Environment;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;\
color:#111}table{border-collapse:collapse;margin:.8em 0;font-size:13px}td,th{padding:.25em .6em;\
border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child,td.text{text-align:left}\
tr.ours td:first-child{font-weight:bold}svg{width:100%;max-width:900px;height:auto}\
small{font-weight:normal;color:#555}\
details{margin:.5em 0}pre{white-space:pre-wrap;font-size:12px;background:#f4f4f4;padding:.8em}\
.bad{color:#a00}";

/// Begins a page with its title as heading.
pub fn begin(title: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    )
}

/// Ends a page.
pub fn end() -> &'static str {
    "</body></html>\n"
}

/// Describes the machine in one paragraph.
pub fn machine(machine: &Environment) -> String {
    let mut html = String::new();
    let _ = writeln!(
        html,
        "<p>{} UTC, commit {}, {}, {} cores, {} MiB, Linux {}, {}, {}; load at the start {}.</p>",
        escaped(&machine.date),
        escaped(&machine.commit),
        escaped(&machine.processor),
        machine.cores,
        machine.memory_mib,
        escaped(&machine.kernel),
        escaped(&machine.file_system),
        escaped(&machine.compiler),
        escaped(&machine.load)
    );
    html
}

/// Escapes text for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
