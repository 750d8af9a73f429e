//! Tests of the files: read back by a decoder written from the format alone.

use super::*;

/// Reads a V2 histogram as the format's description defines it: (value, count), each value the lowest of its
/// bucket.
fn decode(text: &str) -> Vec<(u64, u64)> {
    let bytes = STANDARD.decode(text).unwrap();
    let number = |at: &[u8]| u64::from(u32::from_be_bytes(at[..4].try_into().unwrap()));
    assert_eq!(number(&bytes), 0x1c84_9314);
    let stream = &bytes[8..];
    assert_eq!(number(&bytes[4..]), stream.len() as u64);
    assert_eq!(u16::from_be_bytes([stream[0], stream[1]]) % 31, 0, "zlib's own check");
    let (mut plain, mut at, mut is_last) = (Vec::new(), 2, false);
    while !is_last {
        is_last = stream[at] == 1;
        let length = usize::from(u16::from_le_bytes([stream[at + 1], stream[at + 2]]));
        assert_eq!(stream[at + 3], !stream[at + 1]);
        plain.extend_from_slice(&stream[at + 5..at + 5 + length]);
        at += 5 + length;
    }
    assert_eq!(&stream[at..], adler32(&plain).to_be_bytes());
    assert_eq!(number(&plain), 0x1c84_9313);
    let counts = &plain[40..];
    assert_eq!(number(&plain[4..]), counts.len() as u64);
    assert_eq!((number(&plain[8..]), number(&plain[12..])), (0, 3));
    let (mut index, mut seen, mut at) = (0_u64, Vec::new(), 0);
    while at < counts.len() {
        let (mut folded, mut shift) = (0_u64, 0);
        loop {
            let byte = counts[at];
            at += 1;
            if shift == 56 {
                folded |= u64::from(byte) << shift;
                break;
            }
            folded |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let count = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
        if count < 0 {
            index += count.unsigned_abs();
            continue;
        }
        if count > 0 {
            // 2048 values one by one, then 1024 of twice the width, and so on.
            let value = if index < 2048 { index } else { ((index % 1024) + 1024) << (index / 1024 - 1) };
            seen.push((value, count.unsigned_abs()));
        }
        index += 1;
    }
    seen
}

fn of(nanos: &[u64]) -> Latencies {
    let mut latencies = Latencies::new().unwrap();
    for &nanos in nanos {
        latencies.record(Duration::from_nanos(nanos));
    }
    latencies
}

/// Goal: another reader finds the recorded values. Method: values in all sizes of bucket, single and many.
#[test]
fn a_log_is_read_back() {
    let nanos = [0, 1, 1, 3, 2047, 2048, 2050, 1_000_000, 1_000_000, 123_456_789, 3_599_000_000_000];
    let line = log_line(Some("put"), Duration::from_secs(2), Duration::from_secs(1), &of(&nanos));
    let fields: Vec<&str> = line.trim_end().split(',').collect();
    assert_eq!(fields[..3], ["Tag=put", "2.000", "1.000"]);
    assert!(fields[4].starts_with("HISTFAAA"), "V2's usual beginning");
    let seen = decode(fields[4]);
    let mut expect: Vec<(u64, u64)> = Vec::new();
    for nanos in nanos {
        // The first 2048 places are 1 wide, all others at most a thousandth of their value: 2048 and 2050
        // have different places.
        match expect.last_mut() {
            Some((last, count)) if *last == nanos => *count += 1,
            _ => expect.push((nanos, 1)),
        }
    }
    assert_eq!(seen.len(), expect.len());
    for (&(value, count), &(lowest, wanted)) in seen.iter().zip(&expect) {
        assert_eq!(count, wanted);
        assert!(value.abs_diff(lowest) <= lowest / 1000, "{value} for {lowest}");
    }
    assert!(
        decode(
            log_line(None, Duration::ZERO, Duration::ZERO, &of(&[])).trim_end().rsplit(',').next().unwrap()
        )
        .is_empty()
    );
}

/// Goal: large counts and large logs survive. Method: every 977th microsecond, one value a million times.
#[test]
fn a_large_log_is_read_back() {
    let mut latencies = of(&(1..60_000).map(|nth| nth * 977_000).collect::<Vec<_>>());
    for _ in 0..1_000_000 {
        latencies.record(Duration::from_nanos(500));
    }
    let line = log_line(None, Duration::ZERO, Duration::from_secs(1), &latencies);
    let seen = decode(line.trim_end().rsplit(',').next().unwrap());
    assert_eq!(seen[0], (500, 1_000_000));
    assert_eq!(seen.iter().map(|&(_, count)| count).sum::<u64>(), latencies.count());
}

/// Goal: the head has the lines that the tools expect. Method: the whole text.
#[test]
fn a_log_begins_as_the_format_says() {
    let head = log_head(Duration::from_millis(1_441_812_279_474));
    let lines: Vec<&str> = head.lines().collect();
    assert_eq!(lines[1], "#[Histogram log format version 1.3]");
    assert_eq!(lines[2], "#[StartTime: 1441812279.474 (seconds since epoch)]");
    assert_eq!(lines.len(), 4);
}

/// Goal: the percentile file equals that of the usual tools. Method: the whole text of a small one.
#[test]
fn percentiles_are_those_of_the_tools() {
    let text = percentiles(&of(&[1_000_000, 2_000_000, 3_000_000, 4_000_000]));
    let expect = "       Value   Percentile   TotalCount 1/(1-Percentile)

       1.000     0.000000            1         1.00
       1.000     0.100000            1         1.11
       1.000     0.200000            1         1.25
       2.001     0.300000            2         1.43
       2.001     0.400000            2         1.67
       2.001     0.500000            2         2.00
       3.000     0.550000            3         2.22
       3.000     0.600000            3         2.50
       3.000     0.650000            3         2.86
       3.000     0.700000            3         3.33
       3.000     0.750000            3         4.00
       4.002     0.775000            4         4.44
       4.002     1.000000            4          inf
#[Mean    =        2.500, StdDeviation   =        1.118]
#[Max     =        4.002, Total count    =            4]
#[Buckets =           32, SubBuckets     =         2048]
";
    assert_eq!(text, expect);
}
