//! In place of `work`, in a build without the feature `nats`.

use tidegate_services::chat::Federation;

use super::{BridgeError, BridgeOptions, EventReporter, Wake};
use crate::error::ClusterError;

/// The bridge between nodes; there is none in this build.
#[derive(Debug)]
pub enum Bridge {}

impl Bridge {
    /// Refuses to federate.
    ///
    /// # Errors
    /// [`ClusterError::BuiltWithoutNats`], always.
    pub fn start(_: BridgeOptions, _: Federation, _: Wake, _: EventReporter) -> Result<Self, BridgeError> {
        Err(ClusterError::BuiltWithoutNats.into())
    }
}

/// As the one at work, which ends when it is dropped.
impl Drop for Bridge {
    fn drop(&mut self) {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rooms::Retention;
    use crate::{Auth, BrokerAccess};
    use std::time::Duration;

    fn options() -> BridgeOptions {
        let access =
            BrokerAccess { url: "nats://127.0.0.1:4222".into(), auth: Auth::Url, ca: None, identity: None };
        BridgeOptions {
            access,
            name: "node".into(),
            timeout: Duration::from_secs(5),
            kept: Retention::default(),
        }
    }

    #[test]
    fn a_build_without_the_broker_names_the_feature_that_has_it() {
        let wake = Wake::default();
        let (_, federation) =
            tidegate_services::Chat::federated(tidegate_services::ChatLimits::default(), || {});
        let refused = Bridge::start(options(), federation, wake, Box::new(|_, _| {})).unwrap_err();
        assert!(refused.to_string().contains("--features cluster"), "{refused}");
    }
}
