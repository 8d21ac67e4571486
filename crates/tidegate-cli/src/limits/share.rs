//! The descriptors of the process, shared among its servers.

use anyhow::anyhow;

use crate::{Failure, usage};

/// Descriptors that a server requests.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// For a given limit: fewer are an error.
    Exactly(usize),
    /// For a default, which can be lowered.
    UpTo(usize),
}

impl Want {
    /// The same for each of several addresses.
    pub fn times(self, addresses: usize) -> Self {
        match self {
            Self::Exactly(n) => Self::Exactly(n.saturating_mul(addresses)),
            Self::UpTo(n) => Self::UpTo(n.saturating_mul(addresses)),
        }
    }
}

/// Divides `limit` descriptors. A single server gets them all; of several, those with given limits go first, and the
/// others share the rest, none getting more than requested.
///
/// # Errors
/// The given limits need more than there is.
pub fn shares(limit: usize, wants: &[Want]) -> Result<Vec<usize>, Failure> {
    if wants.len() == 1 {
        return Ok(vec![limit]);
    }
    let exactly = |want: &Want| if let Want::Exactly(n) = want { *n } else { 0 };
    let asked = wants.iter().map(exactly).fold(0, usize::saturating_add);
    let mut rest = limit.checked_sub(asked).ok_or_else(|| {
        usage(anyhow!(
            "the given max-connections of all servers need {asked} descriptors, and the limit is {limit}: \
             lower max-connections, or raise the limit with ulimit -n"
        ))
    })?;
    let mut shares: Vec<usize> = wants.iter().map(exactly).collect();
    let mut modest: Vec<(usize, usize)> = Vec::new();
    for (at, want) in wants.iter().enumerate() {
        if let Want::UpTo(n) = want {
            modest.push((*n, at));
        }
    }
    modest.sort_unstable();
    let mut left = modest.len();
    for (want, at) in modest {
        shares[at] = want.min(rest / left);
        rest -= shares[at];
        left -= 1;
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Want::{Exactly, UpTo};

    fn of(limit: usize, wants: &[Want]) -> Option<Vec<usize>> {
        shares(limit, wants).ok()
    }

    #[test]
    fn a_server_alone_has_all_descriptors() {
        assert_eq!(of(1000, &[UpTo(10)]), Some(vec![1000]));
        assert_eq!(of(1000, &[Exactly(5000)]), Some(vec![1000]), "it says itself what it lacks");
    }

    #[test]
    fn who_was_asked_for_goes_first_and_the_rest_is_shared() {
        assert_eq!(of(1000, &[UpTo(5000), Exactly(400), UpTo(5000)]), Some(vec![300, 400, 300]));
        assert_eq!(of(1000, &[UpTo(5000), UpTo(100)]), Some(vec![900, 100]));
        assert_eq!(of(1000, &[Exactly(600), Exactly(600)]), None);
        assert_eq!(of(1000, &[Exactly(600), Exactly(400), UpTo(9)]), Some(vec![600, 400, 0]));
    }
}
