//! An axum application on any I/O model: routes, JSON, a shared counter, and an answer that is streamed.
//!
//! `cargo run --release --bin axum -- --model uring`, then `curl http://127.0.0.1:8080/hello/you`.

use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tidegate_apps::web;

fn main() -> anyhow::Result<()> {
    let app = web::app();
    tidegate_apps::serve(tidegate_async::service(move |conn| {
        let service = TowerToHyperService::new(app.clone());
        async move {
            let mut http = Builder::new(conn.executor());
            http.http1().timer(conn.timer());
            let handle = conn.handle();
            let served = http.serve_connection_with_upgrades(conn, service);
            handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await
        }
    }))
}
