//! Histograms as text: the V2 encoding that other HdrHistogram tools read, and percentile distributions.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// A histogram could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a histogram in compressed V2 encoding ({0}); it has to be as tidegate load --json wrote it")]
pub struct HistogramError(String);

/// An empty histogram, as all latencies are kept in: 1 µs to 1 h with three digits.
#[must_use]
pub fn empty() -> Histogram<u64> {
    // Within what the histogram can do.
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("valid bounds")
}

/// V2, compressed, base64: what the logs of HdrHistogram hold. Empty if it can not be written, which does not happen in memory.
#[must_use]
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    match V2DeflateSerializer::new().serialize(histogram, &mut bytes) {
        Ok(_) => STANDARD.encode(bytes),
        Err(_) => String::new(),
    }
}

/// Reads what [`encode`] or another tool wrote. The values are microseconds by convention.
///
/// # Errors
/// [`HistogramError`] with what is wrong.
pub fn decode(text: &str) -> Result<Histogram<u64>, HistogramError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|e| HistogramError(e.to_string()))?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|e| HistogramError(e.to_string()))
}

/// The percentile distribution as `.hgrm` text, which the plotter of HdrHistogram reads; values in milliseconds, as is usual there.
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
        let mut histogram = crate::tally::histogram();
        (1..5000).for_each(|us| histogram.saturating_record(us * us));
        assert_eq!(decode(&encode(&histogram)).unwrap(), histogram);
        assert!(decode("no base64!").unwrap_err().to_string().contains("V2"));
        assert!(decode("AAAA").is_err());
    }

    #[test]
    fn percentiles_are_a_table_that_ends_with_everything() {
        let mut histogram = crate::tally::histogram();
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
