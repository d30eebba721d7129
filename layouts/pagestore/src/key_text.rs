//! Keys as text: in messages, which shorten it, and in traces, which need all of it in one word.

use std::any::Any;
use std::io::Write;

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

/// Appends a key to `to` as one word of printable characters: numbers as they are, strings with
/// `%xx` for bytes that a word cannot have, pairs of them with a comma. Two keys of one type have
/// two words. Returns `false`, with `to` as it was, for other types.
pub fn key_word(key: &dyn Any, to: &mut Vec<u8>) -> bool {
    macro_rules! shown {
        ($($t:ty),* $(,)?) => {
            $(if let Some(key) = key.downcast_ref::<$t>() {
                // Writing to a vector cannot fail.
                let _ = write!(to, "{key}");
                return true;
            })*
        };
    }
    shown!(u64, u32, i64, i32, u8, u16, u128, usize, i8, i16, i128, isize, bool);
    if let Some(text) = key.downcast_ref::<String>() {
        push_text(text, to);
        return true;
    }
    macro_rules! pairs {
        ($($first:ty: $($second:ty),*;)*) => {
            $($(if let Some((first, second)) = key.downcast_ref::<($first, $second)>() {
                let begun = to.len();
                let first = key_word(first, to);
                to.push(b',');
                let whole = first && key_word(second, to);
                if !whole {
                    to.truncate(begun);
                }
                return whole;
            })*)*
        };
    }
    pairs! {
        u32: u32, u64, String;
        u64: u32, u64, String;
        String: u32, u64, String;
    }
    if let Some(time) = key.downcast_ref::<crate::Time>() {
        return key_word(&time.0, to);
    }
    if key.is::<()>() {
        to.extend_from_slice(b"()");
        return true;
    }
    false
}

/// A text without what separates words, keys of a pair, or marks a hash. The empty one is `%`.
fn push_text(text: &str, to: &mut Vec<u8>) {
    if text.is_empty() {
        to.push(b'%');
    }
    for byte in text.bytes() {
        match byte {
            b'%' | b',' | b'#' | b'@' => {
                let _ = write!(to, "%{byte:02x}");
            }
            _ if byte.is_ascii_graphic() => to.push(byte),
            _ => {
                let _ = write!(to, "%{byte:02x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_no_spaces_and_are_all_different() {
        let word = |key: &dyn Any| {
            let mut to = b"put ".to_vec();
            let known = key_word(key, &mut to);
            (known, String::from_utf8(to).unwrap())
        };
        let known = |text: &str| (true, format!("put {text}"));
        assert_eq!(word(&7u64), known("7"));
        assert_eq!(word(&-3i32), known("-3"));
        assert_eq!(word(&()), known("()"));
        assert_eq!(word(&String::new()), known("%"));
        assert_eq!(word(&String::from("a b,%\n")), known("a%20b%2c%25%0a"));
        assert_eq!(word(&(3u64, String::from("x,y"))), known("3,x%2cy"));
        assert_eq!(word(&(String::from("x,y"), 3u32)), known("x%2cy,3"));
        assert_eq!(word(&"é".repeat(100)), known(&"%c3%a9".repeat(100)));
        assert_eq!(word(&vec![1u8, 2]), (false, "put ".into()));
    }

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
