//! A token: `ID.SECRET`, as a client sends it.
//!
//! The id is a name that is shown in logs and metrics. The secret is 256 random bits, shown once when it is made. Nodes
//! know only its SHA-256. A slow hash, as for passwords, would protect nothing: nobody can try 2^256 secrets.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// The longest id of a token, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// The longest secret that is looked at, in bytes. Those made here have 43.
pub const SECRET_BYTES_MAX: usize = 256;

/// The SHA-256 of a token's secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// The hash of `secret`, as it is written after the dot.
    pub fn of(secret: &str) -> Self {
        Self::of_bytes(secret.as_bytes())
    }

    /// The hash of `bytes`.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Whether it is the hash of `secret`. The time does not depend on where the two differ: `subtle` compares all bytes.
    pub fn is_of(&self, secret: &str) -> bool {
        self.0.ct_eq(&Self::of(secret).0).into()
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
        if pairs.len() != bytes.len() {
            return None;
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let digit = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
            *byte = (digit(*high)? << 4) | digit(*low)?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

/// The secret made of `random`.
pub fn secret_of(random: [u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(random)
}

/// The id made of `random`: 16 hexadecimal digits.
pub fn id_of(random: [u8; 8]) -> String {
    format!("{:016x}", u64::from_be_bytes(random))
}

/// Whether `text` can be the id of a token: 1 to 64 letters, digits, `-` and `_`.
pub fn is_id(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// The id and the secret of a token; none if `text` is not one.
pub fn split(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.split_once('.')?;
    let is_secret = (1..=SECRET_BYTES_MAX).contains(&secret.len())
        && secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    (is_id(id) && is_secret).then_some((id, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A secret matches its own hash only, and a hash is read as it was written. The digest is SHA-256's of the text.
    #[test]
    fn secrets_match_their_hash() {
        let secret = secret_of([0xfb; 32]);
        assert_eq!(secret.len(), 43);
        let hash = SecretHash::of(&secret);
        assert!(hash.is_of(&secret) && !hash.is_of("x") && !hash.is_of(""));
        assert_eq!(SecretHash::parse(&hash.to_string()), Some(hash));
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(SecretHash::of("abc").to_string(), abc);
        assert_eq!(SecretHash::parse(&abc.to_uppercase()), Some(SecretHash::of("abc")));
        for wrong in
            ["", "ba", &abc[1..], &format!("{abc}00"), &abc.replace('b', "g"), &abc.replace('b', "é")]
        {
            assert_eq!(SecretHash::parse(wrong), None, "{wrong}");
        }
        assert!(!format!("{:?}", SecretHash::of("abc")).contains("ba78"));
    }

    #[test]
    fn tokens_are_split_strictly() {
        let check = |text: &str, expect| assert_eq!(split(text), expect, "{text}");
        check("a.b", Some(("a", "b")));
        check("a-_9.B-_0", Some(("a-_9", "B-_0")));
        for wrong in ["", ".", "a.", ".b", "ab", "a.b.c", "a b.c", "a.b c", "é.b", "a.b=", "a.b\n"] {
            check(wrong, None);
        }
        let long = "x".repeat(ID_BYTES_MAX + 1);
        check(&format!("{long}.b"), None);
        check(&format!("a.{}", "x".repeat(SECRET_BYTES_MAX + 1)), None);
        assert_eq!(id_of([0, 1, 2, 3, 0xfc, 0xfd, 0xfe, 0xff]), "00010203fcfdfeff");
        assert!(is_id(&id_of([7; 8])));
    }
}
