//! What a state's answers depend on beside its types: recorded in checkpoints and canonical files,
//! compared when the state is opened, restored, imported and moved.
//!
//! What it keeps true: a state goes on under the definition it was made with, or under one of which it
//! is known that the answers stay right. A state without a recorded definition, which a build from
//! before there were any wrote, is not checked. Widths of time-ordered maps, and the clock of a time to
//! live, are in the name of the primitive.

use alluvium_pagestore::{Error, ErrorKind, Result, StateManifest};
use serde::Deserialize;
use serde_json::Value;

use crate::api::windows::Windows;

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
    if stored.definition.is_none() || stored.definition == asked.definition {
        return Ok(());
    }
    let (before, after) = (stored.definition.as_ref(), asked.definition.as_ref());
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
    match (one, other) {
        (Some(a), Some(b)) if a != b => {
            let (a, b) = (told(one), told(other));
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
