//! Histograms in the formats of `HdrHistogram`'s own tools: percentile files (`.hgrm`) and interval logs (`.hlog`).
//!
//! A `.hgrm` is the text that `outputPercentileDistribution` prints, in milliseconds; plotters take several
//! of them. A `.hlog` (log format 1.3) has a line for each second and stream: begin and length in seconds,
//! the largest value in milliseconds, and the histogram in nanoseconds. The histogram is the base64 of these
//! bytes, all numbers big-endian:
//!
//! | bytes | content |
//! | --- | --- |
//! | 4 | cookie `0x1c849314`: V2, compressed |
//! | 4 | bytes of the zlib stream that follows, which holds: |
//! | 4 | cookie `0x1c849313`: V2 |
//! | 4 | bytes of the counts |
//! | 4 | normalizing offset, 0 |
//! | 4 | significant digits |
//! | 8, 8 | lowest and highest trackable value |
//! | 8 | ratio of integers to doubles, 1.0 |
//! | … | counts from the lowest value on, `ZigZag` LEB128; a negative one stands for that many zeros |
//!
//! The zlib stream is of stored blocks: a second's histogram is a few kilobytes, not worth a compressor.

use std::fmt::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::histogram::Latencies;
use crate::units::float;

const COOKIE: u32 = 0x1c84_9313;
const COOKIE_COMPRESSED: u32 = 0x1c84_9314;

/// The most bytes of a stored block.
const STORED_BYTES_MAX: usize = 0xffff;

/// Nanoseconds of the unit in these files.
const NANOS_PER_MILLI: f64 = 1e6;

/// The percentile distribution of `latencies`, five lines for every halving of the remaining share, in
/// milliseconds.
pub fn percentiles(latencies: &Latencies) -> String {
    let mut out =
        format!("{:>12} {:>12} {:>12} {:>12}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    // Writing into a `String` cannot fail.
    for point in latencies.spectrum() {
        let value = float(point.nanos) / NANOS_PER_MILLI;
        let (quantile, count) = (point.quantile, point.count);
        let _ = if quantile < 1.0 {
            writeln!(out, "{value:12.3} {quantile:12.6} {count:12} {:12.2}", 1.0 / (1.0 - quantile))
        } else {
            writeln!(out, "{value:12.3} {quantile:12.6} {count:12} {:>12}", "inf")
        };
    }
    let (mean, deviation) = (latencies.mean() / NANOS_PER_MILLI, latencies.deviation() / NANOS_PER_MILLI);
    let _ = writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
    let max = float(latencies.max()) / NANOS_PER_MILLI;
    let _ = writeln!(out, "#[Max     = {max:12.3}, Total count    = {:12}]", latencies.count());
    let (buckets, sub_buckets) = Latencies::buckets();
    let _ = writeln!(out, "#[Buckets = {buckets:12}, SubBuckets     = {sub_buckets:12}]");
    out
}

/// The head of a log; `started` is the time since 1970.
pub fn log_head(started: Duration) -> String {
    format!(
        "#[Logged with kvorum bench {}]\n#[Histogram log format version 1.3]\n\
         #[StartTime: {:.3} (seconds since epoch)]\n\
         \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
        env!("CARGO_PKG_VERSION"),
        started.as_secs_f64(),
    )
}

/// A line of a log for an interval that began `begin` after the start; `tag` may hold no comma or space.
pub fn log_line(tag: Option<&str>, begin: Duration, length: Duration, latencies: &Latencies) -> String {
    let tag = tag.map_or_else(String::new, |tag| format!("Tag={tag},"));
    format!(
        "{tag}{:.3},{:.3},{:.3},{}\n",
        begin.as_secs_f64(),
        length.as_secs_f64(),
        float(latencies.max()) / NANOS_PER_MILLI,
        STANDARD.encode(compressed(latencies)),
    )
}

/// The V2 encoding in a zlib stream.
fn compressed(latencies: &Latencies) -> Vec<u8> {
    let stream = zlib_stored(&encoded(latencies));
    let mut out = COOKIE_COMPRESSED.to_be_bytes().to_vec();
    out.extend_from_slice(&length(&stream));
    out.extend_from_slice(&stream);
    out
}

/// The V2 encoding.
fn encoded(latencies: &Latencies) -> Vec<u8> {
    let mut counts = Vec::new();
    let mut next = 0_u64;
    for (index, count) in latencies.recorded() {
        match index - next {
            0 => {}
            1 => put_zigzag(0, &mut counts),
            zeros => put_zigzag(-i64::try_from(zeros).unwrap_or(i64::MAX), &mut counts),
        }
        put_zigzag(i64::try_from(count).unwrap_or(i64::MAX), &mut counts);
        next = index + 1;
    }
    let (low, high, digits) = Latencies::bounds();
    let mut out = COOKIE.to_be_bytes().to_vec();
    out.extend_from_slice(&length(&counts));
    out.extend_from_slice(&0_u32.to_be_bytes());
    out.extend_from_slice(&u32::from(digits).to_be_bytes());
    out.extend_from_slice(&low.to_be_bytes());
    out.extend_from_slice(&high.to_be_bytes());
    out.extend_from_slice(&1.0_f64.to_be_bytes());
    out.extend_from_slice(&counts);
    out
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// LEB128 of the number folded so that small negative ones are short; the ninth byte carries eight bits.
fn put_zigzag(number: i64, out: &mut Vec<u8>) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    for _ in 0..8 {
        if rest < 0x80 {
            break;
        }
        out.push(0x80 | u8::try_from(rest & 0x7f).unwrap_or(0));
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or(u8::MAX));
}

/// `data` as a zlib stream (RFC 1950) of stored blocks (RFC 1951).
fn zlib_stored(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut blocks = data.chunks(STORED_BYTES_MAX).peekable();
    while let Some(block) = blocks.next() {
        let bytes = u16::try_from(block.len()).unwrap_or(u16::MAX);
        out.push(u8::from(blocks.peek().is_none()));
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&(!bytes).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.extend_from_slice(&adler32(data).to_be_bytes());
    out
}

fn adler32(data: &[u8]) -> u32 {
    const BASE: u32 = 65_521;
    let (one, two) = data.iter().fold((1, 0), |(one, two), &byte| {
        let one = (one + u32::from(byte)) % BASE;
        (one, (two + one) % BASE)
    });
    (two << 16) | one
}

#[cfg(test)]
#[path = "hdr_log_tests.rs"]
mod tests;
