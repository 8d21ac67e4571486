//! axum behind TLS on any I/O model: HTTP/2 or HTTP/1.1, as the client agrees to (ALPN).
//!
//! `cargo run --release --bin https -- --cert cert.pem --key key.pem`, then `curl --http2 https://localhost:8080/`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use axum::body::Body;
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::stream;
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tidegate::TlsPeer;
use tidegate_tls::{Identity, TlsServer};

/// Says what the handshake of this connection has agreed on.
async fn agreed(Extension(tls): Extension<Arc<TlsPeer>>) -> String {
    let protocol = String::from_utf8_lossy(tls.alpn.as_deref().unwrap_or(b"no protocol")).into_owned();
    format!("{protocol} to {}\n", tls.server_name.as_deref().unwrap_or("no name"))
}

/// 1 MiB in pieces of 16 KiB.
async fn stream() -> Body {
    let piece = Bytes::from(vec![b'x'; 16 << 10]);
    Body::from_stream(stream::iter((0..64).map(move |_| Ok::<_, std::convert::Infallible>(piece.clone()))))
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args();
    let program = arguments.next();
    let mut file = |option: &str| {
        let given = (arguments.next().as_deref() == Some(option)).then(|| arguments.next()).flatten();
        given.map(PathBuf::from).context("say the certificate and its key first: --cert FILE --key FILE")
    };
    let (cert, key) = (file("--cert")?, file("--key")?);
    let identity = Identity::read(cert, key)?.protocols(&["h2", "http/1.1"]);
    let app = Router::new().route("/", get(agreed)).route("/stream", get(stream));
    let service = tidegate_async::service(move |conn| {
        let app = app.clone().layer(Extension(conn.peer().tls.clone().unwrap_or_default()));
        async move {
            let mut http = Builder::new(conn.executor());
            http.http1().timer(conn.timer());
            let handle = conn.handle();
            let served = http.serve_connection(conn, TowerToHyperService::new(app));
            handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await
        }
    });
    let tls = TlsServer::new(service, identity);
    tidegate_apps::serve_with(tls, program.into_iter().chain(arguments))
}
