//! Histograms as text: the V2 encoding that other HdrHistogram tools read, and percentile distributions.

use std::fmt::Write as _;
use std::io::Read as _;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// A histogram that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a histogram in compressed V2 encoding ({0}); use the output of tidegate load --json unchanged")]
pub struct HistogramError(String);

/// How many values are in this range. A counter that reaches over a bound counts where it begins, so ranges side by
/// side count each value once.
pub fn count_in(histogram: &Histogram<u64>, range: Range<u64>) -> u64 {
    let begins = |value| histogram.lowest_equivalent(value);
    let counters =
        histogram.iter_recorded().filter(|counter| range.contains(&begins(counter.value_iterated_to())));
    counters.map(|counter| counter.count_at_value()).sum()
}

/// An empty histogram, as all latencies are kept in: 1 µs to 1 h with three digits.
#[must_use]
pub fn empty() -> Histogram<u64> {
    // Within what the histogram can do.
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("valid bounds")
}

/// Encodes as V2, compressed, base64, as in HdrHistogram logs. Empty on error, which does not happen in memory.
#[must_use]
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    match V2DeflateSerializer::new().serialize(histogram, &mut bytes) {
        Ok(_) => STANDARD.encode(bytes),
        Err(_) => String::new(),
    }
}

/// Decodes the output of [`encode`] or another tool. The values are microseconds by convention.
///
/// # Errors
/// [`HistogramError`] with the reason.
pub fn decode(text: &str) -> Result<Histogram<u64>, HistogramError> {
    let wrong = |why: &str| HistogramError(why.to_owned());
    if text.len() > MOST_BYTES {
        return Err(wrong("it is too long"));
    }
    let bytes = STANDARD.decode(text.trim()).map_err(|e| HistogramError(e.to_string()))?;
    // Lengths in the input are not trusted: they are checked before anything is allocated.
    let (cookie, packed) = head::<8>(&bytes).ok_or_else(|| wrong("its header is truncated"))?;
    if number(&cookie[..4]) != COMPRESSED {
        return Err(wrong("its cookie is wrong"));
    }
    let mut plain = Vec::new();
    let limit = MOST_BYTES as u64 + 1;
    let read = ZlibDecoder::new(packed).take(limit).read_to_end(&mut plain);
    read.map_err(|e| HistogramError(e.to_string()))?;
    check(&plain).map_err(wrong)?;
    Deserializer::new().deserialize(&mut plain.as_slice()).map_err(|e| HistogramError(e.to_string()))
}

/// First bytes of the encoding (V2) with compression, and without it.
const COMPRESSED: u64 = 0x1c84_9314;
const PLAIN: u64 = 0x1c84_9313;

/// Most bytes of an encoded histogram, with and without compression. One of ours has at most 210 kB.
const MOST_BYTES: usize = 4 << 20;

/// Most counters of a histogram; each is 8 bytes of memory. Ours have 23,552.
const MOST_COUNTERS: u64 = 1 << 19;

fn head<const N: usize>(bytes: &[u8]) -> Option<(&[u8; N], &[u8])> {
    bytes.split_first_chunk()
}

/// Big-endian.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// Whether the head (cookie, length, offset, digits, lowest, highest, ratio) announces no more than there is and may
/// be.
fn check(plain: &[u8]) -> Result<(), &'static str> {
    if plain.len() > MOST_BYTES {
        return Err("it is too long");
    }
    let (head, counters) = head::<40>(plain).ok_or("its header is truncated")?;
    let field = |from: usize, to: usize| number(&head[from..to]);
    if field(0, 4) != PLAIN {
        return Err("its inner cookie is wrong");
    }
    if field(4, 8) != counters.len() as u64 {
        return Err("its length field is wrong");
    }
    let (digits, low, high) = (field(12, 16), field(16, 24), field(24, 32));
    if !(1..=5).contains(&digits) || low == 0 || high < low.saturating_mul(2) {
        return Err("its bounds are invalid");
    }
    // As in the reference implementation: halves of a power of two, for each doubling of the range.
    let half = (2 * 10u64.pow(digits as u32)).next_power_of_two() / 2;
    let doublings = u64::from((high / low / (2 * half)).checked_ilog2().map_or(1, |log| log + 2));
    if (doublings + 1) * half > MOST_COUNTERS {
        return Err("its range and digits need too much memory");
    }
    Ok(())
}

/// The percentile distribution as `.hgrm` text, which the plotter of HdrHistogram reads; values in milliseconds, as is
/// usual there.
#[must_use]
pub fn percentiles(histogram: &Histogram<u64>) -> String {
    let mut text =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let ms = |us: u64| us as f64 / 1e3;
    let mut seen = 0;
    // Writing to a string does not fail.
    for step in histogram.iter_quantiles(5) {
        seen += step.count_since_last_iteration();
        let quantile = step.quantile_iterated_to();
        let value = ms(step.value_iterated_to());
        let _ = match quantile {
            1.0.. => writeln!(text, "{value:>12.3} {quantile:>2.12} {seen:>10}"),
            _ => writeln!(text, "{value:>12.3} {quantile:>2.12} {seen:>10} {:>14.2}", 1.0 / (1.0 - quantile)),
        };
    }
    let _ = writeln!(
        text,
        "#[Mean    = {:>12.3}, StdDeviation   = {:>12.3}]\n#[Max     = {:>12.3}, Total count    = {:>12}]\n\
         #[Buckets = {:>12}, SubBuckets     = {:>12}]",
        histogram.mean() / 1e3,
        histogram.stdev() / 1e3,
        ms(histogram.max()),
        histogram.len(),
        histogram.buckets(),
        2048, // three significant digits
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_being_written() {
        let mut histogram = crate::thread_stats::histogram();
        (1..5000).for_each(|us| histogram.saturating_record(us * us));
        assert_eq!(decode(&encode(&histogram)).unwrap(), histogram);
        assert!(decode("no base64!").unwrap_err().to_string().contains("V2"));
        assert!(decode("AAAA").is_err());
    }

    /// A histogram of another head, without counters.
    fn forged(compressed: u32, length: u32, digits: u32, low: u64, high: u64, counters: &[u8]) -> String {
        use std::io::Write as _;
        let mut plain = Vec::new();
        for field in [0x1c84_9313, length, 0, digits] {
            plain.extend(field.to_be_bytes());
        }
        plain.extend(low.to_be_bytes());
        plain.extend(high.to_be_bytes());
        plain.extend(1.0f64.to_be_bytes());
        plain.extend(counters);
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&plain).unwrap();
        let packed = packed.finish().unwrap();
        let head = [0x1c84_9314u32.to_be_bytes(), compressed.to_be_bytes()].concat();
        STANDARD.encode([head, packed].concat())
    }

    #[test]
    fn what_a_histogram_says_of_its_lengths_is_not_believed() {
        let says = |text: &str| decode(text).unwrap_err().0;
        let most = u32::MAX;
        assert_eq!(says(&forged(most, most, 3, 1, 3_600_000_000, &[])), "its length field is wrong");
        assert_eq!(says(&forged(60, most, 3, 1, 3_600_000_000, &[0; 9])), "its length field is wrong");
        for (digits, low, high) in
            [(0, 1, 100), (6, 1, 100), (most, 1, 100), (3, 0, 100), (3, 100, 199), (3, 1 << 63, 1)]
        {
            assert_eq!(says(&forged(60, 0, digits, low, high, &[])), "its bounds are invalid");
        }
        for (digits, high) in [(5, u64::MAX), (5, u64::MAX / 2), (5, 1 << 40)] {
            assert_eq!(
                says(&forged(60, 0, digits, 1, high, &[])),
                "its range and digits need too much memory"
            );
        }
        // A megabyte of zeros packs into a thousandth of it.
        let bomb = vec![0; 64 << 20];
        assert_eq!(says(&forged(60, 64 << 20, 3, 1, 3_600_000_000, &bomb)), "it is too long");
        assert_eq!(says(&"A".repeat(MOST_BYTES + 4)), "it is too long");
        assert_eq!(says(""), "its header is truncated");
        // What others write with other settings is read.
        for (digits, high) in [(1, u64::MAX / 2), (3, u64::MAX / 2), (4, 3_600_000_000), (5, 1_000_000)] {
            let mut other = Histogram::<u64>::new_with_bounds(1, high, digits).unwrap();
            other.record(high / 2).unwrap();
            assert_eq!(decode(&encode(&other)).unwrap(), other);
        }
    }

    #[test]
    fn percentiles_are_a_table_that_ends_with_everything() {
        let mut histogram = crate::thread_stats::histogram();
        (0..1000).for_each(|_| histogram.saturating_record(1000));
        histogram.saturating_record(500_000);
        let text = percentiles(&histogram);
        assert!(
            text.contains("#[Max     =      500.") && text.contains("Total count    =         1001]"),
            "{text}"
        );
        assert!(
            text.lines()
                .any(|line| line.trim_start().starts_with("500.")
                    && line.contains("1.000000000000       1001")),
            "{text}"
        );
    }
}
