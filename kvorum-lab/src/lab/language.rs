//! The languages of a report, and how each writes numbers.

use clap::ValueEnum;

/// A report's language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Language {
    /// English
    #[default]
    En,
    /// Russian
    Ru,
}

/// The dimension of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Nanoseconds.
    Nanos,
    /// Microseconds of CPU time.
    CpuMicros,
    /// Bytes.
    Bytes,
}

impl Language {
    /// The code of the page's language.
    pub const fn code(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Ru => "ru",
        }
    }

    /// `value` with `decimals` digits behind the sign, and separated thousands.
    pub fn number(self, value: f64, decimals: usize) -> String {
        let text = format!("{:.decimals$}", value.abs());
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let (thousands, point) = match self {
            Self::En => (',', '.'),
            Self::Ru => ('\u{a0}', ','),
        };
        let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        let mut out = String::from(if value < 0.0 && !is_zero { "\u{2212}" } else { "" });
        // Russian groups from five digits on.
        let is_grouped = self == Self::En || whole.len() > 4;
        for (place, digit) in whole.char_indices() {
            if is_grouped && place > 0 && (whole.len() - place).is_multiple_of(3) {
                out.push(thousands);
            }
            out.push(digit);
        }
        if !fraction.is_empty() {
            out.push(point);
            out.push_str(fraction);
        }
        out
    }

    /// `value` with about three significant digits.
    pub fn short(self, value: f64) -> String {
        let decimals = match value.abs() {
            zero if zero < 1e-9 => 0,
            small if small < 0.1 => 3,
            middle if middle < 9.995 => 2,
            large if large < 99.95 => 1,
            _ => 0,
        };
        self.number(value, decimals)
    }

    /// `value` of `unit` as a number and its unit, which is empty for a count.
    pub fn quantity(self, unit: Unit, value: f64) -> (String, &'static str) {
        let is_english = self == Self::En;
        let name = |english: &'static str, russian: &'static str| if is_english { english } else { russian };
        match unit {
            Unit::Count => (self.number(value, 0), ""),
            Unit::CpuMicros => (self.short(value), name("µs", "мкс")),
            Unit::Nanos => match value.abs() {
                tiny if tiny < 999.5 => (self.short(value), name("ns", "нс")),
                small if small < 999.5e3 => (self.short(value / 1e3), name("µs", "мкс")),
                middle if middle < 999.5e6 => (self.short(value / 1e6), name("ms", "мс")),
                _ => (self.short(value / 1e9), name("s", "с")),
            },
            Unit::Bytes => match value.abs() {
                tiny if tiny < 1_000.0 => (self.short(value), name("B", "Б")),
                small if small < 1_000.0 * 1024.0 => (self.short(value / 1024.0), name("KiB", "КиБ")),
                middle if middle < 1_000.0 * 1_048_576.0 => {
                    (self.short(value / 1_048_576.0), name("MiB", "МиБ"))
                }
                _ => (self.short(value / 1_073_741_824.0), name("GiB", "ГиБ")),
            },
        }
    }

    /// `value` of `unit` as one text.
    pub fn amount(self, unit: Unit, value: f64) -> String {
        let (number, unit) = self.quantity(unit, value);
        if unit.is_empty() { number } else { format!("{number}\u{a0}{unit}") }
    }

    /// A share as per cent, without a sign: `8 %`, `0.3 %`.
    pub fn percent(self, share: f64) -> String {
        let decimals = usize::from(share.abs() < 0.0995);
        format!("{}\u{a0}%", self.number(share * 100.0, decimals))
    }

    /// A ratio as a change in per cent, or as a factor where per cent would be hard to read: `+55 %`, `×9.0`.
    pub fn change(self, ratio: f64) -> String {
        if !(READABLE.0..READABLE.1).contains(&ratio) {
            return format!("×{}", self.short(ratio));
        }
        let sign = if ratio >= 1.0 { "+" } else { "" };
        format!("{sign}{}", self.percent(ratio - 1.0))
    }

    /// An interval of ratios: in per cent, the second with its sign; or as factors.
    pub fn interval(self, (low, high): (f64, f64)) -> (String, String) {
        let is_percent = [low, high].iter().all(|end| (READABLE.0..READABLE.1).contains(end));
        if !is_percent {
            return (format!("×{}", self.short(low)), format!("×{}", self.short(high)));
        }
        let decimals = usize::from((high - low).abs() < 0.05);
        let end = |ratio: f64| {
            let value = (ratio - 1.0) * 100.0;
            let sign = if value > 0.0 { "+" } else { "" };
            format!("{sign}{}", self.number(value, decimals))
        };
        (end(low), format!("{}\u{a0}%", end(high)))
    }
}

/// The ratios that are said in per cent.
const READABLE: (f64, f64) = (0.2, 4.0);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each language has its own digits, units and signs. Method: tables.
    #[test]
    fn numbers_are_those_of_the_language() {
        let plain = |text: String| text.replace('\u{a0}', " ");
        let amount = |unit, value| {
            let of = |language: Language| plain(language.amount(unit, value));
            [of(Language::En), of(Language::Ru)]
        };
        assert_eq!(amount(Unit::Nanos, 139_220.0), ["139 µs", "139 мкс"]);
        assert_eq!(amount(Unit::Nanos, 2_710_000.0), ["2.71 ms", "2,71 мс"]);
        assert_eq!(amount(Unit::Nanos, 999_700_000.0), ["1.00 s", "1,00 с"]);
        assert_eq!(amount(Unit::Count, 1_234_567.0), ["1,234,567", "1 234 567"]);
        assert_eq!(amount(Unit::Count, 5_000.0), ["5,000", "5000"]);
        assert_eq!(amount(Unit::Bytes, 39_216_742.0), ["37.4 MiB", "37,4 МиБ"]);
        assert_eq!(amount(Unit::CpuMicros, 53.46), ["53.5 µs", "53,5 мкс"]);
        let change = |ratio| plain(Language::En.change(ratio));
        assert_eq!([change(1.55), change(0.941), change(9.02)], ["+55 %", "\u{2212}5.9 %", "×9.02"]);
        assert_eq!(plain(Language::Ru.change(1.034)), "+3,4 %");
        let interval = |low, high| {
            let (low, high) = Language::En.interval((low, high));
            plain(format!("{low} to {high}"))
        };
        assert_eq!(interval(1.48, 1.61), "+48 to +61 %");
        assert_eq!(interval(0.978, 1.012), "\u{2212}2.2 to +1.2 %");
        assert_eq!(interval(0.9, 9.0), "×0.90 to ×9.00");
        assert_eq!(Language::En.number(-0.01, 1), "0.0");
    }
}
