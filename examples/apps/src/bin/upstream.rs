//! A reverse proxy over HTTP/1.1: what hyper is asked, hyper's client asks another server, on a connection that is
//! dialled on the same I/O thread.
//!
//! `cargo run --release --bin upstream -- --to 127.0.0.1:9000 --listen 127.0.0.1:8080`.

use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::handshake;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tidegate::Endpoint;
use tidegate_async::Connection;
use tokio::sync::Mutex;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Each connection has one to the other server, and ends with it.
async fn serve(conn: Connection, to: Endpoint) -> anyhow::Result<()> {
    let handle = conn.handle();
    let (client, upstream) = handshake(conn.dial(to, CONNECT_TIMEOUT).await?).await?;
    handle.spawn(upstream);
    let client = Arc::new(Mutex::new(client));
    let answer = service_fn(move |request| {
        let client = client.clone();
        async move {
            let mut client = client.lock().await; // HTTP/1.1 asks one thing after the other
            client.ready().await?;
            client.send_request(request).await
        }
    });
    let served = http1::Builder::new().timer(handle.timer()).serve_connection(conn, answer);
    handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let (to, arguments) = tidegate_apps::to()?;
    let service = tidegate_async::service_with(to, serve).dials(1);
    tidegate_apps::serve_with(service, arguments)
}
