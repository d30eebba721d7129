//! A history from a repository on this machine, through the `git` command.
//!
//! The commit that HEAD names when the repository is opened is the end of the history, whatever
//! happens to the repository meanwhile. Only first parents are followed, so a merge is one batch.
//! The user's git configuration has no say in what is read. Submodules count as files whose
//! value is the commit they name.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::snapshot::Snapshot;
use super::{Batch, Change};
use crate::{Error, Result};

/// Hex digits of an id that make a value.
const VALUE_DIGITS: usize = 16;

/// A commit of a local repository.
#[derive(Clone, Debug)]
pub struct Repository {
    dir: PathBuf,
    head: String,
}

impl Repository {
    /// The repository that `dir` belongs to, at its HEAD.
    ///
    /// # Errors
    /// `git` cannot be run, `dir` is in no repository, or there is no commit.
    pub fn open(dir: &Path) -> Result<Self> {
        let words = ["rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}"];
        // The repository first: a quiet rev-parse does not say why there is no HEAD.
        run(dir, &["rev-parse", "--git-dir"])?;
        let head = run(dir, &words).map_err(|_| {
            Error::Command(format!("the repository at {} has no commit yet", dir.display()))
        })?;
        let head = String::from_utf8_lossy(&head).trim().to_owned();
        Ok(Repository { dir: dir.to_owned(), head })
    }

    /// The commits from the first to this one.
    pub fn history(&self) -> Result<History> {
        History::start(&self.dir, &self.head)
    }

    /// The files of this commit as git lists them.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let listing = run(&self.dir, &["ls-tree", "-r", "-z", "--full-tree", &self.head])?;
        let mut snapshot = Snapshot::default();
        for entry in listing.split(|&byte| byte == 0).filter(|entry| !entry.is_empty()) {
            let (path, value) = parse_tree_entry(entry).ok_or_else(|| self.unexpected(entry))?;
            snapshot.0.insert(path, value);
        }
        Ok(snapshot)
    }

    fn unexpected(&self, found: &[u8]) -> Error {
        unexpected("ls-tree", &self.dir, found)
    }
}

/// The batches of a repository's history, read as `git log` writes them; after an error there are
/// no more. Commits without changes are counted but give no batch.
pub struct History {
    dir: PathBuf,
    git: Child,
    output: BufReader<ChildStdout>,
    complaints: File,
    /// Number and time of the commit whose changes come next.
    commit: Option<(u64, i64)>,
    commits: u64,
    ended: bool,
}

impl History {
    fn start(dir: &Path, head: &str) -> Result<Self> {
        let failed = |source| Error::io(dir, "run git in", source);
        // To a file, because nobody reads a second pipe while the first one is read.
        let complaints = tempfile::tempfile().map_err(failed)?;
        let mut command = git(dir);
        command.args(["-c", "log.showRoot=true", "log", "--first-parent", "-m", "--reverse"]);
        command.args(["--raw", "-z", "--no-renames", "--no-abbrev", "--no-relative", "--no-color"]);
        command.args(["--ignore-submodules=none", "--no-show-signature", "--no-notes"]);
        command.args(["--format=C %ct", "--end-of-options", head]);
        command.stdout(Stdio::piped()).stderr(complaints.try_clone().map_err(failed)?);
        let mut git = command.spawn().map_err(failed)?;
        let output =
            git.stdout.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        let output = BufReader::with_capacity(1 << 16, output);
        let (dir, commit) = (dir.to_owned(), None);
        Ok(History { dir, git, output, complaints, commit, commits: 0, ended: false })
    }

    fn read_batch(&mut self) -> Result<Option<Batch>> {
        let mut changes = Vec::new();
        loop {
            let token = self.token()?;
            // A header follows the changes before it, at the end after nothing.
            let next = match token.as_deref().map(trim_line_break) {
                Some(b"") => continue,
                Some(token) if token.starts_with(b":") => {
                    changes.push(self.change(token)?);
                    continue;
                }
                Some(token) => Some(self.header(token)?),
                None => None,
            };
            let commit = std::mem::replace(&mut self.commit, next);
            if let (Some((commit, committed_s)), false) = (commit, changes.is_empty()) {
                return Ok(Some(Batch { commit, committed_s, changes }));
            }
            if next.is_none() {
                return self.check_exit();
            }
        }
    }

    /// `C <seconds>`.
    fn header(&mut self, token: &[u8]) -> Result<(u64, i64)> {
        let text = std::str::from_utf8(token).ok();
        let seconds = text.and_then(|text| text.strip_prefix("C ")?.parse().ok());
        let seconds = seconds.ok_or_else(|| self.unexpected(token))?;
        let commit = self.commits;
        self.commits += 1;
        Ok((commit, seconds))
    }

    /// `:<mode> <mode> <id> <id> <op>`, then the path as a token of its own.
    fn change(&mut self, token: &[u8]) -> Result<Change> {
        let path = self.token()?.ok_or_else(|| self.unexpected(token))?;
        let path = key_of(&path).into_owned();
        let text = String::from_utf8_lossy(token);
        let fields: Vec<_> = text.split(' ').collect();
        match fields[..] {
            [_, _, _, _, "D"] => Ok(Change::Delete { path }),
            [_, _, _, id, "A" | "M" | "T"] if id.len() >= VALUE_DIGITS => {
                Ok(Change::Put { path, value: id[..VALUE_DIGITS].to_owned() })
            }
            _ => Err(self.unexpected(token)),
        }
    }

    /// The bytes before the next NUL, `None` at the end.
    fn token(&mut self) -> Result<Option<Vec<u8>>> {
        let mut token = Vec::new();
        let read = self.output.read_until(0, &mut token);
        let count = read.map_err(|source| Error::io(&self.dir, "read git log of", source))?;
        token.pop_if(|last| *last == 0);
        Ok((count > 0).then_some(token))
    }

    /// The end of the output is the end of the history only if git says so too.
    fn check_exit(&mut self) -> Result<Option<Batch>> {
        let failed = |source| Error::io(&self.dir, "run git in", source);
        let status = self.git.wait().map_err(failed)?;
        if status.success() {
            return Ok(None);
        }
        let mut words = Vec::new();
        self.complaints.rewind().map_err(failed)?;
        self.complaints.read_to_end(&mut words).map_err(failed)?;
        Err(complaint("log", &self.dir, &words))
    }

    fn unexpected(&self, found: &[u8]) -> Error {
        unexpected("log", &self.dir, found)
    }
}

impl Iterator for History {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if self.ended {
            return None;
        }
        let batch = self.read_batch().transpose();
        self.ended = !matches!(batch, Some(Ok(_)));
        batch
    }
}

impl Drop for History {
    /// Ends git if it is still writing; one that has ended is not disturbed.
    fn drop(&mut self) {
        let _ = self.git.kill();
        let _ = self.git.wait();
    }
}

fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).stdin(Stdio::null());
    // Set when we run inside a hook, where they would name another repository than `dir`.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(name);
    }
    command
}

fn run(dir: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = git(dir).args(words).output();
    let output = output.map_err(|source| Error::io(dir, "run git in", source))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(complaint(words[0], dir, &output.stderr))
}

fn complaint(command: &str, dir: &Path, words: &[u8]) -> Error {
    let words = String::from_utf8_lossy(words);
    Error::Command(format!("git {command} failed in {}: {}", dir.display(), words.trim()))
}

fn unexpected(command: &str, dir: &Path, found: &[u8]) -> Error {
    let found = String::from_utf8_lossy(found);
    Error::Command(format!(
        "git {command} in {} wrote {found:?}, which is new to us",
        dir.display()
    ))
}

/// `<mode> <type> <id><TAB><path>`.
fn parse_tree_entry(entry: &[u8]) -> Option<(String, String)> {
    let tab = entry.iter().position(|&byte| byte == b'\t')?;
    let head = std::str::from_utf8(&entry[..tab]).ok()?;
    let value = head.split(' ').nth(2)?.get(..VALUE_DIGITS)?;
    Some((key_of(&entry[tab + 1..]).into_owned(), value.to_owned()))
}

fn trim_line_break(token: &[u8]) -> &[u8] {
    token.strip_prefix(b"\n").unwrap_or(token)
}

/// A path as a key. One that is not UTF-8 is escaped byte by byte, as `\xE9`, so that different
/// paths stay different.
fn key_of(path: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(path) {
        Ok(path) => Cow::Borrowed(path),
        Err(_) => Cow::Owned(path.escape_ascii().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn git_in(dir: &Path, words: &[&str]) {
        let mut command = git(dir);
        command.args(["-c", "user.name=t", "-c", "user.email=t@example.invalid"]);
        command.args(["-c", "commit.gpgSign=false", "-c", "init.defaultBranch=main"]).args(words);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn commit(dir: &Path, message: &str) {
        git_in(dir, &["add", "-A"]);
        git_in(dir, &["commit", "-q", "-m", message]);
    }

    /// Inserts, an overwrite, a rename, a delete, an empty commit, a type change, a merge and
    /// names that need care.
    fn small_repository() -> tempfile::TempDir {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        git_in(dir, &["init", "-q"]);
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(dir.join("a"), "1").unwrap();
        fs::write(dir.join("sub/tab\tand\nline"), "2").unwrap();
        commit(dir, "first\n\n:000000 looks like a change");
        fs::write(dir.join("a"), "3").unwrap();
        fs::write(dir.join("ümlaut"), "4").unwrap();
        commit(dir, "second");
        git_in(dir, &["commit", "-q", "--allow-empty", "-m", "empty"]);
        git_in(dir, &["checkout", "-q", "-b", "side"]);
        fs::write(dir.join("of side"), "5").unwrap();
        commit(dir, "on side");
        git_in(dir, &["checkout", "-q", "main"]);
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        commit(dir, "rename");
        git_in(dir, &["merge", "-q", "--no-ff", "-m", "merge", "side"]);
        fs::remove_file(dir.join("b")).unwrap();
        std::os::unix::fs::symlink("of side", dir.join("b")).unwrap();
        fs::remove_file(dir.join("ümlaut")).unwrap();
        commit(dir, "type change and delete");
        temporary
    }

    fn replay(repository: &Repository) -> (Vec<Batch>, Snapshot) {
        let batches: Vec<_> = repository.history().unwrap().map(|batch| batch.unwrap()).collect();
        let mut state = Snapshot::default();
        batches.iter().flat_map(|batch| batch.changes.clone()).for_each(|c| state.apply(c));
        (batches, state)
    }

    #[test]
    fn a_history_ends_in_the_tree_of_its_last_commit() {
        let temporary = small_repository();
        let repository = Repository::open(temporary.path()).unwrap();
        let (batches, state) = replay(&repository);
        let expected = repository.snapshot().unwrap();
        assert_eq!(state.difference(&expected), None);
        let paths: Vec<_> = expected.0.keys().map(String::as_str).collect();
        assert_eq!(paths, ["b", "of side", "sub/tab\tand\nline"]);
        assert!(expected.0.values().all(|value| value.len() == 16));
        let sizes: Vec<_> = batches.iter().map(|b| (b.commit, b.changes.len())).collect();
        // Commit 2 is empty; the rename is a delete and a put; the merge is one batch.
        assert_eq!(sizes, [(0, 2), (1, 2), (3, 2), (4, 1), (5, 2)]);
        assert!(batches[0].committed_s > 1_000_000_000);
    }

    #[test]
    fn a_directory_within_a_repository_gives_the_whole_of_it() {
        let temporary = small_repository();
        let whole = Repository::open(temporary.path()).unwrap();
        let within = Repository::open(&temporary.path().join("sub")).unwrap();
        assert_eq!(within.snapshot().unwrap(), whole.snapshot().unwrap());
        assert_eq!(replay(&within), replay(&whole));
    }

    #[test]
    fn what_is_no_repository_or_empty_is_refused_in_words() {
        let temporary = tempfile::tempdir().unwrap();
        let message = Repository::open(temporary.path()).unwrap_err().to_string();
        assert!(message.contains("not a git repository"), "{message}");
        git_in(temporary.path(), &["init", "-q"]);
        let message = Repository::open(temporary.path()).unwrap_err().to_string();
        assert!(message.contains("no commit"), "{message}");
        let message = Repository::open(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(message.contains("/nowhere/at/all"), "{message}");
    }

    #[test]
    fn a_history_that_git_cannot_finish_is_an_error() {
        let temporary = small_repository();
        let missing = "0123456789012345678901234567890123456789".to_owned();
        let repository = Repository { dir: temporary.path().to_owned(), head: missing };
        let message = repository.history().unwrap().next().unwrap().unwrap_err().to_string();
        assert!(message.contains("git log failed"), "{message}");
    }

    #[test]
    fn a_history_may_be_left_early() {
        let temporary = small_repository();
        let mut history = Repository::open(temporary.path()).unwrap().history().unwrap();
        assert_eq!(history.next().unwrap().unwrap().commit, 0);
        drop(history);
    }

    #[test]
    fn paths_that_are_not_text_stay_different() {
        assert_eq!(key_of("ümlaut".as_bytes()), "ümlaut");
        assert_eq!(key_of(b"caf\xe9"), "caf\\xe9");
        assert_ne!(key_of(b"\xe9"), key_of(b"\xe8"));
    }
}
