//! The mistakes that users make do not compile, and the compiler says what is wrong in words that
//! help: each file in `mistakes/` and what is said of it.
//!
//! The compiler reads the libraries that were built for this test, so it compiles nothing but the
//! files. What it says changes with its version. The texts are those of [`COMPILER`]; on another
//! one the test says so and is skipped. To write them anew:
//! `cargo test -p alluvium --test mistakes -- --ignored`.
//!
//! Each error of a text must be said. More may be: beside libraries of other builds the compiler
//! finds another trait that lacks, too, for the same code. Such an error is taken out of a text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// The compiler whose texts are kept.
const COMPILER: &str = "rustc 1.95.";

/// Where the mistakes are, in the workspace.
const FOLDER: &str = "store/tests/mistakes/";

/// Right state, by which the libraries of one build are told from those of others.
const BY_RKYV: &str =
    "#[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]
    struct Row(u64);
    fn main() {}";
const BY_SERDE: &str = "#[derive(Clone, serde::Serialize, serde::Deserialize, alluvium::State)]
    #[state(serde)]
    struct Row(u64);
    fn main() {}";

#[test]
fn mistakes_are_told_in_words_that_help() {
    let Some(compiler) = Compiler::of_the_texts() else { return };
    let mut others = String::new();
    for file in mistakes() {
        let said = compiler.says_of(&file);
        let kept = fs::read_to_string(file.with_extension("stderr")).expect("a text is kept");
        let is_said = |error| errors_of(&said).any(|other| other == error);
        assert!(kept.starts_with("error"), "{} has no error", file.display());
        if !errors_of(&kept).all(is_said) {
            others += &format!("{}\n--- kept\n{kept}--- said\n{said}\n", file.display());
        }
    }
    assert!(others.is_empty(), "the compiler says something else:\n{others}");
}

#[test]
#[ignore = "writes the texts anew"]
fn texts_are_written() {
    let compiler = Compiler::of_the_texts().expect("the compiler of the texts");
    for file in mistakes() {
        fs::write(file.with_extension("stderr"), compiler.says_of(&file))
            .expect("a text is written");
    }
}

/// The errors of a text.
fn errors_of(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n\n").map(str::trim_end)
}

/// The files in `mistakes/`, in order.
fn mistakes() -> Vec<PathBuf> {
    let mut files = files_of(&workspace().join(FOLDER), "", ".rs");
    files.sort();
    assert!(!files.is_empty(), "no mistakes");
    files
}

/// Where the compiler was and is run: so it shows the code of our own files.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace")
}

/// A compiler, and the libraries it reads.
struct Compiler {
    /// Libraries of all builds; the compiler finds there what `libraries` depend on.
    folder: PathBuf,
    libraries: Vec<(&'static str, PathBuf)>,
    out: tempfile::TempDir,
}

impl Compiler {
    /// `None`, and a word about it, where the compiler is another one.
    fn of_the_texts() -> Option<Self> {
        let version = rustc().arg("--version").output().expect("the compiler runs").stdout;
        let version = String::from_utf8_lossy(&version);
        if !version.starts_with(COMPILER) {
            println!("skipped: the texts are those of {COMPILER}x, this is {version}");
            return None;
        }
        let test = std::env::current_exe().expect("a path");
        let folder = test.parent().expect("a folder").to_owned();
        let out = tempfile::tempdir().expect("a folder");
        let mut compiler = Self { folder, libraries: Vec::new(), out };
        // The newest is of the sources as they are; what it was built with may be older.
        let ours = compiler.builds_of("alluvium").remove(0);
        compiler.libraries.push(("alluvium", ours));
        compiler.add("rkyv", BY_RKYV);
        compiler.add("serde", BY_SERDE);
        Some(compiler)
    }

    /// Adds the build of a library with which `right` compiles.
    fn add(&mut self, library: &'static str, right: &str) {
        let file = self.out.path().join("right.rs");
        fs::write(&file, right).expect("a file is written");
        let mut said = String::new();
        for build in self.builds_of(library) {
            self.libraries.push((library, build));
            let output = self.compile(&file);
            if output.status.success() {
                return;
            }
            said += &String::from_utf8_lossy(&output.stderr);
            self.libraries.pop();
        }
        panic!("no {library} compiles what is right:\n{said}");
    }

    /// The builds of a library, the newest first.
    fn builds_of(&self, library: &str) -> Vec<PathBuf> {
        let mut builds = files_of(&self.folder, &format!("lib{library}-"), ".rlib");
        let written = |path: &PathBuf| path.metadata().and_then(|file| file.modified());
        builds
            .sort_by_key(|path| std::cmp::Reverse(written(path).unwrap_or(SystemTime::UNIX_EPOCH)));
        assert!(!builds.is_empty(), "no {library} in {}", self.folder.display());
        builds
    }

    fn compile(&self, file: &Path) -> Output {
        let mut rustc = rustc();
        rustc.args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "--color=never"]);
        rustc.args(["--diagnostic-width=140", "-Adead_code", "--out-dir"]).arg(self.out.path());
        rustc.arg("-L").arg(format!("dependency={}", self.folder.display()));
        for (name, path) in &self.libraries {
            rustc.arg("--extern").arg(format!("{name}={}", path.display()));
        }
        let file = file.strip_prefix(workspace()).unwrap_or(file);
        rustc.arg(file).current_dir(workspace()).output().expect("the compiler runs")
    }

    /// What is said of a file that must not compile.
    fn says_of(&self, file: &Path) -> String {
        let output = self.compile(file);
        assert!(!output.status.success(), "{} compiles", file.display());
        lasting(&String::from_utf8_lossy(&output.stderr))
    }
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// The files of a folder whose names begin and end so.
fn files_of(folder: &Path, first: &str, last: &str) -> Vec<PathBuf> {
    let files =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(first) && name.ends_with(last)
    };
    files.filter(named).collect()
}

/// What lasts of a text while other files change: no numbers of their lines, no code of the
/// standard library, no number of other types, no indentation, which is that of the longest number,
/// and no files that have the names of long types.
fn lasting(said: &str) -> String {
    let (mut text, mut place) = (String::new(), Place::Mistake);
    for line in said.lines() {
        let mut line = match line.trim_start() {
            short if short.len() < line.len() => format!(" {short}"),
            whole => whole.to_owned(),
        };
        if let Some((arrow, path)) = place_of(&line) {
            place = Place::of(path);
            line = format!(" {arrow} {}", place.shown(path));
        } else if let Some(code) = code_of(&line) {
            match place {
                Place::Mistake => {}
                Place::Ours => line = format!(" |{code}"),
                Place::Standard => continue,
            }
        } else if line.starts_with(" and ") && line.ends_with(" others") {
            line = " and $N others".into();
        } else if line.contains("the full name for the type has been written")
            || line.contains("using `--verbose`")
        {
            continue;
        }
        text += line.trim_end();
        text.push('\n');
    }
    let end = text.find("error: aborting due to").unwrap_or(text.len());
    text[..end].trim_end().to_owned() + "\n"
}

/// The path of a line that names one, after its arrow.
fn place_of(line: &str) -> Option<(&str, &str)> {
    let (arrow, path) = line.trim_start().split_once(' ')?;
    matches!(arrow, "-->" | ":::").then_some((arrow, path))
}

/// What follows the bar of a line that shows code.
fn code_of(line: &str) -> Option<&str> {
    let (number, code) = line.split_once('|')?;
    number.trim().bytes().all(|digit| digit.is_ascii_digit()).then_some(code)
}

/// Where code stands that a text shows.
#[derive(Clone, Copy)]
enum Place {
    Mistake,
    Ours,
    Standard,
}

impl Place {
    fn of(path: &str) -> Self {
        match path {
            mistake if mistake.starts_with(FOLDER) => Self::Mistake,
            standard if standard.contains("/library/") => Self::Standard,
            _ => Self::Ours,
        }
    }

    /// The path as it is kept.
    fn shown(self, path: &str) -> String {
        let file = path.split(':').next().unwrap_or(path);
        match self {
            Self::Mistake => path.to_owned(),
            Self::Ours => file.to_owned(),
            Self::Standard => format!("$RUST/{}", file.split("/library/").last().unwrap_or(file)),
        }
    }
}
