//! A decoded value, and its JSON.

use std::fmt::Write;

/// What an archive holds.
#[derive(Clone, Debug, PartialEq)]
pub enum ArchiveValue {
    /// Nothing: a unit, or no value.
    Null,
    /// A truth.
    Bool(bool),
    /// A number as JSON has it. What JSON has no number for (not a number, infinite) is a `Null`.
    Number(String),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<ArchiveValue>),
    /// Named values in order.
    Fields(Vec<(String, ArchiveValue)>),
    /// Keys with values.
    Map(Vec<(ArchiveValue, ArchiveValue)>),
    /// Bytes of a type that is not decoded.
    Bytes {
        /// The type's description.
        type_text: String,
        /// As they are stored.
        bytes: Vec<u8>,
    },
}

impl ArchiveValue {
    /// The value as JSON, as serde would write it: on one line.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            ArchiveValue::Null => out.push_str("null"),
            ArchiveValue::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            ArchiveValue::Number(number) => out.push_str(number),
            ArchiveValue::Text(text) => write_text(out, text),
            ArchiveValue::List(values) => {
                write_all(out, "[]", values, |out, value| value.write(out))
            }
            ArchiveValue::Fields(fields) => write_all(out, "{}", fields, |out, (name, value)| {
                write_text(out, name);
                out.push(':');
                value.write(out);
            }),
            ArchiveValue::Map(entries) => {
                match entries.iter().map(|(key, _)| key.as_name()).collect() {
                    Some(names) => {
                        let names: Vec<String> = names;
                        let entries: Vec<_> = names.iter().zip(entries).collect();
                        write_all(out, "{}", &entries, |out, (name, (_, value))| {
                            write_text(out, name);
                            out.push(':');
                            value.write(out);
                        });
                    }
                    None => write_all(out, "[]", entries, |out, (key, value)| {
                        out.push('[');
                        key.write(out);
                        out.push(',');
                        value.write(out);
                        out.push(']');
                    }),
                }
            }
            ArchiveValue::Bytes { type_text, bytes } => {
                out.push_str("{\"type\":");
                write_text(out, type_text);
                out.push_str(",\"hex\":\"");
                for byte in bytes {
                    let _ = write!(out, "{byte:02x}");
                }
                out.push_str("\"}");
            }
        }
    }

    /// The value as the name in a JSON object, if it can be one.
    fn as_name(&self) -> Option<String> {
        match self {
            ArchiveValue::Text(text) => Some(text.clone()),
            ArchiveValue::Number(_) | ArchiveValue::Bool(_) => Some(self.to_json()),
            _ => None,
        }
    }
}

fn write_all<T>(
    out: &mut String,
    brackets: &str,
    parts: &[T],
    mut write: impl FnMut(&mut String, &T),
) {
    out.push_str(&brackets[..1]);
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(out, part);
    }
    out.push_str(&brackets[1..]);
}

fn write_text(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
