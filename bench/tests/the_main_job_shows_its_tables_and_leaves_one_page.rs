//! The main job in its smallest size: its lines fit a terminal, its page loads nothing, and it ends
//! by saying what it has shown and where.

use std::process::Command;

#[test]
fn tables_fit_a_terminal_and_the_page_loads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_alluvium-bench"))
        .arg("--smoke")
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let steps = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}\n{steps}");
    for line in text.lines().chain(steps.lines()) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
    let last: Vec<_> = text.lines().rev().take(2).collect();
    assert!(last[0].starts_with("Report: target/alluvium-report/report.html"), "{text}");
    assert!(last[1].starts_with("Equal results"), "{text}");
    assert!(steps.contains("q4: log, 1/4 in memory"), "{steps}");
    let page = dir.path().join("target/alluvium-report/report.html");
    let html = std::fs::read_to_string(page).unwrap();
    for outside in ["http", "src=", "href=", "url(", "@import", "<script", "<link"] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.matches("<svg ").count() >= 5 && html.ends_with("</html>\n"));
}
