//! Instants in the file of tokens: TOML's date and time with an offset, such as `2027-01-31T12:00:00Z`.

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use kvorum_core::UnixMillis;
use toml::value::{Datetime, Offset};

/// The last millisecond whose year has four digits.
const MILLIS_MAX: u64 = 253_402_300_799_999;
/// The beginning of Unix time. Instants are counted from it in civil time, because [`jiff::Timestamp`] ends a day before
/// the year 9999 does.
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// The instant that `at` names; none if it lacks its date, time or offset, or is before 1970.
pub(super) fn of(at: &Datetime) -> Option<UnixMillis> {
    let offset_minutes = match at.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    at.date.and(at.time)?;
    let local: DateTime = Datetime { offset: None, ..*at }.to_string().parse().ok()?;
    let since = local.duration_since(EPOCH) - SignedDuration::from_mins(offset_minutes);
    u64::try_from(since.as_millis()).ok().map(UnixMillis)
}

/// `at` in whole seconds and in UTC, as RFC 3339 and TOML write it; later instants become the end of the year 9999.
pub(super) fn text(at: UnixMillis) -> String {
    let since = SignedDuration::from_secs((at.0.min(MILLIS_MAX) / 1000).cast_signed());
    format!("{}Z", EPOCH.saturating_add(since))
}

/// `at` as [`text`] writes it, as a value of TOML.
pub(super) fn write(at: UnixMillis) -> Option<Datetime> {
    text(at).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Option<u64> {
        of(&text.parse().unwrap()).map(|at| at.0)
    }

    #[test]
    fn instants_are_read_with_their_offset() {
        assert_eq!(parsed("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parsed("2026-11-22T02:07:08.999Z"), Some(1_795_313_228_999));
        assert_eq!(parsed("2026-11-22T04:37:08+02:30"), Some(1_795_313_228_000));
        assert_eq!(parsed("2000-02-29T00:00:00Z"), Some(951_782_400_000));
        assert_eq!(parsed("9999-12-31T23:59:59.999Z"), Some(MILLIS_MAX));
        assert_eq!(parsed("1970-01-01T00:00:00+00:01"), None);
        for incomplete in ["2026-11-22", "02:07:08", "2026-11-22T02:07:08"] {
            assert_eq!(parsed(incomplete), None, "{incomplete}");
        }
        assert_eq!(text(UnixMillis(u64::MAX)), "9999-12-31T23:59:59Z");
    }

    proptest! {
        /// What is written is read again, to the second.
        #[test]
        fn instants_survive_being_written(millis in 0..=MILLIS_MAX) {
            let text = write(UnixMillis(millis)).unwrap().to_string();
            prop_assert_eq!(parsed(&text), Some(millis / 1000 * 1000), "{}", text);
        }
    }
}
