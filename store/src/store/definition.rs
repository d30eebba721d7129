//! What a state's answers depend on beside its types: recorded in checkpoints and canonical files,
//! compared when the state is opened, restored, imported and moved.
//!
//! What it keeps true: a state goes on under the definition it was made with, or under one of which it
//! is known that the answers stay right. A state without a recorded definition, which a build from
//! before there were any wrote, is not checked. Widths of time-ordered maps, and the clock of a time to
//! live, are in the name of the primitive.
//!
//! A definition may be wrapped in a *need*: what a build has to know to go on with the state as it is now. A build that
//! does not know the need takes the whole for another definition, and refuses the state by name.

use alluvium_pagestore::{Error, ErrorKind, Result, StateManifest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::windows::Windows;

/// What this build knows beside definitions.
const KNOWN_NEEDS: [&str; 1] = [FINDS_TIMERS];

/// The need of sessions whose timers are not all in the checkpoint.
pub(crate) const FINDS_TIMERS: &str = "a build that finds timers in the sets of sessions";

/// A definition with a need.
pub(crate) fn with_need(definition: Option<&Value>, need: &str) -> Value {
    json!({ "needs": need, "definition": definition })
}

/// The definition without a need that this build knows.
fn plain(definition: Option<&Value>) -> Option<&Value> {
    let definition = definition?;
    match definition.get("needs").and_then(Value::as_str) {
        Some(need) if KNOWN_NEEDS.contains(&need) => definition.get("definition"),
        _ => Some(definition),
    }
}

/// The definition of windows as checkpoints have it.
pub(crate) fn of_windows(windows: &Windows) -> Option<Value> {
    serde_json::to_value(windows.normal()).ok()
}

/// The windows of a recorded definition, if this build knows them.
fn windows_of(definition: Option<&Value>) -> Option<Windows> {
    Windows::deserialize(definition?).ok()
}

/// Refuses to open a state as it is `asked` for, if its answers would be wrong.
///
/// # Errors
/// [`ErrorKind::Mismatch`] that names both definitions.
pub(crate) fn check_change(stored: &StateManifest, asked: &StateManifest) -> Result<()> {
    let (before, after) = (plain(stored.definition.as_ref()), plain(asked.definition.as_ref()));
    if before.is_none() || before == after {
        return Ok(());
    }
    let why = match (windows_of(before), windows_of(after)) {
        (Some(before), Some(after)) => match before.why_not(&after) {
            None => return Ok(()),
            Some(why) => why,
        },
        _ => "what is kept, and what is gone, is by the stored one",
    };
    let message =
        format!("the stored definition is {}, requested is {}: {why}", told(before), told(after));
    Err(Error::new(ErrorKind::Mismatch, message).with("state", &asked.name))
}

/// Refuses two parts of one state that are of different definitions.
///
/// # Errors
/// [`ErrorKind::Mismatch`] that names both.
pub(crate) fn check_same(
    state: &str,
    (one, of_one): (Option<&Value>, &str),
    (other, of_other): (Option<&Value>, &str),
) -> Result<()> {
    match (plain(one), plain(other)) {
        (Some(a), Some(b)) if a != b => {
            let (a, b) = (told(Some(a)), told(Some(b)));
            let message = format!("the definition is {a} {of_one} and {b} {of_other}");
            Err(Error::new(ErrorKind::Mismatch, message).with("state", state))
        }
        _ => Ok(()),
    }
}

/// A definition in words.
fn told(definition: Option<&Value>) -> String {
    match (definition, windows_of(definition)) {
        (_, Some(windows)) => windows.to_string(),
        (Some(Value::String(words)), None) => words.clone(),
        (Some(other), None) => other.to_string(),
        (None, None) => "none".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn same(one: &Value, other: &Value) -> Result<()> {
        check_same("s", (Some(one), "here"), (Some(other), "there"))
    }

    #[test]
    fn a_need_that_is_known_changes_no_definition() {
        let [short, long] = [1, 2].map(|secs| Windows::session(Duration::from_secs(secs)));
        let [short, long] = [short, long].map(|windows| of_windows(&windows).unwrap());
        let needing = with_need(Some(&short), FINDS_TIMERS);
        same(&needing, &short).unwrap();
        same(&needing, &needing).unwrap();
        let error = same(&needing, &long).unwrap_err().to_string();
        assert!(!error.contains("needs") && error.contains("session"), "{error}");
    }

    /// So does a build that is older than the need.
    #[test]
    fn a_need_that_is_not_known_is_refused_by_name() {
        let windows = of_windows(&Windows::session(Duration::from_secs(1))).unwrap();
        let needing = with_need(Some(&windows), "wings");
        assert!(windows_of(Some(&needing)).is_none(), "a build without needs reads windows here");
        let error = same(&windows, &needing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("wings"), "{error}");
    }
}
