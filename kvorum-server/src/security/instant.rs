//! Instants in the file of tokens: TOML's date and time with an offset, such as `2027-01-31T12:00:00Z`.

use kvorum_core::UnixMillis;
use toml::value::{Date, Datetime, Offset, Time};

/// The last millisecond whose year has four digits.
const MILLIS_MAX: u64 = 253_402_300_799_999;
const DAY_MILLIS: u64 = 24 * 60 * 60 * 1000;

/// The instant that `at` names; none if it lacks its date, time or offset, or is before 1970.
pub(super) fn of(at: &Datetime) -> Option<UnixMillis> {
    let (date, time) = (at.date?, at.time?);
    let offset_minutes = match at.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let (hour, minute, second) = (time.hour, time.minute, time.second.unwrap_or(0));
    let seconds = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second) - offset_minutes * 60;
    let millis = seconds * 1000 + i64::from(time.nanosecond.unwrap_or(0) / 1_000_000);
    let days = days_before(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    u64::try_from(days * DAY_MILLIS.cast_signed() + millis).ok().map(UnixMillis)
}

/// `at` in whole seconds and in UTC; later instants become the end of the year 9999.
pub(super) fn write(at: UnixMillis) -> Datetime {
    let millis = at.0.min(MILLIS_MAX);
    let (day, seconds) = (millis / DAY_MILLIS, millis % DAY_MILLIS / 1000);
    let (year, month, date) = date_of(day);
    // Within a day and four-digit years, every part fits its field.
    let small = |number: u64| u8::try_from(number).unwrap_or(0);
    Datetime {
        date: Some(Date { year: u16::try_from(year).unwrap_or(0), month: small(month), day: small(date) }),
        time: Some(Time {
            hour: small(seconds / 3600),
            minute: small(seconds / 60 % 60),
            second: Some(small(seconds % 60)),
            nanosecond: None,
        }),
        offset: Some(Offset::Z),
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March here, so that a leap day is the last
/// of its year.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    // From March on, the months' lengths repeat with 153 days in five months.
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// The year, month and day that are `days` after 1970-01-01.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (0, month + 3) } else { (1, month - 9) };
    (era * 400 + year_of_era + year, month, day)
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
        assert_eq!(write(UnixMillis(u64::MAX)).to_string(), "9999-12-31T23:59:59Z");
    }

    proptest! {
        /// What is written is read again, to the second.
        #[test]
        fn instants_survive_being_written(millis in 0..=MILLIS_MAX) {
            let text = write(UnixMillis(millis)).to_string();
            prop_assert_eq!(parsed(&text), Some(millis / 1000 * 1000), "{}", text);
        }
    }
}
