//! The server of the tutorial: `cargo run -p tidegate --example tutorial -- [MODEL] [ADDR:PORT]`.

// ANCHOR: main
mod throttle;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tidegate::{Model, Policy, Server};

use throttle::Throttle;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let model = args.get(1).map_or(Ok(Model::best().model), |name| name.parse())?;
    let addr = args.get(2).map_or("127.0.0.1:7000", String::as_str);
    let policy = Policy::default()
        .max_connections(1000)
        .threads(NonZeroUsize::new(1))
        .idle_timeout(Some(Duration::from_secs(60)));
    let service = Throttle { bytes_per_s: 64_000, echoed: Arc::new(AtomicU64::new(0)) };
    let server = Server::new(service).model(model).policy(policy).bind(addr)?;
    let running = server.start()?;
    let handle = running.handle();
    ctrlc::set_handler(move || handle.stop())?;
    println!("listening on {} with {model}", running.local_addr());
    let stats = running.join();
    println!("{} connections, {} bytes echoed", stats.accepted, stats.bytes_out);
    Ok(())
}
// ANCHOR_END: main
