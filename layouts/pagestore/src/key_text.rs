//! Names of keys in messages.

use std::any::Any;

use crate::Key;

/// Characters of a text that a message shows.
const SHOWN: usize = 64;

/// Returns a key's text for messages: numbers, strings and pairs of them as they are, others by
/// hash.
pub fn key_text<K: Key>(key: &K) -> String {
    of(key).unwrap_or_else(|| format!("with hash {:#018x}", key.key_hash()))
}

/// The text of one of the types that are shown.
fn of(key: &dyn Any) -> Option<String> {
    macro_rules! shown {
        ($($t:ty),* $(,)?) => {
            $(if let Some(key) = key.downcast_ref::<$t>() {
                return Some(key.to_string());
            })*
        };
    }
    shown!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, bool, char);
    if let Some(text) = key.downcast_ref::<String>() {
        let short: String = text.chars().take(SHOWN).collect();
        let more = if short.len() < text.len() { "..." } else { "" };
        return Some(format!("{short:?}{more}"));
    }
    macro_rules! pairs {
        ($($first:ty: $($second:ty),*;)*) => {
            $($(if let Some((first, second)) = key.downcast_ref::<($first, $second)>() {
                return Some(format!("({}, {})", of(first)?, of(second)?));
            })*)*
        };
    }
    pairs! {
        u32: u32, u64, String;
        u64: u32, u64, String;
        String: u32, u64, String;
    }
    if let Some(time) = key.downcast_ref::<crate::Time>() {
        return Some(time.0.to_string());
    }
    key.is::<()>().then(|| "()".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_so_that_they_are_found() {
        assert_eq!(key_text(&7u64), "7");
        assert_eq!(key_text(&-3i32), "-3");
        assert_eq!(key_text(&String::from("a \"b\"")), r#""a \"b\"""#);
        assert_eq!(key_text(&"é".repeat(100)), format!("\"{}\"...", "é".repeat(64)));
        assert_eq!(key_text(&(3u64, String::from("x"))), r#"(3, "x")"#);
        assert!(key_text(&vec![1u8, 2]).starts_with("with hash 0x"));
    }
}
