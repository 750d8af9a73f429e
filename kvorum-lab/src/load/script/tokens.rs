//! Words, strings, numbers and signs of a script, each with its line.

use super::ScriptError;

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or a keyword.
    Name(String),
    /// A string, without its quotes and escapes.
    Text(String),
    /// A whole number.
    Number(i64),
    /// A sign: `=`, `..`, `(`, and so on.
    Sign(&'static str),
    /// The end of the script.
    End,
}

impl Token {
    /// The token as a reader of a message knows it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Text(text) => format!("the string {text:?}"),
            Self::Number(number) => format!("`{number}`"),
            Self::Sign(sign) => format!("`{sign}`"),
            Self::End => "the end of the script".to_owned(),
        }
    }
}

/// Signs, the longer ones first.
const SIGNS: [&str; 27] = [
    "...", "..", "==", "~=", "<=", ">=", "=", "(", ")", "[", "]", "{", "}", ",", ".", ";", ":", "+", "-",
    "*", "/", "%", "^", "#", "<", ">", "&",
];

/// The tokens of `text` with their lines; the last is [`Token::End`].
///
/// # Errors
/// A character, number or string that is not Lua's, or not understood here.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, ScriptError> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let begun = rest;
        let fail = |why: String| ScriptError { line, why };
        if first.is_whitespace() {
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        } else if let Some(comment) = rest.strip_prefix("--") {
            rest = match comment.strip_prefix("[[") {
                Some(block) => block.split_once("]]").map_or("", |(_, behind)| behind),
                None => comment.find('\n').and_then(|end| comment.get(end..)).unwrap_or_default(),
            };
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (name, behind) = rest.split_at(end);
            found.push((line, Token::Name(name.to_owned())));
            rest = behind;
        } else if first.is_ascii_digit() {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            let (digits, behind) = rest.split_at(end);
            let number = digits.parse().map_err(|_| fail(format!("`{digits}` is no whole number")))?;
            found.push((line, Token::Number(number)));
            rest = behind;
        } else if first == '"' || first == '\'' {
            let (text, behind) = string(rest, first).map_err(fail)?;
            found.push((line, Token::Text(text)));
            rest = behind;
        } else if let Some(block) = rest.strip_prefix("[[") {
            let (text, behind) =
                block.split_once("]]").ok_or_else(|| fail("a string without its `]]`".to_owned()))?;
            // Lua leaves out a line break right behind the brackets.
            found.push((line, Token::Text(text.strip_prefix('\n').unwrap_or(text).to_owned())));
            rest = behind;
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| fail(format!("the character {first:?} is not understood")))?;
            found.push((line, Token::Sign(sign)));
            rest = rest.get(sign.len()..).unwrap_or_default();
        }
        let taken = begun.len() - rest.len();
        line += begun.get(..taken).unwrap_or_default().matches('\n').count();
    }
    found.push((line, Token::End));
    Ok(found)
}

/// The string at the beginning of `text`, which `quote` begins and ends, and what is behind it.
fn string(text: &str, quote: char) -> Result<(String, &str), String> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Ok((out, text.get(at + 1..).unwrap_or_default())),
            '\n' => break,
            '\\' => match chars.next().map(|(_, c)| c) {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some(same @ ('\\' | '"' | '\'')) => out.push(same),
                other => return Err(format!("the escape \\{} is not understood", other.unwrap_or(' '))),
            },
            c => out.push(c),
        }
    }
    Err(format!("a string without its {quote} on the same line"))
}
