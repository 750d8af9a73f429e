//! Conditions of requests (RFC 9110, section 13), and the operations whose result depends on the value before.
//!
//! A condition is judged on a key's current `ETag`, or on there being no value. `ETag`s are versions.

use crate::version::Version;
use std::fmt;

/// Tags that one list may have.
pub const TAGS_LEN_MAX: usize = 64;

/// Which `ETag`s a precondition header names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tags {
    /// `*`: any current value.
    Any,
    /// A list of tags.
    Listed {
        /// The tags that are versions and are strong.
        strong: Vec<Version>,
        /// The tags that are versions and are weak. They match in a weak comparison only.
        weak: Vec<Version>,
    },
}

/// A header is no `*` and no list of entity tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagsError {
    /// It breaks the grammar at this byte.
    Malformed {
        /// Offset of the first byte that does not fit.
        at: usize,
    },
    /// It has no tag.
    Empty,
    /// It has more than [`TAGS_LEN_MAX`] tags.
    TooMany,
}

impl fmt::Display for TagsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { at } => {
                write!(f, "not a list of entity tags from byte {at} on; allowed are * and \"TAG\", \"TAG\"")
            }
            Self::Empty => f.write_str("no entity tag; allowed are * and \"TAG\", \"TAG\""),
            Self::TooMany => write!(f, "more than {TAGS_LEN_MAX} entity tags"),
        }
    }
}

impl std::error::Error for TagsError {}

impl Tags {
    /// Parses the value of `If-Match` or `If-None-Match`. Several header lines are joined by commas before.
    ///
    /// A well-formed tag that is no version of this store is valid, and matches nothing.
    ///
    /// # Errors
    /// [`TagsError`]; the request is malformed.
    pub fn parse(text: &[u8]) -> Result<Self, TagsError> {
        if text.trim_ascii() == b"*" {
            return Ok(Self::Any);
        }
        let (mut strong, mut weak, mut count) = (Vec::new(), Vec::new(), 0);
        let mut rest = text;
        loop {
            rest = rest.trim_ascii_start();
            let at = text.len() - rest.len();
            // A list may have empty elements (RFC 9110, section 5.6.1.2).
            if let Some(after) = rest.strip_prefix(b",") {
                rest = after;
                continue;
            }
            if rest.is_empty() {
                break;
            }
            let (is_weak, quoted) = match rest.strip_prefix(b"W/") {
                Some(quoted) => (true, quoted),
                None => (false, rest),
            };
            let (tag, after) = opaque_tag(quoted).ok_or(TagsError::Malformed { at })?;
            count += 1;
            if count > TAGS_LEN_MAX {
                return Err(TagsError::TooMany);
            }
            if let Some(version) = std::str::from_utf8(tag).ok().and_then(|tag| tag.parse().ok()) {
                if is_weak { weak.push(version) } else { strong.push(version) }
            }
            rest = after.trim_ascii_start();
            if !rest.is_empty() && !rest.starts_with(b",") {
                return Err(TagsError::Malformed { at: text.len() - rest.len() });
            }
        }
        if count == 0 { Err(TagsError::Empty) } else { Ok(Self::Listed { strong, weak }) }
    }

    /// Whether `current` is named, by strong comparison: a weak tag never matches.
    fn names_strongly(&self, current: Option<Version>) -> bool {
        match (self, current) {
            (_, None) => false,
            (Self::Any, Some(_)) => true,
            (Self::Listed { strong, .. }, Some(current)) => strong.contains(&current),
        }
    }

    /// Whether `current` is named, by weak comparison.
    fn names_weakly(&self, current: Option<Version>) -> bool {
        match (self, current) {
            (Self::Listed { weak, .. }, Some(current)) if weak.contains(&current) => true,
            _ => self.names_strongly(current),
        }
    }
}

/// The text between the quotes at the start of `quoted`, and what follows them.
fn opaque_tag(quoted: &[u8]) -> Option<(&[u8], &[u8])> {
    let tag = quoted.strip_prefix(b"\"")?;
    let end = tag.iter().position(|byte| *byte == b'"')?;
    let (tag, after) = (tag.get(..end)?, tag.get(end + 1..)?);
    // RFC 9110, section 8.8.3: visible characters but for the quote, and bytes above ASCII.
    let is_tag_byte = |byte: &u8| *byte == 0x21 || (0x23..=0x7e).contains(byte) || *byte >= 0x80;
    tag.iter().all(is_tag_byte).then_some((tag, after))
}

/// The preconditions of a request, each absent or given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Condition {
    /// `If-Match`: the current value must be one of these.
    pub if_match: Option<Tags>,
    /// `If-None-Match`: the current value must be none of these.
    pub if_none_match: Option<Tags>,
}

/// The answer to a reading request's preconditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadVerdict {
    /// The request is answered as if it had none.
    Proceed,
    /// 304: the client has the current value.
    NotModified,
    /// 412.
    Failed,
}

impl Condition {
    /// Whether there is no condition.
    pub fn is_none(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    /// Whether a write may be done at `current`, the `ETag` of the key's value; none where there is no value.
    ///
    /// Both headers must hold (RFC 9110, section 13.2.2). Of `If-None-Match` the comparison is the weak one: a weak tag of the
    /// current value makes it fail, as the value is then known to the client.
    pub fn holds(&self, current: Option<Version>) -> bool {
        let is_matched = self.if_match.as_ref().is_none_or(|tags| tags.names_strongly(current));
        is_matched && !self.if_none_match.as_ref().is_some_and(|tags| tags.names_weakly(current))
    }

    /// How a GET or HEAD of a key whose value has the `ETag` `current` is answered. `If-Match` comes first.
    pub fn for_read(&self, current: Option<Version>) -> ReadVerdict {
        if self.if_match.as_ref().is_some_and(|tags| !tags.names_strongly(current)) {
            return ReadVerdict::Failed;
        }
        if self.if_none_match.as_ref().is_some_and(|tags| tags.names_weakly(current)) {
            return ReadVerdict::NotModified;
        }
        ReadVerdict::Proceed
    }
}

/// Why an operation cannot be done on the value that is there. Nothing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyError {
    /// The value is not the decimal text of a 64-bit signed integer.
    NotANumber,
    /// The result would be outside of 64 bits.
    Overflow,
    /// The value would become too long.
    TooLong {
        /// Its length, in bytes.
        bytes: usize,
        /// The longest value allowed, in bytes.
        bytes_max: usize,
    },
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber => {
                f.write_str("the value is not a decimal number of 64 bits; nothing was added")
            }
            Self::Overflow => f.write_str("the sum would be outside of 64 bits; nothing was added"),
            Self::TooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "the value would have {bytes} bytes; at most {bytes_max} are allowed, nothing was appended"
                )
            }
        }
    }
}

impl std::error::Error for ApplyError {}

/// The sum of `addend` and the number that `value` is in decimal text; an absent value counts as 0.
///
/// A number has no more than a minus sign before its digits, and no more bytes than the longest 64-bit one. So every
/// value that [`add`] made is a number, and a text that merely begins with digits is none.
///
/// # Errors
/// [`ApplyError::NotANumber`] and [`ApplyError::Overflow`].
pub fn add(value: Option<&[u8]>, addend: i64) -> Result<i64, ApplyError> {
    let number = match value {
        None => 0,
        Some(text) => number(text).ok_or(ApplyError::NotANumber)?,
    };
    number.checked_add(addend).ok_or(ApplyError::Overflow)
}

/// The number that `text` is in decimal.
fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// `value` with `suffix` behind it; an absent value counts as empty.
///
/// # Errors
/// [`ApplyError::TooLong`] when the result would have more than `bytes_max` bytes.
pub fn append(value: Option<&[u8]>, suffix: &[u8], bytes_max: usize) -> Result<Vec<u8>, ApplyError> {
    let value = value.unwrap_or_default();
    let bytes = value.len().saturating_add(suffix.len());
    if bytes > bytes_max {
        return Err(ApplyError::TooLong { bytes, bytes_max });
    }
    Ok([value, suffix].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v(clock: u64) -> Version {
        Version::from_words(clock, 7)
    }

    fn tags(text: &str) -> Tags {
        Tags::parse(text.as_bytes()).unwrap()
    }

    /// The grammar of entity tags, and its ends.
    #[test]
    fn lists_are_parsed() {
        let listed = |strong: &[Version], weak: &[Version]| Tags::Listed {
            strong: strong.to_vec(),
            weak: weak.to_vec(),
        };
        let check = |text: &str, expect| assert_eq!(Tags::parse(text.as_bytes()), expect, "{text}");
        let (one, two) = (format!("\"{}\"", v(1)), format!("\"{}\"", v(2)));
        check("*", Ok(Tags::Any));
        check(" * ", Ok(Tags::Any));
        check(&one, Ok(listed(&[v(1)], &[])));
        check(&format!("{one} ,{two}"), Ok(listed(&[v(1), v(2)], &[])));
        check(&format!(", {one},,\t{two},"), Ok(listed(&[v(1), v(2)], &[])));
        check(&format!("W/{one}, {two}"), Ok(listed(&[v(2)], &[v(1)])));
        check("\"of another store\"", Err(TagsError::Malformed { at: 0 }));
        check("\"of-another-store\"", Ok(listed(&[], &[])));
        check("\"\"", Ok(listed(&[], &[])));
        check("", Err(TagsError::Empty));
        check(" , ", Err(TagsError::Empty));
        check("abc", Err(TagsError::Malformed { at: 0 }));
        check("\"open", Err(TagsError::Malformed { at: 0 }));
        check("w/\"a\"", Err(TagsError::Malformed { at: 0 }));
        check("W/ \"a\"", Err(TagsError::Malformed { at: 0 }));
        check("\"a\" \"b\"", Err(TagsError::Malformed { at: 4 }));
        check("*, \"a\"", Err(TagsError::Malformed { at: 0 }));
        check("\"a\", *", Err(TagsError::Malformed { at: 5 }));
        check(&vec!["\"a\""; TAGS_LEN_MAX].join(","), Ok(listed(&[], &[])));
        check(&vec!["\"a\""; TAGS_LEN_MAX + 1].join(","), Err(TagsError::TooMany));
    }

    /// What each condition says of an absent value, of a named one and of another one.
    #[test]
    fn conditions_hold_as_the_standard_says() {
        let one = format!("\"{}\"", v(1));
        let weak = format!("W/\"{}\"", v(1));
        let current = [None, Some(v(1)), Some(v(2))];
        let check = |if_match: Option<&str>, if_none_match: Option<&str>, expect: [bool; 3]| {
            let condition =
                Condition { if_match: if_match.map(tags), if_none_match: if_none_match.map(tags) };
            assert_eq!(
                current.map(|current| condition.holds(current)),
                expect,
                "{if_match:?} {if_none_match:?}"
            );
        };
        check(None, None, [true, true, true]);
        check(Some("*"), None, [false, true, true]);
        check(Some(&one), None, [false, true, false]);
        check(Some(&weak), None, [false, false, false]);
        check(None, Some("*"), [true, false, false]);
        check(None, Some(&one), [true, false, true]);
        check(None, Some(&weak), [true, false, true]);
        check(Some("*"), Some(&one), [false, false, true]);
        check(Some("*"), Some("*"), [false, false, false]);
    }

    /// A read: `If-Match` decides first, then `If-None-Match`.
    #[test]
    fn reads_are_judged_in_order() {
        let one = format!("\"{}\"", v(1));
        let condition = |if_match: &str, if_none_match: &str| Condition {
            if_match: (!if_match.is_empty()).then(|| tags(if_match)),
            if_none_match: (!if_none_match.is_empty()).then(|| tags(if_none_match)),
        };
        let check = |condition: Condition, current, expect| {
            assert_eq!(condition.for_read(current), expect, "{condition:?}");
        };
        check(Condition::default(), None, ReadVerdict::Proceed);
        check(condition("", &one), Some(v(1)), ReadVerdict::NotModified);
        check(condition("", "*"), Some(v(1)), ReadVerdict::NotModified);
        check(condition("", "*"), None, ReadVerdict::Proceed);
        check(condition("", &format!("W/{one}")), Some(v(1)), ReadVerdict::NotModified);
        check(condition(&one, ""), Some(v(2)), ReadVerdict::Failed);
        check(condition("*", ""), None, ReadVerdict::Failed);
        check(condition(&one, &one), Some(v(1)), ReadVerdict::NotModified);
        check(condition(&one, &one), Some(v(2)), ReadVerdict::Failed);
    }

    /// Numbers, and texts that look like numbers.
    #[test]
    fn only_plain_decimal_text_is_a_number() {
        let check = |value: &str, expect| assert_eq!(add(Some(value.as_bytes()), 1), expect, "{value}");
        assert_eq!(add(None, -5), Ok(-5));
        check("41", Ok(42));
        check("-1", Ok(0));
        check("007", Ok(8));
        check("9223372036854775807", Err(ApplyError::Overflow));
        for text in ["", "-", "+1", "1 ", " 1", "1.0", "0x1", "1e3", "--1", "9223372036854775808", "١"] {
            check(text, Err(ApplyError::NotANumber));
        }
        assert_eq!(add(Some(b"-9223372036854775808"), -1), Err(ApplyError::Overflow));
        assert_eq!(add(Some(&[0xff]), 1), Err(ApplyError::NotANumber));
    }

    proptest! {
        /// A sum is a number again: additions in any order give the same value as their sum.
        #[test]
        fn sums_add_up(start: i32, addends in prop::collection::vec(any::<i32>(), 0..20)) {
            let mut value = start.to_string();
            for addend in &addends {
                value = add(Some(value.as_bytes()), i64::from(*addend)).unwrap().to_string();
            }
            let sum = addends.iter().fold(i64::from(start), |sum, addend| sum + i64::from(*addend));
            prop_assert_eq!(value, sum.to_string());
        }

        /// A sum is exact, or there is none.
        #[test]
        fn sums_are_exact(value: i64, addend: i64) {
            let expect = value.checked_add(addend).ok_or(ApplyError::Overflow);
            prop_assert_eq!(add(Some(value.to_string().as_bytes()), addend), expect);
        }

        /// An append keeps both parts, up to the bound and not a byte beyond.
        #[test]
        fn appends_are_bounded(value in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), suffix: [u8; 5]) {
            let len = value.as_ref().map_or(0, Vec::len) + suffix.len();
            let appended = append(value.as_deref(), &suffix, len).unwrap();
            prop_assert!(appended.ends_with(&suffix));
            prop_assert_eq!(appended.len(), len);
            prop_assert!(appended.starts_with(value.as_deref().unwrap_or_default()));
            let refused = append(value.as_deref(), &suffix, len - 1);
            prop_assert_eq!(refused, Err(ApplyError::TooLong { bytes: len, bytes_max: len - 1 }));
        }

        /// Any bytes parse or are refused, without a panic; what is printed is understood.
        #[test]
        fn any_header_is_judged(bytes in prop::collection::vec(any::<u8>(), 0..40), clocks in prop::collection::vec(0..9u64, 1..5)) {
            let _ = Tags::parse(&bytes);
            let text: Vec<String> = clocks.iter().map(|clock| format!("\"{}\"", v(*clock))).collect();
            let strong = clocks.iter().map(|clock| v(*clock)).collect();
            prop_assert_eq!(Tags::parse(text.join(", ").as_bytes()), Ok(Tags::Listed { strong, weak: Vec::new() }));
        }

        /// `If-Match` and `If-None-Match` of the same strong tags never hold together, and one of them does where there
        /// is a value.
        #[test]
        fn the_two_headers_are_opposites(clock in 0..4u64, named in prop::collection::vec(0..4u64, 1..3)) {
            let tags = Tags::Listed { strong: named.iter().map(|clock| v(*clock)).collect(), weak: Vec::new() };
            let matched = Condition { if_match: Some(tags.clone()), if_none_match: None };
            let unmatched = Condition { if_match: None, if_none_match: Some(tags) };
            prop_assert_ne!(matched.holds(Some(v(clock))), unmatched.holds(Some(v(clock))));
        }
    }
}
