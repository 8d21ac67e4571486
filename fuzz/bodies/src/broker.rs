//! Messages of a broker.

/// Any bytes as a message to a node of the messenger, an agent or the lead of agents: none panics, and none takes
/// more memory than its bounds
/// allow. The first byte says whether the others are a message or the body of one.
pub fn broker(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    let message = match kind {
        b'b' => [br#"{"version":3,"body":"#, rest, b"}"].concat(),
        _ => rest.to_vec(),
    };
    tidegate_cluster::rooms::understand(&message);
    tidegate_cluster::wire::understand(&message);
}
