//! What several sections say of how they were measured.

/// About a table with other figures of what the table before it has.
pub(super) const AS_ABOVE: &str = "Measured together with the table above.";

/// A sentence about the shares of their processors that servers had.
pub(super) fn shares(shares: impl Iterator<Item = f64>, method: &str) -> String {
    let (low, high) = shares.fold((1.0_f64, 0.0_f64), |(low, high), share| (low.min(share), high.max(share)));
    if low == 1.0 {
        return "Servers had whole processors.".into();
    }
    let (low, high) = (format!("{:.0}", low * 100.0), format!("{:.0}", high * 100.0));
    let range = if low == high { low } else { format!("{low}–{high}") };
    format!(
        "So that the load is not the limit, servers were kept to {range}% of a processor by {method}; rates are for a \
         whole one."
    )
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn one_share_is_one_number_and_several_are_a_range() {
        let of = |all: &[f64]| shares(all.iter().copied(), "a quota");
        assert!(of(&[0.741, 0.74]).contains("kept to 74% of a processor by a quota"));
        assert!(of(&[0.57, 0.77]).contains("kept to 57–77% of a processor"));
        assert_eq!(of(&[1.0, 1.0]), "Servers had whole processors.");
    }
}
