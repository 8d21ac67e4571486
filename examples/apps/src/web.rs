//! An axum application: routes, JSON, a shared counter, and an answer that is streamed. It does not use tidegate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Numbers {
    numbers: Vec<i64>,
}

#[derive(Serialize)]
struct Sum {
    sum: i64,
    requests: u64,
}

async fn sum(State(requests): State<Arc<AtomicU64>>, Json(Numbers { numbers }): Json<Numbers>) -> Json<Sum> {
    let sum = numbers.iter().fold(0, |sum: i64, n| sum.wrapping_add(*n));
    Json(Sum { sum, requests: requests.fetch_add(1, Relaxed) + 1 })
}

/// 1 MiB in pieces of 16 KiB.
async fn stream() -> Body {
    let piece = Bytes::from(vec![b'x'; 16 << 10]);
    Body::from_stream(stream::iter((0..64).map(move |_| Ok::<_, std::convert::Infallible>(piece.clone()))))
}

/// The application.
pub fn app() -> Router {
    let page = Bytes::from(vec![b'.'; 4096]);
    Router::new()
        .route("/", get(move || async move { page }))
        .route("/hello/{name}", get(async |Path(name): Path<String>| format!("Hello, {name}!\n")))
        .route("/sum", post(sum))
        .route("/stream", get(stream))
        .with_state(Arc::new(AtomicU64::new(0)))
}
