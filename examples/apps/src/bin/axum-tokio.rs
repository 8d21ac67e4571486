//! The application of `axum` without tidegate, on tokio's own sockets and one thread: what it is compared with.
//!
//! `cargo run --release --bin axum-tokio -- 127.0.0.1:8080`

use anyhow::Context;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tidegate_apps::web;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let addr = std::env::args().nth(1).context("say where to listen: ADDR:PORT")?;
    let listener = tokio::net::TcpListener::bind(&addr).await.with_context(|| addr.clone())?;
    println!("listening on {}", listener.local_addr()?);
    let app = web::app();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let mut http = Builder::new(TokioExecutor::new());
            http.http1().timer(TokioTimer::new());
            // Its peer went away.
            let _ = http.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
        });
    }
}
