//! What the programs of `.ci/weight` share.
//!
//! The library has no state types of its own, so that each program compiles all that its types cost.

use std::path::PathBuf;

use alluvium::{AppendLog, Error, Key, List, Map, Result, State, Store};

/// The directory that a program keeps its store in: its first argument.
pub fn directory() -> PathBuf {
    std::env::args_os().nth(1).unwrap_or_else(|| "alluvium-weight".into()).into()
}

/// Opens a map of `K` and `V` and makes each call of the record path once, and `for_each`.
///
/// # Errors
/// Those of the calls.
pub fn exercise<K: Key + Clone, V: State + Clone + PartialEq>(
    store: &Store,
    name: &str,
    key: K,
    value: V,
) -> Result<u64> {
    let mut map: Map<K, V> = store.map::<K, V>(name).open()?;
    map.put(key.clone(), value.clone()).map_err(Error::from)?;
    let is_there = map.get(&key)?.is_some_and(|found| *found == value);
    map.update(&key, || value.clone(), |found| *found = value.clone())?;
    let batch = [key.clone(), key.clone()];
    map.update_batch(&batch, |key| key, |_| value.clone(), |_, found| *found = value.clone())
        .map_err(|failed| failed.error)?;
    let mut visited = 0;
    map.for_each(|_, found| {
        visited += u64::from(*found == value);
        Ok(())
    })?;
    let was_there = map.take(&key)?.is_some();
    Ok(visited + u64::from(is_there) + u64::from(was_there))
}

/// Opens lists of `K` and `E` in an append log and makes each call of the record path once, and `clear`.
///
/// # Errors
/// Those of the calls.
pub fn exercise_lists<K: Key + Clone, E: State + Clone + PartialEq>(
    store: &Store,
    name: &str,
    key: K,
    element: E,
) -> Result<u64> {
    let layout = AppendLog::new();
    let mut lists: List<K, E, AppendLog> = store.list::<K, E>(name).layout(layout).open()?;
    lists.append(&key, element.clone()).map_err(Error::from)?;
    let mut batch = vec![(key.clone(), element.clone()), (key.clone(), element.clone())];
    lists.append_batch(&mut batch)?;
    let mut alike = 0;
    lists.read(&key, |found| {
        alike += u64::from(*found == element);
        Ok(())
    })?;
    lists.for_each(|_, found| {
        alike += u64::from(*found == element);
        Ok(())
    })?;
    lists.clear(&key)?;
    Ok(alike)
}
