//! The list of all texts that the program's users read: settings, log lines, and other sentences.
//!
//! Settings come from their table. Log lines are the messages of `tracing::info!`, `warn!` and `error!`. Other sentences are
//! all further string literals of the product of three words or more: errors, help, answers. [`Scanner`] reads as much of
//! Rust as that needs: comments, literals, and the end of a macro call.

use kvorum_server::config::SETTINGS;
use std::fmt::Write as _;
use std::iter::Peekable;
use std::path::Path;
use std::str::Chars;

/// The macros whose messages are log lines.
const LEVELS: [&str; 3] = ["info", "warn", "error"];
/// The macros whose texts nobody reads unless the program has a bug, and attributes.
const UNREAD: [&str; 8] = [
    "assert",
    "assert_eq",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "unreachable",
    "debug",
    "trace",
];

/// A text of a source file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Text {
    /// The message of a log line.
    Log {
        /// `INFO`, `WARN` or `ERROR`.
        level: String,
        /// The message.
        message: String,
    },
    /// Another sentence.
    Sentence(String),
}

/// The whole list; `files` are the product's sources: their names and texts.
pub(crate) fn list<'a>(files: impl Iterator<Item = (&'a Path, &'a str)>) -> String {
    let mut page = String::from(
        "All texts that users of kvorum read: settings, log lines, other sentences (errors, help, answers).\n\
         Made from the sources; a test of `tidy` fails when it is out of date and says how to write it anew.\n\n\
         == Settings: name, default, help\n",
    );
    for setting in SETTINGS {
        let _ = writeln!(page, "--{} [{}]: {}", setting.name, setting.default, setting.help);
    }
    let (mut logs, mut sentences) = (String::new(), String::new());
    for (name, text) in files {
        let texts = texts(text);
        for (page, is_log) in [(&mut logs, true), (&mut sentences, false)] {
            let mut of_file =
                texts.iter().filter(|text| matches!(text, Text::Log { .. }) == is_log).peekable();
            if of_file.peek().is_some() {
                let _ = writeln!(page, "\n{}", name.display());
            }
            for text in of_file {
                let _ = match text {
                    Text::Log { level, message } => writeln!(page, "  {level} {message}"),
                    Text::Sentence(text) => writeln!(page, "  {}", text.replace('\n', "\\n")),
                };
            }
        }
    }
    page + "\n== Log lines: level, message\n" + &logs + "\n== Other sentences\n" + &sentences
}

/// The texts of a source file, in its order.
pub(crate) fn texts(source: &str) -> Vec<Text> {
    let mut scanner = Scanner { rest: source.chars().peekable() };
    let mut found = Vec::new();
    // The macro calls and attributes that are open: their names, and the depth of brackets inside each.
    let mut open: Vec<(String, usize)> = Vec::new();
    // The last three tokens, for `name ! (` and `# [`, and for `field = "text"`.
    let mut last: [Token; 3] = [Token::Mark(' '), Token::Mark(' '), Token::Mark(' ')];
    while let Some(token) = scanner.next_token() {
        match &token {
            Token::Mark(mark @ ('(' | '[' | '{')) => {
                let name = match (&last[1], &last[2]) {
                    (Token::Word(name), Token::Mark('!')) => Some(name.clone()),
                    (_, Token::Mark('#')) | (Token::Mark('#'), Token::Mark('!')) if *mark == '[' => {
                        Some("#".to_owned())
                    }
                    _ => None,
                };
                match (name, open.last_mut()) {
                    (Some(name), _) => open.push((name, 0)),
                    (None, Some((_, depth))) => *depth += 1,
                    (None, None) => {}
                }
            }
            Token::Mark(')' | ']' | '}') => match open.last_mut() {
                Some((_, 0)) => {
                    open.pop();
                }
                Some((_, depth)) => *depth -= 1,
                None => {}
            },
            Token::Literal(text) => {
                let (name, depth) = open.last().map_or(("", 0), |(name, depth)| (name.as_str(), *depth));
                let is_field = last[2] == Token::Mark('=');
                if LEVELS.contains(&name) && depth == 0 && !is_field {
                    found.push(Text::Log { level: name.to_uppercase(), message: text.clone() });
                } else if text.split_whitespace().count() >= 3
                    && text.contains(char::is_alphabetic)
                    && !open.iter().any(|(name, _)| UNREAD.contains(&name.as_str()) || name == "#")
                {
                    found.push(Text::Sentence(text.clone()));
                }
            }
            Token::Word(_) | Token::Mark(_) => {}
        }
        last.rotate_left(1);
        last[2] = token;
    }
    found
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Literal(String),
    Mark(char),
}

struct Scanner<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Scanner<'_> {
    fn next_token(&mut self) -> Option<Token> {
        loop {
            let first = self.rest.next()?;
            match first {
                '/' if self.rest.peek() == Some(&'/') => {
                    self.rest.by_ref().find(|next| *next == '\n');
                }
                '"' => return Some(Token::Literal(self.literal())),
                '\'' => self.character(),
                _ if first.is_whitespace() => {}
                _ if first.is_alphanumeric() || first == '_' => return Some(self.word(first)),
                _ => return Some(Token::Mark(first)),
            }
        }
    }

    fn word(&mut self, first: char) -> Token {
        let mut word = String::from(first);
        while let Some(next) = self.rest.next_if(|next| next.is_alphanumeric() || *next == '_') {
            word.push(next);
        }
        match (word.as_str(), self.rest.peek()) {
            ("r" | "br", Some('"' | '#')) => {
                let mut marks = 0;
                while self.rest.next_if_eq(&'#').is_some() {
                    marks += 1;
                }
                let end = format!("\"{}", "#".repeat(marks));
                let mut text = String::new();
                // A raw identifier, r#type, has no quotation mark here.
                if self.rest.next_if_eq(&'"').is_none() {
                    return Token::Word(word);
                }
                while !text.ends_with(&end) {
                    let Some(next) = self.rest.next() else { break };
                    text.push(next);
                }
                text.truncate(text.len().saturating_sub(end.len()));
                Token::Literal(text)
            }
            _ => Token::Word(word),
        }
    }

    /// The rest of a literal whose quotation mark was read.
    fn literal(&mut self) -> String {
        let mut text = String::new();
        while let Some(next) = self.rest.next() {
            match next {
                '"' => break,
                '\\' => match self.rest.next() {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    // The literal goes on at the next line's first letter.
                    Some('\n') => while self.rest.next_if(|next| next.is_whitespace()).is_some() {},
                    Some(escaped @ ('"' | '\\' | '\'')) => text.push(escaped),
                    Some(other) => text.extend(['\\', other]),
                    None => break,
                },
                _ => text.push(next),
            }
        }
        text
    }

    /// The rest of a character such as `'"'`, or of a lifetime.
    fn character(&mut self) {
        match self.rest.next() {
            Some('\\') => {
                self.rest.next();
                self.rest.by_ref().find(|next| *next == '\'');
            }
            Some(_) => {
                self.rest.next_if_eq(&'\'');
            }
            None => {}
        }
    }
}

/// The scanner finds what it is to find.
#[test]
fn texts_are_found() {
    let source = r##"
        // tracing::info!("in a comment")
        #[expect(clippy::x, reason = "an attribute is read by nobody")]
        fn f<'a>() {
            let quote = '"'; let escape = '\''; let raw = r#"a "raw" sentence here"#;
            tracing::warn!(node, mode = "a value with spaces", error = %e.to("some more words"), "the \"message\" \
                           goes on {raw}");
            assert!(a.b(), "an assertion is read by nobody");
            write!(f, "not a {word}: {}", "short")
        }
    "##;
    let log = |level: &str, message: &str| Text::Log { level: level.to_owned(), message: message.to_owned() };
    let sentence = |text: &str| Text::Sentence(text.to_owned());
    let expect = [
        sentence("a \"raw\" sentence here"),
        sentence("a value with spaces"),
        sentence("some more words"),
        log("WARN", "the \"message\" goes on {raw}"),
        sentence("not a {word}: {}"),
    ];
    assert_eq!(texts(source), expect);
}
