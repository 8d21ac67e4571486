//! Sends back what it receives, as async code: what the bridge costs beside `tidegate serve echo`, which is a session.
//!
//! `cargo run --release --bin echo -- --model uring`

use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn main() -> anyhow::Result<()> {
    tidegate_apps::serve(tidegate_async::service(async |mut conn| {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(n @ 1..) = conn.read(&mut buffer).await {
            if conn.write_all(&buffer[..n]).await.is_err() {
                return;
            }
        }
    }))
}
